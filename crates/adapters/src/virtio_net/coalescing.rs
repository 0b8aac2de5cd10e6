//! Notification coalescing by the driver's settings (virtio 1.2, section 5.1.6.5.8), for all queues or for one. A ring without such
//! settings uses the device's default (`notify.rs`).

use arrayvec::ArrayVec;
use serde::{Deserialize, Serialize};

use super::registers::{command, feature};
use super::{RINGS_MAX, Role};

/// A ring is notified after this many packets, or this long after the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Limits {
    pub packets: u32,
    pub usecs: u32,
}

/// Settings, ring by ring.
pub(super) type Coalescing = ArrayVec<Option<Limits>, RINGS_MAX>;

/// No settings.
pub(super) fn none() -> Coalescing {
    std::iter::repeat_n(None, RINGS_MAX).collect()
}

/// Executes a command of the class NOTF_COAL and returns its answer. `None`: refused.
pub(super) fn obey(
    all: &mut Coalescing,
    command: u8,
    data: &[u8],
    features: u128,
    role: impl Fn(u16) -> Role,
) -> Option<ArrayVec<u8, 16>> {
    let word = |at: usize| Some(u32::from_le_bytes(*data.get(at..)?.first_chunk()?));
    let ring = || Some(u16::from_le_bytes(*data.first_chunk()?)).filter(|ring| is_data(role(*ring)));
    let is_on = features & if command < command::COAL_VQ_SET { feature::NOTF_COAL } else { feature::VQ_NOTF_COAL } != 0;
    if !is_on {
        return None;
    }
    match command {
        command::COAL_TX_SET | command::COAL_RX_SET => {
            let limits = Limits { packets: word(0)?, usecs: word(4)? };
            let transmit = command == command::COAL_TX_SET;
            let selected = |ring: u16| is_data(role(ring)) && matches!(role(ring), Role::Transmit(_)) == transmit;
            (0..).zip(all).filter(|(ring, _)| selected(*ring)).for_each(|(_, set)| *set = Some(limits));
            Some(ArrayVec::new())
        }
        command::COAL_VQ_SET => {
            *all.get_mut(usize::from(ring()?))? = Some(Limits { packets: word(4)?, usecs: word(8)? });
            Some(ArrayVec::new())
        }
        command::COAL_VQ_GET => {
            let ring = ring()?;
            let Limits { packets, usecs } = all.get(usize::from(ring))?.unwrap_or_default();
            let words = [u32::from(ring), packets, usecs];
            Some(words.iter().flat_map(|word| word.to_le_bytes()).collect())
        }
        _ => None,
    }
}

fn is_data(role: Role) -> bool {
    matches!(role, Role::Receive(_) | Role::Transmit(_))
}
