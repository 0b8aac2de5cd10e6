//! Eventfds, masks and pending interrupts (vfio-user.rst, "VFIO_USER_DEVICE_SET_IRQS"; PCI 3.0, 2.2.6 and 6.8.2).
//!
//! The session's thread connects and masks; other threads raise. All take one short lock, and signal the eventfd under it without
//! blocking on the client ([`Bell`]). So an unmask and a raise at the same time give exactly one interrupt.
//!
//! - **MSI and MSI-X:** a vector that is raised while it is masked or has no eventfd stays pending. It is sent once when it is
//!   unmasked or connected. QEMU disables and reconnects all vectors while the guest runs: interrupts raised in between are not
//!   lost. Only [`Interrupts::reset`] clears them.
//! - **INTx** masks itself on delivery. On unmask it is delivered again if the line is still asserted.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nicety_peer::{Bell, Table};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::codec::MAX_VECTORS;
use crate::codec::irqs::{
    INFO_AUTOMASKED, INFO_EVENTFD, INFO_MASKABLE, INTX, IrqAction, IrqData, IrqInfo, IrqSet, MSI, MSIX,
};

/// A kind of interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqKind {
    /// The level-triggered line.
    Intx,
    /// Message-signalled interrupts.
    Msi,
    /// Extended message-signalled interrupts.
    Msix,
}

impl IrqKind {
    /// The kind of this index, if a device of this crate can raise it.
    pub fn from_index(index: u32) -> Option<IrqKind> {
        match index {
            INTX => Some(IrqKind::Intx),
            MSI => Some(IrqKind::Msi),
            MSIX => Some(IrqKind::Msix),
            _ => None,
        }
    }
}

/// The interrupts of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IrqLayout {
    /// Whether it has the INTx line.
    pub intx: bool,
    /// MSI vectors, 0 to 32.
    pub msi: u16,
    /// MSI-X vectors, 0 to 2048.
    pub msix: u16,
    /// Whether the owner watches [`Interrupts::unmask_eventfd`]. If not, the client may not pass one, and must unmask by message.
    pub unmask_eventfd: bool,
}

/// Counters of interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterruptCounters {
    /// Eventfds signalled, the client's own triggers included.
    pub delivered: u64,
    /// Interrupts raised while masked or without an eventfd: they became pending.
    pub held: u64,
    /// Interrupts raised while already pending.
    pub merged: u64,
    /// Signals that failed because a socket's other end is closed.
    pub failed: u64,
}

/// The saved interrupt state as plain data, without the client's eventfds. The level of the line is part of the device's own
/// state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedInterrupts {
    /// INTx is masked, by the client or by its last delivery.
    pub line_masked: bool,
    /// MSI.
    pub msi: SavedVectors,
    /// MSI-X.
    pub msix: SavedVectors,
}

/// The client's eventfds, by their indexes in a [`Table`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedConnections {
    /// The eventfd of the INTx line.
    pub line: Option<u32>,
    /// The one by which the client unmasks the line.
    pub unmask: Option<u32>,
    /// MSI: vector and index.
    pub msi: Vec<(u16, u32)>,
    /// MSI-X: vector and index.
    pub msix: Vec<(u16, u32)>,
}

/// Vectors of one kind, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedVectors {
    /// Vectors that the client has masked.
    pub masked: Vec<u16>,
    /// Vectors that were raised and not delivered.
    pub pending: Vec<u16>,
}

#[derive(Debug, Default)]
struct Vector {
    bell: Option<Bell>,
    /// Masked by the client, which owns the MSI-X table.
    masked: bool,
    pending: bool,
}

#[derive(Debug, Default)]
struct Line {
    present: bool,
    bell: Option<Bell>,
    /// Masked by the client, or by the last delivery.
    masked: bool,
    level: bool,
    unmask: Option<Arc<Bell>>,
}

#[derive(Debug, Default)]
struct State {
    line: Line,
    msi: Vec<Vector>,
    msix: Vec<Vector>,
    counters: InterruptCounters,
}

/// The interrupts of one device. Every method may be called from any thread and never blocks on the peer.
#[derive(Debug)]
pub struct Interrupts {
    layout: IrqLayout,
    state: Mutex<State>,
}

impl Interrupts {
    /// Interrupts of this layout, unconnected and unmasked.
    pub fn new(layout: IrqLayout) -> Interrupts {
        let vectors = |count: u16| (0..u32::from(count).min(MAX_VECTORS)).map(|_| Vector::default()).collect();
        let line = Line { present: layout.intx, ..Line::default() };
        let state = State { line, msi: vectors(layout.msi), msix: vectors(layout.msix), ..State::default() };
        Interrupts { layout, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics with the lock held. Even after a panic the state would be consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reply to [`crate::Device::irq_info`]: `None` for an index beyond MSI-X.
    pub fn info(&self, index: u32) -> Option<IrqInfo> {
        Some(match IrqKind::from_index(index)? {
            IrqKind::Intx => {
                IrqInfo { flags: INFO_EVENTFD | INFO_MASKABLE | INFO_AUTOMASKED, count: u32::from(self.layout.intx) }
            }
            IrqKind::Msi => IrqInfo { flags: INFO_EVENTFD | INFO_MASKABLE, count: u32::from(self.layout.msi) },
            IrqKind::Msix => IrqInfo { flags: INFO_EVENTFD | INFO_MASKABLE, count: u32::from(self.layout.msix) },
        })
    }

    /// Carries out [`crate::Device::set_irqs`]. Changes nothing on failure.
    pub fn apply(&self, mut set: IrqSet<'_>) -> Result<(), Errno> {
        let kind = IrqKind::from_index(set.index).ok_or(Errno::INVAL)?;
        let bells = bells(&mut set)?;
        let mut state = self.lock();
        match kind {
            IrqKind::Intx => state.apply_line(set, bells, self.layout.unmask_eventfd),
            IrqKind::Msi => {
                let State { msi, counters, .. } = &mut *state;
                apply_vectors(msi, counters, set, bells)
            }
            IrqKind::Msix => {
                let State { msix, counters, .. } = &mut *state;
                apply_vectors(msix, counters, set, bells)
            }
        }
    }

    /// Raises an MSI-X vector; an unknown vector is ignored. Returns whether it was delivered at once.
    pub fn raise_msix(&self, vector: u16) -> bool {
        let State { msix, counters, .. } = &mut *self.lock();
        msix.get_mut(usize::from(vector)).is_some_and(|v| v.raise(counters))
    }

    /// Raises an MSI vector, like [`Interrupts::raise_msix`].
    pub fn raise_msi(&self, vector: u16) -> bool {
        let State { msi, counters, .. } = &mut *self.lock();
        msi.get_mut(usize::from(vector)).is_some_and(|v| v.raise(counters))
    }

    /// Sets the INTx line. Returns whether that delivered an interrupt at once.
    pub fn set_line(&self, level: bool) -> bool {
        let State { line, counters, .. } = &mut *self.lock();
        line.level = level && line.present;
        line.deliver(counters)
    }

    /// Clears pending interrupts and deasserts the line, for a device reset. The client's connections and masks stay.
    pub fn reset(&self) {
        let state = &mut *self.lock();
        state.line.level = false;
        for vector in state.msi.iter_mut().chain(&mut state.msix) {
            vector.pending = false;
        }
    }

    /// Saves masks and pending interrupts.
    pub fn save(&self) -> SavedInterrupts {
        let State { line, msi, msix, counters: _ } = &*self.lock();
        SavedInterrupts { line_masked: line.masked, msi: SavedVectors::of(msi), msix: SavedVectors::of(msix) }
    }

    /// The client's eventfds, for another process that goes on with the same client. Changes nothing.
    ///
    /// # Errors
    /// A descriptor cannot be duplicated.
    pub fn connections(&self, table: &mut Table) -> Result<SavedConnections, Errno> {
        let State { line, msi, msix, counters: _ } = &*self.lock();
        let mut put = |bell: Option<&Bell>| bell.map(|bell| table.put_as(bell, bell.serial())).transpose();
        let (raised, unmask) = (put(line.bell.as_ref())?, put(line.unmask.as_deref())?);
        let mut all = |vectors: &[Vector]| {
            let connected = (0..).zip(vectors).filter_map(|(number, vector)| Some((number, vector.bell.as_ref()?)));
            let put = |(number, bell): (u16, &Bell)| Ok((number, table.put_as(bell, bell.serial())?));
            connected.map(put).collect::<Result<Vec<(u16, u32)>, Errno>>()
        };
        Ok(SavedConnections { line: raised, unmask, msi: all(msi)?, msix: all(msix)? })
    }

    /// Whether all of the client's descriptors are eventfds or pipes, which another process may hold.
    pub fn are_plain(&self) -> bool {
        let State { line, msi, msix, counters: _ } = &*self.lock();
        let vectors = msi.iter().chain(msix).filter_map(|vector| vector.bell.as_ref());
        vectors.chain(&line.bell).all(Bell::is_plain)
    }

    /// Connects the eventfds of a client that another process has served. Raises nothing. Call it before
    /// [`Interrupts::restore`].
    ///
    /// # Errors
    /// A descriptor is missing, or cannot be signalled or read.
    pub fn reconnect(&self, saved: &SavedConnections, table: &mut Table) -> Result<(), Errno> {
        let mut take = |index: u32| table.take(index).ok_or(Errno::BADF);
        let State { line, msi, msix, counters: _ } = &mut *self.lock();
        line.bell = saved.line.map(|index| Bell::from_fd(take(index)?)).transpose()?;
        line.unmask = saved.unmask.map(|index| Bell::to_hear(take(index)?)).transpose()?.map(Arc::new);
        for (vectors, saved) in [(msi, &saved.msi), (msix, &saved.msix)] {
            for (number, index) in saved {
                let vector = vectors.get_mut(usize::from(*number)).ok_or(Errno::INVAL)?;
                vector.bell = Some(Bell::from_fd(take(*index)?)?);
            }
        }
        Ok(())
    }

    /// Whether the saved state is possible for a device of this layout.
    pub fn fits(&self, saved: &SavedInterrupts) -> bool {
        let SavedInterrupts { line_masked: _, msi, msix } = saved;
        msi.fits(self.layout.msi) && msix.fits(self.layout.msix)
    }

    /// Restores masks, and delivers pending interrupts that are not masked. Connections stay. Unknown vectors are ignored.
    pub fn restore(&self, saved: &SavedInterrupts) {
        let State { line, msi, msix, counters } = &mut *self.lock();
        line.masked = saved.line_masked;
        line.deliver(counters);
        for (vectors, saved) in [(msi, &saved.msi), (msix, &saved.msix)] {
            for (number, vector) in (0..).zip(vectors) {
                vector.masked = saved.masked.contains(&number);
                vector.pending = saved.pending.contains(&number);
                vector.deliver(counters);
            }
        }
    }

    /// The eventfd that the client signals to unmask INTx without a message (KVM's resample eventfd). Watch it; when it is
    /// readable, call [`Interrupts::unmask_signalled`].
    pub fn unmask_eventfd(&self) -> Option<Arc<Bell>> {
        self.lock().line.unmask.clone()
    }

    /// Reads the unmask eventfd, and unmasks INTx if it was signalled at least once. If the line is still asserted, the interrupt
    /// is delivered again. Returns whether the eventfd was signalled.
    pub fn unmask_signalled(&self) -> bool {
        let State { line, counters, .. } = &mut *self.lock();
        let signalled = line.unmask.as_ref().is_some_and(|bell| bell.clear());
        if signalled {
            line.masked = false;
            line.deliver(counters);
        }
        signalled
    }

    /// The counters so far.
    pub fn counters(&self) -> InterruptCounters {
        self.lock().counters
    }
}

impl State {
    fn apply_line(&mut self, set: IrqSet<'_>, mut bells: Vec<Bell>, unmask_eventfd: bool) -> Result<(), Errno> {
        let State { line, counters, .. } = self;
        if set.is_disable() {
            *line = Line { present: line.present, level: line.level, ..Line::default() };
            return Ok(());
        }
        match (set.action, set.data) {
            (IrqAction::Mask, data) if data.names(0)? => line.masked = true,
            (IrqAction::Unmask, IrqData::Connect(_)) if unmask_eventfd => line.unmask = bells.pop().map(Arc::new),
            (IrqAction::Unmask, IrqData::Disconnect) if unmask_eventfd => line.unmask = None,
            (IrqAction::Unmask, data) if data.names(0)? => line.masked = false,
            (IrqAction::Trigger, IrqData::Connect(_)) => line.bell = bells.pop(),
            (IrqAction::Trigger, IrqData::Disconnect) => {
                line.bell = None;
                line.masked = false;
            }
            (IrqAction::Trigger, data) if data.names(0)? => {
                signal(line.bell.as_ref(), counters);
            }
            _ => {}
        }
        line.deliver(counters);
        Ok(())
    }
}

impl IrqData<'_> {
    /// Whether the set includes the interrupt at this index of its range. Fails unless the data comes in the message.
    fn names(&self, place: usize) -> Result<bool, Errno> {
        match self {
            IrqData::All => Ok(true),
            IrqData::Chosen(bytes) => Ok(bytes.get(place).is_some_and(|b| *b != 0)),
            IrqData::Connect(_) | IrqData::Disconnect => Err(Errno::INVAL),
        }
    }
}

fn apply_vectors(
    vectors: &mut [Vector],
    counters: &mut InterruptCounters,
    set: IrqSet<'_>,
    bells: Vec<Bell>,
) -> Result<(), Errno> {
    if set.is_disable() {
        for vector in vectors {
            vector.bell = None;
            vector.masked = false;
        }
        return Ok(());
    }
    let range = set.start as usize..(set.start as usize).saturating_add(set.count as usize);
    let chosen = vectors.get_mut(range).ok_or(Errno::INVAL)?;
    match (set.action, set.data) {
        (IrqAction::Trigger, IrqData::Connect(_)) => {
            for (vector, bell) in chosen.iter_mut().zip(bells) {
                vector.bell = Some(bell);
                vector.deliver(counters);
            }
        }
        (IrqAction::Trigger, IrqData::Disconnect) => chosen.iter_mut().for_each(|v| v.bell = None),
        (action, data) => {
            for (place, vector) in chosen.iter_mut().enumerate() {
                if !data.names(place)? {
                    continue;
                }
                match action {
                    IrqAction::Mask => vector.set_masked(true, counters),
                    IrqAction::Unmask => vector.set_masked(false, counters),
                    IrqAction::Trigger => {
                        signal(vector.bell.as_ref(), counters);
                    }
                }
            }
        }
    }
    Ok(())
}

impl SavedVectors {
    fn of(vectors: &[Vector]) -> Self {
        let those =
            |is: fn(&Vector) -> bool| (0..).zip(vectors).filter(|(_, v)| is(v)).map(|(number, _)| number).collect();
        Self { masked: those(|v| v.masked), pending: those(|v| v.pending) }
    }

    fn fits(&self, count: u16) -> bool {
        self.masked.iter().chain(&self.pending).all(|number| *number < count)
    }
}

impl Vector {
    fn is_open(&self) -> bool {
        !self.masked && self.bell.is_some()
    }

    fn raise(&mut self, counters: &mut InterruptCounters) -> bool {
        if self.is_open() {
            return signal(self.bell.as_ref(), counters);
        }
        if self.pending {
            counters.merged += 1;
        } else {
            counters.held += 1;
        }
        self.pending = true;
        false
    }

    fn set_masked(&mut self, masked: bool, counters: &mut InterruptCounters) {
        self.masked = masked;
        self.deliver(counters);
    }

    fn deliver(&mut self, counters: &mut InterruptCounters) {
        if self.pending && self.is_open() {
            self.pending = false;
            signal(self.bell.as_ref(), counters);
        }
    }
}

impl Line {
    fn deliver(&mut self, counters: &mut InterruptCounters) -> bool {
        if !self.level || self.masked || self.bell.is_none() {
            return false;
        }
        self.masked = true;
        signal(self.bell.as_ref(), counters)
    }
}

/// Signals the connected eventfd. A full one counts as signalled.
fn signal(bell: Option<&Bell>, counters: &mut InterruptCounters) -> bool {
    let Some(bell) = bell else { return false };
    let rung = bell.ring().is_ok();
    *(if rung { &mut counters.delivered } else { &mut counters.failed }) += 1;
    rung
}

/// Takes the client's eventfds out of its message. Fails unless all can be signalled (for unmask: read) without blocking on the
/// client.
fn bells(set: &mut IrqSet<'_>) -> Result<Vec<Bell>, Errno> {
    let IrqData::Connect(fds) = &mut set.data else { return Ok(Vec::new()) };
    let read = set.action == IrqAction::Unmask;
    let bell = |fd| if read { Bell::to_hear(fd) } else { Bell::from_fd(fd) };
    std::mem::take(fds).into_iter().map(bell).collect()
}
