//! How often the device may interrupt: the "dynamic conservative" of Linux's driver, in its two classes.
//!
//! Traffic of large packets waits up to 250 µs for company; everything else at most 50 µs.

/// Interrupts a second.
const LATENCY: u32 = 20_000;
const BULK: u32 = 4_000;
/// Bytes between two rests beyond which traffic is worth a look, and below which it surely is no bulk.
const BULK_BYTES: u64 = 10_000;
const LATENCY_BYTES: u64 = 6_000;
/// Mean bytes of a packet in bulk traffic at least.
const BULK_MEAN: u64 = 1_200;

#[derive(Debug)]
pub(super) struct Moderation {
    packets: u64,
    bytes: u64,
    rate: u32,
}

impl Default for Moderation {
    fn default() -> Moderation {
        Moderation { packets: 0, bytes: 0, rate: LATENCY }
    }
}

impl Moderation {
    pub(super) fn received(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }

    pub(super) fn sent(&mut self, bytes: usize) {
        self.received(bytes);
    }

    /// The interval register: units of 256 ns (section 13.4.18).
    pub(super) fn register(&self) -> u32 {
        1_000_000_000 / (self.rate * 256)
    }

    /// Looks at what passed since the last time. The register's new value, if it changes.
    pub(super) fn changed(&mut self) -> Option<u32> {
        let (packets, bytes) = (std::mem::take(&mut self.packets), std::mem::take(&mut self.bytes));
        if packets == 0 {
            return None;
        }
        let wanted = match bytes {
            BULK_BYTES.. if bytes / packets > BULK_MEAN => BULK,
            LATENCY_BYTES.. => self.rate,
            _ => LATENCY,
        };
        let changes = wanted != self.rate;
        self.rate = wanted;
        changes.then(|| self.register())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_packets_in_number_slow_interrupts_down_and_small_ones_speed_them_up_again() {
        let mut moderation = Moderation::default();
        // 50 µs in units of 256 ns, rounded down.
        assert_eq!(moderation.register(), 195);
        (0..10).for_each(|_| moderation.received(1_514));
        assert_eq!(moderation.changed(), Some(976));
        assert_eq!(moderation.changed(), None, "nothing passed, nothing changes");
        moderation.received(60);
        assert_eq!(moderation.changed(), Some(195));
    }
}
