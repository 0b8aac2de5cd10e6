//! The receiver's address filter: sixteen exact addresses (24 in the 82576), a hash table of 4096 bits for multicast, a bit for
//! each VLAN (Intel 317453, 3.2.1, 9.3 and 13.5).

use arrayvec::ArrayVec;
use nicety_adapter::bank::Block;
use nicety_frame::Tci;

use super::registers::*;

/// Offset of checksum control and the hash table.
pub const AT: u32 = 0x5000;
/// Checksum control and the hash table.
pub const ROWS: &[Row] = &[rw(RXCSUM, 0x5000, 0x0000_07ff, 0, "13.5.3"), rw(MTA, 0x5200, ALL, 0, "13.5.1").times(128)];
/// The exact addresses.
pub const ADDRESSES: Block<Reg> = Block {
    region: 0,
    base: 0x5400,
    stride: 8,
    count: 16,
    rows: &[rw(RAL, 0x5400, ALL, 0, "13.5.2"), rw(RAH, 0x5404, 0x8003_ffff, 0, "13.5.2")],
};
/// Offset of the VLAN table.
pub const VLANS_AT: u32 = 0x5600;
/// The VLAN table.
pub const VLANS: &[Row] = &[rw(VFTA, 0x5600, ALL, 0, "13.5.4").times(128)];

/// The rule by which a frame passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// An exact address, or broadcast.
    Exact,
    /// The hash table or a promiscuous mode.
    Inexact,
}

/// The valid exact addresses, cached so that a frame need not be compared with all register pairs.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Address as 48 bits, first byte lowest; and whether it is compared with the source address.
    exact: ArrayVec<(u64, bool), 24>,
}

#[inline(always)]
fn address(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(&[a, b, c, d, e, f]) => u64::from_le_bytes([a, b, c, d, e, f, 0, 0]),
        None => bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
    }
}

impl Filter {
    /// Reads the receive addresses again.
    pub fn load(&mut self, registers: &Bank) {
        self.exact.clear();
        let low = registers.of(RAL).iter().chain(registers.of(RAL2));
        let high = registers.of(RAH).iter().chain(registers.of(RAH2));
        for (&low, &high) in low.zip(high) {
            let select = high >> 16 & 3;
            if high >> 31 != 0 && select < 2 && !self.exact.is_full() {
                self.exact.push((u64::from(low) | u64::from(high & 0xffff) << 32, select == 1));
            }
        }
    }

    /// Whether no frame passes, whatever its addresses.
    pub fn is_closed(&self, registers: &Bank) -> bool {
        let some = rctl::UPE | rctl::MPE | rctl::BAM;
        self.exact.is_empty() && registers[RCTL] & some == 0 && registers.of(MTA).iter().all(|word| *word == 0)
    }

    /// The rule by which a frame with this head passes; `None` if it does not pass. `tag`: the frame's outer tag, if its type is that of
    /// the VET register.
    #[inline]
    pub fn wants(&self, registers: &Bank, head: &[u8], tag: Option<Tci>) -> Option<Match> {
        let control = registers[RCTL];
        if let Some(tci) = tag {
            let id = usize::from(tci.id());
            if control & rctl::VFE != 0 && registers.of(VFTA)[id >> 5] >> (id & 31) & 1 == 0 {
                return None;
            }
            if control & rctl::CFIEN != 0 && tci.drop_eligible() != (control & rctl::CFI != 0) {
                return None;
            }
        }
        let destination = address(head);
        let source = address(head.get(6..).unwrap_or_default());
        if self.exact.iter().any(|&(want, by_source)| want == if by_source { source } else { destination }) {
            return Some(Match::Exact);
        }
        if destination == 0xffff_ffff_ffff && control & rctl::BAM != 0 {
            return Some(Match::Exact);
        }
        let passes = if destination & 1 == 0 {
            control & rctl::UPE != 0
        } else {
            control & rctl::MPE != 0 || hashed(registers, destination)
        };
        passes.then_some(Match::Inexact)
    }
}

/// The hash is twelve of the address's last sixteen bits, selected by RCTL.MO.
fn hashed(registers: &Bank, destination: u64) -> bool {
    let last = (destination >> 32) as u32 & 0xffff;
    let hash = match registers[RCTL] >> 12 & 3 {
        0 => last >> 4,
        1 => last >> 3,
        2 => last >> 2,
        _ => last,
    } & 0xfff;
    registers.of(MTA)[(hash >> 5) as usize] >> (hash & 31) & 1 != 0
}
