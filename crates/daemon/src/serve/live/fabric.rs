//! The groups of the fabric change: a change that no administrator of this host makes.
//!
//! It is in force on all hosts, and a network identifier that it frees may soon be another group's. So it does not wait for a change of this
//! host to be confirmed: it is made beside that one. Only a version that fits one of the two hosts has to wait: the one that
//! runs, or the one that an undo brings back. Meanwhile the tunnel leaves what the version has freed (`nicety_fabric`, `Action::Leave`).

use nicety_host::{FabricGroups, Host, in_one_line};

use super::confirm::Terms;
use super::{ChangeError, Changed, Consent, Live, Running};

impl Live {
    /// These groups of the fabric are in force from now on: on all its hosts, so nobody is asked whether VMs may lose something.
    pub(crate) fn apply_fabric(&self, groups: &FabricGroups) -> Result<Changed, ChangeError> {
        let mut running = self.running();
        fits(&running, groups)?;
        let terms = Terms::from(&Consent::All);
        let with = |groups: &FabricGroups, host: &Host| host.with_fabric(Some(groups)).map_err(ChangeError::Wrong);
        if let Some(step) = running.host.fabric_groups.as_ref().and_then(|old| groups.step_from(old)) {
            let done = self.change_beside(&mut running, &terms, |host| with(&step, host));
            done.map_err(|error| match error {
                ChangeError::Waits(_) => error,
                error => ChangeError::Refused(error.to_string()),
            })?;
        }
        self.change_beside(&mut running, &terms, |host| with(groups, host))
    }
}

/// Whether groups fit the host that runs, and the one that an undo of the change that waits brings back.
fn fits(running: &Running, groups: &FabricGroups) -> Result<(), ChangeError> {
    let fits = |host: &Host| host.with_fabric(Some(groups)).map(drop);
    let runs = fits(&running.host);
    let Some(waiting) = &running.waiting else { return runs.map_err(ChangeError::Wrong) };
    let note = &waiting.note;
    let (why, once, command) = match (runs, fits(&waiting.host)) {
        (Ok(()), Ok(())) => return Ok(()),
        (Err(why), Err(_)) => return Err(ChangeError::Wrong(why)),
        (Ok(()), Err(why)) => (why, "is confirmed", "`nicety confirm` confirms it"),
        (Err(why), Ok(())) => (why, "is undone", "`nicety confirm --undo` undoes it"),
    };
    Err(ChangeError::Waits(format!(
        "it fits this host only once a change {once} that waits to be confirmed ({note}): {command}; until then {}",
        in_one_line(&why)
    )))
}

#[cfg(test)]
#[path = "fabric_test.rs"]
mod tests;
