//! A session that outlives its process: another process that holds the connection goes on with it, even if this one is killed at any
//! instruction.
//!
//! ```text
//! messages are peeked (MSG_PEEK) ─► handled ─► the owner keeps their effect, and the [Batch] ─► answers are sent ─► messages are consumed
//! ```
//! So a message that the next process finds in the socket was not handled, or belongs to the batch that was kept last. Of that batch
//! the kernel has counted what was sent of the answers, and they lie beside that count ([`Tally`]): the next process sends the rest, so
//! that the client gets each answer once.
//!
//! Some answers do not lie there: those with descriptors, and large ones. QEMU ignores an answer that it does not wait for, but not its
//! payload (hw/vfio-user/proxy.c, vfio_user_recv_one: "unexpected reply" reads only a header). So where it is not known that they were
//! sent, the next process answers by a header alone. If QEMU waits for it, it takes that as success; the data of a read is then 0.

use std::sync::Arc;

use nicety_peer::{Table, Tally, peek_from};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use serde::{Deserialize, Serialize};

use super::saved::SavedSession;
use super::{Core, Session};
use crate::codec::HEADER_SIZE;
use crate::error::SessionError;
use crate::wire::Fill;

/// Messages that were handled, and may be in the socket still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The header of the first one. Its number distinguishes it from later ones.
    pub first: [u8; HEADER_SIZE],
    /// Bytes of all of them.
    pub len: u32,
}

/// Messages of a saved session that are in the socket still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unread {
    /// The first of them were handled: the client has not read their answers.
    pub batch: Option<Batch>,
}

impl Session {
    /// From now on messages stay in the socket until [`Session::finish`], and what is sent is counted, if there is a tally for it. False
    /// if some messages were read already: then nothing changes.
    pub fn keep(&mut self, tally: Option<Arc<Tally>>) -> bool {
        let is_kept = self.inbound.keep();
        if is_kept {
            // Another process may have been killed while it peeked. Where the setting does not exist there is nothing to undo.
            let _without = peek_from(&self.socket, None);
            self.tally = tally;
        }
        is_kept
    }

    /// Whether messages stay in the socket until [`Session::finish`].
    pub fn is_kept(&self) -> bool {
        self.inbound.is_kept()
    }

    /// Whether the last message that was handled is not done: it changes the client's memory, or has more writes than one call may
    /// make. Until it is, its [batch](Session::batch) is neither kept nor consumed: the next process would handle it from its start.
    pub fn is_within_batch(&self) -> bool {
        self.is_changing() || self.core.writing.is_some()
    }

    /// The messages that [`Session::receive`] has handled and not answered. `None` if there are none, or the last of them is not
    /// [done](Session::is_within_batch).
    pub fn batch(&self) -> Option<Batch> {
        let (first, len) = self.inbound.taken().filter(|_| !self.is_within_batch())?;
        Some(Batch { first, len: u32::try_from(len).unwrap_or(u32::MAX) })
    }

    /// Puts the answers to the messages of this batch where the next process finds them. Call it before the batch itself is kept.
    pub fn keep_answers(&self, batch: &Batch) {
        if let Some(tally) = &self.tally {
            let (unsent, is_whole) = self.core.outbound.unsent();
            tally.begin(&batch.first, unsent, is_whole);
        }
    }

    /// Sends the answers and consumes the messages of the [batch](Session::batch). Call it after each [`Session::receive`]. Does
    /// nothing [within a batch](Session::is_within_batch). If the client does not read its answers, the rest is done by the next call. If
    /// a message with descriptors waits behind them, they are consumed with that one: the batch goes on.
    ///
    /// # Errors
    /// The session is over, as after an error of [`Session::receive`].
    pub fn finish(&mut self) -> Result<(), SessionError> {
        if self.is_within_batch() {
            return Ok(());
        }
        self.flush()?;
        if self.wants_write() || self.inbound.has_descriptors() {
            return Ok(());
        }
        self.inbound.consume(&self.socket, &mut self.core.counters)
    }

    /// The messages of a session that is [saved](Session::save) now and are in the socket still. `None` if they do not stay there.
    pub fn unread(&self) -> Option<Unread> {
        self.is_kept().then(|| Unread { batch: self.batch() })
    }

    /// Goes on with a session that was saved with these messages in the socket. Call it after [`Session::restore`], before
    /// [`Session::keep`].
    pub fn leave_unread(&mut self, unread: Unread) {
        self.inbound.leave(unread.batch.map(|batch| (batch.first, batch.len as usize)));
    }

    /// Saves what does not change with every message: see [`Session::save`]. Messages and answers in progress are not in it, but in the
    /// [`Batch`].
    ///
    /// # Errors
    /// A descriptor cannot be duplicated.
    pub fn save_kept(&self, table: &mut Table) -> Result<SavedSession, Errno> {
        let Self { socket, inbound, core, tally: _ } = self;
        let Core { peer, map_limit, maps, requests, .. } = core;
        Ok(SavedSession {
            socket: table.put_as(socket, socket.serial())?,
            inbound: inbound.save_kept(),
            outbound: Default::default(),
            peer: *peer,
            map_limit: *map_limit as u64,
            maps: maps.iter().map(|(address, size)| (*address, *size)).collect(),
            requests: requests.save(),
            writing: None,
        })
    }

    /// Passes over the messages of this batch, if they are in the socket still, and sends the rest of their answers. Where it is not known
    /// what was sent it answers each by a header, and returns the number of these. Call it on a session that was
    /// [kept](Session::keep), before it receives.
    ///
    /// # Errors
    /// The session is over.
    pub fn pass_over(&mut self, batch: Batch) -> Result<u32, SessionError> {
        // The rest of another batch is still to be sent: this one was consumed before.
        if self.inbound.taken().is_some() {
            return Ok(0);
        }
        let mut first = [0; HEADER_SIZE];
        let peeked = recv(&self.socket, &mut first, RecvFlags::PEEK | RecvFlags::DONTWAIT);
        if !peeked.is_ok_and(|(count, _)| count == HEADER_SIZE) || first != batch.first {
            return Ok(0);
        }
        let (mut left, mut answers) = (batch.len as usize, 0);
        let rest = self.tally.as_ref().and_then(|tally| tally.left(&batch.first));
        self.core.outbound.put_rest(rest.as_deref().unwrap_or_default());
        if self.is_late() {
            self.core.cut_answers();
        }
        while left > 0 {
            if !self.inbound.has_whole() && self.inbound.fill(&self.socket, &mut self.core.counters)? != Fill::Bytes {
                return Err(SessionError::ClosedWithinMessage);
            }
            while left > 0
                && let Some(message) = self.inbound.next()?
            {
                left = left.saturating_sub(message.header.size as usize);
                let header = message.header;
                if rest.is_none() && !header.is_reply() && !header.no_reply() {
                    answers += 1;
                    self.core.acknowledge(&header);
                }
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
