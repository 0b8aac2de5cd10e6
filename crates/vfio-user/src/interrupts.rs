//! Eventfds, masks and what is pending (vfio-user.rst, "VFIO_USER_DEVICE_SET_IRQS"; PCI 3.0, 2.2.6 and 6.8.2).
//!
//! Shared between the session's thread, which connects and masks, and the threads that raise: one short lock, under which an
//! eventfd is rung without waiting for the client ([`Bell`]). So an unmask and a raise at the same time give one interrupt,
//! neither none nor two.
//!
//! - **MSI and MSI-X:** a raise of a vector that is masked, or has no eventfd, is kept pending and sent once when the
//!   vector is unmasked or connected. QEMU disables and connects all vectors again while the guest runs: what is raised
//!   meanwhile arrives. Only [`Interrupts::reset`] forgets.
//! - **INTx** masks itself when it is delivered, and is delivered again on unmask while the line is still up.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nicety_bell::Bell;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::codec::MAX_VECTORS;
use crate::codec::irqs::{
    INFO_AUTOMASKED, INFO_EVENTFD, INFO_MASKABLE, INTX, IrqAction, IrqData, IrqInfo, IrqSet, MSI, MSIX,
};

/// A way to interrupt.
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
    /// The kind of this index, if it is one that a device here can raise.
    pub fn from_index(index: u32) -> Option<IrqKind> {
        match index {
            INTX => Some(IrqKind::Intx),
            MSI => Some(IrqKind::Msi),
            MSIX => Some(IrqKind::Msix),
            _ => None,
        }
    }
}

/// Which interrupts a device has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IrqLayout {
    /// Whether it has the INTx line.
    pub intx: bool,
    /// MSI vectors, 0 to 32.
    pub msi: u16,
    /// MSI-X vectors, 0 to 2048.
    pub msix: u16,
    /// Whether the owner watches [`Interrupts::unmask_eventfd`]. If not, the client is refused it, and unmasks by message.
    pub unmask_eventfd: bool,
}

/// What has been delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterruptCounters {
    /// Eventfds rung, client's own triggers included.
    pub delivered: u64,
    /// Raises that met a mask or no eventfd and became pending.
    pub held: u64,
    /// Raises of a vector that was pending already.
    pub merged: u64,
    /// Rings that failed: a socket's other end is closed.
    pub failed: u64,
}

/// What a client and the device have left of interrupts beside the client's eventfds, as plain data. The level of the line is the
/// device's own state, which shows it again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedInterrupts {
    /// INTx is masked, by the client or by its last delivery.
    pub line_masked: bool,
    /// MSI.
    pub msi: SavedVectors,
    /// MSI-X.
    pub msix: SavedVectors,
}

/// Vectors of one kind, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedVectors {
    /// Those that the client has masked.
    pub masked: Vec<u16>,
    /// Those that were raised, and not delivered.
    pub pending: Vec<u16>,
}

#[derive(Debug, Default)]
struct Vector {
    bell: Option<Bell>,
    /// By the client, which keeps the device's table.
    masked: bool,
    pending: bool,
}

#[derive(Debug, Default)]
struct Line {
    present: bool,
    bell: Option<Bell>,
    /// By the client, or by the last delivery.
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

/// The interrupts of one device. Every method may be called from any thread, and none blocks on the peer.
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
        // No code under the lock panics; if it did, the state would still be whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What to answer to [`crate::Device::irq_info`]: `None` for an index beyond MSI-X.
    pub fn info(&self, index: u32) -> Option<IrqInfo> {
        Some(match IrqKind::from_index(index)? {
            IrqKind::Intx => {
                IrqInfo { flags: INFO_EVENTFD | INFO_MASKABLE | INFO_AUTOMASKED, count: u32::from(self.layout.intx) }
            }
            IrqKind::Msi => IrqInfo { flags: INFO_EVENTFD | INFO_MASKABLE, count: u32::from(self.layout.msi) },
            IrqKind::Msix => IrqInfo { flags: INFO_EVENTFD | INFO_MASKABLE, count: u32::from(self.layout.msix) },
        })
    }

    /// Does what [`crate::Device::set_irqs`] asks. Nothing is changed if it fails.
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

    /// Raises an MSI-X vector; a vector that is not there is ignored. Returns whether it was delivered at once.
    pub fn raise_msix(&self, vector: u16) -> bool {
        let State { msix, counters, .. } = &mut *self.lock();
        msix.get_mut(usize::from(vector)).is_some_and(|v| v.raise(counters))
    }

    /// Raises an MSI vector, in the same way.
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

    /// Forgets what is pending and lowers the line, as a device reset does. Connections and masks belong to the client
    /// and stay.
    pub fn reset(&self) {
        let state = &mut *self.lock();
        state.line.level = false;
        for vector in state.msi.iter_mut().chain(&mut state.msix) {
            vector.pending = false;
        }
    }

    /// Masks, and what is pending.
    pub fn save(&self) -> SavedInterrupts {
        let State { line, msi, msix, counters: _ } = &*self.lock();
        SavedInterrupts { line_masked: line.masked, msi: SavedVectors::of(msi), msix: SavedVectors::of(msix) }
    }

    /// Whether a device of this layout can have been saved so.
    pub fn fits(&self, saved: &SavedInterrupts) -> bool {
        let SavedInterrupts { line_masked: _, msi, msix } = saved;
        msi.fits(self.layout.msi) && msix.fits(self.layout.msix)
    }

    /// Goes on with saved masks, and delivers what is pending and may go. Connections stay; vectors that are not there are ignored.
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

    /// The eventfd by which the client unmasks INTx without a message (KVM's resample eventfd), to be watched; then
    /// call [`Interrupts::unmask_signalled`].
    pub fn unmask_eventfd(&self) -> Option<Arc<Bell>> {
        self.lock().line.unmask.clone()
    }

    /// Reads the unmask eventfd and unmasks INTx if it was signalled, however often: a line that is up still is delivered once
    /// more. Returns whether it was.
    pub fn unmask_signalled(&self) -> bool {
        let State { line, counters, .. } = &mut *self.lock();
        let signalled = line.unmask.as_ref().is_some_and(|bell| bell.clear());
        if signalled {
            line.masked = false;
            line.deliver(counters);
        }
        signalled
    }

    /// What has been delivered so far.
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
    /// Whether the interrupt at this place of the range is meant; an error where only message data makes sense.
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

/// Rings the connected eventfd. A full one is signalled already.
fn signal(bell: Option<&Bell>, counters: &mut InterruptCounters) -> bool {
    let Some(bell) = bell else { return false };
    let rung = bell.ring().is_ok();
    *(if rung { &mut counters.delivered } else { &mut counters.failed }) += 1;
    rung
}

/// What the client calls eventfds, taken out of its message, if they can be rung (or heard, to unmask) without waiting for it.
fn bells(set: &mut IrqSet<'_>) -> Result<Vec<Bell>, Errno> {
    let IrqData::Connect(fds) = &mut set.data else { return Ok(Vec::new()) };
    let heard = set.action == IrqAction::Unmask;
    let bell = |fd| if heard { Bell::to_hear(fd) } else { Bell::from_fd(fd) };
    std::mem::take(fds).into_iter().map(bell).collect()
}
