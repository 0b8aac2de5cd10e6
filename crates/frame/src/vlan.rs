//! VLAN tags (IEEE 802.1Q-2018 clause 9): reading them, and inserting and stripping them in a private head.

use crate::bytes::{array_at, array_at_mut, u16_at};
use crate::ethernet::{HEADER_LEN, ethertype};
use core::fmt;

/// Length of a tag: TPID and TCI.
pub const TAG_LEN: usize = 4;
/// Offset of the outermost tag: after both addresses.
pub const TAG_OFFSET: usize = 12;
/// The highest usable VLAN id; 4095 is reserved (table 9-2).
pub const ID_MAX: u16 = 4094;

/// Tag control information: priority (3 bits), drop eligible (1), VLAN id (12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tci(pub u16);

impl Tci {
    /// Puts the parts together; bits beyond a part's width are dropped.
    #[inline]
    pub const fn new(priority: u8, drop_eligible: bool, id: u16) -> Self {
        Self(((priority as u16 & 7) << 13) | ((drop_eligible as u16) << 12) | (id & 0xfff))
    }

    /// VLAN id, 0 to 4095; 0 means that the tag carries a priority only.
    #[inline]
    pub const fn id(self) -> u16 {
        self.0 & 0xfff
    }

    /// Priority code point, 0 to 7.
    #[inline]
    pub const fn priority(self) -> u8 {
        (self.0 >> 13) as u8
    }

    /// Drop eligible indicator.
    #[inline]
    pub const fn drop_eligible(self) -> bool {
        self.0 & 0x1000 != 0
    }
}

/// A tag as it is in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag {
    /// Tag protocol identifier: 0x8100 (802.1Q) or 0x88a8 (802.1ad).
    pub tpid: u16,
    /// Tag control information.
    pub tci: Tci,
}

impl Tag {
    /// A customer tag (802.1Q, 0x8100).
    pub const fn customer(tci: Tci) -> Self {
        Self { tpid: ethertype::VLAN, tci }
    }

    /// A service tag (802.1ad, 0x88a8).
    pub const fn service(tci: Tci) -> Self {
        Self { tpid: ethertype::SERVICE_VLAN, tci }
    }

    /// Its four bytes on the wire.
    #[inline]
    pub const fn to_bytes(self) -> [u8; TAG_LEN] {
        let ([a, b], [c, d]) = (self.tpid.to_be_bytes(), self.tci.0.to_be_bytes());
        [a, b, c, d]
    }

    /// Reads four bytes from the wire; `None` if they are not a tag.
    #[inline]
    pub const fn from_bytes([a, b, c, d]: [u8; TAG_LEN]) -> Option<Self> {
        let tpid = u16::from_be_bytes([a, b]);
        if is_tpid(tpid) { Some(Self { tpid, tci: Tci(u16::from_be_bytes([c, d])) }) } else { None }
    }
}

/// `tag 10`, or `service tag 10`.
impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.tpid == ethertype::SERVICE_VLAN { "service tag" } else { "tag" };
        write!(f, "{kind} {}", self.tci.id())
    }
}

/// Whether a type field announces a tag.
#[inline]
pub const fn is_tpid(ethertype: u16) -> bool {
    ethertype == ethertype::VLAN || ethertype == ethertype::SERVICE_VLAN
}

/// Reasons why a head cannot be edited. The head is unchanged then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EditError {
    /// The buffer has no room for four more bytes, or is shorter than the length given.
    NoRoom,
    /// The head ends within its Ethernet header.
    Short,
}

impl fmt::Display for EditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoRoom => "the head's buffer has no room for a tag",
            Self::Short => "the head is shorter than an Ethernet header",
        })
    }
}

impl core::error::Error for EditError {}

/// All tags of a frame, the outermost first.
pub fn stack(head: &[u8]) -> impl Iterator<Item = Tag> {
    let tags = head.get(TAG_OFFSET..).unwrap_or_default().as_chunks().0;
    tags.iter().map_while(|bytes| Tag::from_bytes(*bytes))
}

/// The outermost tag, if the frame has one and it is whole.
#[inline]
pub fn outer(head: &[u8]) -> Option<Tag> {
    Tag::from_bytes(*array_at(head, TAG_OFFSET)?)
}

/// The tag behind the outermost one, if the frame has two and both are whole.
#[inline]
pub fn second(head: &[u8]) -> Option<Tag> {
    outer(head)?;
    Tag::from_bytes(*array_at(head, TAG_OFFSET + TAG_LEN)?)
}

/// Inserts `tag` behind the addresses. The first `len` bytes of `buffer` are the head; returns its new length.
/// Layouts of the old head are no longer valid.
pub fn insert(buffer: &mut [u8], len: usize, tag: Tag) -> Result<usize, EditError> {
    if len < HEADER_LEN {
        return Err(EditError::Short);
    }
    let end = len.checked_add(TAG_LEN).filter(|&end| end <= buffer.len()).ok_or(EditError::NoRoom)?;
    buffer.copy_within(TAG_OFFSET..len, TAG_OFFSET + TAG_LEN);
    *array_at_mut(buffer, TAG_OFFSET).ok_or(EditError::NoRoom)? = tag.to_bytes();
    Ok(end)
}

/// Removes the outermost tag. The first `len` bytes of `buffer` are the head; returns its new length and the tag.
/// Returns `None` and changes nothing unless there is a whole tag followed by a whole type field.
pub fn strip(buffer: &mut [u8], len: usize) -> Option<(usize, Tag)> {
    let head = buffer.get_mut(..len)?;
    let tag = outer(head)?;
    u16_at(head, TAG_OFFSET + TAG_LEN)?;
    head.copy_within(TAG_OFFSET + TAG_LEN.., TAG_OFFSET);
    Some((len - TAG_LEN, tag))
}

/// Replaces the outermost tag and returns the old one; returns `None` and changes nothing if there is none.
pub fn replace(head: &mut [u8], tag: Tag) -> Option<Tag> {
    let old = outer(head)?;
    *array_at_mut(head, TAG_OFFSET)? = tag.to_bytes();
    Some(old)
}
