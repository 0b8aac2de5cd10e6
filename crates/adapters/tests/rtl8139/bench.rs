//! A guest with one adapter: memory, rings and a driver's steps; and a wire that takes and sends frames.

use std::sync::Arc;

use nicety_adapter::{
    Adapter, Batch, Budget, Context, Counters, Delivery, Face, Frames, Offload, Outbox, Pick, PortId, Scratch, Time,
    Unfolded, Wants,
};
use nicety_adapters::Settings;
use nicety_frame::Mac;
use nicety_memory::{Map, Rights, Span};

pub const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
pub const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Addresses in the guest's memory.
pub const TX_RING: u64 = 0x1_0000;
pub const RX_RING: u64 = 0x2_0000;
pub const TX_DATA: u64 = 0x10_0000;
pub const RX_DATA: u64 = 0x40_0000;
pub const RING: u64 = 64;
/// Linux's PKT_BUF_SZ.
pub const BUFFER: u64 = 1536;

pub struct Bench {
    pub nic: Box<dyn Adapter>,
    pub map: Arc<Map>,
    pub out: Outbox,
    pub counters: Counters,
    pub now: Time,
    batch: Batch,
}

impl Bench {
    /// A new adapter with bus mastering enabled.
    pub fn of(model: &str) -> Self {
        let nic = (nicety_adapters::find(model).unwrap().create)(&Settings::new(Mac(MAC))).unwrap();
        let map = Arc::new(Map::private(8 << 20).unwrap());
        let (out, counters) = (Outbox::default(), Counters::default());
        let mut this = Self { nic, map, out, counters, now: Time(1_000_000), batch: Batch::new() };
        this.command(0x0107);
        this
    }

    /// Opened as 8139cp.c does: cp_init_hw, cp_enable_irq.
    pub fn opened() -> Self {
        let mut this = Self::of("rtl8139");
        for i in 0..RING {
            let end = if i + 1 == RING { 1 << 30 } else { 0 };
            this.post(i, 0x8000_0000 | end | BUFFER as u32, RX_DATA + i * 0x1000);
            this.put(TX_RING + 16 * i, &[0, 0, 0, (end >> 24) as u8]);
        }
        this.w8(0x37, 0x10);
        assert_eq!(this.r8(0x37) & 0x10, 0);
        this.w8(0x50, 0xc0);
        this.w16(0xe0, 0x003b);
        for (register, value) in [(0x28, 0), (0x2c, 0), (0xe4, RX_RING), (0xe8, 0), (0x20, TX_RING), (0x24, 0)] {
            this.w(register, value as u32);
        }
        this.w8(0x37, 0x0c);
        this.w8(0xec, 6);
        this.w(0x44, 0x0000_a40a);
        this.w(0x40, 0x0300_0600);
        this.w8(0x50, 0);
        this.w16(0x3c, 0x80ff);
        this
    }

    /// Opened as 8139too.c does, with a receive buffer of 32 KiB whose last frame may continue past the end.
    pub fn opened_plain(model: &str) -> Self {
        let mut this = Self::of(model);
        this.w8(0x37, 0x10);
        this.w(0x30, RX_DATA as u32);
        this.w8(0x37, 0x0c);
        this.w(0x44, 0x0000_e78a | 2 << 11);
        this.w(0x40, 0x0300_0680);
        for slot in 0..4 {
            this.w(0x20 + 4 * slot, TX_DATA as u32 + 0x800 * slot as u32);
        }
        this.w16(0x3c, 0xe07f);
        this
    }

    pub fn call<T>(&mut self, f: impl FnOnce(&mut dyn Adapter, &mut Context<'_>) -> T) -> T {
        let mut cx =
            Context { memory: &self.map, page: None, out: &mut self.out, counters: &mut self.counters, now: self.now };
        f(&mut *self.nic, &mut cx)
    }

    pub fn read(&mut self, offset: u64, data: &mut [u8]) {
        self.call(|nic, cx| match nic.face() {
            Face::Pci(face) => face.read(1, offset, data, cx),
            Face::Rings(_) => unreachable!("a PCI function"),
        });
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.call(|nic, cx| match nic.face() {
            Face::Pci(face) => face.write(1, offset, data, cx),
            Face::Rings(_) => unreachable!("a PCI function"),
        });
    }

    pub fn r8(&mut self, offset: u64) -> u8 {
        let mut data = [0];
        self.read(offset, &mut data);
        data[0]
    }

    pub fn r16(&mut self, offset: u64) -> u16 {
        let mut data = [0; 2];
        self.read(offset, &mut data);
        u16::from_le_bytes(data)
    }

    pub fn r(&mut self, offset: u64) -> u32 {
        let mut data = [0; 4];
        self.read(offset, &mut data);
        u32::from_le_bytes(data)
    }

    pub fn w8(&mut self, offset: u64, value: u8) {
        self.write(offset, &[value]);
    }

    pub fn w16(&mut self, offset: u64, value: u16) {
        self.write(offset, &value.to_le_bytes());
    }

    pub fn w(&mut self, offset: u64, value: u32) {
        self.write(offset, &value.to_le_bytes());
    }

    pub fn command(&mut self, value: u16) {
        self.call(|nic, cx| match nic.face() {
            Face::Pci(face) => face.config_write(4, &value.to_le_bytes(), cx),
            Face::Rings(_) => unreachable!("a PCI function"),
        });
    }

    pub fn put(&self, at: u64, bytes: &[u8]) {
        self.map.write(at, bytes).unwrap();
    }

    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.map.read(at, &mut bytes).unwrap();
        bytes
    }

    pub fn get32(&self, at: u64) -> u32 {
        u32::from_le_bytes(self.get(at, 4).try_into().unwrap())
    }

    /// Writes a receive descriptor.
    pub fn post(&self, index: u64, first: u32, address: u64) {
        self.put(RX_RING + 16 * index, &first.to_le_bytes());
        self.put(RX_RING + 16 * index + 4, &[0; 4]);
        self.put(RX_RING + 16 * index + 8, &address.to_le_bytes());
    }

    /// Writes a transmit descriptor, with its own piece of memory, and keeps EOR.
    pub fn describe(&self, index: u64, first: u32, second: u32, address: u64) {
        let end = if index + 1 == RING { 1 << 30 } else { 0 };
        self.put(TX_RING + 16 * index, &(first | end).to_le_bytes());
        self.put(TX_RING + 16 * index + 4, &second.to_le_bytes());
        self.put(TX_RING + 16 * index + 8, &address.to_le_bytes());
    }

    /// A frame in one descriptor that the chip owns.
    pub fn queue(&self, index: u64, frame: &[u8], flags: u32, second: u32) {
        let at = TX_DATA + index * 0x1_0000 % 0x30_0000;
        self.put(at, frame);
        self.describe(index, 0xb000_0000 | flags | frame.len() as u32, second, at);
    }

    /// Calls fetch once and completes. Returns the packets, and whether there may be more.
    pub fn turn(&mut self) -> (Vec<(Vec<u8>, Offload)>, bool) {
        self.turn_with(|_| ())
    }

    /// The same, with an action of the guest before the completion.
    pub fn turn_with(&mut self, does: impl FnOnce(&mut Self)) -> (Vec<(Vec<u8>, Offload)>, bool) {
        let mut batch = std::mem::take(&mut self.batch);
        batch.start(&self.map, PortId(1), 0);
        let progress = self.call(|nic, cx| nic.fetch(0, Budget::TURN, &mut batch, cx));
        let packets = packets(&batch);
        does(self);
        self.call(|nic, cx| nic.complete(&batch, cx));
        self.batch = batch;
        (packets, progress.more)
    }

    /// Writes the doorbell, and takes packets until none is left.
    pub fn transmit(&mut self) -> Vec<(Vec<u8>, Offload)> {
        self.w8(0xd9, 0x40);
        self.drain()
    }

    pub fn drain(&mut self) -> Vec<(Vec<u8>, Offload)> {
        let mut all = Vec::new();
        for _ in 0..1000 {
            let (packets, more) = self.turn();
            all.extend(packets);
            if !more {
                return all;
            }
        }
        panic!("a transmit queue that never empties");
    }

    /// Delivers a frame from another port.
    pub fn bring(&mut self, frame: &[u8], offload: Offload) -> Delivery {
        let map = Arc::new(Map::private(1 << 20).unwrap());
        let mut batch = Batch::new();
        batch.start(&map, PortId(2), 0);
        map.write(0, frame).unwrap();
        let mut draft = batch.draft(0).unwrap();
        draft.push(0, frame.len() as u32).unwrap();
        draft.finish(offload, 0).unwrap();
        self.call(|nic, cx| nic.deliver(&Frames::new(&batch, &[Pick::whole(0)]), cx))
    }

    pub fn bring_one(&mut self, frame: &[u8]) -> bool {
        self.bring(frame, Offload::default()).refused() == 0
    }

    /// Lets time pass, with the adapter's requested wake-ups.
    pub fn pass(&mut self, ns: u64) {
        let end = self.now.after_ns(ns);
        while let Some(at) = self.out.wake.take().filter(|at| *at <= end) {
            self.now = at.max(self.now);
            self.call(|nic, cx| nic.tick(cx));
        }
        self.now = end;
        self.call(|nic, cx| nic.tick(cx));
    }

    /// The line's level, if it was reported since the last call.
    pub fn line(&mut self) -> Option<bool> {
        self.out.line.take()
    }
}

/// The packets of a batch, whole, for a receiver that accepts every offload.
fn packets(batch: &Batch) -> Vec<(Vec<u8>, Offload)> {
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
        let (pick, picks) = (Pick::whole(packet), [Pick::whole(packet)]);
        let frames = Frames::new(batch, &picks);
        let wants = Wants { frame_max: 70_000, tcp4: true, tcp6: true, udp: true, partial: false, ..Wants::default() };
        let unfolded = Unfolded::new(&frames, pick, wants).unwrap();
        let mut piece = unfolded.piece(0, &mut scratch).unwrap();
        let (len, offload) = (piece.len() as usize, piece.offload);
        piece.write(&target, &spans);
        let mut bytes = vec![0; len];
        target.read(0, &mut bytes).unwrap();
        out.push((bytes, offload));
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

/// An Ethernet frame of an experimental protocol.
pub fn frame(to: [u8; 6], len: usize, seed: u8) -> Vec<u8> {
    let mut frame = [&to[..], &PEER, &[0x88, 0xb5]].concat();
    frame.extend((14..len).map(|at| at as u8 ^ seed));
    frame
}

/// TCP or UDP over IPv4 with this payload. Header checksum and transport checksum are zero.
pub fn ip(to: [u8; 6], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let transport: &[u8] = match protocol {
        6 => &[0x10, 0, 0x20, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0],
        _ => &[0x10, 0, 0x20, 0, 0, 0, 0, 0],
    };
    let total = (20 + transport.len() + payload.len()) as u16;
    let mut bytes = [&to[..], &PEER, &[8, 0, 0x45, 0], &total.to_be_bytes()].concat();
    bytes.extend([0x12, 0x34, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend(transport);
    if protocol == 17 {
        bytes[38..40].copy_from_slice(&(total - 20).to_be_bytes());
    }
    bytes.extend(payload);
    bytes
}

/// Whether the header and transport checksums of such a frame are right.
pub fn is_right(frame: &[u8]) -> (bool, bool) {
    let total = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    let end = 14 + total;
    let pseudo = [&frame[26..34], &[0, frame[23]], &((total - 20) as u16).to_be_bytes(), &frame[34..end]].concat();
    (rfc1071(&frame[14..34]) == 0xffff, rfc1071(&pseudo) == 0xffff)
}

/// The same frame with both checksums right.
pub fn summed(mut frame: Vec<u8>) -> Vec<u8> {
    let field = if frame[23] == 6 { 50 } else { 40 };
    let header = !rfc1071(&frame[14..34]);
    frame[24..26].copy_from_slice(&header.to_be_bytes());
    let len = (frame.len() - 34) as u16;
    let pseudo = [&frame[26..34], &[0, frame[23]], &len.to_be_bytes(), &frame[34..]].concat();
    let sum = !rfc1071(&pseudo);
    frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    frame
}
