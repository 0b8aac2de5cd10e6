//! A device that goes on in another process, with the same VMM.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nicety_adapter::Time;
use nicety_memory::{Files, Map, MapError, Mapping, Rights};
use nicety_peer::Table;
use nicety_plane::{Doorbells, Saved};
use nicety_vfio_user::{Area, Mapping as RegionMapping};
use rustix::io::Errno;

use super::{Kept, Page, PortDevice};
use crate::run::image::{Checks, FunctionImage, PageImage, RegionImage, VmmImage};
use crate::run::journal::MemoryChange;
use crate::run::saved::PortState;

/// Reasons why a device does not go on in this process.
#[derive(Debug, thiserror::Error)]
pub enum NotTaken {
    /// A descriptor is missing.
    #[error("a descriptor is missing")]
    Descriptor,
    /// The image contradicts itself, or the adapter of this program.
    #[error("the image is impossible: {0}")]
    Impossible(&'static str),
    /// The VMM's memory cannot be mapped.
    #[error("mapping the VM's memory: {0}")]
    Memory(#[from] MapError),
    /// An eventfd cannot be used.
    #[error("connecting its eventfds: {0}")]
    Eventfd(Errno),
}

impl From<std::io::Error> for NotTaken {
    fn from(error: std::io::Error) -> Self {
        MapError::from(nicety_memory::MappingError::Os(error)).into()
    }
}

impl PortDevice {
    /// Bytes of the file in which the adapter keeps the positions of its rings.
    pub fn kept_bytes(&self) -> u64 {
        self.port.with_pci(self.now(), |pci, _| pci.kept_bytes()).unwrap_or(0)
    }

    /// Keeps the positions of the adapter's rings in this file.
    pub fn keep_rings(&self, file: &Arc<Map>) {
        self.port.with_pci(self.now(), |pci, _| pci.keep(Arc::clone(file)));
    }

    /// The page, the empty page and the listener, which are there without a VMM.
    ///
    /// # Errors
    /// A descriptor cannot be duplicated.
    pub fn image(&mut self, listener: impl AsFd, table: &mut Table) -> Result<FunctionImage, Errno> {
        // The guest's writes so far are part of the adapter's state.
        self.scan_doorbells();
        self.kept_image(listener, table)
    }

    /// Like [`PortDevice::image`], without the guest's last writes.
    ///
    /// # Errors
    /// A descriptor cannot be duplicated.
    pub fn kept_image(&mut self, listener: impl AsFd, table: &mut Table) -> Result<FunctionImage, Errno> {
        let page = self.page.as_ref().map(|Page { doorbells, mapping }| {
            Ok::<_, Errno>(PageImage { file: table.put(&mapping.fd)?, seen: doorbells.seen().to_vec() })
        });
        let empty_page = self.empty_page.as_ref().map(|(_, mapping)| table.put(&mapping.fd));
        Ok(FunctionImage {
            listener: table.put(listener)?,
            page: page.transpose()?,
            empty_page: empty_page.transpose()?,
            vmm: None,
        })
    }

    /// The adapter's state and the VMM's memory and eventfds; changes nothing. `None` if the port has failed.
    ///
    /// # Errors
    /// A descriptor cannot be duplicated.
    pub fn vmm_image(
        &self,
        session: nicety_vfio_user::SavedSession,
        process: Option<i32>,
        table: &mut Table,
    ) -> Result<Option<VmmImage>, Errno> {
        let Some(Saved { at, state }) = self.port.save(self.now()) else { return Ok(None) };
        let state = PortState { at_ns: at.0, adapter: state, interrupts: self.interrupts.save() };
        let (mut regions, mut failed) = (Vec::new(), Ok(()));
        self.map.each_region(|region| {
            let put = |(file, offset)| table.put_as(file, region.serial).map(|index| (index, offset));
            let file = region.file.map(put);
            match file.transpose() {
                Ok(file) => regions.push(RegionImage {
                    base: region.base,
                    len: region.len,
                    read: region.rights.read,
                    write: region.rights.write,
                    file,
                }),
                Err(errno) => failed = Err(errno),
            }
        });
        failed?;
        let checks = Checks {
            is_checked: self.memory_checked,
            is_blank: self.blank.load(Ordering::Relaxed),
            is_advised: self.warned,
            breaches_before: self.breaches_before,
        };
        let connections = self.interrupts.connections(table)?;
        Ok(Some(VmmImage { session, state, connections, regions, process, checks }))
    }

    /// Whether the keeper may hold all that the VMM has connected: a socket would let it wait when it is closed.
    pub fn is_keepable(&self) -> bool {
        self.interrupts.are_plain()
    }

    /// Goes on with the pages of another process, in place of new ones.
    ///
    /// # Errors
    /// The image does not fit this program's adapter, or a page cannot be mapped.
    pub fn take_pages(&mut self, image: &FunctionImage, table: &mut Table) -> Result<(), NotTaken> {
        let file = |index: u32| -> Result<Arc<OwnedFd>, NotTaken> {
            Ok(Arc::new(table.get(index).ok_or(NotTaken::Descriptor)?.try_clone_to_owned()?))
        };
        if let Some(index) = image.empty_page {
            let (_, mapping) = self.empty_page.as_mut().ok_or(NotTaken::Impossible("an empty page"))?;
            mapping.fd = file(index)?;
        }
        let Some(PageImage { file: index, seen }) = &image.page else { return Ok(()) };
        let place = Doorbells::place(&self.port, self.now()).ok_or(NotTaken::Impossible("mapped doorbells"))?;
        let fd = file(*index)?;
        let map = Mapping::of_file(fd.try_clone()?, place.offset, place.len, true).map_err(MapError::from)?;
        let map = Map::default().with(0, Arc::new(map), Rights::BOTH)?;
        let doorbells = Doorbells::again(&self.port, place, Arc::new(map), seen.clone(), self.now());
        let doorbells = doorbells.ok_or(NotTaken::Impossible("the registers of its page"))?;
        let areas = vec![Area { offset: place.offset, size: place.len }];
        self.page = Some(Page { doorbells, mapping: RegionMapping { fd, offset: 0, areas } });
        Ok(())
    }

    /// Connects a VMM's memory and eventfds. The adapter's state comes [later](PortDevice::restore). Returns the files for the
    /// memory thread, which maps each once.
    ///
    /// # Errors
    /// The image does not fit this program's adapter, or memory cannot be mapped.
    pub fn take_vmm(&mut self, image: &VmmImage, files: &Files, table: &mut Table) -> Result<(), NotTaken> {
        if !self.interrupts.fits(&image.state.interrupts) {
            return Err(NotTaken::Impossible("interrupt vectors"));
        }
        let mut map = Map::default();
        for RegionImage { base, len, read, write, file } in &image.regions {
            let rights = Rights { read: *read, write: *write };
            map = match file {
                Some((index, offset)) => {
                    let fd = table.get(*index).ok_or(NotTaken::Descriptor)?.try_clone_to_owned()?;
                    let piece = files.piece_again(fd, *offset, *len, rights.write).map_err(MapError::from)?;
                    map.with(*base, piece, rights)?
                }
                None => map.with_absent(*base, *len, rights)?,
            };
        }
        drop(self.publish(map, MemoryChange::UnmapAll));
        self.kept(Kept::Changed);
        self.interrupts.reconnect(&image.connections, table).map_err(NotTaken::Eventfd)?;
        self.unmask = self.interrupts.unmask_eventfd();
        let Checks { is_checked, is_blank, is_advised, breaches_before } = image.checks;
        (self.memory_checked, self.warned, self.breaches_before) = (is_checked, is_advised, breaches_before);
        self.blank.store(is_blank, Ordering::Relaxed);
        self.next_check = Time::ZERO;
        Ok(())
    }
}
