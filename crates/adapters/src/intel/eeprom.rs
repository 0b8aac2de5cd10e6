//! The EEPROM behind EECD's four wires, and its words (Intel 317453, 5.3 to 5.6 and 13.4.3).

use nicety_frame::Mac;

use crate::microwire::{CLOCK, DATA, Microwire, SELECT};

/// Required sum of the words up to [`SUM_AT`] (5.6.35).
pub const SUM: u16 = 0xbaba;
/// Index of the word that adjusts the sum.
pub const SUM_AT: usize = 0x3f;

/// EECD: clock.
const SK: u32 = 1;
/// EECD: chip select.
const CS: u32 = 1 << 1;
/// EECD: data in, from the chip's view.
const DI: u32 = 1 << 2;
/// EECD: data out.
pub const DO: u32 = 1 << 3;
/// EECD: access request.
pub const REQ: u32 = 1 << 6;
/// EECD: access granted.
pub const GNT: u32 = 1 << 7;
/// EECD: an EEPROM is present.
pub const PRES: u32 = 1 << 8;

/// Factory contents of a model's EEPROM, without address and checksum.
#[derive(Debug)]
pub struct Image {
    /// Words.
    pub size: usize,
    /// Words that are not all ones: index and value.
    pub words: &'static [(usize, u16)],
}

impl Image {
    /// Its words, with a permanent address, and optionally another PCI subsystem (vendor and device).
    pub fn contents(&self, mac: Mac, subsystem: Option<(u16, u16)>) -> Vec<u16> {
        let mut words = vec![0xffff_u16; self.size];
        for (word, pair) in words.iter_mut().zip(mac.0.chunks_exact(2)) {
            *word = u16::from_le_bytes([pair[0], pair[1]]);
        }
        // The words of the subsystem: 5.6.10, 5.6.11.
        let other = subsystem.into_iter().flat_map(|(vendor, device)| [(0x0b, device), (0x0c, vendor)]);
        for (at, value) in self.words.iter().copied().chain(other) {
            words[at] = value;
        }
        if let Some((last, others)) = words.get_mut(..=SUM_AT).and_then(<[u16]>::split_last_mut) {
            *last = SUM.wrapping_sub(others.iter().fold(0_u16, |sum, word| sum.wrapping_add(*word)));
        }
        words
    }
}

/// The permanent address in it.
pub fn mac(chip: &Microwire) -> [u8; 6] {
    let [a, b, c] = [0, 1, 2].map(|at| chip.word(at).to_le_bytes());
    [a[0], a[1], b[0], b[1], c[0], c[1]]
}

/// The wires that EECD drives.
pub fn wires(eecd: u32) -> u8 {
    [(SK, CLOCK), (CS, SELECT), (DI, DATA)]
        .into_iter()
        .filter(|(bit, _)| eecd & bit != 0)
        .fold(0, |sum, (_, wire)| sum | wire)
}
