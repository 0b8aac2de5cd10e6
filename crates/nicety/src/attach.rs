//! `nicety attach`: prints what starts a VM at a port. The running daemon provides them, or the host file if no daemon
//! runs.

use nicety_control::{self as control, Ask, AskError};
use nicety_daemon::attach::{OTHER_FILE, kubevirt, libvirt, otherwise, proxmox, qemu};
use nicety_daemon::report::Condition;
use nicety_host::List;
use serde_json::json;

use crate::cli::{Attach, AttachFormat};
use crate::exit::{Exit, Failure};
use crate::find::Origin;
use crate::output;

/// Runs it.
pub fn run(args: &Attach) -> Result<(), Failure> {
    let Attach { port: name, format, libvirt: for_libvirt, json, which } = args;
    let origin = Origin::find(which.host.as_deref(), which.control.as_deref(), Some(name))?;
    let port = origin.port(name)?;
    let attach = match format {
        _ if *for_libvirt => libvirt(port),
        AttachFormat::Qemu => qemu(port),
        AttachFormat::Libvirt => libvirt(port),
        AttachFormat::Proxmox => proxmox(port, &origin.host.document.entry(List::Ports, name)),
        AttachFormat::Kubevirt => kubevirt(port),
    };
    let mut notes = attach.notes;
    notes.extend(origin.notes.iter().cloned());
    notes.extend(state(&origin, name));
    if *json {
        let by = if origin.is_running { "daemon" } else { "file" };
        let all = json!({
            "version": control::VERSION, "port": name, "by": by, "host": origin.host.path, "words": attach.words, "notes": notes,
        });
        return output::print(&(serde_json::to_string_pretty(&all).map_err(Failure::with(Exit::Failed))? + "\n"));
    }
    output::print(&attach.words)?;
    for note in &notes {
        output::tell(format_args!("note: {note}"));
    }
    Ok(())
}

/// The port's state, and the differences between the daemon and the file.
fn state(origin: &Origin, name: &str) -> Option<String> {
    let asked = match &origin.file {
        Some(file) => file.port(name),
        None => origin.host.port(name),
    };
    match control::ask(origin.control.as_ref()?, Ask::Port { name: name.to_owned() }) {
        Ok(control::Reply::Port(served)) => {
            if let Some(otherwise) = asked.and_then(|asked| otherwise(asked, &served)) {
                return Some(otherwise);
            }
            // A port that waits for a VM is the normal case here: report it as free.
            Some(if served.condition == Condition::Waiting {
                let last_end = served.last_end.map(|last_end| format!("; {last_end}")).unwrap_or_default();
                format!("the daemon runs, and {name} is free{last_end}")
            } else {
                format!("the daemon runs; {name}: {}", served.sentence)
            })
        }
        Ok(_) => None,
        Err(AskError::Refused(_)) => Some(format!("the daemon runs without {name}: {OTHER_FILE}")),
        Err(error) => Some(error.to_string()),
    }
}
