//! The Am79C970A, driven as Linux does: 32-bit structures, 16 transmit and 32 receive descriptors, all causes masked in CSR3 while
//! polling, one transmit demand (TDMD) per burst.
//!
//! ```text
//! arena:  initialization block ─ receive ring ─ buffers (1552 bytes) ─ transmit ring ─ buffers (2 KB)
//! ring:   OWN: the device's; its first descriptor's OWN is written last
//! ```
//!
//! Not driven: offloads, which the chip does not have (the driver completes a partial checksum), the multicast hash, 16-bit
//! structures, loopback.

mod registers;

use std::sync::Arc;

use nicety_adapter::{Bus, Checksum, InterruptKind, Offload};
use nicety_frame::{Mac, checksum};
use nicety_memory::{Map, Rights};

pub use self::registers::DEVICES;
use self::registers::*;
use crate::{Arena, Driver, DriverError, Features, Received, Sink};

/// Descriptors of the receive ring, as a power of two.
const RECEIVE_LOG: u32 = 5;
/// Descriptors of the transmit ring, as a power of two.
const TRANSMIT_LOG: u32 = 4;
const RECEIVE_RING: u32 = 1 << RECEIVE_LOG;
const TRANSMIT_RING: u32 = 1 << TRANSMIT_LOG;
/// A frame with two tags and its check sequence, and some margin.
const RECEIVE_BUFFER: u32 = 1552;
const TRANSMIT_BUFFER: u32 = 2048;
/// The frame check sequence: the device includes it in the length.
const FCS: usize = 4;
/// Reads of a register before the driver gives up waiting for a change.
const TIMEOUT: u32 = 1_000;

/// The driver.
#[derive(Debug)]
pub struct Pcnet {
    arena: Arena,
    memory: Arc<Map>,
    ports: Ports,
    mac: Mac,
    link: bool,
    /// The receive ring's address, its buffers' address, and the next descriptor that the device fills.
    receive: (u64, u64, u32),
    /// The transmit ring's address, and its buffers' address.
    transmit: (u64, u64),
    /// The next descriptor to send from, and the number of descriptors in flight.
    next: u32,
    flying: u32,
    /// Frames were queued without a doorbell.
    queued: bool,
    /// Packet under assembly, from several descriptors.
    packet: Vec<u8>,
}

impl Pcnet {
    /// A driver that uses this memory.
    pub fn new(arena: Arena) -> Pcnet {
        Pcnet {
            arena,
            memory: Map::empty(),
            ports: Ports::default(),
            mac: Mac([0; 6]),
            link: false,
            receive: (0, 0, 0),
            transmit: (0, 0),
            next: 0,
            flying: 0,
            queued: false,
            packet: Vec::new(),
        }
    }

    /// The rings: address and bytes.
    pub fn rings(&self) -> [(u64, u64); 2] {
        let bytes = |descriptors: u32| u64::from(descriptors) * DESCRIPTOR as u64;
        [(self.receive.0, bytes(RECEIVE_RING)), (self.transmit.0, bytes(TRANSMIT_RING))]
    }

    /// Finds the width of the ports and checks the chip's identity. The chip's reset has stopped it.
    fn find(bus: &mut dyn Bus) -> Result<Ports, DriverError> {
        for ports in [Ports::Words, Ports::Doubles] {
            ports.reset(bus)?;
            if ports.csr(bus, CSR0)? == CSR0_STOP {
                let chip = u32::from(ports.csr(bus, CSR88)?) | u32::from(ports.csr(bus, CSR89)?) << 16;
                return if chip & CHIP_MASK == CHIP { Ok(ports) } else { Err(DriverError::Device("is another chip")) };
            }
        }
        Err(DriverError::Device("does not stop when it is reset"))
    }

    fn make_rings(&mut self) -> Result<u64, DriverError> {
        let block = self.arena.take(BLOCK as u64, 16)?;
        let mut ring = |descriptors: u32, buffer: u32| -> Result<(u64, u64), DriverError> {
            let ring = self.arena.take(u64::from(descriptors) * DESCRIPTOR as u64, 16)?;
            let buffers = self.arena.take(u64::from(descriptors) * u64::from(buffer), 16)?;
            if buffers + u64::from(descriptors * buffer) > 1 << 32 {
                return Err(DriverError::Device("reaches the first 4 GB of memory only"));
            }
            Ok((ring, buffers))
        };
        let (receive, buffers) = ring(RECEIVE_RING, RECEIVE_BUFFER)?;
        self.transmit = ring(TRANSMIT_RING, TRANSMIT_BUFFER)?;
        self.receive = (receive, buffers, 0);
        (self.next, self.flying, self.queued) = (0, 0, false);
        self.packet.clear();
        for index in 0..RECEIVE_RING {
            self.post(index)?;
        }
        let zeros = [0; DESCRIPTOR * TRANSMIT_RING as usize];
        self.memory.write(self.transmit.0, &zeros)?;
        let mut bytes = [0; BLOCK];
        bytes[..2].copy_from_slice(&MODE_TWISTED.to_le_bytes());
        bytes[2] = (RECEIVE_LOG << 4) as u8;
        bytes[3] = (TRANSMIT_LOG << 4) as u8;
        bytes[4..10].copy_from_slice(&self.mac.0);
        bytes[20..24].copy_from_slice(&(receive as u32).to_le_bytes());
        bytes[24..].copy_from_slice(&(self.transmit.0 as u32).to_le_bytes());
        self.memory.write(block, &bytes)?;
        Ok(block)
    }

    /// Gives a receive buffer to the device.
    fn post(&self, index: u32) -> Result<(), DriverError> {
        let (ring, buffers, _) = self.receive;
        let window = self.memory.window(ring, RECEIVE_RING * DESCRIPTOR as u32, Rights::BOTH)?;
        let at = index as usize * DESCRIPTOR;
        window.store_u32(at, (buffers + u64::from(index * RECEIVE_BUFFER)) as u32);
        window.store_u32(at + 8, 0);
        window.store_u32(at + 4, OWN | count(RECEIVE_BUFFER));
        Ok(())
    }

    /// Takes the next receive descriptor, if the device has filled it. True if `packet` then holds a whole, good frame.
    fn take(&mut self) -> Result<Option<bool>, DriverError> {
        let (ring, buffers, index) = self.receive;
        let window = self.memory.window(ring, RECEIVE_RING * DESCRIPTOR as u32, Rights::BOTH)?;
        let at = index as usize * DESCRIPTOR;
        let status = window.load_u32(at + 4);
        if status & OWN != 0 {
            return Ok(None);
        }
        if status & STP != 0 {
            self.packet.clear();
        }
        let begin = self.packet.len();
        let whole = (window.load_u32(at + 8) & 0xfff) as usize;
        let len = if status & ENP != 0 { whole.saturating_sub(begin) } else { RECEIVE_BUFFER as usize };
        self.packet.resize(begin + len.min(RECEIVE_BUFFER as usize), 0);
        let buffer = buffers + u64::from(index * RECEIVE_BUFFER);
        self.memory.read(buffer, self.packet.get_mut(begin..).unwrap_or_default())?;
        self.post(index)?;
        self.receive.2 = (index + 1) % RECEIVE_RING;
        let good = status & ENP != 0 && status & ERR == 0;
        if good {
            self.packet.truncate(self.packet.len().saturating_sub(FCS));
        } else if status & (ENP | ERR) != 0 || self.packet.len() > BUFFER_MAX as usize {
            self.packet.clear();
        }
        Ok(Some(good))
    }

    /// Reclaims sent descriptors. True if the device has turned its transmitter off.
    fn reclaim(&mut self) -> Result<bool, DriverError> {
        let window = self.memory.window(self.transmit.0, TRANSMIT_RING * DESCRIPTOR as u32, Rights::BOTH)?;
        let mut dry = false;
        while self.flying > 0 {
            let oldest = (self.next + TRANSMIT_RING - self.flying) % TRANSMIT_RING;
            let at = oldest as usize * DESCRIPTOR;
            let status = window.load_u32(at + 4);
            if status & OWN != 0 {
                break;
            }
            dry |= status & ERR != 0 && window.load_u32(at + 8) & TX_UFLO != 0;
            // As Linux marks a descriptor without an owner.
            window.store_u32(at, 0);
            self.flying -= 1;
        }
        Ok(dry)
    }

    /// Programs the rings and starts the chip; again after an underflow.
    fn start(&mut self, bus: &mut dyn Bus, block: u64) -> Result<(), DriverError> {
        let ports = self.ports;
        ports.set_csr(bus, CSR1, block as u16)?;
        ports.set_csr(bus, CSR2, (block >> 16) as u16)?;
        ports.set_csr(bus, CSR4, CSR4_LINUX)?;
        ports.set_csr(bus, CSR0, CSR0_INIT)?;
        for _ in 0..TIMEOUT {
            if ports.csr(bus, CSR0)? & CSR0_IDON != 0 {
                return ports.set_csr(bus, CSR0, CSR0_IDON | CSR0_STRT | CSR0_IENA);
            }
        }
        Err(DriverError::Device("does not initialize itself"))
    }
}

impl Driver for Pcnet {
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
        self.memory = Arc::clone(bus.memory());
        crate::enable(bus, &DEVICES)?;
        let ports = Pcnet::find(bus)?;
        self.ports = ports;
        self.mac = Mac(address(bus)?);
        ports.set_bcr(bus, BCR20, STYLE_PCI)?;
        let chosen = ports.bcr(bus, BCR2)?;
        ports.set_bcr(bus, BCR2, chosen & !BCR2_ASEL)?;
        ports.set_bcr(bus, BCR9, BCR9_FULL)?;
        self.link = ports.bcr(bus, BCR4)? & BCR4_LIT != 0;
        let block = self.make_rings()?;
        bus.interrupts(InterruptKind::Intx)?;
        self.start(bus, block)
    }

    fn interrupt(&mut self, bus: &mut dyn Bus, _vector: u16) -> Result<bool, DriverError> {
        let cause = self.ports.csr(bus, CSR0)?;
        if cause & CSR0_INTR == 0 {
            return Ok(false);
        }
        self.ports.set_csr(bus, CSR0, cause & CSR0_CAUSES)?;
        let masks = self.ports.csr(bus, CSR3)?;
        self.ports.set_csr(bus, CSR3, masks | CSR3_MASKS)?;
        Ok(true)
    }

    fn receive(&mut self, _bus: &mut dyn Bus, budget: usize, sink: &mut Sink<'_>) -> Result<usize, DriverError> {
        let mut packets = 0;
        while packets < budget {
            match self.take()? {
                None => break,
                Some(false) => {}
                Some(true) => {
                    sink(&mut self.packet, Received { checksum_good: false, frames: 1 });
                    self.packet.clear();
                }
            }
            packets += 1;
        }
        if self.reclaim()? {
            return Err(DriverError::Device("ran dry in a frame and turned its transmitter off"));
        }
        Ok(packets)
    }

    fn transmit(&mut self, _bus: &mut dyn Bus, packet: &[u8], offload: &Offload) -> Result<bool, DriverError> {
        if offload.segment.is_some() {
            return Err(DriverError::Device("does not segment"));
        }
        let pieces = packet.chunks(TRANSMIT_BUFFER as usize).len() as u32;
        if pieces > TRANSMIT_RING {
            return Err(DriverError::Device("has too few descriptors for the packet"));
        }
        if self.flying + pieces > TRANSMIT_RING {
            self.reclaim()?;
            if self.flying + pieces > TRANSMIT_RING {
                return Ok(false);
            }
        }
        let made = match offload.checksum {
            Checksum::Partial { start, field } => Some(summed(packet, start, field)),
            _ => None,
        };
        let packet = made.as_deref().unwrap_or(packet);
        let window = self.memory.window(self.transmit.0, TRANSMIT_RING * DESCRIPTOR as u32, Rights::BOTH)?;
        let first = self.next;
        let mut begin = 0;
        for (number, piece) in (0..).zip(packet.chunks(TRANSMIT_BUFFER as usize)) {
            let at = self.next as usize * DESCRIPTOR;
            let buffer = self.transmit.1 + u64::from(self.next * TRANSMIT_BUFFER);
            self.memory.write(buffer, piece)?;
            window.store_u32(at, buffer as u32);
            window.store_u32(at + 8, 0);
            let ends = if number + 1 == pieces { ENP } else { 0 };
            let status = ends | count(piece.len() as u32);
            if number == 0 {
                begin = OWN | STP | status;
            } else {
                window.store_u32(at + 4, OWN | status);
            }
            self.next = (self.next + 1) % TRANSMIT_RING;
        }
        window.store_u32(first as usize * DESCRIPTOR + 4, begin);
        self.flying += pieces;
        self.queued = true;
        Ok(true)
    }

    fn flush(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        if std::mem::take(&mut self.queued) {
            self.ports.set_csr(bus, CSR0, CSR0_IENA | CSR0_TDMD)?;
        }
        Ok(())
    }

    fn rest(&mut self, bus: &mut dyn Bus) -> Result<bool, DriverError> {
        let masks = self.ports.csr(bus, CSR3)?;
        self.ports.set_csr(bus, CSR3, masks & !CSR3_MASKS)?;
        self.ports.set_csr(bus, CSR0, CSR0_IENA)?;
        // Events of the meantime interrupt.
        Ok(false)
    }

    fn close(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        self.ports.set_csr(bus, CSR0, CSR0_STOP)?;
        self.link = false;
        crate::disable(bus)
    }
}

/// The packet with its partial checksum completed.
fn summed(packet: &[u8], start: u16, field: u16) -> Vec<u8> {
    let (mut packet, start, field) = (packet.to_vec(), usize::from(start), usize::from(field));
    let sum = checksum::sum(packet.get(start..).unwrap_or_default()).checksum();
    if let Some(place) = packet.get_mut(field..field + 2) {
        // Zero is written as all ones, which is equivalent (RFC 768).
        place.copy_from_slice(&if sum == 0 { u16::MAX } else { sum }.to_be_bytes());
    }
    packet
}
