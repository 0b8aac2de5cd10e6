//! A session's rings: configured step by step, and started when the configuration is complete ("Ring states").

use nicety_adapter::RingPlace;
use nicety_peer::{Bell, PeerFd};
use serde::{Deserialize, Serialize};

use super::packed::{AVAILABLE, FIRST_LAP, USED};
use super::{Refusal, Session};
use crate::memory::Memory;
use crate::port::Kick;
use crate::protocol::{F_PROTOCOL_FEATURES, F_RING_PACKED, Fields, NO_FD, RING_LOG, Request};

/// The addresses of a ring in the front end's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Addresses {
    pub descriptors: u64,
    pub device: u64,
    pub driver: u64,
}

/// The front end's configuration of one ring.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RingState {
    pub size: u16,
    pub addresses: Option<Addresses>,
    /// Packed rings: two positions with their wrap counters.
    pub base: u32,
    /// SET_VRING_KICK has arrived: the ring may start.
    pub kicked: bool,
    pub enabled: bool,
    /// The place of a running ring.
    pub runs: Option<RingPlace>,
    /// The front end has stopped it (GET_VRING_BASE): frames for it may wait.
    pub paused: bool,
}

/// A saved ring. Places are descriptors, driver area, device area.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedRing {
    pub size: u16,
    pub addresses: Option<[u64; 3]>,
    pub base: u32,
    pub kicked: bool,
    pub enabled: bool,
    pub runs: Option<(u16, [u64; 3])>,
    pub paused: bool,
}

/// All rings, and the memory that they are in.
#[derive(Debug)]
pub(super) struct Rings {
    states: Vec<RingState>,
    pub memory: Memory,
}

impl Rings {
    pub fn new(count: u16) -> Self {
        Self { states: vec![RingState::default(); usize::from(count)], memory: Memory::new() }
    }

    pub fn count(&self) -> u16 {
        self.states.len() as u16
    }

    pub fn states(&self) -> &[RingState] {
        &self.states
    }

    pub fn save(&self) -> Vec<SavedRing> {
        let place = |place: RingPlace| (place.size, [place.descriptors, place.driver, place.device]);
        let one = |state: &RingState| SavedRing {
            size: state.size,
            addresses: state.addresses.map(|it| [it.descriptors, it.driver, it.device]),
            base: state.base,
            kicked: state.kicked,
            enabled: state.enabled,
            runs: state.runs.map(place),
            paused: state.paused,
        };
        self.states().iter().map(one).collect()
    }

    pub fn restore(&mut self, saved: &[SavedRing]) {
        for (state, saved) in self.states.iter_mut().zip(saved) {
            let SavedRing { size, addresses, base, kicked, enabled, runs, paused } = saved.clone();
            let addresses = addresses.map(|[descriptors, driver, device]| Addresses { descriptors, device, driver });
            let place = |(size, [descriptors, driver, device]): (u16, [u64; 3])| RingPlace {
                size,
                descriptors,
                driver,
                device,
            };
            *state = RingState { size, addresses, base, kicked, enabled, runs: runs.map(place), paused };
        }
    }

    pub fn forget(&mut self) {
        self.states.fill(RingState::default());
    }

    fn known(&self, ring: u32) -> Result<u16, Refusal> {
        let known = u16::try_from(ring).ok().filter(|number| *number < self.count());
        known.ok_or(Refusal::Ring { ring, rings: self.count() })
    }

    /// The ring's guest-physical place.
    fn place(&self, ring: u16) -> Result<Option<RingPlace>, Refusal> {
        let Some(RingState { size: 1.., addresses: Some(addresses), .. }) = self.states.get(usize::from(ring)) else {
            return Ok(None);
        };
        let guest = |user| {
            let why = "its address lies in none of the memory regions";
            let shared = self.memory.is_shared();
            let refused = if shared { Refusal::Place { ring, why } } else { Refusal::Unshared { ring } };
            self.memory.guest_address(user).ok_or(refused)
        };
        let size = self.states.get(usize::from(ring)).map_or(0, |state| state.size);
        Ok(Some(RingPlace {
            size,
            descriptors: guest(addresses.descriptors)?,
            driver: guest(addresses.driver)?,
            device: guest(addresses.device)?,
        }))
    }
}

impl Session {
    fn state_of(&mut self, ring: u16) -> &mut RingState {
        // Ring numbers come from `known` or from counting.
        &mut self.rings.states[usize::from(ring)]
    }

    /// SET_VRING_NUM, SET_VRING_BASE and SET_VRING_ENABLE.
    pub(super) fn set_ring_number(&mut self, request: Request, body: &[u8]) -> Result<(), Refusal> {
        let (ring, number) = ring_and_number(request, body)?;
        let ring = self.rings.known(ring)?;
        match request {
            Request::SetVringNum => {
                self.state_of(ring).size = u16::try_from(number).map_err(|_| Refusal::Body(request))?;
                self.start(ring)
            }
            Request::SetVringBase => {
                // The ring may still run: User-Mode Linux never stops a ring by GET_VRING_BASE. It disables the ring and starts
                // another, perhaps at the same address.
                if !self.enabled(ring) {
                    self.give_up(ring);
                }
                self.state_of(ring).base = number;
                Ok(())
            }
            _ => {
                let on = number != 0;
                self.state_of(ring).enabled = on;
                self.port.with_ring(ring, &mut |face, cx| face.enable(ring, on, cx));
                Ok(())
            }
        }
    }

    pub(super) fn set_ring_addresses(&mut self, body: &[u8]) -> Result<(), Refusal> {
        let refused = Refusal::Body(Request::SetVringAddr);
        let mut fields = Fields(body);
        let read = (|| {
            let (ring, flags) = (fields.u32()?, fields.u32()?);
            let addresses = Addresses { descriptors: fields.u64()?, device: fields.u64()?, driver: fields.u64()? };
            let _log = fields.u64()?;
            fields.end()?;
            // Ring logging needs no action: all memory is logged, or none.
            (flags & !RING_LOG == 0).then_some((ring, addresses))
        })();
        let (ring, addresses) = read.ok_or(refused)?;
        let ring = self.rings.known(ring)?;
        self.state_of(ring).addresses = Some(addresses);
        self.move_or_start(ring)
    }

    /// SET_VRING_KICK, SET_VRING_CALL and SET_VRING_ERR.
    pub(super) fn set_bell(&mut self, request: Request, body: &[u8], fds: Vec<PeerFd>) -> Result<(), Refusal> {
        let number = super::number_in(request, body)?;
        let ring = self.rings.known((number & 0xff) as u32)?;
        let wanted = usize::from(number & NO_FD == 0);
        if fds.len() != wanted {
            return Err(Refusal::Descriptors { request, found: fds.len(), wanted });
        }
        let bell = match request {
            Request::SetVringKick => fds.into_iter().next().map(Bell::to_hear).transpose(),
            _ => fds.into_iter().next().map(Bell::from_fd).transpose(),
        };
        let bell = bell.map_err(|errno| Refusal::NoBell { request, errno })?;
        match request {
            Request::SetVringCall => self.port.set_call(ring, bell),
            Request::SetVringErr => self.port.set_err(ring, bell),
            _ => {
                // The specification says to poll the ring. No known front end requests that, and a rarely polled ring is worse
                // than none.
                let bell = bell.ok_or(Refusal::Unheard { ring })?;
                self.port.set_kick(ring, Kick::Bell(bell));
                self.state_of(ring).kicked = true;
                return self.start(ring);
            }
        }
        Ok(())
    }

    /// GET_VRING_BASE stops the ring.
    pub(super) fn stop_ring(&mut self, body: &[u8]) -> Result<Vec<u8>, Refusal> {
        let (ring, _) = ring_and_number(Request::GetVringBase, body)?;
        let ring = self.rings.known(ring)?;
        let state = self.state_of(ring);
        state.kicked = false;
        if state.runs.take().is_some() {
            state.paused = true;
            let mut base = 0;
            self.port.with_ring(ring, &mut |face, cx| base = face.pause(ring, cx));
            self.state_of(ring).base = base;
        }
        self.rings.memory.log_quiet_pages();
        let base = self.state_of(ring).base;
        self.forget_kept(ring);
        self.port.set_kick(ring, Kick::Stopped);
        let mut reply = u32::from(ring).to_ne_bytes().to_vec();
        reply.extend(base.to_ne_bytes());
        Ok(reply)
    }

    /// Stops a ring; returns its position.
    pub(super) fn stop(&mut self, ring: u16) -> u32 {
        let state = self.state_of(ring);
        state.kicked = false;
        let was_paused = std::mem::take(&mut state.paused);
        if state.runs.take().is_some() || was_paused {
            let mut base = 0;
            self.port.with_ring(ring, &mut |face, cx| base = face.stop(ring, cx));
            self.state_of(ring).base = base;
        }
        self.state_of(ring).base
    }

    /// Stops a ring that the front end has abandoned without a message.
    fn give_up(&mut self, ring: u16) {
        if self.state_of(ring).runs.is_some() {
            self.stop(ring);
            self.port.set_kick(ring, Kick::Stopped);
        }
    }

    /// Stops the disabled rings: another driver may have taken over.
    pub(super) fn give_up_disabled(&mut self) {
        for ring in 0..self.rings.count() {
            if !self.enabled(ring) {
                self.give_up(ring);
            }
        }
    }

    /// Without protocol features there is no SET_VRING_ENABLE: rings start enabled.
    fn enabled(&mut self, ring: u16) -> bool {
        self.state_of(ring).enabled || self.features & F_PROTOCOL_FEATURES == 0
    }

    /// The base of a ring. Linux in user mode (virtio_uml.c) sends 0 for a new packed ring, as for a split one, and means the
    /// first lap. In any later lap every descriptor has been available once; then 0 means what it says.
    fn begin(&self, base: u32, place: &RingPlace) -> u32 {
        let packed = self.features & F_RING_PACKED != 0;
        if packed && base == 0 && self.marked(place, AVAILABLE | USED) == Some(false) { FIRST_LAP } else { base }
    }

    /// Starts a ring if its configuration is complete and it does not run yet.
    fn start(&mut self, ring: u16) -> Result<(), Refusal> {
        let state = *self.state_of(ring);
        if !state.kicked || state.runs.is_some() {
            return Ok(());
        }
        let Some(place) = self.rings.place(ring)? else { return Ok(()) };
        let base = self.begin(state.base, &place);
        self.recall(ring, &place, base);
        let enabled = self.enabled(ring);
        let (mut placed, mut started) = (false, false);
        self.port.with_ring(ring, &mut |face, cx| {
            placed = face.place(ring, place);
            started = placed && face.start(ring, base, cx);
            if started {
                face.enable(ring, enabled, cx);
            }
        });
        match (placed, started) {
            (_, true) => {
                (self.state_of(ring).runs, self.state_of(ring).paused) = (Some(place), false);
                self.port.started(ring);
                Ok(())
            }
            (false, _) => Err(Refusal::Place { ring, why: "its size is no power of two, or it is misaligned" }),
            (true, _) => Err(Refusal::Place { ring, why: "it does not lie within one memory region" }),
        }
    }

    /// Moves a running ring to its new place.
    fn move_or_start(&mut self, ring: u16) -> Result<(), Refusal> {
        let Some(runs) = self.state_of(ring).runs else { return self.start(ring) };
        let place = self.rings.place(ring);
        if place.as_ref().is_ok_and(|place| *place == Some(runs)) {
            return Ok(());
        }
        self.stop(ring);
        self.state_of(ring).kicked = true;
        place?;
        self.start(ring)
    }

    /// Tells of a log that could not be made.
    pub(super) fn say_unlogged(&mut self) {
        if let Some(why) = self.rings.memory.take_unlogged() {
            self.port.refused(&Refusal::Unlogged { why });
        }
    }

    /// Passes the new map to the port. A ring moves if its addresses now mean another place. A ring without a place stops until
    /// it has one again: a front end may remove a region and add it again, larger or in pieces.
    pub(super) fn memory_changed(&mut self) {
        self.port.set_memory(self.rings.memory.map().clone());
        self.rings.memory.settle_log();
        self.say_unlogged();
        for ring in 0..self.rings.count() {
            if self.state_of(ring).kicked {
                // A ring cannot start at a refused place either. The message that sets the place reports that.
                let _refused = self.move_or_start(ring);
            }
        }
    }
}

/// `struct vhost_vring_state`: a ring and a number.
fn ring_and_number(request: Request, body: &[u8]) -> Result<(u32, u32), Refusal> {
    let mut fields = Fields(body);
    let read = fields.u32().zip(fields.u32());
    read.filter(|_| fields.end().is_some()).ok_or(Refusal::Body(request))
}
