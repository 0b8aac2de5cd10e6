//! The last known state of the fabric, in a file beside the daemon's state file: a daemon that starts while etcd is out of reach forwards
//! by it. The file is replaced whole, and has the digest that a state file has.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};

use nicety_fabric::{Kept, Name};
use nicety_frame::Vni;
use nicety_host::{FabricGroups, Host};
use serde::{Deserialize, Serialize};

use crate::paths::fabric_state;
use crate::whole::{self, Whole, checked, digest};

/// The version of the format.
const VERSION: u32 = 1;
/// Longest file: the machine's bounds, 200,000 claims of 250 bytes each.
const MAX: u64 = 64 << 20;

#[derive(Serialize, Deserialize)]
struct File<K> {
    version: u32,
    /// The program that wrote it.
    program: String,
    state: K,
}

/// Only the version. It can be read from a file of any version.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// The state that was kept for this host of this fabric.
#[derive(Clone, Debug)]
pub struct LastKnown {
    state: Kept,
}

/// The file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the last known state of the fabric, {path}, cannot be used: {why}; what it had comes from etcd, and ports of the fabric's groups carry \
     nothing until then"
)]
pub struct NotKnown {
    path: PathBuf,
    why: String,
}

impl LastKnown {
    pub(super) fn into_state(self) -> Kept {
        self.state
    }

    /// Network identifiers that the tunnel does not use.
    pub(super) fn left(&self) -> BTreeSet<Vni> {
        self.state.left()
    }

    /// The groups that were in force. `None`: there were none, or this program does not understand them.
    pub fn groups(&self) -> Option<FabricGroups> {
        FabricGroups::parse(self.state.config()?).ok()
    }
}

/// Reads what was kept for this host. `None`: it is in no fabric, or nothing was kept for it there.
///
/// # Errors
/// The file is damaged or of a newer program.
pub fn last_known(host: &Host) -> Result<Option<LastKnown>, NotKnown> {
    let Some(fabric) = &host.fabric else { return Ok(None) };
    let path = fabric_state(host);
    let state = read(&path).map_err(|why| NotKnown { path, why })?;
    let own = fabric.host().and_then(|own| Name::new(&own)).and_then(|own| Ok((Name::new(&fabric.name)?, own)));
    // Whoever joins says what is wrong with the names.
    let Ok((fabric, own)) = own else { return Ok(None) };
    Ok(state.filter(|state| state.is_of(&fabric, &own)).map(|state| LastKnown { state }))
}

fn read(path: &Path) -> Result<Option<Kept>, String> {
    let bytes = whole::read(path, MAX).map_err(|error| error.to_string())?;
    bytes.map(|bytes| parse(&bytes)).transpose()
}

/// Reads what [`text`] has written. The error is a sentence.
pub(super) fn parse(bytes: &[u8]) -> Result<Kept, String> {
    let text = checked(bytes).ok_or("its digest is wrong")?;
    let Versioned { version } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if version > VERSION {
        return Err(format!("it is of version {version}, and this program knows {VERSION}"));
    }
    let file: File<Kept> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    Ok(file.state)
}

/// The contents of the file.
pub(super) fn text(state: &Kept) -> serde_json::Result<String> {
    let file = File { version: VERSION, program: nicety_version::BUILD.to_owned(), state };
    let mut text = serde_json::to_string(&file)? + "\n";
    text += &digest(text.as_bytes());
    Ok(text)
}

/// The file, as this process has written it.
#[derive(Debug)]
pub(super) struct Written {
    path: PathBuf,
    /// The hash of its text.
    hash: Option<u64>,
}

impl Written {
    /// Not yet.
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, hash: None }
    }

    /// Replaces the file, unless it has this state already. The error is a sentence for a person.
    pub(super) fn write(&mut self, state: &Kept) -> Result<(), String> {
        self.replace(state)
            .map_err(|error| format!("{}: {error}{}", self.path.display(), nicety_sandbox::refused_here()))
    }

    fn replace(&mut self, state: &Kept) -> std::io::Result<()> {
        let text = text(state)?;
        let mut hasher = DefaultHasher::new();
        hasher.write(text.as_bytes());
        let new = hasher.finish();
        if self.hash != Some(new) {
            // A write that fails may have replaced the file.
            self.hash = None;
            Whole::begin(&self.path)?.finish(text.as_bytes())?;
            self.hash = Some(new);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "kept_test.rs"]
mod tests;
