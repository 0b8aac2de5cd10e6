//! What of a vhost-user port goes with its guest when a VMM moves it to another host, or copies it to one. The VMM carries it, so it may be
//! anything: it gives the port no address and no count that its guest could not have got by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nicety_adapter::snapshot::{Nothing, RestoreError, Version, decode, encode};
use nicety_adapter::{SavedCounters, Time};
use nicety_frame::Mac;
use nicety_plane::{Group, Plane, SavedNumbers};
use nicety_vhost_user::STATE_BYTES_MAX;
use serde::{Deserialize, Serialize};

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
}

impl Version for DeviceState {
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
}

impl std::fmt::Debug for Moving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Moving").field("name", &self.name).field("group", &self.group).finish_non_exhaustive()
    }
}

impl Moving {
    /// A port with this name, in this port group.
    pub fn new(plane: Arc<Plane>, name: &str, group: Option<String>) -> Self {
        Self { plane, name: name.to_owned(), group, is_told: AtomicBool::new(false) }
    }

    /// Another front end comes.
    pub fn forget(&self) {
        self.is_told.store(false, Ordering::Relaxed);
    }

    /// The state of the port with these parts.
    pub fn save(&self, parts: &Group, now: Time) -> Vec<u8> {
        let own = |learned: &nicety_switch::Learned| parts.ports().any(|part| part.id() == learned.port);
        let learned = self.plane.switch().addresses().iter(now).filter(own).take(ADDRESSES_MAX);
        let silent = |learned: &nicety_switch::Learned| u64::try_from(learned.silent.as_nanos()).unwrap_or(u64::MAX);
        let state = DeviceState {
            name: self.name.clone(),
            group: self.group.clone(),
            counters: parts.ports().map(|part| part.numbers().counters).collect(),
            addresses: learned.map(|learned| (learned.fid, learned.address.0, silent(&learned))).collect(),
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
        let DeviceState { name, group, counters, addresses } = state;
        if !counters.iter().all(SavedCounters::are_plausible) {
            return Err("it has impossible counts".to_owned());
        }
        let lead = parts.lead().ok_or("the port is being closed")?;
        for (part, counters) in parts.ports().zip(counters) {
            part.count_on(&SavedNumbers { counters, ..SavedNumbers::default() });
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
