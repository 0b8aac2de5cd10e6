//! What lies beyond the guest's network.

use std::collections::{BTreeMap, VecDeque};

/// The network outside, in the guest's virtual time, in nanoseconds.
pub trait Outside {
    /// The guest has sent a frame.
    fn sent(&mut self, now: u64, frame: &[u8]);

    /// The time of its next frame, or of anything that it does by itself.
    fn next(&mut self) -> Option<u64>;

    /// That time has come: its frames for the guest.
    fn take(&mut self, now: u64) -> Vec<Vec<u8>>;
}

/// Frames with their times.
pub type Frames = Vec<(u64, Vec<u8>)>;

/// The frames that another boot has recorded, at their times. Nobody answers.
#[derive(Debug, Default)]
pub struct Recorded(pub VecDeque<(u64, Vec<u8>)>);

impl Outside for Recorded {
    fn sent(&mut self, _now: u64, _frame: &[u8]) {}

    fn next(&mut self) -> Option<u64> {
        self.0.front().map(|(time, _)| *time)
    }

    fn take(&mut self, now: u64) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while self.0.front().is_some_and(|(time, _)| *time <= now) {
            frames.extend(self.0.pop_front().map(|(_, frame)| frame));
        }
        frames
    }
}

/// Answers ARP requests for 10.0.N.1 and ICMP echo requests to it.
#[derive(Debug)]
pub struct Responder {
    pub delay_ns: u64,
    pub waiting: BTreeMap<u64, Vec<Vec<u8>>>,
}

pub const MAC: [u8; 6] = [0x52, 0x54, 0, 0xee, 0, 1];

impl Responder {
    pub fn new(delay_ns: u64) -> Responder {
        Responder { delay_ns, waiting: BTreeMap::new() }
    }

    fn answer(frame: &[u8]) -> Option<Vec<u8>> {
        let mut answer = frame.to_vec();
        answer.get_mut(..6)?.copy_from_slice(frame.get(6..12)?);
        answer[6..12].copy_from_slice(&MAC);
        match frame.get(12..14)? {
            // RFC 826: a request for an address that ends in 1.
            [8, 6] if frame.get(20..22)? == [0, 1] && frame.get(41)? == &1 => {
                answer[21] = 2;
                answer[32..42].copy_from_slice(&frame[22..32]);
                answer[22..28].copy_from_slice(&MAC);
                answer[28..32].copy_from_slice(&frame[38..42]);
                Some(answer)
            }
            // RFC 792: an echo request. Its checksum changes with its type, 8 to 0.
            [8, 0] if frame.get(23)? == &1 && frame.get(34)? == &8 => {
                answer[26..30].copy_from_slice(&frame[30..34]);
                answer[30..34].copy_from_slice(&frame[26..30]);
                let (sum, carry) = u16::from_be_bytes([frame[36], frame[37]]).overflowing_add(0x0800);
                answer[34] = 0;
                answer[36..38].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
                Some(answer)
            }
            _ => None,
        }
    }
}

impl Outside for Responder {
    fn sent(&mut self, now: u64, frame: &[u8]) {
        if let Some(answer) = Responder::answer(frame) {
            self.waiting.entry(now + self.delay_ns).or_default().push(answer);
        }
    }

    fn next(&mut self) -> Option<u64> {
        self.waiting.keys().next().copied()
    }

    fn take(&mut self, now: u64) -> Vec<Vec<u8>> {
        let later = self.waiting.split_off(&(now + 1));
        std::mem::replace(&mut self.waiting, later).into_values().flatten().collect()
    }
}
