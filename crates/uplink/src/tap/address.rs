//! The host's hardware address as guests know it. A tap that is made again has a new random one. Guests send to the old one until
//! their ARP entry expires (Linux: half a minute and more), unless the administrator sets it again.

use std::os::fd::AsFd;

use nicety_frame::Mac;

use super::attached::any_socket;
use crate::system;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Address {
    /// Address when the tap was attached, or last came up.
    last: Option<Mac>,
    /// Address of a deleted tap, until the next tap is up.
    lost: Option<Mac>,
}

impl Address {
    /// Reads the address, while the tap exists.
    pub(super) fn read(&mut self, name: &str) {
        self.last = of(name).or(self.last);
    }

    /// Keeps the address of a tap that was deleted.
    pub(super) fn lose(&mut self) {
        // Guests have never seen the address of a tap that did not come up.
        self.lost = self.before();
    }

    /// Address of the deleted tap.
    pub(super) fn before(&self) -> Option<Mac> {
        self.lost.or(self.last)
    }

    /// Address that the next tap should get, unless it has it already.
    pub(super) fn wanted(&self, name: &str) -> Option<Mac> {
        self.lost.filter(|&lost| of(name) != Some(lost))
    }

    /// Forgets the old address: the next tap is up, and guests will learn its address.
    pub(super) fn settle(&mut self) {
        self.lost = None;
    }
}

fn of(name: &str) -> Option<Mac> {
    let name = name.to_owned();
    // A worker may make no socket.
    nicety_sandbox::aside(move || system::hardware_address(any_socket().ok()?.as_fd(), &name).ok().flatten().map(Mac))?
}
