//! The numbers of the protocol (docs/interop/vhost-user.rst: "Message Specification", "Protocol features",
//! "Front-end message types").

use std::time::Duration;

/// The timeout for a front end's first message, for the rest of a message that has begun, and for reading an answer. Between
/// messages a front end may be idle for any time.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a message's header.
pub(crate) const HEADER_BYTES: usize = 12;
/// Most bytes of a body. The longest body that a front end sends is 4 KiB of configuration space with its header.
pub(crate) const BODY_MAX: usize = 4096 + 64;
/// Most descriptors per message. The specification allows 8.
pub(crate) const FDS_MAX: usize = 32;
/// Most memory regions per front end (QEMU queries the limit, and uses at most 512).
pub(crate) const REGIONS_MAX: usize = 128;
/// Flag bits 0–1: the version.
pub(crate) const VERSION_MASK: u32 = 3;
/// The version.
pub(crate) const VERSION: u32 = 1;
/// Flag: a reply.
pub(crate) const REPLY: u32 = 1 << 2;
/// Flag: the sender requests the result.
pub(crate) const NEED_REPLY: u32 = 1 << 3;
/// Virtio feature bit that turns the log of written pages on and off (VHOST_F_LOG_ALL).
pub(crate) const F_LOG_ALL: u64 = 1 << 26;
/// Flag in SET_VRING_ADDR: writes to the ring are logged, too (VHOST_VRING_F_LOG).
pub(crate) const RING_LOG: u32 = 1;
/// Virtio feature bit: protocol features exist, and rings start disabled.
pub(crate) const F_PROTOCOL_FEATURES: u64 = 1 << 30;
/// Virtio feature bit: the driver's addresses are an IOMMU's (VIRTIO_F_ACCESS_PLATFORM).
pub(crate) const F_ACCESS_PLATFORM: u64 = 1 << 33;
/// A back end's request: a message about the IOTLB ("Back-end message types").
pub(crate) const BACKEND_IOTLB: u32 = 1;
/// Virtio feature bit: rings are packed (VIRTIO_F_RING_PACKED).
pub(crate) const F_RING_PACKED: u64 = 1 << 34;
/// No descriptor follows. In the payload of SET_VRING_KICK, CALL and ERR.
pub(crate) const NO_FD: u64 = 1 << 8;

/// Negotiated features of the protocol itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProtocolFeatures(pub u64);

impl ProtocolFeatures {
    /// Several queues.
    pub const MQ: Self = Self(1 << 0);
    /// The log of written pages is shared memory.
    pub const LOG_SHMFD: Self = Self(1 << 1);
    /// The back end announces a migrated guest.
    pub const RARP: Self = Self(1 << 2);
    /// Any request may ask for a reply.
    pub const REPLY_ACK: Self = Self(1 << 3);
    /// The front end sends its MTU.
    pub const MTU: Self = Self(1 << 4);
    /// The front end takes requests of the back end on a separate socket. A session asks for translations there, if the front end has an
    /// IOMMU. Some versions of User-Mode Linux (6.1, not 7.3) take a ring's interrupts only if they have that socket.
    pub const BACKEND_REQ: Self = Self(1 << 5);
    /// The back end serves configuration space.
    pub const CONFIG: Self = Self(1 << 9);
    /// A file keeps the state for the next back end if this one is killed.
    pub const INFLIGHT_SHMFD: Self = Self(1 << 12);
    /// The device can be reset without a new connection.
    pub const RESET_DEVICE: Self = Self(1 << 13);
    /// Memory regions can be added and removed one by one.
    pub const CONFIGURE_MEM_SLOTS: Self = Self(1 << 15);
    /// SET_STATUS and GET_STATUS are served.
    pub const STATUS: Self = Self(1 << 16);
    /// The port's state goes with a guest that moves.
    pub const DEVICE_STATE: Self = Self(1 << 19);
    /// All features that a [`Session`](crate::Session) offers.
    pub const OFFERED: Self = Self(
        Self::MQ.0
            | Self::LOG_SHMFD.0
            | Self::RARP.0
            | Self::REPLY_ACK.0
            | Self::MTU.0
            | Self::BACKEND_REQ.0
            | Self::CONFIG.0
            | Self::INFLIGHT_SHMFD.0
            | Self::RESET_DEVICE.0
            | Self::CONFIGURE_MEM_SLOTS.0
            | Self::STATUS.0
            | Self::DEVICE_STATE.0,
    );

    /// Whether `self` contains all of `other`.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

macro_rules! requests {
    ($($name:ident = $code:literal,)+) => {
        /// The requests of a front end, named as in the specification.
        #[allow(missing_docs)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Request {
            $($name = $code,)+
        }

        impl Request {
            /// The request with this number.
            pub fn from_code(code: u32) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)+
                    _ => None,
                }
            }
        }
    };
}

requests! {
    GetFeatures = 1,
    SetFeatures = 2,
    SetOwner = 3,
    ResetOwner = 4,
    SetMemTable = 5,
    SetLogBase = 6,
    SetLogFd = 7,
    SetVringNum = 8,
    SetVringAddr = 9,
    SetVringBase = 10,
    GetVringBase = 11,
    SetVringKick = 12,
    SetVringCall = 13,
    SetVringErr = 14,
    GetProtocolFeatures = 15,
    SetProtocolFeatures = 16,
    GetQueueNum = 17,
    SetVringEnable = 18,
    SendRarp = 19,
    NetSetMtu = 20,
    SetBackendReqFd = 21,
    IotlbMsg = 22,
    GetConfig = 24,
    SetConfig = 25,
    GetInflightFd = 31,
    SetInflightFd = 32,
    ResetDevice = 34,
    GetMaxMemSlots = 36,
    AddMemReg = 37,
    RemMemReg = 38,
    SetStatus = 39,
    GetStatus = 40,
    SetDeviceStateFd = 42,
    CheckDeviceState = 43,
}

/// A body, read field by field (host byte order, as specified).
pub(crate) struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn u32(&mut self) -> Option<u32> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*bytes))
    }

    pub fn u16(&mut self) -> Option<u16> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_ne_bytes(*bytes))
    }

    pub fn u64(&mut self) -> Option<u64> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*bytes))
    }

    /// Succeeds if nothing is left.
    pub fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}
