//! Counts the instructions of a walk over a transmit ring: by the crate `virtio-queue`, and by this project. Instructions and not
//! time, so that a loaded machine gives the same result (docs/adr/0008-own-virtio-rings.md).
//!
//! ```sh
//! cargo build --release -p nicety-adapters --example rings
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*counted*' --callgrind-out-file=out \
//!     target/release/examples/rings theirs 1 100000
//! ```
//! The arguments: `ours` or `theirs`; descriptors of a frame (1: header and frame in one; 2: the header in its own, as Linux does
//! without VIRTIO_F_ANY_LAYOUT; N: the frame in N - 1 pieces); frames. The result is "Collected" divided by the frames.
//!
//! Both do what a switch needs from a chain: read the header, copy the first 128 bytes privately, translate the rest to this
//! process's addresses, and give the chain back; 64 chains at a time. `theirs` does only this, with the crate's cheapest calls
//! (`Queue::iter`, one read of the driver's index per burst). `ours` is the complete adapter's `fetch` and `complete`: it also
//! validates the header's offload request, builds the packet and counts it.
#![forbid(unsafe_code)]

mod help;

use std::hint::black_box;
use std::sync::Arc;

use arrayvec::ArrayVec;
use nicety_adapter::{
    Adapter, Batch, Budget, Context, Counters, Face, HEAD_BYTES, Outbox, PACKETS, PortId, RingPlace, Time,
};
use nicety_adapters::{Settings, find};
use nicety_frame::Mac;
use nicety_memory::Map;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

type Error = Box<dyn std::error::Error>;

const RING: u16 = 256;
/// Chains that are added and walked together.
const BURST: u16 = PACKETS as u16;
/// Bytes of a frame of full size, and of the header before it (virtio 1.2, 5.1.6).
const FRAME: u32 = 1514;
const HEADER: u32 = 12;
/// Addresses of the ring's areas and of the buffers.
const DRIVER: u64 = 16 * RING as u64;
const DEVICE: u64 = 2 * DRIVER;
const BUFFERS: u64 = 1 << 20;
const MEMORY: usize = 2 << 20;
/// Distance between buffers, in bytes.
const BUFFER: u64 = 2048;
/// VIRTIO_F_VERSION_1 and VIRTIO_NET_F_MRG_RXBUF.
const FEATURES: u128 = 1 << 32 | 1 << 15;

/// Writable guest memory, of either crate.
trait Memory {
    fn put(&self, at: u64, bytes: &[u8]) -> Result<(), Error>;
}

impl Memory for Map {
    fn put(&self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        Ok(self.write(at, bytes)?)
    }
}

impl Memory for GuestMemoryMmap {
    fn put(&self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        Ok(self.write_slice(bytes, GuestAddress(at))?)
    }
}

/// The driver: it uses the same chains, at the same addresses, again and again.
struct Driver {
    descriptors: u16,
    index: u16,
}

impl Driver {
    fn new(memory: &impl Memory, descriptors: u16) -> Result<Self, Error> {
        for chain in 0..RING / descriptors {
            let buffer = BUFFERS + BUFFER * u64::from(chain);
            for number in 0..descriptors {
                let (from, len) = part(number, descriptors);
                let slot = chain * descriptors + number;
                let more = u16::from(number + 1 < descriptors);
                let mut descriptor = (buffer + u64::from(from)).to_le_bytes().to_vec();
                descriptor.extend(len.to_le_bytes());
                descriptor.extend(more.to_le_bytes());
                descriptor.extend((slot + 1).to_le_bytes());
                memory.put(16 * u64::from(slot), &descriptor)?;
            }
            memory.put(buffer + u64::from(HEADER), &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45])?;
        }
        Ok(Self { descriptors, index: 0 })
    }

    /// Makes another burst available to the device.
    fn add(&mut self, memory: &impl Memory) -> Result<(), Error> {
        let chains = RING / self.descriptors;
        for ahead in 0..BURST {
            let entry = self.index.wrapping_add(ahead);
            let head = entry % chains * self.descriptors;
            memory.put(DRIVER + 4 + 2 * u64::from(entry % RING), &head.to_le_bytes())?;
        }
        self.index = self.index.wrapping_add(BURST);
        memory.put(DRIVER + 2, &self.index.to_le_bytes())
    }
}

/// Offset and length of a part of header and frame.
fn part(number: u16, of: u16) -> (u32, u32) {
    match (number, of) {
        (_, 1) => (0, HEADER + FRAME),
        (0, _) => (0, HEADER),
        _ => {
            let (number, pieces) = (u32::from(number - 1), u32::from(of - 1));
            let (from, to) = (FRAME * number / pieces, FRAME * (number + 1) / pieces);
            (HEADER + from, to - from)
        }
    }
}

/// The crate's ring. Returns the number of bytes found, so that the compiler cannot remove the work.
#[inline(never)]
fn counted_theirs(queue: &mut Queue, memory: &GuestMemoryMmap) -> Result<usize, Error> {
    let mut heads = ArrayVec::<u16, PACKETS>::new();
    let mut bytes = 0;
    for chain in queue.iter(memory)?.take(PACKETS) {
        heads.push(chain.head_index());
        let mut header = [0; HEADER as usize];
        let mut head = [0; HEAD_BYTES];
        let (mut have, mut copied) = (0, 0);
        for descriptor in chain.readable() {
            let (mut at, mut len) = (descriptor.addr().0, descriptor.len() as usize);
            for (place, had) in [(&mut header[..], &mut have), (&mut head[..], &mut copied)] {
                let n = len.min(place.len() - *had);
                if n > 0 {
                    memory.read_slice(&mut place[*had..*had + n], GuestAddress(at))?;
                    (*had, at, len) = (*had + n, at + n as u64, len - n);
                }
            }
            if len > 0 {
                bytes += black_box(memory.get_slice(GuestAddress(at), len)?).len();
            }
        }
        bytes += black_box((&header, &head)).1.len();
    }
    for head in heads {
        queue.add_used(memory, head, 0)?;
    }
    Ok(bytes)
}

/// The adapter's ring.
#[inline(never)]
fn counted_ours(adapter: &mut dyn Adapter, batch: &mut Batch, cx: &mut Context<'_>) -> usize {
    batch.start(cx.memory, PortId(0), 0);
    let all = Budget { packets: PACKETS, bytes: u64::MAX };
    adapter.fetch(0, all, batch, cx);
    let bytes = black_box(&*batch).bytes();
    adapter.complete(batch, cx);
    bytes as usize
}

fn theirs(descriptors: u16, bursts: u32) -> Result<usize, Error> {
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), MEMORY)])?;
    let mut driver = Driver::new(&memory, descriptors)?;
    let mut queue = Queue::new(RING)?;
    queue.try_set_desc_table_address(GuestAddress(0))?;
    queue.try_set_avail_ring_address(GuestAddress(DRIVER))?;
    queue.try_set_used_ring_address(GuestAddress(DEVICE))?;
    queue.set_ready(true);
    let mut bytes = 0;
    for _ in 0..bursts {
        driver.add(&memory)?;
        bytes += counted_theirs(&mut queue, &memory)?;
    }
    Ok(bytes)
}

fn ours(descriptors: u16, bursts: u32) -> Result<usize, Error> {
    let memory = Arc::new(Map::private(MEMORY)?);
    let mut driver = Driver::new(&*memory, descriptors)?;
    let entry = find("virtio-net").ok_or("virtio-net is not registered")?;
    let mut adapter = (entry.create)(&Settings::new(Mac([2, 0, 0, 0, 0, 2])))?;
    let (mut out, mut counters, mut batch) = (Outbox::default(), Counters::default(), Batch::new());
    let mut cx = Context::new(&memory, &mut out, &mut counters, Time::ZERO);
    let Face::Rings(rings) = adapter.face() else { return Err("virtio-net has rings".into()) };
    let place = RingPlace { size: RING, descriptors: 0, driver: DRIVER, device: DEVICE };
    rings.enable(1, true, &mut cx);
    if !(rings.take_features(FEATURES) && rings.place(1, place) && rings.start(1, 0, &mut cx)) {
        return Err("the adapter does not take the ring".into());
    }
    let mut bytes = 0;
    for _ in 0..bursts {
        driver.add(&*memory)?;
        bytes += counted_ours(adapter.as_mut(), &mut batch, &mut cx);
    }
    Ok(bytes)
}

fn main() -> Result<(), Error> {
    help::on_request(include_str!("rings.rs"));
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [who, descriptors, frames] = &arguments[..] else {
        return Err("arguments: ours|theirs descriptors frames".into());
    };
    let descriptors = descriptors.parse::<u16>()?;
    if !(1..=RING / BURST).contains(&descriptors) {
        return Err("a frame has 1 to 4 descriptors".into());
    }
    let bursts = frames.parse::<u32>()?.div_ceil(BURST.into());
    let bytes = match who.as_str() {
        "ours" => ours(descriptors, bursts)?,
        "theirs" => theirs(descriptors, bursts)?,
        other => return Err(format!("{other}: ours or theirs").into()),
    };
    let frames = bursts * u32::from(BURST);
    if bytes != frames as usize * FRAME as usize {
        return Err(format!("{bytes} bytes were found, in {frames} frames").into());
    }
    println!("{who}: {frames} frames of {FRAME} bytes in {descriptors} descriptors each");
    Ok(())
}
