//! The settings of uplinks that are not the switch's, for reports.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

use nicety_host::{Host, link_words};

use super::{Daemon, PortView};

/// The keys of each uplink that differ from their defaults, and their values.
pub(super) type LinkWords = BTreeMap<String, BTreeMap<String, String>>;

impl Daemon {
    /// Sets the host file whose settings of uplinks reports show.
    pub(super) fn show_links(&self, host: &Host) {
        let words = host.uplinks.iter().map(|uplink| (uplink.name.clone(), link_words(uplink)));
        *self.link_words() = words.collect();
    }

    fn link_words(&self) -> MutexGuard<'_, LinkWords> {
        self.link_words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note_links(&self, views: &mut [PortView]) {
        let words = self.link_words();
        for view in views.iter_mut().filter(|view| view.spec.is_none()) {
            view.link = words.get(&view.name).cloned().unwrap_or_default();
        }
    }
}
