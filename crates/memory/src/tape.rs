//! A tape of guest memory: the bytes that a device's model reads, which are inputs of it, and a digest of those that it writes.
//!
//! A [`Map`](crate::Map) with a tape ([`Map::taped`](crate::Map::taped)) takes the cold path of every access: the path for pages that may
//! be missing. So a map without a tape pays nothing. A tape takes only what one thread does between [`Tape::record`] or [`Tape::play`]
//! and [`Tape::close`]: payload that another port's thread copies meanwhile is no input of this device.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// See the module's page.
#[derive(Debug, Default)]
pub struct Tape(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The thread whose accesses are taped; `None` while the tape is closed.
    thread: Option<ThreadId>,
    plays: bool,
    /// Bytes read, or bytes to be read.
    bytes: Vec<u8>,
    /// Bytes played.
    at: usize,
    /// More was read than there is.
    is_short: bool,
    written: Digest,
}

/// The accesses of one call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taped {
    /// The bytes that were read, in order.
    pub read: Vec<u8>,
    /// A digest of the bytes that were written, in order.
    pub written: u64,
    /// Whether a call that was played read exactly the bytes of its tape.
    pub is_whole: bool,
}

/// FNV-1a over bytes (draft-eastlake-fnv-17, section 2): finds differences, resists nobody.
#[derive(Clone, Copy, Debug)]
struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    fn add(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    }
}

impl Tape {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, plays: bool, bytes: Vec<u8>) {
        let thread = Some(std::thread::current().id());
        *self.state() = State { thread, plays, bytes, ..State::default() };
    }

    /// Tapes what this thread reads from now on.
    pub fn record(&self) {
        self.open(false, Vec::new());
    }

    /// Lets this thread read these bytes from now on, whatever is in memory.
    pub fn play(&self, bytes: Vec<u8>) {
        self.open(true, bytes);
    }

    /// Ends the call.
    pub fn close(&self) -> Taped {
        let State { plays, bytes, at, is_short, written, .. } = std::mem::take(&mut *self.state());
        Taped { is_whole: !is_short && (!plays || at == bytes.len()), read: bytes, written: written.0 }
    }

    /// Reads into `into`: from the tape if it plays, else by `load`.
    pub(crate) fn read(&self, into: &mut [u8], load: impl FnOnce(&mut [u8])) {
        let mut state = self.state();
        if state.thread != Some(std::thread::current().id()) {
            drop(state);
            return load(into);
        }
        if state.plays {
            let State { bytes, at, is_short, .. } = &mut *state;
            let there = bytes.get(*at..).unwrap_or_default();
            let count = there.len().min(into.len());
            let (found, missing) = into.split_at_mut(count);
            found.copy_from_slice(&there[..count]);
            missing.fill(0);
            *is_short |= !missing.is_empty();
            *at += count;
            return;
        }
        load(into);
        state.bytes.extend_from_slice(into);
    }

    /// Bytes are written.
    pub(crate) fn write(&self, from: &[u8]) {
        let mut state = self.state();
        if state.thread == Some(std::thread::current().id()) {
            state.written.add(from);
        }
    }
}
