//! Why a tap could not be attached, and what to do about it.

use std::io;
use std::path::Path;

use nicety_memory::MapError;
use rustix::io::Errno;

/// Why a tap could not be opened, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The name cannot be an interface's.
    #[error("`{0}` cannot name an interface: 1 to 15 characters, without `/`, `:` and spaces")]
    Name(String),
    /// The tap driver is not there.
    #[error("/dev/net/tun is not there: load the driver (modprobe tun), or give the container that device")]
    NoDriver,
    /// The tap driver is not for us.
    #[error(
        "/dev/net/tun, through which every tap is reached, cannot be opened: {0}; chmod 0666 /dev/net/tun, or give the container that device"
    )]
    Driver(Errno),
    /// Not allowed to make it.
    #[error(
        "attaching to tap {name} needs CAP_NET_ADMIN, or make the tap first: ip tuntap add dev {name} mode tap user $USER"
    )]
    Permission {
        /// The interface.
        name: String,
    },
    /// It is there, for somebody else.
    #[error(
        "tap {name} is {whose}, not for user {user}: ip tuntap del dev {name} mode tap, then ip tuntap add dev {name} mode tap user $USER"
    )]
    Foreign {
        /// The interface.
        name: String,
        /// For whom it is.
        whose: String,
        /// Who tried.
        user: u32,
    },
    /// Another process has it.
    #[error("tap {name} is in use by another process: stop that one, or choose another name")]
    Busy {
        /// The interface.
        name: String,
    },
    /// Something else has that name.
    #[error(
        "{name} exists, but is no single-queue tap: choose another name; if it is a tap with several queues and of no use, ip link delete {name}"
    )]
    NotTap {
        /// The interface.
        name: String,
    },
    /// The operating system's reasons.
    #[error("{doing}: {source}")]
    Os {
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// No memory for its buffers.
    #[error(transparent)]
    Memory(#[from] MapError),
}

impl TapError {
    /// `/dev/net/tun` could not be opened.
    pub(super) fn opening(error: Errno) -> Self {
        match error {
            Errno::NOENT | Errno::NODEV | Errno::NXIO => Self::NoDriver,
            Errno::ACCESS | Errno::PERM => Self::Driver(error),
            error => Self::Os { doing: "opening /dev/net/tun", source: error.into() },
        }
    }

    /// TUNSETIFF failed, for an interface that is `there` or not.
    pub(super) fn attaching(name: &str, there: bool, error: io::Error) -> Self {
        let name = name.to_owned();
        match Errno::from_io_error(&error) {
            Some(Errno::PERM | Errno::ACCESS) if there => {
                let user = rustix::process::geteuid().as_raw();
                let whose = whose(Path::new("/sys/class/net"), &name, user);
                Self::Foreign { name, whose, user }
            }
            Some(Errno::PERM | Errno::ACCESS) => Self::Permission { name },
            Some(Errno::BUSY) => Self::Busy { name },
            Some(Errno::INVAL | Errno::EXIST) => Self::NotTap { name },
            _ => Self::Os { doing: "attaching to a tap (TUNSETIFF)", source: error },
        }
    }
}

/// For whom a tap is that is not for `user`: its owner's, a group's, or both's. The kernel writes -1 for anybody.
fn whose(interfaces: &Path, name: &str, user: u32) -> String {
    let read = |what| std::fs::read_to_string(interfaces.join(name).join(what)).ok()?.trim().parse::<u32>().ok();
    match (read("owner"), read("group")) {
        (Some(owner), _) if owner != user => format!("user {owner}'s"),
        (_, Some(group)) => format!("for group {group} alone"),
        _ => "somebody else's".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_cannot_be_opened_is_told_from_a_tap_that_cannot_be_made() {
        assert!(matches!(TapError::opening(Errno::NOENT), TapError::NoDriver));
        for errno in [Errno::ACCESS, Errno::PERM] {
            let said = TapError::opening(errno).to_string();
            assert!(said.starts_with("/dev/net/tun, ") && said.contains("chmod 0666 /dev/net/tun"), "{said}");
            assert!(!said.contains("ip tuntap"), "{said}");
        }
        let said = TapError::attaching("tap0", false, Errno::PERM.into()).to_string();
        assert!(said.ends_with("make the tap first: ip tuntap add dev tap0 mode tap user $USER"), "{said}");
    }

    #[test]
    fn a_tap_of_somebody_else_is_told_with_whose_it_is_and_how_to_change_that() {
        let said = TapError::attaching("no such tap", true, Errno::PERM.into()).to_string();
        assert!(said.contains("is somebody else's, not for user "), "what cannot be read is not guessed: {said}");
        let again = ": ip tuntap del dev no such tap mode tap, then ip tuntap add dev no such tap mode tap user $USER";
        assert!(said.ends_with(again), "{said}");
        let place = tempfile::tempdir().unwrap();
        let tap = place.path().join("tap0");
        std::fs::create_dir(&tap).unwrap();
        let of = |owner, group| {
            std::fs::write(tap.join("owner"), owner).unwrap();
            std::fs::write(tap.join("group"), group).unwrap();
            whose(place.path(), "tap0", 1000)
        };
        assert_eq!(of("1001\n", "-1\n"), "user 1001's");
        assert_eq!(of("1001\n", "5\n"), "user 1001's");
        assert_eq!(of("1000\n", "5\n"), "for group 5 alone");
        assert_eq!(of("-1\n", "5\n"), "for group 5 alone");
        assert_eq!(of("-1\n", "-1\n"), "somebody else's");
    }
}
