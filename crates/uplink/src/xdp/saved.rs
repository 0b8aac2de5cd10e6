//! A queue of an interface that goes on in another process: its socket, its memory and the link of its program are the same. The rings
//! are the socket's, and their indices lie in them.

use std::os::fd::OwnedFd;

use nicety_adapter::snapshot::{Nothing, RestoreError, Version, decode, encode};
use serde::{Deserialize, Serialize};

use super::error::os;
use super::open::Parts;
use super::{Line, Lost, Mode, RECEIVE, Rings, TRANSMIT, Xdp, XdpError};
use crate::buffers::Buffers;

pub(super) const KIND: &str = "nicety-xdp";

/// The state of a queue that its socket does not carry to another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedXdp {
    queue: u16,
    index: u32,
    piece: u32,
    longest: u32,
    mode: Mode,
    line: Line,
    /// Addresses of pieces that are ours: lent to a batch, and free.
    lent: Vec<u64>,
    free: Vec<u64>,
    lost: Lost,
}

impl Version for SavedXdp {
    const NUMBER: u16 = 1;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

impl SavedXdp {
    /// Whether the numbers are such as [`Xdp::save`] writes.
    fn is_valid(&self) -> bool {
        let is_piece = |address: &u64, from: u32, most: u32| {
            let piece = u64::from(self.piece);
            address.is_multiple_of(piece) && (from.into()..most.into()).contains(&(address / piece))
        };
        matches!(self.piece, 2048 | 4096)
            && self.longest <= self.piece
            && self.lent.len() <= RECEIVE as usize
            && self.free.len() <= TRANSMIT as usize
            && self.lent.iter().all(|address| is_piece(address, 0, RECEIVE))
            && self.free.iter().all(|address| is_piece(address, RECEIVE, RECEIVE + TRANSMIT))
    }
}

impl Xdp {
    pub(super) fn save(&self) -> Vec<u8> {
        let Self { queue, index, piece, longest, mode, line, lent, free, lost, .. } = self;
        let saved = SavedXdp {
            queue: *queue,
            index: *index,
            piece: *piece,
            longest: *longest,
            mode: *mode,
            line: *line,
            lent: lent.clone(),
            free: free.clone(),
            lost: *lost,
        };
        encode(KIND, SavedXdp::NUMBER, &saved)
    }

    /// Goes on with a queue of the interface of this name that another process has opened. It touches no ring before its first turn.
    ///
    /// # Errors
    /// The state is damaged or another version's, or descriptors are missing.
    pub fn go_on(name: &str, state: &[u8], descriptors: Vec<OwnedFd>) -> Result<Self, XdpError> {
        let wrong = || XdpError::State(name.to_owned());
        let saved: SavedXdp = decode(KIND, state).ok().filter(SavedXdp::is_valid).ok_or_else(wrong)?;
        let SavedXdp { queue, index, piece, longest, mode, line, lent, free, lost } = saved;
        let [socket, memory_file, link]: [OwnedFd; 3] = descriptors.try_into().map_err(|_| wrong())?;
        let copy = memory_file.try_clone().map_err(os(name, "duplicating a descriptor"))?;
        let memory = Buffers::of_file(copy, (RECEIVE + TRANSMIT) * piece)?;
        let rings = Rings::map(&socket).map_err(os(name, "mapping AF_XDP rings"))?;
        let name = name.to_owned();
        let parts = Parts { name, queue, index, piece, longest, socket, memory_file, memory, rings, link, mode };
        let mut this = Self::with(parts)?;
        if line == Line::Gone {
            this.lose();
        }
        this.lent.extend(lent);
        (this.free, this.lost, this.logged) = (free, lost, Some(this.line));
        Ok(this)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_queue_is_read_by_each_later_version() {
        let saved = SavedXdp {
            queue: 1,
            index: 7,
            piece: 2048,
            longest: 1522,
            mode: Mode { zero_copy: false, by_driver: true },
            line: Line::Down,
            lent: vec![0, 2048],
            free: vec![2048 * 2048],
            lost: Lost { arriving: 3, leaving: 4 },
        };
        crate::handover::held(KIND, &saved);
        assert!(saved.is_valid());
        let wrong = |change: fn(&mut SavedXdp)| {
            let mut wrong = saved.clone();
            change(&mut wrong);
            !wrong.is_valid()
        };
        assert!(wrong(|saved| saved.piece = 8192) && wrong(|saved| saved.longest = 2049));
        assert!(wrong(|saved| saved.free[0] = 0) && wrong(|saved| saved.lent[0] = 100));
        assert!(wrong(|saved| saved.free[0] = 2048 * 3072) && wrong(|saved| saved.lent[0] = 2048 * 2048));
    }
}
