//! Rate of a link.

use std::fmt;

/// Rate of a link in Mbit/s, written as in a host file (`100Mbit/s`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate {
    /// 10⁶ bits per second of frames with their Ethernet header.
    pub mbit: u32,
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mbit {
            mbit if mbit.is_multiple_of(1000) => write!(f, "{}Gbit/s", mbit / 1000),
            mbit => write!(f, "{mbit}Mbit/s"),
        }
    }
}

impl Rate {
    /// Size of the bucket: that of Nicety's own uplinks (docs/uplinks.md), 2 ms of the rate, at least 64 KiB.
    pub fn burst_bytes(self) -> u32 {
        (self.mbit.saturating_mul(1_000_000 / 8 / 1000 * 2)).max(64 << 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_written_as_in_a_host_file_and_its_bucket_is_that_of_an_uplink() {
        let said = [100, 1_000, 2_500, 10_000].map(|mbit| (Rate { mbit }.to_string(), Rate { mbit }.burst_bytes()));
        // docs/uplinks.md: 2 ms of the rate, at least 64 KiB.
        let bytes = [65_536, 250_000, 625_000, 2_500_000];
        let rates = ["100Mbit/s", "1Gbit/s", "2500Mbit/s", "10Gbit/s"];
        assert_eq!(said, [0, 1, 2, 3].map(|n| (rates[n].to_owned(), bytes[n])));
    }
}
