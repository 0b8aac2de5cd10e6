//! Which frames the receiver wants: sixteen exact addresses, a hash table of 4096 bits for multicast, a bit for each
//! VLAN (manual, 3.2.1, 9.3 and 13.5).

use arrayvec::ArrayVec;

use super::registers::{self as r, rctl};

/// How a frame came through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// By an exact address, or as a broadcast.
    Exact,
    /// By the hash table or a promiscuous mode.
    Inexact,
}

/// The exact addresses that are valid, kept apart so that a frame is not held against sixteen pairs of registers.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Address as 48 bits, first byte lowest; whether the source address is compared.
    exact: ArrayVec<(u64, bool), 16>,
}

fn address(bytes: &[u8]) -> u64 {
    bytes.iter().take(6).rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

impl Filter {
    /// Reads the receive addresses again.
    pub fn load(&mut self, registers: &[u32]) {
        self.exact.clear();
        let pairs = registers.get(r::RAL0..r::RAL0 + r::RA_DWORDS).unwrap_or_default();
        for pair in pairs.chunks_exact(2) {
            let (low, high) = (pair[0], pair[1]);
            let select = high >> 16 & 3;
            if high >> 31 != 0 && select < 2 && !self.exact.is_full() {
                self.exact.push((u64::from(low) | u64::from(high & 0xffff) << 32, select == 1));
            }
        }
    }

    /// Whether the receiver wants a frame with this head and this outer tag.
    pub fn wants(&self, registers: &[u32], head: &[u8], tag: Option<u16>) -> Option<Match> {
        let control = registers[r::RCTL];
        if let Some(tci) = tag {
            let id = usize::from(tci & 0xfff);
            if control & rctl::VFE != 0 && registers[r::VFTA + (id >> 5)] >> (id & 31) & 1 == 0 {
                return None;
            }
            let form = if control & rctl::CFI != 0 { 1 } else { 0 };
            if control & rctl::CFIEN != 0 && tci >> 12 & 1 != form {
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

/// The hash is twelve of the sixteen last bits of the address; RCTL.MO says which.
fn hashed(registers: &[u32], destination: u64) -> bool {
    let last = (destination >> 32) as u32 & 0xffff;
    let hash = match registers[r::RCTL] >> 12 & 3 {
        0 => last >> 4,
        1 => last >> 3,
        2 => last >> 2,
        _ => last,
    } & 0xfff;
    registers[r::MTA + (hash >> 5) as usize] >> (hash & 31) & 1 != 0
}
