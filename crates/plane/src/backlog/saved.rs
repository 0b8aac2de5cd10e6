//! Copies of packets that wait, for another process.

use nicety_adapter::{Checksum, Edit, Offload, Segment, SegmentKind, Time};
use nicety_frame::vlan::{Tag, Tci};
use serde::{Deserialize, Serialize};

/// A copy of a packet that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedFrame {
    pub(super) lane: u16,
    pub(super) from: u16,
    /// Bytes of its private head.
    pub(super) head: u16,
    pub(super) edit: SavedEdit,
    pub(super) offload: SavedOffload,
    pub(super) since: Time,
    #[serde(with = "crate::bytes")]
    pub(super) bytes: Vec<u8>,
}

/// An [`Edit`]: tags as their identifier and control information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SavedEdit {
    Keep,
    Untag,
    Tag(u16, u16),
    Retag(u16, u16),
}

impl From<Edit> for SavedEdit {
    fn from(edit: Edit) -> Self {
        match edit {
            Edit::Keep => Self::Keep,
            Edit::Untag => Self::Untag,
            Edit::Tag(Tag { tpid, tci }) => Self::Tag(tpid, tci.0),
            Edit::Retag(Tag { tpid, tci }) => Self::Retag(tpid, tci.0),
        }
    }
}

impl From<SavedEdit> for Edit {
    fn from(saved: SavedEdit) -> Self {
        let tag = |tpid, tci| Tag { tpid, tci: Tci(tci) };
        match saved {
            SavedEdit::Keep => Self::Keep,
            SavedEdit::Untag => Self::Untag,
            SavedEdit::Tag(tpid, tci) => Self::Tag(tag(tpid, tci)),
            SavedEdit::Retag(tpid, tci) => Self::Retag(tag(tpid, tci)),
        }
    }
}

/// An [`Offload`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedOffload {
    checksum: SavedChecksum,
    /// The kind, the maximum segment size, and the bytes of all headers.
    segment: Option<(SavedKind, u16, u16)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum SavedChecksum {
    AsIs,
    Verified,
    Partial(u16, u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum SavedKind {
    Tcp,
    Udp,
    Tunnel,
}

impl From<Offload> for SavedOffload {
    fn from(Offload { checksum, segment }: Offload) -> Self {
        let checksum = match checksum {
            Checksum::AsIs => SavedChecksum::AsIs,
            Checksum::Verified => SavedChecksum::Verified,
            Checksum::Partial { start, field } => SavedChecksum::Partial(start, field),
        };
        let segment = segment.map(|Segment { kind, mss, headers }| {
            let kind = match kind {
                SegmentKind::Tcp => SavedKind::Tcp,
                SegmentKind::Udp => SavedKind::Udp,
                SegmentKind::Tunnel => SavedKind::Tunnel,
            };
            (kind, mss, headers)
        });
        Self { checksum, segment }
    }
}

impl From<SavedOffload> for Offload {
    fn from(SavedOffload { checksum, segment }: SavedOffload) -> Self {
        let checksum = match checksum {
            SavedChecksum::AsIs => Checksum::AsIs,
            SavedChecksum::Verified => Checksum::Verified,
            SavedChecksum::Partial(start, field) => Checksum::Partial { start, field },
        };
        let segment = segment.filter(|(_, mss, _)| *mss > 0).map(|(kind, mss, headers)| {
            let kind = match kind {
                SavedKind::Tcp => SegmentKind::Tcp,
                SavedKind::Udp => SegmentKind::Udp,
                SavedKind::Tunnel => SegmentKind::Tunnel,
            };
            Segment { kind, mss, headers }
        });
        Self { checksum, segment }
    }
}
