//! A port as a guest's driver sees it, in this process: each access is a call, each interrupt is recorded.

use std::sync::Arc;

use nicety_adapter::trace::{Access, Event, Region};
use nicety_adapter::{Bus, BusError, InterruptKind, RingPlace, Time};
use nicety_drivers::{RingBus, config};
use nicety_memory::Map;
use nicety_plane::doubles::Memo;
use nicety_plane::{Doorbells, Port};

use crate::rig::Rig;

/// Accesses of a driver to its device. Configuration space is not counted: drivers use it only to open and close.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Registers read.
    pub reads: u64,
    /// Registers written, and rings kicked.
    pub writes: u64,
    /// Interrupts taken.
    pub interrupts: u64,
}

/// Called before and after each access to a register, with the access's number and whether it is over.
pub type Hook = Box<dyn FnMut(u64, bool)>;

/// See the module's page.
pub struct PortBus {
    port: Arc<Port>,
    memo: Memo,
    memory: Arc<Map>,
    page: Option<Doorbells>,
    line_masked: bool,
    /// Register accesses bypass the port and reach the adapter itself: a port passes none in D3hot.
    pub past_port: bool,
    /// Runs other events just before and just after an access.
    pub hook: Option<Hook>,
    /// The driver's accesses and the interrupts that it takes, if wanted.
    pub log: Option<Vec<Event>>,
    /// Virtual time, which the owner advances.
    pub now: Time,
    /// Accesses so far.
    pub accesses: Accesses,
}

fn refused(why: &str) -> BusError {
    BusError(why.to_owned())
}

impl PortBus {
    /// The bus of a port whose requests go to `memo` and whose guest has this memory.
    pub fn new(port: Arc<Port>, memo: Memo, memory: Arc<Map>) -> Self {
        Self {
            port,
            memo,
            memory,
            page: None,
            line_masked: false,
            past_port: false,
            hook: None,
            log: None,
            now: Time::ZERO,
            accesses: Accesses::default(),
        }
    }

    /// The bus of a rig's adapter.
    pub fn of(rig: &Rig) -> Self {
        Self::new(Arc::clone(&rig.port), rig.memo.clone(), Arc::clone(&rig.memory))
    }

    /// Maps the adapter's doorbells. False if none can be mapped.
    pub fn map_doorbells(&mut self) -> bool {
        let Some(place) = Doorbells::place(&self.port, self.now) else { return false };
        let Ok(map) = Map::private(place.len as usize) else { return false };
        self.page = Some(Doorbells::new(&self.port, place, Arc::new(map), self.now));
        true
    }

    /// Converts changed words of the mapped page into register writes, as a transport does before each message.
    pub fn scan(&mut self) {
        if let Some(page) = &mut self.page {
            page.scan(&self.port, self.now);
        }
    }

    fn refresh(&mut self) {
        if let Some(page) = &mut self.page {
            page.refresh(&self.port, self.now);
        }
    }

    /// Takes the next pending interrupt, if there is one: a vector, a ring's number, or 0 for the line.
    pub fn take(&mut self) -> Option<u16> {
        let mut asked = self.memo.asked();
        let (vector, line) = match asked.messages.pop() {
            Some(vector) => (vector, false),
            None if asked.line && !self.line_masked => {
                self.line_masked = true;
                (0, true)
            }
            None => return None,
        };
        self.accesses.interrupts += 1;
        let event = if line { Event::Line(true) } else { Event::Interrupt(vector) };
        drop(asked);
        self.note(event);
        Some(vector)
    }

    fn note(&mut self, event: Event) {
        if let Some(log) = &mut self.log {
            log.push(event);
        }
    }

    fn around(&mut self, over: bool) {
        if let Some(hook) = &mut self.hook {
            hook(self.accesses.reads + self.accesses.writes, over);
        }
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
        self.scan();
        self.around(false);
        self.accesses.reads += 1;
        if self.past_port {
            self.port.with_pci(self.now, |pci, cx| pci.read(bar, offset, data, cx));
        } else {
            self.port.read(bar, offset, data, self.now);
        }
        self.note(Event::Access(Access::of(false, Region::Bar(bar), offset, data)));
        self.around(true);
        Ok(())
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8]) -> Result<(), BusError> {
        if let (Some(page), [a, b, c, d]) = (&self.page, data)
            && page.store(bar, offset, u32::from_le_bytes([*a, *b, *c, *d]))
        {
            return Ok(());
        }
        self.scan();
        self.around(false);
        self.accesses.writes += 1;
        self.note(Event::Access(Access::of(true, Region::Bar(bar), offset, data)));
        if self.past_port {
            self.port.with_pci(self.now, |pci, cx| pci.write(bar, offset, data, cx));
        } else {
            self.port.write(bar, offset, data, self.now);
        }
        self.refresh();
        self.around(true);
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
        self.around(false);
        self.accesses.writes += 1;
        self.note(Event::Kick(ring));
        let kicked = self.port.with_rings(self.now, |face, cx| face.kick(ring, cx));
        self.around(true);
        kicked.ok_or_else(|| refused("it has no rings"))
    }
}
