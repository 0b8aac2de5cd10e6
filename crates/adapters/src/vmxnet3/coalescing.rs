//! How often the driver wants to be interrupted (`struct Vmxnet3_CoalesceScheme`; version 3 on).

use nicety_memory::Map;
use serde::{Deserialize, Serialize};

use super::shared::{COMMAND_DATA, SetupError, read32, read64};

/// Bytes of the structure.
const LEN: u32 = 16;
/// VMXNET3_COAL_STATIC_MAX_DEPTH.
const DEPTH_MOST: u32 = 128;
/// VMXNET3_COAL_RBC_MIN_RATE, VMXNET3_COAL_RBC_MAX_RATE.
const RATES: std::ops::RangeInclusive<u32> = 100..=100_000;

/// A scheme, by VMXNET3_COALESCE_*.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Coalescing {
    /// At once.
    Disabled,
    /// As the device finds best, for vectors whose moderation level asks for any.
    #[default]
    Adaptive,
    /// After so many frames.
    Static {
        /// Of completions.
        transmit: u32,
        /// Received.
        receive: u32,
    },
    /// For received frames so many interrupts a second at most.
    Rate(u32),
}

impl Coalescing {
    /// Whether it can be.
    pub fn valid(self) -> bool {
        match self {
            Self::Disabled | Self::Adaptive => true,
            Self::Static { transmit, receive } => {
                [transmit, receive].iter().all(|depth| (1..=DEPTH_MOST).contains(depth))
            }
            Self::Rate(rate) => RATES.contains(&rate),
        }
    }

    /// Where the structure lies: the command's data say it.
    fn place(memory: &Map, shared: u64) -> Result<u64, SetupError> {
        if read32(memory, shared + COMMAND_DATA + 4)? < LEN {
            return Err(SetupError::Invalid);
        }
        Ok(read64(memory, shared + COMMAND_DATA + 8)?)
    }

    /// SET_COALESCE.
    pub fn read(memory: &Map, shared: u64) -> Result<Self, SetupError> {
        let mut bytes = [0; LEN as usize];
        memory.read(Self::place(memory, shared)?, &mut bytes)?;
        let (words, _) = bytes.as_chunks::<4>();
        let [mode, first, second, third] = std::array::from_fn(|index| u32::from_le_bytes(words[index]));
        let scheme = match mode {
            0 => Self::Disabled,
            1 => Self::Adaptive,
            // The first is the depth of a doorbell, which is the device's own (`transmit.rs`).
            2 => Self::Static { transmit: second.max(1), receive: third.max(1) },
            3 => Self::Rate(first),
            _ => return Err(SetupError::Invalid),
        };
        if scheme.valid() { Ok(scheme) } else { Err(SetupError::Invalid) }
    }

    /// GET_COALESCE.
    pub fn write(self, memory: &Map, shared: u64) -> Result<(), SetupError> {
        let words = match self {
            Self::Disabled => [0; 4],
            Self::Adaptive => [1, 0, 0, 0],
            Self::Static { transmit, receive } => [2, 0, transmit, receive],
            Self::Rate(rate) => [3, rate, 0, 0],
        };
        let bytes = words.map(u32::to_le_bytes).concat();
        Ok(memory.write(Self::place(memory, shared)?, &bytes)?)
    }

    /// What so many packets that were sent, of so many descriptors, count for, and beyond which sum they are told at once, on a ring of
    /// this size.
    pub fn completions(self, packets: u32, descriptors: u32, ring: u32) -> (u32, u32) {
        match self {
            Self::Disabled => (packets, 0),
            Self::Static { transmit, .. } => (packets, transmit - 1),
            // The driver has the other half meanwhile.
            Self::Adaptive | Self::Rate(_) => (descriptors, ring / 2),
        }
    }
}
