//! A port's adapter as the device behind a vfio-user session.

mod handover;

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nicety_adapter::snapshot::RestoreError;
use nicety_adapter::trace::{Event, IrqChange};
use nicety_adapter::{Adapter, Face, PciFace, Reset, Time};
use nicety_memory::{Map, MapError, Mapping, MappingError, Piece, Rights, shared_file};
use nicety_pci::ROM_BAR;
use nicety_peer::Account;
use nicety_plane::{Doorbells, Port, Saved};
use nicety_vfio_user::{
    Area, Bell, Change, Device, DmaMap, DmaRange, Errno, Interrupts, IrqAction, IrqData, IrqInfo, IrqLayout, IrqSet,
    Mapping as RegionMapping, RegionInfo, codec::irqs::INTX,
};

use crate::clock::Clock;
use crate::descriptors::warn_left_open;
use crate::run::journal::MemoryChange;
use crate::run::mapper::{Mapper, Outcome, Wanted};
use crate::run::port_log::{Kind, PortLog};
use crate::run::recorder::Recorder;
use crate::run::saved::{PortState, SaveError};
use crate::run::shell::Signals;
use crate::sharing::SHARE_MEMORY;

/// vfio's region numbers of a PCI device: six BARs, then these.
const ROM_REGION: u32 = 6;
const CONFIG_REGION: u32 = 7;
const REGIONS: usize = 9;
/// Most changes of memory that are kept by themselves: as many are rarely handled at once.
const MEMORY_CHANGES_MAX: usize = 256;
/// Descriptor reads that take as long as a register write with its message.
const DESCRIPTORS_PER_ACCESS: u32 = 64;
/// A writable mapping without a file, below this address and at least as large, is the VM's RAM: a mistake in its configuration.
/// Elsewhere it is a ROM or a frame buffer, which QEMU never shares.
const RAM_BELOW: u64 = 16 << 20;

/// The shortest time between two checks of the memory of a port's VMs: a check takes a fraction of a millisecond, and no VM boots
/// faster. A driver may use its memory only once, before it gives up.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The device of a port.
#[derive(Debug)]
pub struct PortDevice {
    log: Arc<PortLog>,
    port: Arc<Port>,
    interrupts: Arc<Interrupts>,
    /// The eventfd by which the VMM unmasks INTx without a message. The worker watches it.
    unmask: Option<Arc<Bell>>,
    signals: Arc<Signals>,
    clock: Clock,
    mapper: Mapper,
    map: Map,
    /// The guest address and rights of the pending mapping.
    mapping: Option<(u64, Rights)>,
    /// Bytes of each region.
    sizes: [u64; REGIONS],
    page: Option<Page>,
    /// A page whose writes are ignored: see [`nicety_adapter::PciFace::empty_page`].
    empty_page: Option<(u32, RegionMapping)>,
    /// Whether its adapter reads and writes guest memory (DMA).
    dma: bool,
    /// Whether the memory was checked since the VM attached.
    memory_checked: bool,
    /// The earliest time of the next check. A VMM that reconnects often gets no more of its worker's time than one that stays.
    next_check: Time,
    /// Protocol violations by the drivers of earlier VMs.
    breaches_before: u64,
    /// Whether the check found the memory empty.
    blank: Arc<AtomicBool>,
    /// Whether the operator was warned of unshared memory.
    warned: bool,
    /// The cost of writes beyond their accesses, in descriptors, that was not reported to a session yet.
    excess: u32,
    recorder: Option<Arc<Recorder>>,
    /// Closes what the port's VMMs have sent.
    account: Arc<Account>,
    /// The change since the last [`PortDevice::take_change`].
    change: Kept,
    /// Changes of the VMM's memory since the last [`PortDevice::take_memory_changes`], while they are all that has changed.
    memory_changes: Vec<MemoryChange>,
}

/// A change of what is kept in case the process is killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kept {
    /// There was none.
    #[default]
    Unchanged,
    /// Only regions of memory have, in files that are mapped already: see [`PortDevice::take_memory_changes`].
    Memory,
    /// Values, or descriptors.
    Changed,
}

/// One of [`Port::restore_then`] and [`Port::restore_lost`].
type Restore = fn(&Port, &Saved, Time, &mut dyn FnMut(&mut dyn Adapter)) -> Option<Result<(), RestoreError>>;

/// A page of doorbells that the VM may map.
#[derive(Debug)]
struct Page {
    doorbells: Doorbells,
    mapping: RegionMapping,
}

/// The interrupts of a function.
pub fn irq_layout(port: &dyn nicety_adapter::PciFace) -> IrqLayout {
    let function = port.function();
    let msi = u16::from(function.msi_vectors());
    let msix = function.msix().map_or(0, |msix| msix.vectors());
    let mut pin = [0];
    function.config_read(0x3d, &mut pin);
    IrqLayout { intx: pin[0] != 0, msi, msix, unmask_eventfd: true }
}

/// The size of a region in bytes.
fn size_of(pci: &dyn PciFace, region: u32) -> u64 {
    match region {
        CONFIG_REGION => pci.function().config_size() as u64,
        ROM_REGION => u64::from(pci.function().rom_size().unwrap_or(0)),
        0..ROM_REGION => pci.function().bar_kind(region as usize).map_or(0, |bar| bar.size),
        _ => 0,
    }
}

impl PortDevice {
    /// The device of a port with a PCI face.
    pub fn new(
        log: Arc<PortLog>,
        port: Arc<Port>,
        interrupts: Arc<Interrupts>,
        signals: Arc<Signals>,
        mapper: Mapper,
        dma: bool,
    ) -> Self {
        let clock = log.clock();
        let sizes = port.with_pci(clock.now(), |pci, _| std::array::from_fn(|region| size_of(pci, region as u32)));
        Self {
            sizes: sizes.unwrap_or_default(),
            log,
            port,
            interrupts,
            unmask: None,
            signals,
            clock,
            mapper,
            map: Map::default(),
            mapping: None,
            page: None,
            empty_page: None,
            dma,
            memory_checked: false,
            next_check: Time(0),
            breaches_before: 0,
            blank: Arc::default(),
            warned: false,
            excess: 0,
            recorder: None,
            account: Arc::default(),
            change: Kept::Unchanged,
            memory_changes: Vec::new(),
        }
    }

    /// Closes what the port's VMMs have sent.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    fn kept(&mut self, change: Kept) {
        self.change = self.change.max(change);
    }

    /// The change since the last call.
    pub fn take_change(&mut self) -> Kept {
        std::mem::take(&mut self.change)
    }

    /// The changes of the VMM's memory since the last call. They are all that has changed if [`PortDevice::take_change`] says so.
    pub fn take_memory_changes(&mut self) -> Vec<MemoryChange> {
        std::mem::take(&mut self.memory_changes)
    }

    /// There is a change that is not kept yet.
    pub fn put_change(&mut self, change: Kept) {
        self.kept(change);
    }

    /// Whether the VM's shared memory was empty when the driver was up.
    pub fn blank(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.blank)
    }

    /// Whether the log has advised to share this VM's memory.
    pub fn has_warned(&self) -> bool {
        self.warned
    }

    /// The descriptor by which the VMM unmasks INTx without a message (KVM's resample eventfd), if it has passed one. Watch it
    /// until it changes.
    pub fn unmask(&self) -> Option<&Arc<Bell>> {
        self.unmask.as_ref()
    }

    /// Call this when the descriptor of [`PortDevice::unmask`] is readable. Unmasks INTx, like the message. Returns false if the
    /// descriptor was not signalled.
    pub fn unmask_signalled(&mut self) -> bool {
        self.scan_doorbells();
        let signalled = self.interrupts.unmask_signalled();
        if signalled && let Some(recorder) = &self.recorder {
            recorder.note(Event::Irqs { index: INTX, change: IrqChange::Unmask, start: 0, count: 1 });
        }
        signalled
    }

    /// Records the device's accesses from now on.
    pub fn record(&mut self, recorder: Option<Arc<Recorder>>) {
        self.recorder = recorder;
    }

    /// Lets the VM map the adapter's empty page, if there is one. Then QEMU does not post its register writes.
    pub fn map_empty_page(&mut self) -> Result<(), MapError> {
        if let Some(place) = self.port.with_pci(self.now(), |pci, _| pci.empty_page()).flatten() {
            let fd = Arc::new(shared_file("nicety-spare", place.offset + place.len)?);
            let areas = vec![Area { offset: place.offset, size: place.len }];
            self.empty_page = Some((u32::from(place.bar), RegionMapping { fd, offset: 0, areas }));
        }
        Ok(())
    }

    /// Lets the VM map the adapter's doorbells. Returns false if they cannot be mapped.
    pub fn map_doorbells(&mut self) -> Result<bool, MapError> {
        let Some(place) = Doorbells::place(&self.port, self.now()) else { return Ok(false) };
        let fd = shared_file("nicety-doorbells", place.offset + place.len)?;
        let copy = fd.try_clone().map_err(nicety_memory::MappingError::Os)?;
        let map = Mapping::of_file(copy, place.offset, place.len, true)?;
        let map = Map::default().with(0, Arc::new(map), Rights::BOTH)?;
        let areas = vec![Area { offset: place.offset, size: place.len }];
        let mapping = RegionMapping { fd: Arc::new(fd), offset: 0, areas };
        let doorbells = Doorbells::new(&self.port, place, Arc::new(map), self.now());
        self.page = Some(Page { doorbells, mapping });
        Ok(true)
    }

    /// Passes changed words of the mapped page to the adapter as register writes. Returns true if there were any.
    pub fn scan_doorbells(&mut self) -> bool {
        let now = self.now();
        let rung = self.page.as_mut().is_some_and(|page| page.doorbells.scan(&self.port, now));
        if rung {
            self.check_memory();
        }
        rung
    }

    /// Writes the effects of a message to the mapped page.
    fn show_registers(&mut self) {
        let now = self.now();
        if let Some(page) = &mut self.page {
            page.doorbells.refresh(&self.port, now);
        }
    }

    /// The thread that maps the VM's memory.
    #[cfg(test)]
    pub(crate) fn mapper(&self) -> &Mapper {
        &self.mapper
    }

    /// Ends the memory thread. A caller that may block joins it.
    pub fn end(&mut self) -> Option<JoinHandle<()>> {
        self.mapper.end()
    }

    /// Resets interrupts and doorbells after a VM has gone.
    pub fn renew(&mut self) {
        self.mapper.renew();
        self.mapping = None;
        self.interrupts.reset();
        (self.memory_checked, self.warned) = (false, false);
        self.breaches_before = self.breaches();
        self.blank.store(false, Ordering::Relaxed);
        self.mode_changed();
        let now = self.now();
        if let Some(page) = &mut self.page {
            page.doorbells.clear(&self.port, now);
        }
    }

    /// Saves the port and stops it. `None` if it has failed.
    pub fn stop(&mut self) -> Option<PortState> {
        let Saved { at, state } = self.port.stop(self.now())?;
        Some(PortState { at_ns: at.0, adapter: state, interrupts: self.interrupts.save() })
    }

    /// Restores a saved port, with the memory and the eventfds of the connected VMM.
    pub fn restore(&mut self, saved: &PortState) -> Result<(), SaveError> {
        self.restore_by(saved, Port::restore_then)
    }

    /// Restores a port of a process that was killed: its rings are lost, and its driver is made to reset the adapter.
    pub fn restore_lost(&mut self, saved: &PortState) -> Result<(), SaveError> {
        let mut saved = saved.clone();
        // The line is masked by each delivery, and unmasked by the VMM: neither was kept. Another interrupt is harmless.
        saved.interrupts.line_masked = false;
        self.restore_by(&saved, Port::restore_lost)
    }

    fn restore_by(&mut self, saved: &PortState, by: Restore) -> Result<(), SaveError> {
        if !self.interrupts.fits(&saved.interrupts) {
            return Err(RestoreError::Impossible("interrupt vectors").into());
        }
        let (port, signals, interrupts, now) = (&self.port, &self.signals, &self.interrupts, self.now());
        let state = Saved { at: Time(saved.at_ns), state: saved.adapter.clone() };
        let restore = || {
            let restored = by(port, &state, now, &mut |adapter| {
                // Set the mode before the adapter raises an interrupt.
                if let Face::Pci(pci) = adapter.face() {
                    signals.set_mode(pci.function().mode());
                }
                interrupts.restore(&saved.interrupts);
            });
            Ok(restored.ok_or(SaveError::Failed)??)
        };
        match &mut self.page {
            Some(page) => page.doorbells.restore_with(port, now, restore),
            None => restore(),
        }
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    /// Sets a new map and returns the old one. This worker owns the port: between its turns no batch holds the map. Other workers
    /// access the guest's memory only under the port's lock, which set_memory takes.
    fn publish(&mut self, map: Map, change: MemoryChange) -> Arc<Map> {
        let is_same = self.map.mappings() == map.mappings();
        self.kept(if is_same { Kept::Memory } else { Kept::Changed });
        if self.memory_changes.len() == MEMORY_CHANGES_MAX {
            self.kept(Kept::Changed);
        }
        if self.change == Kept::Memory {
            self.memory_changes.push(change);
        } else {
            self.memory_changes.clear();
        }
        self.map = map;
        self.port.set_memory(Arc::new(self.map.clone()), self.now())
    }

    /// Handles the result of the pending mapping.
    fn mapped(&mut self, piece: Result<Piece, MappingError>) -> Result<(), Errno> {
        let Some((address, rights)) = self.mapping.take() else { return Err(Errno::INVAL) };
        let mapped = piece.map_err(MapError::from).and_then(|piece| {
            let file = piece.file().map(|(file, offset)| (file.as_raw_fd(), offset));
            let change = MemoryChange::Map { base: address, len: piece.bytes(), rights, file };
            Ok((self.map.with(address, piece, rights)?, change))
        });
        match mapped {
            Ok((new, change)) => {
                // The new map contains all of the old one: nothing is unmapped here.
                drop(self.publish(new, change));
                Ok(())
            }
            Err(error) => Err(self.not_taken(&error)),
        }
    }

    fn not_taken(&self, error: &MapError) -> Errno {
        self.log.say(Kind::Memory, format_args!("memory that the VM offers was not taken: {error}"));
        warn_left_open();
        Errno::INVAL
    }

    /// Detects private memory. A VM may map its memory file privately (QEMU: `share=off`). Then it passes the file all the same,
    /// but its writes go to private pages. A driver that is up has buffers in its rings, or a command in memory. If the file is
    /// still empty then, it is private.
    fn check_memory(&mut self) {
        let now = self.now();
        if !self.dma || self.memory_checked || now < self.next_check || !self.is_driven() {
            return;
        }
        self.memory_checked = true;
        self.next_check = now.after(CHECK_INTERVAL);
        if self.map.is_blank() {
            self.blank.store(true, Ordering::Relaxed);
            let what = format_args!(
                "nobody has written to the memory that it shares; if no frame gets through, {SHARE_MEMORY}"
            );
            self.log.say(Kind::Blank, what);
        }
    }

    /// Whether a driver has used structures in memory.
    fn is_driven(&self) -> bool {
        let master = self.port.with_pci(self.now(), |pci, _| pci.function().bus_master()) == Some(true);
        let is_up = || self.port.with(self.now(), |adapter, _| !adapter.features().is_empty()) == Some(true);
        master && (self.breaches() > self.breaches_before || is_up())
    }

    /// The number of times that drivers have violated the adapter's protocol.
    fn breaches(&self) -> u64 {
        self.port.with(self.now(), |_, cx| cx.counters.guest_errors()).unwrap_or(0)
    }

    fn mode_changed(&self) {
        if let Some(mode) = self.port.with_pci(self.now(), |pci, _| pci.function().mode()) {
            self.signals.set_mode(mode);
        }
    }
}

impl Device for PortDevice {
    fn region(&self, index: u32) -> Option<RegionInfo> {
        let size = *self.sizes.get(index as usize)?;
        let mut info = RegionInfo::trapped(size);
        info.writable = size > 0 && index != ROM_REGION;
        info.readable = size > 0;
        let page = self.page.as_ref().map(|page| (u32::from(page.doorbells.part().bar), &page.mapping));
        let empty = self.empty_page.as_ref().map(|(bar, mapping)| (*bar, mapping));
        let mapped = page.into_iter().chain(empty).find(|(bar, _)| *bar == index);
        info.mapping = mapped.map(|(_, mapping)| mapping.clone());
        Some(info)
    }

    fn region_size(&self, index: u32) -> u64 {
        self.sizes.get(index as usize).copied().unwrap_or(0)
    }

    fn irq_info(&self, index: u32) -> Option<IrqInfo> {
        self.interrupts.info(index)
    }

    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        let now = self.now();
        self.scan_doorbells();
        match region {
            CONFIG_REGION => self.port.config_read(offset, data, now),
            ROM_REGION => {
                data.fill(0xff);
                self.port.with_pci(now, |pci, _| {
                    if let Some(rom) = pci.rom() {
                        rom.read(offset, data);
                    }
                });
            }
            0..ROM_REGION => self.port.read(region as u8, offset, data, now),
            _ => return Err(Errno::INVAL),
        }
        if let Some(recorder) = &self.recorder {
            recorder.access(false, region, offset, data);
        }
        Ok(())
    }

    fn excess(&mut self) -> u32 {
        let accesses = self.excess / DESCRIPTORS_PER_ACCESS;
        self.excess %= DESCRIPTORS_PER_ACCESS;
        accesses
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let now = self.now();
        self.scan_doorbells();
        if let Some(recorder) = &self.recorder {
            recorder.access(true, region, offset, data);
        }
        match region {
            CONFIG_REGION => {
                self.kept(Kept::Changed);
                self.port.config_write(u16::try_from(offset).map_err(|_| Errno::INVAL)?, data, now);
                self.mode_changed();
            }
            0..ROM_REGION => {
                self.excess = self.excess.saturating_add(self.port.write(region as u8, offset, data, now));
                self.check_memory();
            }
            ROM_REGION => {}
            _ => return Err(Errno::INVAL),
        }
        self.show_registers();
        Ok(())
    }

    fn dma_map(&mut self, map: DmaMap) -> Result<Change, Errno> {
        let DmaRange { address, size } = map.range;
        let rights = Rights { read: map.protection.read, write: map.protection.write };
        if let Some(fd) = map.fd {
            let wanted = Wanted { fd, offset: map.offset, len: size, writable: rights.write };
            let piece = self.mapper.piece_of_mapped(&wanted);
            self.mapping = Some((address, rights));
            if let Some(piece) = piece {
                return self.mapped(Ok(piece)).map(|()| Change::Done);
            }
            self.mapper.map(wanted);
            return Ok(Change::UnderWay);
        }
        // QEMU unmaps and maps it again whenever the firmware moves a region.
        let is_missed = self.dma && address < RAM_BELOW && size >= RAM_BELOW && rights.write;
        if is_missed && !std::mem::replace(&mut self.warned, true) {
            self.log.say(Kind::Unshared, format_args!("{size} bytes at {address:#x}: {SHARE_MEMORY}"));
        }
        let new = self.map.with_absent(address, size, rights).map_err(|error| self.not_taken(&error))?;
        let change = MemoryChange::Map { base: address, len: size, rights, file: None };
        drop(self.publish(new, change));
        Ok(Change::Done)
    }

    fn dma_unmap(&mut self, range: Option<DmaRange>) -> Change {
        let (new, change) = match range {
            Some(DmaRange { address, size }) => {
                (self.map.without_within(address, size), MemoryChange::Unmap(address, size))
            }
            None => (Map::default(), MemoryChange::UnmapAll),
        };
        let mappings = (self.map.mappings(), new.mappings());
        let old = self.publish(new, change);
        if mappings.0 == mappings.1 {
            // All files stay mapped: an IOMMU's page went.
            return Change::Done;
        }
        self.mapper.release(old);
        Change::UnderWay
    }

    fn dma_changed(&mut self) -> Option<Result<(), Errno>> {
        match self.mapper.take()? {
            Outcome::Mapped(mapping) => Some(self.mapped(mapping)),
            Outcome::Released => Some(Ok(())),
        }
    }

    fn set_irqs(&mut self, set: IrqSet<'_>) -> Result<(), Errno> {
        self.scan_doorbells();
        if let Some(recorder) = &self.recorder {
            let change = match (set.action, &set.data) {
                (IrqAction::Trigger, _) | (_, IrqData::Connect(_) | IrqData::Disconnect) => IrqChange::Connect,
                (IrqAction::Mask, _) => IrqChange::Mask,
                (IrqAction::Unmask, _) => IrqChange::Unmask,
            };
            recorder.note(Event::Irqs { index: set.index, change, start: set.start, count: set.count });
        }
        let line = set.index == INTX;
        // The line is unmasked after each of its interrupts: that is not kept.
        if !line || set.is_disable() || matches!(set.data, IrqData::Connect(_) | IrqData::Disconnect) {
            self.kept(Kept::Changed);
        }
        let applied = self.interrupts.apply(set);
        if line {
            self.unmask = self.interrupts.unmask_eventfd();
        }
        applied
    }

    fn reset(&mut self) -> Result<(), Errno> {
        self.log.say(Kind::Reset, "the VM resets its adapter");
        if let Some(recorder) = &self.recorder {
            recorder.note(Event::Reset);
        }
        self.kept(Kept::Changed);
        self.port.reset(Reset::Function, self.now());
        self.interrupts.set_line(false);
        self.mode_changed();
        self.show_registers();
        Ok(())
    }
}

const _: () = assert!(ROM_BAR == ROM_REGION as usize);
