//! The interface to a vhost-user front end: features, rings, configuration space.

use std::sync::Arc;

use nicety_adapter::interrupts::{CompletionDelay, ReceiveModeration};
use nicety_adapter::{Context, RingFace, RingPlace};
use nicety_memory::Map;

use super::kept::Kept;
use super::registers::{Config, STATUS_AT, feature};
use super::ring::Ring;
use super::{Role, VirtioNet};

/// Frames wait for this long for a ring that its front end has stopped: QEMU stops the rings of a VM for some milliseconds at each
/// checkpoint, and for the last step of a migration.
const PAUSE_NS: u64 = 1_000_000_000;

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

    /// If a split ring's used index in memory differs from `base`, the index counts: a front end that lost its back end takes
    /// `base` from there, and entries taken but not completed are taken again.
    fn start(&mut self, number: u16, base: u32, cx: &mut Context<'_>) -> bool {
        let (features, packed) = (self.taken, self.is_packed());
        let Some(ring) = self.rings.get_mut(usize::from(number)) else { return false };
        if ring.started || !ring.possible(features) {
            return false;
        }
        let kept = self.kept.as_deref().and_then(|map| Kept::of(map, number));
        let was_kept = kept.as_ref().is_some_and(|kept| kept.read().is_some());
        let Some(at) = ring.begins(cx.memory, features, base, kept) else { return false };
        let settled = !was_kept && at == if packed { 0x8000 } else { 0 };
        // The ring starts as quiet, so the first arming clears the flag whatever its value; and as not flagged, so disarming sets it.
        let quiet = Ring { quiet: true, flagged: false, ..*ring };
        let fresh = Ring { started: true, broken: None, next: at, used: at, unsignalled: 0, ..quiet };
        *ring = Ring {
            starved: false,
            settled,
            unfit: None,
            moderation: ReceiveModeration::default(),
            delay: CompletionDelay::default(),
            held: 0,
            late: None,
            discards: false,
            ..fresh
        };
        if !settled {
            // A server that was killed may have completed chains and not notified the driver of them, who may wait for nothing else.
            ring.call(number, cx);
        }
        self.wake(number, cx);
        true
    }

    fn stop(&mut self, number: u16, cx: &mut Context<'_>) -> u32 {
        self.end_pause(cx);
        self.halt(number, cx)
    }

    fn pause(&mut self, number: u16, cx: &mut Context<'_>) -> u32 {
        // One that does not run was stopped in an earlier process.
        let served =
            self.rings.get(usize::from(number)).is_some_and(|ring| ring.live() || !ring.started && ring.enabled);
        if matches!(self.role(number), Role::Receive(_)) && served {
            let end = cx.now.after_ns(PAUSE_NS);
            self.paused_until = Some(end);
            cx.out.wake_by(end);
        }
        self.halt(number, cx)
    }

    fn keep(&mut self, file: Option<Arc<Map>>) {
        self.kept = file;
    }

    fn enable(&mut self, number: u16, on: bool, cx: &mut Context<'_>) {
        let Some(ring) = self.rings.get_mut(usize::from(number)) else { return };
        if std::mem::replace(&mut ring.enabled, on) != on {
            ring.discards = false;
            self.wake(number, cx);
            if let (Role::Transmit(queue), false) = (self.role(number), on) {
                self.quit(number, queue, cx);
            }
        }
    }

    /// A disabled ring is processed only when its driver kicks it (vhost-user.rst, "Ring states"): User-Mode Linux disables a ring
    /// that it leaves, without a stop, and then reuses its memory.
    fn kick(&mut self, number: u16, cx: &mut Context<'_>) {
        if let Some(ring) = self.rings.get_mut(usize::from(number)) {
            ring.tally.by_driver += 1;
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
            // Served once in the port's turn, whatever the number of kicks.
            Role::Control => cx.out.wake_by(cx.now),
            Role::Nothing => {}
        }
    }

    fn share(&mut self) {
        self.offer &= !feature::BY_CONTROL;
        self.is_part = true;
    }

    fn receives(&self) -> bool {
        (0..self.config.pairs).any(|queue| self.is_live(queue))
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
    /// Stops a ring; returns its position.
    fn halt(&mut self, number: u16, cx: &mut Context<'_>) -> u32 {
        self.notify(number, cx);
        let packed = self.is_packed();
        let Some(ring) = self.rings.get_mut(usize::from(number)) else { return 0 };
        ring.generation = ring.generation.wrapping_add(1);
        (ring.started, ring.starved) = (false, false);
        // Chains taken but not completed are taken again.
        if packed { u32::from(ring.used) << 16 | u32::from(ring.used) } else { ring.used.into() }
    }

    /// A transmit ring was disabled. While it was polled, its driver was told not to notify. From now on the driver is asked to. Chains that
    /// it has added without a notification are discarded, as after its kick. The driver is asked at once, while the front end waits: the
    /// ring's memory may be reused afterwards.
    #[cold]
    #[inline(never)]
    fn quit(&mut self, number: u16, queue: u16, cx: &mut Context<'_>) {
        let features = self.taken;
        let is_packed = self.is_packed();
        let Some(ring) = self.rings.get_mut(usize::from(number)) else { return };
        if !cx.polls || !ring.started || ring.broken.is_some() {
            return;
        }
        let armed = match is_packed {
            true => ring.translate::<true>(cx.memory, features).map(|areas| areas.arm_around(ring, ring.next, || ())),
            false => ring.translate::<false>(cx.memory, features).map(|areas| areas.arm_around(ring, ring.next, || ())),
        };
        if armed.is_ok_and(|has_chains| has_chains) {
            ring.discards = true;
            cx.out.work.insert(queue);
        }
    }

    /// Frames do not wait for stopped rings any more: those that wait are offered once more, and dropped.
    pub(super) fn end_pause(&mut self, cx: &mut Context<'_>) {
        if self.paused_until.take().is_some() {
            (0..self.config.pairs).for_each(|queue| cx.out.room.insert(queue));
        }
    }

    /// Whether frames for a stopped ring wait.
    pub(super) fn is_paused(&self, cx: &Context<'_>) -> bool {
        self.paused_until.is_some_and(|at| at > cx.now)
    }

    /// A ring starts to be served: available chains are processed without a kick.
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
