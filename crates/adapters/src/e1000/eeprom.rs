//! The EEPROM, a 93C46 of 64 words behind EECD's four wires (manual, 5.3 to 5.6 and 13.4.3; Atmel AT93C46 datasheet
//! for the wires' protocol). Microwire: a rising clock takes DI in; a read answers a dummy 0 and then the word.

use nicety_frame::Mac;
use serde::{Deserialize, Serialize};

/// Words.
pub const WORDS: usize = 64;
/// What all words sum to (manual, 5.6.35).
pub const SUM: u16 = 0xbaba;

/// EECD: clock.
pub const SK: u32 = 1;
/// EECD: chip select.
pub const CS: u32 = 1 << 1;
/// EECD: data in, as the chip sees it.
pub const DI: u32 = 1 << 2;
/// EECD: data out.
pub const DO: u32 = 1 << 3;
/// EECD: access request.
pub const REQ: u32 = 1 << 6;
/// EECD: access granted.
pub const GNT: u32 = 1 << 7;
/// EECD: an EEPROM is there.
pub const PRES: u32 = 1 << 8;

/// Where the protocol stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Phase {
    /// Waits for the start bit.
    Idle,
    /// Opcode and address: bits so far, how many.
    Command(u8, u8),
    /// Sends words from this address on: bits that are out already (0: the dummy).
    Sending(u8, u8),
    /// Takes a word for this address (or for all): bits so far, how many.
    Taking(Option<u8>, u16, u8),
    /// Until deselected.
    Done,
}

/// The chip.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Eeprom {
    words: Vec<u16>,
    phase: Phase,
    wires: u32,
    out: bool,
    writable: bool,
}

impl Eeprom {
    /// A chip as the factory fills it.
    pub fn new(mac: Mac, device: u16, subsystem: u16) -> Self {
        let mut words = vec![0xffff_u16; WORDS];
        let address = mac.0;
        for (word, pair) in words.iter_mut().zip(address.chunks_exact(2)) {
            *word = u16::from(pair[0]) | u16::from(pair[1]) << 8;
        }
        words[0x03] = 0;
        words[0x05] = 0x0100;
        // Signature 01 in bits 15:14, and that identifiers are loaded from here (5.6.9).
        words[0x0a] = 0x6403;
        words[0x0b] = subsystem;
        words[0x0c] = 0x8086;
        words[0x0d] = device;
        words[0x0e] = 0x8086;
        // Pause both ways is advertised (5.6.14).
        words[0x0f] = 0x3040;
        // No wake-up: bit 10 clear (5.6.21).
        words[0x20] = 0x1008;
        words[0x21] = 0;
        words[0x24] = 0;
        words[0x2f] = 0x0602;
        let sum = words[..WORDS - 1].iter().fold(0_u16, |sum, word| sum.wrapping_add(*word));
        words[WORDS - 1] = SUM.wrapping_sub(sum);
        Self { words, phase: Phase::Idle, wires: 0, out: true, writable: false }
    }

    /// Whether saved state can be a chip's.
    pub fn fits(&self) -> bool {
        let phase = match self.phase {
            Phase::Idle | Phase::Done => true,
            Phase::Command(_, n) => n < 8,
            Phase::Sending(address, n) => usize::from(address) < WORDS && n <= 16,
            Phase::Taking(address, _, n) => address.is_none_or(|a| usize::from(a) < WORDS) && n < 16,
        };
        self.words.len() == WORDS && self.wires & !(SK | CS | DI) == 0 && phase
    }

    /// The word at an address; the address wraps, as the chip has six lines.
    pub fn word(&self, address: u32) -> u16 {
        self.words.get(address as usize % WORDS).copied().unwrap_or(0xffff)
    }

    /// The permanent address.
    pub fn mac(&self) -> [u8; 6] {
        let mut out = [0; 6];
        for (pair, word) in out.chunks_exact_mut(2).zip(&self.words) {
            pair.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// The level of the data-out wire: pulled up unless the chip drives it.
    pub fn data_out(&self) -> bool {
        self.out
    }

    /// New levels of clock, select and data in.
    pub fn drive(&mut self, wires: u32) {
        let before = std::mem::replace(&mut self.wires, wires & (SK | CS | DI));
        if wires & CS == 0 || before & CS == 0 {
            self.phase = Phase::Idle;
            self.out = true;
            return;
        }
        if wires & SK != 0 && before & SK == 0 {
            self.clock(wires & DI != 0);
        }
    }

    fn clock(&mut self, bit: bool) {
        self.phase = match self.phase {
            Phase::Idle if bit => Phase::Command(0, 0),
            Phase::Command(bits, n) => {
                let bits = bits << 1 | u8::from(bit);
                if n == 7 { self.command(bits) } else { Phase::Command(bits, n + 1) }
            }
            Phase::Sending(address, n) => {
                let (address, n) = if n == 16 { ((address + 1) % WORDS as u8, 0) } else { (address, n) };
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

    /// Two bits of opcode, six of address.
    fn command(&mut self, bits: u8) -> Phase {
        let address = bits & 0x3f;
        match bits >> 6 {
            0b10 => {
                self.out = false;
                Phase::Sending(address, 0)
            }
            0b01 => Phase::Taking(Some(address), 0, 0),
            0b11 => {
                self.store(Some(address), 0xffff);
                Phase::Done
            }
            _ => match address >> 4 {
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
