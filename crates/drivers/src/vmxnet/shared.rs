//! The driver data, and the rings in it.

use nicety_memory::Map;

use super::layout::*;
use crate::{Arena, DriverError};

/// Address of the driver data, and for each ring its offset and entries.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shared {
    pub at: u64,
    pub bytes: u32,
    pub receive: [(u32, u32); 2],
    pub transmit: (u32, u32),
}

impl Shared {
    /// Lays out and fills the driver data for these numbers of entries.
    pub(super) fn new(
        memory: &Map,
        arena: &mut Arena,
        receive: [u32; 2],
        transmit: u32,
    ) -> Result<Shared, DriverError> {
        let mut end = DATA_BYTES;
        let mut ring = |len: u32, entry: u32| {
            let place = (end, len);
            end += len * entry;
            place
        };
        let receive = receive.map(|len| ring(len, rx::BYTES));
        let transmit = ring(transmit, tx::BYTES);
        let at = arena.take(end.into(), 16)?;
        if at + u64::from(end) > 1 << 32 {
            return Err(DriverError::Device("is told of its rings by 32 bits of address"));
        }
        let shared = Shared { at, bytes: end, receive, transmit };
        let window = shared.window(memory)?;
        (0..end as usize).step_by(8).for_each(|place| window.write_u64(place, 0));
        window.store_u32(data::MAGIC, MAGIC);
        window.store_u32(data::LENGTH, end);
        for (number, (offset, len)) in receive.into_iter().enumerate() {
            window.store_u32(data::RX_OFFSET[number], offset);
            window.store_u32(data::RX_LENGTH[number], len);
        }
        window.store_u32(data::TX_OFFSET, transmit.0);
        window.store_u32(data::TX_LENGTH, transmit.1);
        window.store_u32(data::IFFLAGS, IFFLAGS);
        data::LADRF.into_iter().for_each(|place| window.store_u32(place, u32::MAX));
        Ok(shared)
    }

    /// Sets the features that the driver uses.
    pub(super) fn enable(&self, memory: &Map, features: u32, frags: u16) -> Result<(), DriverError> {
        let window = self.window(memory)?;
        window.store_u16(data::MAX_FRAGS, if features & FEATURE_JUMBO != 0 { frags } else { 0 });
        window.store_u16(data::FEATURE_CTL, (features & FEATURE_LPD) as u16);
        Ok(())
    }
}
