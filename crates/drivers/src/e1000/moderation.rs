//! Interrupt moderation: the "dynamic conservative" mode of Linux's driver (`e1000_update_itr` and `e1000_set_itr` of
//! drivers/net/ethernet/intel/e1000/e1000_main.c), in its two classes.
//!
//! Large packets wait up to 250 µs for others; everything else waits at most 50 µs. Each direction has a class of its own, and the
//! slower one decides. A stream of more than 35 packets per interval leaves the slow class, and returns with the next interrupt: in
//! bulk, Linux writes the interval almost every time.

/// Interrupts a second.
const LATENCY: u32 = 20_000;
const BULK: u32 = 4_000;

/// Traffic in one direction since the last interrupt.
#[derive(Clone, Copy, Debug, Default)]
struct Direction {
    packets: u64,
    bytes: u64,
    bulk: bool,
}

impl Direction {
    fn count(&mut self, packets: u64, bytes: u64) {
        self.packets += packets;
        self.bytes += bytes;
    }

    fn classify(&mut self) {
        let Direction { packets, bytes, .. } =
            std::mem::replace(self, Direction { bulk: self.bulk, ..Direction::default() });
        if packets == 0 {
            return;
        }
        let mean = bytes / packets;
        self.bulk = match self.bulk {
            false if bytes > 10_000 => packets < 10 || mean > 1_200,
            false => mean > 2_000,
            true if bytes > 25_000 => packets <= 35,
            true => bytes >= 6_000,
        };
    }
}

#[derive(Debug)]
pub(crate) struct Moderation {
    transmit: Direction,
    receive: Direction,
    rate: u32,
}

impl Default for Moderation {
    fn default() -> Moderation {
        Moderation { transmit: Direction::default(), receive: Direction::default(), rate: LATENCY }
    }
}

impl Moderation {
    pub(crate) fn received(&mut self, bytes: usize) {
        self.receive.count(1, bytes as u64);
    }

    /// Counts `frames` frames on the wire, with `bytes` bytes together.
    pub(crate) fn sent(&mut self, frames: u32, bytes: u32) {
        self.transmit.count(frames.into(), bytes.into());
    }

    /// The interval register: units of 256 ns (section 13.4.18).
    pub(crate) fn register(&self) -> u32 {
        1_000_000_000 / (self.rate * 256)
    }

    /// Classifies the traffic since the last call. Returns the register's new value, if it changes.
    pub(crate) fn changed(&mut self) -> Option<u32> {
        self.transmit.classify();
        self.receive.classify();
        let wanted = if self.transmit.bulk || self.receive.bulk { BULK } else { LATENCY };
        if wanted == self.rate {
            return None;
        }
        // The rate rises in steps.
        self.rate = if wanted > self.rate { wanted.min(self.rate + wanted / 4) } else { wanted };
        Some(self.register())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 50 µs and 250 µs in units of 256 ns, rounded down.
    const LATENCY_UNITS: u32 = 195;
    const BULK_UNITS: u32 = 976;

    #[test]
    fn large_packets_in_number_slow_interrupts_down_and_small_ones_speed_them_up_step_by_step() {
        let mut moderation = Moderation::default();
        assert_eq!(moderation.register(), LATENCY_UNITS);
        (0..10).for_each(|_| moderation.received(1_514));
        assert_eq!(moderation.changed(), Some(BULK_UNITS));
        assert_eq!(moderation.changed(), None, "nothing passed, nothing changes");
        // 9,000, 14,000, 19,000 and 20,000 a second.
        for units in [434, 279, 205, LATENCY_UNITS] {
            moderation.received(60);
            assert_eq!(moderation.changed(), Some(units));
        }
        moderation.received(60);
        assert_eq!(moderation.changed(), None);
    }

    #[test]
    fn a_stream_of_more_than_35_packets_for_each_interrupt_goes_up_and_down_with_each() {
        let mut moderation = Moderation::default();
        for units in [BULK_UNITS, 434, BULK_UNITS, 434] {
            moderation.sent(44, 44 * 1_514);
            assert_eq!(moderation.changed(), Some(units));
        }
    }

    #[test]
    fn the_slower_way_rules() {
        let mut moderation = Moderation::default();
        moderation.sent(20, 20 * 1_514);
        moderation.received(60);
        assert_eq!(moderation.changed(), Some(BULK_UNITS));
        moderation.sent(20, 20 * 1_514);
        moderation.received(60);
        assert_eq!(moderation.changed(), None);
    }
}
