//! The constants of virtio-net: feature bits, the packet header, configuration space, control commands (virtio 1.2, sections 5.1.3,
//! 5.1.4, 5.1.6 and 6).

use serde::{Deserialize, Serialize};

use super::hashing::{KEY_MAX, TABLE_MAX, TYPES};

/// Feature bits. The field has 128 of them, because the device's own exceed 63.
pub(super) mod feature {
    macro_rules! bits {
        ($($(#[$doc:meta])+ $name:ident = $bit:literal, $word:literal;)+) => {
            $($(#[$doc])+ pub const $name: u128 = 1 << $bit;)+

            /// Display name of each bit.
            pub const WORDS: &[(u128, &str)] = &[$(($name, $word),)+];
        };
    }

    bits! {
        /// The device completes transmit checksums.
        CSUM = 0, "tx-checksum";
        /// The driver accepts partial and verified checksums.
        GUEST_CSUM = 1, "rx-checksum";
        /// The driver may change its receive offloads later.
        CTRL_GUEST_OFFLOADS = 2, "rx-offload-control";
        /// Configuration space has the MTU.
        MTU = 3, "mtu";
        /// Configuration space has the MAC address.
        MAC = 5, "mac";
        /// The driver accepts uncut TCP over IPv4.
        GUEST_TSO4 = 7, "rx-tso4";
        /// The driver accepts uncut TCP over IPv6.
        GUEST_TSO6 = 8, "rx-tso6";
        /// The driver accepts uncut TCP that signals congestion.
        GUEST_ECN = 9, "rx-ecn";
        /// The device accepts uncut TCP over IPv4.
        HOST_TSO4 = 11, "tso4";
        /// The device accepts uncut TCP over IPv6.
        HOST_TSO6 = 12, "tso6";
        /// The device accepts uncut TCP that signals congestion.
        HOST_ECN = 13, "ecn";
        /// A frame may fill several receive buffers.
        MRG_RXBUF = 15, "mergeable";
        /// Configuration space has the link's state.
        STATUS = 16, "status";
        /// There is a control queue.
        CTRL_VQ = 17, "control";
        /// The control queue sets receive modes.
        CTRL_RX = 18, "rx-mode";
        /// The control queue sets the VLAN filter.
        CTRL_VLAN = 19, "vlan-filter";
        /// The control queue sets more receive modes.
        CTRL_RX_EXTRA = 20, "rx-mode-extra";
        /// The driver can be asked to announce itself.
        GUEST_ANNOUNCE = 21, "announce";
        /// There are several queue pairs.
        MQ = 22, "mq";
        /// The control queue sets the MAC address.
        CTRL_MAC_ADDR = 23, "set-mac";
        /// Headers and data may be split over descriptors in any layout.
        ANY_LAYOUT = 27, "any-layout";
        /// Descriptors may name tables of descriptors.
        INDIRECT_DESC = 28, "indirect";
        /// Notifications are requested by index.
        EVENT_IDX = 29, "event-index";
        /// Not a legacy driver.
        VERSION_1 = 32, "virtio-1";
        /// Addresses are bus addresses: an IOMMU may translate them (section 6).
        ACCESS_PLATFORM = 33, "access-platform";
        /// Rings are packed.
        RING_PACKED = 34, "packed";
        /// Chains are completed in the order in which they were made available.
        IN_ORDER = 35, "in-order";
        /// A single ring may be reset.
        RING_RESET = 40, "ring-reset";
        /// The device reports statistics.
        DEVICE_STATS = 50, "statistics";
        /// The driver can set notification coalescing per queue.
        VQ_NOTF_COAL = 52, "queue-coalescing";
        /// The driver can set notification coalescing.
        NOTF_COAL = 53, "coalescing";
        /// The driver accepts uncut UDP over IPv4.
        GUEST_USO4 = 54, "rx-uso4";
        /// The driver accepts uncut UDP over IPv6.
        GUEST_USO6 = 55, "rx-uso6";
        /// The device accepts uncut UDP.
        HOST_USO = 56, "uso";
        /// Headers of received frames report their hash.
        HASH_REPORT = 57, "hash-report";
        /// Received frames are assigned to queues by their hash.
        RSS = 60, "rss";
        /// The device is a standby for another one with the same address.
        STANDBY = 62, "standby";
        /// Configuration space has speed and duplex.
        SPEED_DUPLEX = 63, "speed";
    }

    /// Features that take a control queue.
    pub const BY_CONTROL: u128 = CTRL_VQ
        | CTRL_RX
        | CTRL_VLAN
        | CTRL_RX_EXTRA
        | CTRL_MAC_ADDR
        | CTRL_GUEST_OFFLOADS
        | GUEST_ANNOUNCE
        | DEVICE_STATS
        | VQ_NOTF_COAL
        | NOTF_COAL
        | HASH_REPORT
        | RSS;

    /// Features that GUEST_OFFLOADS_SET may switch off and on.
    pub const OFFLOADS: u128 = GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | GUEST_ECN | GUEST_USO4 | GUEST_USO6;
}

/// `struct virtio_net_hdr` with `num_buffers` (section 5.1.6): the header before each frame, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    /// [`header`] flags.
    pub flags: u8,
    /// Kind of segmentation.
    pub gso_type: u8,
    /// Bytes of all headers; a hint.
    pub hdr_len: u16,
    /// Payload bytes of each segment.
    pub gso_size: u16,
    /// First byte of the checksummed range.
    pub csum_start: u16,
    /// Offset of the checksum field from `csum_start`.
    pub csum_offset: u16,
    /// Number of receive chains that hold the frame.
    pub num_buffers: u16,
}

/// Values in the [`Header`].
pub(super) mod header {
    /// Flag: the checksum is partial.
    pub const NEEDS_CSUM: u8 = 1;
    /// Flag: the checksum has been verified.
    pub const DATA_VALID: u8 = 2;
    /// Kind: no segmentation.
    pub const GSO_NONE: u8 = 0;
    /// Kind: TCP over IPv4.
    pub const GSO_TCPV4: u8 = 1;
    /// Kind: TCP over IPv6.
    pub const GSO_TCPV6: u8 = 4;
    /// Kind: UDP datagrams of equal length.
    pub const GSO_UDP_L4: u8 = 5;
    /// The packet signals congestion. Combined with any TCP kind.
    pub const GSO_ECN: u8 = 0x80;
    /// Bytes, with `num_buffers`.
    pub const LEN: usize = 12;
    /// Bytes, with a hash after it (5.1.6.4.4).
    pub const HASH_LEN: usize = 20;
    /// Bytes, for a legacy driver without mergeable buffers.
    pub const LEGACY_LEN: usize = 10;
}

impl Header {
    /// Reads it from the driver's bytes.
    pub fn parse(bytes: &[u8; header::LEN]) -> Self {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self::of_words([word(0), word(4), word(8)])
    }

    /// Reads it from the driver's bytes as little-endian words.
    #[inline]
    pub fn of_words([first, second, third]: [u32; 3]) -> Self {
        Self {
            flags: first as u8,
            gso_type: (first >> 8) as u8,
            hdr_len: (first >> 16) as u16,
            gso_size: second as u16,
            csum_start: (second >> 16) as u16,
            csum_offset: third as u16,
            num_buffers: (third >> 16) as u16,
        }
    }

    /// The driver's bytes as little-endian words.
    #[inline]
    pub fn words(&self) -> [u32; 3] {
        let pair = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
        [
            pair(u16::from(self.flags) | u16::from(self.gso_type) << 8, self.hdr_len),
            pair(self.gso_size, self.csum_start),
            pair(self.csum_offset, self.num_buffers),
        ]
    }

    /// The driver's bytes as a little-endian number.
    #[inline(always)]
    pub fn number(&self) -> u128 {
        let [first, second, third] = self.words().map(u128::from);
        first | second << 32 | third << 64
    }

    /// The header in the driver's byte order.
    pub fn bytes(&self) -> [u8; header::LEN] {
        let mut out = [0; header::LEN];
        for (bytes, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(self.words()) {
            *bytes = word.to_le_bytes();
        }
        out
    }

    /// Whether the frame needs no offload.
    #[inline]
    pub fn asks_nothing(&self) -> bool {
        Self::requests_nothing(u16::from_le_bytes([self.flags, self.gso_type]))
    }

    /// Whether a frame needs no offload, by the first two bytes of its header: flags and kind of segmentation.
    #[inline(always)]
    pub fn requests_nothing(word: u16) -> bool {
        const REQUESTS: u16 = u16::from_le_bytes([header::NEEDS_CSUM, !header::GSO_ECN]);
        const { assert!(header::GSO_NONE == 0) };
        word & REQUESTS == 0
    }
}

/// Offset of the MAC address (5.1.4).
pub(super) const MAC_AT: usize = 0;
/// Offset of the link's state and the announcement request.
pub(super) const STATUS_AT: usize = 6;
/// Bytes of [`Config::bytes`]: the tunnel fields that follow are not offered.
pub(super) const CONFIG_LEN: usize = 24;

/// `struct virtio_net_config` (section 5.1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Config {
    /// The address.
    pub mac: [u8; 6],
    /// The link is up.
    pub link: bool,
    /// Queue pairs.
    pub pairs: u16,
    /// The largest MTU.
    pub mtu: u16,
    /// Link speed in Mbit/s.
    pub speed_mbps: u32,
}

impl Config {
    /// Configuration space as the driver reads it.
    pub fn bytes(&self) -> [u8; CONFIG_LEN] {
        let mut out = [0; CONFIG_LEN];
        out[MAC_AT..6].copy_from_slice(&self.mac);
        out[STATUS_AT] = u8::from(self.link);
        out[8..10].copy_from_slice(&self.pairs.to_le_bytes());
        out[10..12].copy_from_slice(&self.mtu.to_le_bytes());
        out[12..16].copy_from_slice(&self.speed_mbps.to_le_bytes());
        // Full duplex; supported hashes.
        out[16] = 1;
        out[17] = KEY_MAX as u8;
        out[18..20].copy_from_slice(&(TABLE_MAX as u16).to_le_bytes());
        out[20..24].copy_from_slice(&TYPES.to_le_bytes());
        out
    }
}

/// Commands of the control queue (section 5.1.6.5).
pub(super) mod command {
    /// Class: receive modes.
    pub const RX: u8 = 0;
    /// Class: addresses.
    pub const MAC: u8 = 1;
    /// Command of this class.
    pub const MAC_TABLE_SET: u8 = 0;
    pub const MAC_ADDR_SET: u8 = 1;
    /// Class: VLAN filter.
    pub const VLAN: u8 = 2;
    /// Class: announcements.
    pub const ANNOUNCE: u8 = 3;
    /// Class: queue pairs and hashes.
    pub const MQ: u8 = 4;
    /// Commands of this class.
    pub const MQ_PAIRS: u8 = 0;
    pub const MQ_RSS: u8 = 1;
    pub const MQ_HASH: u8 = 2;
    /// Class: receive offloads.
    pub const GUEST_OFFLOADS: u8 = 5;
    /// Class: notification coalescing.
    pub const NOTF_COAL: u8 = 6;
    /// Commands of this class.
    pub const COAL_TX_SET: u8 = 0;
    pub const COAL_RX_SET: u8 = 1;
    pub const COAL_VQ_SET: u8 = 2;
    pub const COAL_VQ_GET: u8 = 3;
    /// Class: statistics.
    pub const STATS: u8 = 8;
    /// Commands of this class.
    pub const STATS_QUERY: u8 = 0;
    pub const STATS_GET: u8 = 1;
    /// Acknowledgement: done.
    pub const OK: u8 = 0;
    /// Acknowledgement: failed.
    pub const ERR: u8 = 1;
}
