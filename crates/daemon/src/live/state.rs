//! The state file keeps live changes across a restart.
//!
//! It holds the whole running host file, and the host file as it was read. If the host file has changed since, the host file wins,
//! and the daemon reports what it leaves out. The new state is written to another file, flushed, and renamed: so the file is always
//! either the new or the old one.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::plan::Plan;
use crate::host::Host;

/// The version of the format.
const VERSION: u32 = 1;
/// Longest state file in bytes: two host files as JSON.
const MOST: u64 = 32 << 20;

/// What is written.
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

/// The version alone: it can be read from any version.
#[derive(Debug, Deserialize)]
struct Versioned {
    version: u32,
}

/// The place of the state.
#[derive(Clone, Debug)]
pub struct StateFile {
    path: PathBuf,
    /// The file has a newer version, and is not overwritten.
    is_newer: bool,
}

/// Why a change was not saved.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The file is from a newer program.
    #[error("{0} is of a newer version of nicety, and is left as it is: move it away")]
    Newer(PathBuf),
    /// The system.
    #[error("{path}: {error}")]
    System {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
}

/// The start of a daemon.
#[derive(Debug)]
pub struct Begin {
    /// The host to serve.
    pub host: Host,
    /// The host file as it was read.
    pub file: Host,
    /// The place of the state.
    pub state: StateFile,
    /// The result of the search, for a person; prints itself.
    pub found: Found,
}

/// What was found at the state file's path.
#[derive(Debug)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// Live changes, in force again.
    Taken(PathBuf, Plan),
    /// The host file has changed since: it wins. The plan lists what is left out.
    Outdated(PathBuf, Plan),
    /// A file of a newer version.
    Newer(PathBuf, u32),
    /// It is not a state file, or is incomplete.
    Damaged(PathBuf, String),
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
            Self::Damaged(path, why) => {
                write!(f, "the state file {} is no whole one: {why}; the host file is served", path.display())
            }
        }
    }
}

impl Begin {
    /// Looks for the saved state of a host file that was just read. Changes nothing.
    pub fn new(file: Host) -> Self {
        let path = file.state();
        let mut state = StateFile { path: path.clone(), is_newer: false };
        let damaged = |why: String| Found::Damaged(path.clone(), why);
        let found = match read(&path) {
            Ok(None) => Found::Nothing,
            Ok(Some(bytes)) => match understand(&bytes, &file) {
                Ok(Understood { host, running }) => {
                    let plan = Plan::new(&file, &running, |_| false);
                    if host == file.document.text() {
                        return Self { host: running, file, state, found: Found::Taken(path, plan) };
                    }
                    Found::Outdated(path, plan)
                }
                Err(Misunderstood::Newer(version)) => {
                    state.is_newer = true;
                    Found::Newer(path, version)
                }
                Err(Misunderstood::Damaged(why)) => damaged(why),
            },
            Err(error) => damaged(error.to_string()),
        };
        Self { host: file.clone(), file, state, found }
    }

    /// Renames a state that is not served, so that it is not confused with later changes.
    pub fn set_aside(&self) -> io::Result<()> {
        let ending = match &self.found {
            Found::Nothing | Found::Taken(..) | Found::Newer(..) => return Ok(()),
            Found::Outdated(..) => ".old",
            Found::Damaged(..) => ".damaged",
        };
        fs::rename(&self.state.path, beside(&self.state.path, ending))
    }
}

struct Understood {
    /// The host file as it was.
    host: String,
    running: Host,
}

enum Misunderstood {
    Newer(u32),
    Damaged(String),
}

fn understand(bytes: &[u8], file: &Host) -> Result<Understood, Misunderstood> {
    let damaged = |why: String| Misunderstood::Damaged(why);
    let Versioned { version } = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    if version > VERSION {
        return Err(Misunderstood::Newer(version));
    }
    let kept: Kept = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    let running = Host::parse(&kept.running, &file.path).map_err(|errors| {
        damaged(errors.list.first().map_or_else(String::new, |error| format!("what it has kept is wrong: {error}")))
    })?;
    Ok(Understood { host: kept.host, running })
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match crate::regular::open(path, OpenOptions::new().read(true)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(MOST).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// A path with one more suffix.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
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
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        } else {
            let program = nicety_version::BUILD.to_owned();
            write(path, &Kept { version: VERSION, program, host, running: text })
        };
        kept.map_err(|error| KeepError::System { path: path.clone(), error })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn write_new(new: &Path, kept: &Kept) -> io::Result<()> {
    let mut options = OpenOptions::new();
    // A leftover of a daemon that was interrupted.
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(new)?;
    file.write_all(serde_json::to_string_pretty(kept)?.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()
}

/// Writes the file beside its place, flushes it, and renames it.
fn write(path: &Path, kept: &Kept) -> io::Result<()> {
    let new = beside(path, ".new");
    let written = write_new(&new, kept).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _it_may_not_be_there = fs::remove_file(&new);
        return written;
    }
    // The rename is on the disk only after the folder is flushed.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
#[path = "state_test.rs"]
mod tests;
