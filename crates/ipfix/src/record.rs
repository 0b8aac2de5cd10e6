//! A flow as it is reported.

use crate::key::Key;

/// Where a flow was observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    /// Where its frames came into the switch.
    Ingress = 1,
    /// Where its frames left the switch.
    Egress = 2,
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// Its bit among directions.
    pub const fn bit(self) -> u8 {
        self as u8
    }

    /// The value of `flowDirection` (element 61).
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Ingress => 0,
            Self::Egress => 1,
        }
    }
}

/// Why a flow is reported: the values of `flowEndReason` (element 136).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EndReason {
    /// It was silent for the idle timeout.
    Idle = 1,
    /// It has lasted for the active timeout. Its next frame begins another record.
    Active = 2,
    /// TCP has ended it.
    Ended = 3,
    /// The exporter ends, or its configuration changes.
    Forced = 4,
    /// Another flow took its place.
    NoRoom = 5,
}

/// A flow's frames from its first one, or since it was reported last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// What the frames have in common.
    pub key: Key,
    /// The number of the port that they came from.
    pub ingress: u16,
    /// Frames on the wire.
    pub packets: u64,
    /// Bytes of IP packets; of others all behind the Ethernet header.
    pub octets: u64,
    /// Time of the first frame, in nanoseconds.
    pub first_ns: u64,
    /// Time of the last one.
    pub last_ns: u64,
    /// All flags of TCP that were seen.
    pub flags: u16,
    /// Why it is reported.
    pub end: EndReason,
}

/// A port, as reports name it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// The VLAN of its untagged frames, or 0.
    pub vlan: u16,
}

/// A record with the names that belong to it.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// The record.
    pub record: &'a Record,
    /// Where it was observed.
    pub direction: Direction,
    /// The numbers of the ports that the frames came from and went to. `None`: they went to no port or to several, or another port has the
    /// number now.
    pub interfaces: [Option<u16>; 2],
    /// The name of the port at which it was observed.
    pub name: &'a str,
    /// The VLAN of frames without a tag.
    pub untagged: u16,
    /// The forwarding status and the name of the reason, if the frames were dropped.
    pub dropped: Option<(u8, &'a str)>,
}
