//! The Toeplitz hash of receive-side scaling (Microsoft, "RSS hashing functions" and "RSS hashing types").

use crate::bytes::{array_at, put};
use crate::layout::{Fragment, L3Kind, L4Kind, Layout};
use crate::{ipv4, ipv6};

/// Longest input: two IPv6 addresses and two ports.
pub const INPUT_LEN_MAX: usize = 36;
/// Length of a key that covers the longest input.
pub const KEY_LEN: usize = 40;

/// The hash of `input`. Bits behind the end of `key` count as zeros.
pub fn hash(key: &[u8], input: &[u8]) -> u32 {
    let mut key = key.iter().copied().chain(core::iter::repeat(0));
    let mut next = || key.next().unwrap_or(0);
    let mut window = u64::from(u32::from_be_bytes([next(), next(), next(), next()])) << 8;
    let mut result = 0;
    for byte in input {
        // The upper 32 of 40 bits of the key belong to the byte's first bit. The window moves by one with each bit.
        window |= u64::from(next());
        for bit in 0..8 {
            if byte & (0x80 >> bit) != 0 {
                result ^= (window >> (8 - bit)) as u32;
            }
        }
        window = (window << 8) & 0xff_ffff_ffff;
    }
    result
}

/// A key prepared for speed: the contribution of each half of each input byte, 4.5 KiB.
#[derive(Clone, Debug)]
pub struct Table([[u32; 16]; 2 * INPUT_LEN_MAX]);

impl Table {
    /// Prepares `key`; bits behind its end count as zeros.
    pub fn new(key: &[u8]) -> Self {
        let mut table = [[0; 16]; 2 * INPUT_LEN_MAX];
        for (half, row) in table.iter_mut().enumerate() {
            let mut input = [0; INPUT_LEN_MAX];
            for (value, entry) in row.iter_mut().enumerate() {
                // The value is below 16 and is shifted by 4 at most.
                let nibble = value as u8;
                if let Some(byte) = input.get_mut(half / 2) {
                    *byte = if half % 2 == 0 { nibble << 4 } else { nibble };
                }
                *entry = hash(key, &input);
            }
        }
        Self(table)
    }

    /// The hash of `input`; bytes beyond [`INPUT_LEN_MAX`] are ignored.
    #[inline]
    pub fn hash(&self, input: &[u8]) -> u32 {
        let (rows, _) = self.0.as_chunks::<2>();
        rows.iter()
            .zip(input)
            .fold(0, |result, ([high, low], byte)| result ^ high[usize::from(byte >> 4)] ^ low[usize::from(byte & 0xf)])
    }
}

/// Input of a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashKind {
    /// IPv4 addresses.
    V4,
    /// IPv4 addresses and TCP ports.
    V4Tcp,
    /// IPv4 addresses and UDP ports.
    V4Udp,
    /// IPv6 addresses.
    V6,
    /// IPv6 addresses and TCP ports.
    V6Tcp,
    /// IPv6 addresses and UDP ports.
    V6Udp,
    /// IPv4 addresses and ESP's security parameters index (RFC 4303 section 2.1).
    V4Esp,
    /// IPv6 addresses and ESP's security parameters index.
    V6Esp,
}

/// Kinds of hash that an adapter may compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HashKinds(u8);

impl HashKinds {
    /// No kind: the hash is off.
    pub const NONE: Self = Self(0);
    /// All six kinds of the specification, which has none for ESP.
    pub const ALL: Self = Self(0x3f);

    /// This set plus one kind.
    pub const fn with(self, kind: HashKind) -> Self {
        Self(self.0 | (1 << kind as u8))
    }

    /// Whether the set contains `kind`.
    pub const fn has(self, kind: HashKind) -> bool {
        self.0 & (1 << kind as u8) != 0
    }
}

/// The bytes to hash, in the order of the specification: source, destination, source port, destination port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    bytes: [u8; INPUT_LEN_MAX],
    len: u8,
    /// Kind of the input.
    pub kind: HashKind,
}

impl Input {
    /// Collects the input for a frame: the most specific kind that is enabled. Fragments never use ports, because only
    /// the first fragment has them. `None` if no enabled kind fits.
    #[inline]
    pub fn of(head: &[u8], layout: &Layout, enabled: HashKinds) -> Option<Self> {
        let l3 = layout.l3?;
        let l4 = layout.l4.filter(|_| l3.fragment == Fragment::Whole);
        let behind = usize::from(l3.offset) + usize::from(l3.len);
        let whole = l3.protocol == ipv4::protocol::ESP && l3.fragment == Fragment::Whole;
        let esp = whole && head.len() >= behind + 4;
        let (plain, with_ports) = match (l3.kind, l4.map(|l4| l4.kind)) {
            (L3Kind::V4, None) if esp => (HashKind::V4, Some(HashKind::V4Esp)),
            (L3Kind::V6, None) if esp => (HashKind::V6, Some(HashKind::V6Esp)),
            (L3Kind::V4, None) => (HashKind::V4, None),
            (L3Kind::V4, Some(L4Kind::Tcp)) => (HashKind::V4, Some(HashKind::V4Tcp)),
            (L3Kind::V4, Some(L4Kind::Udp)) => (HashKind::V4, Some(HashKind::V4Udp)),
            (L3Kind::V6, None) => (HashKind::V6, None),
            (L3Kind::V6, Some(L4Kind::Tcp)) => (HashKind::V6, Some(HashKind::V6Tcp)),
            (L3Kind::V6, Some(L4Kind::Udp)) => (HashKind::V6, Some(HashKind::V6Udp)),
        };
        let with_ports = with_ports.filter(|&kind| enabled.has(kind));
        let kind = with_ports.or(Some(plain).filter(|&kind| enabled.has(kind)))?;
        let mut input = Self { bytes: [0; INPUT_LEN_MAX], len: 0, kind };
        let start = usize::from(l3.offset);
        let len = match l3.kind {
            L3Kind::V4 => {
                put(&mut input.bytes, 0, *array_at::<8>(head, start + ipv4::SOURCE_OFFSET)?)?;
                8
            }
            L3Kind::V6 => {
                put(&mut input.bytes, 0, *array_at::<32>(head, start + ipv6::SOURCE_OFFSET)?)?;
                32
            }
        };
        input.len = len;
        if with_ports.is_some() {
            // Ports, or the index: the first four bytes behind the IP header.
            put(&mut input.bytes, usize::from(len), *array_at::<4>(head, behind)?)?;
            input.len = len + 4;
        }
        Some(input)
    }

    /// The bytes to hash.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}
