//! Tells the sender of a flow early that its frames wait too long: CoDel (RFC 8289), with a state for each flow.
//!
//! A frame is judged when it comes, by how long the oldest frame of its lane has waited. So nothing in a lane is removed, and a frame is
//! marked before it is copied. Other flows make the lane long, too. A flow of which no frame waits there is not the cause, and is not told:
//! RFC 8289 spares a queue of at most one packet (section 4.4).

/// A wait up to this long is no congestion (RFC 8289, section 4.4: 5 ms).
const TARGET_NS: u64 = 5_000_000;
/// A longer wait must last for this long: a usual round trip (RFC 8289, section 4.3: 100 ms).
const INTERVAL_NS: u64 = 100_000_000;

/// The state of one flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Codel {
    /// When its frames will have waited too long for an interval; 0 while they do not.
    above_until: u64,
    /// The next frame to signal at, while it signals.
    next: u64,
    /// When its last frame came.
    seen: u64,
    /// Signals since it began.
    count: u32,
    signals: bool,
}

impl Codel {
    /// Whether to signal by this frame: to mark it, or to drop it. `waits_ns`: how long frames of its lane wait now.
    pub fn signals(&mut self, waits_ns: u64, now_ns: u64) -> bool {
        let silent_ns = now_ns.saturating_sub(std::mem::replace(&mut self.seen, now_ns));
        if waits_ns < TARGET_NS {
            (self.above_until, self.signals) = (0, false);
            return false;
        }
        // No frame of this flow waits, or none came for an interval: it begins anew.
        if silent_ns >= waits_ns.min(INTERVAL_NS) {
            (self.above_until, self.signals) = (0, false);
        }
        if self.above_until == 0 {
            self.above_until = now_ns.saturating_add(INTERVAL_NS);
            return false;
        }
        if !self.signals {
            if now_ns < self.above_until {
                return false;
            }
            self.signals = true;
            // It begins where it ended, if that is not long ago (RFC 8289, section 4.2).
            let is_recent = now_ns.saturating_sub(self.next) < 16 * INTERVAL_NS;
            self.count = if is_recent && self.count > 2 { self.count - 2 } else { 1 };
            self.next = now_ns.saturating_add(self.gap());
            return true;
        }
        if now_ns < self.next {
            return false;
        }
        self.count = self.count.saturating_add(1);
        self.next = self.next.saturating_add(self.gap()).max(now_ns);
        true
    }

    /// Time between two signals: INTERVAL / √count.
    fn gap(&self) -> u64 {
        let root = (u64::from(self.count) << 16).isqrt();
        (INTERVAL_NS << 8) / root.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_short_wait_and_a_short_burst_are_no_congestion() {
        let mut codel = Codel::default();
        assert!((0..10_000).all(|ms| !codel.signals(4 * MS, ms * MS)));
        // 90 ms of a longer wait, again and again.
        assert!((0..10_000).all(|ms| !codel.signals(if ms % 100 < 90 { 50 * MS } else { MS }, ms * MS)));
    }

    #[test]
    fn a_flow_of_which_no_other_frame_waits_is_spared_beside_a_standing_queue_of_others() {
        const WAITS_MS: u64 = 20;
        // One frame a second, such as a ping; and as often as its last frame has just left the lane.
        for each_ms in [1000, 100, 60, WAITS_MS] {
            let mut codel = Codel::default();
            let told = (1..1000).filter(|frame| codel.signals(WAITS_MS * MS, frame * each_ms * MS)).count();
            assert_eq!(told, 0, "a frame each {each_ms} ms");
        }
        // Frames of it do wait, and it sends on.
        let mut codel = Codel::default();
        assert!((1..1000).any(|frame| codel.signals(WAITS_MS * MS, frame * (WAITS_MS - 1) * MS)));
        // In a lane that stands for seconds, a flow with less than a frame in an interval is spared.
        let mut codel = Codel::default();
        assert!((1..100).all(|second| !codel.signals(5000 * MS, second * 1000 * MS)));
    }

    #[test]
    fn a_standing_queue_is_signalled_more_often_until_it_is_gone() {
        let mut codel = Codel::default();
        let signals: Vec<u64> = (1..2000).filter(|ms| codel.signals(50 * MS, ms * MS)).collect();
        // RFC 8289, section 3.3: the gaps shrink with the root of the count.
        assert_eq!(signals[0], 101);
        let gaps: Vec<u64> = signals.windows(2).map(|two| two[1] - two[0]).collect();
        assert_eq!(gaps[..4], [100, 71, 58, 50]);
        assert!(gaps.is_sorted_by(|one, other| *one + 1 >= *other), "{gaps:?}");
        assert!(!codel.signals(MS, 2001 * MS) && !codel.signals(50 * MS, 2002 * MS));
    }
}
