//! A guest whose driver follows Linux's igb_main.c.

use crate::bench::{Bench, Wire, adapter, cut};

pub const CTRL: u64 = 0x0000;
pub const STATUS: u64 = 0x0008;
pub const ICR: u64 = 0x00c0;
pub const ICS: u64 = 0x00c8;
pub const IMS: u64 = 0x00d0;
pub const IMC: u64 = 0x00d8;
pub const IAM: u64 = 0x00e0;
pub const RCTL: u64 = 0x0100;
pub const TCTL: u64 = 0x0400;
pub const GPIE: u64 = 0x1514;
pub const EICS: u64 = 0x1520;
pub const EIMS: u64 = 0x1524;
pub const EIMC: u64 = 0x1528;
pub const EIAC: u64 = 0x152c;
pub const EIAM: u64 = 0x1530;
pub const EICR: u64 = 0x1580;
pub const EITR: u64 = 0x1680;
pub const IVAR: u64 = 0x1700;
pub const IVAR_MISC: u64 = 0x1740;
pub const RXCSUM: u64 = 0x5000;
pub const RLPML: u64 = 0x5004;
pub const MRQC: u64 = 0x5818;

/// EN, LPE, BAM, SECRC: the result of igb_setup_rctl.
pub const RCTL_LINUX: u32 = 0x0400_8022;
/// IGB_RX_HDR_LEN, 2 KiB, advanced with one buffer.
pub const SRRCTL_LINUX: u32 = 256 << 2 | 2 | 1 << 25;
pub const ENABLE: u32 = 1 << 25;
/// DEXT, IFCS, EOP, RS and advanced data.
pub const DATA: u32 = 0x2b30_0000;
/// DEXT and advanced context.
pub const CONTEXT: u32 = 0x2020_0000;
pub const RING: u64 = 256;

/// A queue's registers at Linux's addresses: queues 0 to 3 at those of the 82575.
pub fn receive(queue: u64, register: u64) -> u64 {
    (if queue < 4 { 0x2800 + queue * 0x100 } else { 0xc000 + queue * 0x40 }) + register
}

pub fn transmit(queue: u64, register: u64) -> u64 {
    receive(queue, register) + if queue < 4 { 0x1000 } else { 0x2000 }
}

pub fn transmit_ring(queue: u64) -> u64 {
    0x1_0000 + queue * 0x2000
}

pub fn receive_ring(queue: u64) -> u64 {
    0x4_0000 + queue * 0x2000
}

/// Buffers of transmit descriptors.
pub const TX_DATA: u64 = 0x10_0000;

pub fn buffer(queue: u64, index: u64) -> u64 {
    0x20_0000 + queue * 0x8_0000 + index * 2048
}

/// Header buffers, for split packets.
pub fn header_buffer(index: u64) -> u64 {
    0xe0_0000 + index * 256
}

/// The next descriptor of each transmit queue.
pub struct Queues {
    next: [u64; 16],
}

pub type Guest = Bench<Queues>;

impl Guest {
    pub fn new() -> Self {
        Self::around(adapter("igb"), Queues { next: [0; 16] })
    }

    /// igb_probe, igb_open: reset, link, queue 0 for all frames.
    pub fn opened() -> Self {
        let mut this = Self::new();
        this.start("igb");
        this.w(TCTL, 0x0003_f0fa);
        this.w(RXCSUM, 0x2b00);
        this.open_queue(0);
        this.w(RCTL, RCTL_LINUX);
        this
    }

    /// igb_configure_tx_ring, igb_configure_rx_ring, igb_alloc_rx_buffers.
    pub fn open_queue(&mut self, queue: u64) {
        let at = |register| transmit(queue, register);
        for (register, value) in
            [(0x28, 0), (0x08, RING as u32 * 16), (0x00, transmit_ring(queue) as u32), (0x04, 0), (0x10, 0), (0x18, 0)]
        {
            self.w(at(register), value);
        }
        self.w(at(0x28), ENABLE);
        self.open_receive_queue(queue, SRRCTL_LINUX);
    }

    pub fn open_receive_queue(&mut self, queue: u64, srrctl: u32) {
        let at = |register| receive(queue, register);
        for index in 0..RING {
            let mut descriptor = [0; 16];
            descriptor[..8].copy_from_slice(&buffer(queue, index).to_le_bytes());
            if srrctl >> 25 & 7 != 1 {
                descriptor[8..].copy_from_slice(&header_buffer(index).to_le_bytes());
            }
            self.put(receive_ring(queue) + index * 16, &descriptor);
        }
        for (register, value) in
            [(0x28, 0), (0x00, receive_ring(queue) as u32), (0x04, 0), (0x08, RING as u32 * 16), (0x10, 0), (0x18, 0)]
        {
            self.w(at(register), value);
        }
        self.w(at(0x0c), srrctl);
        self.w(at(0x28), ENABLE | 4 << 16 | 8 << 8 | 8);
        self.w(at(0x18), RING as u32 - 1);
    }

    /// igb_configure_msix and igb_irq_enable with these queues: vector 0 is for other causes, queue n has vector n + 1.
    pub fn open_msix(&mut self, queues: u64) {
        self.message_control(0x70, 0x80);
        self.w(GPIE, 0xc000_0011);
        self.w(IVAR_MISC, 0x8000);
        for queue in 0..queues {
            let at = IVAR + 4 * (queue & 7);
            let shift = (queue & 8) << 1;
            let vector = 0x80 | (queue as u32 + 1);
            let row = self.r(at);
            self.w(at, row | (vector | vector << 8) << shift);
        }
        let all = (1 << (queues + 1)) - 1;
        for register in [EIAC, EIAM, EIMS] {
            self.w(register, all);
        }
        self.w(IMS, 1 << 2 | 1 << 28 | 1 << 30);
    }

    /// Enables MSI (0x50) or MSI-X (0x70).
    pub fn message_control(&mut self, capability: u16, high: u8) {
        let (at, byte) = if capability == 0x70 { (capability + 3, high) } else { (capability + 2, 1) };
        self.config_write(at, &[byte]);
    }

    /// Puts a descriptor into a transmit ring.
    pub fn push(&mut self, queue: u64, words: [u32; 4]) {
        let at = transmit_ring(queue) + self.next[queue as usize] * 16;
        self.put(at, &words.map(u32::to_le_bytes).concat());
        self.next[queue as usize] = (self.next[queue as usize] + 1) % RING;
    }

    pub fn ring(&mut self, queue: u64) {
        let tail = self.next[queue as usize] as u32;
        self.w(transmit(queue, 0x18), tail);
    }

    /// Sends a packet in one buffer, without offloads.
    pub fn send_plain(&mut self, queue: u64, packet: &[u8]) -> Vec<Wire> {
        self.put(TX_DATA, packet);
        self.push(queue, [TX_DATA as u32, 0, DATA | packet.len() as u32, (packet.len() as u32) << 14]);
        self.ring(queue);
        self.drain(queue)
    }

    /// Sends a queue's packets until it is empty.
    pub fn drain(&mut self, queue: u64) -> Vec<Wire> {
        self.fetch_all(queue as u16, cut)
    }

    pub fn done(&self, queue: u64, index: u64) -> bool {
        self.get(transmit_ring(queue) + index * 16 + 12, 1)[0] & 1 != 0
    }

    /// A receive descriptor as four words.
    pub fn written(&self, queue: u64, index: u64) -> [u32; 4] {
        [0, 4, 8, 12].map(|at| self.get32(receive_ring(queue) + index * 16 + at))
    }

    /// The buffer of a receive descriptor.
    pub fn buffer(&self, queue: u64, index: u64, len: usize) -> Vec<u8> {
        self.get(buffer(queue, index), len)
    }
}
