//! `[ft]`, and a port's `ft_peer`: logs of ports at another daemon (docs/fault-tolerance.md, "Ports").

use std::path::Path;

use super::form::Form;
use super::paths;
use super::walk::{Key, Kind, Section, Walk};
use super::{Doorbells, PortConfig, ToleranceConfig};

pub(super) static FT: Kind = Kind {
    heading: "[ft]",
    name: "ft",
    keys: &[
        Key::new("listen", Form::SocketAddress, "an IP address and a TCP port, such as \"10.0.0.1:7001\""),
        Key::new("key", Form::Path, "a path of a file of at least 16 bytes, the same on all hosts").required(),
    ],
    several: false,
};

/// The daemon that has a port's log.
pub(super) const PEER: Key = Key::new(
    "ft_peer",
    Form::SocketAddress,
    "an IP address and a TCP port, such as \"10.0.0.2:7001\": another daemon's [ft] listen; with [ft] here",
);

pub(super) fn tolerance(walk: &mut Walk, section: Section<'_>, dir: &Path) -> Option<ToleranceConfig> {
    let listen = walk.parsed(section, "listen").map(|found| found.value);
    let key = paths::file(walk, section, "key", dir);
    Some(ToleranceConfig { listen, key: key? })
}

/// Checks a port with a log.
pub(super) fn check(walk: &mut Walk, section: Section<'_>, port: &PortConfig, is_tolerant: bool) {
    let Some(line) = walk.place(section, PEER.name).filter(|_| port.ft_peer.is_some()) else { return };
    if !is_tolerant {
        walk.wrong(section, PEER.name, line, "there is no [ft] with the key that both daemons share");
    }
    if port.doorbells == Some(Doorbells::Mapped) {
        let what = "a port with ft_peer has trapped doorbells: leave doorbells out";
        walk.wrong(section, "doorbells", walk.place(section, "doorbells").unwrap_or(line), what);
    }
}
