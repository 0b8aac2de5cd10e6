//! Requests that the client may have given up, because the server stood still for longer than the client waits.
//!
//! QEMU waits for 5 s (hw/vfio-user/proxy.c, vfio_user_send_wait). Then it goes on: a read gives ones, a write counts as done. A later answer is an "unexpected reply" (vfio_user_recv_one), of which QEMU reads the header only. The
//! payload would be taken for the next header, and the connection would be over. So a request that may have been given up is carried
//! out, in its place in the stream, and answered by its header alone. If QEMU does wait for it, it takes that as success; the data of a
//! read is then 0.

use super::{Core, Session};
use crate::codec::{Command, Header};

/// Requests that may have been given up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Late {
    /// Position in the stream before which all of them begin.
    until: u64,
    /// Position of the message that is being handled.
    at: u64,
    /// Accesses among them that the guest took for done since [`Session::take_late_accesses`].
    accesses: u32,
}

impl Session {
    /// The client may have given up each request that it has sent so far and that is not answered. Does nothing if the client is none that
    /// gives requests up.
    pub fn give_up(&mut self) {
        let gives_up = self.core.peer.is_some_and(|peer| peer.gives_up());
        if !gives_up {
            return;
        }
        let end = self.inbound.end_of_stream(&self.socket);
        self.core.late.until = self.core.late.until.max(end);
        self.core.cut_answers();
    }

    /// Whether requests that may have been given up wait to be handled and answered.
    pub fn is_late(&self) -> bool {
        let (late, is_within) = (&self.core.late, self.core.writing.is_some() || self.is_changing());
        self.inbound.position() < late.until || (is_within && late.at < late.until)
    }

    /// The number of register accesses that the guest may have taken for done although they were not, since the last call.
    pub fn take_late_accesses(&mut self) -> u32 {
        std::mem::take(&mut self.core.late.accesses)
    }
}

impl Core {
    /// Cuts the answers that are not sent.
    pub(super) fn cut_answers(&mut self) {
        let Self { outbound, late, .. } = self;
        outbound.cut(|header| {
            let is_cut = is_cut(header);
            late.accesses += u32::from(is_cut && is_access(header));
            is_cut
        });
    }

    /// Handles the message at this position next.
    pub(super) fn handles(&mut self, position: u64) {
        self.late.at = position;
    }

    /// Whether the answer to this request is its header alone. Counts it.
    pub(super) fn is_given_up(&mut self, header: &Header) -> bool {
        let is_late = self.late.at < self.late.until;
        self.late.accesses += u32::from(is_late && is_access(header) && !header.no_reply());
        is_late && is_cut(header)
    }
}

/// Whether the answer to a request that may have been given up is cut. A client that attaches a device cannot go on without the others,
/// and disconnects when it gives one up.
fn is_cut(header: &Header) -> bool {
    let attaches = [Command::Version, Command::DeviceGetInfo, Command::DeviceGetRegionInfo];
    Command::from_number(header.command).is_none_or(|command| !attaches.contains(&command))
}

fn is_access(header: &Header) -> bool {
    let accesses = [Command::RegionRead, Command::RegionWrite, Command::RegionWriteMulti, Command::DeviceReset];
    Command::from_number(header.command).is_some_and(|command| accesses.contains(&command))
}
