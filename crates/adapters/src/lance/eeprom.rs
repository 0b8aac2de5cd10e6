//! The 93C46 behind BCR19: what the chip reads of it at a reset, and the four wires that software drives ("EEPROM Interface", BCR19).
//!
//! ```text
//!  words 00 to 07   the address PROM
//!  words 08 to 0c   BCR16, BCR17, BCR18, BCR2, BCR21
//!  byte 1f          makes the first 36 bytes' sum FFh
//!  word 10          BCR22
//! ```
//! Nothing of the words behind the address PROM is loaded: they hold what the registers have after a reset.

use nicety_frame::Mac;
use serde::{Deserialize, Serialize};

use super::registers::eecas;
use crate::microwire::{CLOCK, DATA, Microwire, SELECT};

/// Words in it.
const WORDS: usize = 64;
/// Bytes that the chip reads.
const READ: usize = 36;
/// The byte that makes up their sum.
const ADJUST: usize = 0x1f;
/// BCR18, BCR2 and BCR22 after a reset, and where they lie.
const BUS: [(usize, u16); 3] = [(10, 0x9001), (11, 0x0002), (16, 0xff06)];

/// The EEPROM, and whether what was last read of it made sense.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Eeprom {
    chip: Microwire,
    valid: bool,
}

impl Eeprom {
    /// As the factory leaves it, with a permanent address, and read.
    pub fn new(mac: Mac) -> Self {
        Self::of(&super::prom(mac))
    }

    /// With this address PROM.
    pub fn of(prom: &[u8; 16]) -> Self {
        let mut bytes = [0; 2 * WORDS];
        bytes[..16].copy_from_slice(prom);
        for (word, value) in BUS {
            bytes[2 * word..2 * word + 2].copy_from_slice(&value.to_le_bytes());
        }
        bytes[ADJUST] = !sum(&bytes[..READ]);
        let words = bytes.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect();
        Self { chip: Microwire::new(words), valid: true }
    }

    /// Whether this, which was saved, can be.
    pub fn fits(&self) -> bool {
        self.chip.fits(WORDS)
    }

    /// The chip reads it: what the address PROM shows then. Zeros if the sum is another.
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

    /// BCR19 is written: wires are driven while EEN is set.
    pub fn drive(&mut self, value: u32) {
        let wires = [(eecas::ESK, CLOCK), (eecas::ECS, SELECT), (eecas::EDI, DATA)];
        let on = wires.into_iter().filter(|(bit, _)| value & eecas::EEN != 0 && value & bit != 0);
        self.chip.drive(on.fold(0, |sum, (_, wire)| sum | wire));
    }

    /// What BCR19 shows of it: PVALID, EEDET, and the wire that it drives.
    pub fn shown(&self) -> u32 {
        let bits = [(self.valid, eecas::PVALID), (true, eecas::EEDET), (self.chip.data_out(), eecas::EDI)];
        bits.into_iter().filter(|(on, _)| *on).fold(0, |sum, (_, bit)| sum | bit)
    }
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}
