//! Tells the sender of a flow early that its frames wait too long: CoDel (RFC 8289), with a state for each flow.
//!
//! A frame is judged when it comes, by how long the oldest frame of its lane has waited. So nothing in a lane is removed, and a frame is
//! marked before it is copied.

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
    /// Signals since it began.
    count: u32,
    signals: bool,
}

impl Codel {
    /// Whether to signal by this frame: to mark it, or to drop it. `waits_ns`: how long frames of its lane wait now.
    pub fn signals(&mut self, waits_ns: u64, now_ns: u64) -> bool {
        if waits_ns < TARGET_NS {
            (self.above_until, self.signals) = (0, false);
            return false;
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

/// Marks a frame's IP header as having met congestion (RFC 3168, section 5). `l3`: the offset of the header. False if its sender does not
/// know such marks.
pub fn mark_congestion(head: &mut [u8], l3: usize) -> bool {
    let Some(header) = head.get_mut(l3..) else { return false };
    match header {
        [first, class, _, _, _, _, _, _, _, _, sum_high, sum_low, ..] if *first >> 4 == 4 => {
            if *class & 3 == 0 {
                return false;
            }
            let before = u16::from_be_bytes([*first, *class]);
            *class |= 3;
            let after = u16::from_be_bytes([*first, *class]);
            // RFC 1624, equation 3.
            let sum = u32::from(!u16::from_be_bytes([*sum_high, *sum_low])) + u32::from(!before) + u32::from(after);
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
            [*sum_high, *sum_low] = sum.to_be_bytes();
            true
        }
        // The two bits are those of the traffic class, bits 10 and 11 of the header (RFC 8200, section 3).
        [first, second, ..] if *first >> 4 == 6 && *second & 0x30 != 0 => {
            *second |= 0x30;
            true
        }
        _ => false,
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

    #[test]
    fn a_mark_keeps_the_checksum_right_and_is_made_only_if_the_sender_knows_it() {
        // RFC 1071's sum over the header must stay 0xffff.
        let sum = |header: &[u8]| {
            let words = header.chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])));
            let sum: u32 = words.sum();
            (sum & 0xffff) + (sum >> 16)
        };
        let mut v4 = [0x45, 0xb9, 0, 40, 1, 2, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let check = !(sum(&v4) as u16);
        v4[10..12].copy_from_slice(&check.to_be_bytes());
        assert!(mark_congestion(&mut v4, 0) && v4[1] == 0xbb && sum(&v4) == 0xffff);
        let mut not_capable = v4;
        not_capable[1] = 0xb8;
        assert!(!mark_congestion(&mut not_capable, 0) && not_capable[1] == 0xb8);
        let mut v6 = [0x60, 0x20, 0, 0, 0, 20, 6, 64];
        assert!(mark_congestion(&mut v6, 0) && v6[..2] == [0x60, 0x30]);
        assert!(!mark_congestion(&mut [0x60, 0x0f, 0, 0], 0) && !mark_congestion(&mut [], 0));
        assert!(!mark_congestion(&mut [0x45, 3], 0), "a header that is cut off");
    }
}
