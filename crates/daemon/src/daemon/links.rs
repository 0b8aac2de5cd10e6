//! The settings of uplinks that are not the switch's, for reports.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

use nicety_host::{Host, link_words};

use super::{Daemon, PortView};

/// Of each uplink the keys that differ from their defaults, and their values.
pub(super) type LinkWords = BTreeMap<String, BTreeMap<String, String>>;

impl Daemon {
    /// From now on reports show a host file's settings of its uplinks.
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
