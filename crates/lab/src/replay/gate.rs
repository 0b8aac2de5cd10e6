//! Frames that wait until the twin has the inputs that they follow from.
//!
//! The gate follows [`nicety_protect::Action`]s, as the gate of a VM's port does (`crates/plane/src/gate.rs`). It cannot be that gate. A release
//! gives the port a turn, and a replayed guest has its port inside. A release is no input of the guest, so a replay would lack that turn.

use std::collections::VecDeque;

use nicety_adapter::Time;
use nicety_plane::GateMode;

/// See the module's page.
#[derive(Clone, Debug)]
pub struct Gate {
    mode: GateMode,
    /// Each with the epoch that it is of.
    frames: VecDeque<(u64, Vec<u8>)>,
    bytes: usize,
    /// Epochs up to this one leave, until then.
    released: (u64, Time),
}

impl Gate {
    /// A gate without frames.
    pub fn new(mode: GateMode) -> Self {
        Self { mode, frames: VecDeque::new(), bytes: 0, released: (0, Time::ZERO) }
    }

    /// From now on this happens to frames. A gate that is shut takes back what was released.
    pub fn set_mode(&mut self, mode: GateMode) {
        (self.mode, self.released) = (mode, (0, Time::ZERO));
        if mode == GateMode::Mute {
            (self.frames, self.bytes) = (VecDeque::new(), 0);
        }
    }

    /// An epoch was closed.
    pub fn close(&mut self) {
        if self.mode == GateMode::Armed {
            self.mode = GateMode::Shut;
        }
    }

    /// Epochs up to this one leave, until then.
    pub fn release(&mut self, epoch: u64, until: Time) {
        self.released = (epoch, until);
    }

    /// Adds frames of an epoch. Those of a twin are dropped.
    pub fn push(&mut self, epoch: u64, frames: impl IntoIterator<Item = Vec<u8>>) {
        if self.mode == GateMode::Mute {
            return;
        }
        for frame in frames {
            self.bytes += frame.len();
            self.frames.push_back((epoch, frame));
        }
    }

    /// The next frame that leaves at this time.
    pub fn pop(&mut self, now: Time) -> Option<Vec<u8>> {
        let limit = if self.is_open(now) { self.limit() } else { 0 };
        let (_, frame) = self.frames.pop_front_if(|(epoch, _)| *epoch <= limit)?;
        self.bytes -= frame.len();
        Some(frame)
    }

    fn limit(&self) -> u64 {
        match self.mode {
            GateMode::Open | GateMode::Armed => u64::MAX,
            GateMode::Shut => self.released.0,
            GateMode::Mute => 0,
        }
    }

    /// Whether any frame may leave at this time.
    pub fn is_open(&self, now: Time) -> bool {
        match self.mode {
            GateMode::Open | GateMode::Armed => true,
            GateMode::Shut => now < self.released.1,
            GateMode::Mute => false,
        }
    }

    /// The epoch of the last frame that waits.
    pub fn last(&self) -> Option<u64> {
        self.frames.back().map(|(epoch, _)| *epoch)
    }

    /// Frames and bytes that wait.
    pub fn waiting(&self) -> (usize, usize) {
        (self.frames.len(), self.bytes)
    }
}
