//! A guest with one adapter: memory, rings and a driver's steps; and a wire that takes and sends frames.

use std::sync::Arc;

use nicety_adapter::{
    Adapter, Batch, Budget, Context, Counters, Delivery, Edit, Event, Face, Frames, Offload, Outbox, Pick, PortId,
    Progress, Scratch, Time, Unfolded, Wants,
};
use nicety_adapters::Settings;
use nicety_frame::Mac;
use nicety_memory::{Map, Rights, Span};

pub const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
pub const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];

pub const CTRL: u64 = 0x0;
pub const STATUS: u64 = 0x8;
pub const MDIC: u64 = 0x20;
pub const ICR: u64 = 0xc0;
pub const ITR: u64 = 0xc4;
pub const ICS: u64 = 0xc8;
pub const IMS: u64 = 0xd0;
pub const IMC: u64 = 0xd8;
pub const RCTL: u64 = 0x100;
pub const TCTL: u64 = 0x400;
pub const RDH: u64 = 0x2810;
pub const RDT: u64 = 0x2818;
pub const TDH: u64 = 0x3810;
pub const TDT: u64 = 0x3818;
pub const RXCSUM: u64 = 0x5000;

/// RCTL as Linux sets it: EN, BAM, 2048-byte buffers, RDMTS half.
pub const RCTL_LINUX: u32 = 0x8002;
/// EOP, IFCS, RS.
pub const CMD: u32 = 0x0b00_0000;
pub const RING: u64 = 256;

/// Addresses in the guest's memory.
pub const TX_RING: u64 = 0x1_0000;
pub const RX_RING: u64 = 0x2_0000;
pub const TX_DATA: u64 = 0x10_0000;
pub const RX_DATA: u64 = 0x40_0000;

pub struct Bench {
    pub nic: Box<dyn Adapter>,
    pub map: Arc<Map>,
    pub out: Outbox,
    pub counters: Counters,
    pub now: Time,
    pub batch: Batch,
    pub accesses: u64,
}

/// A frame on the wire.
pub type Wire = Vec<u8>;

impl Bench {
    pub fn new() -> Self {
        Self::of("e1000")
    }

    /// A bench with this model.
    pub fn of(model: &str) -> Self {
        let nic = (nicety_adapters::find(model).unwrap().create)(&Settings::new(Mac(MAC))).unwrap();
        let map = Arc::new(Map::private(16 << 20).unwrap());
        let (out, counters) = (Outbox::default(), Counters::default());
        Self { nic, map, out, counters, now: Time(1_000_000), batch: Batch::new(), accesses: 0 }
    }

    /// Probed and opened as Linux does, with rings of 256.
    pub fn opened() -> Self {
        Self::opened_of("e1000")
    }

    /// The same with this model.
    pub fn opened_of(model: &str) -> Self {
        let mut this = Self::of(model);
        this.command(0x0107);
        this.reset();
        let ctrl = this.r(CTRL);
        this.w(CTRL, ctrl | 0x40);
        this.open_transmit(TX_RING, RING as u32);
        this.open_receive(RX_RING, RING as u32, RCTL_LINUX, 2048);
        this
    }

    pub fn call<T>(&mut self, f: impl FnOnce(&mut dyn Adapter, &mut Context<'_>) -> T) -> T {
        let mut cx =
            Context { memory: &self.map, page: None, out: &mut self.out, counters: &mut self.counters, now: self.now };
        f(&mut *self.nic, &mut cx)
    }

    pub fn access(&mut self, bar: u8, offset: u64, data: &mut [u8], write: bool) {
        self.accesses += 1;
        self.call(|nic, cx| match nic.face() {
            Face::Pci(face) if write => face.write(bar, offset, data, cx),
            Face::Pci(face) => face.read(bar, offset, data, cx),
            Face::Rings(_) => unreachable!("a PCI function"),
        });
    }

    pub fn r(&mut self, offset: u64) -> u32 {
        let mut data = [0; 4];
        self.access(0, offset, &mut data, false);
        u32::from_le_bytes(data)
    }

    pub fn w(&mut self, offset: u64, value: u32) {
        self.access(0, offset, &mut value.to_le_bytes(), true);
    }

    pub fn command(&mut self, value: u16) {
        self.call(|nic, cx| match nic.face() {
            Face::Pci(face) => face.config_write(4, &value.to_le_bytes(), cx),
            Face::Rings(_) => unreachable!("a PCI function"),
        });
    }

    /// Resets through I/O ports, as e1000_reset_hw does for this chip.
    pub fn reset(&mut self) {
        self.access(1, 0, &mut 0_u32.to_le_bytes(), true);
        let value = self.r(CTRL) | 0x0400_0000;
        self.access(1, 4, &mut value.to_le_bytes(), true);
    }

    pub fn open_transmit(&mut self, ring: u64, count: u32) {
        for (offset, value) in [(0x3808, count * 16), (0x3804, 0), (0x3800, ring as u32), (TDT, 0), (TDH, 0)] {
            self.w(offset, value);
        }
        self.w(TCTL, 0x0004_010a);
    }

    pub fn open_receive(&mut self, ring: u64, count: u32, rctl: u32, buffer: u64) {
        for i in 0..u64::from(count) {
            self.map.write(ring + i * 16, &(RX_DATA + i * buffer).to_le_bytes()).unwrap();
            self.map.write(ring + i * 16 + 8, &[0; 8]).unwrap();
        }
        for (offset, value) in [(0x2808, count * 16), (0x2804, 0), (0x2800, ring as u32), (RDT, 0), (RDH, 0)] {
            self.w(offset, value);
        }
        self.w(RCTL, rctl);
        self.w(RDT, count - 1);
    }

    pub fn put(&self, at: u64, bytes: &[u8]) {
        self.map.write(at, bytes).unwrap();
    }

    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.map.read(at, &mut bytes).unwrap();
        bytes
    }

    /// Writes a transmit descriptor.
    pub fn descriptor(&self, index: u64, address: u64, lower: u32, upper: u32) {
        self.put(TX_RING + index * 16, &address.to_le_bytes());
        self.put(TX_RING + index * 16 + 8, &lower.to_le_bytes());
        self.put(TX_RING + index * 16 + 12, &upper.to_le_bytes());
    }

    pub fn status_of(&self, index: u64) -> u8 {
        self.get(TX_RING + index * 16 + 12, 1)[0]
    }

    /// A receive descriptor: length, status, errors, special.
    pub fn received(&self, index: u64) -> (u16, u8, u8, u16) {
        let d = self.get(RX_RING + index * 16 + 8, 8);
        (u16::from_le_bytes([d[0], d[1]]), d[4], d[5], u16::from_le_bytes([d[6], d[7]]))
    }

    pub fn fetch(&mut self) -> Progress {
        let mut batch = std::mem::take(&mut self.batch);
        batch.start(&self.map, PortId(1), 0);
        let progress = self.call(|nic, cx| nic.fetch(0, Budget::TURN, &mut batch, cx));
        self.batch = batch;
        progress
    }

    pub fn complete(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        self.call(|nic, cx| nic.complete(&batch, cx));
        self.batch = batch;
    }

    /// Transmits until no packet is left. Returns the frames for a wire without offloads.
    pub fn transmit(&mut self) -> Vec<Wire> {
        let mut out = Vec::new();
        for _ in 0..10_000 {
            let progress = self.fetch();
            out.extend(cut(&self.batch));
            self.complete();
            if !progress.more {
                self.out.work = nicety_adapter::Set::default();
                return out;
            }
        }
        panic!("a transmit queue that never empties");
    }

    /// Delivers frames from another port.
    pub fn bring(&mut self, sender: &Sender, edit: Edit) -> Delivery {
        let picks: Vec<Pick> = (0..sender.batch.len()).map(|i| Pick { edit, ..Pick::whole(i as u16) }).collect();
        self.offer(sender, &picks)
    }

    /// Delivers some of them.
    pub fn offer(&mut self, sender: &Sender, picks: &[Pick]) -> Delivery {
        self.call(|nic, cx| nic.deliver(&Frames::new(&sender.batch, picks), cx))
    }

    pub fn bring_one(&mut self, frame: &[u8]) -> Delivery {
        self.bring(&Sender::new(&[(frame, Offload::default())]), Edit::Keep)
    }

    pub fn link(&mut self, up: bool) {
        self.call(|nic, cx| nic.notice(Event::Link(up), cx));
    }

    pub fn tick(&mut self) {
        self.call(|nic, cx| nic.tick(cx));
    }

    /// e1000_read_phy_reg.
    pub fn phy(&mut self, register: u32) -> u16 {
        self.w(MDIC, register << 16 | 1 << 21 | 0x0800_0000);
        let answer = self.r(MDIC);
        assert_eq!(answer & 0x5000_0000, 0x1000_0000, "ready, no error");
        answer as u16
    }

    /// e1000_write_phy_reg.
    pub fn set_phy(&mut self, register: u32, value: u16) {
        self.w(MDIC, u32::from(value) | register << 16 | 1 << 21 | 0x0400_0000);
        assert_eq!(self.r(MDIC) & 0x5000_0000, 0x1000_0000, "ready, no error");
    }
}

/// Another port's frames.
pub struct Sender {
    pub batch: Batch,
}

impl Sender {
    pub fn new(frames: &[(&[u8], Offload)]) -> Self {
        let map = Arc::new(Map::private(8 << 20).unwrap());
        let mut batch = Batch::new();
        batch.start(&map, PortId(2), 0);
        for (i, (frame, offload)) in frames.iter().enumerate() {
            let at = i as u64 * 0x1_8000;
            map.write(at, frame).unwrap();
            let mut draft = batch.draft(0).unwrap();
            draft.push(at, frame.len() as u32).unwrap();
            draft.finish(*offload, 0).unwrap();
        }
        Self { batch }
    }
}

/// The packets of a batch, cut into frames of at most 1514 bytes (tags not counted). Longer frames stay as they are.
pub fn cut(batch: &Batch) -> Vec<Wire> {
    let target = Map::private(1 << 20).unwrap();
    let mut spans: Vec<Span> = Vec::new();
    let push = |span| {
        spans.push(span);
        true
    };
    target.translate(0, 1 << 20, Rights::WRITE, push).unwrap();
    let mut scratch = Scratch::new();
    let mut out = Vec::new();
    for packet in 0..batch.len() as u16 {
        let pick = Pick::whole(packet);
        let picks = [pick];
        let frames = Frames::new(batch, &picks);
        let wants = Wants { frame_max: 16_384, verify: true, ..Wants::default() };
        let unfolded = Unfolded::new(&frames, pick, wants).unwrap();
        for index in 0..unfolded.count() {
            let mut piece = unfolded.piece(index, &mut scratch).unwrap();
            let len = piece.len() as usize;
            piece.write(&target, &spans);
            let mut bytes = vec![0; len];
            target.read(0, &mut bytes).unwrap();
            out.push(bytes);
        }
    }
    out
}

/// The checksum of RFC 1071, section 4.1.
pub fn rfc1071(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks(2).map(|c| u32::from(c[0]) << 8 | c.get(1).map_or(0, |b| u32::from(*b))).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// An Ethernet II frame from the peer to this adapter.
pub fn ethernet(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::from(MAC);
    frame.extend(PEER);
    frame.extend(ethertype.to_be_bytes());
    frame.extend(payload);
    frame
}

/// An IPv4 header with checksum around a payload.
pub fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let total = (20 + payload.len()) as u16;
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    let sum = !rfc1071(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(payload);
    packet
}

/// An IPv6 header around a payload.
pub fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((payload.len() as u16).to_be_bytes());
    packet.extend([next, 64]);
    for last in [1, 2] {
        packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    packet.extend(payload);
    packet
}

/// A TCP header without a checksum, with PSH and ACK, around a payload.
pub fn tcp(payload: &[u8]) -> Vec<u8> {
    let mut segment = vec![3, 232, 7, 208, 0, 0, 0, 100, 0, 0, 0, 9, 0x50, 0x18, 1, 0, 0, 0, 0, 0];
    segment.extend(payload);
    segment
}

/// The pseudo-header's sum, folded.
pub fn pseudo(ip: &[u8], protocol: u8, len: u32) -> u16 {
    let mut bytes = if ip[0] >> 4 == 4 { ip[12..20].to_vec() } else { ip[8..40].to_vec() };
    bytes.extend(len.to_be_bytes());
    bytes.extend([0, protocol]);
    rfc1071(&bytes)
}

/// Checks a frame's IP header and transport checksums. Returns the transport payload.
pub fn judged(frame: &[u8], protocol: u8, header: usize) -> Vec<u8> {
    let ip = &frame[14..];
    let (ip_len, total) = if ip[0] >> 4 == 4 {
        assert_eq!(rfc1071(&ip[..20]), 0xffff, "the IPv4 header's checksum");
        (20, usize::from(u16::from_be_bytes([ip[2], ip[3]])))
    } else {
        (40, 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]])))
    };
    let segment = &ip[ip_len..total];
    let mut all = pseudo(ip, protocol, segment.len() as u32).to_be_bytes().to_vec();
    all.extend(segment);
    assert_eq!(rfc1071(&all), 0xffff, "the transport checksum");
    segment[header..].to_vec()
}

pub fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}
