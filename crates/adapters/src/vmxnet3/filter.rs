//! The driver's receive filter: receive mode, own address, multicast table, VLAN table (`struct Vmxnet3_RxFilterConf`).

use nicety_frame::ethernet::ethertype;
use nicety_frame::{Mac, Tag};
use nicety_memory::{Fault, Map};
use serde::{Deserialize, Serialize};

use super::registers::mode;
use super::shared::{read32, read64};

/// Offset of `rxFilterConf` in DriverShared.
const FILTER: u64 = 120;
/// Maximum multicast addresses that are filtered individually. With more, all pass, as in chips whose table is full, and the
/// driver's stack filters them again. The table may have 10,922; sorting them takes a fifth of a millisecond.
const GROUPS: usize = 512;
/// Only entry of [`Filter::groups`] when there are more than [`GROUPS`]. No address has this many bits.
const ALL: u64 = u64::MAX;
/// Words of the VLAN table, 32 identifiers each.
const VLAN_WORDS: usize = 128;

/// The filter from the last command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    mode: u32,
    /// Multicast addresses, sorted: at most [`GROUPS`], or [`ALL`].
    groups: Vec<u64>,
    /// A bit for each VLAN; empty: all VLANs pass.
    vlans: Vec<u32>,
}

impl Filter {
    /// Whether saved state is valid.
    pub fn valid(&self) -> bool {
        let sorted = self.groups.is_sorted();
        sorted && self.groups.len() <= GROUPS && matches!(self.vlans.len(), 0 | VLAN_WORDS)
    }

    /// UPDATE_RX_MODE.
    pub fn read_mode(&mut self, memory: &Map, shared: u64) -> Result<(), Fault> {
        self.mode = read32(memory, shared + FILTER)?;
        Ok(())
    }

    /// UPDATE_MAC_FILTERS. Returns the number of addresses. If they cannot be read, all groups pass: the driver has joined others than
    /// before, and its stack filters again.
    pub fn read_groups(&mut self, memory: &Map, shared: u64) -> Result<u32, Fault> {
        let mut bytes = [[0; 6]; GROUPS];
        let read = read_addresses(memory, shared, &mut bytes);
        self.groups.clear();
        let Ok(Some(addresses)) = read else {
            self.groups.push(ALL);
            return read.map(|_| 0);
        };
        self.groups.extend(addresses.iter().map(|&address| Mac(address).to_u64()));
        self.groups.sort_unstable();
        Ok(addresses.len() as u32)
    }

    /// Whether no frame passes, whatever its address.
    pub fn is_closed(&self) -> bool {
        let some = mode::PROMISCUOUS | mode::BROADCAST | mode::ALL_MULTICAST | mode::MULTICAST | mode::UNICAST;
        self.mode & some == 0
    }

    /// Whether a multicast address is in the table.
    fn has_group(&self, address: Mac) -> bool {
        self.groups == [ALL] || self.groups.binary_search(&address.to_u64()).is_ok()
    }

    /// UPDATE_VLAN_FILTERS. A table without any bit filters nothing: Linux `vmxnet3_set_mc` clears it for promiscuous mode; iPXE
    /// never sets a bit and expects tagged frames. If the table cannot be read, all VLANs pass.
    pub fn read_vlans(&mut self, memory: &Map, shared: u64) -> Result<(), Fault> {
        let mut bytes = [0; 4 * VLAN_WORDS];
        self.vlans.clear();
        memory.read(shared + FILTER + 16, &mut bytes)?;
        let (words, _) = bytes.as_chunks::<4>();
        if words.iter().any(|&word| word != [0; 4]) {
            self.vlans.extend(words.iter().map(|&word| u32::from_le_bytes(word)));
        }
        Ok(())
    }

    /// Whether the packet passes the filter.
    pub fn wants(&self, own: Mac, head: &[u8], tag: Option<Tag>) -> bool {
        if self.mode & mode::PROMISCUOUS != 0 {
            return true;
        }
        let Some(&target) = head.first_chunk::<6>() else { return false };
        let target = Mac(target);
        let wanted = if target.is_broadcast() {
            self.mode & mode::BROADCAST != 0
        } else if target.is_multicast() {
            self.mode & mode::ALL_MULTICAST != 0 || (self.mode & mode::MULTICAST != 0 && self.has_group(target))
        } else {
            self.mode & mode::UNICAST != 0 && target == own
        };
        wanted && self.wants_vlan(tag)
    }

    /// The table has 802.1Q identifiers: an 802.1ad tag passes, like any other type.
    fn wants_vlan(&self, tag: Option<Tag>) -> bool {
        let vlan = tag.filter(|tag| tag.tpid == ethertype::VLAN).map(|tag| tag.tci.id());
        let Some(vlan) = vlan.filter(|&vlan| vlan != 0) else { return true };
        self.vlans.get(usize::from(vlan >> 5)).is_none_or(|word| word >> (vlan & 31) & 1 != 0)
    }
}

/// The driver's multicast addresses; `None` if there are more than `bytes` holds.
fn read_addresses<'a>(
    memory: &Map,
    shared: u64,
    bytes: &'a mut [[u8; 6]; GROUPS],
) -> Result<Option<&'a [[u8; 6]]>, Fault> {
    let count = usize::from(read32(memory, shared + FILTER + 4)? as u16) / 6;
    let Some(addresses) = bytes.get_mut(..count) else { return Ok(None) };
    if count > 0 {
        memory.read(read64(memory, shared + FILTER + 8)?, addresses.as_flattened_mut())?;
    }
    Ok(Some(addresses))
}
