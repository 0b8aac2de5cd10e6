//! `[daemon] page`: where the page about the daemon is served.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::form::Form;
use super::paths::Paths;
use super::walk::{Key, Section, Walk};

/// The address of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageAddress {
    /// A loopback address and a TCP port: whoever is on this machine may read.
    Loopback(SocketAddr),
    /// A socket at an absolute path, for those who may connect to the control socket.
    Socket(PathBuf),
}

pub(super) const PAGE: Key = Key::new(
    "page",
    Form::Page,
    "an address of this machine alone and a TCP port, such as \"127.0.0.1:8642\" or \"[::1]:8642\", or the absolute path of a socket",
);

impl fmt::Display for PageAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback(address) => write!(f, "http://{address}/"),
            Self::Socket(path) => path.display().fmt(f),
        }
    }
}

/// Reads the key.
pub(super) fn page(walk: &mut Walk, section: Section<'_>, dir: &Path, paths: &mut Paths) -> Option<PageAddress> {
    let found = walk.string(section, "page")?;
    let (text, line) = (found.value, found.line);
    let why = match text.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() && address.port() > 0 => return Some(PageAddress::Loopback(address)),
        Ok(address) if address.ip().is_loopback() => "port 0 is none: choose one from 1 to 65535".to_owned(),
        Ok(address) => format!(
            "{} is not this machine alone: the page asks nobody who they are. From elsewhere, forward a port (ssh -L)",
            address.ip()
        ),
        Err(_) if !text.starts_with('/') => format!("{text:?} is no address with a port, and no absolute path"),
        Err(_) => return paths.socket(walk, section, "page", dir).map(PageAddress::Socket),
    };
    walk.wrong(section, "page", line, why);
    None
}

#[cfg(test)]
#[path = "page_test.rs"]
mod tests;
