//! Output commit: frames that wait until the survivor would know them.

use std::collections::VecDeque;

/// A bounded queue of frames, each with the number of calls that must be known before it may leave. They leave in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gate {
    frames: VecDeque<(u64, Vec<u8>)>,
    bytes: usize,
    limit: usize,
}

impl Gate {
    /// A gate that is full at `limit` bytes. What one call adds may exceed it: a full gate stops calls.
    pub fn new(limit: usize) -> Self {
        Self { frames: VecDeque::new(), bytes: 0, limit }
    }

    /// Adds frames that follow from the first `calls` calls.
    pub fn push(&mut self, calls: u64, frames: impl IntoIterator<Item = Vec<u8>>) {
        for frame in frames {
            self.bytes += frame.len();
            self.frames.push_back((calls, frame));
        }
    }

    /// The next frame that may leave when the first `calls` calls are known.
    pub fn pop(&mut self, calls: u64) -> Option<(u64, Vec<u8>)> {
        let (needs, frame) = self.frames.pop_front_if(|(needs, _)| *needs <= calls)?;
        self.bytes -= frame.len();
        Some((needs, frame))
    }

    /// The number of calls that the first frame needs.
    pub fn first(&self) -> Option<u64> {
        self.frames.front().map(|(needs, _)| *needs)
    }

    /// The number of calls that the last frame needs.
    pub fn last(&self) -> Option<u64> {
        self.frames.back().map(|(needs, _)| *needs)
    }

    /// Whether the guest must not be called until frames have left (back-pressure).
    pub fn is_full(&self) -> bool {
        self.bytes >= self.limit
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Frames that wait.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}
