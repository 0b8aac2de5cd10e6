//! Selects a command's daemon: the one that serves the host file that is named or in this folder, or else the running one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nicety_control::api::{DaemonView, Exported};
use nicety_control::{self as control, Ask, AskError, Reply};
use nicety_daemon::attach::{OTHER_FILE, is_same};
use nicety_daemon::live::state::{Begin, Found as Kept};
use nicety_daemon::registry::{Found, Registry, is_served};
use nicety_host::{Host, PortConfig, ReadError, did_you_mean};

use crate::answer::{failure, odd};
use crate::cli::{HOST_FILE, Which};
use crate::exit::{Exit, Failure};
use crate::output;

/// Time limit for a daemon, perhaps not the right one, to identify itself.
pub const TIMEOUT: Duration = Duration::from_secs(2);

/// The user's folder for sockets, if the system has one.
fn runtime_dir() -> Option<PathBuf> {
    std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute())
}

/// Control socket of a host file's daemon.
pub fn control_of(host: &Host) -> Result<PathBuf, Failure> {
    host.control(runtime_dir().as_deref()).map_err(Failure::with(Exit::Usage))
}

/// A daemon that answers.
#[derive(Debug)]
pub struct Running {
    /// Its control socket.
    pub control: PathBuf,
    /// Its process.
    pub pid: u32,
    /// The host file that it serves.
    pub host: PathBuf,
}

/// Result of a search for daemons, and the folders searched.
#[derive(Debug)]
pub struct Search {
    /// Daemons that answer.
    pub running: Vec<Running>,
    /// The reasons why others did not answer.
    silent: Vec<String>,
    found: Found,
}

impl Search {
    /// Asks all daemons that are found to identify themselves.
    pub fn new() -> Self {
        let found = Registry::here().look();
        let (mut running, mut silent) = (Vec::new(), Vec::new());
        for control in &found.sockets {
            match control::ask_within(control, Ask::Version, TIMEOUT) {
                Ok(Reply::Version(DaemonView { pid, host, .. })) => {
                    running.push(Running { control: control.clone(), pid, host });
                }
                Ok(other) => silent.push(format!("{} answered something else: {other:?}", control.display())),
                Err(error) => silent.push(error.to_string()),
            }
        }
        Self { running, silent, found }
    }

    /// The folders searched, and the entries that are not a running daemon.
    fn places(&self) -> String {
        let odd: String = self.odd().iter().map(|odd| format!("; {odd}")).collect();
        let folders: Vec<String> = self.found.folders.iter().map(|folder| folder.display().to_string()).collect();
        format!("looked in {}{odd}", folders.join(", "))
    }

    /// Entries that are not a running daemon, with the reason.
    pub fn odd(&self) -> Vec<String> {
        let left_out = |folder: &PathBuf| format!("left out {}, to which others may write", folder.display());
        let stale = |(_, socket): &(PathBuf, PathBuf)| format!("nobody serves {} any more", socket.display());
        let folders = self.found.unsafe_folders.iter().map(left_out);
        folders.chain(self.found.stale.iter().map(stale)).chain(self.silent.iter().cloned()).collect()
    }

    /// Message about daemons that were killed: they left their sockets.
    fn gone(&self) -> Option<String> {
        let sockets: Vec<String> = self.found.stale.iter().map(|(_, socket)| socket.display().to_string()).collect();
        let (daemon, have) = if sockets.len() > 1 { ("daemons", "have") } else { ("a daemon", "has") };
        (!sockets.is_empty())
            .then(|| format!("{daemon} that answered at {} {have} ended without a word", sockets.join(", ")))
    }

    /// The error that no daemon was found.
    pub fn none(&self) -> Failure {
        Failure::new(Exit::Missing, format!("no daemon was found: {}", self.places()))
    }

    /// The running daemons, a line each.
    fn list(&self) -> String {
        self.running.iter().map(|running| format!("\n  {}", line(running))).collect()
    }

    /// The one running daemon, or the one that has the port.
    fn only(mut self, port: Option<&str>) -> Result<Running, Failure> {
        let missing = |what: String| Failure::new(Exit::Missing, what);
        let start = "start one with `nicety serve FILE`, or name the socket of one that runs: --control SOCKET";
        if self.running.is_empty() {
            let places = self.places();
            return Err(missing(format!("there is no {HOST_FILE} here, and no daemon was found: {places}; {start}")));
        }
        if self.running.len() > 1
            && let Some(port) = port
        {
            let has = |running: &Running| control::ask(&running.control, Ask::Port { name: port.to_owned() }).is_ok();
            let all = self.list();
            self.running.retain(has);
            if self.running.is_empty() {
                return Err(missing(format!(
                    "there is no {HOST_FILE} here, and no daemon that runs has a port {port:?}:{all}"
                )));
            }
        }
        if self.running.len() > 1 {
            let (list, of) = (self.list(), port.map(|port| format!(" with a port {port:?}")).unwrap_or_default());
            let what = format!(
                "several daemons{of} run; name one's file with --host FILE, or see `nicety ports --all`:{list}"
            );
            return Err(Failure::new(Exit::Usage, what));
        }
        let none = self.none();
        self.running.pop().ok_or(none)
    }
}

/// Describes a daemon in a line.
pub fn line(running: &Running) -> String {
    format!("process {} serves {} (control {})", running.pid, running.host.display(), running.control.display())
}

/// Subject of a command.
#[derive(Debug)]
pub enum Meant {
    /// A host file that is named, or is in this folder.
    File(Box<Host>),
    /// The only possible daemon.
    Daemon(Running),
}

impl Meant {
    /// Selects the host file that is named, or is in this folder; else the running daemon, or the one that has the port.
    pub fn by(named: Option<&Path>, port: Option<&str>) -> Result<Self, Failure> {
        match Host::read(named.unwrap_or(Path::new(HOST_FILE))) {
            Ok(host) => Ok(Self::File(Box::new(host))),
            Err(error) if named.is_none() && is_nowhere(&error) => {
                let search = Search::new();
                let gone = search.gone();
                let running = search.only(port)?;
                // The person may have meant the daemon that is gone.
                if let Some(gone) = gone {
                    output::tell(format_args!("note: {gone}; this is about another one: {}", line(&running)));
                }
                Ok(Self::Daemon(running))
            }
            // A file with mistakes does not give its daemon's socket. But a daemon reports its file: search by that.
            Err(error) => {
                let path = std::path::absolute(named.unwrap_or(Path::new(HOST_FILE))).unwrap_or_default();
                let search = Search::new();
                let running = search.running.into_iter().find(|running| is_same(&running.host, &path));
                let failure = Failure::from(error);
                match running {
                    Some(running) => {
                        output::tell(format_args!("note: the file has mistakes, and its daemon is asked:\n{failure}"));
                        Ok(Self::Daemon(running))
                    }
                    None => Err(failure),
                }
            }
        }
    }
}

/// Whether there is no host file here as far as this user can see: a folder that he may not search has none for him.
fn is_nowhere(error: &ReadError) -> bool {
    matches!(error, ReadError::Missing { .. })
        || matches!(error, ReadError::Io { .. } if Path::new(HOST_FILE).symlink_metadata().is_err())
}

/// The control socket of the daemon that serves a host file: the usual path, or the path of a daemon that was started in another
/// environment. If no daemon runs: the usual path, and a text about the other places searched.
pub fn control(host: &Host) -> Result<(PathBuf, Option<String>), Failure> {
    let usual = control_of(host);
    if let Ok(usual) = &usual
        && is_served(usual)
    {
        return Ok((usual.clone(), None));
    }
    let search = Search::new();
    if let Some(running) = search.running.iter().find(|running| is_same(&running.host, &host.path)) {
        return Ok((running.control.clone(), None));
    }
    let others = if search.running.is_empty() { String::new() } else { format!("; others run:{}", search.list()) };
    Ok((usual?, Some(format!("{}{others}", search.places()))))
}

/// A host, and its source: a daemon or the host file.
#[derive(Debug)]
pub struct Origin {
    /// The running host, or the file's with the live changes that were kept.
    pub host: Host,
    /// The daemon that answers at the file's control socket, whether it serves this file or another.
    pub control: Option<PathBuf>,
    /// Whether `host` comes from the daemon.
    pub is_running: bool,
    /// The current host file, if the daemon that serves it answered.
    pub file: Option<Box<Host>>,
    /// The reason why the daemon can have no control socket, if so.
    pub deep: Option<Failure>,
    /// The source, and the reasons why there is no better one, in sentences.
    pub notes: Vec<String>,
}

impl Origin {
    /// Asks the selected daemon. Uses the host file only if that daemon does not run.
    pub fn find(named: Option<&Path>, control: Option<&Path>, port: Option<&str>) -> Result<Self, Failure> {
        if let Some(control) = control {
            return Self::running(control, None);
        }
        match Meant::by(named, port)? {
            Meant::Daemon(running) => Self::running(&running.control, None),
            Meant::File(host) => Self::of_file(*host, named.unwrap_or(Path::new(HOST_FILE))),
        }
    }

    /// The host that a daemon serves.
    fn running(control: &Path, file: Option<Box<Host>>) -> Result<Self, Failure> {
        let DaemonView { pid, host: path, .. } = match control::ask(control, Ask::Version).map_err(failure)? {
            Reply::Version(view) => view,
            other => return Err(odd(&other)),
        };
        let text = match control::ask(control, Ask::Export).map_err(failure)? {
            Reply::Exported(Exported { text }) => text,
            other => return Err(odd(&other)),
        };
        let host = Host::parse(&text, &path).map_err(|errors| {
            let what = format!("the daemon (process {pid}) serves what this program does not understand: {errors}");
            Failure::new(Exit::Failed, what)
        })?;
        let notes = vec![format!("by the daemon that runs, process {pid}")];
        Ok(Self { host, control: Some(control.to_owned()), is_running: true, file, deep: None, notes })
    }

    /// The host that the daemon of this file serves, or would serve.
    fn of_file(file: Host, named: &Path) -> Result<Self, Failure> {
        let named = named.display();
        let (mut control, mut deep, mut whys) = (None, None, Vec::new());
        match self::control(&file) {
            Err(failure) => {
                whys.push(failure.message.clone());
                deep = Some(failure);
            }
            Ok((socket, elsewhere)) => match control::ask(&socket, Ask::Version) {
                Ok(Reply::Version(DaemonView { host, starting: false, .. })) if is_same(&host, &file.path) => {
                    return Self::running(&socket, Some(Box::new(file)));
                }
                Ok(Reply::Version(_)) => control = Some(socket),
                Ok(other) => return Err(odd(&other)),
                Err(AskError::Nobody(_)) => {
                    whys.push(format!("the daemon does not run yet: nicety serve {named}"));
                    whys.extend(elsewhere);
                }
                Err(error) => whys.push(error.to_string()),
            },
        }
        let begin = Begin::new(file);
        let mut notes = vec![format!("by {named}")];
        if matches!(begin.found, Kept::Taken(..) | Kept::Unconfirmed(..)) {
            notes.push(begin.found.to_string());
        }
        notes.extend(whys);
        Ok(Self { host: begin.host, control, is_running: false, file: None, deep, notes })
    }

    /// A port of this name.
    pub fn port(&self, name: &str) -> Result<&PortConfig, Failure> {
        self.host.port(name).ok_or_else(|| {
            let names = || self.host.ports.iter().map(|port| port.name.as_str());
            let (meant, all) = (did_you_mean(name, names()), names().collect::<Vec<_>>().join(", "));
            let path = self.host.path.display();
            let who = if self.is_running { format!("the daemon that serves {path}") } else { path.to_string() };
            let in_file = self.file.as_ref().is_some_and(|file| file.port(name).is_some());
            let why = if in_file { format!("; {OTHER_FILE}") } else { String::new() };
            let there = if all.is_empty() { "there are none yet".to_owned() } else { format!("there are: {all}") };
            Failure::new(Exit::Usage, format!("{who} has no port {name:?}{meant} ({there}){why}"))
        })
    }
}

/// The control socket of the daemon that serves this file.
pub(crate) fn served(host: &Host) -> Result<PathBuf, Failure> {
    let (socket, elsewhere) = control(host)?;
    match elsewhere {
        None => Ok(socket),
        Some(elsewhere) => {
            let file = host.path.display();
            Err(Failure::new(
                Exit::Missing,
                format!("no daemon serves {file}; {}; {elsewhere}", AskError::Nobody(socket)),
            ))
        }
    }
}

/// The control socket of the daemon that a command's options mean, and maybe a port's name.
pub(crate) fn socket(Which { host, control }: &Which, port: Option<&str>) -> Result<PathBuf, Failure> {
    if let Some(control) = control {
        return Ok(control.clone());
    }
    match Meant::by(host.as_deref(), port)? {
        Meant::Daemon(running) => Ok(running.control),
        Meant::File(host) => served(&host),
    }
}
