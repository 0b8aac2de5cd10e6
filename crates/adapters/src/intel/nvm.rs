//! The nonvolatile memory of the PCI Express chips: a flash, its copy in the chip (shadow RAM), and the registers that read and write
//! words (82574 datasheet, 3.4 and 10.2.2: EECD, EERD, EEWR).

use serde::{Deserialize, Serialize};

use super::eeprom::{SUM, SUM_AT};

/// Words of the shadow RAM.
pub const WORDS: usize = 2048;
/// EERD, EEWR: begin.
const START: u32 = 1;
/// EERD, EEWR: done.
pub const DONE: u32 = 1 << 1;

/// EECD: the chip has read it.
pub const AUTO_RD: u32 = 1 << 9;
/// EECD: it is a flash.
pub const FLASH: u32 = 3 << 15;
/// EECD: write the shadow RAM back; clears itself.
pub const FLUPD: u32 = 1 << 19;

/// A write to EERD: its new value. The address is in bits 15:2; `word` has the word there, if there is one.
pub fn eerd(value: u32, word: impl FnOnce(u32) -> Option<u16>) -> u32 {
    let at = value & 0xfffc;
    if value & START == 0 { at } else { at | u32::from(word(at >> 2).unwrap_or(0xffff)) << 16 | DONE }
}

/// The memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nvm {
    flash: Vec<u16>,
    shadow: Vec<u16>,
}

impl Nvm {
    /// A memory with these words.
    pub fn new(words: Vec<u16>) -> Self {
        Self { shadow: words.clone(), flash: words }
    }

    /// Whether saved state is valid.
    pub fn fits(&self) -> bool {
        self.flash.len() == WORDS && self.shadow.len() == WORDS
    }

    /// Whether the checksum is right. If not, the chip loads nothing from here.
    pub fn is_valid(&self) -> bool {
        self.shadow.iter().take(SUM_AT + 1).fold(0, |sum: u16, word| sum.wrapping_add(*word)) == SUM
    }

    /// The permanent address.
    pub fn mac(&self) -> [u8; 6] {
        let [a, b, c] = [0, 1, 2].map(|at| self.shadow.get(at).copied().unwrap_or(0).to_le_bytes());
        [a[0], a[1], b[0], b[1], c[0], c[1]]
    }

    /// A word.
    pub fn word(&self, address: u32) -> Option<u16> {
        self.shadow.get(address as usize).copied()
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
