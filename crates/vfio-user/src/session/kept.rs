//! A session that outlives its process: another process that holds the connection goes on with it, even if this one is killed at any
//! instruction.
//!
//! ```text
//! messages are peeked (MSG_PEEK) ─► handled ─► the owner keeps their effect, and the [Batch] ─► answers are sent ─► messages are consumed
//! ```
//! So a message that the next process finds in the socket was not handled, or belongs to the batch that was kept last. Of that batch
//! nobody knows whether the answers were sent. QEMU ignores the rest of an answer that it does not wait for, but not its payload
//! (hw/vfio-user/proxy.c, vfio_user_recv_one: "unexpected reply" reads only a header). So the next process answers each of its commands
//! by a header alone. If QEMU waits for it, it takes that as success; the data of a read is then 0.

use nicety_peer::Table;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use serde::{Deserialize, Serialize};

use super::saved::SavedSession;
use super::{Core, Session};
use crate::SessionError;
use crate::codec::HEADER_SIZE;
use crate::wire::Fill;

/// Messages that were handled, and may be in the socket still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The header of the first one. Its number distinguishes it from later ones.
    pub first: [u8; HEADER_SIZE],
    /// Bytes of all of them.
    pub len: u32,
}

impl Session {
    /// From now on messages stay in the socket until [`Session::finish`]. False if some were read already: then nothing changes.
    pub fn keep(&mut self) -> bool {
        self.inbound.keep()
    }

    /// Whether messages stay in the socket until [`Session::finish`].
    pub fn is_kept(&self) -> bool {
        self.inbound.is_kept()
    }

    /// The messages that [`Session::receive`] has handled and not answered. `None` if there are none, or a change of the client's memory
    /// is in progress.
    pub fn batch(&self) -> Option<Batch> {
        let (first, len) = self.inbound.taken().filter(|_| !self.is_changing())?;
        Some(Batch { first, len: u32::try_from(len).unwrap_or(u32::MAX) })
    }

    /// Sends the answers and consumes the messages of the [batch](Session::batch). Call it after each [`Session::receive`]. Does
    /// nothing while a change is in progress. If the client does not read its answers, the rest is done by the next call.
    ///
    /// # Errors
    /// The session is over, as after an error of [`Session::receive`].
    pub fn finish(&mut self) -> Result<(), SessionError> {
        if self.is_changing() {
            return Ok(());
        }
        self.flush()?;
        if self.wants_write() {
            return Ok(());
        }
        self.inbound.consume(&self.socket, &mut self.core.counters)
    }

    /// Saves what does not change with every message: see [`Session::save`]. Messages and answers in progress are not in it, but in the
    /// [`Batch`].
    ///
    /// # Errors
    /// A descriptor cannot be duplicated.
    pub fn save_kept(&self, table: &mut Table) -> Result<SavedSession, Errno> {
        let Self { socket, inbound, core } = self;
        let Core { peer, map_limit, maps, requests, .. } = core;
        Ok(SavedSession {
            socket: table.put(socket)?,
            inbound: inbound.save_kept(),
            outbound: Default::default(),
            peer: *peer,
            map_limit: *map_limit as u64,
            maps: maps.iter().map(|(address, size)| (*address, *size)).collect(),
            requests: requests.save(),
            writing: None,
        })
    }

    /// Passes over the messages of this batch, if they are in the socket still: answers each by a header. Returns the number of answers.
    /// Call it on a session that was [kept](Session::keep), before it receives.
    ///
    /// # Errors
    /// The session is over.
    pub fn pass_over(&mut self, batch: Batch) -> Result<u32, SessionError> {
        let mut first = [0; HEADER_SIZE];
        let peeked = recv(&self.socket, &mut first, RecvFlags::PEEK | RecvFlags::DONTWAIT);
        if !peeked.is_ok_and(|(count, _)| count == HEADER_SIZE) || first != batch.first {
            return Ok(0);
        }
        let (mut left, mut answers) = (batch.len as usize, 0);
        while left > 0 {
            if self.inbound.fill(&self.socket, &mut self.core.counters)? != Fill::Bytes {
                return Err(SessionError::ClosedWithinMessage);
            }
            while left > 0
                && let Some(message) = self.inbound.next()?
            {
                left = left.saturating_sub(message.header.size as usize);
                let header = message.header;
                if !header.is_reply() && !header.no_reply() {
                    answers += 1;
                    self.core.acknowledge(&header);
                }
            }
            if self.inbound.taken().is_none() {
                return Err(SessionError::ClosedWithinMessage);
            }
            self.finish()?;
        }
        Ok(answers)
    }

    /// Whether answers wait for [`Session::finish`].
    pub fn owes_answers(&self) -> bool {
        self.wants_write()
    }
}
