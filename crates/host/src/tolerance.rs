//! `[ft]`: how this daemon meets those of other hosts (docs/fault-tolerance.md). And a port's `ft_peer`: logs of ports at another daemon.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::form::Form;
use super::lease::{self, LeasePlace};
use super::paths;
use super::peer::{ListenAddress, PeerAddress};
use super::walk::{Key, Kind, Section, Walk};

/// `[ft]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToleranceConfig {
    /// The place at which other daemons connect.
    pub listen: Option<ListenAddress>,
    /// The file with the key that all of them share.
    pub key: PathBuf,
    /// Where the leases of the VMs are.
    pub lease: Option<LeasePlace>,
}

pub(super) static FT: Kind = Kind {
    heading: "[ft]",
    name: "ft",
    keys: &[
        Key::new(
            "listen",
            Form::ListenAddress,
            "an IP address and a TCP port, such as \"10.0.0.1:7001\", or a socket, \"unix:/run/ft.sock\"",
        ),
        Key::new("key", Form::Path, "a path of a file of at least 16 bytes, the same on all hosts").required(),
        lease::KEYS[0],
        lease::KEYS[1],
        lease::KEYS[2],
        lease::KEYS[3],
        lease::KEYS[4],
        lease::KEYS[5],
        lease::KEYS[6],
    ],
    several: false,
};

/// The daemon that has a port's log.
pub(super) const PEER: Key = Key::new(
    "ft_peer",
    Form::PeerAddress,
    "an IP address or a host's name, and a TCP port, such as \"host2:7001\", or a socket, \"unix:/run/ft.sock\": another daemon's [ft] listen; with [ft] here",
);

pub(super) fn tolerance(walk: &mut Walk, section: Section<'_>, dir: &Path) -> Option<ToleranceConfig> {
    let listen = walk.parsed::<ListenAddress>(section, "listen").map(|found| found.value.within(dir));
    let key = paths::file(walk, section, "key", dir);
    let lease = lease::place(walk, section, dir);
    Some(ToleranceConfig { listen, key: key?, lease })
}

/// A port's peer.
pub(super) fn peer(walk: &mut Walk, section: Section<'_>, dir: &Path) -> Option<PeerAddress> {
    walk.parsed::<PeerAddress>(section, PEER.name).map(|found| found.value.within(dir))
}

/// A warning if others than the owner and the group may read a key: who has it can pose as a host.
pub fn open_key(path: &Path) -> Option<String> {
    let mode = std::fs::metadata(path).ok()?.permissions().mode();
    let shown = path.display();
    (mode & 0o004 != 0).then(|| {
        format!("everybody on this machine may read the key {shown} (mode {:04o}): chmod o= {shown}", mode & 0o7777)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::Host;

    fn host(ft: &str, more: &str) -> Result<Host, String> {
        let port =
            "[[port]]\nname = \"vm1\"\nadapter = \"vmxnet3\"\nmac = \"52:54:00:12:34:01\"\nsocket = \"vm1.sock\"\n";
        Host::parse(&format!("{ft}{port}{more}\n"), Path::new("/etc/host.toml")).map_err(|errors| errors.to_string())
    }

    #[test]
    fn a_port_with_a_peer_needs_the_key_and_has_trapped_doorbells() {
        let ft = "[ft]\nlisten = \"[fd00::1]:7001\"\nkey = \"ft.key\"\n";
        let whole = host(ft, "ft_peer = \"10.0.0.2:7001\"").unwrap();
        let tolerance = whole.tolerance.unwrap();
        assert_eq!(tolerance.listen.unwrap().to_string(), "[fd00::1]:7001");
        assert_eq!(tolerance.key, Path::new("/etc/ft.key"));
        assert_eq!(whole.ports[0].ft_peer.as_ref().unwrap().to_string(), "10.0.0.2:7001");
        let named = host(ft, "ft_peer = \"host2:7001\"").unwrap();
        assert_eq!(named.ports[0].ft_peer.as_ref().unwrap().to_string(), "host2:7001");
        let unix =
            host("[ft]\nlisten = \"unix:ft.sock\"\nkey = \"ft.key\"\n", "ft_peer = \"unix:host2.sock\"").unwrap();
        assert_eq!(unix.tolerance.unwrap().listen.unwrap().to_string(), "unix:/etc/ft.sock");
        assert_eq!(unix.ports[0].ft_peer.as_ref().unwrap().to_string(), "unix:/etc/host2.sock");
        assert!(!whole.ports[0].is_mapped(2) && host(ft, "").unwrap().ports[0].is_mapped(2));
        let refused = |ft: &str, more: &str, why: &str| {
            let error = host(ft, more).unwrap_err();
            assert!(error.contains(why), "{error}");
        };
        refused("", "ft_peer = \"10.0.0.2:7001\"", "there is no [ft] with the key");
        refused(ft, "ft_peer = \"10.0.0.2:7001\"\ndoorbells = \"mapped\"", "has trapped doorbells");
        refused(ft, "ft_peer = \"host2\"", "port.ft_peer");
        refused("[ft]\nlisten = \"10.0.0.1:7001\"\n", "", "it is missing from this [ft]");
    }
}
