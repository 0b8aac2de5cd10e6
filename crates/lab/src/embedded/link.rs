//! The carrier of a station's frames: an adapter with its driver and its bus, or the far end of an uplink.

use std::os::fd::BorrowedFd;

use nicety_adapter::{Bus, BusError, Offload};
use nicety_drivers::{Driver, DriverError, Sink};
use nicety_frame::Mac;
use rustix::event::PollFlags;
use rustix::io::Errno;
use thiserror::Error;

/// The reason a guest cannot continue.
#[derive(Debug, Error)]
pub enum GuestError {
    /// An error of the driver.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A system call failed.
    #[error("{0}: {1}")]
    System(&'static str, Errno),
    /// The process at the other end of the socket failed, or cannot be reached.
    #[error("{0}")]
    Peer(String),
}

/// Counts of a link.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkCounts {
    pub reads: u64,
    pub writes: u64,
    pub interrupts: u64,
}

/// A carrier of frames (see the module's page).
pub trait Link {
    /// The station's address.
    fn mac(&self) -> Mac;

    /// Whether the link fills in checksums, and the largest packet it segments in bytes (0: none).
    fn offloads(&self) -> (bool, u32);

    /// Whether frames can pass.
    fn up(&self) -> bool;

    /// Descriptors to poll, and their events.
    fn watch(&self) -> Vec<(BorrowedFd<'_>, PollFlags)>;

    /// Handles readiness of the descriptor at this index. Returns true if polling shall begin.
    fn woken(&mut self, which: usize) -> Result<bool, GuestError>;

    /// As [`Driver::receive`].
    fn receive(&mut self, budget: usize, sink: &mut Sink<'_>) -> Result<usize, GuestError>;

    /// As [`Driver::transmit`].
    fn transmit(&mut self, packet: &[u8], offload: &Offload) -> Result<bool, GuestError>;

    /// As [`Driver::flush`].
    fn flush(&mut self) -> Result<(), GuestError> {
        Ok(())
    }

    /// As [`Driver::rest`].
    fn rest(&mut self) -> Result<bool, GuestError> {
        Ok(false)
    }

    /// The counts so far. A link without an adapter counts nothing.
    fn counts(&self) -> LinkCounts {
        LinkCounts::default()
    }

    /// Reads and writes registers so often, without any effect. Returns when all were handled. A link without an adapter has none.
    fn touch(&mut self, _reads: u32, _writes: u32) -> Result<(), GuestError> {
        Ok(())
    }

    /// Closes the link.
    fn close(&mut self) -> Result<(), GuestError> {
        Ok(())
    }
}

/// A bus that delivers interrupts through descriptors.
pub trait EventBus: Bus {
    /// One descriptor per interrupt vector.
    fn vectors(&self) -> Vec<BorrowedFd<'_>>;

    /// Takes an interrupt. Returns false if there was none.
    fn take(&mut self, vector: usize) -> Result<bool, BusError>;

    /// The counts so far.
    fn counts(&self) -> LinkCounts;

    /// As [`Link::touch`].
    fn touch(&mut self, reads: u32, writes: u32) -> Result<(), BusError>;
}

/// An adapter and its driver.
pub struct Driven<B> {
    driver: Box<dyn Driver>,
    bus: B,
}

impl<B: EventBus> Driven<B> {
    /// Opens the driver.
    pub fn open(mut driver: Box<dyn Driver>, mut bus: B) -> Result<Self, GuestError> {
        driver.open(&mut bus)?;
        Ok(Self { driver, bus })
    }
}

impl<B: EventBus> Link for Driven<B> {
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
        self.bus.vectors().into_iter().map(|fd| (fd, PollFlags::IN)).collect()
    }

    fn woken(&mut self, which: usize) -> Result<bool, GuestError> {
        if !self.bus.take(which).map_err(DriverError::from)? {
            return Ok(false);
        }
        let mine = self.driver.interrupt(&mut self.bus, u16::try_from(which).unwrap_or(u16::MAX))?;
        self.bus.unmask_line().map_err(DriverError::from)?;
        Ok(mine)
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
        self.bus.counts()
    }

    fn touch(&mut self, reads: u32, writes: u32) -> Result<(), GuestError> {
        Ok(self.bus.touch(reads, writes).map_err(DriverError::from)?)
    }

    fn close(&mut self) -> Result<(), GuestError> {
        Ok(self.driver.close(&mut self.bus)?)
    }
}

/// A non-blocking eventfd.
pub fn event() -> Result<std::os::fd::OwnedFd, Errno> {
    use rustix::event::{EventfdFlags, eventfd};
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Takes an eventfd's count. Returns 0 if it was not signalled.
pub fn drain(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut count = [0; 8];
    match rustix::io::read(fd, &mut count) {
        Ok(_) => Ok(u64::from_ne_bytes(count)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(errno) => Err(errno),
    }
}
