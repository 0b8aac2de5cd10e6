//! virtio rings behind a vhost-user socket. Memory is shared once, doorbells and interrupts are eventfds, and no frame costs a
//! message.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use nicety_adapter::{BusError, Offload, RingPlace};
use nicety_drivers::virtio_net::{RECEIVE, TRANSMIT};
use nicety_drivers::{Arena, RingBus, Sink, VirtioNet};
use nicety_frame::Mac;
use nicety_memory::{Map, Mapping, Rights};
use nicety_vhost_user::frontend::{Bells, Frontend, Shared};
use rustix::event::PollFlags;

use super::link::{GuestError, Link, LinkCounts, drain};

const RINGS: [u16; 2] = [RECEIVE, TRANSMIT];

/// The rings behind the socket, as a bus.
#[derive(Debug)]
struct VhostBus {
    frontend: Frontend,
    file: OwnedFd,
    memory: Arc<Map>,
    /// Kick and call descriptors by ring, once started.
    bells: [Option<Bells>; RINGS.len()],
    kicks: u64,
    interrupts: u64,
}

impl VhostBus {
    fn connect(socket: &Path, file: OwnedFd, len: u64) -> Result<VhostBus, BusError> {
        let frontend = Frontend::connect(socket).map_err(bus)?;
        let mapping = Mapping::of_file(file.try_clone().map_err(bus)?, 0, len, true).map_err(bus)?;
        let memory = Arc::new(Map::default().with(0, Arc::new(mapping), Rights::BOTH).map_err(bus)?);
        Ok(VhostBus { frontend, file, memory, bells: [None, None], kicks: 0, interrupts: 0 })
    }
}

impl RingBus for VhostBus {
    fn negotiate(&mut self, wanted: u64) -> Result<u64, BusError> {
        let taken = self.frontend.negotiate(wanted).map_err(bus)?;
        let shared = Shared { base: 0, len: self.memory.mapped_bytes(), fd: self.file.as_fd(), offset: 0 };
        self.frontend.share(&[shared]).map_err(bus)?;
        Ok(taken)
    }

    fn config(&mut self, offset: u32, data: &mut [u8]) -> Result<(), BusError> {
        self.frontend.config(offset, data).map_err(bus)
    }

    fn memory(&self) -> &Arc<Map> {
        &self.memory
    }

    fn start(&mut self, ring: u16, place: RingPlace) -> Result<(), BusError> {
        let bells = self.frontend.start(ring, place, 0).map_err(bus)?;
        let slot = self.bells.get_mut(usize::from(ring)).ok_or_else(|| BusError(format!("it has no ring {ring}")))?;
        *slot = Some(bells);
        Ok(())
    }

    fn stop(&mut self, ring: u16) -> Result<(), BusError> {
        if self.bells.get_mut(usize::from(ring)).is_some_and(|bells| bells.take().is_some()) {
            self.frontend.stop(ring).map_err(bus)?;
        }
        Ok(())
    }

    fn kick(&mut self, ring: u16) -> Result<(), BusError> {
        if let Some(Some(bells)) = self.bells.get(usize::from(ring)) {
            self.kicks += 1;
            bells.kick.ring().map_err(bus)?;
        }
        Ok(())
    }
}

/// virtio-net with its driver.
#[derive(Debug)]
pub struct VhostLink {
    driver: VirtioNet,
    bus: VhostBus,
}

impl VhostLink {
    /// Connects, shares this file of `len` bytes at address 0, and opens the driver in `arena` of it.
    pub fn open(socket: &Path, file: OwnedFd, len: u64, arena: Arena) -> Result<VhostLink, GuestError> {
        let mut bus = VhostBus::connect(socket, file, len).map_err(|error| GuestError::Peer(error.to_string()))?;
        let mut driver = VirtioNet::new(arena);
        driver.open(&mut bus)?;
        Ok(VhostLink { driver, bus })
    }
}

impl Link for VhostLink {
    fn mac(&self) -> Mac {
        self.driver.mac()
    }

    fn offloads(&self) -> (bool, u32) {
        let features = self.driver.features();
        (features.checksum, features.segment_bytes)
    }

    fn up(&self) -> bool {
        self.driver.link()
    }

    fn watch(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        self.bus.bells.iter().flatten().map(|bells| (bells.call.as_fd(), PollFlags::IN)).collect()
    }

    fn woken(&mut self, which: usize) -> Result<bool, GuestError> {
        let (Some(Some(bells)), Some(&ring)) = (self.bus.bells.get(which), RINGS.get(which)) else { return Ok(false) };
        let called = drain(bells.call.as_fd()).map_err(|errno| GuestError::System("taking an interrupt", errno))?;
        self.bus.interrupts += called;
        Ok(called > 0 && self.driver.interrupt(&mut self.bus, ring)?)
    }

    fn receive(&mut self, budget: usize, sink: &mut Sink<'_>) -> Result<usize, GuestError> {
        Ok(self.driver.receive(&mut self.bus, budget, sink)?)
    }

    fn transmit(&mut self, packet: &[u8], offload: &Offload) -> Result<bool, GuestError> {
        Ok(self.driver.transmit(&mut self.bus, packet, offload)?)
    }

    fn flush(&mut self) -> Result<(), GuestError> {
        Ok(self.driver.flush(&mut self.bus)?)
    }

    fn rest(&mut self) -> Result<bool, GuestError> {
        Ok(self.driver.rest(&mut self.bus)?)
    }

    fn counts(&self) -> LinkCounts {
        LinkCounts { reads: 0, writes: self.bus.kicks, interrupts: self.bus.interrupts }
    }

    /// virtio has no register to read. A kick of a ring without new buffers has no effect.
    fn touch(&mut self, _reads: u32, writes: u32) -> Result<(), GuestError> {
        for _ in 0..writes {
            self.bus.kick(TRANSMIT).map_err(|error| GuestError::Peer(error.to_string()))?;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), GuestError> {
        Ok(self.driver.close(&mut self.bus)?)
    }
}

fn bus(error: impl std::fmt::Display) -> BusError {
    BusError(error.to_string())
}
