//! The front end's memory: regions, with their addresses in the front end's process ("Memory regions description").
//!
//! Descriptors hold guest-physical addresses, but SET_VRING_ADDR uses addresses in the front end's own process. Each region's
//! description has both.

use std::sync::Arc;

use nicety_memory::{DirtyLog, Files, Map, MapError, Mapping, Misses, Piece, Rights};
use nicety_peer::PeerFd;

use crate::ending::Refusal;
use crate::iotlb::{Cache, Iotlb};
use crate::protocol::{Fields, REGIONS_MAX, Request};

/// Bytes of a page of the log (VHOST_LOG_PAGE).
const PAGE_BYTES: u64 = 4096;
/// Most bytes of a log: one bit per page up to 32 TiB.
const LOG_BYTES_MAX: u64 = 1 << 30;

/// One region, as the front end describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// Guest-physical address.
    pub guest: u64,
    /// Bytes.
    pub len: u64,
    /// Address in the front end's process.
    pub user: u64,
    /// First byte in the file.
    pub offset: u64,
}

impl Region {
    /// Bytes of a region in a message.
    pub const BYTES: usize = 32;

    pub fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let (guest, len, user, offset) = (fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?);
        let region = Self { guest, len, user, offset };
        let ends = [guest, user, offset].map(|start| start.checked_add(len));
        (len > 0 && ends.iter().all(Option::is_some)).then_some(region)
    }

    pub fn bytes(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        for (i, word) in [self.guest, self.len, self.user, self.offset].into_iter().enumerate() {
            out[8 * i..8 * i + 8].copy_from_slice(&word.to_ne_bytes());
        }
        out
    }

    fn of(&self, files: &Files, fd: PeerFd) -> Result<Piece, MapError> {
        Ok(files.piece(fd, self.offset, self.len, true)?)
    }
}

/// All regions of a front end, and the map of them.
#[derive(Debug)]
pub(crate) struct Memory {
    regions: Vec<Region>,
    /// The memory of each region.
    pieces: Vec<Piece>,
    files: Files,
    /// The map by guest-physical addresses.
    map: Arc<Map>,
    /// The map by an IOMMU's addresses, if the driver uses those.
    iotlb: Option<Cache>,
    /// The log of written pages: the front end's, or our own until it gives one.
    log: Option<Arc<DirtyLog>>,
    is_given: bool,
    /// Earlier logs. What they still have goes into the present one: see [`settle_log`](Self::settle_log).
    old_logs: Vec<Arc<DirtyLog>>,
    /// Whether the log is on.
    logs: bool,
    /// Why a log of our own could not be made, until it is told.
    unlogged: Option<String>,
}

impl Memory {
    pub fn new() -> Self {
        let (regions, pieces) = (Vec::new(), Vec::new());
        Self {
            regions,
            pieces,
            files: Files::default(),
            map: Map::empty(),
            iotlb: None,
            log: None,
            is_given: false,
            old_logs: Vec::new(),
            logs: false,
            unlogged: None,
        }
    }

    /// SET_MEM_TABLE: replaces all, or changes nothing.
    pub fn replace(&mut self, regions: Vec<Region>, fds: Vec<PeerFd>) -> Result<(), MapError> {
        if regions.len() > REGIONS_MAX {
            return Err(MapError::TooMany);
        }
        self.keep_own_log(&regions);
        let mut map = Map::default().logged(self.active_log());
        let mut pieces = Vec::with_capacity(regions.len());
        for (region, fd) in regions.iter().zip(fds) {
            let piece = region.of(&self.files, fd)?;
            map = map.with(region.guest, piece.clone(), Rights::BOTH)?;
            pieces.push(piece);
        }
        (self.regions, self.pieces, self.map) = (regions, pieces, Arc::new(map));
        self.forget_translations();
        Ok(())
    }

    /// ADD_MEM_REG: adds a region.
    pub fn add(&mut self, region: Region, fd: PeerFd) -> Result<(), MapError> {
        if self.regions.len() >= REGIONS_MAX {
            return Err(MapError::TooMany);
        }
        let piece = region.of(&self.files, fd)?;
        self.add_piece(region, piece)
    }

    /// Adds a region that the front end shared with an earlier process.
    pub fn add_again(&mut self, region: Region, fd: PeerFd) -> Result<(), MapError> {
        let piece = self.files.piece_again(fd, region.offset, region.len, true)?;
        self.add_piece(region, piece)
    }

    fn add_piece(&mut self, region: Region, piece: Piece) -> Result<(), MapError> {
        let all = [&self.regions[..], &[region]].concat();
        self.keep_own_log(&all);
        let map = self.map.logged(self.active_log());
        self.map = Arc::new(map.with(region.guest, piece.clone(), Rights::BOTH)?);
        self.regions.push(region);
        self.pieces.push(piece);
        self.forget_translations();
        Ok(())
    }

    /// REM_MEM_REG: removes a region. The offset in the file is not compared (as specified).
    pub fn remove(&mut self, region: Region) -> Result<(), MapError> {
        let same = |r: &Region| (r.guest, r.len, r.user) == (region.guest, region.len, region.user);
        let unknown = MapError::Unknown { base: region.guest, len: region.len };
        let at = self.regions.iter().position(same).ok_or(unknown)?;
        self.map = Arc::new(self.map.without(region.guest, region.len)?);
        self.regions.remove(at);
        self.pieces.remove(at);
        self.forget_translations();
        Ok(())
    }

    /// SET_LOG_BASE: sets the log to `len` bytes of a file from `offset`.
    pub fn set_log(&mut self, fd: PeerFd, offset: u64, len: u64) -> Result<(), Refusal> {
        let refused = || Refusal::Body(Request::SetLogBase);
        if len > LOG_BYTES_MAX {
            return Err(refused());
        }
        let bitmap = Mapping::of_file(fd, offset, len, true).map_err(MapError::from)?;
        let log = DirtyLog::new(Arc::new(bitmap)).ok_or_else(refused)?;
        self.change_log(Some(log), true);
        self.relog();
        Ok(())
    }

    /// The log of written pages, if it is on; and whether the front end has given it.
    pub fn log(&self) -> Option<(&Arc<DirtyLog>, bool)> {
        self.log.as_ref().filter(|_| self.logs).map(|log| (log, self.is_given))
    }

    /// Goes on with a log that is on: with the front end's, or with what our own had.
    pub fn log_on(&mut self, given: Option<(PeerFd, u64, u64)>, own: Vec<(u64, u64)>) -> Result<(), Refusal> {
        self.turn_log(true);
        if let Some((fd, offset, len)) = given {
            self.set_log(fd, offset, len)?;
        }
        self.log.iter().for_each(|log| log.add(own.iter().copied()));
        self.settle_log();
        Ok(())
    }

    fn change_log(&mut self, log: Option<DirtyLog>, is_given: bool) {
        let old = std::mem::replace(&mut self.log, log.map(Arc::new));
        self.old_logs.extend(old.filter(|_| self.logs));
        self.is_given = is_given;
    }

    /// While the log is on and the front end has given none, pages of these regions are logged in memory of our own: QEMU turns the log
    /// on, starts the rings, and gives its log after that (hw/virtio/vhost.c, `vhost_dev_start`).
    fn keep_own_log(&mut self, regions: &[Region]) {
        let pages = regions.iter().map(|region| (region.guest + region.len).div_ceil(PAGE_BYTES)).max();
        if self.logs
            && !self.is_given
            && let Some(pages) = pages
        {
            let made = match pages <= 8 * LOG_BYTES_MAX {
                true => DirtyLog::private(pages).map_err(|error| format!("no memory for one of our own: {error}")),
                false => Err(format!("the guest's memory ends beyond {} TiB", (8 * LOG_BYTES_MAX * PAGE_BYTES) >> 40)),
            };
            // Without it the pages are not logged, as if the log were off until the front end gives its own.
            self.unlogged = made.as_ref().err().cloned();
            self.change_log(made.ok(), false);
        }
    }

    /// Why pages are not logged that should be. Told once.
    pub fn take_unlogged(&mut self) -> Option<String> {
        self.unlogged.take()
    }

    /// Nobody writes by an earlier map any more: the present log gets what earlier ones still have, which their reader may not read again.
    pub fn settle_log(&mut self) {
        for old in self.old_logs.drain(..) {
            self.log.iter().for_each(|log| log.take_over(&old));
        }
    }

    /// Turns the log on or off. Returns whether that changed anything.
    pub fn turn_log(&mut self, on: bool) -> bool {
        let changes = self.logs != on;
        if changes {
            if !on {
                self.logs = false;
                self.change_log(None, false);
            }
            self.logs = on;
            self.keep_own_log(&self.regions.clone());
            self.relog();
        }
        changes
    }

    /// Logs the second page of each region, although nobody has written it. QEMU's TCG needs that when a VM stops.
    ///
    /// `physical_memory_sync_dirty_bitmap` (QEMU's migration/ram.c) clears the bits of written pages. It has the processors report their
    /// next writes only if one of these pages is *new*: it was not yet among the pages that wait to be sent. Just before the VM stops
    /// QEMU asks for all written pages. What the processors write between that and the stop is rarely new. So their next writes to these
    /// pages are in no copy, and under COLO the VM goes on: the twin has old pages. A page that nobody writes was sent long ago. It is
    /// new, and is sent once more. It is the second one because firmware writes the first. Each region has one because QEMU looks at each
    /// of its RAM blocks alone, and does not tell which region is of which. With KVM it changes nothing else.
    pub fn log_quiet_pages(&self) {
        let Some(log) = self.log.as_ref().filter(|_| self.logs) else { return };
        let pages = self.regions.iter().filter(|region| region.len >= 2 * PAGE_BYTES);
        log.add(pages.map(|region| region.guest / PAGE_BYTES + 1).map(|page| (page / 64, 1 << (page % 64))));
    }

    fn active_log(&self) -> Option<Arc<DirtyLog>> {
        self.log.clone().filter(|_| self.logs)
    }

    fn relog(&mut self) {
        self.map = Arc::new(self.map.logged(self.active_log()));
    }

    /// The regions, in the front end's order.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The map of the device.
    pub fn map(&self) -> &Arc<Map> {
        self.iotlb.as_ref().map_or(&self.map, Cache::map)
    }

    /// The map by guest-physical addresses, also behind an IOMMU.
    pub fn shared(&self) -> &Arc<Map> {
        &self.map
    }

    /// Whether the front end has shared memory.
    pub fn is_shared(&self) -> bool {
        !self.regions.is_empty()
    }

    /// From now on the device's addresses are an IOMMU's, or guest-physical ones. Returns whether that changed anything.
    pub fn turn_iotlb(&mut self, misses: Option<Arc<Misses>>) -> bool {
        let changes = self.iotlb.is_some() != misses.is_some();
        if changes {
            self.iotlb = misses.map(Cache::new);
        }
        changes
    }

    /// The translations that the driver's IOMMU misses.
    pub fn misses(&self) -> Option<&Arc<Misses>> {
        self.iotlb.as_ref().map(Cache::misses)
    }

    fn forget_translations(&mut self) {
        self.iotlb.iter_mut().for_each(Cache::clear);
    }

    /// A message about translations. A translation to memory that is not shared is refused.
    pub fn translate(&mut self, message: Iotlb) -> Result<(), Refusal> {
        let refused = || Refusal::Body(Request::IotlbMsg);
        let cache = self.iotlb.as_mut().ok_or_else(refused)?;
        match message {
            Iotlb::Invalidate { address, len } => cache.invalidate(address, len),
            Iotlb::Update { address, len, user, rights } => {
                let place = |(region, piece): (&Region, &Piece)| piece.within(user.checked_sub(region.user)?, len);
                let piece = self.regions.iter().zip(&self.pieces).find_map(place).ok_or_else(refused)?;
                cache.update(address, piece, len, rights)?;
            }
        }
        Ok(())
    }

    /// The device's address of a ring's address in the front end's process. Behind an IOMMU rings have I/O virtual addresses.
    pub fn guest_address(&self, user: u64) -> Option<u64> {
        if self.iotlb.is_some() {
            return Some(user);
        }
        self.regions.iter().find_map(|region| {
            let into = user.checked_sub(region.user)?;
            (into < region.len).then_some(region.guest + into)
        })
    }
}
