//! A Microwire EEPROM, in which many network controllers keep their settings: a 93C46 of 64 words or a 93C66 of 256 (Atmel AT93C46,
//! AT93C66 datasheets). A rising clock edge samples data in. A read returns a dummy 0, then the word, then the following words.

use serde::{Deserialize, Serialize};

/// A wire that the controller drives: clock (SK).
pub const CLOCK: u8 = 1;
/// Chip select (CS).
pub const SELECT: u8 = 1 << 1;
/// Data into the chip (DI).
pub const DATA: u8 = 1 << 2;

/// State of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Phase {
    /// Waits for the start bit.
    Idle,
    /// Receives opcode and address: bits so far, and their number.
    Command(u16, u8),
    /// Sends words from this address on: number of bits sent (0: the dummy).
    Sending(u8, u8),
    /// Receives a word for this address, or for all addresses: bits so far, and their number.
    Taking(Option<u8>, u16, u8),
    /// Ignores the wires until deselected.
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
    /// A chip with these words, 64 or 256 of them.
    pub fn new(words: Vec<u16>) -> Self {
        Self { words, phase: Phase::Idle, wires: 0, out: true, writable: false }
    }

    /// Whether saved state is valid for a chip of this many words.
    pub fn fits(&self, words: usize) -> bool {
        let phase = match self.phase {
            Phase::Idle | Phase::Done => true,
            Phase::Command(_, n) => n < self.command_bits(),
            Phase::Sending(address, n) => usize::from(address) < words && n <= 16,
            Phase::Taking(address, _, n) => address.is_none_or(|a| usize::from(a) < words) && n < 16,
        };
        self.words.len() == words && self.wires & !(CLOCK | SELECT | DATA) == 0 && phase
    }

    /// Number of command bits: two of opcode, then the address.
    fn command_bits(&self) -> u8 {
        2 + self.address_bits() as u8
    }

    fn address_bits(&self) -> u32 {
        self.words.len().max(1).ilog2()
    }

    /// The word at an address. The address wraps, because the chip decodes only its own address bits.
    pub fn word(&self, address: u32) -> u16 {
        self.words.get(address as usize % self.words.len().max(1)).copied().unwrap_or(0xffff)
    }

    /// Level of the data-out wire. It is pulled up unless the chip drives it.
    pub fn data_out(&self) -> bool {
        self.out
    }

    /// Applies new levels of the three wires.
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
