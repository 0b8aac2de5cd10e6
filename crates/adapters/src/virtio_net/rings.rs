//! The face that a vhost-user front end sees: features, rings, configuration space.

use std::sync::Arc;

use nicety_adapter::interrupts::{CompletionDelay, ReceiveModeration};
use nicety_adapter::{Context, RingFace, RingPlace};
use nicety_memory::Map;

use super::kept::Kept;
use super::registers::{Config, STATUS_AT};
use super::ring::Ring;
use super::{Role, VirtioNet};

impl RingFace for VirtioNet {
    fn features(&self) -> u128 {
        self.offer
    }

    fn take_features(&mut self, features: u128) -> bool {
        if features & !self.offer != 0 {
            return false;
        }
        if self.rings.iter().any(|ring| ring.started) {
            return features == self.taken;
        }
        self.taken = features;
        self.forget_driver();
        true
    }

    fn rings(&self) -> u16 {
        self.rings.len() as u16
    }

    fn place(&mut self, ring: u16, place: RingPlace) -> bool {
        let Some(ring) = self.rings.get_mut(usize::from(ring)).filter(|ring| !ring.started) else { return false };
        let RingPlace { size, descriptors, driver, device } = place;
        let placed = Ring { size, descriptors, driver, device, ..*ring };
        let possible = placed.possible(self.taken);
        if possible {
            *ring = placed;
        }
        possible
    }

    /// A split ring's own index in memory counts, and not `base`, where they differ: a front end that lost its back
    /// end takes `base` from there, and entries that were taken but never given back are taken again.
    fn start(&mut self, number: u16, base: u32, cx: &mut Context<'_>) -> bool {
        let (features, packed) = (self.taken, self.is_packed());
        let Some(ring) = self.rings.get_mut(usize::from(number)) else { return false };
        if ring.started || !ring.possible(features) {
            return false;
        }
        let kept = self.kept.as_deref().and_then(|map| Kept::of(map, number));
        let Some(at) = ring.begins(cx.memory, features, base, kept) else { return false };
        // As if the driver had been told to be quiet: the first arming clears the flag, whatever it says.
        let fresh = Ring { started: true, broken: None, next: at, used: at, untold: 0, quiet: true, ..*ring };
        *ring = Ring {
            starved: false,
            settled: at == if packed { 0x8000 } else { 0 },
            unfit: None,
            moderation: ReceiveModeration::default(),
            delay: CompletionDelay::default(),
            held: 0,
            late: None,
            discards: false,
            ..fresh
        };
        self.wake(number, cx);
        true
    }

    fn stop(&mut self, number: u16, cx: &mut Context<'_>) -> u32 {
        self.tell(number, cx);
        let packed = self.is_packed();
        let Some(ring) = self.rings.get_mut(usize::from(number)) else { return 0 };
        ring.generation = ring.generation.wrapping_add(1);
        (ring.started, ring.starved) = (false, false);
        // What was taken and not given back is taken again.
        if packed { u32::from(ring.used) << 16 | u32::from(ring.used) } else { ring.used.into() }
    }

    fn keep(&mut self, file: Option<Arc<Map>>) {
        self.kept = file;
    }

    fn enable(&mut self, number: u16, on: bool, cx: &mut Context<'_>) {
        let Some(ring) = self.rings.get_mut(usize::from(number)) else { return };
        if std::mem::replace(&mut ring.enabled, on) != on {
            ring.discards = false;
            self.wake(number, cx);
        }
    }

    /// Of a disabled ring only what its driver rings for is processed (vhost-user.rst, "Ring states"): User-Mode Linux disables a ring that it
    /// leaves, without stopping it, and its memory is another's then.
    fn kick(&mut self, number: u16, cx: &mut Context<'_>) {
        if let Some(ring) = self.rings.get_mut(usize::from(number)) {
            ring.rung.by_driver += 1;
            ring.discards = !ring.enabled;
        }
        match self.role(number) {
            Role::Transmit(queue) => cx.out.work.insert(queue),
            Role::Receive(queue) => {
                let Some(ring) = self.rings.get_mut(usize::from(number)) else { return };
                if std::mem::take(&mut ring.starved) {
                    cx.out.room.insert(queue);
                }
            }
            // In the port's turn, once, however often it was rung.
            Role::Control => cx.out.wake_by(cx.now),
            Role::Nothing => {}
        }
    }

    fn config(&self, offset: u32, data: &mut [u8]) -> bool {
        let mut bytes = Config { mac: self.control.mac(), ..self.config }.bytes();
        bytes[STATUS_AT] |= u8::from(self.control.announce) << 1;
        let from = bytes.get(usize::try_from(offset).unwrap_or(usize::MAX)..);
        let Some(bytes) = from.and_then(|rest| rest.get(..data.len())) else { return false };
        data.copy_from_slice(bytes);
        true
    }
}

impl VirtioNet {
    /// A ring began to be served: what waits in it is looked at without a kick.
    pub(super) fn wake(&mut self, number: u16, cx: &mut Context<'_>) {
        if !self.rings.get(usize::from(number)).is_some_and(Ring::live) {
            return;
        }
        match self.role(number) {
            Role::Transmit(queue) => cx.out.work.insert(queue),
            Role::Receive(queue) => cx.out.room.insert(queue),
            Role::Control => cx.out.wake_by(cx.now),
            Role::Nothing => {}
        }
    }
}
