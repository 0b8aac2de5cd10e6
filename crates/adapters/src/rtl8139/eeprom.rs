//! The 93C46 behind the 9346CR's four wires, and its words (RTL8139C 1.4, EEPROM contents).

use nicety_frame::Mac;

use super::models::{DEVICE, REALTEK};
use super::registers::eecr;
use crate::microwire::{CLOCK, DATA, Microwire, SELECT};

/// Number of words.
pub const WORDS: usize = 64;
/// The first word, by which the chip recognises valid contents.
const SIGNATURE: u16 = 0x8129;
/// Index of the address.
const ADDRESS: usize = 7;

/// A chip in factory state, with a permanent address.
pub fn chip(mac: Mac) -> Microwire {
    let mut words = vec![0; WORDS];
    words[..5].copy_from_slice(&[SIGNATURE, REALTEK, DEVICE, REALTEK, DEVICE]);
    for (word, pair) in words[ADDRESS..].iter_mut().zip(mac.0.chunks_exact(2)) {
        *word = u16::from_le_bytes([pair[0], pair[1]]);
    }
    Microwire::new(words)
}

/// Its permanent address, in the ID registers' form; zeros without the signature.
pub fn address(chip: &Microwire) -> (u32, u32) {
    if chip.word(0) != SIGNATURE {
        return (0, 0);
    }
    let [a, b, c] = [0, 1, 2].map(|at| u32::from(chip.word(ADDRESS as u32 + at)));
    (a | b << 16, c)
}

/// Wires that the register drives: none outside the programming mode.
pub fn wires(value: u32) -> u8 {
    if value & eecr::MODE != eecr::PROGRAM {
        return 0;
    }
    let wires = [(eecr::SK, CLOCK), (eecr::CS, SELECT), (eecr::DI, DATA)];
    wires.into_iter().filter(|(bit, _)| value & bit != 0).fold(0, |sum, (_, wire)| sum | wire)
}
