//! The address of another daemon.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nicety_names::Peer;

/// An IP address or a host's name, and a TCP port, or a UNIX socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAddress {
    /// `10.0.0.2:7001`, `[fd00::2]:7001`.
    Address(SocketAddr),
    /// `host2:7001`.
    Name {
        /// The host. Its addresses may change.
        host: String,
        /// The port, not 0.
        port: u16,
    },
    /// `unix:/run/ft.sock`: a UNIX socket.
    Unix(PathBuf),
}

/// An IP address and a TCP port, or a UNIX socket, to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// `10.0.0.2:7001`, `[fd00::2]:7001`.
    Address(SocketAddr),
    /// `unix:/run/ft.sock`.
    Unix(PathBuf),
}

/// A text that is none to listen at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is neither an IP address with a TCP port behind it, nor a socket's path behind unix:")]
pub struct NoListen;

/// The path of `unix:PATH`.
fn unix(text: &str) -> Option<PathBuf> {
    text.strip_prefix("unix:").filter(|path| !path.is_empty()).map(PathBuf::from)
}

impl FromStr for ListenAddress {
    type Err = NoListen;

    fn from_str(text: &str) -> Result<Self, NoListen> {
        unix(text).map(Self::Unix).or_else(|| text.parse().ok().map(Self::Address)).ok_or(NoListen)
    }
}

impl ListenAddress {
    /// The same, with the path of a socket in this folder if it is relative.
    pub(super) fn within(self, dir: &Path) -> Self {
        match self {
            Self::Unix(path) => Self::Unix(dir.join(path)),
            address => address,
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address)
    }
}

/// A text that is neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is neither an IP address nor a host's name, with a TCP port behind it, nor a socket's path behind unix:")]
pub struct NoPeer;

/// Most bytes of a name (RFC 1035, section 2.3.4).
const NAME_MAX: usize = 253;
/// Most bytes of a part of it.
const PART_MAX: usize = 63;

/// The last part begins with a letter, so that no name looks like an IPv4 address.
fn is_name(text: &str) -> bool {
    let is_part = |part: &str| {
        let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=PART_MAX).contains(&part.len())
            && part.bytes().all(is_inner)
            && part.starts_with(|first: char| first.is_ascii_alphanumeric())
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    text.len() <= NAME_MAX
        && text.split('.').all(is_part)
        && last.starts_with(|first: char| first.is_ascii_alphabetic())
}

impl FromStr for PeerAddress {
    type Err = NoPeer;

    fn from_str(text: &str) -> Result<Self, NoPeer> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        if let Some(path) = unix(text) {
            return Ok(Self::Unix(path));
        }
        let (host, port) = text.rsplit_once(':').ok_or(NoPeer)?;
        let port = port.parse().ok().filter(|port| *port != 0 && is_name(host)).ok_or(NoPeer)?;
        Ok(Self::Name { host: host.to_owned(), port })
    }
}

impl PeerAddress {
    /// The peer, at a place of a type that has addresses and paths.
    pub fn at<P: From<SocketAddr> + From<PathBuf>>(&self) -> Peer<P> {
        match self {
            Self::Address(address) => Peer::Place((*address).into()),
            Self::Name { host, port } => Peer::Name { host: host.clone(), port: *port },
            Self::Unix(path) => Peer::Place(path.clone().into()),
        }
    }

    /// The same, with the path of a socket in this folder if it is relative.
    pub(super) fn within(self, dir: &Path) -> Self {
        match self {
            Self::Unix(path) => Self::Unix(dir.join(path)),
            address => address,
        }
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl From<SocketAddr> for PeerAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_an_address_or_a_name_and_a_port() {
        for text in ["10.0.0.2:7001", "[fd00::2]:7001", "host2:7001", "host-2.example.org:1", "3com_a.x2:65535"] {
            let peer: PeerAddress = text.parse().unwrap();
            assert_eq!(peer.to_string(), text);
            assert_eq!(matches!(peer, PeerAddress::Address(_)), text.starts_with(['1', '[']), "{text}");
        }
        for text in ["unix:/run/ft.sock", "unix:ft.sock:1"] {
            assert!(matches!(text.parse(), Ok(PeerAddress::Unix(path)) if format!("unix:{}", path.display()) == text));
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
        assert_eq!("host2:7001".parse::<ListenAddress>(), Err(NoListen));
        assert_eq!("unix:".parse::<ListenAddress>(), Err(NoListen));
        let long = format!("{}:1", "a".repeat(64));
        for text in [
            "",
            "unix:",
            "host2",
            "host2:0",
            "host2:65536",
            ":7001",
            "10.0.0.256:7001",
            "a..b:1",
            "fd00::2:7001",
            "ho st:1",
            &long,
        ] {
            assert_eq!(text.parse::<PeerAddress>(), Err(NoPeer), "{text}");
        }
    }
}
