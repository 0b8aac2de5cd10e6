//! A guest with one adapter: memory, rings and a driver's steps; and a wire that takes and sends frames.

use std::sync::Arc;

use nicety_adapter::{
    Adapter, Batch, Budget, Context, Counters, Delivery, Event, Face, Frames, Outbox, Pick, PortId, Progress, Scratch,
    Set, Time, Unfolded, Wants,
};
use nicety_adapters::Settings;
use nicety_frame::Mac;
use nicety_memory::{Map, Rights, Span};

pub const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
pub const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Addresses in the guest's memory.
pub const BLOCK: u32 = 0x8000;
pub const TX_RING: u32 = 0x1_0000;
pub const RX_RING: u32 = 0x2_0000;
pub const TX_DATA: u32 = 0x10_0000;
pub const RX_DATA: u32 = 0x40_0000;
pub const MEMORY: usize = 16 << 20;

/// CSR0: INIT, STRT, STOP, TDMD, TXON, INEA, INTR, IDON, TINT, RINT, MERR, MISS, ERR.
pub const INIT: u16 = 0x0001;
pub const STRT: u16 = 0x0002;
pub const STOP: u16 = 0x0004;
pub const TDMD: u16 = 0x0008;
pub const TXON: u16 = 0x0010;
pub const INEA: u16 = 0x0040;
pub const INTR: u16 = 0x0080;
pub const IDON: u16 = 0x0100;
pub const TINT: u16 = 0x0200;
pub const RINT: u16 = 0x0400;
pub const MERR: u16 = 0x0800;
pub const MISS: u16 = 0x1000;
pub const BABL: u16 = 0x4000;

/// The upper half of a descriptor's second dword.
pub const OWN: u16 = 0x8000;
pub const ERR: u16 = 0x4000;
pub const STP: u16 = 0x0200;
pub const ENP: u16 = 0x0100;
/// A frame in one buffer, as pcnet32_start_xmit posts it.
pub const WHOLE: u16 = OWN | STP | ENP;

pub struct Bench {
    pub nic: Box<dyn Adapter>,
    pub map: Arc<Map>,
    pub out: Outbox,
    pub counters: Counters,
    pub now: Time,
    pub batch: Batch,
    pub accesses: u64,
    /// The ports are double words.
    pub double: bool,
    /// BCR20's style.
    pub style: u16,
    /// Descriptors, as powers of two.
    pub logs: [u32; 2],
    /// MODE.
    pub mode: u16,
}

impl Bench {
    pub fn new() -> Self {
        Self::of("pcnet")
    }

    pub fn of(model: &str) -> Self {
        let nic = (nicety_adapters::find(model).unwrap().create)(&Settings::new(Mac(MAC))).unwrap();
        let map = Arc::new(Map::private(MEMORY).unwrap());
        Self {
            nic,
            map,
            out: Outbox::default(),
            counters: Counters::default(),
            now: Time(1_000_000),
            batch: Batch::new(),
            accesses: 0,
            double: false,
            style: 2,
            logs: [4, 5],
            mode: 0x0080,
        }
    }

    /// Opened as by pcnet32_open: 16 transmit and 32 receive descriptors.
    pub fn opened() -> Self {
        let mut this = Self::new();
        this.open();
        this
    }

    pub fn open(&mut self) {
        self.command(0x0007);
        self.reset();
        let style = self.style;
        self.wbcr(20, style);
        self.rings();
        self.wcsr(1, BLOCK as u16);
        self.wcsr(2, (BLOCK >> 16) as u16);
        self.wcsr(4, 0x0915);
        self.wcsr(0, INIT);
        assert_eq!(self.csr(0) & IDON, IDON);
        self.wcsr(0, STRT | INEA | IDON);
        self.out = Outbox::default();
    }

    pub fn wide(&self) -> bool {
        self.style != 0
    }

    /// Fills rings and the initialization block.
    pub fn rings(&mut self) {
        let [transmit, receive] = self.logs;
        let zeros = vec![0; 16 << transmit];
        self.put(TX_RING, &zeros);
        for index in 0..1 << receive {
            self.post(index, RX_DATA + index * 2048, 1544);
        }
        let mut block = self.mode.to_le_bytes().to_vec();
        if self.wide() {
            block.extend([(receive << 4) as u8, (transmit << 4) as u8]);
            block.extend(MAC);
            block.extend([0; 10]);
            block.extend(RX_RING.to_le_bytes());
            block.extend(TX_RING.to_le_bytes());
        } else {
            block.extend(MAC);
            block.extend([0; 8]);
            block.extend((RX_RING | receive << 29).to_le_bytes());
            block.extend((TX_RING | transmit << 29).to_le_bytes());
        }
        self.put(BLOCK, &block);
    }

    pub fn call<T>(&mut self, f: impl FnOnce(&mut dyn Adapter, &mut Context<'_>) -> T) -> T {
        let mut cx =
            Context { memory: &self.map, page: None, out: &mut self.out, counters: &mut self.counters, now: self.now };
        f(&mut *self.nic, &mut cx)
    }

    pub fn read(&mut self, bar: u8, offset: u64, data: &mut [u8]) {
        self.accesses += 1;
        self.call(|nic, cx| match nic.face() {
            Face::Pci(face) => face.read(bar, offset, data, cx),
            Face::Rings(_) => unreachable!("a PCI function"),
        });
    }

    pub fn write(&mut self, bar: u8, offset: u64, data: &[u8]) {
        self.accesses += 1;
        self.call(|nic, cx| match nic.face() {
            Face::Pci(face) => face.write(bar, offset, data, cx),
            Face::Rings(_) => unreachable!("a PCI function"),
        });
    }

    pub fn inb(&mut self, offset: u64) -> u8 {
        let mut data = [0];
        self.read(0, offset, &mut data);
        data[0]
    }

    pub fn inw(&mut self, offset: u64) -> u16 {
        let mut data = [0; 2];
        self.read(0, offset, &mut data);
        u16::from_le_bytes(data)
    }

    pub fn inl(&mut self, offset: u64) -> u32 {
        let mut data = [0; 4];
        self.read(0, offset, &mut data);
        u32::from_le_bytes(data)
    }

    pub fn outw(&mut self, offset: u64, value: u16) {
        self.write(0, offset, &value.to_le_bytes());
    }

    pub fn outl(&mut self, offset: u64, value: u32) {
        self.write(0, offset, &value.to_le_bytes());
    }

    fn port_in(&mut self, port: u64) -> u16 {
        if self.double { self.inl(0x10 + 4 * port) as u16 } else { self.inw(0x10 + 2 * port) }
    }

    fn port_out(&mut self, port: u64, value: u16) {
        if self.double { self.outl(0x10 + 4 * port, value.into()) } else { self.outw(0x10 + 2 * port, value) }
    }

    pub fn csr(&mut self, number: u16) -> u16 {
        self.port_out(1, number);
        self.port_in(0)
    }

    pub fn wcsr(&mut self, number: u16, value: u16) {
        self.port_out(1, number);
        self.port_out(0, value);
    }

    pub fn bcr(&mut self, number: u16) -> u16 {
        self.port_out(1, number);
        self.port_in(3)
    }

    pub fn wbcr(&mut self, number: u16, value: u16) {
        self.port_out(1, number);
        self.port_out(3, value);
    }

    pub fn reset(&mut self) {
        self.port_in(2);
    }

    pub fn command(&mut self, value: u16) {
        self.config_write(4, &value.to_le_bytes());
    }

    pub fn config_write(&mut self, offset: u16, data: &[u8]) {
        self.call(|nic, cx| match nic.face() {
            Face::Pci(face) => face.config_write(offset, data, cx),
            Face::Rings(_) => unreachable!("a PCI function"),
        });
    }

    pub fn line(&mut self) -> bool {
        self.call(|nic, _| match nic.face() {
            Face::Pci(face) => face.function().intx_level(),
            Face::Rings(_) => unreachable!("a PCI function"),
        })
    }

    pub fn put(&self, at: u32, bytes: &[u8]) {
        self.map.write(at.into(), bytes).unwrap();
    }

    pub fn get(&self, at: u32, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.map.read(at.into(), &mut bytes).unwrap();
        bytes
    }

    fn word(&self, at: u32) -> u16 {
        u16::from_le_bytes(self.get(at, 2).try_into().unwrap())
    }

    fn dword(&self, at: u32) -> u32 {
        u32::from_le_bytes(self.get(at, 4).try_into().unwrap())
    }

    /// Writes a descriptor of either ring.
    fn descriptor(&self, ring: u32, index: u32, address: u32, len: u32, status: u16) {
        let count = 0xf000 | (len as u16).wrapping_neg() & 0x0fff;
        match self.style {
            0 => {
                let at = ring + index * 8;
                self.put(at + 4, &count.to_le_bytes());
                self.put(at + 6, &[0; 2]);
                self.put(at, &(address & 0xff_ffff | u32::from(status >> 8) << 24).to_le_bytes());
            }
            style => {
                let at = ring + index * 16;
                let (address_at, second_at) = if style == 3 { (8, 0) } else { (0, 8) };
                self.put(at + address_at, &address.to_le_bytes());
                self.put(at + second_at, &[0; 4]);
                self.put(at + 4, &count.to_le_bytes());
                self.put(at + 6, &status.to_le_bytes());
            }
        }
    }

    /// Status and second status (or length) of a descriptor.
    fn state(&self, ring: u32, index: u32) -> (u16, u32) {
        match self.style {
            0 => (self.word(ring + index * 8 + 2) & 0xff00, self.word(ring + index * 8 + 6).into()),
            style => {
                let at = ring + index * 16;
                (self.word(at + 6), self.dword(at + if style == 3 { 0 } else { 8 }))
            }
        }
    }

    /// Gives a receive descriptor to the chip.
    pub fn post(&self, index: u32, address: u32, len: u32) {
        self.descriptor(RX_RING, index, address, len, OWN);
    }

    pub fn received(&self, index: u32) -> (u16, u32) {
        self.state(RX_RING, index)
    }

    pub fn tx(&self, index: u32, address: u32, len: u32, status: u16) {
        self.descriptor(TX_RING, index, address, len, status);
    }

    pub fn sent(&self, index: u32) -> (u16, u32) {
        self.state(TX_RING, index)
    }

    /// Writes a frame to the descriptor's own buffer, and gives it to the chip.
    pub fn queue(&self, index: u32, frame: &[u8]) {
        self.put(TX_DATA + index * 4096, frame);
        self.tx(index, TX_DATA + index * 4096, frame.len() as u32, WHOLE);
    }

    pub fn kick(&mut self) {
        self.wcsr(0, INEA | TDMD);
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

    /// Transmits until no frame is left. Returns the frames.
    pub fn transmit(&mut self) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        for _ in 0..10_000 {
            let progress = self.fetch();
            out.extend(wire(&self.batch));
            self.complete();
            if !progress.more {
                self.out.work = Set::default();
                return out;
            }
        }
        panic!("a transmit queue that never empties");
    }

    /// Delivers frames from another port.
    pub fn bring(&mut self, frames: &[&[u8]]) -> Delivery {
        let map = Arc::new(Map::private(8 << 20).unwrap());
        let mut batch = Batch::new();
        batch.start(&map, PortId(2), 0);
        for (at, frame) in (0..).step_by(0x1_8000).zip(frames) {
            map.write(at, frame).unwrap();
            let mut draft = batch.draft(0).unwrap();
            draft.push(at, frame.len() as u32).unwrap();
            draft.finish_plain(0);
        }
        let picks: Vec<Pick> = (0..frames.len()).map(|i| Pick::whole(i as u16)).collect();
        self.call(|nic, cx| nic.deliver(&Frames::new(&batch, &picks), cx))
    }

    pub fn bring_one(&mut self, frame: &[u8]) -> Delivery {
        self.bring(&[frame])
    }

    pub fn link(&mut self, up: bool) {
        self.call(|nic, cx| nic.notice(Event::Link(up), cx));
    }

    pub fn tick(&mut self) {
        self.call(|nic, cx| nic.tick(cx));
    }

    /// Lets time pass, with the adapter's requested wake-ups.
    pub fn pass(&mut self, ns: u64) {
        let end = self.now.after_ns(ns);
        let mut ticks = 0;
        while let Some(due) = self.out.wake.take_if(|due| *due <= end) {
            assert!(due > self.now || ticks < 100, "a time that is over is asked for again and again");
            (self.now, ticks) = (self.now.max(due), ticks + 1);
            self.tick();
        }
        self.now = end;
    }
}

/// The packets of a batch, unchanged.
pub fn wire(batch: &Batch) -> Vec<Vec<u8>> {
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
        let unfolded = Unfolded::new(&frames, pick, Wants { frame_max: 80_000, ..Wants::default() }).unwrap();
        let mut piece = unfolded.piece(0, &mut scratch).unwrap();
        let len = piece.len() as usize;
        piece.write(&target, &spans);
        let mut bytes = vec![0; len];
        target.read(0, &mut bytes).unwrap();
        out.push(bytes);
    }
    out
}

/// An Ethernet II frame of `len` bytes from the peer to this adapter.
pub fn frame(len: usize) -> Vec<u8> {
    to(MAC, len)
}

/// The same to any station.
pub fn to(destination: [u8; 6], len: usize) -> Vec<u8> {
    let mut frame = [&destination[..], &PEER, &[0x88, 0xb5]].concat();
    frame.extend((frame.len()..len).map(|i| (i * 7 + i / 251) as u8));
    frame
}
