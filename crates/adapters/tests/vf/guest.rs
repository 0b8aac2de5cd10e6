//! A guest whose driver follows Linux's igbvf, with the family that answers it.

use nicety_adapter::family::Family;
use nicety_adapter::{Event, Outbox};
use nicety_adapters::intel::vf::family::{FunctionPolicy, PhysicalFunction, igb};
use nicety_frame::Mac;

use crate::bench::{Bench, MAC, Wire, adapter, cut};

pub const CTRL: u64 = 0x0000;
pub const STATUS: u64 = 0x0008;
pub const VMBMEM: u64 = 0x0800;
pub const V2PMAILBOX: u64 = 0x0c40;
pub const VFGPRC: u64 = 0x0f10;
pub const VFGPTC: u64 = 0x0f14;
pub const VFGORC: u64 = 0x0f18;
pub const VFGOTC: u64 = 0x0f34;
pub const VFMPRC: u64 = 0x0f3c;
pub const EICS: u64 = 0x1520;
pub const EIMS: u64 = 0x1524;
pub const EIAC: u64 = 0x152c;
pub const EIAM: u64 = 0x1530;
pub const EICR: u64 = 0x1580;
pub const IVAR0: u64 = 0x1700;
pub const IVAR_MISC: u64 = 0x1740;
pub const SRRCTL: u64 = 0x280c;
pub const RDH: u64 = 0x2810;
pub const RDT: u64 = 0x2818;
pub const RXDCTL: u64 = 0x2828;
pub const TDH: u64 = 0x3810;
pub const TDT: u64 = 0x3818;

/// V2PMAILBOX.
pub const REQ: u32 = 1;
pub const ACK: u32 = 2;
pub const VFU: u32 = 4;
pub const PFSTS: u32 = 0x10;
pub const PFACK: u32 = 0x20;
pub const RSTI: u32 = 0x40;
pub const RSTD: u32 = 0x80;

/// E1000_SRRCTL_DROP_EN, ADV_ONEBUF, 2 KiB: for an MTU of 1500.
pub const SRRCTL_LINUX: u32 = 1 << 31 | 0x0200_0000 | 2;
pub const ENABLE: u32 = 1 << 25;
/// DEXT, IFCS, EOP, RS and advanced data.
pub const DATA: u32 = 0x2b30_0000;
pub const RING: u64 = 256;
pub const TRANSMIT_RING: u64 = 0x1_0000;
pub const RECEIVE_RING: u64 = 0x2_0000;
pub const TX_DATA: u64 = 0x10_0000;

/// Bytes of a buffer for an MTU of 1500: ETH_FRAME_LEN, VLAN_HLEN and ETH_FCS_LEN.
pub const BUFFER: u64 = 1522;

pub fn buffer(index: u64) -> u64 {
    0x20_0000 + index * BUFFER
}

/// Page halves, for split packets.
pub fn page(index: u64) -> u64 {
    0x40_0000 + index * 2048
}

pub struct Driver {
    family: PhysicalFunction,
    next: u64,
}

pub type Guest = Bench<Driver>;

impl Guest {
    /// A new function of a host that trusts it, or does not.
    pub fn new(trusted: bool) -> Self {
        let family =
            igb::card(vec![FunctionPolicy { trusted, queries_rss: trusted, ..FunctionPolicy::free(Mac(MAC)) }]);
        let mut this = Self::around(adapter("igbvf"), Driver { family, next: 0 });
        this.config_write(4, &[6, 0]);
        this
    }

    /// The host changes the function's policy.
    pub fn host_sets(&mut self, change: impl FnOnce(&mut FunctionPolicy)) {
        let mut policy = self.own.family.policy(0).unwrap();
        change(&mut policy);
        if let Some(answer) = self.own.family.set_policy(0, policy) {
            self.call(|nic, cx| nic.notice(Event::Answer(answer), cx));
        }
    }

    /// The host resets the card.
    pub fn host_resets(&mut self) {
        let answer = self.own.family.reset(0);
        self.call(|nic, cx| nic.notice(Event::Answer(answer), cx));
    }

    /// A function whose driver has reset it.
    pub fn ready(trusted: bool) -> Self {
        let mut this = Self::new(trusted);
        this.exchange(&[1]);
        this
    }

    /// igbvf_open, with an MTU of 1500.
    pub fn opened() -> Self {
        let mut this = Self::ready(true);
        this.open();
        this
    }

    pub fn open(&mut self) {
        for (register, value) in
            [(0x28, 0), (0x08, RING as u32 * 16), (0x00, TRANSMIT_RING as u32), (0x04, 0), (0x10, 0), (0x18, 0)]
        {
            self.w(0x3800 + register, value);
        }
        self.w(0x3828, ENABLE);
        self.open_receive_ring(SRRCTL_LINUX, 1522);
    }

    /// igbvf_setup_srrctl, igbvf_configure_rx, igbvf_alloc_rx_buffers.
    pub fn open_receive_ring(&mut self, srrctl: u32, longest: u32) {
        self.w(SRRCTL, srrctl);
        let split = srrctl >> 25 & 7 == 5;
        for index in 0..RING {
            let (packet, headers) = if split { (page(index), buffer(index)) } else { (buffer(index), 0) };
            self.put64(RECEIVE_RING + index * 16, packet);
            self.put64(RECEIVE_RING + index * 16 + 8, headers);
        }
        self.w(RXDCTL, 0);
        for (register, value) in
            [(0x00, RECEIVE_RING as u32), (0x04, 0), (0x08, RING as u32 * 16), (0x10, 0), (0x18, 0)]
        {
            self.w(0x2800 + register, value);
        }
        assert_eq!(self.exchange(&[5, longest])[0], 0xa000_0005);
        self.w(RXDCTL, ENABLE | 1 << 16 | 8 << 8 | 16);
        self.w(RDT, RING as u32 - 1);
    }

    /// igbvf_configure_msix and igbvf_irq_enable.
    pub fn open_msix(&mut self) {
        self.config_write(0x73, &[0x80]);
        self.w(IVAR0, 0x81 | 0x80 << 8);
        self.w(IVAR_MISC, 0x82);
        self.r(EICR);
        for register in [EIAC, EIAM, EIMS] {
            self.w(register, 7);
        }
    }

    /// Takes the function's asks to its family, as a port does.
    pub fn answer(&mut self) {
        if !self.out.stalled.contains(Outbox::ASK) {
            return;
        }
        self.out.stalled.remove(Outbox::ASK);
        while let Some(ask) = self.call(|nic, _| nic.ask()) {
            let answer = self.own.family.answer(0, &ask);
            self.call(|nic, cx| nic.notice(Event::Answer(answer), cx));
        }
    }

    /// A write, and what the family makes of it.
    pub fn ask(&mut self, register: u64, value: u32) {
        self.w(register, value);
        self.answer();
    }

    /// Writes words and REQ, whoever has the mailbox.
    pub fn send_words(&mut self, words: &[u32]) {
        for (at, word) in (VMBMEM..VMBMEM + 64).step_by(4).zip(words) {
            self.w(at, *word);
        }
        self.ask(V2PMAILBOX, REQ);
    }

    /// e1000_write_mbx_vf: takes the mailbox, writes a message, and gives it over.
    pub fn send_message(&mut self, words: &[u32]) {
        self.w(V2PMAILBOX, VFU);
        assert_eq!(self.r(V2PMAILBOX) & VFU, VFU);
        for (at, word) in (VMBMEM..).step_by(4).zip(words) {
            self.w(at, *word);
        }
        self.ask(V2PMAILBOX, REQ);
    }

    /// e1000_read_mbx_vf.
    pub fn read_message(&mut self) -> [u32; 16] {
        self.w(V2PMAILBOX, VFU);
        assert_eq!(self.r(V2PMAILBOX) & VFU, VFU);
        let words = std::array::from_fn(|n| self.r(VMBMEM + 4 * n as u64));
        self.ask(V2PMAILBOX, ACK);
        words
    }

    /// A message and its reply.
    pub fn exchange(&mut self, words: &[u32]) -> [u32; 16] {
        self.send_message(words);
        assert_eq!(self.r(V2PMAILBOX) & (PFACK | PFSTS), PFACK | PFSTS, "the message was read and answered");
        self.read_message()
    }

    /// Sends a packet in one buffer, without offloads.
    pub fn send_plain(&mut self, packet: &[u8]) -> Vec<Wire> {
        self.put(TX_DATA, packet);
        let words = [TX_DATA as u32, 0, DATA | packet.len() as u32, (packet.len() as u32) << 14];
        let at = TRANSMIT_RING + self.own.next * 16;
        self.put(at, &words.map(u32::to_le_bytes).concat());
        self.own.next = (self.own.next + 1) % RING;
        let tail = self.own.next as u32;
        self.w(0x3818, tail);
        self.fetch_all(0, cut)
    }

    /// A receive descriptor as four words.
    pub fn written(&self, index: u64) -> [u32; 4] {
        [0, 4, 8, 12].map(|at| self.get32(RECEIVE_RING + index * 16 + at))
    }
}
