//! `[ft]`: the daemons that protect each other's VMs (docs/fault-tolerance.md).

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::etcd;
use super::form::Form;
use super::lease::{self, LeasePlace};
use super::paths;
use super::peer::ListenAddress;
use super::walk::{Key, Kind, Section, Walk};

/// `[ft]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToleranceConfig {
    /// The place at which other daemons connect.
    pub listen: Option<ListenAddress>,
    /// The file with the key that all of them share.
    pub key: PathBuf,
    /// The place of the VMs' leases.
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
        Key::new("key", Form::Path, "a path of a file of at least 32 random bytes, the same on all hosts").required(),
        lease::KEYS[0],
        lease::KEYS[1],
        etcd::KEYS[0],
        etcd::KEYS[1],
        etcd::KEYS[2],
        etcd::KEYS[3],
        etcd::KEYS[4],
    ],
    several: false,
};

pub(super) fn tolerance(walk: &mut Walk, section: Section<'_>, dir: &Path) -> Option<ToleranceConfig> {
    let listen = walk.parsed::<ListenAddress>(section, "listen").map(|found| found.value.within(dir));
    let key = paths::file(walk, section, "key", dir);
    let lease = lease::place(walk, section, dir);
    Some(ToleranceConfig { listen, key: key?, lease })
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
    use std::fs::Permissions;

    use super::*;
    use crate::Host;

    fn host(text: &str) -> Result<Host, String> {
        Host::parse(text, Path::new("/etc/host.toml")).map_err(|errors| errors.to_string())
    }

    #[test]
    fn the_key_is_required_and_relative_paths_begin_at_the_host_file() {
        let tolerance = |ft: &str| host(&format!("[ft]\n{ft}\n")).unwrap().tolerance.unwrap();
        let tcp = tolerance("listen = \"[fd00::1]:7001\"\nkey = \"ft.key\"");
        assert_eq!(tcp.listen.unwrap().to_string(), "[fd00::1]:7001");
        assert_eq!(tcp.key, Path::new("/etc/ft.key"));
        let unix = tolerance("listen = \"unix:ft.sock\"\nkey = \"/ft.key\"");
        assert_eq!(unix.listen.unwrap().to_string(), "unix:/etc/ft.sock");
        assert_eq!((unix.key.as_path(), tolerance("key = \"ft.key\"").listen), (Path::new("/ft.key"), None));
        for (text, why) in [
            ("listen = \"10.0.0.1:7001\"", "it is missing from this [ft]"),
            ("listen = \"host1:7001\"\nkey = \"ft.key\"", "ft.listen"),
        ] {
            let error = host(&format!("[ft]\n{text}\n")).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_key_that_everybody_may_read_is_warned_of() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let warning = |mode| {
            std::fs::set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
            open_key(file.path())
        };
        assert_eq!((warning(0o600), warning(0o640)), (None, None));
        let shown = file.path().display();
        let expected = format!("everybody on this machine may read the key {shown} (mode 0644): chmod o= {shown}");
        assert_eq!(warning(0o644), Some(expected));
        assert_eq!(open_key(Path::new("/nowhere/ft.key")), None);
    }

    #[test]
    fn a_port_s_peer_of_an_earlier_version_is_refused_with_what_to_do_instead() {
        let port =
            "[[port]]\nname = \"vm1\"\nadapter = \"vmxnet3\"\nmac = \"52:54:00:12:34:01\"\nsocket = \"vm1.sock\"\n";
        assert!(host(port).is_ok());
        let error = host(&format!("{port}ft_peer = \"10.0.0.2:7001\"\n")).unwrap_err();
        let what = "6: port.ft_peer: there is no such key in [[port]] any more: a VM is protected as a whole; \
                    remove ft_peer, and name the VM in a [[vm]]";
        assert!(error.contains(what), "{error}");
    }
}
