//! A session that goes on in another process, with the same front end. It is saved between two messages.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nicety_memory::{DirtyLog, Map, Mapping, RegionView, Rights};
use nicety_peer::Table;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::Session;
use super::rings::{Rings, SavedRing};
use crate::ending::Refusal;
use crate::memory::Region;
use crate::port::Port;
use crate::protocol::{F_ACCESS_PLATFORM, ProtocolFeatures, REGIONS_MAX};

/// A saved session. Its descriptors are in a [`Table`]. The adapter's rings and the descriptors that they signal are saved by the
/// port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSession {
    pub(super) socket: u32,
    pub(super) protocol: u64,
    pub(super) features: u64,
    pub(super) status: u8,
    pub(super) requests: Option<u32>,
    pub(super) rings: Vec<SavedRing>,
    /// Regions: guest address, bytes, address in the front end, offset in the file; and the file.
    pub(super) regions: Vec<([u64; 4], u32)>,
    /// The file in which the front end keeps the state for the next back end, and the bytes of it.
    pub(super) kept: Option<(u32, u64, u64)>,
    /// The port's own record of that state is in use.
    pub(super) record: bool,
    /// The log of written pages, if it is on.
    pub(super) log: Option<SavedLog>,
}

/// A log of written pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SavedLog {
    /// The front end's: its file, the offset there, and its length in bytes.
    Given(u32, u64, u64),
    /// Our own, until the front end gives one: words of 64 pages that are not 0, with their numbers.
    Own(Vec<(u64, u64)>),
}

/// Duplicating a descriptor failed, so a session is not saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("duplicating descriptors: {0} (ulimit -n)")]
pub struct NotSaved(#[from] Errno);

/// The file, offset and length of a map's only region.
fn file_of(map: &Map, table: &mut Table) -> Result<Option<(u32, u64, u64)>, Errno> {
    let mut found = Ok(None);
    map.each_region(|RegionView { len, file, .. }| {
        if let Some((file, offset)) = file {
            found = table.put(file).map(|index| Some((index, offset, len)));
        }
    });
    found
}

fn saved_log(log: &DirtyLog, is_given: bool, table: &mut Table) -> Result<SavedLog, Errno> {
    match log.file().filter(|_| is_given) {
        Some((file, offset, len)) => Ok(SavedLog::Given(table.put(file)?, offset, len)),
        None => Ok(SavedLog::Own(log.words().collect())),
    }
}

impl SavedSession {
    /// Takes the words of [`Session::own_log`] again.
    pub fn log_again(&mut self, own: &DirtyLog) {
        if let Some(SavedLog::Own(words)) = &mut self.log {
            *words = own.words().collect();
        }
    }
}

impl Session {
    /// The log of written pages, if it is on and our own. Others than the session's thread write into it too: once they stand still, call
    /// [`SavedSession::log_again`].
    pub fn own_log(&self) -> Option<Arc<DirtyLog>> {
        self.rings.memory.log().filter(|(_, is_given)| !is_given).map(|(log, _)| Arc::clone(log))
    }

    /// Saves the session; changes nothing.
    ///
    /// # Errors
    /// See [`NotSaved`].
    pub fn save(&self, table: &mut Table) -> Result<SavedSession, NotSaved> {
        let Self {
            socket,
            port: _,
            rings,
            protocol,
            features,
            status,
            requests,
            missed: _,
            kept,
            record,
            // A front end that takes longer over it has its transfer fail: see `Transfer::holds_up`.
            transfer: _,
            waits: _,
        } = self;
        let mut files = BTreeMap::new();
        let mut failed = Ok(());
        rings.memory.shared().each_region(|RegionView { base, file, .. }| {
            if let Some((file, _)) = file {
                match table.put(file) {
                    Ok(index) => _ = files.insert(base, index),
                    Err(errno) => failed = Err(errno),
                }
            }
        });
        failed?;
        let region = |region: &Region| {
            let Region { guest, len, user, offset } = *region;
            Some(([guest, len, user, offset], *files.get(&guest)?))
        };
        Ok(SavedSession {
            socket: table.put(socket)?,
            protocol: protocol.0,
            features: *features,
            status: *status,
            requests: requests.as_ref().map(|fd| table.put(fd)).transpose()?,
            rings: rings.save(),
            regions: rings.memory.regions().iter().filter_map(region).collect(),
            kept: kept.as_ref().map(|map| file_of(map, table)).transpose()?.flatten(),
            record: record.is_some(),
            log: rings.memory.log().map(|(log, is_given)| saved_log(log, is_given, table)).transpose()?,
        })
    }

    /// A session that goes on where another process stopped. Nothing is passed to the port before [`Session::go_on`]. The error is
    /// a sentence.
    ///
    /// # Errors
    /// The state is impossible, or its memory cannot be mapped.
    pub fn restore(saved: SavedSession, table: &mut Table, port: Arc<dyn Port>) -> Result<Session, String> {
        let SavedSession { socket, protocol, features, status, requests, rings, regions, kept, record, log } = saved;
        let missing = || "a descriptor of its session is missing".to_owned();
        let mut count = 0;
        port.with(&mut |face, _| count = face.rings());
        if rings.len() != usize::from(count) || regions.len() > REGIONS_MAX {
            return Err("its session is impossible".to_owned());
        }
        let mut restored = Rings::new(count);
        restored.restore(&rings);
        for ([guest, len, user, offset], index) in regions {
            let fd = table.get(index).ok_or_else(missing)?.try_clone_to_owned().map_err(|error| error.to_string())?;
            let region = Region { guest, len, user, offset };
            restored.memory.add_again(region, fd.into()).map_err(|error| error.to_string())?;
        }
        if let Some(log) = log {
            let (given, own) = match log {
                SavedLog::Given(file, offset, len) => {
                    (Some((table.take(file).ok_or_else(missing)?, offset, len)), Vec::new())
                }
                SavedLog::Own(words) => (None, words),
            };
            restored.memory.log_on(given, own).map_err(|refusal| refusal.to_string())?;
            if let Some(why) = restored.memory.take_unlogged() {
                port.refused(&Refusal::Unlogged { why });
            }
        }
        let kept = kept.map(|(index, offset, len)| {
            let fd = table.get(index).ok_or_else(missing)?.try_clone_to_owned().map_err(|error| error.to_string())?;
            let file = Mapping::of_file(fd, offset, len, true).map_err(|error| error.to_string())?;
            let map = Map::default().with(0, Arc::new(file), Rights::BOTH).map_err(|error| error.to_string())?;
            Ok::<_, String>(Arc::new(map))
        });
        let requests = requests.map(|index| table.take(index).ok_or_else(missing)).transpose()?;
        let socket = OwnedFd::from(table.take(socket).ok_or_else(missing)?).into();
        let record = if record { port.record() } else { None };
        let (protocol, kept) = (ProtocolFeatures(protocol), kept.transpose()?);
        let missed = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| errno.to_string())?;
        let (rings, missed) = (restored, Arc::new(missed));
        let (transfer, waits) = (Default::default(), Arc::default());
        let mut this = Session {
            socket,
            port,
            rings,
            protocol,
            features,
            status,
            requests,
            missed,
            kept,
            record,
            transfer,
            waits,
        };
        if features & F_ACCESS_PLATFORM != 0 {
            // An IOMMU's translations are a cache: what the device uses is asked for again.
            let misses = this.misses();
            this.rings.memory.turn_iotlb(Some(misses));
        }
        Ok(this)
    }

    /// Passes the memory, and the file of kept state, to the port, before its adapter is restored.
    pub fn go_on(&self) {
        self.port.set_memory(Arc::clone(self.rings.memory.map()));
        let kept = self.kept.as_ref().or(self.record.as_ref());
        self.port.with(&mut |face, _| face.keep(kept.cloned()));
    }

    /// Rings that its front end had stopped wait on. Call it when the adapter is restored, before it is offered
    /// frames.
    pub fn pause_again(&self) {
        for (ring, state) in (0u16..).zip(self.rings.states()) {
            if state.paused && state.runs.is_none() {
                self.port.with_ring(ring, &mut |face, cx| _ = face.pause(ring, cx));
            }
        }
    }
}
