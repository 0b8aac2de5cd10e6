//! The guest's switch: a temporary one in this process, or a port of a running daemon.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nicety_adapters::Entry;
use nicety_control::api::CaptureRequest;
use nicety_control::{self as control, Ask, AskError, Reply};
use nicety_daemon::attach::{OTHER_FILE, otherwise};
use nicety_daemon::capture::FileCapture;
use nicety_daemon::daemon::Daemon;
use nicety_daemon::recorder::Target;
use nicety_daemon::report::Condition;
use nicety_daemon::serve;
use nicety_guests::Folder;
use nicety_host::{Host, PortConfig, Role};

use crate::answer::{failure, odd};
use crate::capture::TICK;
use crate::cli::HOST_FILE;
use crate::exit::{Exit, Failure};
use crate::find::Origin;

/// The name of the guest's port on a temporary switch.
const OWN: &str = "vm1";

/// A switch, with the guest's and the peer's port. Dropping a temporary switch removes it and its sockets.
pub struct Switch {
    /// The guest's port.
    pub port: PortConfig,
    /// The peer's.
    pub peer: Option<PortConfig>,
    /// The switch is a running daemon's, with other users.
    pub shared: bool,
    own: Option<(Daemon, Folder)>,
    /// The running daemon's control socket.
    control: Option<PathBuf>,
}

/// A recording of the frames that pass the guest's port.
pub enum Recording {
    /// On a temporary switch.
    Own(FileCapture),
    /// On a running daemon's switch.
    Asked(Arc<AtomicBool>, JoinHandle<Result<(), Failure>>),
}

impl Switch {
    /// The switch of a running daemon, at this port.
    pub fn of((port, control): (PortConfig, PathBuf)) -> Switch {
        Switch { port, peer: None, shared: true, own: None, control: Some(control) }
    }

    /// Begins to write the frames that pass the guest's port to a file.
    pub fn record(&self, path: &Path) -> Result<Recording, Failure> {
        let failed = |error: io::Error| Failure::new(Exit::Failed, format!("{}: {error}", path.display()));
        let gone = || Failure::new(Exit::Failed, "the guest's port has gone");
        match (&self.own, &self.control) {
            (Some((daemon, _)), _) => {
                let file = File::create(path).map_err(failed)?;
                FileCapture::begin(daemon, &self.port.name, file).map_err(failed)?.map(Recording::Own).ok_or_else(gone)
            }
            (None, Some(control)) => {
                let request = CaptureRequest { of: self.port.name.clone(), stage: None, filter: None, snap: None };
                let source = control::capture(control, &request, TICK).map_err(failure)?;
                let (file, ended) = (File::create(path).map_err(failed)?, Arc::<AtomicBool>::default());
                let until = Arc::clone(&ended);
                let write = move || crate::capture::copy(source, file, None, &until).map(drop);
                let thread = std::thread::Builder::new().name("capture".to_owned()).spawn(write).map_err(failed)?;
                Ok(Recording::Asked(ended, thread))
            }
            (None, None) => Err(gone()),
        }
    }

    /// Ends a recording. An error means that frames are missing in the file.
    pub fn end(&self, recording: Recording) -> Result<(), Failure> {
        let panicked = || Failure::new(Exit::Failed, "the thread that captures had panicked");
        match (recording, &self.own) {
            (Recording::Own(capture), Some((daemon, _))) => capture.end(daemon).map_err(Failure::with(Exit::Failed)),
            (Recording::Own(_), None) => Ok(()),
            (Recording::Asked(ended, thread), _) => {
                // The guest's last frames may still be on their way to the file.
                std::thread::sleep(TICK);
                ended.store(true, Ordering::Relaxed);
                thread.join().unwrap_or_else(|_| Err(panicked()))
            }
        }
    }

    /// A temporary switch with one port of this adapter, or two. `record`: the file for a trace of the guest's port.
    pub fn start(entry: &'static Entry, peer: bool, record: Option<&Path>) -> Result<Switch, Failure> {
        let folder = Folder::new().map_err(Failure::with(Exit::Failed))?;
        let ports: String = (1..=1 + u32::from(peer)).map(|number| port(entry.about.name, number)).collect();
        let text = format!("[switch]\nname = \"try\"\n{ports}");
        let host = Host::parse(&text, &folder.path().join("host.toml")).map_err(Failure::with(Exit::Failed))?;
        let target = record.map(|file| Target::Port { name: OWN.to_owned(), file: file.to_owned() });
        let prepared = serve::prepare(&host, target).map_err(Failure::with(Exit::Failed))?;
        let daemon = serve::start(prepared).map_err(Failure::with(Exit::Failed))?;
        let mut ports = host.ports.into_iter();
        let first = ports.next().ok_or_else(|| Failure::new(Exit::Failed, "the switch has no port"))?;
        Ok(Switch { port: first, peer: ports.next(), shared: false, own: Some((daemon, folder)), control: None })
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if let Some((daemon, _folder)) = &self.own {
            daemon.stop();
        }
    }
}

fn port(adapter: &str, number: u32) -> String {
    format!(
        "\n[[port]]\nname = \"vm{number}\"\nadapter = \"{adapter}\"\nmac = \"52:54:00:4e:54:{number:02x}\"\n\
         socket = \"vm{number}.sock\"\n"
    )
}

/// A free port of a running daemon, and that daemon's control socket.
pub fn running(file: Option<&Path>, control: Option<&Path>, name: &str) -> Result<(PortConfig, PathBuf), Failure> {
    let origin = Origin::find(file, control, Some(name))?;
    let port = origin.port(name)?.clone();
    if port.role == Role::Connect {
        let what = format!(
            "the port {name} connects to a VMM that listens (role = \"connect\"), and this guest's machine connects too: QEMU can \
             listen (`nicety attach {name}`)"
        );
        return Err(Failure::new(Exit::Usage, what));
    }
    if let Some(deep) = origin.deep {
        return Err(deep);
    }
    let Some(socket) = origin.control else {
        let serve = format!(
            "the daemon does not run; start it first: nicety serve {}",
            file.unwrap_or(Path::new(HOST_FILE)).display()
        );
        return Err(Failure::new(Exit::Missing, serve));
    };
    let report = match control::ask(&socket, Ask::Port { name: name.to_owned() }) {
        Ok(Reply::Port(port)) => port,
        Ok(other) => return Err(odd(&other)),
        Err(AskError::Refused(_)) => {
            return Err(Failure::new(Exit::Failed, format!("the daemon runs without {name}: {OTHER_FILE}")));
        }
        Err(error @ AskError::Starting(_)) => return Err(Failure::new(Exit::Missing, error)),
        Err(error) => return Err(Failure::new(Exit::Failed, error)),
    };
    if let Some(otherwise) = otherwise(&port, &report) {
        return Err(Failure::new(Exit::Failed, otherwise));
    }
    if report.condition != Condition::Waiting {
        return Err(Failure::new(Exit::Failed, format!("the port {name} is not free: {}", report.sentence)));
    }
    Ok((port, socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_adapter_has_a_throw_away_switch() {
        for entry in nicety_adapters::REGISTRY {
            let switch = Switch::start(entry, true, None).map_err(|failure| failure.message).unwrap();
            let sockets = [Some(&switch.port), switch.peer.as_ref()].map(|port| port.unwrap().socket.clone());
            assert!(sockets.iter().all(|socket| socket.exists()), "{sockets:?}");
            drop(switch);
            assert!(!sockets.iter().any(|socket| socket.exists()), "{sockets:?}");
        }
    }
}
