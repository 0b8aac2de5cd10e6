//! The state that a front end keeps for the next back end if this one is killed ("Inflight I/O tracking"). The adapter defines its
//! format: a page per ring.

use std::sync::Arc;

use nicety_bell::Lent;
use nicety_memory::{Map, MapError, Mapping, Rights, shared_file};

use super::{Answer, Refusal, Session};
use crate::protocol::{Fields, Request};

/// Bytes per ring.
const PAGE: u64 = 4096;
/// Most rings of one front end.
const RINGS_MOST: u16 = 1024;

/// `struct VhostUserInflight`: the place in the file, the number of rings, and their size.
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
        // Some front ends pad the structure to whole words: four bytes more.
        let read = read.filter(|inflight| fields.0.len() <= 4 && (1..=RINGS_MOST).contains(&inflight.rings));
        read.ok_or(Refusal::Body(request))
    }
}

/// A new, empty file.
pub(super) fn get_inflight(body: &[u8]) -> Result<Answer, Refusal> {
    let asked = Inflight::read(Request::GetInflightFd, body)?;
    let len = PAGE * u64::from(asked.rings);
    let file = shared_file("nicety-inflight", len).map_err(MapError::from)?;
    let mut reply = [len, 0].map(u64::to_ne_bytes).concat();
    reply.extend([asked.rings, asked.size].map(u16::to_ne_bytes).concat());
    reply.resize(body.len(), 0);
    Ok(Answer::File(reply, file))
}

impl Session {
    /// The file comes back: at once, or after another back end was killed.
    pub(super) fn set_inflight(&mut self, body: &[u8], fds: Vec<Lent>) -> Result<(), Refusal> {
        let request = Request::SetInflightFd;
        let told = Inflight::read(request, body)?;
        let [fd] =
            <[Lent; 1]>::try_from(fds).map_err(|fds| Refusal::Descriptors { request, found: fds.len(), wanted: 1 })?;
        let len = PAGE * u64::from(told.rings);
        if told.len < len {
            return Err(Refusal::Body(request));
        }
        let file = Mapping::of_file(fd, told.offset, len, true).map_err(MapError::from)?;
        let map = Arc::new(Map::default().with(0, Arc::new(file), Rights::BOTH)?);
        self.port.with(&mut |face, _| face.keep(Some(Arc::clone(&map))));
        self.kept = Some(map);
        Ok(())
    }

    /// A ring was stopped in order: its saved state is obsolete.
    pub(super) fn forget_kept(&self, ring: u16) {
        if let Some(kept) = &self.kept {
            // A front end without the file has nothing to clear.
            let _it_may_have_no_page = kept.write(PAGE * u64::from(ring), &[0; 8]);
        }
    }
}
