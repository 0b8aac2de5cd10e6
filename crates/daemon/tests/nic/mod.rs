//! A bare guest that drives an 82540EM by hand. Its rings are in one memory file and its buffers in another.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nicety_memory::{Map, Mapping, Rights};
use nicety_vfio_user::{Client, ClientError, DmaProtection, DmaRange};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::stage::Stage;

const CONFIG: u32 = 7;
const BOTH: DmaProtection = DmaProtection { read: true, write: true };
pub const MIB: u64 = 1 << 20;
/// The rings' file is at address 0, the buffers' file after it.
pub const RINGS: DmaRange = DmaRange { address: 0, size: MIB };
pub const BUFFERS: DmaRange = DmaRange { address: MIB, size: MIB };
const TRANSMIT: u64 = 0x1000;
const RECEIVE: u64 = 0x4000;
/// Descriptors of each ring. There are as many buffers of 2 KiB, for both rings.
const RING: u32 = 256;
pub const FRAME: usize = 1000;

/// A file that can shrink, like a guest's memory that its VMM does not seal.
pub fn file(name: &str) -> OwnedFd {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, MIB).unwrap();
    fd
}

/// The same memory, mapped by its owner.
pub fn seen(file: &OwnedFd) -> Map {
    let mapping = Mapping::of_file(file.try_clone().unwrap(), 0, MIB, true).unwrap();
    Map::default().with(0, Arc::new(mapping), Rights::BOTH).unwrap()
}

/// A guest with an 82540EM. Its driver follows the datasheet (8254x manual, chapters 3 and 13), but does nothing that takes time:
/// no reset, no EEPROM, no PHY.
pub struct Nic {
    pub client: Client,
    pub files: [OwnedFd; 2],
    rings: Map,
    pub buffers: Map,
    tail: u32,
    /// Ring registers, 0x2000 to 0x3fff, if the guest has mapped them.
    page: Option<Map>,
}

impl Nic {
    pub fn new(stage: &Stage, number: usize) -> Nic {
        let client = Client::connect(stage.socket(number)).unwrap();
        let files = [file("rings"), file("buffers")];
        let (rings, buffers) = (seen(&files[0]), seen(&files[1]));
        let mut nic = Nic { client, files, rings, buffers, tail: 0, page: None };
        nic.client.region_write(CONFIG, 4, &[7, 0]).unwrap();
        nic.map(RINGS).unwrap();
        nic.map(BUFFERS).unwrap();
        nic.lay();
        // CTRL: set link up. Base, length, head and tail of each ring, then the enable register.
        nic.write(0, 0x40).unwrap();
        for (ring, base, control, on) in [(0x2800, RECEIVE, 0x100, 0x8002), (0x3800, TRANSMIT, 0x400, 0x0004_010a)] {
            for (offset, value) in [(0, base as u32), (4, 0), (8, RING * 16), (0x10, 0), (0x18, 0)] {
                nic.write(ring + offset, value).unwrap();
            }
            nic.write(control, on).unwrap();
        }
        nic.write(0x2818, RING - 1).unwrap();
        nic
    }

    pub fn map(&mut self, range: DmaRange) -> Result<(), ClientError> {
        let file = &self.files[(range.address / MIB) as usize];
        self.client.dma_map(range, BOTH, Some((file.as_fd(), 0)))
    }

    /// Writes the descriptors and the broadcast frames.
    pub fn lay(&mut self) {
        for index in 0..u64::from(RING) {
            let buffer = index * 2048;
            // IFCS, RS and EOP.
            let command = 0x0b00_0000u32 | FRAME as u32;
            let transmit = [(MIB + buffer).to_le_bytes(), u64::from(command).to_le_bytes()].concat();
            self.rings.write(TRANSMIT + index * 16, &transmit).unwrap();
            let receive = [(MIB + 512 * 1024 + buffer % (512 * 1024)).to_le_bytes(), [0; 8]].concat();
            self.rings.write(RECEIVE + index * 16, &receive).unwrap();
            let frame = [&[0xff; 6][..], &[0x52, 0x54, 0, 0, 0, 1, 0x88, 0xb5], &[index as u8; FRAME - 14]].concat();
            self.buffers.write(buffer % (512 * 1024), &frame).unwrap();
        }
    }

    /// Maps the ring registers as far as the port allows. From now on the guest writes there.
    #[allow(dead_code, reason = "not every test maps them")]
    pub fn map_registers(&mut self) {
        let region = self.client.region_info(0).unwrap();
        let area = region.areas[0];
        assert_eq!((area.offset, area.size), (0x2000, 0x2000));
        let mapping = Mapping::of_file(region.fd.unwrap(), region.offset + area.offset, area.size, true).unwrap();
        self.page = Some(Map::default().with(0x2000, Arc::new(mapping), Rights::BOTH).unwrap());
    }

    /// The value of a register in the mapped part.
    #[allow(dead_code, reason = "not every test maps them")]
    pub fn shown(&self, register: u64) -> u32 {
        let mut bytes = [0; 4];
        self.page.as_ref().unwrap().read(register, &mut bytes).unwrap();
        u32::from_le_bytes(bytes)
    }

    fn write(&mut self, register: u64, value: u32) -> Result<(), ClientError> {
        if let Some(page) = self.page.as_ref().filter(|_| (0x2000..0x4000).contains(&register)) {
            page.write(register, &value.to_le_bytes()).unwrap();
            return Ok(());
        }
        self.client.region_write(0, register, &value.to_le_bytes())
    }

    pub fn read(&mut self, register: u64) -> Result<u32, ClientError> {
        let mut bytes = [0; 4];
        self.client.region_read(0, register, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Sends 64 more frames. They are in flight on return.
    pub fn send(&mut self) -> Result<(), ClientError> {
        self.tail = (self.tail + 64) % RING;
        self.write(0x3818, self.tail)
    }

    /// Whether the adapter has completed all frames: its head is at the tail.
    #[allow(dead_code, reason = "not every test asks")]
    pub fn is_fetched(&mut self) -> bool {
        self.read(0x3810).unwrap() == self.tail
    }

    /// Gives all used receive buffers back to the adapter.
    #[allow(dead_code, reason = "not every test receives so much")]
    pub fn repost(&mut self) -> Result<(), ClientError> {
        let head = self.read(0x2810)?;
        self.write(0x2818, (head + RING - 1) % RING)
    }
}
