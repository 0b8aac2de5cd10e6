//! A shell for ports whose turns the test itself makes.

use nicety_adapter::{Set, Time};
use nicety_plane::Shell;

/// Does nothing.
pub struct Silent;

impl Shell for Silent {
    fn messages(&self, _: Set) {}
    fn line(&self, _: bool) {}
    fn schedule(&self) {}
    fn wake_at(&self, _: Time) {}
}
