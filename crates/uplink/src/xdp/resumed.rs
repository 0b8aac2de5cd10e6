//! A queue whose process was killed: the keeper has held its socket, its memory and the link of its program. The rings say what is whose.
//!
//! ```text
//!   receive ring:   … taken by the killed process, its piece not given back │ waiting │ …
//!                                                                  consumer ┘
//! ```
//!
//! Pieces for received frames come back to the fill ring in the order in which they were taken. So those that the killed process had are
//! the last entries before the consumer index. The frames in them are lost: it may have delivered them.
//!
//! Frames that it has sent may come back in any order. So all of them must have come back before one piece is used again.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::xdp::XdpOptionsFlags;
use rustix::net::{SendFlags, sockopt};

use super::error::os;
use super::open::{self, Parts};
use super::program::{Program, attached_to};
use super::{Line, Lost, Mode, RECEIVE, Rings, TRANSMIT, Xdp, XdpError};
use crate::buffers::Buffers;

/// Time in which the interface sends what the killed process has left.
const SENT: Duration = Duration::from_millis(200);

impl Xdp {
    /// Goes on with a queue of the interface of this name whose process was killed. It takes the rights that [`Xdp::open`] takes.
    ///
    /// # Errors
    /// The program is attached no more; the interface has another MTU, for which the memory is too small; frames of the killed process
    /// were not sent; or these are not what [`Xdp::hand_over`](nicety_adapter::Uplink::hand_over) names. Open the queues anew, once these
    /// descriptors are closed everywhere.
    pub fn resume(name: &str, queue: u16, descriptors: Vec<OwnedFd>) -> Result<Self, XdpError> {
        let wrong = || XdpError::State(name.to_owned());
        let [socket, memory_file, link]: [OwnedFd; 3] = descriptors.try_into().map_err(|_| wrong())?;
        let (index, mtu, least) = open::look(name)?;
        if attached_to(link.as_fd()).map_err(os(name, "asking for a link"))? != Some(index) {
            return Err(wrong());
        }
        let bytes = rustix::fs::fstat(&memory_file).map_err(|error| os(name, "memory")(error.into()))?.st_size;
        let piece = open::PIECES.into_iter().find(|piece| i64::from(*piece) * i64::from(RECEIVE + TRANSMIT) == bytes);
        let piece = piece.filter(|piece| *piece >= least).ok_or_else(wrong)?;
        let options = sockopt::xdp_options(&socket).map_err(|error| os(name, "XDP_OPTIONS")(error.into()))?;
        let program = Program::load(1).map_err(os(name, "an XDP program"))?;
        let by_driver = program.is_run_by_driver(index).map_err(os(name, "asking for an XDP program"))?;
        let mode = Mode { zero_copy: options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY), by_driver };
        let copy = memory_file.try_clone().map_err(os(name, "duplicating a descriptor"))?;
        let memory = Buffers::of_file(copy, (RECEIVE + TRANSMIT) * piece)?;
        let rings = Rings::map(&socket).map_err(os(name, "mapping AF_XDP rings"))?;
        let (name, longest) = (name.to_owned(), open::longest(mtu));
        let mut this =
            Self::with(Parts { name, queue, index, piece, longest, socket, memory_file, memory, rings, link, mode })?;
        let is_whole = this.find_lent() && this.all_sent();
        if !is_whole {
            return Err(XdpError::State(this.name));
        }
        let lost = sockopt::xdp_statistics(&this.socket).ok();
        this.lost = lost.map_or_else(Lost::default, Lost::of);
        // That it is up is no news: the killed process has said so.
        this.logged = (this.line == Line::Up).then_some(Line::Up);
        Ok(this)
    }

    /// Finds the pieces of received frames that the killed process had. False if the rings make no sense.
    fn find_lent(&mut self) -> bool {
        let (given, _) = self.rings.fill.indices();
        let (_, taken) = self.rings.receive.indices();
        // All pieces were given before the first one was taken.
        let count = taken.wrapping_add(RECEIVE).wrapping_sub(given);
        if count > RECEIVE {
            return false;
        }
        let pieces = (0..count).map(|at| self.rings.receive.past(taken.wrapping_sub(count).wrapping_add(at)).addr);
        self.lent = pieces.map(|address| address - address % u64::from(self.piece)).collect();
        let end = u64::from(RECEIVE * self.piece);
        self.lent.iter().all(|address| *address < end)
    }

    /// Waits until all frames of the killed process have left. False if they do not in time.
    fn all_sent(&mut self) -> bool {
        self.free.clear();
        let end = Instant::now() + SENT;
        loop {
            self.reap();
            let ((sent, _), (_, back)) = (self.rings.transmit.indices(), self.rings.completion.indices());
            if sent == back {
                self.free = open::free(self.piece);
                return true;
            }
            if Instant::now() > end {
                return false;
            }
            if self.rings.transmit.waiting() > 0 {
                // An error shows in time.
                let _ = rustix::net::send(&self.socket, &[], SendFlags::DONTWAIT);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
