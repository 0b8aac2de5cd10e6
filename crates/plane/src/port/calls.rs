//! Calls of a port's adapter or uplink by its owner: registers, configuration space, rings.

use std::sync::Arc;

use nicety_adapter::trace::{Access, Region};
use nicety_adapter::{Adapter, Context, Face, PciFace, RingFace, RingPlace, Time, Uplink};
use nicety_memory::Map;
use nicety_pci::PowerState;

use super::end::either;
use super::inner::{CHANGE_COST, MESSAGE_COST};
use super::{Inner, Port};
use crate::lock::Held;

impl Port {
    /// Calls the adapter, then carries out its requests. `None` if this is an uplink, or has failed.
    pub fn with<R>(&self, now: Time, act: impl FnOnce(&mut dyn Adapter, &mut Context<'_>) -> R) -> Option<R> {
        let mut inner = self.lock();
        let result = inner.call(now, act);
        inner.settle(self.shell.as_ref());
        result
    }

    /// Calls the uplink, then asks for a turn, which offers waiting frames again. `None` if this is no uplink, or has failed.
    pub fn with_uplink<R>(&self, act: impl FnOnce(&mut dyn Uplink) -> R) -> Option<R> {
        let mut inner = self.lock();
        either!(&mut inner.end, end => end.uplink())?;
        let result = inner.ask(|end, _| either!(end, end => end.uplink()).map(act));
        inner.room.insert(0);
        inner.pending.insert(0);
        inner.settle(self.shell.as_ref());
        self.shell.schedule();
        result
    }

    /// Calls the adapter's PCI face. `None` if it has none.
    pub fn with_pci<R>(&self, now: Time, act: impl FnOnce(&mut dyn PciFace, &mut Context<'_>) -> R) -> Option<R> {
        let act = |adapter: &mut dyn Adapter, cx: &mut Context<'_>| match adapter.face() {
            Face::Pci(pci) => Some(act(pci, cx)),
            Face::Rings(_) => None,
        };
        self.with(now, act).flatten()
    }

    /// Calls the adapter's rings. `None` if it has none.
    pub fn with_rings<R>(&self, now: Time, act: impl FnOnce(&mut dyn RingFace, &mut Context<'_>) -> R) -> Option<R> {
        let act = |adapter: &mut dyn Adapter, cx: &mut Context<'_>| match adapter.face() {
            Face::Rings(rings) => Some(act(rings, cx)),
            Face::Pci(_) => None,
        };
        self.with(now, act).flatten()
    }

    /// Takes, of the features that a driver wants, those that the adapter's rings offer. `None` if it has no rings or refuses.
    pub fn negotiate_rings(&self, wanted: u64, now: Time) -> Option<u64> {
        let taken = self.with_rings(now, |rings, _| {
            let both = rings.features() & u128::from(wanted);
            rings.take_features(both).then_some(both as u64)
        });
        taken.flatten()
    }

    /// Starts and enables a ring at this place. False if the adapter has no such ring or refuses.
    pub fn start_ring(&self, ring: u16, place: RingPlace, now: Time) -> bool {
        let started = self.with_rings(now, |rings, cx| {
            let started = rings.place(ring, place) && rings.start(ring, 0, cx);
            rings.enable(ring, started, cx);
            started
        });
        started == Some(true)
    }

    /// Locks the port while none of its batches is in flight. For control threads only: the owner would wait for itself.
    pub(super) fn quiet(&self) -> Held<'_, Inner> {
        let mut inner = self.lock();
        inner.waiting += 1;
        while inner.in_flight {
            inner = self.inner.wait(inner);
        }
        inner.waiting -= 1;
        inner
    }

    /// Like [`Port::with_rings`], from a thread other than the owner's: waits until no batch is in flight.
    pub fn with_quiet_rings<R>(
        &self,
        now: Time,
        act: impl FnOnce(&mut dyn RingFace, &mut Context<'_>) -> R,
    ) -> Option<R> {
        let mut inner = self.quiet();
        let result = inner.call(now, |adapter, cx| match adapter.face() {
            Face::Rings(rings) => Some(act(rings, cx)),
            Face::Pci(_) => None,
        });
        inner.owe(MESSAGE_COST);
        inner.settle(self.shell.as_ref());
        // Schedule the fetch that the wait prevented.
        self.shell.schedule();
        result.flatten()
    }

    /// Like [`Port::set_memory`], from a thread other than the owner's. On return nobody holds the old map.
    pub fn set_quiet_memory(&self, memory: Arc<Map>, now: Time) {
        let mut inner = self.quiet();
        let old = inner.replace_memory(memory, now);
        inner.owe(CHANGE_COST);
        inner.settle(self.shell.as_ref());
        self.shell.schedule();
        // Unmapping may wait for the VMM: do it without the lock, so that senders to this port do not wait too.
        drop(inner);
        drop(old);
    }

    /// A register read by the guest. All ones if there is no register, or the adapter is not in D0.
    pub fn read(&self, bar: u8, offset: u64, data: &mut [u8], now: Time) {
        data.fill(0xff);
        let read = self.with_pci(now, |pci, cx| {
            cx.counters.reads += 1;
            if is_awake(pci, false, bar, offset, data, cx) {
                pci.read(bar, offset, data, cx);
            }
        });
        if read.is_none() {
            // The adapter panicked halfway.
            data.fill(0xff);
        }
    }

    /// A register write by the guest. Returns its cost beyond the access, in descriptors read: the caller charges it to the guest,
    /// like the guest's messages.
    pub fn write(&self, bar: u8, offset: u64, data: &[u8], now: Time) -> u32 {
        let written = self.with_pci(now, |pci, cx| {
            cx.counters.writes += 1;
            if is_awake(pci, true, bar, offset, data, cx) {
                pci.write(bar, offset, data, cx);
            }
            std::mem::take(&mut cx.out.excess)
        });
        written.unwrap_or(0)
    }

    /// A register write that the guest made through a mapped page. False if the adapter is not in D0.
    pub(crate) fn store(&self, bar: u8, offset: u64, data: &[u8], now: Time) -> bool {
        let stored = self.with_pci(now, |pci, cx| {
            let awake = is_awake(pci, true, bar, offset, data, cx);
            if awake {
                pci.write(bar, offset, data, cx);
            }
            awake
        });
        stored == Some(true)
    }

    /// A configuration read by the guest.
    pub fn config_read(&self, offset: u64, data: &mut [u8], now: Time) {
        data.fill(0xff);
        self.with_pci(now, |pci, _| pci.function().config_read(offset, data));
    }

    /// A configuration write by the guest.
    pub fn config_write(&self, offset: u16, data: &[u8], now: Time) {
        self.with_pci(now, |pci, cx| pci.config_write(offset, data, cx));
    }
}

/// The expectation of an access.
const AWAKE: &str = "the function in D0 (PCI PM 1.2, 5.4.1)";

/// Whether registers answer: only in D0 (PCI PM 1.2, section 5.4.1). An access in another state is counted.
fn is_awake(pci: &dyn PciFace, write: bool, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) -> bool {
    let awake = pci.function().power_state() == PowerState::D0;
    if !awake {
        cx.bad_access(1, Access::of(write, Region::Bar(bar), offset, data), AWAKE);
    }
    awake
}
