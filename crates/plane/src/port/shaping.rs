//! Token buckets of a guest's port, for both directions.

use nicety_adapter::{Counters, SavedBucket, Shape, Shaper, Time};

/// The tokens of an average's bucket and of a peak's.
pub type SavedTokens = (SavedBucket, Option<SavedBucket>);

/// The limits of frames from a guest, and of those for it.
#[derive(Default)]
pub(super) struct Shaping {
    pub transmit: Option<Shaper>,
    pub receive: Option<Shaper>,
    /// Time of the next tokens for frames that wait. `None` while nothing waits.
    at: Option<Time>,
    /// Frames from its guest, and frames for it, wait for tokens; this wait is counted up to here.
    throttled_since: [Option<Time>; 2],
}

/// Bytes for which there are tokens: at least one.
#[inline]
fn tokens(shaper: &Option<Shaper>, now: Time) -> u64 {
    shaper.as_ref().map_or(u64::MAX, |shaper| shaper.bytes(now).max(1))
}

/// The time of the next tokens, if there are none now.
fn unready(shaper: &Option<Shaper>, now: Time) -> Option<Time> {
    shaper.as_ref().filter(|shaper| !shaper.ready(now)).map(|shaper| shaper.ready_at(now))
}

#[inline]
fn charge(shaper: &mut Option<Shaper>, bytes: u64, now: Time) {
    if let Some(shaper) = shaper {
        shaper.charge(bytes, now);
    }
}

impl Shaping {
    /// Whether there are tokens for frames from the guest.
    #[inline]
    pub fn may_send(&self, now: Time) -> bool {
        self.transmit.as_ref().is_none_or(|shaper| shaper.ready(now))
    }

    /// Whether there are tokens for frames to the guest.
    #[inline]
    pub fn may_receive(&self, now: Time) -> bool {
        self.receive.as_ref().is_none_or(|shaper| shaper.ready(now))
    }

    /// The time from which the guest may send again, if it may not now.
    pub fn sends_at(&self, now: Time) -> Option<Time> {
        unready(&self.transmit, now)
    }

    #[inline]
    pub fn transmit_tokens(&self, now: Time) -> u64 {
        tokens(&self.transmit, now)
    }

    #[inline]
    pub fn receive_tokens(&self, now: Time) -> u64 {
        tokens(&self.receive, now)
    }

    #[inline]
    pub fn charge_transmit(&mut self, bytes: u64, now: Time) {
        charge(&mut self.transmit, bytes, now);
    }

    #[inline]
    pub fn charge_receive(&mut self, bytes: u64, now: Time) {
        charge(&mut self.receive, bytes, now);
    }

    /// Sets the shapes. An unchanged token bucket keeps its tokens; a new one is full.
    pub fn set(&mut self, transmit: Option<Shape>, receive: Option<Shape>) {
        for (shaper, shape) in [(&mut self.transmit, transmit), (&mut self.receive, receive)] {
            if shaper.as_ref().map(Shaper::shape) != shape {
                *shaper = shape.map(Shaper::new);
            }
        }
        // Frames that waited for tokens of the old shapes may go now, or need a new wake-up time.
        self.at = None;
    }

    pub fn save(&self) -> [Option<SavedTokens>; 2] {
        [&self.transmit, &self.receive].map(|shaper| shaper.as_ref().map(Shaper::save))
    }

    /// Goes on with saved tokens.
    pub fn restore(&mut self, saved: [Option<SavedTokens>; 2]) {
        for (shaper, saved) in [&mut self.transmit, &mut self.receive].into_iter().zip(saved) {
            if let (Some(shaper), Some(saved)) = (shaper, saved) {
                shaper.restore(saved);
            }
        }
    }

    /// The time until which frames waited is over.
    #[inline]
    pub fn pass(&mut self, now: Time) {
        let _due = self.at.take_if(|at| *at <= now);
    }

    /// The time of a turn that is to be asked for, if frames from the guest, or for it, wait for tokens.
    #[inline]
    pub fn asks_at(&mut self, sends: bool, receives: bool, counters: &mut Counters, now: Time) -> Option<Time> {
        let sends = if sends { unready(&self.transmit, now) } else { None };
        let receives = if receives { unready(&self.receive, now) } else { None };
        self.count_throttled([sends.is_some(), receives.is_some()], counters, now);
        let at = sends.into_iter().chain(receives).min()?;
        if self.at.is_some_and(|asked| at >= asked && asked > now) {
            return None;
        }
        self.at = Some(at);
        Some(at)
    }

    /// Counts the wait for tokens up to now. `waits`: frames from its guest, and frames for it, wait from now on.
    fn count_throttled(&mut self, waits: [bool; 2], counters: &mut Counters, now: Time) {
        let sums = [&mut counters.transmit_throttled_ns, &mut counters.receive_throttled_ns];
        for ((since, sum), waits) in self.throttled_since.iter_mut().zip(sums).zip(waits) {
            if let Some(at) = since.take() {
                *sum += now.0.saturating_sub(at.0);
            }
            *since = waits.then_some(now);
        }
    }
}
