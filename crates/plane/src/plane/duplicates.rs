//! Duplicates: frames that come in by several members of a team of which the neighbouring switches know nothing. They flood frames to all
//! members, those that this side has sent among them. Each frame is taken once, and none of those from here:
//!
//! | frame | taken |
//! |---|---|
//! | from a station that was heard on this side in this second or the last | no: it comes back |
//! | to a station on this side | by the member by which the station sends |
//! | to a group, or to an unknown station | by one member for all |

use nicety_adapter::{Batch, Time};
use nicety_frame::Mac;

use super::Plane;
use crate::port::Flooded;

/// A station that was silent for this many seconds may have moved to the other side.
const HEARD_S: u32 = 1;

impl Plane {
    /// The packets of a member's batch that are not taken, a bit each.
    #[cold]
    pub(crate) fn duplicates(&self, at: &Flooded<'_>, batch: &Batch, now: Time) -> u64 {
        let packets = batch.packets().iter().zip(0..u64::BITS);
        packets.fold(0, |all, (packet, bit)| all | u64::from(self.is_duplicate(at, batch.head(packet), now)) << bit)
    }

    fn is_duplicate(&self, at: &Flooded<'_>, head: &[u8], now: Time) -> bool {
        let Flooded { team, steering, member, taken_by } = *at;
        let address = |at: usize| head.get(at..)?.first_chunk().map(|bytes| Mac(*bytes));
        let (Some(target), Some(source)) = (address(0), address(6)) else { return false };
        // Frames of other VLANs are refused later.
        let networks = self.switch().networks(team, head).collect::<arrayvec::ArrayVec<u16, 2>>();
        if networks.is_empty() {
            return false;
        }
        let heard = |address: Mac| {
            let found = |network: &u16| self.switch().addresses().heard(address, *network, now);
            networks.iter().filter_map(found).find(|(port, _)| *port != team)
        };
        if heard(source).is_some_and(|(_, silent_s)| silent_s <= HEARD_S || steering.has_announced(now)) {
            return true;
        }
        let is_flooded = || taken_by >> member & 1 == 0;
        if !target.is_unicast() {
            return is_flooded();
        }
        match heard(target) {
            Some((port, _)) => {
                let choice = steering.choice();
                steering.member(choice, choice.hash().of_station(port, target), port) != Some(member)
            }
            None => is_flooded(),
        }
    }
}
