//! An adapter of rings that is driven and has no registers: the least that a plane needs. A test says what it sends and takes.

use nicety_adapter::snapshot::RestoreError;
use nicety_adapter::{
    Adapter, Batch, Budget, Context, Delivery, Event, Face, Frames, Progress, Reset, RingFace, RingPlace, Snapshot,
};

/// The frames of a test's guest.
pub trait Traffic: Send {
    /// Number of its rings, and of its transmit queues.
    const RINGS: u16 = 1;

    /// Frames that it sends ([`Adapter::fetch`]).
    fn fetch(&mut self, queue: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress;

    /// Frames that come ([`Adapter::deliver`]). It takes all, and drops them.
    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        let _dropped = (frames, cx);
        Delivery::default()
    }

    /// Its driver has rung for a ring. There is work in it.
    fn kick(&mut self, ring: u16, cx: &mut Context<'_>) {
        cx.out.work.insert(ring);
    }
}

/// The adapter of this traffic (see the module's page).
pub struct Ringed<T>(pub T);

impl<T> Snapshot for Ringed<T> {
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }

    fn restore(&mut self, _: &[u8]) -> Result<(), RestoreError> {
        Ok(())
    }
}

impl<T: Traffic> RingFace for Ringed<T> {
    fn features(&self) -> u128 {
        0
    }

    fn take_features(&mut self, _: u128) -> bool {
        true
    }

    fn rings(&self) -> u16 {
        T::RINGS
    }

    fn place(&mut self, _: u16, _: RingPlace) -> bool {
        true
    }

    fn start(&mut self, _: u16, _: u32, _: &mut Context<'_>) -> bool {
        true
    }

    fn stop(&mut self, _: u16, _: &mut Context<'_>) -> u32 {
        0
    }

    fn enable(&mut self, _: u16, _: bool, _: &mut Context<'_>) {}

    fn kick(&mut self, ring: u16, cx: &mut Context<'_>) {
        self.0.kick(ring, cx);
    }

    fn config(&self, _: u32, _: &mut [u8]) -> bool {
        false
    }
}

impl<T: Traffic> Adapter for Ringed<T> {
    fn face(&mut self) -> Face<'_> {
        Face::Rings(self)
    }

    fn fetch(&mut self, queue: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        self.0.fetch(queue, budget, batch, cx)
    }

    fn complete(&mut self, _: &Batch, _: &mut Context<'_>) {}

    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        self.0.deliver(frames, cx)
    }

    fn notice(&mut self, _: Event, _: &mut Context<'_>) {}

    fn tick(&mut self, _: &mut Context<'_>) {}

    fn reset(&mut self, _: Reset, _: &mut Context<'_>) {}

    fn transmit_queues(&self) -> u16 {
        T::RINGS
    }

    fn is_driven(&self) -> bool {
        true
    }

    fn features(&self) -> Vec<&'static str> {
        Vec::new()
    }
}
