//! A session that goes on in another process, with the same connection: half-read messages, owed replies, requests in flight.

use std::os::fd::OwnedFd;

use nicety_peer::Table;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::late::Late;
use super::requests::{Requests, SavedRequests};
use super::work::{SavedWriting, Work, Writing};
use super::{Core, Session};
use crate::codec::MAX_DMA_MAPS;
use crate::codec::version::Capabilities;
use crate::counters::Counters;
use crate::wire::{Inbound, Outbound, SavedInbound, SavedOutbound};

/// A saved session. Its descriptors are in a [`Table`]. Its counters are not saved: the new process counts from 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSession {
    pub(super) socket: u32,
    pub(super) inbound: SavedInbound,
    pub(super) outbound: SavedOutbound,
    pub(super) peer: Option<Capabilities>,
    pub(super) map_limit: u64,
    /// Windows: first address and bytes.
    pub(super) maps: Vec<(u64, u64)>,
    pub(super) requests: SavedRequests,
    pub(super) writing: Option<SavedWriting>,
}

impl SavedSession {
    /// The client has these windows: first address and bytes of each.
    pub fn set_maps(&mut self, maps: impl Iterator<Item = (u64, u64)>) {
        self.maps = maps.collect();
    }
}

impl Session {
    /// Whether [`Session::save`] would save it now.
    pub fn is_saveable(&self) -> bool {
        self.core.changing.is_none() && !(self.inbound.is_kept() && self.core.writing.is_some())
    }

    /// Saves the session; changes nothing. Of a [kept](Session::keep) session [`Session::unread`] belongs to it. `Ok(None)` while a change
    /// of the client's memory is in progress, or a kept session is [within a batch](Session::is_within_batch).
    ///
    /// # Errors
    /// A descriptor cannot be duplicated.
    pub fn save(&self, table: &mut Table) -> Result<Option<SavedSession>, Errno> {
        let Self { socket, inbound, core, tally: _ } = self;
        let Core { outbound, counters: _, peer, map_limit, maps, requests, work: _, writing, changing: _, late: _ } =
            core;
        if !self.is_saveable() {
            return Ok(None);
        }
        Ok(Some(SavedSession {
            socket: table.put(socket)?,
            inbound: inbound.save(table)?,
            outbound: outbound.save(table)?,
            peer: *peer,
            map_limit: *map_limit as u64,
            maps: maps.iter().map(|(address, size)| (*address, *size)).collect(),
            requests: requests.save(),
            writing: writing.as_ref().map(Writing::save),
        }))
    }

    /// A session that goes on where another process stopped. Call [`Session::receive`] soon: whole messages may wait in its own
    /// buffer. `None` if the state is impossible, or a descriptor is missing.
    pub fn restore(saved: SavedSession, table: &mut Table) -> Option<Session> {
        let SavedSession { socket, inbound, outbound, peer, map_limit, maps, requests, writing } = saved;
        let map_limit = usize::try_from(map_limit).ok()?.min(MAX_DMA_MAPS);
        if maps.len() > map_limit {
            return None;
        }
        Some(Session {
            socket: OwnedFd::from(table.take(socket)?).into(),
            inbound: Inbound::restore(inbound, table)?,
            core: Core {
                outbound: Outbound::restore(outbound, table)?,
                counters: Counters::default(),
                peer,
                map_limit,
                maps: maps.into_iter().collect(),
                requests: Requests::restore(requests)?,
                work: Work::default(),
                writing: match writing {
                    Some(writing) => Some(Writing::restore(writing)?),
                    None => None,
                },
                changing: None,
                late: Late::default(),
            },
            tally: None,
        })
    }
}
