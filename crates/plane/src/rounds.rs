//! The order in which lanes of waiting frames are served: deficit round-robin in bytes (Shreedhar and Varghese 1995).

use std::collections::VecDeque;

/// A lane's share per round while others wait. A larger packet is sent at once, and later rounds repay it.
const QUANTUM_BYTES: i64 = 16 << 10;

/// A lane's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub lane: u16,
    /// It may send packets until it has sent this many bytes.
    pub bytes: u64,
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Rounds {
    /// Lanes with waiting packets, in the order of service.
    active: VecDeque<u16>,
    /// Bytes that a lane may still send in this round; below zero it sent more. Empty: lanes take turns, whatever they send.
    deficits: Vec<i64>,
}

impl Rounds {
    /// Rounds of this many lanes, which take turns.
    pub fn plain(lanes: usize) -> Self {
        Self { active: VecDeque::with_capacity(lanes), deficits: Vec::new() }
    }

    /// Rounds of this many lanes, which get the same number of bytes.
    pub fn fair(lanes: usize) -> Self {
        Self { active: VecDeque::with_capacity(lanes), deficits: vec![0; lanes] }
    }

    /// The first packet of a lane waits.
    pub fn add(&mut self, lane: u16) {
        self.active.push_back(lane);
    }

    /// The lane that is served next, among those that are `open`. It stays in its place until it is [served](Self::served).
    pub fn pick(&mut self, open: impl Fn(u16) -> bool) -> Option<Grant> {
        let turn = self.active.iter().position(|lane| open(*lane))?;
        self.active.rotate_left(turn);
        if self.active.len() == 1 || self.deficits.is_empty() {
            return Some(Grant { lane: *self.active.front()?, bytes: u64::MAX });
        }
        loop {
            let lane = *self.active.front()?;
            let deficit = self.deficits.get_mut(usize::from(lane))?;
            if *deficit <= 0 {
                *deficit += QUANTUM_BYTES;
            }
            if let Ok(bytes @ 1..) = u64::try_from(*deficit) {
                return Some(Grant { lane, bytes });
            }
            // The lane overdrew its share with a long packet, at most about five turns ago.
            self.active.rotate_left(1);
        }
    }

    /// The picked lane sent this many bytes.
    pub fn served(&mut self, lane: u16, bytes: u64, is_empty: bool) {
        let mut is_spent = true;
        if let Some(deficit) = self.deficits.get_mut(usize::from(lane)) {
            *deficit = deficit.saturating_sub_unsigned(bytes).max(-i64::from(nicety_adapter::PACKET_BYTES));
            is_spent = *deficit <= 0;
            if is_empty {
                *deficit = 0;
            }
        }
        if is_empty {
            self.active.pop_front();
        } else if is_spent {
            self.active.rotate_left(1);
        }
    }

    /// Takes any lane out, with its deficit.
    pub fn pop(&mut self) -> Option<u16> {
        let lane = self.active.pop_front()?;
        if let Some(deficit) = self.deficits.get_mut(usize::from(lane)) {
            *deficit = 0;
        }
        Some(lane)
    }
}
