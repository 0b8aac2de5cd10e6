//! Eventfds, masks and what is pending (vfio-user.rst, "VFIO_USER_DEVICE_SET_IRQS"; PCI 3.0, 2.2.6 and 6.8.2).
//!
//! Shared between the session's thread, which connects and masks, and whoever raises: one short lock, and a write to an
//! eventfd under it, so that an unmask and a raise at the same time give one interrupt, neither none nor two.
//!
//! - **MSI and MSI-X:** a raise of a vector that is masked, or has no eventfd, is kept pending and sent once when the
//!   vector is unmasked or connected. QEMU disables and connects all vectors again while the guest runs: what is raised
//!   meanwhile arrives. Only [`Interrupts::reset`] forgets.
//! - **INTx** masks itself when it is delivered, and is delivered again on unmask while the line is still up.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::{Errno, read, write};

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
    /// Whether the owner watches [`Interrupts::unmask_eventfd`]. If not, the client is told to unmask by message.
    pub unmask_eventfd: bool,
}

/// What has been delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterruptCounters {
    /// Eventfds written, client's own triggers included.
    pub delivered: u64,
    /// Raises that met a mask or no eventfd and became pending.
    pub held: u64,
    /// Raises of a vector that was pending already.
    pub merged: u64,
    /// Writes that failed: not an eventfd any more, or its reader gone.
    pub failed: u64,
}

#[derive(Debug, Default)]
struct Vector {
    fd: Option<OwnedFd>,
    /// By the client.
    masked: bool,
    /// By the device's own table.
    table_masked: bool,
    pending: bool,
}

#[derive(Debug, Default)]
struct Line {
    present: bool,
    fd: Option<OwnedFd>,
    /// By the client, or by the last delivery.
    masked: bool,
    level: bool,
    unmask: Option<Arc<OwnedFd>>,
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

    /// What to answer to [`crate::Device::irq_info`]: `None` for ERR and REQ.
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
    pub fn apply(&self, set: IrqSet<'_>) -> Result<(), Errno> {
        let kind = IrqKind::from_index(set.index).ok_or(Errno::INVAL)?;
        if let IrqData::Connect(fds) = &set.data {
            fds.iter().try_for_each(prepare)?;
        }
        let mut state = self.lock();
        match kind {
            IrqKind::Intx => state.apply_line(set, self.layout.unmask_eventfd),
            IrqKind::Msi => {
                let State { msi, counters, .. } = &mut *state;
                apply_vectors(msi, counters, set)
            }
            IrqKind::Msix => {
                let State { msix, counters, .. } = &mut *state;
                apply_vectors(msix, counters, set)
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

    /// Whether the line is up.
    pub fn line(&self) -> bool {
        self.lock().line.level
    }

    /// Masks or unmasks an MSI-X vector by the device's own table. (A VMM like QEMU keeps the table itself and the
    /// device never sees it written: do not start with masked vectors.)
    pub fn mask_msix(&self, vector: u16, masked: bool) {
        let State { msix, counters, .. } = &mut *self.lock();
        if let Some(v) = msix.get_mut(usize::from(vector)) {
            v.table_masked = masked;
            v.deliver(counters);
        }
    }

    /// 64 bits of the MSI-X pending-bit array: bit `n` of word `w` is vector `64 w + n`.
    pub fn pending_msix(&self, word: u16) -> u64 {
        let state = self.lock();
        let first = usize::from(word) * 64;
        let bits = state.msix.iter().skip(first).take(64).enumerate();
        bits.fold(0, |sum, (n, v)| if v.pending { sum | 1 << n } else { sum })
    }

    /// Whether the client has connected any interrupt of this kind, which tells which kind the guest's driver uses.
    pub fn is_connected(&self, kind: IrqKind) -> bool {
        let state = self.lock();
        match kind {
            IrqKind::Intx => state.line.fd.is_some(),
            IrqKind::Msi => state.msi.iter().any(|v| v.fd.is_some()),
            IrqKind::Msix => state.msix.iter().any(|v| v.fd.is_some()),
        }
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

    /// The eventfd by which the client unmasks INTx without a message (KVM's resample eventfd), to be watched; then
    /// call [`Interrupts::unmask_signalled`].
    pub fn unmask_eventfd(&self) -> Option<Arc<OwnedFd>> {
        self.lock().line.unmask.clone()
    }

    /// Reads the unmask eventfd and unmasks INTx if it was signalled.
    pub fn unmask_signalled(&self) {
        let State { line, counters, .. } = &mut *self.lock();
        let signalled = line.unmask.as_ref().is_some_and(|fd| matches!(read(fd, &mut [0u8; 8]), Ok(8)));
        if signalled {
            line.masked = false;
            line.deliver(counters);
        }
    }

    /// What has been delivered so far.
    pub fn counters(&self) -> InterruptCounters {
        self.lock().counters
    }
}

impl State {
    fn apply_line(&mut self, set: IrqSet<'_>, unmask_eventfd: bool) -> Result<(), Errno> {
        let State { line, counters, .. } = self;
        if set.is_disable() {
            *line = Line { present: line.present, level: line.level, ..Line::default() };
            return Ok(());
        }
        match (set.action, set.data) {
            (IrqAction::Mask, data) if data.names(0)? => line.masked = true,
            (IrqAction::Unmask, IrqData::Connect(mut fds)) if unmask_eventfd => line.unmask = fds.pop().map(Arc::new),
            (IrqAction::Unmask, IrqData::Disconnect) if unmask_eventfd => line.unmask = None,
            (IrqAction::Unmask, data) if data.names(0)? => line.masked = false,
            (IrqAction::Trigger, IrqData::Connect(mut fds)) => line.fd = fds.pop(),
            (IrqAction::Trigger, IrqData::Disconnect) => {
                line.fd = None;
                line.masked = false;
            }
            (IrqAction::Trigger, data) if data.names(0)? => {
                signal(line.fd.as_ref(), counters);
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

fn apply_vectors(vectors: &mut [Vector], counters: &mut InterruptCounters, set: IrqSet<'_>) -> Result<(), Errno> {
    if set.is_disable() {
        for vector in vectors {
            vector.fd = None;
            vector.masked = false;
        }
        return Ok(());
    }
    let range = set.start as usize..(set.start as usize).saturating_add(set.count as usize);
    let chosen = vectors.get_mut(range).ok_or(Errno::INVAL)?;
    match (set.action, set.data) {
        (IrqAction::Trigger, IrqData::Connect(fds)) => {
            for (vector, fd) in chosen.iter_mut().zip(fds) {
                vector.fd = Some(fd);
                vector.deliver(counters);
            }
        }
        (IrqAction::Trigger, IrqData::Disconnect) => chosen.iter_mut().for_each(|v| v.fd = None),
        (action, data) => {
            for (place, vector) in chosen.iter_mut().enumerate() {
                if !data.names(place)? {
                    continue;
                }
                match action {
                    IrqAction::Mask => vector.set_masked(true, counters),
                    IrqAction::Unmask => vector.set_masked(false, counters),
                    IrqAction::Trigger => {
                        signal(vector.fd.as_ref(), counters);
                    }
                }
            }
        }
    }
    Ok(())
}

impl Vector {
    fn is_open(&self) -> bool {
        !self.masked && !self.table_masked && self.fd.is_some()
    }

    fn raise(&mut self, counters: &mut InterruptCounters) -> bool {
        if self.is_open() {
            return signal(self.fd.as_ref(), counters);
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
            signal(self.fd.as_ref(), counters);
        }
    }
}

impl Line {
    fn deliver(&mut self, counters: &mut InterruptCounters) -> bool {
        if !self.level || self.masked || self.fd.is_none() {
            return false;
        }
        self.masked = true;
        signal(self.fd.as_ref(), counters)
    }
}

/// Adds 1 to an eventfd. A full one is signalled already.
fn signal(fd: Option<&OwnedFd>, counters: &mut InterruptCounters) -> bool {
    let Some(fd) = fd else { return false };
    match write(fd, &1u64.to_ne_bytes()) {
        Ok(_) | Err(Errno::AGAIN) => {
            counters.delivered += 1;
            true
        }
        Err(_) => {
            counters.failed += 1;
            false
        }
    }
}

/// Makes sure that writing to what the client calls an eventfd cannot hold this process up: it is an eventfd, a pipe or
/// a socket (a file might lie on a file system of the client's own), and does not block.
fn prepare(fd: &OwnedFd) -> Result<(), Errno> {
    let mode = fstat(fd)?.st_mode;
    match FileType::from_raw_mode(mode) {
        FileType::Fifo | FileType::Socket => {}
        // Anonymous inodes, eventfds among them, have no type.
        FileType::Unknown => {}
        _ => return Err(Errno::INVAL),
    }
    let flags = fcntl_getfl(fd.as_fd())?;
    if !flags.contains(OFlags::NONBLOCK) {
        fcntl_setfl(fd.as_fd(), flags | OFlags::NONBLOCK)?;
    }
    Ok(())
}
