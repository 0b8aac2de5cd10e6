//! The elements and the templates (RFC 7012; <https://www.iana.org/assignments/ipfix>).

/// An information element and its length in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its number at IANA.
    pub element: u16,
    /// Bytes, or [`Field::VARIABLE`].
    pub len: u16,
}

impl Field {
    /// A length that each record has (RFC 7011, section 7).
    pub const VARIABLE: u16 = 0xffff;

    const fn new(element: u16, len: u16) -> Self {
        Self { element, len }
    }
}

pub(crate) const OCTETS: Field = Field::new(1, 8);
pub(crate) const PACKETS: Field = Field::new(2, 8);
pub(crate) const PROTOCOL: Field = Field::new(4, 1);
pub(crate) const TCP_FLAGS: Field = Field::new(6, 2);
pub(crate) const SOURCE_PORT: Field = Field::new(7, 2);
pub(crate) const SOURCE_V4: Field = Field::new(8, 4);
pub(crate) const INGRESS: Field = Field::new(10, 4);
pub(crate) const DESTINATION_PORT: Field = Field::new(11, 2);
pub(crate) const DESTINATION_V4: Field = Field::new(12, 4);
pub(crate) const EGRESS: Field = Field::new(14, 4);
pub(crate) const SOURCE_V6: Field = Field::new(27, 16);
pub(crate) const DESTINATION_V6: Field = Field::new(28, 16);
pub(crate) const SOURCE_MAC: Field = Field::new(56, 6);
pub(crate) const VLAN: Field = Field::new(58, 2);
pub(crate) const DIRECTION: Field = Field::new(61, 1);
pub(crate) const DESTINATION_MAC: Field = Field::new(80, 6);
pub(crate) const INTERFACE_NAME: Field = Field::new(82, Field::VARIABLE);
pub(crate) const STATUS: Field = Field::new(89, 1);
pub(crate) const END_REASON: Field = Field::new(136, 1);
pub(crate) const START: Field = Field::new(152, 8);
pub(crate) const END: Field = Field::new(153, 8);
pub(crate) const ETHERTYPE: Field = Field::new(256, 2);
/// A selector is what picks packets (RFC 5476): here the switch's reason for a drop, and the sampling.
pub(crate) const SELECTOR: Field = Field::new(302, 8);
pub(crate) const ALGORITHM: Field = Field::new(304, 2);
pub(crate) const SAMPLED: Field = Field::new(305, 4);
pub(crate) const SKIPPED: Field = Field::new(306, 4);
pub(crate) const SELECTOR_NAME: Field = Field::new(335, Field::VARIABLE);

/// Elements of every flow, before those of its protocol.
const FIRST: [Field; 8] = [START, END, OCTETS, PACKETS, SOURCE_MAC, DESTINATION_MAC, ETHERTYPE, VLAN];
/// Those of a transport protocol.
const TRANSPORT: [Field; 4] = [PROTOCOL, SOURCE_PORT, DESTINATION_PORT, TCP_FLAGS];
/// Elements of every flow, behind them.
const LAST: [Field; 5] = [INGRESS, EGRESS, DIRECTION, END_REASON, INTERFACE_NAME];
/// Those of dropped frames.
const DROP: [Field; 2] = [STATUS, SELECTOR_NAME];

/// The form of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Template {
    /// A flow of IP's version 4 or 6, or another (0), whose frames were forwarded or dropped.
    Flow {
        /// 4, 6 or 0.
        version: u8,
        /// Its frames were dropped.
        dropped: bool,
    },
    /// How packets are sampled.
    Sampling,
    /// The name of an interface.
    Interface,
}

impl Template {
    /// All forms.
    pub const ALL: [Self; 8] = [
        Self::Flow { version: 4, dropped: false },
        Self::Flow { version: 6, dropped: false },
        Self::Flow { version: 0, dropped: false },
        Self::Flow { version: 4, dropped: true },
        Self::Flow { version: 6, dropped: true },
        Self::Flow { version: 0, dropped: true },
        Self::Sampling,
        Self::Interface,
    ];

    /// Its number. The lowest is 256 (RFC 7011, section 3.4.1).
    pub fn id(self) -> u16 {
        match self {
            Self::Flow { version, dropped } => {
                let first = if dropped { 260 } else { 256 };
                first
                    + match version {
                        4 => 0,
                        6 => 1,
                        _ => 2,
                    }
            }
            Self::Sampling => 264,
            Self::Interface => 265,
        }
    }

    /// The first ones of its fields that say what the others are about. 0: it is no options template.
    pub fn scope(self) -> u16 {
        match self {
            Self::Flow { .. } => 0,
            Self::Sampling | Self::Interface => 1,
        }
    }

    /// Its fields, in the order of a record.
    pub fn fields(self) -> Vec<Field> {
        match self {
            Self::Flow { version, dropped } => {
                let ip: &[Field] = match version {
                    4 => &[SOURCE_V4, DESTINATION_V4],
                    6 => &[SOURCE_V6, DESTINATION_V6],
                    _ => &[],
                };
                let transport = if version == 0 { &[][..] } else { &TRANSPORT };
                let drop = if dropped { &DROP[..] } else { &[] };
                [&FIRST, ip, transport, &LAST, drop].concat()
            }
            Self::Sampling => vec![SELECTOR, ALGORITHM, SAMPLED, SKIPPED],
            Self::Interface => vec![INGRESS, INTERFACE_NAME],
        }
    }
}
