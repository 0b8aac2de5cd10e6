//! Virtio-net ports and their drivers in one process: each driver fills rings as DPDK's virtio-user does. A frame and its header are in one
//! descriptor, and buffers of 2 KiB come back in order. Ports 0 and 1 send to each other, as do 2 and 3.

use std::sync::Arc;

use nicety_adapter::{PortId, RingPlace, Time};
use nicety_adapters::{Settings, find};
use nicety_frame::Mac;
use nicety_memory::{Map, Mapping, Rights, shared_file};
use nicety_plane::doubles::Silent;
use nicety_plane::{End, Plane, Port, Turn};

pub type Error = Box<dyn std::error::Error>;

/// Descriptors of each ring, and frames that a driver adds per burst.
const RING: u16 = 256;
pub const BURST: u16 = 64;
/// Bytes from one buffer to the next, and between the areas of guest memory.
const BUFFER: u64 = 2048;
const AREA: u64 = 1 << 20;
/// virtio 1.2, section 5.1.6: the header before each frame.
const HEADER: u64 = 12;
/// VIRTIO_F_VERSION_1 and VIRTIO_NET_F_MRG_RXBUF.
const FEATURES: u128 = 1 << 32 | 1 << 15;
/// VIRTIO_F_RING_PACKED, the flags of its descriptors (virtio 1.2, section 2.8.1), and the start of such a ring.
const PACKED: u128 = 1 << 34;
const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;
const FIRST_LAP: u32 = 0x8000_8000;
/// Bits 0–23 of an address are its number, and the port's number stands above them.
const NUMBERS: u32 = 1 << 24;
/// The VLAN of policed ports.
pub const ACCESS: u16 = 10;

/// A driver's ring: its areas one after another. Entry k always names descriptor k, and descriptor k always names buffer k.
struct Ring {
    base: u64,
    index: u16,
    packed: bool,
    /// Length and flags of a descriptor that is not available.
    len: u32,
    flags: u16,
}

impl Ring {
    const DRIVER: u64 = 16 * RING as u64;
    const DEVICE: u64 = Self::DRIVER + 8 * RING as u64;

    fn new(memory: &Map, packed: bool, base: u64, len: u32, flags: u16) -> Result<Self, Error> {
        let ring = Self { base, index: 0, packed, len, flags };
        for entry in 0..if packed { 0 } else { RING } {
            ring.write(memory, entry, &[len.to_le_bytes().as_slice(), &flags.to_le_bytes()].concat())?;
            memory.write(base + Self::DRIVER + 4 + 2 * u64::from(entry), &entry.to_le_bytes())?;
        }
        Ok(ring)
    }

    /// Writes a descriptor: the fields behind its buffer's address.
    fn write(&self, memory: &Map, entry: u16, rest: &[u8]) -> Result<(), Error> {
        let address = Self::buffer(self.base, entry).to_le_bytes();
        Ok(memory.write(self.base + 16 * u64::from(entry % RING), &[&address, rest].concat())?)
    }

    fn buffer(base: u64, entry: u16) -> u64 {
        base + AREA / 4 + BUFFER * u64::from(entry % RING)
    }

    fn place(&self) -> RingPlace {
        let Self { base, .. } = *self;
        RingPlace { size: RING, descriptors: base, driver: base + Self::DRIVER, device: base + Self::DEVICE }
    }

    /// For a packed ring: the flags of an available descriptor at this entry in the current lap.
    fn lap(entry: u16) -> u16 {
        if (entry / RING).is_multiple_of(2) { AVAILABLE } else { USED }
    }

    /// Makes this many more entries available to the device.
    fn add(&mut self, memory: &Map, entries: u16) -> Result<(), Error> {
        if self.packed {
            for entry in (0..entries).map(|ahead| self.index.wrapping_add(ahead)) {
                let flags = self.flags | Self::lap(entry);
                let words = [entry % RING, flags].map(u16::to_le_bytes).concat();
                self.write(memory, entry, &[self.len.to_le_bytes().as_slice(), &words].concat())?;
            }
        }
        self.index = self.index.wrapping_add(entries);
        if !self.packed {
            memory.window(self.base + Self::DRIVER, 4, Rights::BOTH)?.store_u16(2, self.index);
        }
        Ok(())
    }

    /// Entries that the device has not returned.
    fn outstanding(&self, memory: &Map) -> Result<u16, Error> {
        if !self.packed {
            return Ok(self.index.wrapping_sub(memory.window(self.base + Self::DEVICE, 4, Rights::BOTH)?.load_u16(2)));
        }
        let table = memory.window(self.base, 16 * u32::from(RING), Rights::BOTH)?;
        // The device returns entries in order: all before the first that is still available are returned.
        let waits = |back: &u16| {
            let entry = self.index.wrapping_sub(*back);
            let flags = table.load_u16(16 * usize::from(entry % RING) + 14) & (AVAILABLE | USED);
            flags == Self::lap(entry)
        };
        Ok((1..=RING).rev().find(waits).unwrap_or(0))
    }
}

/// A port, and its driver.
pub struct Guest {
    pub port: Arc<Port>,
    memory: Arc<Map>,
    receive: Ring,
    transmit: Ring,
    /// Frames that it sends at once.
    pub burst: u16,
    /// Number of frames sent; it selects the next addresses.
    sent: usize,
    /// State of a generator of random numbers, for random pairs.
    random: u64,
}

/// Whose frames go to whom.
pub struct Addresses {
    /// The numbers that the switch knows at both ports.
    pub numbers: Vec<u32>,
    /// Each frame is for a random address, from another one.
    random: bool,
    /// Each frame comes from an address that never sent before.
    pub invents: bool,
}

impl Addresses {
    /// Teaches the switch this many addresses of each port. A full set of its table forgets, so some numbers are left out.
    pub fn learned(plane: &Plane, guests: &[Guest], count: usize, policed: bool, random: bool) -> Result<Self, Error> {
        let (mut numbers, mut next) = (Vec::new(), 0);
        while numbers.len() < count {
            let taught = next..NUMBERS.min(next + u32::try_from(count - numbers.len())?);
            next = taught.end;
            if taught.is_empty() {
                return Err("the switch does not learn so many addresses".into());
            }
            for number in taught.clone() {
                guests.iter().for_each(|guest| learn(plane, guest, number, policed));
            }
            numbers.extend(taught);
            numbers.retain(|&number| Self::is_known(plane, guests, number, policed));
        }
        Ok(Self { numbers, random, invents: false })
    }

    pub fn is_known(plane: &Plane, guests: &[Guest], number: u32, policed: bool) -> bool {
        let addresses = plane.switch().addresses();
        guests.iter().all(|guest| {
            addresses.find(mac(guest.port.id(), number), fid(policed), Time::ZERO) == Some(guest.port.id())
        })
    }

    /// The numbers of a frame's destination and source.
    fn pair(&self, guest: &mut Guest) -> [u32; 2] {
        let len = self.numbers.len();
        if self.invents {
            return [self.numbers[guest.sent % len], guest.sent as u32 % NUMBERS];
        }
        if !self.random {
            return [self.numbers[guest.sent % len]; 2];
        }
        // xorshift64 (Marsaglia 2003).
        guest.random ^= guest.random << 13;
        guest.random ^= guest.random >> 7;
        guest.random ^= guest.random << 17;
        [guest.random >> 40, guest.random >> 16 & 0xff_ffff].map(|word| self.numbers[word as usize % len])
    }
}

fn learn(plane: &Plane, guest: &Guest, number: u32, policed: bool) {
    plane.switch().addresses().learn(mac(guest.port.id(), number), fid(policed), guest.port.id(), Time::ZERO);
}

/// The network of frames without a tag.
fn fid(policed: bool) -> u16 {
    if policed { ACCESS } else { 0 }
}

fn mac(PortId(port): PortId, number: u32) -> Mac {
    let [_, a, b, c] = number.to_be_bytes();
    Mac([2, 0, port as u8, a, b, c])
}

/// Memory in the form that QEMU offers: a file that it shares, and 19 regions above that it does not share.
fn memory() -> Result<Map, Error> {
    let file = shared_file("guest", 4 * AREA)?;
    let mapping = Arc::new(Mapping::of_file(file, 0, 4 * AREA, true)?);
    let shared = Map::default().with(0, mapping, Rights::BOTH)?;
    Ok((1..20).try_fold(shared, |map, number| map.with_absent(number * 16 * AREA, AREA, Rights::BOTH))?)
}

impl Guest {
    pub fn new(plane: &Plane, number: u8, frame: &[u8], packed: bool) -> Result<Self, Error> {
        let adapter = find("virtio-net").ok_or("virtio-net is not registered")?;
        let adapter = (adapter.create)(&Settings::new(Mac([2, 0, 0, 0, 1, number])))?;
        let port = Port::new(PortId(number.into()), End::guest(adapter), Box::new(Silent), 1 << 20)?;
        let memory = Arc::new(memory()?);
        let mut receive = Ring::new(&memory, packed, AREA, BUFFER as u32, 2)?;
        let transmit = Ring::new(&memory, packed, 2 * AREA, HEADER as u32 + frame.len() as u32, 0)?;
        for entry in 0..RING {
            memory.write(Ring::buffer(transmit.base, entry) + HEADER, frame)?;
        }
        receive.add(&memory, RING)?;
        port.attach();
        port.set_memory(Arc::clone(&memory), Time::ZERO);
        let (features, base) = if packed { (FEATURES | PACKED, FIRST_LAP) } else { (FEATURES, 0) };
        let ready = port.with_rings(Time::ZERO, |rings, cx| {
            rings.take_features(features)
                && [&receive, &transmit].iter().zip(0..).all(|(ring, number)| {
                    rings.enable(number, true, cx);
                    rings.place(number, ring.place()) && rings.start(number, base, cx)
                })
        });
        let port = Arc::new(port);
        plane.join(Arc::clone(&port))?;
        let random = 0x9e37_79b9_7f4a_7c15 + u64::from(number);
        let guest = Self { port, memory, receive, transmit, burst: BURST, sent: 0, random };
        if ready == Some(true) { Ok(guest) } else { Err("the adapter does not take the rings".into()) }
    }

    /// Sends a burst of frames. Each goes to the peer's next address from its own next address.
    pub fn send(&mut self, addresses: &Addresses, now: Time) -> Result<(), Error> {
        for ahead in 0..self.burst {
            let own = self.port.id();
            let [target, source] = addresses.pair(self);
            let pair = [mac(PortId(own.0 ^ 1), target).0, mac(own, source).0].concat();
            let buffer = Ring::buffer(self.transmit.base, self.transmit.index.wrapping_add(ahead));
            self.memory.write(buffer + HEADER, &pair)?;
            self.sent += 1;
        }
        self.transmit.add(&self.memory, self.burst)?;
        self.port.with_rings(now, |rings, cx| rings.kick(1, cx));
        Ok(())
    }

    /// Receives all waiting frames, and returns the buffers.
    pub fn receive(&mut self) -> Result<(), Error> {
        let received = RING - self.receive.outstanding(&self.memory)?;
        let waits = self.transmit.outstanding(&self.memory)?;
        if (received, waits) != (self.burst, 0) {
            return Err(format!("port {}: {received} frames came, {waits} wait", self.port.id().0).into());
        }
        self.receive.add(&self.memory, received)
    }
}

/// Turns of a port until it has no work.
#[inline(never)]
pub fn serve(plane: &Plane, port: &Port, turn: &mut Turn, now: Time) {
    while plane.turn(port, turn, now).more {}
}

/// UDP over IPv4 without a checksum, in a frame of this many bytes with its check sequence; addresses are set later.
pub fn frame(bytes: u16) -> Result<Vec<u8>, Error> {
    let len = bytes.checked_sub(4).filter(|len| (60..=1514).contains(len)).ok_or("a frame has 64 to 1518 bytes")?;
    let mut frame = vec![0; usize::from(len)];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[16..18].copy_from_slice(&(len - 14).to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 17]);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    frame[34..38].copy_from_slice(&[0, 9, 0, 9]);
    frame[38..40].copy_from_slice(&(len - 34).to_be_bytes());
    Ok(frame)
}
