//! The two ends that a port may have.

use nicety_adapter::{Adapter, Uplink};

use super::guest::Guest;
use super::link::Link;

/// Asks the end that there is: `$side` is a [`Guest`] or a [`Link`], each a [`Side`](super::side::Side).
macro_rules! either {
    ($end:expr, $side:ident => $answer:expr) => {
        match $end {
            $crate::port::End::Guest($side) => {
                use $crate::port::side::Side as _;
                $answer
            }
            $crate::port::End::Link($side) => {
                use $crate::port::side::Side as _;
                $answer
            }
        }
    };
}
pub(super) use either;

/// The end of a port.
#[expect(clippy::large_enum_variant, reason = "each frame passes its end: a box would cost a load more")]
pub enum End {
    /// A guest's adapter.
    Guest(Guest),
    /// A link to the outside.
    Link(Link),
}

impl End {
    /// A guest's adapter.
    pub fn guest(adapter: Box<dyn Adapter>) -> Self {
        Self::Guest(Guest::new(adapter))
    }

    /// A link to the outside.
    pub fn link(uplink: Box<dyn Uplink>) -> Self {
        Self::Link(Link::new(uplink))
    }
}

impl std::fmt::Debug for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(either!(self, end => end.name()))
    }
}
