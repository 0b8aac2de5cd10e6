//! A guest of one NE2000 on PCI, with the accesses of Linux's ne2k-pci.c and lib8390.c. Numbers are those of Linux's
//! drivers/net/ethernet/8390/8390.h.

use nicety_adapter::{Delivery, Frames, Offload, Pick, Set};
use nicety_memory::Map;

#[allow(dead_code, reason = "each family uses a part")]
#[path = "../bench/mod.rs"]
mod shared;

pub use shared::packets::{MAC, PEER, experimental as frame};

pub type Bench = shared::Bench;

pub const E8390_CMD: u64 = 0x00;
pub const EN0_STARTPG: u64 = 0x01;
pub const EN0_STOPPG: u64 = 0x02;
pub const EN0_BOUNDARY: u64 = 0x03;
pub const EN0_TSR: u64 = 0x04;
pub const EN0_TPSR: u64 = 0x04;
pub const EN0_TCNTLO: u64 = 0x05;
pub const EN0_TCNTHI: u64 = 0x06;
pub const EN0_ISR: u64 = 0x07;
pub const EN0_RSARLO: u64 = 0x08;
pub const EN0_RSARHI: u64 = 0x09;
pub const EN0_RCNTLO: u64 = 0x0a;
pub const EN0_RCNTHI: u64 = 0x0b;
pub const EN0_RXCR: u64 = 0x0c;
pub const EN0_RSR: u64 = 0x0c;
pub const EN0_TXCR: u64 = 0x0d;
pub const EN0_DCFG: u64 = 0x0e;
pub const EN0_IMR: u64 = 0x0f;
pub const EN0_COUNTER2: u64 = 0x0f;
pub const EN1_CURPAG: u64 = 0x07;
pub const NE_DATAPORT: u64 = 0x10;
pub const NE_RESET: u64 = 0x1f;

pub const ENISR_RX: u8 = 0x01;
pub const ENISR_TX: u8 = 0x02;
pub const ENISR_TX_ERR: u8 = 0x08;
pub const ENISR_COUNTERS: u8 = 0x20;
pub const ENISR_RDC: u8 = 0x40;
pub const ENISR_RESET: u8 = 0x80;

/// Linux's pages for transmit buffers and ring.
pub const TX_PAGE: u8 = 0x40;
pub const RX_PAGE: u8 = 0x4c;
pub const STOP_PAGE: u8 = 0x80;

impl Bench {
    pub fn new() -> Self {
        let mut this = Self::around(shared::adapter("ne2k_pci"), ());
        // It has no DMA.
        this.map = Map::empty();
        this
    }

    /// Probed and opened as Linux does, with the link up.
    pub fn opened() -> Self {
        let mut this = Self::new();
        // I/O only: Linux's driver does not enable bus mastering.
        this.config_write(4, &[1, 0]);
        this.link(true);
        this.reset();
        this.init(true);
        this
    }

    pub fn inb(&mut self, offset: u64) -> u8 {
        self.r8(offset)
    }

    pub fn outb(&mut self, value: u8, offset: u64) {
        self.w8(offset, value);
    }

    /// ne2k_pci_reset_8390.
    pub fn reset(&mut self) {
        let value = self.inb(NE_RESET);
        self.outb(value, NE_RESET);
        assert_ne!(self.inb(EN0_ISR) & ENISR_RESET, 0, "reset at once");
        self.outb(0xff, EN0_ISR);
    }

    /// __NS8390_init.
    pub fn init(&mut self, start: bool) {
        let program = [
            (0x21, E8390_CMD),
            (0x49, EN0_DCFG),
            (0, EN0_RCNTLO),
            (0, EN0_RCNTHI),
            (0x20, EN0_RXCR),
            (0x02, EN0_TXCR),
            (TX_PAGE, EN0_TPSR),
            (RX_PAGE, EN0_STARTPG),
            (STOP_PAGE - 1, EN0_BOUNDARY),
            (STOP_PAGE, EN0_STOPPG),
            (0xff, EN0_ISR),
            (0, EN0_IMR),
            (0x61, E8390_CMD),
        ];
        program.iter().for_each(|&(value, offset)| self.outb(value, offset));
        for (offset, byte) in (1..).zip(MAC) {
            self.outb(byte, offset);
            assert_eq!(self.inb(offset), byte, "Linux says when an address reads otherwise");
        }
        self.outb(RX_PAGE, EN1_CURPAG);
        self.outb(0x21, E8390_CMD);
        if start {
            for (value, offset) in
                [(0xff, EN0_ISR), (0x3f, EN0_IMR), (0x22, E8390_CMD), (0, EN0_TXCR), (0x04, EN0_RXCR)]
            {
                self.outb(value, offset);
            }
        }
    }

    /// Remote DMA of `count` bytes: 0x0a reads, 0x12 writes.
    pub fn remote(&mut self, command: u8, at: u16, count: u16) {
        self.outb(0x22, E8390_CMD);
        let [low, high] = count.to_le_bytes();
        self.outb(low, EN0_RCNTLO);
        self.outb(high, EN0_RCNTHI);
        let [low, high] = at.to_le_bytes();
        self.outb(low, EN0_RSARLO);
        self.outb(high, EN0_RSARHI);
        self.outb(command, E8390_CMD);
    }

    /// ne2k_pci_block_output.
    pub fn block_output(&mut self, data: &[u8], page: u8) {
        let mut data = data.to_vec();
        data.resize(data.len().next_multiple_of(2), 0);
        self.outb(ENISR_RDC, EN0_ISR);
        self.remote(0x12, u16::from(page) << 8, data.len() as u16);
        let (dwords, rest) = data.as_chunks::<4>();
        dwords.iter().for_each(|dword| self.bar_write(0, NE_DATAPORT, dword));
        if !rest.is_empty() {
            self.bar_write(0, NE_DATAPORT, rest);
        }
        assert_ne!(self.inb(EN0_ISR) & ENISR_RDC, 0, "timeout waiting for Tx RDC");
        self.outb(ENISR_RDC, EN0_ISR);
    }

    /// ne2k_pci_block_input.
    pub fn block_input(&mut self, at: u16, count: usize) -> Vec<u8> {
        self.remote(0x0a, at, count as u16);
        let mut data = Vec::new();
        while data.len() + 4 <= count {
            data.extend(self.r(NE_DATAPORT).to_le_bytes());
        }
        if count & 2 != 0 {
            data.extend(self.r16(NE_DATAPORT).to_le_bytes());
        }
        if count & 1 != 0 {
            data.push(self.inb(NE_DATAPORT));
        }
        self.outb(ENISR_RDC, EN0_ISR);
        data
    }

    /// NS8390_trigger_send.
    pub fn trigger_send(&mut self, len: usize, page: u8) {
        self.outb(0x20, E8390_CMD);
        assert_eq!(self.inb(E8390_CMD) & 4, 0, "trigger_send() called with the transmitter busy");
        let [low, high] = (len as u16).to_le_bytes();
        self.outb(low, EN0_TCNTLO);
        self.outb(high, EN0_TCNTHI);
        self.outb(page, EN0_TPSR);
        self.outb(0x26, E8390_CMD);
    }

    /// Runs a turn of its port. Returns the frames for a wire.
    pub fn turn(&mut self) -> Vec<Vec<u8>> {
        self.out.work = Set::default();
        let progress = self.fetch();
        assert!(progress.armed && !progress.more);
        let frames = shared::cut(&self.batch);
        self.complete();
        self.batch.release();
        frames
    }

    /// Sends a frame of the driver's. Returns the frames for a wire.
    pub fn send(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        self.block_output(frame, TX_PAGE);
        self.trigger_send(frame.len(), TX_PAGE);
        assert!(self.out.work.contains(0));
        self.turn()
    }

    /// Delivers a packet from another port.
    pub fn bring(&mut self, packet: &[u8], offload: Offload, from: u16) -> Delivery {
        self.bring_behind(packet, offload, from, Set::default())
    }

    fn bring_behind(&mut self, packet: &[u8], offload: Offload, from: u16, held: Set) -> Delivery {
        let batch = shared::batch_of(&[(packet, offload)]);
        let picks = [Pick { from, ..Pick::whole(0) }];
        self.call(|nic, cx| nic.deliver(&Frames { held, ..Frames::new(&batch, &picks) }, cx))
    }

    /// Delivers a frame; `held` tells whether others wait in the port. True if it was taken, or dropped.
    pub fn arrive_behind(&mut self, frame: &[u8], held: Set) -> bool {
        !self.bring_behind(frame, Offload::default(), 0, held).is_refused(0)
    }

    /// Delivers a frame. True if it was taken, or dropped.
    pub fn arrive(&mut self, frame: &[u8]) -> bool {
        !self.bring(frame, Offload::default(), 0).is_refused(0)
    }

    pub fn current(&mut self) -> u8 {
        self.outb(0x60, E8390_CMD);
        let current = self.inb(EN1_CURPAG);
        self.outb(0x20, E8390_CMD);
        current
    }

    /// Takes the only frame, if there is one, and ends the driver's round.
    pub fn only(&mut self) -> Option<(u8, Vec<u8>)> {
        let frame = self.receive();
        assert!(frame.is_none() || self.receive().is_none());
        frame
    }

    /// Takes a frame as ei_receive does: none if the ring is empty. Asserts ei_receive's checks.
    pub fn receive(&mut self) -> Option<(u8, Vec<u8>)> {
        let current = self.current();
        let mut this = self.inb(EN0_BOUNDARY) + 1;
        if this >= STOP_PAGE {
            this = RX_PAGE;
        }
        if this == current {
            // The ends of ei_receive and of ei_interrupt's round.
            self.outb(ENISR_RX, EN0_ISR);
            self.outb(0x22, E8390_CMD);
            self.inb(EN0_ISR);
            return None;
        }
        self.remote(0x0a, u16::from(this) << 8, 4);
        let [status, next, low, high] = self.r(NE_DATAPORT).to_le_bytes();
        self.outb(ENISR_RDC, EN0_ISR);
        let len = usize::from(u16::from_le_bytes([low, high])) - 4;
        let expected = i32::from(this) + 1 + ((len as i32 + 4) >> 8);
        let pages = i32::from(STOP_PAGE - RX_PAGE);
        let allowed = [expected, expected + 1, expected - pages, expected + 1 - pages];
        assert!(allowed.contains(&next.into()), "bogus packet: {next:#x} after {this:#x}, {len} bytes");
        assert!((60..=1518).contains(&len), "bogus packet size: {len}");
        let frame = self.block_input((u16::from(this) << 8) + 4, len);
        self.outb(next - 1, EN0_BOUNDARY);
        Some((status, frame))
    }
}
