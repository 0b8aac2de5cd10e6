//! Saved state.

use nicety_adapter::interrupts::{CompletionDelay, Interrupts};
use nicety_adapter::snapshot::{Nothing, RestoreError, Snapshot, Version, decode, encode};
use nicety_pci::{Function, Saved as SavedFunction};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Chip, Mac};
use crate::intel::phy::{self, Phy};
use crate::intel::registers::Bank;
use crate::intel::transmit::{Contexts, Transmit};

/// State of one kind of chip. It is saved in three parts, between those that all chips have.
pub trait Own: std::fmt::Debug + Send + Sized {
    /// Its descriptors' contexts.
    type Contexts: Contexts;
    /// Saved before the rings: the PHY, memories.
    type Parts: Serialize + DeserializeOwned;
    /// Saved form of [`Mac::starved`].
    type Starved: Serialize + DeserializeOwned + From<Mask> + Into<Mask>;
    /// Saved behind the interrupts: more of them, and delays.
    type Delays: Serialize + DeserializeOwned;
    /// Saved behind the completions: the clock.
    type Clock: Serialize + DeserializeOwned;
    /// The version of the saved state.
    const VERSION: u16;

    /// The saved parts, the PHY's state among them. All other fields are configuration, or are rebuilt.
    fn save(&self, phy: phy::State) -> (Self::Parts, Self::Delays, Self::Clock);

    /// State and PHY with these saved parts. `phy`: the present PHY, for its model.
    ///
    /// # Errors
    /// A part is impossible.
    fn restored(
        &self,
        saved: (Self::Parts, Self::Delays, Self::Clock),
        phy: &Phy,
        registers: &Bank,
    ) -> Result<(Self, Phy), RestoreError>;

    /// Limits what was written to configuration space.
    fn bound(_function: &mut Function) {}
}

/// Receive queues, a bit for each.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Mask(u32);

impl From<Mask> for [bool; 2] {
    fn from(Mask(queues): Mask) -> Self {
        [queues & 1 != 0, queues & 2 != 0]
    }
}

impl From<[bool; 2]> for Mask {
    fn from([first, second]: [bool; 2]) -> Self {
        Self(u32::from(first) | u32::from(second) << 1)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
struct State<O: Own, const N: usize> {
    registers: Vec<u32>,
    parts: O::Parts,
    #[serde(with = "array")]
    transmit: [Transmit<O::Contexts>; N],
    starved: O::Starved,
    link_up: bool,
    interrupts: Interrupts,
    delays: O::Delays,
    #[serde(with = "array")]
    completions: [CompletionDelay; N],
    clock: O::Clock,
    function: Vec<u8>,
}

impl<O: Own, const N: usize> Version for State<O, N> {
    const NUMBER: u16 = O::VERSION;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

impl<O: Own, const N: usize> Snapshot for Mac<O, N>
where
    Self: Chip,
{
    fn save(&self) -> Vec<u8> {
        // The omitted fields are rebuilt: filter and hash from registers; others are empty between batches, or configuration.
        let Self {
            about,
            queues: _,
            pages: _,
            rom: _,
            function,
            registers,
            phy,
            filter: _,
            rss: _,
            transmit,
            looped: _,
            pause: _,
            lost,
            octets: _,
            starved,
            link_up,
            interrupts,
            completions,
            stalls: _,
            own,
        } = self;
        let (parts, delays, clock) = own.save(lost.map_or_else(|| phy.save(), |lost| lost.phy(phy)));
        let state = State::<O, N> {
            registers: registers.save(),
            parts,
            transmit: transmit.map(|queue| queue.state),
            starved: Mask(*starved).into(),
            link_up: *link_up,
            interrupts: interrupts.clone(),
            delays,
            completions: *completions,
            clock,
            function: function.save().to_bytes(),
        };
        encode(about.name, O::VERSION, &state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), RestoreError> {
        let state: State<O, N> = decode(self.about.name, saved)?;
        let State { registers, parts, transmit, starved, link_up, interrupts, delays, completions, clock, function } =
            state;
        let impossible = |what| Err(RestoreError::Impossible(what));
        let mut bank = self.registers.clone();
        bank.restore(&registers)?;
        let (own, phy) = self.own.restored((parts, delays, clock), &self.phy, &bank)?;
        if transmit.iter().any(|queue| queue.next > 0xffff) {
            return impossible("position in a ring");
        }
        if !interrupts.fits(&self.interrupts) || !completions.iter().all(CompletionDelay::fits) {
            return impossible("interrupts");
        }
        let function = SavedFunction::from_bytes(&function).map_err(|_| RestoreError::Damaged)?;
        self.function.restore(&function).map_err(|_| RestoreError::Impossible("configuration space"))?;
        O::bound(&mut self.function);
        self.clear_queues();
        for (queue, state) in self.transmit.iter_mut().zip(transmit) {
            queue.state = state;
        }
        Mask(self.starved) = starved.into();
        (self.registers, self.phy, self.own) = (bank, phy, own);
        (self.link_up, self.interrupts, self.completions) = (link_up, interrupts, completions);
        self.filter.load(&self.registers);
        self.lost = None;
        self.prepare_loopback();
        Ok(())
    }
}

/// An array of any length, without its length.
mod array {
    use std::fmt;
    use std::marker::PhantomData;

    use serde::de::{Error, SeqAccess, Visitor};
    use serde::ser::SerializeTuple;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer, T: Serialize, const N: usize>(items: &[T; N], to: S) -> Result<S::Ok, S::Error> {
        let mut tuple = to.serialize_tuple(N)?;
        items.iter().try_for_each(|item| tuple.serialize_element(item))?;
        tuple.end()
    }

    pub fn deserialize<'de, D: Deserializer<'de>, T, const N: usize>(from: D) -> Result<[T; N], D::Error>
    where
        T: Deserialize<'de> + Copy + Default,
    {
        struct Items<T, const N: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de> + Copy + Default, const N: usize> Visitor<'de> for Items<T, N> {
            type Value = [T; N];

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{N} items")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<[T; N], A::Error> {
                let mut all = [T::default(); N];
                for (n, item) in all.iter_mut().enumerate() {
                    *item = items.next_element()?.ok_or_else(|| A::Error::invalid_length(n, &self))?;
                }
                Ok(all)
            }
        }
        from.deserialize_tuple(N, Items(PhantomData))
    }
}
