//! The host file's texts that run, kept by the keeper in a memory file: the daemon that follows a killed one serves them. The host file
//! itself may have been edited since, and nobody has applied that.
//!
//! They are replaced whole at each change, before the change is answered. What else survives a kill is a port's: see `journal.rs`.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nicety_adapter::snapshot::{Nothing, RestoreError, Version, decode, encode};
use nicety_host::{Host, HostErrors, in_one_line};
use nicety_keeper::{Group, Holder};
use serde::{Deserialize, Serialize};

use super::plan::Plan;
use super::state::Begin;
use crate::serve::handover::{bytes_of, sealed_file_of};

/// Their name at the keeper. A port's name has no slash.
const NAME: &str = "/host";
/// The name in their envelope.
const KIND: &str = "nicety-texts";
/// A change waits so long for a keeper that does not read.
const WITHIN: Duration = Duration::from_secs(1);

/// The texts that a daemon serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Texts {
    /// The host file's path.
    pub path: PathBuf,
    /// The host file as it was last read.
    pub file: String,
    /// The host file as it runs.
    pub running: String,
}

impl Version for Texts {
    const NUMBER: u16 = 1;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

impl Texts {
    /// The texts of a running host.
    pub fn of(running: &Host, file: &Host) -> Self {
        Self { path: running.path.clone(), file: file.document.text(), running: running.document.text() }
    }

    /// Has the keeper hold these in place of the last ones. `number` is a time in nanoseconds: higher than at the last call. The error
    /// is a sentence for a person.
    ///
    /// # Errors
    /// The keeper does not read, or the process lacks memory or descriptors.
    pub fn keep(&self, holder: &Holder, number: u64) -> Result<(), String> {
        let words = |error: nicety_keeper::ChannelError| format!("the keeper: {error}");
        let file = sealed_file_of(&encode(KIND, Self::NUMBER, self)).map_err(words)?;
        holder.hold_within(NAME, number, &[file.as_fd()], WITHIN).map_err(words)?;
        holder.forget(NAME, number).map_err(words)
    }

    /// Takes the texts that a killed daemon served out of what the keeper has held. `None` if there are none. The error is a sentence
    /// for a person.
    pub fn take(groups: &mut Vec<Group>) -> Option<Result<Self, String>> {
        let newest = groups.extract_if(.., |group| group.name == NAME).max_by_key(|group| group.number)?;
        let bytes = bytes_of(newest.fds.into_iter().next());
        Some(bytes.and_then(|bytes| decode(KIND, &bytes).map_err(|error: RestoreError| error.to_string())))
    }

    /// Begins to serve them again.
    ///
    /// # Errors
    /// This program does not understand them.
    pub fn begin(&self) -> Result<Begin, HostErrors> {
        let (host, file) = both(&self.path, &self.file, &self.running)?;
        Ok(Begin::again(host, file))
    }

    /// The difference between the host file and the one that was last read: a sentence. `None` if there is none.
    pub fn unapplied(&self) -> Option<String> {
        // The usual case, in which VMs that wait for a killed daemon's successor need not wait for two parses.
        if std::fs::read(&self.path).is_ok_and(|now| now == self.file.as_bytes()) {
            return None;
        }
        let path = self.path.display();
        let now = match Host::read(&self.path) {
            Ok(now) => now,
            Err(error) => {
                let why = in_one_line(&error);
                return Some(format!(
                    "the host file was changed, and is not served: {why}; what ran goes on: mend {path}"
                ));
            }
        };
        let plan = Plan::new(&Host::parse_change(&self.file, &self.path).ok()?, &now, |_| false);
        let what = in_one_line(&plan);
        let words = || {
            format!(
                "the host file was changed, and nobody has applied it: {what}; what ran goes on: `nicety apply {path}`"
            )
        };
        (!plan.is_empty()).then(words)
    }
}

/// The host as it runs, and as its file was read. They are parsed once if they are the same: a parse resolves the links of each port's
/// path.
///
/// # Errors
/// This program does not understand one of them.
pub fn both(path: &Path, file: &str, running: &str) -> Result<(Host, Host), HostErrors> {
    let read = Host::parse_change(file, path)?;
    let host = if running == file { read.clone() } else { Host::parse_change(running, path)? };
    Ok((host, read))
}

#[cfg(test)]
mod tests {
    use nicety_keeper::Channel;

    use super::*;

    fn texts(file: &str, running: &str) -> Texts {
        Texts { path: "/etc/nicety/host.toml".into(), file: file.to_owned(), running: running.to_owned() }
    }

    #[test]
    fn the_last_texts_are_found_among_what_the_keeper_has_held_and_ports_are_left() {
        let (ours, keeper) = Channel::pair().unwrap();
        let holder = Holder::from(ours);
        texts("a", "b").keep(&holder, 5).unwrap();
        texts("a", "c").keep(&holder, 6).unwrap();
        let mut groups = vec![Group { name: "vm1".to_owned(), number: 9, fds: Vec::new() }];
        while let Ok(message) = keeper.receive(Duration::ZERO) {
            let number = u64::from_le_bytes(*message.content.first_chunk().unwrap());
            if !message.fds.is_empty() {
                groups.push(Group { name: NAME.to_owned(), number, fds: message.fds });
            }
        }
        assert_eq!(groups.len(), 3);
        assert_eq!(Texts::take(&mut groups), Some(Ok(texts("a", "c"))));
        assert_eq!(groups.len(), 1);
        assert_eq!(Texts::take(&mut groups), None);
        groups.push(Group { name: NAME.to_owned(), number: 1, fds: Vec::new() });
        assert_eq!(Texts::take(&mut groups), Some(Err("a file is missing".to_owned())));
    }

    /// A daemon of another build reads them after a kill. Only `NICETY_GOLDEN=write` makes the file of a new version.
    #[test]
    fn texts_of_each_version_are_read_and_this_version_is_written_as_it_was() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let of = |version: u16| folder.join(format!("texts-v{version}.image"));
        let bytes = encode(KIND, Texts::NUMBER, &texts("[daemon]\n", "[switch]\n"));
        if !of(Texts::NUMBER).exists() && std::env::var_os("NICETY_GOLDEN").is_some_and(|what| what == "write") {
            std::fs::write(of(Texts::NUMBER), &bytes).unwrap();
        }
        for version in 1..=Texts::NUMBER {
            let golden = std::fs::read(of(version)).unwrap();
            assert_eq!(decode(KIND, &golden), Ok(texts("[daemon]\n", "[switch]\n")), "version {version}");
        }
        assert_eq!(std::fs::read(of(Texts::NUMBER)).unwrap(), bytes);
        let newer = decode::<Texts>(KIND, &encode(KIND, Texts::NUMBER + 1, &0u8)).unwrap_err();
        assert!(matches!(newer, RestoreError::Version { .. }), "{newer}");
    }
}
