//! The state for the next back end if this one is killed: a page per ring, in the adapter's own format. A front end keeps it
//! ("Inflight I/O tracking"). QEMU does not keep it for packed rings (hw/net/vhost_net.c); then the back end has a
//! [record](crate::Port::record) of its own. The end of a page of the record identifies the ring.

use std::sync::Arc;

use nicety_adapter::RingPlace;
use nicety_memory::{Map, MapError, Mapping, Rights, shared_file};
use nicety_peer::PeerFd;

use super::packed::{USED, is_first};
use super::{Answer, Refusal, Session, single};
use crate::port::RECORD_RING_BYTES as PAGE;
use crate::protocol::{F_RING_PACKED, Fields, Request};

/// Offset, in a page of the record, of the ring's identity: addresses, size and features. The base is not part of it: QEMU changes it
/// when it completes chains itself while it has no back end.
const RING_AT: u64 = PAGE - 40;
/// Most rings of one front end.
const RINGS_MAX: u16 = 1024;

/// `struct VhostUserInflight`: offset and length in the file, number of rings, and their size.
struct Inflight {
    len: u64,
    offset: u64,
    rings: u16,
    size: u16,
}

impl Inflight {
    fn read(request: Request, body: &[u8]) -> Result<Self, Refusal> {
        let mut fields = Fields(body);
        let read = (|| {
            let (len, offset) = (fields.u64()?, fields.u64()?);
            Some(Self { len, offset, rings: fields.u16()?, size: fields.u16()? })
        })();
        // Some front ends pad the structure to whole words: four more bytes.
        let read = read.filter(|inflight| fields.0.len() <= 4 && (1..=RINGS_MAX).contains(&inflight.rings));
        read.ok_or(Refusal::Body(request))
    }
}

/// GET_INFLIGHT_FD: creates an empty file.
pub(super) fn get_inflight(body: &[u8]) -> Result<Answer, Refusal> {
    let request = Inflight::read(Request::GetInflightFd, body)?;
    let len = PAGE * u64::from(request.rings);
    let file = shared_file("nicety-inflight", len).map_err(MapError::from)?;
    let mut reply = [len, 0].map(u64::to_ne_bytes).concat();
    reply.extend([request.rings, request.size].map(u16::to_ne_bytes).concat());
    reply.resize(body.len(), 0);
    Ok(Answer::File(reply, file))
}

impl Session {
    /// SET_INFLIGHT_FD: the front end returns the file, at once or to the next back end.
    pub(super) fn set_inflight(&mut self, body: &[u8], fds: Vec<PeerFd>) -> Result<(), Refusal> {
        let request = Request::SetInflightFd;
        let inflight = Inflight::read(request, body)?;
        let fd = single(request, fds)?;
        let len = PAGE * u64::from(inflight.rings);
        if inflight.len < len {
            return Err(Refusal::Body(request));
        }
        let file = Mapping::of_file(fd, inflight.offset, len, true).map_err(MapError::from)?;
        let map = Arc::new(Map::default().with(0, Arc::new(file), Rights::BOTH)?);
        self.port.with(&mut |face, _| face.keep(Some(Arc::clone(&map))));
        (self.kept, self.record) = (Some(map), None);
        Ok(())
    }

    /// Prepares the record of a ring that is about to start. The record is used for packed rings if the front end keeps no state.
    /// An entry of another ring, or of an earlier start of this one, is obsolete.
    pub(super) fn recall(&mut self, ring: u16, place: &RingPlace, base: u32) {
        if self.kept.is_some() || self.features & F_RING_PACKED == 0 {
            return;
        }
        if self.record.is_none() {
            self.record = self.port.record();
            self.port.with(&mut |face, _| face.keep(self.record.clone()));
        }
        let Some(record) = &self.record else { return };
        let RingPlace { size, descriptors, driver, device } = *place;
        let identity = [descriptors, driver, device, size.into(), self.features].map(u64::to_le_bytes).concat();
        let (page, mut known) = (PAGE * u64::from(ring), [0; 40]);
        let same = record.read(page + RING_AT, &mut known).is_ok() && known == *identity;
        // Behind an even lap, a ring whose chains were all completed looks as one that was never served; at its first base it is at
        // the same place as well.
        if !same || is_first(base) && !self.was_served(place) {
            self.forget_kept(ring);
            let _no_page = record.write(page + RING_AT, &identity);
        }
    }

    /// Whether a packed ring has a descriptor that a device returned. A driver clears all of them when it starts a ring anew
    /// without a back end.
    fn was_served(&self, place: &RingPlace) -> bool {
        self.marked(place, USED).unwrap_or(false)
    }

    /// Whether a packed ring has a descriptor with one of these flags. `None`: the ring is not in the guest's memory.
    pub(super) fn marked(&self, place: &RingPlace, flags: u16) -> Option<bool> {
        let mut table = vec![0; 16 * usize::from(place.size)];
        self.rings.memory.map().read(place.descriptors, &mut table).ok()?;
        let any = |descriptor: &[u8]| u16::from_le_bytes([descriptor[14], descriptor[15]]) & flags != 0;
        Some(table.chunks_exact(16).any(any))
    }

    /// Clears the saved state of a ring that was stopped in order: it is obsolete.
    pub(super) fn forget_kept(&self, ring: u16) {
        if let Some(kept) = self.kept.as_ref().or(self.record.as_ref()) {
            // A front end without the file has nothing to clear.
            let _no_page = kept.write(PAGE * u64::from(ring), &[0; 8]);
        }
    }
}
