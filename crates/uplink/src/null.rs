//! An uplink to nowhere: it takes and counts every frame.

use std::os::fd::BorrowedFd;

use nicety_adapter::{Batch, Budget, Counters, Delivery, Frames, HandOver, PortId, Progress, Time, Uplink};
use nicety_memory::Map;

/// See the module's documentation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Null;

impl Uplink for Null {
    fn fetch(&mut self, port: PortId, _: Budget, batch: &mut Batch, _: &mut Counters, _: Time) -> Progress {
        batch.start(&Map::empty(), port, 0);
        Progress { more: false, armed: true }
    }

    fn complete(&mut self, _: &Batch) {}

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, _: Time) -> Delivery {
        for (_, _, packet) in frames.iter() {
            counters.received(0, u64::from(packet.frames()), u64::from(packet.len()));
        }
        Delivery::default()
    }

    fn hand_over(&self) -> HandOver<'_> {
        HandOver::Again
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
