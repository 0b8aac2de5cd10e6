//! Lines by which a host names what takes rights to open. The keeper knows what users have named (docs/adr/0024).

use std::collections::BTreeSet;
use std::path::Path;

use nicety_host::{Host, PortConfig, UplinkConfig, UplinkKind};
use nicety_keeper::Opener;
use nicety_socket::Wanted;
use nicety_uplink::Tap;

/// A port's socket. Whether the port listens there or connects can change.
pub fn port(config: &PortConfig) -> String {
    socket(&config.socket)
}

/// An uplink's tap or socket.
pub fn uplink(config: &UplinkConfig) -> Option<String> {
    match &config.kind {
        UplinkKind::Tap { name, .. } => Some(tap(name)),
        UplinkKind::Pair { socket: path, .. } | UplinkKind::Stream { socket: path, .. } => Some(socket(path)),
        UplinkKind::Xdp { .. } | UplinkKind::Capture { .. } | UplinkKind::Null | UplinkKind::Querier => None,
    }
}

/// A tap.
pub fn tap(name: &str) -> String {
    Tap::line(name)
}

/// A socket.
pub fn socket(path: &Path) -> String {
    Wanted::line(path)
}

/// All that a host names.
pub fn all(host: &Host) -> BTreeSet<String> {
    host.ports.iter().map(port).chain(host.uplinks.iter().filter_map(uplink)).collect()
}

/// Whether openers would open all these. Threads that are not confined make sockets themselves. The error is a sentence for a person.
pub(crate) fn are_named(opener: &Opener, mut lines: Vec<String>) -> Result<(), String> {
    let makes_sockets = !nicety_sandbox::is_on();
    lines.retain(|line| !(makes_sockets && line.starts_with("socket ")));
    if lines.is_empty() { Ok(()) } else { opener.are_named(&lines) }
}
