//! `doorbells`: the path of a guest's doorbells to the daemon.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use nicety_adapter::{Face, Mappable};
use nicety_adapters::{Entry, Settings};
use nicety_frame::Mac;

/// The path of a guest's doorbells to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbells {
    /// Messages: an idle port costs nothing.
    Trapped,
    /// Words of a polled page: no messages, but some cost while idle.
    Mapped,
}

/// Their words.
pub(super) const DOORBELLS: [(&str, Doorbells); 2] = [("trapped", Doorbells::Trapped), ("mapped", Doorbells::Mapped)];

/// The part that a guest can map. Makes an adapter of each kind once, and remembers its answer: VMs may wait while a host file is read.
pub(super) fn mappable(entry: &Entry) -> Option<Mappable> {
    static KNOWN: Mutex<BTreeMap<&str, Option<Mappable>>> = Mutex::new(BTreeMap::new());
    let look = || {
        let mut adapter = (entry.create)(&Settings::new(Mac([0x52, 0x54, 0, 0, 0, 1]))).ok()?;
        match adapter.face() {
            Face::Pci(pci) => pci.mappable(),
            Face::Rings(_) => None,
        }
    };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    *known.entry(entry.about.name).or_insert_with(look)
}
