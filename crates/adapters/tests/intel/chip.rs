//! A chip of the family with one ring in each direction. All chips have queue 0's registers at the 8254x's addresses (317453,
//! chapter 13; the 82576 keeps them as aliases: its datasheet, 8.1.3).

use nicety_adapter::{Batch, Frames, Pick, Unfolded, Wants};

use crate::bench::*;

pub const TDBAL: u64 = 0x3800;
pub const TDLEN: u64 = 0x3808;
pub const RDBAL: u64 = 0x2800;
pub const RDLEN: u64 = 0x2808;
pub const SRRCTL: u64 = 0x280c;
pub const RXDCTL: u64 = 0x2828;
pub const TXDCTL: u64 = 0x3828;
/// RCTL: the MAC loops frames back.
pub const LOOPBACK: u32 = 1 << 6;
/// RCTL: accepts frames of more than 1522 bytes.
pub const LONG: u32 = 1 << 5;
/// RCTL: accepts all unicast.
pub const PROMISCUOUS: u32 = 1 << 3;
/// Data descriptors: the packet's last.
pub const EOP: u32 = 1 << 24;

/// The names of all chips.
pub const CHIPS: [&str; 5] = ["e1000", "e1000-82545em", "e1000-82544gc", "e1000e", "igb"];

/// A context's content, for both kinds of context.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cut {
    /// Bytes before the IP header.
    pub link: u32,
    /// Bytes of the IP header.
    pub network: u32,
    /// Bytes of all headers.
    pub headers: u32,
    /// Payload of a segment.
    pub mss: u32,
}

/// The lengths of Ethernet, IPv4 and TCP.
pub const TCP4: Cut = Cut { link: 14, network: 20, headers: 54, mss: 1448 };

/// A chip's name, and its next transmit descriptor.
pub struct Ring {
    pub name: &'static str,
    pub next: u64,
}

/// An opened chip.
pub type Chip = Bench<Ring>;

/// Runs a test with each chip, opened.
pub fn each(test: impl Fn(&mut Chip)) {
    for name in CHIPS {
        println!("{name}");
        test(&mut Chip::opened(name));
    }
}

impl Chip {
    pub fn opened(name: &'static str) -> Self {
        let mut this = Self::around(adapter(name), Ring { name, next: 0 });
        this.start(name);
        this.open_rings(RING as u32);
        this
    }

    /// Restarts both rings with this many descriptors.
    pub fn open_rings(&mut self, size: u32) {
        self.next = 0;
        self.open_transmit(TX_RING, size);
        if self.is_igb() {
            // One buffer of 2 KiB, advanced descriptors; queues on (igb_configure_rx_ring).
            self.w(SRRCTL, 2 | 1 << 25);
            self.w(TXDCTL, 1 << 25);
            self.w(RXDCTL, 1 << 25);
        }
        self.open_receive(RX_RING, size, RCTL_LINUX | PROMISCUOUS, 2048);
    }

    pub fn is_igb(&self) -> bool {
        self.name == "igb"
    }

    fn put_next(&mut self, words: [u32; 4]) {
        let at = TX_RING + self.next * 16;
        self.put(at, &words.map(u32::to_le_bytes).concat());
        self.next = (self.next + 1) % RING;
    }

    /// Adds a part of a packet: a data descriptor, with RS and IFCS. `command` adds flags such as EOP; `options` is POPTS.
    pub fn data(&mut self, address: u64, len: u32, command: u32, cut: bool, options: u32) {
        let (low, high) = (address as u32, (address >> 32) as u32);
        let report = 1 << 27 | 1 << 25 | 1 << 29 | command;
        if self.is_igb() {
            let cut = if cut { 1 << 31 } else { 0 };
            self.put_next([low, high, 0x3 << 20 | report | cut | len & 0xffff, (len & 0x3_ffff) << 14 | options << 8]);
        } else {
            let cut = if cut { 1 << 26 } else { 0 };
            self.put_next([low, high, 1 << 20 | report | cut | len & 0xf_ffff, options << 8]);
        }
    }

    /// Adds a context for TCP over IPv4, for segmented packets or others.
    pub fn context(&mut self, cut: Cut) {
        let Cut { link, network, headers, mss } = cut;
        let transport = link + network;
        if self.is_igb() {
            let l4 = headers.saturating_sub(transport) & 0xff;
            let kind = 0x2 << 20 | 1 << 29 | 1 << 11 | 1 << 10;
            self.put_next([network & 0x1ff | (link & 0x7f) << 9, 0, kind, mss << 16 | l4 << 8]);
        } else {
            let byte = |value: u32| value & 0xff;
            let ip = byte(link) | byte(link + 10) << 8 | (transport.saturating_sub(1) & 0xffff) << 16;
            let tcp = byte(transport) | byte(transport + 16) << 8;
            // These chips keep one context for segmented packets, and one for others.
            for cut in [0, 1 << 26] {
                self.put_next([ip, tcp, 1 << 29 | cut | 1 << 25 | 1 << 24, byte(headers) << 8 | mss << 16]);
            }
        }
    }

    /// Lets the chip send until it stops, in a bounded number of bounded calls. Returns the number of packets sent.
    pub fn run(&mut self) -> usize {
        self.send_all(Batch::len)
    }

    /// The same; returns the number of frames for a receiver without offloads.
    pub fn run_frames(&mut self) -> usize {
        self.send_all(frames_of)
    }

    fn send_all(&mut self, count: impl Fn(&Batch) -> usize) -> usize {
        let tail = self.next as u32;
        self.w(TDT, tail);
        let mut counted = 0;
        for _ in 0..64 {
            let progress = self.fetch();
            counted += count(&self.batch);
            self.complete();
            if !progress.more {
                return counted;
            }
        }
        panic!("{}: a ring of {RING} descriptors that never empties", self.name);
    }

    /// Asserts that all posted descriptors have come back.
    pub fn assert_empty(&mut self) {
        assert_eq!(u64::from(self.r(TDH)), self.next, "{}", self.name);
    }

    /// Refills the receive ring with buffers at this distance, and posts them all.
    pub fn post(&mut self, base: u64, stride: u64) {
        for index in 0..RING {
            self.put(RX_RING + index * 16, &(base + index * stride).to_le_bytes());
            self.put(RX_RING + index * 16 + 8, &[0; 8]);
        }
        self.w(RDH, 0);
        self.w(RDT, RING as u32 - 1);
    }
}

/// Frames that a batch's packets are for a receiver that takes 1514 bytes.
fn frames_of(batch: &Batch) -> usize {
    let mut frames = 0;
    for packet in 0..batch.len() as u16 {
        let picks = [Pick::whole(packet)];
        let wants = Wants { frame_max: 1514, ..Wants::default() };
        if let Ok(unfolded) = Unfolded::new(&Frames::new(batch, &picks), picks[0], wants) {
            frames += unfolded.count() as usize;
        }
    }
    frames
}
