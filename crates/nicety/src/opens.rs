//! An opener: this program, which the keeper has executed for one request (docs/adr/0024). And the other end of it: a command that names
//! what its change will have opened.
//!
//! An opener has the rights of the keeper, and the daemon that asks may be compromised. What the host file on the disk names is opened,
//! what was named at the keeper, and nothing else.

use std::collections::BTreeSet;
use std::io::{Write, stderr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;

use nicety_control::{keeper_socket, may_change};
use nicety_daemon::live::state::Begin;
use nicety_host::{Host, List, UplinkKind};
use nicety_keeper::{Client, Opening, Task, administers, socket_of};
use nicety_socket::PeerCredentials;
use nicety_uplink::Tap;
use rustix::process::{geteuid, getppid};

use crate::cli::Serve;
use crate::exit::{Exit, Failure};
use crate::serve::control_of;

/// A thing that an opener can open.
#[derive(Debug, PartialEq, Eq)]
enum Wanted<'a> {
    /// A tap, or one more queue of a tap with several.
    Tap { name: &'a str, is_queue: bool },
}

impl<'a> Wanted<'a> {
    /// By a daemon's line.
    fn of(line: &'a str) -> Option<Self> {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["tap", name] => Some(Self::Tap { name, is_queue: false }),
            ["tap", name, "queue"] => Some(Self::Tap { name, is_queue: true }),
            _ => None,
        }
    }

    /// The line that must be named.
    fn line(&self) -> String {
        let Self::Tap { name, is_queue: _ } = self;
        Tap::line(name)
    }
}

/// The lines that a host names.
fn lines(host: &Host) -> BTreeSet<String> {
    let uplinks = host.uplinks.iter();
    uplinks
        .filter_map(|uplink| match &uplink.kind {
            UplinkKind::Tap { name, .. } => Some(Tap::line(name)),
            _ => None,
        })
        .collect()
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
        Task::IsNamed(line, asker) => match named(&opening, &args.host, &line) {
            Ok(_) => asker.named(),
            Err(why) => asker.refused(&why),
        },
        Task::Client(socket) => {
            let peer = PeerCredentials::of(&socket);
            let client = Client::from(socket);
            client.answer(&named_by(&opening, &args.host, &client, peer));
        }
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
    lines(&begin.host).iter().for_each(|line| opening.name(line));
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
    let Wanted::Tap { name, is_queue } = named(opening, path, asked)?;
    let opened = Tap::open_for(name, is_queue).map_err(|error| error.to_string())?;
    // It may be opened again, also when the host file is being edited. The kernel may have chosen the name.
    opening.name(&Tap::line(name));
    opening.name(&Tap::line(&opened.0));
    Ok(opened)
}

/// The thing that a daemon asks for, if it is named.
fn named<'a>(opening: &Opening, path: &Path, asked: &'a str) -> Result<Wanted<'a>, String> {
    let wanted = Wanted::of(asked).ok_or_else(|| format!("this program does not know what {asked:?} is"))?;
    let line = wanted.line();
    if opening.named.contains(&line) {
        return Ok(wanted);
    }
    let file = Host::read(path);
    if file.as_ref().is_ok_and(|file| lines(file).contains(&line)) {
        return Ok(wanted);
    }
    say("WARN", &format!("the daemon asked for {asked:?}, which no user has named: refused"));
    let path = path.display();
    Err(match file {
        Ok(_) => {
            format!(
                "neither {path} names it, nor a change by `nicety`, which tells the keeper: make this change by `nicety`"
            )
        }
        Err(error) => format!(
            "no change by `nicety` names it, and the host file cannot be read: {}",
            error.to_string().replace('\n', "; ")
        ),
    })
}

/// Names what a client names, if its user may change the daemon.
fn named_by(opening: &Opening, path: &Path, client: &Client, peer: Option<PeerCredentials>) -> Result<(), String> {
    let asked = client.lines().map_err(|error| error.to_string())?;
    let file = Host::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let known = lines(&file);
    let asked: Vec<String> =
        asked.into_iter().filter(|line| !known.contains(line) && !opening.named.contains(line)).collect();
    if asked.is_empty() {
        return Ok(());
    }
    if let Some(unknown) = asked.iter().find(|line| Wanted::of(line).is_none_or(|wanted| wanted.line() != **line)) {
        return Err(format!("the keeper's program does not know what {unknown:?} is"));
    }
    let peer = peer.ok_or("the system does not say whose process this is")?;
    may_name(&file, peer)?;
    asked.iter().for_each(|line| opening.name(line));
    let PeerCredentials { pid, uid, .. } = peer;
    say("INFO", &format!("user {uid} (process {pid}) names {}: the daemon may have it opened", asked.join(", ")));
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
    values: &std::collections::BTreeMap<String, serde_json::Value>,
) -> Result<(), Failure> {
    let is_tap = values.get("kind").is_some_and(|kind| kind == "tap") || values.contains_key("queues");
    let lines = if list == List::Uplinks && is_tap { vec![Tap::line(name)] } else { Vec::new() };
    name_lines(control, lines)
}

/// Names at the keeper what a host file has opened.
pub fn name_all(control: &Path, host: &Host) -> Result<(), Failure> {
    name_lines(control, lines(host).into_iter().collect())
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
        for line in ["", "tap", "tap tap0 tap1", "tap  tap0", "file /etc/shadow", "tap tap0 queue 7"] {
            assert_eq!(Wanted::of(line), None, "{line}");
        }
        assert_eq!(Wanted::of("tap tap0 queue").unwrap().line(), "tap tap0");
    }

    #[test]
    fn a_process_is_known_by_its_parent() {
        let us = std::process::id().cast_signed();
        assert_eq!(parent(us), getppid().map(|parent| parent.as_raw_nonzero().get()));
        assert_eq!(parent(i32::MAX), None);
    }
}
