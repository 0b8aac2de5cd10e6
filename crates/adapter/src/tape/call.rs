//! A call of an adapter as data.

use nicety_memory::{Map, MapError, Place, Rights};

use crate::adapter::{Event, Reset};
use crate::batch::{Batch, Offload, PortId};
use crate::face::RingPlace;
use crate::frames::{Frames, Pick};
use crate::outbox::Set;
use crate::progress::Budget;
use crate::time::Time;

/// One input of an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// The guest reads a register.
    Read {
        /// The BAR.
        bar: u8,
        /// Offset in it, in bytes.
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// The guest writes a register.
    Write {
        /// The BAR.
        bar: u8,
        /// Offset in it, in bytes.
        offset: u64,
        /// The bytes.
        data: Vec<u8>,
    },
    /// The guest writes to configuration space.
    ConfigWrite {
        /// Offset in bytes.
        offset: u16,
        /// The bytes.
        data: Vec<u8>,
    },
    /// The driver of rings takes these features.
    Features(u128),
    /// A ring is placed.
    Place {
        /// The ring.
        ring: u16,
        /// Its place.
        place: RingPlace,
    },
    /// A ring starts at this position.
    Start {
        /// The ring.
        ring: u16,
        /// The position.
        base: u32,
    },
    /// A ring stops.
    Stop(u16),
    /// A ring is enabled or disabled.
    Enable {
        /// The ring.
        ring: u16,
        /// Enabled.
        on: bool,
    },
    /// Positions of rings are kept in a file of this many bytes from now on. `None`: in no file.
    Keep(Option<u64>),
    /// The driver rings a ring's doorbell.
    Kick(u16),
    /// The port fetches.
    Fetch {
        /// The transmit queue.
        queue: u16,
        /// The limits.
        budget: Budget,
    },
    /// The last batch is done.
    Complete,
    /// Frames are offered.
    Deliver(Offer),
    /// Guest memory: its regions from now on. [`Event::Memory`] follows if the map was replaced.
    Memory(Vec<Place>),
    /// Something happened.
    Notice(Event),
    /// A time that it asked for has come.
    Tick,
    /// It is reset.
    Reset(Reset),
    /// It is restored from this state.
    Restore(Vec<u8>),
    /// The adapter is asked for its next [ask](crate::Adapter::ask).
    Ask,
}

/// Frames that are offered, with all their bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Receive queues with older frames waiting.
    pub held: Set,
    /// The packets.
    pub packets: Vec<Offered>,
    /// The frames of them; [`Pick::packet`] is an index in `packets`.
    pub picks: Vec<Pick>,
}

/// A packet of an [`Offer`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offered {
    /// Bytes of its private head.
    pub head: u16,
    /// The offloads still to do.
    pub offload: Offload,
    /// All its bytes.
    pub bytes: Vec<u8>,
}

/// One call of a tape, with its other inputs, and a sum of what followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The time, by the adapter's clock.
    pub at: Time,
    /// The call.
    pub call: Call,
    /// The bytes of guest memory that the call read, in order.
    pub read: Vec<u8>,
    /// A digest of the call's answer, its requests, and the frames and memory that it wrote.
    pub sum: u64,
    /// A digest of the adapter's state after the call. Only some entries have it.
    pub state: Option<u64>,
}

impl Entry {
    /// Bytes in memory, roughly.
    pub fn cost(&self) -> usize {
        let data = match &self.call {
            Call::Write { data, .. } | Call::ConfigWrite { data, .. } | Call::Restore(data) => data.len(),
            Call::Deliver(offer) => offer.packets.iter().map(|packet| size_of::<Offered>() + packet.bytes.len()).sum(),
            Call::Memory(places) => size_of_val(places.as_slice()),
            _ => 0,
        };
        size_of::<Self>() + data + self.read.len()
    }
}

impl Offer {
    /// A copy of frames.
    pub fn of(frames: &Frames<'_>) -> Self {
        let mut this = Self { held: frames.held, ..Self::default() };
        let mut known: Vec<u16> = Vec::new();
        for (_, pick, packet) in frames.iter() {
            let index = known.iter().position(|index| *index == pick.packet).unwrap_or_else(|| {
                let mut bytes = vec![0; packet.len() as usize];
                frames.batch.copy(packet, &mut bytes);
                this.packets.push(Offered { head: packet.head_len(), offload: packet.offload, bytes });
                known.push(pick.packet);
                known.len() - 1
            });
            this.picks.push(Pick { packet: index as u16, ..pick });
        }
        this
    }

    /// Makes a batch of the packets.
    pub(super) fn fill(&self, batch: &mut Batch) -> Result<(), MapError> {
        let bytes: usize = self.packets.iter().map(|packet| packet.bytes.len()).sum();
        let map = std::sync::Arc::new(Map::private(bytes.max(1))?);
        batch.start(&map, PortId::default(), 0);
        let mut at = 0;
        for Offered { head, offload, bytes } in &self.packets {
            let len = bytes.len() as u32;
            // It is our own memory, and the packets come from a batch.
            if map.write(at, bytes).is_ok()
                && let Some(span) = map.whole(at, len, Rights::BOTH)
                && let Some(mut draft) = batch.draft((*head).into())
                && draft.push_span(span).is_ok()
            {
                draft.finish_copy(*offload);
            }
            at += u64::from(len);
        }
        Ok(())
    }
}
