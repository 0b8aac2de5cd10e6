//! The 93C46 behind BCR19: the contents that the chip reads at a reset, and the four wires that software drives ("EEPROM
//! Interface", BCR19).
//!
//! ```text
//!  words 00 to 07   the address PROM
//!  words 08 to 0c   BCR16, BCR17, BCR18, BCR2, BCR21
//!  byte 1f          makes the first 36 bytes' sum FFh
//!  word 10          BCR22
//! ```
//! The words after the address PROM are not loaded: they hold the registers' reset values.

use nicety_frame::Mac;
use serde::{Deserialize, Serialize};

use super::registers::eecas;
use crate::microwire::{CLOCK, DATA, Microwire, SELECT};

/// Number of words.
const WORDS: usize = 64;
/// Bytes that the chip reads.
const READ: usize = 36;
/// The byte that adjusts their sum.
const ADJUST: usize = 0x1f;
/// BCR18, BCR2 and BCR22 after a reset, with their word numbers.
const BUS: [(usize, u16); 3] = [(10, 0x9001), (11, 0x0002), (16, 0xff06)];

/// The EEPROM, and whether the last read found it valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Eeprom {
    chip: Microwire,
    valid: bool,
}

impl Eeprom {
    /// An EEPROM in factory state with a permanent address, already read.
    pub fn new(mac: Mac) -> Self {
        let mut bytes = [0; 2 * WORDS];
        bytes[..16].copy_from_slice(&super::prom(mac));
        for (word, value) in BUS {
            bytes[2 * word..2 * word + 2].copy_from_slice(&value.to_le_bytes());
        }
        bytes[ADJUST] = !sum(&bytes[..READ]);
        let words = bytes.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect();
        Self { chip: Microwire::new(words), valid: true }
    }

    /// Whether saved state is valid.
    pub fn fits(&self) -> bool {
        self.chip.fits(WORDS)
    }

    /// The chip reads it: returns the address PROM's contents, zeros if the sum is wrong.
    pub fn read(&mut self) -> [u8; 16] {
        self.chip.drive(0);
        let mut bytes = [0; READ];
        for (two, address) in bytes.chunks_exact_mut(2).zip(0..) {
            two.copy_from_slice(&self.chip.word(address).to_le_bytes());
        }
        self.valid = sum(&bytes) == 0xff;
        let mut prom = [0; 16];
        if self.valid {
            prom.copy_from_slice(&bytes[..16]);
        }
        prom
    }

    /// A write to BCR19: the wires are driven while EEN is set.
    pub fn drive(&mut self, value: u32) {
        let wires = [(eecas::ESK, CLOCK), (eecas::ECS, SELECT), (eecas::EDI, DATA)];
        let on = wires.into_iter().filter(|(bit, _)| value & eecas::EEN != 0 && value & bit != 0);
        self.chip.drive(on.fold(0, |sum, (_, wire)| sum | wire));
    }

    /// Its bits in BCR19: PVALID, EEDET, and the wire that it drives.
    pub fn shown(&self) -> u32 {
        let bits = [(self.valid, eecas::PVALID), (true, eecas::EEDET), (self.chip.data_out(), eecas::EDI)];
        bits.into_iter().filter(|(on, _)| *on).fold(0, |sum, (_, bit)| sum | bit)
    }
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}
