//! Why a tap could not be attached, and what to do about it.

use std::io;

use nicety_memory::MapError;
use rustix::io::Errno;

use super::link::Kind;

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
        "tap {name} is {whose}, not for user {user}: make one that is, under another name (ip tuntap add dev NAME mode tap user $USER)"
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
        "{name} is {kind}, not a tap: make a tap under another name (ip tuntap add dev NAME mode tap user $USER) and name that; a bridge \
         joins it to others (docs/uplinks.md)"
    )]
    NotTap {
        /// The interface.
        name: String,
        /// What it is.
        kind: Kind,
    },
    /// A tap with `multi_queue`.
    #[error(
        "tap {name} has several queues, and this uses taps with one: make one without multi_queue, under another name (ip tuntap add dev \
         NAME mode tap user $USER)"
    )]
    Several {
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

    /// TUNSETIFF failed, for an interface about which nothing was known to say why.
    pub(super) fn attaching(name: &str, error: io::Error) -> Self {
        let name = name.to_owned();
        match Errno::from_io_error(&error) {
            Some(Errno::PERM | Errno::ACCESS) => Self::Permission { name },
            Some(Errno::BUSY) => Self::Busy { name },
            _ => Self::Os { doing: "attaching to a tap (TUNSETIFF)", source: error },
        }
    }

    /// A tap that is not for `user`.
    pub(super) fn foreign(name: &str, owner: Option<u32>, group: Option<u32>, user: u32) -> Self {
        let whose = match (owner, group) {
            (Some(owner), _) if owner != user => format!("user {owner}'s"),
            (_, Some(group)) => format!("for group {group} alone"),
            _ => "somebody else's".to_owned(),
        };
        Self::Foreign { name: name.to_owned(), whose, user }
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
        let said = TapError::attaching("tap0", Errno::PERM.into()).to_string();
        assert!(said.ends_with("make the tap first: ip tuntap add dev tap0 mode tap user $USER"), "{said}");
    }

    #[test]
    fn a_tap_of_somebody_else_is_told_with_whose_it_is_and_is_left_to_him() {
        let whose = |owner, group| match TapError::foreign("tap0", owner, group, 1000) {
            TapError::Foreign { whose, .. } => whose,
            other => panic!("{other}"),
        };
        assert_eq!(whose(Some(1001), None), "user 1001's");
        assert_eq!(whose(Some(1001), Some(5)), "user 1001's");
        assert_eq!(whose(Some(1000), Some(5)), "for group 5 alone");
        assert_eq!(whose(None, Some(5)), "for group 5 alone");
        assert_eq!(whose(None, None), "somebody else's");
        let said = TapError::foreign("tap0", Some(1001), None, 1000).to_string();
        assert!(said.contains(" is user 1001's, not for user 1000: make one ") && !said.contains(" del "), "{said}");
    }
}
