//! What the guest is attached to: a throw-away switch in this process, or a port of a running daemon.

use std::path::Path;

use nicety_adapters::Entry;
use nicety_daemon::attach::{OTHER_FILE, otherwise};
use nicety_daemon::control::{self, Ask, AskError, Reply};
use nicety_daemon::daemon::Daemon;
use nicety_daemon::host::{Host, PortConfig};
use nicety_daemon::report::Condition;
use nicety_daemon::serve;
use nicety_guests::Folder;

use crate::cli::HOST_FILE;
use crate::exit::{Exit, Failure};
use crate::find::{self, Meant};

/// A switch, and who has which port. Dropped, a throw-away one is gone with its sockets.
pub struct Switch {
    /// The guest's port.
    pub port: PortConfig,
    /// The peer's.
    pub peer: Option<PortConfig>,
    /// Others than we are at it.
    pub shared: bool,
    own: Option<(Daemon, Folder)>,
}

impl Switch {
    /// The switch of a running daemon, at this port.
    pub fn of(port: PortConfig) -> Switch {
        Switch { port, peer: None, shared: true, own: None }
    }

    /// A switch with one port of this adapter, or two.
    pub fn start(entry: &'static Entry, peer: bool) -> Result<Switch, Failure> {
        let folder = Folder::new().map_err(Failure::with(Exit::Failed))?;
        let ports: String = (1..=1 + u32::from(peer)).map(|number| port(entry.about.name, number)).collect();
        let text = format!("[switch]\nname = \"try\"\n{ports}");
        let host = Host::parse(&text, &folder.path().join("host.toml")).map_err(Failure::with(Exit::Failed))?;
        let prepared = serve::prepare(&host, None).map_err(Failure::with(Exit::Failed))?;
        let daemon = serve::start(prepared).map_err(Failure::with(Exit::Failed))?;
        let mut ports = host.ports.into_iter();
        let first = ports.next().ok_or_else(|| Failure::new(Exit::Failed, "the switch has no port"))?;
        Ok(Switch { port: first, peer: ports.next(), shared: false, own: Some((daemon, folder)) })
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

/// A free port of a running daemon.
pub fn running(path: Option<&Path>, name: &str) -> Result<PortConfig, Failure> {
    let (mut host, socket) = Meant::by(path, Some(name))?.host()?;
    let socket = match socket {
        Some(socket) => socket,
        None => find::control(&host)?.0,
    };
    let known = host.ports.iter().position(|port| port.name == name);
    let index = known.ok_or_else(|| crate::attach::unknown(&host, name))?;
    let port = host.ports.swap_remove(index);
    let report = match control::ask(&socket, Ask::Port { name: name.to_owned() }) {
        Ok(Reply::Port(port)) => port,
        Ok(other) => return Err(Failure::new(Exit::Failed, format!("the daemon answered something else: {other:?}"))),
        Err(AskError::Nobody(_)) => {
            let serve = format!(
                "the daemon does not run; start it first: nicety serve {}",
                path.unwrap_or(Path::new(HOST_FILE)).display()
            );
            return Err(Failure::new(Exit::Missing, serve));
        }
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
    Ok(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_adapter_has_a_throw_away_switch() {
        for entry in nicety_adapters::REGISTRY {
            let switch = Switch::start(entry, true).map_err(|failure| failure.message).unwrap();
            let sockets = [Some(&switch.port), switch.peer.as_ref()].map(|port| port.unwrap().socket.clone());
            assert!(sockets.iter().all(|socket| socket.exists()), "{sockets:?}");
            drop(switch);
            assert!(!sockets.iter().any(|socket| socket.exists()), "{sockets:?}");
        }
    }
}
