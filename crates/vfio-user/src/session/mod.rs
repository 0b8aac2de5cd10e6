//! The server's end of one connection (vfio-user.rst, "Client/server interactions").
//!
//! The owner of the event loop drives a session: it calls [`Session::receive`] once whenever the session's descriptor is ready.
//! The session handles whole messages in order of arrival, so that a read follows the posted writes before it, and sends the
//! answers together. It never blocks: not for the rest of a message, for room to answer, or for the reply to its own request.
//! (QEMU answers DMA_READ only after its own request has been answered, so waiting would deadlock.)

mod decline;
mod handle;
mod kept;
mod late;
mod memory;
mod requests;
mod saved;
mod work;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nicety_peer::{Account, PeerFd, Tally};

use crate::codec::version::Capabilities;
use crate::codec::{Command, HEADER_SIZE, Header, MAX_DMA_MAPS, irqs::IrqSet, is_vhost_user, put_u64};
use crate::counters::Counters;
use crate::device::Device;
use crate::error::SessionError;
use crate::wire::{Fill, Inbound, Outbound};
use requests::{Kind, Requests};

pub use decline::decline;
pub use kept::{Batch, Unread};
use late::Late;
use memory::Changing;
pub use requests::{DmaId, DmaRequestError};
pub use saved::SavedSession;
use work::{Work, Writing};

/// The result of [`Session::receive`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Messages handled.
    pub handled: u32,
    /// The work done, in messages. A message that takes longer than a register write counts as several. A call ends with the
    /// message that reaches 256.
    pub work: u32,
    /// Whole messages wait in the session's own buffer, or one is unfinished. Call again after all other sessions had a turn. Do
    /// not wait for the socket, which may stay silent. If [`Session::wants_write`], the messages wait until the peer reads its
    /// replies.
    pub more: bool,
}

/// The server's end of one connection.
#[derive(Debug)]
pub struct Session {
    /// Closes the descriptors that are in flight in it when it is closed: see [`PeerFd`].
    socket: PeerFd,
    inbound: Inbound,
    core: Core,
    /// Counts what is sent, if the session is kept.
    tally: Option<Arc<Tally>>,
}

/// All state except the receive buffer, from which a message borrows while it is handled.
#[derive(Debug)]
struct Core {
    outbound: Outbound,
    counters: Counters,
    /// The capabilities in the client's VERSION message; `None` before it.
    peer: Option<Capabilities>,
    /// Most windows at a time.
    map_limit: usize,
    /// Windows by first address.
    maps: BTreeMap<u64, u64>,
    requests: Requests,
    work: Work,
    /// The unfinished message.
    writing: Option<Writing>,
    /// The memory change in progress.
    changing: Option<Changing>,
    /// Requests that the client may have given up.
    late: Late,
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Session {
    /// A session on a connected UNIX stream socket, blocking or not. The first message must be VERSION.
    pub fn new(socket: OwnedFd) -> Session {
        Session {
            socket: socket.into(),
            inbound: Inbound::new(),
            core: Core {
                outbound: Outbound::default(),
                counters: Counters::default(),
                peer: None,
                map_limit: MAX_DMA_MAPS,
                maps: BTreeMap::new(),
                requests: Requests::default(),
                work: Work::default(),
                writing: None,
                changing: None,
                late: Late::default(),
            },
            tally: None,
        }
    }

    /// The client's descriptors have this account from now on, the connection too.
    pub fn charge_to(&mut self, account: &Arc<Account>) {
        self.socket.charge_to(account);
        self.inbound.account = Some(Arc::clone(account));
    }

    /// Limits the client to `most` windows of memory at a time. Each may cost this process a mapping; a process has 65,530 for
    /// all its sessions (`vm.max_map_count`). Call it before the handshake, which sends the limit. The default is
    /// [`MAX_DMA_MAPS`].
    pub fn limit_dma_maps(&mut self, most: usize) {
        self.core.map_limit = most.min(MAX_DMA_MAPS);
    }

    /// Sends pending bytes, handles received messages, reads the socket once, handles the new messages, and sends the answers.
    /// Never blocks, and does a bounded amount of work: in a flood some messages wait for the next call. After an error the
    /// session is over: call [`Session::disconnect`], then drop it.
    pub fn receive(&mut self, device: &mut dyn Device) -> Result<Progress, SessionError> {
        let progress = self.handle(device)?;
        if !self.is_kept() {
            self.flush()?;
        }
        Ok(progress)
    }

    /// Like [`Session::receive`], but leaves the new answers unsent: send them by [`Session::flush`], or [`Session::finish`] if it is
    /// [kept](Session::keep).
    pub fn handle(&mut self, device: &mut dyn Device) -> Result<Progress, SessionError> {
        self.core.work = Work::default();
        if self.is_kept() {
            self.finish()?;
            if self.wants_write() && !self.is_within_batch() {
                return Ok(Progress::default());
            }
        } else {
            self.flush()?;
        }
        let mut handled = self.handle_waiting(device)?;
        if self.wants_read() && self.inbound.taken().is_none() && !self.core.work.is_enough() {
            match self.inbound.fill(&self.socket, &mut self.core.counters)? {
                Fill::Bytes => handled += self.handle_waiting(device)?,
                Fill::Empty => {}
                Fill::Closed if self.inbound.has_partial() => return Err(SessionError::ClosedWithinMessage),
                Fill::Closed => return Err(SessionError::Closed),
            }
        }
        Ok(Progress {
            handled,
            work: self.core.work.done(),
            more: !self.is_changing() && (self.core.writing.is_some() || self.inbound.has_whole()),
        })
    }

    /// Sends as many pending bytes as the socket takes.
    pub fn flush(&mut self) -> Result<(), SessionError> {
        self.core.outbound.flush(&self.socket, self.tally.as_deref(), &mut self.core.counters)
    }

    /// Whether to wait until the socket is writable (`EPOLLOUT`).
    pub fn wants_write(&self) -> bool {
        self.core.outbound.is_pending()
    }

    /// Whether to wait until the socket is readable (`EPOLLIN`). It is false while the peer leaves its replies unread, and while
    /// a change of its memory is in progress (backpressure).
    pub fn wants_read(&self) -> bool {
        let is_full = if self.is_kept() { self.wants_write() } else { self.core.outbound.is_full() };
        !is_full && !self.is_changing()
    }

    /// Whether a change of the client's memory is in progress. Meanwhile the session handles no message, notices no disconnect
    /// and has no timeout. Call [`Session::receive`] when [`Device::dma_changed`] has a result.
    pub fn is_changing(&self) -> bool {
        self.core.changing.is_some()
    }

    /// Whether a message has arrived in part. The session itself has no timeout: its caller has a clock, and sets one.
    pub fn is_within_message(&self) -> bool {
        self.inbound.is_cut() && !self.is_changing()
    }

    /// Whether all handled messages are finished and answered.
    pub fn is_settled(&self) -> bool {
        self.core.writing.is_none() && !self.is_changing() && !self.wants_write()
    }

    /// Whether versions have been negotiated.
    pub fn is_ready(&self) -> bool {
        self.core.peer.is_some()
    }

    /// The session's counters.
    pub fn counters(&self) -> &Counters {
        &self.core.counters
    }

    /// Number of windows of client memory.
    pub fn dma_maps(&self) -> usize {
        self.core.maps.len()
    }

    /// Requests `length` bytes of the client's memory. [`Device::dma_read_done`] gets the answer in a later [`Session::receive`],
    /// perhaps after many other messages.
    pub fn dma_read(&mut self, address: u64, length: u32) -> Result<DmaId, DmaRequestError> {
        self.request(Kind::Read, address, length, &[])
    }

    /// Asks the client to write `data` into its memory. [`Device::dma_write_done`] gets the answer.
    pub fn dma_write(&mut self, address: u64, data: &[u8]) -> Result<DmaId, DmaRequestError> {
        let length = u32::try_from(data.len()).map_err(|_| DmaRequestError::Length)?;
        self.request(Kind::Write, address, length, data)
    }

    /// Number of the session's own requests in flight.
    pub fn dma_outstanding(&self) -> usize {
        self.core.requests.outstanding()
    }

    /// Removes the client's memory and the eventfds of every interrupt index. The device keeps the rest of its state ("Client
    /// Disconnection").
    pub fn disconnect(&mut self, device: &mut dyn Device) {
        self.core.maps.clear();
        self.core.changing = None;
        // No client is left to answer.
        let _change = device.dma_unmap(None);
        for index in 0..device.info().irqs {
            if device.irq_info(index).is_some_and(|info| info.count > 0) {
                // The client has gone: nobody would receive an error.
                let _ = device.set_irqs(IrqSet::disable(index));
            }
        }
    }

    fn request(&mut self, kind: Kind, address: u64, length: u32, data: &[u8]) -> Result<DmaId, DmaRequestError> {
        let core = &mut self.core;
        let peer = core.peer.as_ref().ok_or(DmaRequestError::NotReady)?;
        if length == 0 || length as usize > peer.transfer_limit() {
            return Err(DmaRequestError::Length);
        }
        if address.checked_add(u64::from(length) - 1).is_none() {
            return Err(DmaRequestError::Length);
        }
        if core.outbound.is_full() {
            return Err(DmaRequestError::Busy);
        }
        let id = core.requests.begin(kind, address, length)?;
        let command = if kind == Kind::Read { Command::DmaRead } else { Command::DmaWrite };
        let header = Header { id: id.0, command: command as u16, size: HEADER_SIZE as u32, flags: 0, error: 0 };
        core.counters.count_sent(command);
        core.outbound.put(header, |out| {
            put_u64(out, address);
            put_u64(out, u64::from(length));
            out.extend_from_slice(data);
        });
        Ok(id)
    }

    fn handle_waiting(&mut self, device: &mut dyn Device) -> Result<u32, SessionError> {
        // A vhost-user message may be shorter than our header, so do not wait for the rest.
        if !self.is_ready() && is_vhost_user(self.inbound.waiting()) {
            return Err(SessionError::VhostUser);
        }
        let mut handled = 0;
        while self.core.settle_change(device) && !self.core.outbound.is_full() && !self.core.work.is_enough() {
            if self.core.writing.is_some() {
                self.core.go_on(device);
                continue;
            }
            self.core.handles(self.inbound.position());
            let outcome = match self.inbound.next() {
                Ok(None) => break,
                Ok(Some(message)) => self.core.handle(message, device),
                Err(error) => Err(error.into()),
            };
            if let Err(error) = outcome {
                // The last answers may tell the peer the error. A failure to send them does not matter.
                let _ = self.core.outbound.flush(&self.socket, None, &mut self.core.counters);
                return Err(error);
            }
            handled += 1;
        }
        Ok(handled)
    }
}
