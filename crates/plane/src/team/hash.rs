//! The value by which a team with several active members chooses one for each frame.

use nicety_adapter::{Batch, Packet};

/// The parts of a frame that choose its member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hash {
    /// Nothing: the team uses one member at a time.
    #[default]
    Single,
    /// The port from which the frame comes.
    Origin,
    /// Its source address.
    Source,
}

impl Hash {
    /// The value of a frame.
    #[inline]
    pub fn of(self, batch: &Batch, packet: &Packet) -> u32 {
        match self {
            Self::Single => 0,
            Self::Origin => batch.origin.0.into(),
            Self::Source => {
                let source = batch.head(packet).get(6..12).and_then(|source| source.first_chunk::<6>().copied());
                let [a, b, c, d, e, f] = source.unwrap_or_default();
                u32::from_be_bytes([c, d, e, f]) ^ u32::from(u16::from_be_bytes([a, b]))
            }
        }
    }
}
