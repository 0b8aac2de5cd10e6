//! The state of a vhost-user port that goes with its guest when a VMM moves or copies it to another host. The VMM carries it, so it may be
//! anything: it gives the port no address and no count that its guest could not have got by itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use nicety_adapter::snapshot::{Nothing, RestoreError, Version, decode, encode};
use nicety_adapter::{SavedCounters, Time};
use nicety_frame::Mac;
use nicety_plane::{GateMode, Group, Plane, SavedNumbers};
use nicety_vhost_user::STATE_BYTES_MAX;
use serde::{Deserialize, Serialize};

use crate::run::protected::{self, ClosedEpoch, Pairing, Protected};

/// The name in the envelope.
const KIND: &str = "nicety-port";
/// Most addresses that go along: each takes at most 19 bytes.
const ADDRESSES_MAX: usize = 1024;

/// A port's state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct DeviceState {
    /// The port's name there.
    name: String,
    /// Its port group there.
    group: Option<String>,
    /// The counters of each of its parts.
    counters: Vec<SavedCounters>,
    /// Learned addresses: the network's identifier, the address, and for how many nanoseconds it had been silent.
    addresses: Vec<(u16, [u8; 6], u64)>,
    /// The epoch that this state closes, if its VM is protected.
    epoch: Option<ClosedEpoch>,
}

impl Version for DeviceState {
    const NUMBER: u16 = 2;
    type Before = DeviceState1;

    fn from_before(before: DeviceState1) -> Result<Self, RestoreError> {
        let DeviceState1 { name, group, counters, addresses, epoch } = before;
        let closed = |ClosedEpoch1 { pairing, epoch, ran }| ClosedEpoch { pairing, epoch, ran, gate: None };
        Ok(Self { name, group, counters, addresses, epoch: epoch.map(closed) })
    }
}

/// Version 1: the gate's position did not go along.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct DeviceState1 {
    name: String,
    group: Option<String>,
    counters: Vec<SavedCounters>,
    addresses: Vec<(u16, [u8; 6], u64)>,
    epoch: Option<ClosedEpoch1>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ClosedEpoch1 {
    pairing: Pairing,
    epoch: u64,
    ran: bool,
}

impl Version for DeviceState1 {
    const NUMBER: u16 = 1;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

/// A port whose state goes with its guest.
pub struct Moving {
    plane: Arc<Plane>,
    name: String,
    group: Option<String>,
    /// Whether the log has said of this front end's guest where it comes from: a VMM that copies it again and again passes many states.
    is_told: AtomicBool,
    protected: Mutex<Protection>,
}

/// A port's state while its VM is protected.
#[derive(Default)]
struct Protection {
    port: Option<Arc<Protected>>,
    /// The addresses of the VM that runs elsewhere, as they were last said: the twin's, when it takes over.
    addresses: Vec<(u16, Mac)>,
}

impl std::fmt::Debug for Moving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Moving").field("name", &self.name).field("group", &self.group).finish_non_exhaustive()
    }
}

impl Moving {
    /// A port with this name, in this port group.
    pub fn new(plane: Arc<Plane>, name: &str, group: Option<String>) -> Self {
        Self { plane, name: name.to_owned(), group, is_told: AtomicBool::new(false), protected: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Protection> {
        self.protected.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The port's part of its VM's protection.
    pub fn protected(&self) -> Option<Arc<Protected>> {
        self.lock().port.clone()
    }

    /// Its VM is protected from now on, or is not.
    pub fn protect(&self, protected: Option<Arc<Protected>>) {
        *self.lock() = Protection { port: protected, addresses: Vec::new() };
    }

    /// The port's VM, a twin, takes over: its addresses are here from now on, and the network is told.
    pub fn own(&self, parts: &Group, now: Time) {
        let Protection { port, addresses } = &mut *self.lock();
        let (Some(protected), Some(lead)) = (port, parts.lead()) else { return };
        protected.own();
        protected.epochs().set_mode(GateMode::Open);
        let switch = self.plane.switch();
        addresses.retain(|(fid, address)| switch.teach(lead.id(), *address, *fid, now));
        switch.arrived(lead.id());
        self.plane.announce_port(lead, &std::mem::take(addresses));
        protected::release(parts);
    }

    /// Another front end comes.
    pub fn forget(&self) {
        self.is_told.store(false, Ordering::Relaxed);
    }

    /// The state of the port with these parts.
    pub fn save(&self, parts: &Group, ran: bool, now: Time) -> Vec<u8> {
        let epoch = self.protected().and_then(|protected| protected.close(ran));
        let own = |learned: &nicety_switch::Learned| parts.ports().any(|part| part.id() == learned.port);
        let learned = self.plane.switch().addresses().iter(now).filter(own).take(ADDRESSES_MAX);
        let silent = |learned: &nicety_switch::Learned| u64::try_from(learned.silent.as_nanos()).unwrap_or(u64::MAX);
        let state = DeviceState {
            name: self.name.clone(),
            group: self.group.clone(),
            counters: parts.ports().map(|part| part.numbers().counters).collect(),
            addresses: learned.map(|learned| (learned.fid, learned.address.0, silent(&learned))).collect(),
            epoch,
        };
        let bytes = encode(KIND, DeviceState::NUMBER, &state);
        if bytes.len() <= STATE_BYTES_MAX {
            return bytes;
        }
        // Only many parts with many queues take so much.
        encode(KIND, DeviceState::NUMBER, &DeviceState { counters: Vec::new(), ..state })
    }

    /// Takes over the state of another host's port: a sentence about it, if none was said of this guest. The error is the end of one.
    pub fn load(&self, state: &[u8], parts: &Group, now: Time) -> Result<Option<String>, String> {
        if state.is_empty() {
            return Err("it is empty: that port had failed, or was no port of Nicety's".to_owned());
        }
        let state: DeviceState = decode(KIND, state).map_err(|error| error.to_string())?;
        let DeviceState { name, group, counters, addresses, epoch } = state;
        if !counters.iter().all(SavedCounters::are_plausible) {
            return Err("it has impossible counts".to_owned());
        }
        let lead = parts.lead().ok_or("the port is being closed")?;
        if let (Some(protected), Some(epoch)) = (self.protected(), epoch) {
            protected.check(epoch)?;
        }
        for (part, counters) in parts.ports().zip(counters) {
            part.count_on(&SavedNumbers { counters, ..SavedNumbers::default() });
        }
        if let Some(protected) = self.protected().filter(|protected| protected.is_twin()) {
            self.lock().addresses =
                addresses.into_iter().take(ADDRESSES_MAX).map(|(fid, address, _)| (fid, Mac(address))).collect();
            epoch.into_iter().for_each(|epoch| protected.loaded(epoch));
            return Ok(None);
        }
        let (switch, all) = (self.plane.switch(), addresses.len().min(ADDRESSES_MAX));
        let teach = |(fid, address, silent): (u16, [u8; 6], u64)| {
            switch.teach(lead.id(), Mac(address), fid, Time(now.0.saturating_sub(silent)))
        };
        let taught = addresses.into_iter().take(ADDRESSES_MAX).filter(|address| teach(*address)).count();
        // What its guest had joined there is not asked for again before the next query.
        switch.arrived(lead.id());
        let mut what =
            format!("its VM comes from port {name:?} of another host, with {taught} of {all} learned addresses");
        if group != self.group {
            let named = |group: &Option<String>| {
                group.as_ref().map_or("no port group".to_owned(), |name| format!("port group {name:?}"))
            };
            what += &format!("; there it was in {}, here it is in {}", named(&group), named(&self.group));
        }
        Ok(Some(what).filter(|_| !self.is_told.swap(true, Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use nicety_plane::{GatePosition, Waiting};

    use super::*;

    /// A daemon of another version reads it on another host. Only `NICETY_GOLDEN=write` makes the file of a new version.
    #[test]
    fn a_state_of_each_version_is_read_and_this_version_is_written_as_it_was() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let of = |version: u16| folder.join(format!("device-v{version}.state"));
        let counters = SavedCounters {
            transmit: vec![(1, 2, 3)],
            receive: vec![(4, 5, 6), (7, 8, 9)],
            transmit_drops: vec![("vlan".to_owned(), 10)],
            receive_drops: vec![("buffer-full".to_owned(), 11)],
            transmit_throttled_ns: 12,
            receive_throttled_ns: 13,
            reads: 14,
            writes: 15,
            interrupts: 16,
            bad_accesses: 17,
            guest_errors: 18,
        };
        let count = |packets, bytes| Waiting { packets, bytes };
        let gate = GatePosition { taken: count(26, 27), left: count(24, 25) };
        let state = DeviceState {
            name: "vm1".to_owned(),
            group: Some("web".to_owned()),
            counters: vec![counters],
            addresses: vec![(19, [2, 0, 0, 0, 0, 20], 21)],
            epoch: Some(ClosedEpoch { pairing: Pairing(22), epoch: 23, ran: true, gate: Some(gate) }),
        };
        let bytes = encode(KIND, DeviceState::NUMBER, &state);
        if !of(DeviceState::NUMBER).exists() && std::env::var_os("NICETY_GOLDEN").is_some_and(|what| what == "write") {
            std::fs::write(of(DeviceState::NUMBER), &bytes).unwrap();
        }
        for version in 1..=DeviceState::NUMBER {
            let golden = std::fs::read(of(version)).unwrap();
            let mut wanted = state.clone();
            if version == 1 {
                wanted.epoch.iter_mut().for_each(|closed| closed.gate = None);
            }
            assert_eq!(decode(KIND, &golden), Ok(wanted), "version {version}");
        }
        assert_eq!(std::fs::read(of(DeviceState::NUMBER)).unwrap(), bytes);
    }
}
