//! The process is killed under lib8390.c, and the next one has the state of some earlier time: swept over the accesses of an interrupt
//! and of a transmission, both of that state and of the kill.

use nicety_adapter::Event;

use crate::bench::*;

/// ENISR_ALL.
const ALL: u8 = 0x3f;
/// More rounds than any story takes.
const ROUNDS: usize = 20;

/// The driver with its chip.
struct Driver {
    b: Bench,
    accesses: usize,
    /// Accesses before which the state is kept, and the process is killed.
    kept_at: usize,
    killed_at: usize,
    kept: Vec<u8>,
    frames: Vec<Vec<u8>>,
}

impl Driver {
    fn new(kept_at: usize, killed_at: usize) -> Self {
        Self { b: Bench::opened(), accesses: 0, kept_at, killed_at, kept: Vec::new(), frames: Vec::new() }
    }

    fn step(&mut self) {
        if self.accesses == self.kept_at {
            self.kept = self.b.nic.save();
        }
        if self.accesses == self.killed_at {
            let mut next = Bench::new();
            next.nic.restore(&self.kept).unwrap();
            next.now = self.b.now;
            next.call(|nic, cx| nic.notice(Event::Lost, cx));
            self.b = next;
        }
        self.accesses += 1;
    }

    fn outb(&mut self, value: u8, at: u64) {
        self.step();
        self.b.outb(value, at);
    }

    fn inb(&mut self, at: u64) -> u8 {
        self.step();
        self.b.inb(at)
    }

    fn remote(&mut self, command: u8, at: u16, count: u16) {
        let ([low, high], [few, many]) = (at.to_le_bytes(), count.to_le_bytes());
        let writes = [(0x22, E8390_CMD), (few, EN0_RCNTLO), (many, EN0_RCNTHI), (low, EN0_RSARLO), (high, EN0_RSARHI)];
        writes.iter().for_each(|&(value, at)| self.outb(value, at));
        self.outb(command, E8390_CMD);
    }

    /// ne2k_pci_block_input: a port string is one message.
    fn input(&mut self, at: u16, count: u16) -> Vec<u8> {
        self.remote(0x0a, at, count);
        self.step();
        let data = (0..count / 4).flat_map(|_| self.b.r(NE_DATAPORT).to_le_bytes()).collect();
        self.outb(ENISR_RDC, EN0_ISR);
        data
    }

    /// ei_receive.
    fn receive(&mut self) {
        for _ in 0..9 {
            self.outb(0x60, E8390_CMD);
            let current = self.inb(EN1_CURPAG);
            self.outb(0x20, E8390_CMD);
            let next = self.inb(EN0_BOUNDARY).wrapping_add(1);
            let this = if next >= STOP_PAGE { RX_PAGE } else { next };
            if this == current {
                break;
            }
            let at = u16::from(this) << 8;
            let header = self.input(at, 4);
            let (next, count) = (header[1], u16::from_le_bytes([header[2], header[3]]));
            let expected = this.wrapping_add(1).wrapping_add(((i32::from(count) - 4 + 4) >> 8) as u8);
            let pages = STOP_PAGE - RX_PAGE;
            let allowed = [0, 1, pages.wrapping_neg(), 1u8.wrapping_sub(pages)].map(|more| expected.wrapping_add(more));
            if !allowed.contains(&next) {
                self.outb(current.wrapping_sub(1), EN0_BOUNDARY);
                continue;
            }
            if (64..=1522).contains(&count) {
                let frame = self.input(at + 4, (count - 4).next_multiple_of(4));
                self.frames.push(frame);
            }
            let next = if next >= STOP_PAGE { RX_PAGE } else { next };
            self.outb(next.wrapping_sub(1), EN0_BOUNDARY);
        }
        self.outb(ENISR_RX, EN0_ISR);
    }

    /// ei_interrupt, while the line is up.
    fn interrupts(&mut self) {
        for _ in 0..ROUNDS {
            if !self.b.level {
                return;
            }
            self.outb(0x20, E8390_CMD);
            for _ in 0..12 {
                let causes = self.inb(EN0_ISR);
                if causes == 0 {
                    break;
                }
                if causes & ENISR_RX != 0 {
                    self.receive();
                }
                if causes & ENISR_TX != 0 {
                    self.inb(EN0_TSR);
                    self.outb(ENISR_TX, EN0_ISR);
                } else if causes & ENISR_TX_ERR != 0 {
                    // ei_tx_err: a length that was lost.
                    self.inb(EN0_TSR);
                    self.outb(ENISR_TX_ERR, EN0_ISR);
                }
                if causes & ENISR_COUNTERS != 0 {
                    self.inb(EN0_COUNTER2);
                    self.outb(ENISR_COUNTERS, EN0_ISR);
                }
                if causes & ENISR_RDC != 0 {
                    self.outb(ENISR_RDC, EN0_ISR);
                }
                self.outb(0x22, E8390_CMD);
            }
        }
        let causes = self.b.inb(EN0_ISR);
        panic!("an interrupt without end: {causes:#x}, state of {}, killed at {}", self.kept_at, self.killed_at);
    }

    /// ei_start_xmit, and the port's turn.
    fn send(&mut self) {
        self.outb(0, EN0_IMR);
        self.outb(0x22, E8390_CMD);
        self.outb(ENISR_RDC, EN0_ISR);
        self.remote(0x12, u16::from(TX_PAGE) << 8, 60);
        self.step();
        (0..15).for_each(|_| self.b.bar_write(0, NE_DATAPORT, &[0x5a; 4]));
        if self.inb(EN0_ISR) & ENISR_RDC == 0 {
            // "timeout waiting for Tx RDC."
            self.b.reset();
            self.b.init(true);
        } else {
            self.outb(ENISR_RDC, EN0_ISR);
        }
        for (value, at) in
            [(0x20, E8390_CMD), (60, EN0_TCNTLO), (0, EN0_TCNTHI), (TX_PAGE, EN0_TPSR), (0x26, E8390_CMD)]
        {
            self.outb(value, at);
        }
        self.outb(ALL, EN0_IMR);
        if self.b.out.work.contains(0) {
            self.b.turn();
        }
    }

    /// Time passes, in which the driver does nothing.
    fn pass(&mut self) {
        self.b.now = self.b.now.after_ns(1_000_000_000);
        self.b.call(|nic, cx| nic.tick(cx));
    }
}

#[test]
fn wherever_the_driver_is_when_the_process_is_killed_it_has_the_next_frames_from_a_ring_in_packet_memory() {
    let story = |driver: &mut Driver| {
        driver.b.arrive(&frame(MAC, PEER, 60, 1));
        driver.interrupts();
        driver.send();
        driver.interrupts();
    };
    let mut whole = Driver::new(usize::MAX, usize::MAX);
    story(&mut whole);
    let accesses = whole.accesses;
    assert!((50..200).contains(&accesses) && whole.frames.len() == 1, "{accesses}");
    for kept_at in 0..accesses {
        for killed_at in kept_at..accesses {
            let mut driver = Driver::new(kept_at, killed_at);
            story(&mut driver);
            driver.frames.clear();
            let sent: Vec<Vec<u8>> = (2..8).map(|number| frame(MAC, PEER, 60, number)).collect();
            for frame in &sent {
                driver.pass();
                assert!(driver.b.arrive(frame), "state of {kept_at}, killed at {killed_at}: no room");
                driver.interrupts();
            }
            let last = driver.frames.last();
            assert_eq!(last, sent.last(), "state of {kept_at}, killed at {killed_at}: {} frames", driver.frames.len());
            assert!((RX_PAGE..STOP_PAGE).contains(&driver.b.current()), "state of {kept_at}, killed at {killed_at}");
        }
    }
}
