//! A bare guest: an 82599's function driven by hand (Linux, drivers/net/ethernet/intel/ixgbevf), with its rings, a frame and a buffer in
//! one memory file.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nicety_frame::Mac;
use nicety_memory::{Map, Mapping, Rights};
use nicety_vfio_user::{Client, DmaProtection, DmaRange};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

const MEMORY: DmaRange = DmaRange { address: 0, size: 0x4000 };
const TRANSMIT: u64 = 0;
const RECEIVE: u64 = 0x1000;
const FRAME: u64 = 0x2000;
const BUFFER: u64 = 0x3000;
/// An address that no memory is mapped at.
pub const NOWHERE: u64 = 0x10_0000;
/// Descriptors of each ring.
const RING: u32 = 256;
/// Most frames that are posted at once.
pub const FRAMES: u32 = RING - 1;
/// Bytes of a frame, without its check sequence.
pub const BYTES: u32 = 60;

pub struct Guest {
    client: Client,
    memory: Map,
    tail: u32,
    _file: OwnedFd,
}

impl Guest {
    /// A function with this address sends a ring of frames to the other one.
    pub fn new(client: Client, own: Mac, to: Mac) -> Self {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, MEMORY.size).unwrap();
        let mapping = Mapping::of_file(file.try_clone().unwrap(), 0, MEMORY.size, true).unwrap();
        let memory = Map::default().with(0, Arc::new(mapping), Rights::BOTH).unwrap();
        let mut this = Self { client, memory, tail: 0, _file: file };
        let both = DmaProtection { read: true, write: true };
        this.client.dma_map(MEMORY, both, Some((this._file.as_fd(), 0))).unwrap();
        this.client.region_write(7, 4, &[6, 0]).unwrap();
        // VFU, RESET, REQ; the address comes back; ACK.
        for (register, value) in [(0x2fc, 4), (0x200, 1), (0x2fc, 1)] {
            this.write(register, value);
        }
        let Mac([a, b, c, d, ..]) = own;
        assert_eq!([this.read(0x200), this.read(0x204)], [0x8000_0001, u32::from_le_bytes([a, b, c, d])]);
        this.write(0x2fc, 2);
        this.write_frame(own, to);
        for (ring, base) in [(0x1000, RECEIVE), (0x2000, TRANSMIT)] {
            for (offset, value) in [(0, base as u32), (4, 0), (8, RING * 16), (0x10, 0), (0x18, 0), (0x28, 1 << 25)] {
                this.write(ring + offset, value);
            }
        }
        // SRRCTL: advanced descriptors, 2 KiB.
        this.write(0x1014, 0x0200_0002);
        this.send();
        this
    }

    /// The frame that it sends from now on.
    pub fn write_frame(&mut self, from: Mac, to: Mac) {
        self.memory.write(FRAME, &[&to.0[..], &from.0, &[0x88, 0xb5]].concat()).unwrap();
    }

    pub fn read(&mut self, register: u64) -> u32 {
        let mut word = [0; 4];
        self.client.region_read(0, register, &mut word).unwrap();
        u32::from_le_bytes(word)
    }

    pub fn write(&mut self, register: u64, value: u32) {
        self.client.region_write(0, register, &value.to_le_bytes()).unwrap();
    }

    /// Whether the last descriptor is done.
    pub fn has_sent(&self) -> bool {
        let mut status = [0; 4];
        self.memory.read(TRANSMIT + u64::from((self.tail + RING - 1) % RING) * 16 + 12, &mut status).unwrap();
        status[0] & 1 != 0
    }

    /// Posts a ring of frames, and all buffers that were filled.
    pub fn send(&mut self) {
        self.repost();
        self.post(FRAMES, FRAME);
    }

    /// Posts so many frames, which lie at this address.
    pub fn post(&mut self, frames: u32, at: u64) {
        // IFCS, DEXT, data, EOP; RS only of the last one.
        for index in 0..frames {
            let place = (self.tail + index) % RING;
            let report = if index == frames - 1 { 1 << 27 } else { 0 };
            let words = [at as u32, 0, 0x2330_0000 | report | BYTES, BYTES << 14];
            self.memory.write(TRANSMIT + u64::from(place) * 16, &words.map(u32::to_le_bytes).concat()).unwrap();
        }
        self.tail = (self.tail + frames) % RING;
        self.write(0x2018, self.tail);
    }

    fn repost(&mut self) {
        let head = self.read(0x1010);
        let descriptor = [BUFFER.to_le_bytes(), [0; 8]].concat();
        (0..RING).for_each(|index| self.memory.write(RECEIVE + u64::from(index) * 16, &descriptor).unwrap());
        self.write(0x1018, (head + RING - 1) % RING);
    }
}
