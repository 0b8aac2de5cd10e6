//! The mistakes of a host file: all at once, each with its line, its key and the allowed values.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use nicety_socket::MAX_PATH;

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostError {
    /// The line, counted from 1. It is 0 for a mistake in a change, which no person wrote as a file.
    pub line: usize,
    /// The key's owner in a change, such as `port vm1`; else empty.
    pub of: String,
    /// The key, such as `port.adapter`; empty if the file is not TOML.
    pub key: String,
    /// The mistake, and the value that was probably meant.
    pub what: String,
    /// The allowed values; empty where that is obvious.
    pub allowed: String,
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.of.as_str(), self.key.as_str()) {
            ("", "") => {}
            ("", key) => write!(f, "{key}: ")?,
            (of, key) => write!(f, "{of}: {}: ", key.split_once('.').map_or(key, |(_, key)| key))?,
        }
        // The text quotes the file, which may contain terminal control characters.
        for part in self.what.chars() {
            match part {
                '"' | '\'' | '\\' => write!(f, "{part}")?,
                _ => write!(f, "{}", part.escape_debug())?,
            }
        }
        if !self.allowed.is_empty() {
            write!(f, " (allowed: {})", self.allowed)?;
        }
        Ok(())
    }
}

/// Most mistakes of one file that are kept.
pub(super) const MISTAKES_MAX: usize = 100;
/// Longest name in bytes for which to search a similar one. The search takes time and memory by the name's length.
const MEANT_MAX: usize = 100;

/// Every mistake of a host file, by line. Prints a line for each: `FILE:LINE: KEY: WHAT (allowed: …)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostErrors {
    /// The file.
    pub path: PathBuf,
    /// Its mistakes, at least one and at most a hundred, sorted by line.
    pub list: Vec<HostError>,
}

impl HostErrors {
    pub(super) fn new(path: &Path, mut list: Vec<HostError>) -> Self {
        list.sort_by_key(|error| error.line);
        Self { path: path.to_owned(), list }
    }
}

impl fmt::Display for HostErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.list.iter().enumerate() {
            let end = if index == 0 { "" } else { "\n" };
            write!(f, "{end}{}:{}: {error}", self.path.display(), error.line)?;
        }
        Ok(())
    }
}

impl std::error::Error for HostErrors {}

/// Reasons why a host file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file does not exist.
    #[error("there is no host file {path}: write one (docs/host-file.md begins with an example), or name another")]
    Missing {
        /// Its path.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("the host file {path} cannot be read: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file is too long for a host file.
    #[error("the host file {path} has more than {most} bytes: is it another file?")]
    Long {
        /// The file.
        path: PathBuf,
        /// The limit in bytes.
        most: u64,
    },
    /// The file has mistakes.
    #[error(transparent)]
    Wrong(#[from] HostErrors),
}

/// The path of the default control socket is too long.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the control socket {path} would have {length} bytes, and the system's limit is {MAX_PATH}: name a shorter path with [daemon] \
     control in the host file"
)]
pub struct DeepControl {
    /// The path.
    pub path: PathBuf,
    /// The path's length in bytes.
    pub length: usize,
}

/// Words of other systems (Linux's bonding driver, teamd, switches), and ours for the same.
const SYNONYMS: [(&str, &str); 8] = [
    ("active-backup", "active-standby"),
    ("activebackup", "active-standby"),
    ("failover", "active-standby"),
    ("lacp", "802.3ad"),
    ("lag", "802.3ad"),
    ("balance-tlb", "load"),
    ("balance-slb", "source-address"),
    ("virtio", "virtio-net"),
];

/// The name that was probably meant: ours for another system's word, or the most similar one, if it is similar enough. A very long
/// name has none.
pub fn meant<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if given.len() > MEANT_MAX {
        return None;
    }
    let given = given.to_lowercase();
    let names: Vec<&str> = names.into_iter().collect();
    let same = SYNONYMS.iter().find(|(theirs, _)| *theirs == given);
    if let Some(name) = same.and_then(|(_, ours)| names.iter().find(|name| *name == ours)) {
        return Some(name);
    }
    let near = (given.chars().count() / 3).clamp(1, 3);
    let distance = |name: &str| strsim::damerau_levenshtein(&given, &name.to_lowercase());
    let begins = |name: &str| given.len() >= 3 && name.starts_with(&given);
    names
        .into_iter()
        .map(|name| (if begins(name) { 1 } else { distance(name) }, name))
        .filter(|(distance, _)| *distance <= near)
        .min()
        .map(|(_, name)| name)
}

/// `; did you mean "NAME"?`, or nothing.
pub fn did_you_mean<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    meant(given, names).map_or_else(String::new, |name| format!("; did you mean {name:?}?"))
}

/// A text of several lines, such as [`HostErrors`] or a plan, in one: for a log.
pub fn in_one_line(text: &impl std::fmt::Display) -> String {
    text.to_string().trim_end().replace('\n', "; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_name_is_meant_and_a_far_one_is_not() {
        let names = ["e1000", "vmxnet3", "virtio-net"];
        assert_eq!(meant("e100", names), Some("e1000"));
        assert_eq!(meant("E1000", names), Some("e1000"));
        assert_eq!(meant("vmxnet", names), Some("vmxnet3"));
        assert_eq!(meant("virtio", names), Some("virtio-net"));
        assert_eq!(meant("virtoi-net", names), Some("virtio-net"));
        assert_eq!(meant("LACP", ["load", "802.3ad"]), Some("802.3ad"));
        assert_eq!(meant("active-backup", ["load", "active-standby"]), Some("active-standby"));
        assert_eq!(meant("active-backup", names), None);
        assert_eq!(meant("rtl8139", names), None);
        assert_eq!(meant("", names), None);
        // This would take a matrix of 10^6 x 10 numbers for each name.
        assert_eq!(meant(&"e1000".repeat(200_000), names), None);
    }
}
