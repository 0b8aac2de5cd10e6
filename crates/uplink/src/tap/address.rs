//! The hardware address that guests know the host by. A tap that is made again has a new one, drawn at random, and guests go on sending
//! to the old one until their ARP entry has aged (Linux: half a minute and more), unless the administrator gives it back.

use std::os::fd::AsFd;

use nicety_frame::Mac;

use super::attached::any_socket;
use crate::system;

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Address {
    /// When the tap was attached, or last came up.
    last: Option<Mac>,
    /// That of a tap which was deleted, until the next one has come up.
    lost: Option<Mac>,
}

impl Address {
    /// Reads it, while the tap is there.
    pub(super) fn read(&mut self, name: &str) {
        self.last = of(name).or(self.last);
    }

    /// The tap was deleted.
    pub(super) fn lose(&mut self) {
        // No guest has seen the address of a tap that never came up.
        self.lost = self.before();
    }

    /// What a tap that was deleted had.
    pub(super) fn before(&self) -> Option<Mac> {
        self.lost.or(self.last)
    }

    /// What the next one is to be given, unless it has it.
    pub(super) fn wanted(&self, name: &str) -> Option<Mac> {
        self.lost.filter(|&lost| of(name) != Some(lost))
    }

    /// The next one has come up: guests will learn what it has.
    pub(super) fn settle(&mut self) {
        self.lost = None;
    }
}

fn of(name: &str) -> Option<Mac> {
    system::hardware_address(any_socket().ok()?.as_fd(), name).ok().flatten().map(Mac)
}
