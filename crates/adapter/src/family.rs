//! Families: adapters that were made together, as the functions of a card are, and the value that answers for all of them.
//!
//! ```text
//! function ── Outbox::ASK ──► port ── Ask ──► Family (pure: policies of the host)
//!     ▲                                          │
//!     └─────────── Event::Answer(Answer) ◄───────┘
//! ```
//! A function never calls another one. It asks: its driver has written a message, or has reset it. The port takes the ask to the
//! family, and brings the answer back in the same call, so that the driver's next access sees it. A family decides by the host's
//! policies and by the [`Standing`] that the ask brings. A function keeps what it was granted, and saves it with its state.

use nicety_frame::Mac;
use serde::{Deserialize, Serialize};

use crate::time::Time;

/// Words of a mailbox (82576 datasheet, 8.14.3; 82599 datasheet, VFMBMEM).
pub const MESSAGE_WORDS: usize = 16;
/// Multicast hashes in one message: two in each word behind the first.
pub const HASHES: usize = 2 * (MESSAGE_WORDS - 1);

/// A mailbox's content.
pub type Message = [u32; MESSAGE_WORDS];

/// A request of a function to its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The function was reset: by its driver, its VMM, or the bus.
    Reset,
    /// Its driver has sent a message.
    Message(Message),
    /// Its driver has read a message.
    Acknowledged,
    /// The function goes on from a saved state. Another host may have granted its rights.
    Restored(Held),
}

/// Rights in a function's saved state, besides its [`Standing`] and its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// It may send and receive.
    pub enabled: bool,
    /// It receives all multicast frames.
    pub all_multicast: bool,
}

/// Rights that were granted to a function since its last reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Its driver's reset message was answered: other messages are allowed (the drivers' "clear to send").
    pub ready: bool,
    /// The version of the messages, as its family numbers them.
    pub version: u8,
    /// Addresses besides its own.
    pub addresses: u8,
    /// VLANs besides 0.
    pub vlans: u8,
    /// The start of the time in which the family does not answer the function, see [`Answer::silent_from`].
    pub silent_from: Option<Time>,
}

/// An ask: the request, and the function's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The request.
    pub request: Request,
    /// The function's standing before.
    pub standing: Standing,
    /// The address that the function had last since power-on or a reset of the bus. A reset by its driver keeps it.
    pub address: Option<Mac>,
    /// The time, by the function's clock.
    pub at: Time,
}

/// The words of a reply. The mailbox keeps its other words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    words: Message,
    len: u8,
}

impl Reply {
    /// A reply of these words, at most [`MESSAGE_WORDS`].
    pub fn new(from: &[u32]) -> Self {
        let mut words = [0; MESSAGE_WORDS];
        let len = from.len().min(MESSAGE_WORDS);
        words.iter_mut().zip(from).for_each(|(word, from)| *word = *from);
        Self { words, len: len as u8 }
    }

    /// Its words.
    pub fn words(&self) -> &[u32] {
        self.words.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// A change of what a function may send and receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Grant {
    /// A version of the messages.
    Version(u8),
    /// The function gets only broadcasts without a tag, and frames to its own address if it has one.
    Reset {
        /// The function may ask.
        ready: bool,
        /// It may send and receive.
        enabled: bool,
        /// Its address.
        #[serde(with = "some_mac")]
        address: Option<Mac>,
    },
    /// Another address in place of its own.
    Address(#[serde(with = "mac")] Mac),
    /// One more address.
    AddAddress(#[serde(with = "mac")] Mac),
    /// The multicast addresses with these hashes, or all.
    Multicast {
        /// Number of hashes.
        count: u8,
        /// The hashes; the chip defines the function.
        hashes: [u16; HASHES],
        /// Its driver has more of them than a message holds: all multicast frames.
        all: bool,
    },
    /// All multicast frames, or no longer.
    AllMulticast(bool),
    /// Removes all addresses but its own, and adds this one if there is one.
    OnlyAddress(#[serde(with = "some_mac")] Option<Mac>),
    /// No VLAN but 0.
    NoVlans,
    /// A VLAN, or no longer.
    Vlan {
        /// Its number.
        id: u16,
        /// Whether it is added.
        on: bool,
    },
    /// Frames of up to this many bytes, tags and check sequence included.
    FrameMax(u32),
    /// Its driver has asked for all multicast frames. It gets them as soon as its [`Rights`] have them.
    WantsAllMulticast,
    /// The host has changed the function's rights. Its queues run on.
    Rights(Rights),
}

/// Rights of a function, which limit its driver's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights {
    /// The function's new address, if the address changes.
    #[serde(with = "some_mac")]
    pub address: Option<Mac>,
    /// It keeps addresses besides its own.
    pub addresses: bool,
    /// It receives all multicast frames if its driver has asked for them.
    pub all_multicast: bool,
    /// It keeps VLANs besides 0.
    pub vlans: bool,
    /// If the function loses an address by this change, its driver is told to reset it.
    pub tells: bool,
}

/// A family's answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The message was read.
    pub acknowledged: bool,
    /// The reply, if there is one. If no message was [read](Answer::acknowledged), the driver may hold the mailbox. The function then
    /// leaves the mailbox as it is, and tells the driver as soon as the mailbox is free.
    pub reply: Option<Reply>,
    /// The change of the function's rights, if there is one.
    pub grant: Option<Grant>,
    /// The new [`Standing::silent_from`], if it changes. By it a family refuses only some messages of a driver that has not sent RESET.
    pub silent_from: Option<Time>,
    /// [`FunctionPolicy::checks_tags`] as it is now. `None`: as before.
    pub checks_tags: Option<bool>,
}

/// The host's policy for a function. The switch also applies the port's own policy. A function may do what both allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionPolicy {
    /// Its address.
    pub address: Mac,
    /// It may change its address, add others, and receive all multicast frames.
    pub trusted: bool,
    /// The port tags the function's frames, so the function has no VLANs of its own.
    pub tagged: bool,
    /// Its driver may ask how frames are spread over its queues.
    pub queries_rss: bool,
    /// Frames that it sends with the tag of a VLAN that it was not granted are dropped. Source addresses are checked by the switch.
    pub checks_tags: bool,
}

impl FunctionPolicy {
    /// The policy of a function that may do everything.
    pub fn free(address: Mac) -> Self {
        Self { address, trusted: true, tagged: false, queries_rss: true, checks_tags: false }
    }
}

/// The functions of a card, as their host sees them. Pure: the same asks in the same order get the same answers.
pub trait Family: Send {
    /// Number of functions.
    fn functions(&self) -> u16;

    /// Answers one function's ask.
    fn answer(&mut self, function: u16, ask: &Ask) -> Answer;

    /// A function's policy; `None` if there is no such function.
    fn policy(&self, function: u16) -> Option<FunctionPolicy>;

    /// Changes a function's policy. The answer, if there is one, is for the function, which did not ask.
    fn set_policy(&mut self, function: u16, policy: FunctionPolicy) -> Option<Answer>;

    /// The card was reset. The function loses all granted rights. The answer is for the function.
    fn reset(&mut self, function: u16) -> Answer;

    /// A port that was another function until now becomes this one. It keeps those of its rights that this function may have.
    /// `has_new_address`: its address is another one. The answer is for the function.
    fn moved(&mut self, function: u16, has_new_address: bool) -> Answer;
}

/// An address as its bytes.
mod mac {
    use nicety_frame::Mac;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(mac: &Mac, to: S) -> Result<S::Ok, S::Error> {
        mac.0.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Mac, D::Error> {
        <[u8; 6]>::deserialize(from).map(Mac)
    }
}

/// An address, or none, as its bytes.
mod some_mac {
    use nicety_frame::Mac;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(mac: &Option<Mac>, to: S) -> Result<S::Ok, S::Error> {
        mac.map(|mac| mac.0).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Mac>, D::Error> {
        Ok(<Option<[u8; 6]>>::deserialize(from)?.map(Mac))
    }
}
