//! The RTL8029AS, driven as a PCI NE2000. Frames to send go through the data port, 32 bits at a time, into one of two transmit
//! slots. Received frames come from a ring of pages that the device fills. (National Semiconductor, *DP8390D/NS32490D NIC*,
//! sections 5, 6, 7 and 10. The accesses for a frame and for an interrupt are those of Linux's drivers/net/ethernet/8390.)
//!
//! ```text
//! pages:  40 first frame to send ─ 46 second ─ 4c ring: boundary (read) ... current (the device's) ─ 80
//! ```
//! No offload: the device has none. Not driven: multicast filter, full duplex, the EEPROM.

use nicety_adapter::{Bus, InterruptKind, Offload};
use nicety_frame::Mac;

use crate::{Arena, Driver, DriverError, Features, Received, Sink};

/// PCI vendor and device: RTL8029(AS).
pub const DEVICES: [(u16, u16); 1] = [(0x10ec, 0x8029)];
const BAR: u8 = 0;

/// Command, on every page.
const COMMAND: u64 = 0x00;
/// Page 0.
const PAGE_START: u64 = 0x01;
const PAGE_STOP: u64 = 0x02;
const BOUNDARY: u64 = 0x03;
const TRANSMIT_STATUS: u64 = 0x04;
const TRANSMIT_PAGE: u64 = 0x04;
const TRANSMIT_COUNT: u64 = 0x05;
const INTERRUPT_STATUS: u64 = 0x07;
const REMOTE_ADDRESS: u64 = 0x08;
const REMOTE_COUNT: u64 = 0x0a;
const RECEIVE_CONFIGURATION: u64 = 0x0c;
const TRANSMIT_CONFIGURATION: u64 = 0x0d;
const DATA_CONFIGURATION: u64 = 0x0e;
const INTERRUPT_MASK: u64 = 0x0f;
/// Page 1.
const PHYSICAL: u64 = 0x01;
const CURRENT: u64 = 0x07;
const MULTICAST: u64 = 0x08;
/// Registers of the board.
const DATA: u64 = 0x10;
const RESET: u64 = 0x1f;

const STOP: u8 = 1;
const START: u8 = 1 << 1;
const TRANSMIT: u8 = 1 << 2;
const REMOTE_READ: u8 = 1 << 3;
const REMOTE_WRITE: u8 = 2 << 3;
const REMOTE_END: u8 = 4 << 3;
const PAGE1: u8 = 1 << 6;

const SENT: u8 = 1 << 1;
const NOT_SENT: u8 = 1 << 3;
const REMOTE_DONE: u8 = 1 << 6;
const WAS_RESET: u8 = 1 << 7;
/// Packets and errors in both directions, overflow, counters.
const CAUSES: u8 = 0x3f;

/// Words, little-endian, no loopback, FIFO threshold of 8 bytes.
const WORDS: u8 = 0x49;
const MONITOR: u8 = 1 << 5;
const BROADCASTS: u8 = 1 << 2;
const LOOPBACK: u8 = 1 << 1;

/// First pages of the two transmit slots.
const SLOTS: [u8; 2] = [0x40, 0x46];
const RING: std::ops::Range<u8> = 0x4c..0x80;
const HEADER: u16 = 4;
const SHORTEST: usize = 60;
/// Longest frame, in bytes: with two VLAN tags.
const LONGEST: usize = 1522;
/// Reads of a register before the driver gives up waiting for a change.
const TIMEOUT: u32 = 1_000;

/// The driver.
#[derive(Debug)]
pub struct Ne2000 {
    mac: Mac,
    link: bool,
    /// The slot whose frame the device sends.
    sending: Option<usize>,
    /// The slot with the next frame, and the frame's length.
    queued: Option<(usize, u16)>,
    /// Page of the next frame to read.
    next: u8,
    packet: Vec<u8>,
}

fn get(bus: &mut dyn Bus, register: u64) -> Result<u8, DriverError> {
    let mut value = [0];
    bus.read(BAR, register, &mut value)?;
    Ok(value[0])
}

fn put(bus: &mut dyn Bus, register: u64, value: u8) -> Result<(), DriverError> {
    Ok(bus.write(BAR, register, &[value])?)
}

/// Writes two registers of eight bits, the low one first.
fn put_pair(bus: &mut dyn Bus, register: u64, value: u16) -> Result<(), DriverError> {
    let [low, high] = value.to_le_bytes();
    put(bus, register, low)?;
    put(bus, register + 1, high)
}

/// Starts remote DMA.
fn remote(bus: &mut dyn Bus, direction: u8, address: u16, count: u16) -> Result<(), DriverError> {
    put(bus, COMMAND, REMOTE_END | START)?;
    put_pair(bus, REMOTE_COUNT, count)?;
    put_pair(bus, REMOTE_ADDRESS, address)?;
    put(bus, COMMAND, direction | START)
}

fn remote_done(bus: &mut dyn Bus) -> Result<(), DriverError> {
    put(bus, INTERRUPT_STATUS, REMOTE_DONE)
}

/// Bytes of the widest useful access to the data port: a single byte takes a whole word.
fn width(left: usize) -> usize {
    match left {
        0 | 1 => 1,
        2 | 3 => 2,
        _ => 4,
    }
}

fn read_block(bus: &mut dyn Bus, address: u16, data: &mut [u8]) -> Result<(), DriverError> {
    remote(bus, REMOTE_READ, address, data.len() as u16)?;
    let mut rest = data;
    while !rest.is_empty() {
        let (now, after) = rest.split_at_mut(width(rest.len()));
        bus.read(BAR, DATA, now)?;
        rest = after;
    }
    remote_done(bus)
}

/// Writes an even number of bytes.
fn write_block(bus: &mut dyn Bus, address: u16, data: &[u8]) -> Result<(), DriverError> {
    remote_done(bus)?;
    remote(bus, REMOTE_WRITE, address, data.len() as u16)?;
    let mut rest = data;
    while !rest.is_empty() {
        let (now, after) = rest.split_at(width(rest.len()));
        bus.write(BAR, DATA, now)?;
        rest = after;
    }
    wait(bus, REMOTE_DONE, "does not complete a transfer")?;
    remote_done(bus)
}

fn wait(bus: &mut dyn Bus, bit: u8, otherwise: &'static str) -> Result<(), DriverError> {
    for _ in 0..TIMEOUT {
        if get(bus, INTERRUPT_STATUS)? & bit != 0 {
            return Ok(());
        }
    }
    Err(DriverError::Device(otherwise))
}

impl Ne2000 {
    /// A driver. The device uses no guest memory.
    pub fn new(_: Arena) -> Ne2000 {
        Ne2000 { mac: Mac([0; 6]), link: false, sending: None, queued: None, next: RING.start, packet: Vec::new() }
    }

    fn reset(bus: &mut dyn Bus) -> Result<(), DriverError> {
        let value = get(bus, RESET)?;
        put(bus, RESET, value)?;
        wait(bus, WAS_RESET, "does not come out of reset")?;
        put(bus, INTERRUPT_STATUS, 0xff)
    }

    /// Stops the chip, masks its interrupts, and sets word-wide access.
    fn quiet(bus: &mut dyn Bus) -> Result<(), DriverError> {
        put(bus, COMMAND, REMOTE_END | STOP)?;
        put(bus, DATA_CONFIGURATION, WORDS)?;
        put_pair(bus, REMOTE_COUNT, 0)?;
        put(bus, INTERRUPT_MASK, 0)?;
        put(bus, INTERRUPT_STATUS, 0xff)?;
        put(bus, RECEIVE_CONFIGURATION, MONITOR)?;
        put(bus, TRANSMIT_CONFIGURATION, LOOPBACK)
    }

    /// The station's address, from the PROM's first bytes. A word-wide board shows each byte twice.
    fn address(bus: &mut dyn Bus) -> Result<Mac, DriverError> {
        let mut prom = [0; 16];
        remote(bus, REMOTE_READ, 0, 2 * prom.len() as u16)?;
        for byte in &mut prom {
            *byte = get(bus, DATA)?;
        }
        remote_done(bus)?;
        let [a, b, c, d, e, f, .., w, x] = prom;
        if [w, x] != [0x57; 2] {
            return Err(DriverError::Device("has no PROM of a word-wide NE2000"));
        }
        Ok(Mac([a, b, c, d, e, f]))
    }

    fn start(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        self.next = RING.start + 1;
        put(bus, COMMAND, REMOTE_END | STOP)?;
        put(bus, PAGE_START, RING.start)?;
        put(bus, PAGE_STOP, RING.end)?;
        put(bus, BOUNDARY, RING.start)?;
        put(bus, COMMAND, REMOTE_END | STOP | PAGE1)?;
        for (byte, register) in self.mac.0.iter().zip(PHYSICAL..) {
            put(bus, register, *byte)?;
        }
        put(bus, CURRENT, self.next)?;
        for register in MULTICAST..MULTICAST + 8 {
            put(bus, register, 0)?;
        }
        put(bus, COMMAND, REMOTE_END | START)?;
        put(bus, INTERRUPT_STATUS, 0xff)?;
        put(bus, INTERRUPT_MASK, CAUSES)?;
        put(bus, TRANSMIT_CONFIGURATION, 0)?;
        put(bus, RECEIVE_CONFIGURATION, BROADCASTS)
    }

    fn send(&mut self, bus: &mut dyn Bus, slot: usize, len: u16) -> Result<(), DriverError> {
        put_pair(bus, TRANSMIT_COUNT, len)?;
        put(bus, TRANSMIT_PAGE, SLOTS[slot])?;
        put(bus, COMMAND, REMOTE_END | TRANSMIT | START)?;
        self.sending = Some(slot);
        Ok(())
    }

    /// Handles a frame that was sent or given up: sends the next one, if there is one.
    fn sent(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        get(bus, TRANSMIT_STATUS)?;
        put(bus, INTERRUPT_STATUS, SENT | NOT_SENT)?;
        self.sending = None;
        match self.queued.take() {
            Some((slot, len)) => self.send(bus, slot, len),
            None => Ok(()),
        }
    }

    fn current(bus: &mut dyn Bus) -> Result<u8, DriverError> {
        put(bus, COMMAND, REMOTE_END | PAGE1)?;
        let current = get(bus, CURRENT)?;
        put(bus, COMMAND, REMOTE_END)?;
        Ok(current)
    }

    /// Reads a frame from the ring.
    fn take(&mut self, bus: &mut dyn Bus, sink: &mut Sink<'_>) -> Result<(), DriverError> {
        let page = u16::from(self.next) << 8;
        let mut header = [0; HEADER as usize];
        read_block(bus, page, &mut header)?;
        let [status, next, low, high] = header;
        let len = usize::from(u16::from_le_bytes([low, high])).saturating_sub(4);
        if !RING.contains(&next) || !(SHORTEST..=LONGEST).contains(&len) {
            return Err(DriverError::Device("has damaged its receive ring"));
        }
        if status & 0x0f == 1 {
            self.packet.resize(len, 0);
            read_block(bus, page + HEADER, &mut self.packet)?;
            sink(&mut self.packet, Received { checksum_good: false, frames: 1 });
        }
        self.next = next;
        put(bus, BOUNDARY, if next == RING.start { RING.end - 1 } else { next - 1 })
    }
}

impl Driver for Ne2000 {
    fn mac(&self) -> Mac {
        self.mac
    }

    fn features(&self) -> Features {
        Features { checksum: false, segment_bytes: 0, interrupts: InterruptKind::Intx }
    }

    fn link(&self) -> bool {
        self.link
    }

    fn open(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        crate::enable(bus, &DEVICES)?;
        Ne2000::reset(bus)?;
        Ne2000::quiet(bus)?;
        self.mac = Ne2000::address(bus)?;
        (self.sending, self.queued) = (None, None);
        bus.interrupts(InterruptKind::Intx)?;
        self.start(bus)?;
        // No register reports the link.
        self.link = true;
        Ok(())
    }

    fn interrupt(&mut self, bus: &mut dyn Bus, _vector: u16) -> Result<bool, DriverError> {
        if get(bus, INTERRUPT_STATUS)? & CAUSES == 0 {
            return Ok(false);
        }
        put(bus, INTERRUPT_MASK, 0)?;
        Ok(true)
    }

    fn receive(&mut self, bus: &mut dyn Bus, budget: usize, sink: &mut Sink<'_>) -> Result<usize, DriverError> {
        let causes = get(bus, INTERRUPT_STATUS)?;
        if causes & (SENT | NOT_SENT) != 0 {
            self.sent(bus)?;
        }
        let others = causes & CAUSES & !(SENT | NOT_SENT);
        if others != 0 {
            put(bus, INTERRUPT_STATUS, others)?;
        }
        let mut packets = 0;
        while packets < budget && Ne2000::current(bus)? != self.next {
            self.take(bus, sink)?;
            packets += 1;
        }
        Ok(packets)
    }

    fn transmit(&mut self, bus: &mut dyn Bus, packet: &[u8], offload: &Offload) -> Result<bool, DriverError> {
        if *offload != Offload::default() || !(14..=LONGEST).contains(&packet.len()) {
            return Err(DriverError::Device("has no offloads, and takes a frame at a time"));
        }
        let slot = match (self.sending, self.queued) {
            (None, _) => 0,
            (Some(busy), None) => 1 - busy,
            (Some(_), Some(_)) => return Ok(false),
        };
        let mut frame = [0; LONGEST];
        frame[..packet.len()].copy_from_slice(packet);
        let len = packet.len().max(SHORTEST);
        write_block(bus, u16::from(SLOTS[slot]) << 8, &frame[..len.next_multiple_of(2)])?;
        if self.sending.is_none() {
            self.send(bus, slot, len as u16)?;
        } else {
            self.queued = Some((slot, len as u16));
        }
        Ok(true)
    }

    fn flush(&mut self, _bus: &mut dyn Bus) -> Result<(), DriverError> {
        Ok(())
    }

    fn rest(&mut self, bus: &mut dyn Bus) -> Result<bool, DriverError> {
        put(bus, INTERRUPT_MASK, CAUSES)?;
        // Events of the meantime raise the line.
        Ok(false)
    }

    fn close(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        Ne2000::quiet(bus)?;
        self.link = false;
        crate::disable(bus)
    }
}
