//! A port without a guest: a tap, a pair, a capture file.

use crate::adapter::{Budget, Progress};
use crate::batch::{Batch, PortId};
use crate::counters::Counters;
use crate::frames::{Delivery, Frames};
use crate::time::Time;

/// What has become of an uplink's other end, each a sentence for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Nothing can pass from now on, and why.
    Vacant(String),
    /// All is well again.
    Back(String),
}

/// Where frames leave the switch, and enter it. It owns its buffers and its file descriptors; nothing it does blocks.
pub trait Uplink: Send {
    /// Takes what has arrived into `batch`, which it [starts](Batch::start) with its own memory as the source.
    fn fetch(
        &mut self,
        port: PortId,
        budget: Budget,
        batch: &mut Batch,
        counters: &mut Counters,
        now: Time,
    ) -> Progress;

    /// The packets of `batch` have been dealt with: their buffers may be used again.
    fn complete(&mut self, batch: &Batch);

    /// Sends frames. What cannot be sent now is refused; what never can is dropped and counted.
    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, now: Time) -> Delivery;

    /// The file descriptor that becomes readable when [`fetch`](Uplink::fetch) has something to do: frames have arrived,
    /// or refused ones may be offered again, which [`wake`](Uplink::wake) then tells.
    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>>;

    /// When it wants another turn, and refused frames offered again, whatever its descriptor says; a time that has
    /// passed means at once. To be asked after each `fetch` and `deliver`, and valid until the next.
    fn wake(&self) -> Option<Time> {
        None
    }

    /// Why no peer is at the other end, in a sentence for a person. `None` if one is, or if that is unknown.
    fn vacant(&self) -> Option<String> {
        None
    }

    /// News of the other end for the log. To be asked after each `fetch` and `deliver`; may know less than
    /// [`vacant`](Uplink::vacant), which looks.
    fn news(&mut self) -> Option<News> {
        None
    }
}
