//! The keeper's socket, beside the control socket, and who may name what its daemon opens: the users who may change the daemon.

use std::os::fd::OwnedFd;
use std::path::Path;

use nicety_host::{AccountError, Host};
use nicety_socket::{Listener, PeerCredentials};

use super::served::{Changers, is_in};
use super::{ControlError, again, make_folder};

/// Makes the keeper's socket at `path`, for those who may connect to the control socket at `control`. Whoever gets it removes its file.
pub fn keeper_socket(host: &Host, control: &Path, path: &Path) -> Result<OwnedFd, ControlError> {
    let prepared = again(host, control)?;
    prepared.folder.map_or(Ok(()), make_folder)?;
    let listener = Listener::bind_messages_for(path, &prepared.access)?;
    listener.give().map_err(|error| ControlError::System { path: path.to_owned(), error })
}

/// Whether this user may change a daemon that serves this host. Asks the system's databases, and waits for them.
///
/// # Errors
/// A sentence for a person.
pub fn may_change(host: &Host, peer: PeerCredentials) -> Result<(), String> {
    let known = |error: AccountError| error.to_string();
    let access = host.daemon.access.resolve().map_err(known)?;
    let group = host.daemon.change_group.as_ref();
    let group = group.map(|name| Ok((nicety_host::group_number(name)?, name.clone()))).transpose().map_err(known)?;
    let number = group.as_ref().map(|(number, _)| *number);
    let changers = Changers::new(&access, group);
    let is_member = |group| group == peer.gid || is_in(peer.uid, peer.gid, group);
    if changers.has(Some(peer)) || number.is_some_and(is_member) { Ok(()) } else { Err(changers.refusal(Some(peer))) }
}
