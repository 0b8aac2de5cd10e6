//! Polling drivers: ns8390_poll in iPXE's ns8390.c, with IMR 0 and one frame per poll. Each access takes time.

use std::collections::VecDeque;

use nicety_adapter::{Set, Time};

use crate::bench::*;

const BROADCAST: [u8; 6] = [0xff; 6];

/// The driver, its port's receive buffer, and the incoming traffic.
struct Polled {
    b: Bench,
    /// Time of an access under a VMM that sends each access separately and waits for it.
    access_ns: u64,
    /// Frames that wait in the port.
    waiting: VecDeque<Vec<u8>>,
    /// A broadcast of this many bytes arrives in each interval.
    broadcast: usize,
    interval_ns: u64,
    next_broadcast: Time,
    unicast: VecDeque<(Time, u8)>,
    /// The unicast frames that were taken, and their times.
    taken: Vec<(u8, Time)>,
}

impl Polled {
    fn arrive(&mut self, frame: Vec<u8>) {
        let mut held = Set::default();
        if !self.waiting.is_empty() {
            held.insert(0);
        }
        if !self.b.arrive_behind(&frame, held) {
            self.waiting.push_back(frame);
        }
    }

    /// Accounts for an access's time, and runs the events that are due.
    fn access(&mut self) {
        self.b.now = self.b.now.after_ns(self.access_ns);
        while self.next_broadcast <= self.b.now {
            self.next_broadcast = self.next_broadcast.after_ns(self.interval_ns);
            self.arrive(frame(BROADCAST, PEER, self.broadcast, 0));
        }
        while let Some((_, number)) = self.unicast.pop_front_if(|(at, _)| *at <= self.b.now) {
            self.arrive(frame(MAC, PEER, 342, number));
        }
        if self.b.out.wake.is_some_and(|due| due <= self.b.now) {
            self.b.out.wake = None;
            self.b.call(|nic, cx| nic.tick(cx));
        }
        if std::mem::take(&mut self.b.out.room).contains(0) {
            while let Some(frame) = self.waiting.front() {
                let frame = frame.clone();
                if !self.b.arrive(&frame) {
                    break;
                }
                self.waiting.pop_front();
            }
        }
    }

    fn inb(&mut self, at: u64) -> u8 {
        self.access();
        self.b.inb(at)
    }

    fn outb(&mut self, value: u8, at: u64) {
        self.access();
        self.b.outb(value, at);
    }

    /// eth_pio_read.
    fn pio_read(&mut self, at: u16, count: usize) -> Vec<u8> {
        let [low, high] = at.to_le_bytes();
        let [count_low, count_high] = (count as u16).to_le_bytes();
        for (value, at) in [
            (0x22, E8390_CMD),
            (count_low, EN0_RCNTLO),
            (count_high, EN0_RCNTHI),
            (low, EN0_RSARLO),
            (high, EN0_RSARHI),
            (0x0a, E8390_CMD),
        ] {
            self.outb(value, at);
        }
        let mut bytes = Vec::new();
        for _ in 0..count.div_ceil(2) {
            self.access();
            bytes.extend(self.b.r16(NE_DATAPORT).to_le_bytes());
        }
        bytes
    }

    /// ns8390_poll.
    fn poll(&mut self) {
        if self.inb(EN0_ISR) & 0x10 != 0 || self.inb(EN0_RSR) & 1 == 0 {
            return;
        }
        let next = self.inb(EN0_BOUNDARY) + 1;
        let this = if next >= STOP_PAGE { RX_PAGE } else { next };
        self.outb(0x62, E8390_CMD);
        let current = self.inb(EN1_CURPAG);
        self.outb(0x22, E8390_CMD);
        if this == current {
            return;
        }
        let header = self.pio_read(u16::from(this) << 8, 4);
        let bytes =
            self.pio_read((u16::from(this) << 8) + 4, usize::from(u16::from_le_bytes([header[2], header[3]])) - 4);
        if bytes[..6] == MAC {
            let number =
                (0..=255).find(|number| bytes == frame(MAC, PEER, 342, *number)).expect("a frame that was sent");
            self.taken.push((number, self.b.now));
        }
        let next = if header[1] == RX_PAGE { STOP_PAGE } else { header[1] };
        self.outb(next - 1, EN0_BOUNDARY);
    }
}

#[test]
fn answers_are_taken_soon_beside_a_hundred_broadcasts_a_second() {
    for access_us in [25, 70, 200] {
        for broadcast in [60, 300, 1514] {
            let mut b = Bench::opened();
            b.outb(0, EN0_IMR);
            let begin = b.now;
            let second = |n: u64| begin.after_ns(n * 1_000_000_000 + 3_333_333);
            let mut polled = Polled {
                b,
                access_ns: access_us * 1000,
                waiting: VecDeque::new(),
                broadcast,
                interval_ns: 10_000_000,
                next_broadcast: begin,
                // Offer, acknowledgement, and a few later frames.
                unicast: (2..7).map(|n| (second(n), n as u8)).collect(),
                taken: Vec::new(),
            };
            let end = second(8);
            while polled.b.now < end {
                polled.poll();
            }
            let late: Vec<u64> =
                polled.taken.iter().map(|(number, at)| (at.0 - second(u64::from(*number)).0) / 1_000_000).collect();
            let soon = late.len() == 5 && late.iter().all(|ms| *ms < 500);
            assert!(soon, "{access_us} us an access, broadcasts of {broadcast} bytes: {late:?} ms");
        }
    }
}
