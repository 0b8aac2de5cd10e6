//! The rights of this process. CAP_NET_ADMIN (capabilities(7)): the keeper and openers have it, a daemon that they serve has not. Descriptors: as
//! many as there may be.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, capabilities, capability_is_in_ambient_set, configure_capability_in_ambient_set, set_capabilities,
};

const ADMIN: CapabilitySet = CapabilitySet::NET_ADMIN;

/// Whether this thread has it.
pub fn administers() -> bool {
    capabilities(None).is_ok_and(|ours| ours.effective.contains(ADMIN))
}

/// Gives it up for this thread, and those that it starts, for ever.
///
/// # Errors
/// The system refuses: the thread still has it.
pub fn give_administration_up() -> io::Result<()> {
    let mut ours = capabilities(None)?;
    // The ambient set loses what another one of these loses.
    ours.effective -= ADMIN;
    ours.permitted -= ADMIN;
    ours.inheritable -= ADMIN;
    Ok(set_capabilities(None, ours)?)
}

/// Starts a process that does not inherit CAP_NET_ADMIN, unless root's processes have it anyway.
pub(crate) fn without_administration<T>(start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if !capability_is_in_ambient_set(ADMIN).unwrap_or(false) {
        return start();
    }
    configure_capability_in_ambient_set(ADMIN, false)?;
    let started = start();
    configure_capability_in_ambient_set(ADMIN, true)?;
    started
}

/// As many descriptors as this process may have: the keeper holds those of the daemon, and the daemon gets them all at its begin.
pub(crate) fn provide_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // With fewer it holds fewer.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
