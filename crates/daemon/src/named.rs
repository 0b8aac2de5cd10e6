//! Lines by which a host names what takes rights to open. The keeper knows what users have named (docs/adr/0024).

use std::collections::BTreeSet;
use std::path::Path;

use nicety_host::{Host, PortConfig, UplinkConfig, UplinkKind};
use nicety_keeper::Opener;
use nicety_socket::Wanted;
use nicety_uplink::{Capture, Tap};

use crate::paths::{HostPath, PathUse, of_uplink};

/// A port's socket. Whether the port listens there or connects can change.
pub fn port(config: &PortConfig) -> String {
    socket(&config.socket)
}

/// An uplink's tap, socket or file.
pub fn uplink(config: &UplinkConfig) -> Option<String> {
    match &config.kind {
        UplinkKind::Tap { name, .. } => Some(tap(name)),
        _ => of_uplink(config).map(|HostPath { path, does, .. }| match does {
            PathUse::Captures => capture(&path),
            _ => socket(&path),
        }),
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

/// A capture's file.
pub fn capture(path: &Path) -> String {
    Capture::line(path)
}

/// All that a host names.
pub fn all(host: &Host) -> BTreeSet<String> {
    host.ports.iter().map(port).chain(host.uplinks.iter().filter_map(uplink)).collect()
}

/// Whether openers would open all these. Threads that are not confined make all but taps themselves. The error is a sentence for a person.
pub(crate) fn are_named(opener: &Opener, mut lines: Vec<String>) -> Result<(), String> {
    let is_confined = nicety_sandbox::is_on();
    lines.retain(|line| is_confined || line.starts_with("tap "));
    if lines.is_empty() { Ok(()) } else { opener.are_named(&lines) }
}
