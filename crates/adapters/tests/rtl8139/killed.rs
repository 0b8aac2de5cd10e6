//! The process that served the chip was killed: 8139cp.c has gone on, and its chip must meet it at a descriptor again.

use nicety_adapter::Event;

use crate::bench::*;

/// 8139cp.c: cp_intr_mask, cp_rx_intr_mask.
const ALL: u16 = 0x80ff;
const RECEIVE: u16 = 0x0053;
/// Within this time the driver has its frames again, in nanoseconds.
const SOON_NS: u64 = 50_000_000;

/// The receiving half of 8139cp.c.
struct Driver {
    /// cp->rx_tail.
    tail: u64,
    /// Lengths of the frames that it passed on.
    frames: Vec<u32>,
}

impl Driver {
    /// cp_interrupt, with cp_rx_poll right behind it.
    fn interrupt(&mut self, b: &mut Bench) {
        if b.r16(0x3c) == 0 {
            return;
        }
        let status = b.r16(0x3e);
        b.w16(0x3e, status & !RECEIVE);
        if status & RECEIVE != 0 {
            b.w16(0x3c, ALL & !RECEIVE);
            b.w16(0x3e, RECEIVE);
            self.poll(b);
        }
    }

    /// cp_rx_poll behind its acknowledgement.
    fn poll(&mut self, b: &mut Bench) {
        loop {
            let at = RX_RING + 16 * self.tail;
            let first = b.get32(at);
            if first >> 31 != 0 {
                break;
            }
            if first & 0x3000_0000 == 0x3000_0000 && first & 1 << 20 == 0 {
                self.frames.push((first & 0x1fff) - 4);
            }
            let end = if self.tail + 1 == RING { 1 << 30 } else { 0 };
            b.post(self.tail, 0x8000_0000 | end | BUFFER as u32, RX_DATA + self.tail * 0x1000);
            self.tail = (self.tail + 1) % RING;
        }
        b.w16(0x3c, ALL);
    }

    /// Time passes, with its ticks and interrupts.
    fn lives(&mut self, b: &mut Bench, ns: u64) {
        let end = b.now.after_ns(ns);
        while b.now < end {
            b.pass(500_000);
            if b.line() {
                self.interrupt(b);
            }
        }
    }

    /// A frame of this length comes, and waits until it has room.
    fn gets(&mut self, b: &mut Bench, len: usize) {
        let (sent, end) = (frame(MAC, len, len as u8), b.now.after_ns(SOON_NS));
        while !b.takes(&sent) {
            assert!(b.now < end, "a frame of {len} bytes finds no room, with the driver at {}", self.tail);
            self.lives(b, 500_000);
        }
        self.lives(b, 1_000_000);
    }
}

/// The moment of the kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Rest,
    /// Frames lie in the ring.
    Frames,
    /// The driver has masked and acknowledged the causes of frames.
    Poll,
}

fn goes_on(taken: usize, at: At) {
    let mut b = Bench::opened();
    let kept = b.nic.save();
    let mut driver = Driver { tail: 0, frames: Vec::new() };
    (0..taken).for_each(|_| driver.gets(&mut b, 100));
    assert_eq!((driver.tail, driver.frames.len()), (taken as u64 % RING, taken));
    driver.frames.clear();
    if at != At::Rest {
        (0..3).for_each(|_| assert!(b.takes(&frame(MAC, 200, 0))));
    }
    if at == At::Poll {
        b.w16(0x3c, ALL & !RECEIVE);
        b.w16(0x3e, RECEIVE);
    }
    // The next process knows what the driver has set up, and no position.
    let mut next = Bench::of("rtl8139");
    next.nic.restore(&kept).unwrap();
    (next.map, next.now) = (std::sync::Arc::clone(&b.map), b.now);
    next.call(|nic, cx| nic.notice(Event::Lost, cx));
    if at == At::Poll {
        driver.poll(&mut next);
    }
    let lens: Vec<usize> = (0..150).map(|number| 300 + number).collect();
    lens.iter().for_each(|len| driver.gets(&mut next, *len));
    // Frames that lay in the ring may arrive, or not.
    let got: Vec<usize> = driver.frames.iter().map(|len| *len as usize).filter(|len| *len != 200).collect();
    assert_eq!(got, lens, "{taken} frames before, {at:?}");
    assert!((0..RING).all(|index| next.get32(RX_RING + 16 * index) & 0x1fff == BUFFER as u32), "no buffer has shrunk");
}

#[test]
fn eight_one_three_nine_cp_has_all_its_frames_again_at_once_wherever_it_was_in_its_ring() {
    for taken in [0, 1, 2, 31, 62, 63, 64, 70] {
        for at in [At::Rest, At::Frames, At::Poll] {
            goes_on(taken, at);
        }
    }
}

#[test]
fn a_driver_that_reads_no_interrupt_gets_the_receiver_back_after_a_while() {
    let mut b = Bench::opened();
    let kept = b.nic.save();
    let mut next = Bench::of("rtl8139");
    next.nic.restore(&kept).unwrap();
    (next.map, next.now) = (std::sync::Arc::clone(&b.map), b.now);
    next.call(|nic, cx| nic.notice(Event::Lost, cx));
    assert!(!next.takes(&frame(MAC, 200, 0)), "the driver's place is not known yet");
    next.pass(2_000_000_000);
    assert!(next.takes(&frame(MAC, 200, 0)));
    // A reset ends it at once.
    next.call(|nic, cx| nic.notice(Event::Lost, cx));
    next.w8(0x37, 0x10);
    assert!(next.takes(&frame(MAC, 200, 0)), "dropped: the receiver is off");
    b.command(0);
}
