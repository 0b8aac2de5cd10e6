//! Interrupt coalescing set by the driver (`struct Vmxnet3_CoalesceScheme`; version 3 on).

use nicety_memory::Map;
use serde::{Deserialize, Serialize};

use super::shared::{COMMAND_DATA, SetupError, read32, read64};

/// Bytes of the structure.
const LEN: u32 = 16;
/// VMXNET3_COAL_STATIC_MAX_DEPTH.
const DEPTH_MAX: u32 = 128;
/// VMXNET3_COAL_RBC_MIN_RATE, VMXNET3_COAL_RBC_MAX_RATE.
const RATES: std::ops::RangeInclusive<u32> = 100..=100_000;

/// A scheme, by VMXNET3_COALESCE_*.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Coalescing {
    /// No coalescing.
    Disabled,
    /// The device's own moderation, for vectors whose moderation level requests any.
    #[default]
    Adaptive,
    /// After this many frames.
    Static {
        /// Transmit completions.
        transmit: u32,
        /// Received frames.
        receive: u32,
    },
    /// Maximum interrupts per second for received frames.
    Rate(u32),
}

impl Coalescing {
    /// Whether the values are in range.
    pub fn valid(self) -> bool {
        match self {
            Self::Disabled | Self::Adaptive => true,
            Self::Static { transmit, receive } => {
                [transmit, receive].iter().all(|depth| (1..=DEPTH_MAX).contains(depth))
            }
            Self::Rate(rate) => RATES.contains(&rate),
        }
    }

    /// Address of the structure, from the command's data.
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
            // The first number is the doorbell's depth, which the device chooses itself (`transmit.rs`).
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

    /// The weight of `packets` sent packets with `descriptors` descriptors, and the sum of weights above which an interrupt is sent at
    /// once. `ring`: the size of the ring.
    pub fn completions(self, packets: u32, descriptors: u32, ring: u32) -> (u32, u32) {
        match self {
            Self::Disabled => (packets, 0),
            Self::Static { transmit, .. } => (packets, transmit - 1),
            // The driver still has the other half of the ring.
            Self::Adaptive | Self::Rate(_) => (descriptors, ring / 2),
        }
    }
}
