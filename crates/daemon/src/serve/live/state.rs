//! The state file keeps live changes across a restart.
//!
//! It holds the whole running host file, and the host file as it was read. If the host file has changed since then, the host file
//! wins, and the daemon reports the live changes that are left out. The new state [replaces](whole) the old one whole.
//!
//! ```text
//! {"version":1,"program":…,"host":…,"running":…,"unconfirmed":[…]}    in lines
//! crc32 cbf43926                                    of all bytes before this line; in every version
//! ```
//! `running` is what was confirmed last. A change that waits to be confirmed is only noted, in `unconfirmed`: no start serves it.
//!
//! A file with a wrong digest is not used; not even its version is. It is set aside, and the daemon names the changes in it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use nicety_host::{Host, in_one_line};
use serde::{Deserialize, Serialize};

use super::origin;
use super::plan::Plan;
use crate::fabric::last_known;
use crate::whole::{self, Whole, checked, digest};

/// The version of the format.
const VERSION: u32 = 1;
/// Longest state file in bytes: two host files as JSON.
const MAX: u64 = 32 << 20;

/// The content of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    version: u32,
    /// The program that wrote it.
    program: String,
    /// The host file as it was read.
    host: String,
    /// The host file as it runs.
    running: String,
    /// Changes that nobody has confirmed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unconfirmed: Vec<Unconfirmed>,
}

/// A change that nobody has confirmed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unconfirmed {
    /// The user and process that made it.
    pub by: String,
    /// Its lines in a plan.
    pub changes: Vec<String>,
    /// The text of the daemon's host file that was applied. While the file says this, a start serves what was confirmed. `None`: the
    /// change was of one entry, or by another file.
    pub file: Option<String>,
    /// Whether it was in force when this was written. Otherwise it was undone before.
    pub waits: bool,
}

/// Prints its lines and who made it.
impl fmt::Display for Unconfirmed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, by {}", self.changes.join("; "), self.by)
    }
}

/// Only the version. It can be read from a file of any version.
#[derive(Debug, Deserialize)]
struct Versioned {
    version: u32,
}

/// The path of the state.
#[derive(Clone, Debug)]
pub struct StateFile {
    path: PathBuf,
    /// The file has a newer version, and must not be overwritten.
    is_newer: bool,
    /// Changes that nobody had confirmed when the file was read.
    unconfirmed: Vec<Unconfirmed>,
}

/// Reasons why a change was not saved.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The file is from a newer program.
    #[error("{0} is of a newer version of nicety, and is left as it is: move it away")]
    Newer(PathBuf),
    /// A system call failed.
    #[error("{path}: {error}")]
    System {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
}

/// The state with which a daemon starts.
#[derive(Debug)]
pub struct Begin {
    /// The host to serve.
    pub host: Host,
    /// The host file as it was read.
    pub file: Host,
    /// The path of the state.
    pub state: StateFile,
    /// The result of the search. It prints itself for a person.
    pub found: Found,
}

/// The content of the state file's path.
#[derive(Debug)]
pub enum Found {
    /// There is no file.
    Nothing,
    /// Live changes, which are in force again.
    Taken(PathBuf, Plan),
    /// The host file has changed since, and wins. The plan lists the changes that are left out. Ports with an origin stay.
    Outdated(PathBuf, Plan),
    /// The host file was applied to be confirmed, and nobody has confirmed it: what was confirmed before is in force.
    Unconfirmed(PathBuf, Unconfirmed),
    /// A file of a newer version.
    Newer(PathBuf, u32),
    /// The file is not a state file, is incomplete, or was changed. The plan lists the changes in it, as far as they can be read.
    Damaged(PathBuf, String, Option<Plan>),
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => Ok(()),
            Self::Taken(path, plan) => {
                let path = path.display();
                write!(f, "what was changed live is in force again, from {path}: {}", in_one_line(plan))
            }
            Self::Outdated(path, plan) => write!(
                f,
                "the host file was changed after {} was kept: the host file wins, and this is left out: {}",
                path.display(),
                in_one_line(plan)
            ),
            Self::Unconfirmed(path, what) => write!(
                f,
                "the host file has a change that nobody has confirmed: {what}; what was confirmed before is served, from {}; \
                 `nicety apply` applies the file",
                path.display()
            ),
            Self::Newer(path, version) => write!(
                f,
                "the state file {} is of version {version}, and this program knows {VERSION}: the host file is served, and what is \
                 changed live is not kept",
                path.display()
            ),
            Self::Damaged(path, why, left) => {
                write!(f, "the state file {} is no whole one: {why}; the host file is served", path.display())?;
                match left {
                    Some(plan) if !plan.is_empty() => {
                        write!(f, "; left out, as far as it can be read: {}", in_one_line(plan))
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

impl Begin {
    /// The same with the groups of the fabric that were in force when this host served last, unless it has some. The error is a sentence:
    /// without them.
    ///
    /// # Errors
    /// They are not known, or the host file has a group of the same name.
    pub fn with_fabric(&mut self) -> Result<(), String> {
        if self.host.fabric_groups.is_some() {
            return Ok(());
        }
        let known = last_known(&self.host).map_err(|why| why.to_string())?;
        let Some(groups) = known.and_then(|known| known.groups()) else { return Ok(()) };
        let host = self.host.with_fabric(Some(&groups)).map_err(|errors| in_one_line(&errors))?;
        self.host = host;
        Ok(())
    }

    /// Looks for the saved state of a host file that was just read. Changes nothing.
    pub fn new(file: Host) -> Self {
        let path = file.state();
        let mut state = StateFile { path: path.clone(), is_newer: false, unconfirmed: Vec::new() };
        let found = match whole::read(&path, MAX) {
            Ok(None) => Found::Nothing,
            Ok(Some(bytes)) => match understand(&bytes, &file) {
                Ok(Understood { host, running, unconfirmed }) => {
                    let now = file.document.text();
                    let plan = Plan::new(&file, &running, |_| false);
                    if host.document == file.document {
                        state.unconfirmed = unconfirmed;
                        let found = if plan.is_empty() { Found::Nothing } else { Found::Taken(path, plan) };
                        return Self { host: running, file, state, found };
                    }
                    if let Some(what) = unconfirmed.iter().find(|what| what.file.as_ref() == Some(&now)) {
                        let found = Found::Unconfirmed(path, what.clone());
                        state.unconfirmed = unconfirmed;
                        return Self { host: running, file: host, state, found };
                    }
                    // A file in which the ports with an origin have no place wins alone.
                    let host = origin::keep(&running, file.clone()).unwrap_or_else(|_| file.clone());
                    let (stays, left_out) = (Plan::new(&file, &host, |_| false), Plan::new(&host, &running, |_| false));
                    let found = if left_out.is_empty() && !stays.is_empty() {
                        Found::Taken(path, stays)
                    } else {
                        Found::Outdated(path, left_out)
                    };
                    return Self { host, file, state, found };
                }
                Err(Misunderstood::Newer(version)) => {
                    state.is_newer = true;
                    Found::Newer(path, version)
                }
                Err(Misunderstood::Damaged(why, left)) => Found::Damaged(path, why, left),
            },
            Err(error) => Found::Damaged(path, error.to_string(), None),
        };
        Self { host: file.clone(), file, state, found }
    }

    /// The state of a killed daemon, which goes on: the state file is not taken. One of a newer program stays as it is.
    pub fn again(host: Host, file: Host) -> Self {
        let Self { file, state, .. } = Self::new(file);
        Self { host, file, state, found: Found::Nothing }
    }

    /// Renames a state that is not used, so that it is not confused with later changes. What is still in force of it, ports with an
    /// origin, is written again.
    pub fn set_aside(&self) -> io::Result<()> {
        let ending = match &self.found {
            Found::Nothing | Found::Taken(..) | Found::Unconfirmed(..) | Found::Newer(..) => return Ok(()),
            Found::Outdated(..) => ".old",
            Found::Damaged(..) => ".damaged",
        };
        whole::set_aside(&self.state.path, ending)?;
        self.state.keep(&self.file, &self.host, &[]).map_err(io::Error::other)
    }

    /// The change that waited to be confirmed when the last daemon ended: this start undoes it. `None` if none did.
    pub fn undone(&self) -> Option<&Unconfirmed> {
        self.state.unconfirmed.iter().find(|what| what.waits)
    }

    /// Notes that a change does not wait any more, so that the next start does not report it again.
    ///
    /// # Errors
    /// See [`KeepError`].
    pub fn note_undone(&self) -> Result<(), KeepError> {
        self.state.keep(&self.file, &self.host, self.state.refused().as_slice())
    }
}

struct Understood {
    /// The host file as it was read then.
    host: Host,
    running: Host,
    unconfirmed: Vec<Unconfirmed>,
}

enum Misunderstood {
    Newer(u32),
    Damaged(String, Option<Plan>),
}

fn understand(bytes: &[u8], file: &Host) -> Result<Understood, Misunderstood> {
    let Some(text) = checked(bytes) else {
        return Err(Misunderstood::Damaged("its digest is wrong".to_owned(), left_in(bytes, file)));
    };
    let damaged = |why: String| Misunderstood::Damaged(why, None);
    let Versioned { version } = serde_json::from_slice(text).map_err(|error| damaged(error.to_string()))?;
    if version > VERSION {
        return Err(Misunderstood::Newer(version));
    }
    let kept: Kept = serde_json::from_slice(text).map_err(|error| damaged(error.to_string()))?;
    let parsed = |text: &str| {
        Host::parse_change(text, &file.path).map_err(|errors| {
            damaged(errors.list.first().map_or_else(String::new, |error| format!("what it has kept is wrong: {error}")))
        })
    };
    let running = parsed(&kept.running)?;
    // A parse resolves the links of each port's path.
    let host = match kept.host {
        host if host == file.document.text() => file.clone(),
        host if host == kept.running => running.clone(),
        host => parsed(&host)?,
    };
    Ok(Understood { host, running, unconfirmed: kept.unconfirmed })
}

/// The changes in a damaged file, if it can still be read as a state file.
fn left_in(bytes: &[u8], file: &Host) -> Option<Plan> {
    let kept: Kept = serde_json::Deserializer::from_slice(bytes).into_iter().next()?.ok()?;
    let running = Host::parse(&kept.running, &file.path).ok()?;
    Some(Plan::new(file, &running, |_| false))
}

impl StateFile {
    /// Saves the running host file if it differs from `file`, or if there are unconfirmed changes; else removes the saved state.
    ///
    /// # Errors
    /// See [`KeepError`].
    pub fn keep(&self, file: &Host, running: &Host, unconfirmed: &[Unconfirmed]) -> Result<(), KeepError> {
        let Self { path, is_newer, unconfirmed: _ } = self;
        if *is_newer && path.exists() {
            return Err(KeepError::Newer(path.clone()));
        }
        let (host, text) = (file.document.text(), running.document.text());
        let kept = if host == text && unconfirmed.is_empty() {
            whole::remove(path)
        } else {
            let (program, unconfirmed) = (nicety_version::BUILD.to_owned(), unconfirmed.to_vec());
            write(path, &Kept { version: VERSION, program, host, running: text, unconfirmed })
        };
        kept.map_err(|error| KeepError::System { path: path.clone(), error })
    }

    /// The state file of a daemon that this one replaces. It is read only for what nobody has confirmed.
    pub(crate) fn of(file: &Host) -> Self {
        Self { path: file.state(), is_newer: false, unconfirmed: Begin::new(file.clone()).state.unconfirmed }
    }

    /// The text of the host file that was applied, not confirmed and undone, with its change.
    pub(super) fn refused(&self) -> Option<Unconfirmed> {
        let last = self.unconfirmed.iter().rfind(|what| what.file.is_some())?;
        Some(Unconfirmed { waits: false, ..last.clone() })
    }

    /// The path of the state file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn write(path: &Path, kept: &Kept) -> io::Result<()> {
    let mut text = serde_json::to_string_pretty(kept)? + "\n";
    text += &digest(text.as_bytes());
    Whole::begin(path)?.finish(text.as_bytes())
}

#[cfg(test)]
#[path = "state_test.rs"]
mod tests;
