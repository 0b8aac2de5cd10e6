//! A stream to the echo service of another station, compared with what comes back, byte for byte.

use std::time::{Duration, Instant};

use smoltcp::socket::tcp::Socket;

/// Bytes of the pattern: a prime, so that a segment, a page or a ring's lap at the wrong place differs.
const PATTERN: usize = 65_521;
/// Any number but 0.
const SEED: u32 = 0x2545_f491;

/// A stream on which nothing has come back for so long stands. TCP itself waits up to 60 s before it sends a lost segment again (smoltcp's
/// longest retransmission timeout), so a shorter silence proves nothing.
const STANDS: Duration = Duration::from_secs(65);

/// The state of a comparison.
#[derive(Debug)]
pub struct Compare {
    pattern: Vec<u8>,
    /// Bytes given to TCP.
    pub sent: u64,
    /// Bytes that came back.
    pub received: u64,
    /// The number of these that are not what was sent.
    pub different: u64,
    /// Most bytes a second.
    pub a_second: Option<u64>,
    begun: Option<Instant>,
    /// The last time at which something came back.
    moved: Option<Instant>,
}

impl Compare {
    /// A comparison that sends at most so many bytes a second.
    pub fn new(a_second: Option<u64>) -> Compare {
        let mut state = SEED;
        // Xorshift (Marsaglia, "Xorshift RNGs", 2003).
        let next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as u8
        };
        let pattern = std::iter::repeat_with(next).take(PATTERN).collect();
        Compare { pattern, sent: 0, received: 0, different: 0, a_second, begun: None, moved: None }
    }

    /// Whether all that was sent has come back.
    pub fn is_whole(&self) -> bool {
        self.received >= self.sent
    }

    /// The time at which the comparison gives up: `STANDS` after the last byte came back or sending ended (`over`), whichever is later.
    pub fn stands_at(&self, over: Instant) -> Instant {
        self.moved.map_or(over, |moved| moved.max(over)) + STANDS
    }

    /// Compares what has come back, and sends more unless the time is over. Returns whether bytes moved.
    pub fn step(&mut self, socket: &mut Socket<'_>, chunk: &mut [u8], now: Instant, is_over: bool) -> bool {
        let before = (self.sent, self.received);
        while socket.can_recv() {
            let Ok(count @ 1..) = socket.recv_slice(chunk) else { break };
            self.compare(chunk.get(..count).unwrap_or_default());
            self.moved = Some(now);
        }
        let seconds = now.duration_since(*self.begun.get_or_insert(now)).as_secs_f64();
        let most = self.a_second.map_or(u64::MAX, |most| (most as f64 * seconds) as u64);
        while !is_over && self.sent < most && socket.can_send() {
            let rest = self.expected(self.sent);
            let left = usize::try_from(most - self.sent).unwrap_or(usize::MAX);
            match socket.send_slice(rest.get(..left).unwrap_or(rest)) {
                Ok(count @ 1..) => self.sent += count as u64,
                _ => break,
            }
        }
        before != (self.sent, self.received)
    }

    /// The pattern from this byte of the stream on, up to its end.
    pub fn expected(&self, at: u64) -> &[u8] {
        self.pattern.get((at % PATTERN as u64) as usize..).unwrap_or_default()
    }

    /// Compares what has come back.
    pub fn compare(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let expected = self.expected(self.received);
            let (part, rest) = bytes.split_at(bytes.len().min(expected.len()));
            let is_same = expected.starts_with(part);
            let different = if is_same { 0 } else { part.iter().zip(expected).filter(|(a, b)| a != b).count() };
            self.different += different as u64;
            self.received += part.len() as u64;
            bytes = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_differs_and_a_piece_at_the_wrong_place_are_counted() {
        let mut compare = Compare::new(None);
        let stream: Vec<u8> = compare.pattern.iter().chain(&compare.pattern).copied().collect();
        compare.compare(&stream[..70_000]);
        assert_eq!((compare.received, compare.different), (70_000, 0));
        let mut damaged = stream[70_000..70_100].to_vec();
        damaged[7] ^= 1;
        compare.compare(&damaged);
        assert_eq!((compare.received, compare.different), (70_100, 1));
        // The segment before, once more.
        compare.compare(&stream[70_100 - 1448..70_100]);
        assert!(compare.different > 1000, "{}", compare.different);
    }
}
