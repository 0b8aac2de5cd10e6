//! Errors of attaching to a tap, with the remedy.

use std::io;

use nicety_memory::MapError;
use rustix::io::Errno;

use super::link::Kind;

/// The reason why a tap could not be opened, with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The name is not valid for an interface.
    #[error("`{0}` cannot name an interface: 1 to 15 characters, without `/`, `:` and spaces")]
    Name(String),
    /// The tap driver does not exist.
    #[error("/dev/net/tun is not there: load the driver (modprobe tun), or give the container that device")]
    NoDriver,
    /// This process may not open the tap driver.
    #[error(
        "/dev/net/tun, through which every tap is reached, cannot be opened: {0}; chmod 0666 /dev/net/tun, or give the container that device"
    )]
    Driver(Errno),
    /// This process may not make the tap.
    #[error(
        "attaching to tap {name} needs CAP_NET_ADMIN, or make the tap first: ip tuntap add dev {name} mode tap user $USER"
    )]
    Permission {
        /// The interface.
        name: String,
    },
    /// The tap belongs to another user or group.
    #[error(
        "tap {name} is {whose}, not for user {user}: make one that is, under another name (ip tuntap add dev NAME mode tap user $USER)"
    )]
    Foreign {
        /// The interface.
        name: String,
        /// The owner, as text.
        whose: String,
        /// The user who tried.
        user: u32,
    },
    /// Another process has the tap.
    #[error("tap {name} is in use by another process: stop that one, or choose another name")]
    Busy {
        /// The interface.
        name: String,
    },
    /// An interface of another kind has that name.
    #[error(
        "{name} is {kind}, not a tap: make a tap under another name (ip tuntap add dev NAME mode tap user $USER) and name that; a bridge \
         joins it to others (docs/uplinks.md)"
    )]
    NotTap {
        /// The interface.
        name: String,
        /// Kind of the interface.
        kind: Kind,
    },
    /// A tap with `multi_queue`.
    #[error(
        "tap {name} has several queues, and this uplink uses one: give it more (`queues` in the host file), or make a tap without \
         multi_queue, under another name (ip tuntap add dev NAME mode tap user $USER)"
    )]
    Several {
        /// The interface.
        name: String,
    },
    /// A tap without `multi_queue`.
    #[error(
        "tap {name} is for one queue: leave `queues` away, or make a tap for several, under another name (ip tuntap add dev NAME mode tap \
         multi_queue user $USER)"
    )]
    Single {
        /// The interface.
        name: String,
    },
    /// An error of the operating system.
    #[error("{doing}: {source}")]
    Os {
        /// The action that failed.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The keeper, which opens taps for this process, did not.
    #[error("the keeper does not open tap {name}: {why}")]
    Keeper {
        /// The interface.
        name: String,
        /// The reason: a sentence.
        why: String,
    },
    /// No memory for the buffers.
    #[error(transparent)]
    Memory(#[from] MapError),
}

impl TapError {
    /// The error of opening `/dev/net/tun`.
    pub(super) fn opening(error: Errno) -> Self {
        match error {
            Errno::NOENT | Errno::NODEV | Errno::NXIO => Self::NoDriver,
            Errno::ACCESS | Errno::PERM => Self::Driver(error),
            error => Self::Os { doing: "opening /dev/net/tun", source: error.into() },
        }
    }

    /// The error of TUNSETIFF, for an interface for which `attached::check` found no reason.
    pub(super) fn attaching(name: &str, error: io::Error) -> Self {
        let name = name.to_owned();
        match Errno::from_io_error(&error) {
            Some(Errno::PERM | Errno::ACCESS) => Self::Permission { name },
            Some(Errno::BUSY) => Self::Busy { name },
            _ => Self::Os { doing: "attaching to a tap (TUNSETIFF)", source: error },
        }
    }

    /// The error for a tap that `user` may not use.
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
