//! `nicety attach`: the words that start a VM at a port, from the host file alone.

use std::path::Path;

use nicety_daemon::attach::{OTHER_FILE, libvirt, otherwise, qemu};
use nicety_daemon::control::{self, Ask, AskError};
use nicety_daemon::host::{Host, did_you_mean};
use nicety_daemon::report::Condition;

use crate::cli::{Attach, HOST_FILE};
use crate::exit::{Exit, Failure};
use crate::find::{self, Meant};
use crate::output;

/// Runs it.
pub fn run(args: &Attach) -> Result<(), Failure> {
    let (host, running) = Meant::by(args.host.as_deref(), Some(&args.port))?.host()?;
    let port = host.port(&args.port).ok_or_else(|| unknown(&host, &args.port))?;
    let attach = if args.libvirt { libvirt(port) } else { qemu(port) };
    output::print(&attach.words)?;
    for note in &attach.notes {
        output::tell(format_args!("note: {note}"));
    }
    let found = running.map_or_else(|| find::control(&host), |socket| Ok((socket, None)));
    let (socket, elsewhere) = match found {
        Ok(found) => found,
        Err(deep) => {
            output::tell(format_args!("note: {}", deep.message));
            return Ok(());
        }
    };
    match control::ask(&socket, Ask::Port { name: port.name.clone() }) {
        Ok(control::Reply::Port(served)) => match otherwise(port, &served) {
            Some(otherwise) => output::tell(format_args!("note: {otherwise}")),
            // That it waits for a VM is why these words were asked for.
            None if served.condition == Condition::Waiting => {
                let last_end = served.last_end.map(|last_end| format!("; {last_end}")).unwrap_or_default();
                output::tell(format_args!("note: the daemon runs, and {} is free{last_end}", port.name));
            }
            None => output::tell(format_args!("note: the daemon runs; {}: {}", port.name, served.sentence)),
        },
        Err(AskError::Refused(_)) => {
            output::tell(format_args!("note: the daemon runs without {}: {OTHER_FILE}", port.name));
        }
        Err(AskError::Nobody(_)) => {
            let file = args.host.as_deref().unwrap_or(Path::new(HOST_FILE));
            output::tell(format_args!("note: the daemon does not run yet: nicety serve {}", file.display()));
            if let Some(elsewhere) = elsewhere {
                output::tell(format_args!("note: {elsewhere}"));
            }
        }
        Ok(_) => {}
        Err(error) => output::tell(format_args!("note: {error}")),
    }
    Ok(())
}

/// There is no port of this name.
pub fn unknown(host: &Host, name: &str) -> Failure {
    let names = || host.ports.iter().map(|port| port.name.as_str());
    let (meant, all) = (did_you_mean(name, names()), names().collect::<Vec<_>>().join(", "));
    let path = host.path.display();
    Failure::new(Exit::Usage, format!("{path} has no port {name:?}{meant} (there are: {all})"))
}
