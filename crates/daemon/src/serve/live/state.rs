//! The state file keeps live changes across a restart.
//!
//! It holds the whole running host file, and the host file as it was read. If the host file has changed since then, the host file
//! wins, and the daemon reports the live changes that are left out. The new state [replaces](whole) the old one whole.
//!
//! ```text
//! {"version":1,"program":…,"host":…,"running":…}    in lines
//! crc32 cbf43926                                    of all bytes before this line; in every version
//! ```
//! A file with a wrong digest is not used; not even its version is. It is set aside, and the daemon names the changes in it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use nicety_host::Host;
use serde::{Deserialize, Serialize};

use super::plan::Plan;
use crate::whole::{self, Whole};

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
    /// The host file has changed since, and wins. The plan lists the changes that are left out.
    Outdated(PathBuf, Plan),
    /// A file of a newer version.
    Newer(PathBuf, u32),
    /// The file is not a state file, is incomplete, or was changed. The plan lists the changes in it, as far as they can be read.
    Damaged(PathBuf, String, Option<Plan>),
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one_line = |plan: &Plan| plan.to_string().trim_end().replace('\n', "; ");
        match self {
            Self::Nothing => Ok(()),
            Self::Taken(path, plan) => {
                let path = path.display();
                write!(f, "what was changed live is in force again, from {path}: {}", one_line(plan))
            }
            Self::Outdated(path, plan) => write!(
                f,
                "the host file was changed after {} was kept: the host file wins, and this is left out: {}",
                path.display(),
                one_line(plan)
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
                        write!(f, "; left out, as far as it can be read: {}", one_line(plan))
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

impl Begin {
    /// Looks for the saved state of a host file that was just read. Changes nothing.
    pub fn new(file: Host) -> Self {
        let path = file.state();
        let mut state = StateFile { path: path.clone(), is_newer: false };
        let found = match whole::read(&path, MAX) {
            Ok(None) => Found::Nothing,
            Ok(Some(bytes)) => match understand(&bytes, &file) {
                Ok(Understood { host, running }) => {
                    let plan = Plan::new(&file, &running, |_| false);
                    if is_same(&host, &file) {
                        return Self { host: running, file, state, found: Found::Taken(path, plan) };
                    }
                    Found::Outdated(path, plan)
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

    /// What a killed daemon served, which goes on: the state file is not taken. One of a newer program stays as it is.
    pub fn again(host: Host, file: Host) -> Self {
        let Self { file, state, .. } = Self::new(file);
        Self { host, file, state, found: Found::Nothing }
    }

    /// Renames a state that is not used, so that it is not confused with later changes.
    pub fn set_aside(&self) -> io::Result<()> {
        let ending = match &self.found {
            Found::Nothing | Found::Taken(..) | Found::Newer(..) => return Ok(()),
            Found::Outdated(..) => ".old",
            Found::Damaged(..) => ".damaged",
        };
        whole::set_aside(&self.state.path, ending)
    }
}

/// Whether a text is this host file. Another version of this program may have written it in another order, or with other quotes.
fn is_same(text: &str, file: &Host) -> bool {
    text == file.document.text()
        || Host::parse_change(text, &file.path).is_ok_and(|host| host.document == file.document)
}

struct Understood {
    /// The host file as it was read then.
    host: String,
    running: Host,
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
    let running = Host::parse_change(&kept.running, &file.path).map_err(|errors| {
        damaged(errors.list.first().map_or_else(String::new, |error| format!("what it has kept is wrong: {error}")))
    })?;
    Ok(Understood { host: kept.host, running })
}

/// The changes in a damaged file, if it can still be read as a state file.
fn left_in(bytes: &[u8], file: &Host) -> Option<Plan> {
    let kept: Kept = serde_json::Deserializer::from_slice(bytes).into_iter().next()?.ok()?;
    let running = Host::parse(&kept.running, &file.path).ok()?;
    Some(Plan::new(file, &running, |_| false))
}

/// The last line of a file that has these bytes before it.
fn digest(bytes: &[u8]) -> String {
    format!("crc32 {:08x}\n", nicety_frame::crc::fcs(bytes))
}

/// The bytes before the last line, if their digest is correct.
fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (text, last) = bytes.split_at_checked(bytes.len().checked_sub(digest(b"").len())?)?;
    (last == digest(text).as_bytes()).then_some(text)
}

impl StateFile {
    /// Saves the running host file if it differs from `file`; else removes the saved state.
    pub fn keep(&self, file: &Host, running: &Host) -> Result<(), KeepError> {
        let Self { path, is_newer } = self;
        if *is_newer && path.exists() {
            return Err(KeepError::Newer(path.clone()));
        }
        let (host, text) = (file.document.text(), running.document.text());
        let kept = if host == text {
            whole::remove(path)
        } else {
            let program = nicety_version::BUILD.to_owned();
            write(path, &Kept { version: VERSION, program, host, running: text })
        };
        kept.map_err(|error| KeepError::System { path: path.clone(), error })
    }

    /// The state file of a host file's daemon; it is not read.
    pub(crate) fn of(file: &Host) -> Self {
        Self { path: file.state(), is_newer: false }
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
