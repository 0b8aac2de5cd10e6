//! The nonvolatile memory of the PCI Express chips: a flash, its copy in the chip (shadow RAM), and the registers that read and write
//! words (82574 datasheet, 3.4 and 10.2.2: EECD, EERD, EEWR).

use nicety_frame::Mac;
use serde::{Deserialize, Serialize};

use super::eeprom::subsystem_words;

/// Words of the shadow RAM.
pub const WORDS: usize = 2048;
/// The word that adjusts the sum of the words up to it to [`SUM`].
const CHECKSUM: usize = 0x3f;
/// Required sum.
const SUM: u16 = 0xbaba;

/// EERD, EEWR: begin.
const START: u32 = 1;
/// EERD, EEWR: done.
pub const DONE: u32 = 1 << 1;

/// EECD: access request.
pub const REQ: u32 = 1 << 6;
/// EECD: access granted.
pub const GNT: u32 = 1 << 7;
/// EECD: a memory is present.
pub const PRES: u32 = 1 << 8;
/// EECD: the chip has read it.
pub const AUTO_RD: u32 = 1 << 9;
/// EECD: it is a flash.
pub const FLASH: u32 = 3 << 15;
/// EECD: write the shadow RAM back; clears itself.
pub const FLUPD: u32 = 1 << 19;

/// The memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nvm {
    flash: Vec<u16>,
    shadow: Vec<u16>,
}

impl Nvm {
    /// A memory in factory state: an address, words that are not all ones, and optionally another PCI subsystem (vendor and
    /// device).
    pub fn new(mac: Mac, words: &[(usize, u16)], subsystem: Option<(u16, u16)>) -> Self {
        let mut flash = vec![0xffff_u16; WORDS];
        for (word, pair) in flash.iter_mut().zip(mac.0.chunks_exact(2)) {
            *word = u16::from_le_bytes([pair[0], pair[1]]);
        }
        for (at, value) in words.iter().copied().chain(subsystem_words(subsystem)) {
            flash[at] = value;
        }
        flash[CHECKSUM] =
            SUM.wrapping_sub(flash.iter().take(CHECKSUM).fold(0, |sum: u16, word| sum.wrapping_add(*word)));
        let shadow = flash.clone();
        Self { flash, shadow }
    }

    /// Whether saved state is valid.
    pub fn fits(&self) -> bool {
        self.flash.len() == WORDS && self.shadow.len() == WORDS
    }

    /// Whether the checksum is right. If not, the chip loads nothing from here.
    pub fn is_valid(&self) -> bool {
        self.shadow.iter().take(CHECKSUM + 1).fold(0, |sum: u16, word| sum.wrapping_add(*word)) == SUM
    }

    /// The permanent address.
    pub fn mac(&self) -> [u8; 6] {
        let [a, b, c] = [0, 1, 2].map(|at| self.shadow.get(at).copied().unwrap_or(0).to_le_bytes());
        [a[0], a[1], b[0], b[1], c[0], c[1]]
    }

    /// A write to EERD: returns its new value. The address is in bits 15:2.
    pub fn read(&self, value: u32) -> u32 {
        let at = value & 0xfffc;
        let word = self.shadow.get((at >> 2) as usize).copied().unwrap_or(0xffff);
        if value & START == 0 { at } else { at | u32::from(word) << 16 | DONE }
    }

    /// A write to EEWR: returns its new value.
    pub fn write(&mut self, value: u32) -> u32 {
        if let Some(word) = self.shadow.get_mut((value >> 2 & 0x3fff) as usize).filter(|_| value & START != 0) {
            *word = (value >> 16) as u16;
        }
        value & !START | DONE
    }

    /// The shadow RAM is written back.
    pub fn commit(&mut self) {
        self.flash.copy_from_slice(&self.shadow);
    }

    /// Loads the shadow RAM again, as after every reset.
    pub fn reload(&mut self) {
        self.shadow.copy_from_slice(&self.flash);
    }
}
