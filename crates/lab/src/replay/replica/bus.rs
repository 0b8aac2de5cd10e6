//! The adapter's port as its driver sees it, in this process. Each access goes into a digest.

use std::sync::Arc;

use nicety_adapter::tape::Sum;
use nicety_adapter::{Bus, BusError, InterruptKind, RingPlace, Time};
use nicety_drivers::{RingBus, config};
use nicety_memory::Map;
use nicety_plane::Port;
use nicety_plane::doubles::Memo;

/// See the module's page.
pub struct PortBus {
    port: Arc<Port>,
    memo: Memo,
    memory: Arc<Map>,
    line_masked: bool,
    /// The time of the current input.
    pub now: Time,
    /// A digest of all accesses and interrupts.
    pub digest: Sum,
}

fn refused(why: &str) -> BusError {
    BusError(why.to_owned())
}

/// Kinds of accesses, for the digest.
const READ: u64 = 1;
const WRITE: u64 = 2;
const KICK: u64 = 3;
const INTERRUPT: u64 = 4;

impl PortBus {
    /// The bus of this port.
    pub fn new(port: Arc<Port>, memo: Memo, memory: Arc<Map>) -> Self {
        Self { port, memo, memory, line_masked: false, now: Time::ZERO, digest: Sum::default() }
    }

    fn note(&mut self, kind: u64, place: u64, data: &[u8]) {
        self.digest.number(place << 8 | kind);
        self.digest.bytes(data);
    }

    /// Takes the next pending interrupt: a vector, a ring's number, or 0 for the line.
    pub fn take(&mut self) -> Option<u16> {
        let mut requests = self.memo.asked();
        let vector = match requests.messages.pop() {
            Some(vector) => vector,
            None if requests.line && !self.line_masked => {
                self.line_masked = true;
                0
            }
            None => return None,
        };
        drop(requests);
        self.note(INTERRUPT, vector.into(), &[]);
        Some(vector)
    }
}

impl Bus for PortBus {
    fn config_read(&mut self, offset: u16, data: &mut [u8]) -> Result<(), BusError> {
        self.port.config_read(offset.into(), data, self.now);
        Ok(())
    }

    fn config_write(&mut self, offset: u16, data: &[u8]) -> Result<(), BusError> {
        self.port.config_write(offset, data, self.now);
        Ok(())
    }

    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        self.port.read(bar, offset, data, self.now);
        self.note(READ, u64::from(bar) << 48 | offset, data);
        Ok(())
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8]) -> Result<(), BusError> {
        self.note(WRITE, u64::from(bar) << 48 | offset, data);
        self.port.write(bar, offset, data, self.now);
        Ok(())
    }

    fn memory(&self) -> &Arc<Map> {
        &self.memory
    }

    fn interrupts(&mut self, kind: InterruptKind) -> Result<(), BusError> {
        config::choose_interrupts(self, kind)
    }

    fn unmask_line(&mut self) -> Result<(), BusError> {
        self.line_masked = false;
        Ok(())
    }
}

impl RingBus for PortBus {
    fn negotiate(&mut self, wanted: u64) -> Result<u64, BusError> {
        let taken = self.port.negotiate_rings(wanted, self.now);
        taken.ok_or_else(|| refused("it does not take features that it offers"))
    }

    fn config(&mut self, offset: u32, data: &mut [u8]) -> Result<(), BusError> {
        match self.port.with_rings(self.now, |face, _| face.config(offset, data)) {
            Some(true) => Ok(()),
            Some(false) => Err(refused("that is not in its configuration space")),
            None => Err(refused("it has no rings")),
        }
    }

    fn memory(&self) -> &Arc<Map> {
        &self.memory
    }

    fn start(&mut self, ring: u16, place: RingPlace) -> Result<(), BusError> {
        let started = self.port.start_ring(ring, place, self.now);
        if started { Ok(()) } else { Err(refused("it does not start that ring")) }
    }

    fn stop(&mut self, ring: u16) -> Result<(), BusError> {
        let stopped = self.port.with_rings(self.now, |face, cx| face.stop(ring, cx));
        stopped.map(|_| ()).ok_or_else(|| refused("it has no rings"))
    }

    fn kick(&mut self, ring: u16) -> Result<(), BusError> {
        self.note(KICK, ring.into(), &[]);
        let kicked = self.port.with_rings(self.now, |face, cx| face.kick(ring, cx));
        kicked.ok_or_else(|| refused("it has no rings"))
    }
}
