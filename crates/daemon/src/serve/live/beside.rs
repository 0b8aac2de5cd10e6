//! Changes that are made while another one waits to be confirmed, because no administrator decides when they come: a port comes and goes
//! with its VM, and the [groups of the fabric](super::fabric) are in force on all its hosts.
//!
//! Such a change is made twice: in what runs, and in what an undo brings back. So an undo keeps it, and a start of the daemon serves it.

use nicety_host::{Host, List, in_one_line};
use toml::Table;

use super::confirm::Terms;
use super::{ChangeError, Changed, Live, Running, blocked};

/// The key that names the program which has made a port for a VM.
const ORIGIN: &str = "origin";

/// Whether an entry is a port that comes and goes with a VM.
pub(super) fn is_for_vm(list: List, entry: &Table) -> bool {
    list == List::Ports && entry.contains_key(ORIGIN)
}

impl Live {
    /// Makes a change, also while another one waits to be confirmed. `edit` makes it in a host: first in the one that runs, and then in the
    /// one that an undo brings back. A change that is to be confirmed itself waits for the other one.
    ///
    /// # Errors
    /// It does not fit one of the two hosts, or cannot be made.
    pub(super) fn change_beside(
        &self,
        running: &mut Running,
        terms: &Terms,
        edit: impl Fn(&Host) -> Result<Host, ChangeError>,
    ) -> Result<Changed, ChangeError> {
        let new = edit(&running.host)?;
        let Some(waiting) = running.waiting.as_ref().filter(|_| terms.confirm.is_none()) else {
            return self.change(running, new, None, terms);
        };
        let edited = edit(&waiting.host);
        let confirmed = edited.and_then(|host| blocked::keep(&waiting.host, host).map_err(ChangeError::Wrong));
        let confirmed = confirmed.map_err(|why| {
            let waits = self.waiting().map(|waiting| format!("{waiting}; ")).unwrap_or_default();
            ChangeError::Waits(format!("{waits}this does not fit what an undo would bring back: {}", in_one_line(&why)))
        })?;
        self.make(running, new, None, Some(confirmed), terms)
    }
}

/// The host that an undo brings back after such a change: without the new ports that could not be opened.
pub(super) fn opened(confirmed: Host, before: &Host, running: &Host) -> Host {
    let is_missing = |name: &&str| before.port(name).is_none() && running.port(name).is_none();
    let missing: Vec<&str> = confirmed.ports.iter().map(|port| port.name.as_str()).filter(is_missing).collect();
    if missing.is_empty() {
        return confirmed;
    }
    let document =
        missing.iter().fold(confirmed.document.clone(), |document, name| document.without(List::Ports, name));
    // Without a port it is a host file as before.
    confirmed.changed(&document).unwrap_or(confirmed)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_port_that_could_not_be_opened_is_not_brought_back_by_an_undo() {
        let port = |number: u8| {
            format!(
                "[[port]]\nname = \"vm{number}\"\nadapter = \"e1000\"\nmac = \"52:54:00:00:00:0{number}\"\nsocket = \"vm{number}.sock\"\n"
            )
        };
        let host = |ports: &[u8]| {
            Host::parse(&ports.iter().map(|number| port(*number)).collect::<String>(), Path::new("/host.toml")).unwrap()
        };
        let names = |confirmed: &[u8], before: &[u8], running: &[u8]| {
            let left = opened(host(confirmed), &host(before), &host(running));
            left.ports.iter().map(|port| port.name.clone()).collect::<Vec<_>>().join(" ")
        };
        // The change that waits has removed vm1 and added vm4.
        assert_eq!(names(&[1, 2, 3], &[1, 2], &[2, 3, 4]), "vm1 vm2 vm3");
        assert_eq!(names(&[1, 2, 3], &[1, 2], &[2, 4]), "vm1 vm2");
    }
}
