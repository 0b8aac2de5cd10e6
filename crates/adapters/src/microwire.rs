//! A Microwire EEPROM, which many network controllers keep their settings in: a 93C46 of 64 words or a 93C66 of 256
//! (Atmel AT93C46, AT93C66 datasheets). A rising clock takes data in; a read answers a dummy 0 and then the word, and
//! goes on with the next ones.

use serde::{Deserialize, Serialize};

/// A wire that the controller drives: clock (SK).
pub const CLOCK: u8 = 1;
/// Chip select (CS).
pub const SELECT: u8 = 1 << 1;
/// Data into the chip (DI).
pub const DATA: u8 = 1 << 2;

/// Where the protocol stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Phase {
    /// Waits for the start bit.
    Idle,
    /// Opcode and address: bits so far, how many.
    Command(u16, u8),
    /// Sends words from this address on: bits that are out already (0: the dummy).
    Sending(u8, u8),
    /// Takes a word for this address (or for all): bits so far, how many.
    Taking(Option<u8>, u16, u8),
    /// Until deselected.
    Done,
}

/// The chip.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Microwire {
    words: Vec<u16>,
    phase: Phase,
    wires: u8,
    out: bool,
    writable: bool,
}

impl Microwire {
    /// A chip with these words, 64 or 256.
    pub fn new(words: Vec<u16>) -> Self {
        Self { words, phase: Phase::Idle, wires: 0, out: true, writable: false }
    }

    /// Whether saved state can be that of a chip of so many words.
    pub fn fits(&self, words: usize) -> bool {
        let phase = match self.phase {
            Phase::Idle | Phase::Done => true,
            Phase::Command(_, n) => n < self.command_bits(),
            Phase::Sending(address, n) => usize::from(address) < words && n <= 16,
            Phase::Taking(address, _, n) => address.is_none_or(|a| usize::from(a) < words) && n < 16,
        };
        self.words.len() == words && self.wires & !(CLOCK | SELECT | DATA) == 0 && phase
    }

    /// Two bits of opcode, and the address.
    fn command_bits(&self) -> u8 {
        2 + self.address_bits() as u8
    }

    fn address_bits(&self) -> u32 {
        self.words.len().max(1).ilog2()
    }

    /// The word at an address; the address wraps, as the chip has so many lines.
    pub fn word(&self, address: u32) -> u16 {
        self.words.get(address as usize % self.words.len().max(1)).copied().unwrap_or(0xffff)
    }

    /// The level of the data-out wire: pulled up unless the chip drives it.
    pub fn data_out(&self) -> bool {
        self.out
    }

    /// New levels of the three wires.
    pub fn drive(&mut self, wires: u8) {
        let before = std::mem::replace(&mut self.wires, wires & (CLOCK | SELECT | DATA));
        if wires & SELECT == 0 || before & SELECT == 0 {
            self.phase = Phase::Idle;
            self.out = true;
            return;
        }
        if wires & CLOCK != 0 && before & CLOCK == 0 {
            self.clock(wires & DATA != 0);
        }
    }

    fn clock(&mut self, bit: bool) {
        self.phase = match self.phase {
            Phase::Idle if bit => Phase::Command(0, 0),
            Phase::Command(bits, n) => {
                let bits = bits << 1 | u16::from(bit);
                if n + 1 == self.command_bits() { self.command(bits) } else { Phase::Command(bits, n + 1) }
            }
            Phase::Sending(address, n) => {
                let (address, n) = if n == 16 {
                    (((usize::from(address) + 1) % self.words.len().max(1)) as u8, 0)
                } else {
                    (address, n)
                };
                self.out = self.word(u32::from(address)) >> (15 - n) & 1 != 0;
                Phase::Sending(address, n + 1)
            }
            Phase::Taking(address, bits, n) => {
                let bits = bits << 1 | u16::from(bit);
                if n == 15 {
                    self.store(address, bits);
                    Phase::Done
                } else {
                    Phase::Taking(address, bits, n + 1)
                }
            }
            other => other,
        };
    }

    fn command(&mut self, bits: u16) -> Phase {
        let lines = self.address_bits();
        let address = (bits & ((1 << lines) - 1)) as u8;
        match bits >> lines & 3 {
            0b10 => {
                self.out = false;
                Phase::Sending(address, 0)
            }
            0b01 => Phase::Taking(Some(address), 0, 0),
            0b11 => {
                self.store(Some(address), 0xffff);
                Phase::Done
            }
            _ => match address >> lines.saturating_sub(2) {
                0b11 => {
                    self.writable = true;
                    Phase::Done
                }
                0b10 => {
                    self.store(None, 0xffff);
                    Phase::Done
                }
                0b01 => Phase::Taking(None, 0, 0),
                _ => {
                    self.writable = false;
                    Phase::Done
                }
            },
        }
    }

    fn store(&mut self, address: Option<u8>, value: u16) {
        match address.map(usize::from) {
            _ if !self.writable => {}
            Some(address) => self.words.iter_mut().skip(address).take(1).for_each(|word| *word = value),
            None => self.words.fill(value),
        }
    }
}
