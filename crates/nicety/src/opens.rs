//! An opener: this program, which the keeper has executed for one request (docs/adr/0024). And the other end of it: a command that names
//! what its change will have opened.
//!
//! An opener has the rights of the keeper, and the daemon that asks may be compromised. What the host file on the disk names is opened,
//! what was named at the keeper, and nothing else.

use std::collections::BTreeMap;
use std::io::{Write, stderr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use nicety_control::{keeper_socket, may_change, opened_by_entry};
use nicety_daemon::live::state::Begin;
use nicety_daemon::named;
use nicety_host::{Host, List, in_one_line};
use nicety_keeper::{Client, Opening, Task, administers, socket_of};
use nicety_socket::PeerCredentials;
use nicety_uplink::{Capture, Tap};
use rustix::process::{geteuid, getppid};

use crate::cli::Serve;
use crate::exit::{Exit, Failure};
use crate::find::control_of;

mod acceptor;

/// A thing that an opener can open.
#[derive(Debug, PartialEq, Eq)]
enum Wanted<'a> {
    /// A tap, or one more queue of a tap with several.
    Tap { name: &'a str, is_queue: bool },
    /// A listening socket.
    Socket(nicety_socket::Wanted),
    /// A capture's file.
    Capture(&'a Path),
}

impl<'a> Wanted<'a> {
    /// Reads it from a daemon's line.
    fn of(line: &'a str) -> Option<Self> {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["tap", name] => Some(Self::Tap { name, is_queue: false }),
            ["tap", name, "queue"] => Some(Self::Tap { name, is_queue: true }),
            ["socket", ..] => nicety_socket::Wanted::of(line).map(Self::Socket),
            ["capture", ..] => {
                let path = line.strip_prefix("capture ").map(Path::new).filter(|path| path.is_absolute());
                path.map(Self::Capture)
            }
            _ => None,
        }
    }

    /// The line that must be named.
    fn line(&self) -> String {
        match self {
            Self::Tap { name, is_queue: _ } => named::tap(name),
            Self::Socket(socket) => named::socket(&socket.path),
            Self::Capture(path) => named::capture(path),
        }
    }
}

/// A line that may be named, with its whole path: a relative one starts at the host file's folder.
fn whole(line: &str, host: &Host) -> Option<String> {
    let folder = host.path.parent().unwrap_or(Path::new("/"));
    match line.split_once(' ')? {
        ("tap", name) if !name.contains(' ') => Some(line.to_owned()),
        ("socket", path) => Some(named::socket(&folder.join(path))),
        ("capture", path) => Some(named::capture(&folder.join(path))),
        _ => None,
    }
}

/// Does what the keeper wants.
pub fn run(args: &Serve) -> Result<ExitCode, Failure> {
    let (opening, task) = Opening::begin().map_err(|error| {
        Failure::new(
            Exit::Failed,
            format!("no keeper has started this process: {error}; start `nicety serve --keeper`"),
        )
    })?;
    match task {
        Task::Begin => begin(&opening, &args.host),
        Task::Open(line, asker) => match open(&opening, &args.host, &line) {
            Ok((name, fd)) => asker.opened(&name, &fd),
            Err(why) => asker.refused(&why),
        },
        Task::IsNamed(lines, asker) => {
            let lines: Vec<String> = lines.lines().map(str::to_owned).collect();
            match are_named(&opening, &args.host, &lines) {
                Ok(()) => asker.named(),
                Err(why) => asker.refused(&why),
            }
        }
        Task::Client(socket) => {
            let peer = PeerCredentials::of(&socket);
            let client = Client::from(socket);
            let asked = client.lines().map_err(|error| error.to_string());
            client.answer(&asked.and_then(|asked| named_by(&opening, &args.host, asked, peer)));
        }
        Task::Accept(accepting) => acceptor::run(&Arc::new((opening, accepting)), &args.host),
    }
    Ok(ExitCode::SUCCESS)
}

/// A line in the daemon's log.
fn say(level: &str, what: &str) {
    // Nobody may read it.
    let _ = writeln!(stderr(), "{level} keeper: {what}");
}

/// Names what is about to run: no daemon of this keeper has run yet. Makes the keeper's socket.
fn begin(opening: &Opening, path: &Path) {
    // The daemon reports what is wrong with the host file.
    let Ok(file) = Host::read(path) else { return };
    let begin = Begin::new(file);
    // Taps must be there again also while the host file is being edited, and what an edited file names no more when that change is undone.
    named::all(&begin.host).iter().for_each(|line| opening.name(line));
    let Ok(control) = control_of(&begin.host) else { return };
    let path = socket_of(&control);
    match keeper_socket(&begin.host, &control, &path) {
        Ok(socket) => drop(opening.listens(&path, &socket)),
        // The daemon reports that another one serves its control socket.
        Err(error) if error.is_taken() => {}
        Err(error) => say("WARN", &format!("live changes can open only what the host file names: {error}")),
    }
}

/// Opens what a daemon asks for, if it is named.
fn open(opening: &Opening, path: &Path, asked: &str) -> Result<(String, OwnedFd), String> {
    let wanted = Wanted::of(asked).ok_or_else(|| format!("this program does not know what {asked:?} is"))?;
    are_named(opening, path, &[wanted.line()])?;
    match wanted {
        Wanted::Tap { name, is_queue } => {
            let opened = Tap::open_for(name, is_queue).map_err(|error| error.to_string())?;
            // It may be opened again, also while the host file is being edited. The kernel may have chosen the name.
            opening.name(&named::tap(name));
            opening.name(&named::tap(&opened.0));
            Ok(opened)
        }
        Wanted::Socket(socket) => {
            let made = socket.make().map_err(|error| error.to_string())?;
            Ok((socket.path.display().to_string(), made))
        }
        Wanted::Capture(path) => {
            let opened = Capture::open(path).map_err(|error| error.to_string())?;
            Ok((path.display().to_string(), opened))
        }
    }
}

/// Whether all these lines are named.
fn are_named(opening: &Opening, path: &Path, lines: &[String]) -> Result<(), String> {
    if lines.iter().all(|line| opening.named.contains(line)) {
        return Ok(());
    }
    let file = Host::read(path);
    let of_file = file.as_ref().map(named::all).unwrap_or_default();
    let is_named = |line: &&String| opening.named.contains(*line) || of_file.contains(*line);
    let Some(line) = lines.iter().find(|line| !is_named(line)) else { return Ok(()) };
    if opening.may_say() {
        say("WARN", &format!("the daemon asked for {line:?}, which no user has named: refused"));
    }
    let path = path.display();
    Err(match file {
        Ok(_) => format!(
            "neither {path} names {line}, nor a change by a user who may: root, the control socket's owner, or a member of [daemon] \
             control_change_group"
        ),
        Err(error) => format!(
            "no change by a user who may names {line}, and the host file cannot be read: {}",
            in_one_line(&error)
        ),
    })
}

/// Names what a client names, if its user may change the daemon.
fn named_by(
    opening: &Opening,
    path: &Path,
    asked: impl IntoIterator<Item = String>,
    peer: Option<PeerCredentials>,
) -> Result<(), String> {
    let file = Host::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let of_file = named::all(&file);
    let (mut known, mut new) = (Vec::new(), Vec::new());
    for line in asked {
        let line = whole(&line, &file).ok_or_else(|| format!("the keeper's program does not know what {line:?} is"))?;
        let lines = if of_file.contains(&line) { &mut known } else { &mut new };
        if !opening.named.contains(&line) {
            lines.push(line);
        }
    }
    let peer = peer.ok_or_else(|| "the system does not say whose process this is".to_owned());
    let allowed = peer.and_then(|peer| may_name(&file, peer).map(|()| peer));
    if new.is_empty() && allowed.is_err() {
        return Ok(());
    }
    let PeerCredentials { pid, uid, .. } = allowed?;
    // A later host file may not have these, and may be undone.
    known.iter().chain(&new).for_each(|line| opening.name(line));
    if !new.is_empty() {
        say("INFO", &format!("user {uid} (process {pid}) names {}: the daemon may have it opened", new.join(", ")));
    }
    Ok(())
}

/// Whether a process may name what is opened. The daemon may be compromised, and connect: it is none of these.
fn may_name(host: &Host, peer: PeerCredentials) -> Result<(), String> {
    may_change(host, peer)?;
    let us = geteuid();
    if peer.uid != us.as_raw() {
        return Ok(());
    }
    if administers() && !us.is_root() {
        return Err(format!(
            "user {us} is the daemon's own, which has less rights than its keeper: be root, the control socket's owner, or in the \
             group that [daemon] control_change_group names",
            us = us.as_raw()
        ));
    }
    // The keeper has started the daemon, and nobody else who connects.
    match parent(peer.pid) {
        Some(parent) if getppid().is_some_and(|keeper| keeper.as_raw_nonzero().get() != parent) => Ok(()),
        _ => Err("a daemon may not name what is opened for it".to_owned()),
    }
}

/// The parent of a process (proc_pid_stat(5)). `None`: it has ended.
fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Names at the keeper what a change of this entry may open.
pub fn name_entry(
    control: &Path,
    list: List,
    name: &str,
    values: &BTreeMap<String, serde_json::Value>,
) -> Result<(), Failure> {
    name_lines(control, opened_by_entry(list, name, values).into_iter().collect())
}

/// Names at the keeper what a host file has opened.
pub fn name_all(control: &Path, host: &Host) -> Result<(), Failure> {
    name_lines(control, named::all(host).into_iter().collect())
}

fn name_lines(control: &Path, lines: Vec<String>) -> Result<(), Failure> {
    if lines.is_empty() {
        return Ok(());
    }
    // Without a keeper the daemon opens it by itself, if it may.
    let named = nicety_keeper::name(&socket_of(control), &lines);
    named.map(drop).map_err(|why| Failure::new(Exit::Failed, format!("nothing was done: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_one_thing_and_nothing_else_is_understood() {
        assert_eq!(Wanted::of("tap tap0"), Some(Wanted::Tap { name: "tap0", is_queue: false }));
        assert_eq!(Wanted::of("tap tap0 queue"), Some(Wanted::Tap { name: "tap0", is_queue: true }));
        for line in ["", "tap", "tap tap0 tap1", "tap  tap0", "file /etc/shadow", "capture shadow", "tap tap0 queue 7"]
        {
            assert_eq!(Wanted::of(line), None, "{line}");
        }
        assert_eq!(Wanted::of("tap tap0 queue").unwrap().line(), "tap tap0");
        assert_eq!(Wanted::of("socket stream 600 - - /run/a b").unwrap().line(), "socket /run/a b");
    }

    #[test]
    fn a_process_is_known_by_its_parent() {
        let us = std::process::id().cast_signed();
        assert_eq!(parent(us), getppid().map(|parent| parent.as_raw_nonzero().get()));
        assert_eq!(parent(i32::MAX), None);
    }
}
