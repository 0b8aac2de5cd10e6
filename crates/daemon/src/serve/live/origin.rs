//! Ports that a program has made for a VM (`origin`). The host file does not know them: they go with their VM, or by a change that names
//! them, and not because a host file leaves them out.

use std::path::Path;

use nicety_host::{Host, HostErrors, List};

/// A host with the ports of another one that have an origin and are not in it.
///
/// # Errors
/// With these ports it is no host file: one has the address or the socket of another port, say.
pub(super) fn keep(old: &Host, new: Host) -> Result<Host, HostErrors> {
    let dir = new.path.parent().unwrap_or(Path::new(""));
    let absent = |name: &str| new.port(name).is_none();
    let ports = old.ports.iter().filter(|port| port.origin.is_some() && absent(&port.name));
    let mut names = ports.map(|port| port.name.as_str()).peekable();
    if names.peek().is_none() {
        return Ok(new);
    }
    let document = names.fold(new.document.clone(), |document, name| {
        document.with(List::Ports, old.document.entry(List::Ports, name), dir)
    });
    Host::parse_with(&document.text(), &new.path, new.fabric_groups.as_ref())
}
