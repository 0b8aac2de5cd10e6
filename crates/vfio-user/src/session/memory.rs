//! DMA_MAP and DMA_UNMAP (vfio-user.rst): adds and removes windows of the client's memory.
//!
//! Mapping and unmapping a file wait for the file's lock, which a client can hold for seconds. So a device may make a change in
//! another thread: the session then handles no further message of this client, and answers when the device reports the result.

use nicety_peer::PeerFd;
use rustix::io::Errno;

use super::Core;
use super::handle::Answer;
use crate::codec::request::{MAP_READ, MAP_WRITE, MapRequest, UNMAP_ALL, UNMAP_SIZE};
use crate::codec::{Header, put_u32, put_u64};
use crate::device::{Change, Device, DmaMap, DmaProtection, DmaRange};

/// A change in progress, and the header of the command to answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Changing {
    header: Header,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Map(DmaRange),
    Unmap { flags: u32, range: DmaRange },
}

impl Core {
    pub(super) fn map(
        &mut self,
        header: &Header,
        map: MapRequest,
        mut fds: Vec<PeerFd>,
        device: &mut dyn Device,
    ) -> Answer {
        if fds.len() > 1 {
            self.refuse(&fds);
            return Err(Errno::INVAL);
        }
        if self.maps.len() >= self.map_limit {
            self.refuse(&fds);
            return Err(Errno::NOSPC);
        }
        let last = map.address.wrapping_add(map.size - 1);
        let below = self.maps.range(..=last).next_back();
        if below.is_some_and(|(address, size)| address.wrapping_add(size - 1) >= map.address) {
            self.refuse(&fds);
            return Err(Errno::EXIST);
        }
        self.work.change();
        let range = DmaRange { address: map.address, size: map.size };
        let change = device.dma_map(DmaMap {
            range,
            protection: DmaProtection { read: map.flags & MAP_READ != 0, write: map.flags & MAP_WRITE != 0 },
            offset: map.offset,
            fd: fds.pop(),
        })?;
        self.begin(Changing { header: *header, what: What::Map(range) }, change);
        Ok(())
    }

    pub(super) fn unmap(
        &mut self,
        header: &Header,
        flags: u32,
        address: u64,
        size: u64,
        device: &mut dyn Device,
    ) -> Answer {
        self.work.change();
        let range = DmaRange { address, size };
        let change = if flags == UNMAP_ALL {
            self.maps.clear();
            device.dma_unmap(None)
        } else {
            match self.maps.get(&address) {
                Some(known) if *known == size => {}
                Some(_) => return Err(Errno::INVAL),
                None => return Err(Errno::NOENT),
            }
            self.maps.remove(&address);
            device.dma_unmap(Some(range))
        };
        self.begin(Changing { header: *header, what: What::Unmap { flags, range } }, change);
        Ok(())
    }

    fn begin(&mut self, changing: Changing, change: Change) {
        match change {
            Change::Done => self.changed(changing, Ok(())),
            Change::UnderWay => self.changing = Some(changing),
        }
    }

    /// Answers the change in progress, if it is done. Returns false if it is not done yet.
    pub(super) fn settle_change(&mut self, device: &mut dyn Device) -> bool {
        let Some(changing) = self.changing else { return true };
        let Some(outcome) = device.dma_changed() else { return false };
        self.changing = None;
        self.changed(changing, outcome);
        true
    }

    fn changed(&mut self, Changing { header, what }: Changing, outcome: Answer) {
        match (what, outcome) {
            (_, Err(errno)) => self.error(&header, errno),
            (What::Map(DmaRange { address, size }), Ok(())) => {
                self.maps.insert(address, size);
                self.acknowledge(&header);
            }
            (What::Unmap { flags, range }, Ok(())) => self.answer(&header, |out| {
                put_u32(out, UNMAP_SIZE as u32);
                put_u32(out, flags);
                put_u64(out, range.address);
                put_u64(out, range.size);
            }),
        }
    }
}
