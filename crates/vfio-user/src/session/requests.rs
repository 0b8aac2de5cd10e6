//! The server's own requests in flight, DMA_READ and DMA_WRITE (vfio-user.rst, "VFIO_USER_DMA_READ").

use serde::{Deserialize, Serialize};

use crate::codec::{Command, Fields, Header, Malformed};

/// Most requests in flight.
const MAX_OUTSTANDING: usize = 64;

/// Identifies a request of [`crate::Session::dma_read`] or [`crate::Session::dma_write`] until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DmaId(pub(crate) u16);

/// Reasons why a request was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DmaRequestError {
    /// Versions have not been negotiated.
    #[error("the client has not sent its VERSION yet")]
    NotReady,
    /// No bytes, more than the client accepts, or beyond the last address.
    #[error("the client does not take a transfer of this length at this address")]
    Length,
    /// Too many requests are in flight. Try again after the next answer.
    #[error("too many requests to the client are under way")]
    Busy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub id: u16,
    pub kind: Kind,
    address: u64,
    length: u32,
}

/// Saved requests: number, whether it is a write, address and length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedRequests {
    next: u16,
    list: Vec<(u16, bool, u64, u32)>,
}

#[derive(Debug, Default)]
pub(super) struct Requests {
    next: u16,
    list: Vec<Request>,
}

impl Requests {
    /// The next number, and the requests in flight.
    pub fn save(&self) -> SavedRequests {
        let one = |request: &Request| (request.id, request.kind == Kind::Write, request.address, request.length);
        SavedRequests { next: self.next, list: self.list.iter().map(one).collect() }
    }

    /// `None` if there are more than there can be.
    pub fn restore(saved: SavedRequests) -> Option<Self> {
        let kind = |is_write| if is_write { Kind::Write } else { Kind::Read };
        let one = |(id, is_write, address, length)| Request { id, kind: kind(is_write), address, length };
        let list: Vec<Request> = saved.list.into_iter().map(one).collect();
        (list.len() <= MAX_OUTSTANDING).then_some(Self { next: saved.next, list })
    }

    pub fn outstanding(&self) -> usize {
        self.list.len()
    }

    pub fn begin(&mut self, kind: Kind, address: u64, length: u32) -> Result<DmaId, DmaRequestError> {
        if self.list.len() >= MAX_OUTSTANDING {
            return Err(DmaRequestError::Busy);
        }
        while self.list.iter().any(|r| r.id == self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        self.list.push(Request { id, kind, address, length });
        Ok(DmaId(id))
    }

    /// Removes and returns the request that `reply` answers.
    pub fn finish(&mut self, reply: &Header) -> Option<Request> {
        let command = |kind: Kind| if kind == Kind::Read { Command::DmaRead } else { Command::DmaWrite } as u16;
        let at = self.list.iter().position(|r| r.id == reply.id && command(r.kind) == reply.command)?;
        Some(self.list.remove(at))
    }
}

impl Request {
    /// The data of a successful answer to a read. An answer to a write has none.
    pub fn data<'a>(&self, payload: &'a [u8]) -> Result<&'a [u8], Malformed> {
        let mut fields = Fields(payload);
        let address = fields.u64()?;
        if address != self.address {
            return Err(Malformed("it names another address"));
        }
        match self.kind {
            // QEMU and libvfio-user answer a write with the bare header, or with the address and a count.
            Kind::Write => Ok(&[]),
            Kind::Read => {
                let count = fields.u64()?;
                if count != u64::from(self.length) || fields.rest().len() != self.length as usize {
                    return Err(Malformed("it has another length than was asked for"));
                }
                Ok(fields.rest())
            }
        }
    }
}
