//! Classic BPF: checks and runs programs. libpcap compiles filter expressions to it (McCanne and Jacobson 1993; the numbers are
//! those of linux/bpf_common.h and linux/filter.h).
//!
//! A client that requests a capture supplies the program. It is checked once: jumps go forward and stay inside, the last
//! instruction returns, and no memory word is out of range. So a run takes at most as many steps as there are instructions. A
//! load beyond the frame's end makes the program return 0, as in libpcap: the frame is not selected.

use std::fmt;

/// Most instructions of a program (BPF_MAXINSNS of linux/bpf_common.h).
pub const INSTRUCTIONS_MAX: usize = 4096;
/// Words of memory (BPF_MEMWORDS).
const WORDS: u32 = 16;

/// One encoded instruction: code, jump if true, jump if false, operand.
pub type Raw = (u16, u8, u8, u32);

/// Errors of a program, with the number of the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BpfError {
    /// The program has no instruction, or more than [`INSTRUCTIONS_MAX`].
    Length(usize),
    /// An instruction is unknown.
    Unknown(usize),
    /// An instruction jumps beyond the end.
    Jump(usize),
    /// An instruction names a memory word that does not exist.
    Word(usize),
    /// An instruction divides by zero, or shifts by too many bits.
    Operand(usize),
    /// The last instruction does not return.
    End,
}

impl fmt::Display for BpfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(length) => write!(f, "a filter has 1 to {INSTRUCTIONS_MAX} instructions, not {length}"),
            Self::Unknown(at) => write!(f, "the filter's instruction {at} is none of classic BPF"),
            Self::Jump(at) => write!(f, "the filter's instruction {at} jumps behind the end"),
            Self::Word(at) => write!(f, "the filter's instruction {at} names a word of memory beyond {WORDS}"),
            Self::Operand(at) => {
                write!(f, "the filter's instruction {at} divides by zero, or shifts by 32 bits or more")
            }
            Self::End => write!(f, "the filter's last instruction does not return"),
        }
    }
}

impl std::error::Error for BpfError {}

/// Instruction classes, and their fields.
mod code {
    pub const LD: u16 = 0x00;
    pub const LDX: u16 = 0x01;
    pub const ST: u16 = 0x02;
    pub const STX: u16 = 0x03;
    pub const ALU: u16 = 0x04;
    pub const JMP: u16 = 0x05;
    pub const RET: u16 = 0x06;
    pub const MISC: u16 = 0x07;

    pub const WORD: u16 = 0x00;
    pub const HALF: u16 = 0x08;
    pub const BYTE: u16 = 0x10;

    pub const IMM: u16 = 0x00;
    pub const ABS: u16 = 0x20;
    pub const IND: u16 = 0x40;
    pub const MEM: u16 = 0x60;
    pub const LEN: u16 = 0x80;
    pub const MSH: u16 = 0xa0;

    pub const X: u16 = 0x08;
    pub const RET_A: u16 = 0x10;
    pub const TXA: u16 = 0x80;

    pub const ADD: u16 = 0x00;
    pub const SUB: u16 = 0x10;
    pub const MUL: u16 = 0x20;
    pub const DIV: u16 = 0x30;
    pub const OR: u16 = 0x40;
    pub const AND: u16 = 0x50;
    pub const LSH: u16 = 0x60;
    pub const RSH: u16 = 0x70;
    pub const NEG: u16 = 0x80;
    pub const MOD: u16 = 0x90;
    pub const XOR: u16 = 0xa0;

    pub const JA: u16 = 0x00;
    pub const JEQ: u16 = 0x10;
    pub const JGT: u16 = 0x20;
    pub const JGE: u16 = 0x30;
    pub const JSET: u16 = 0x40;
}
use code::{
    ABS, ADD, ALU, AND, BYTE, DIV, HALF, IMM, IND, JA, JEQ, JGE, JGT, JMP, JSET, LD, LDX, LEN, LSH, MEM, MISC, MOD,
    MSH, MUL, NEG, OR, RET, RET_A, RSH, ST, STX, SUB, TXA, WORD, X, XOR,
};

/// A checked program.
#[derive(Clone, Debug)]
pub struct Program(Box<[Raw]>);

impl Program {
    /// Checks a program.
    pub fn new(raw: &[Raw]) -> Result<Self, BpfError> {
        if raw.is_empty() || raw.len() > INSTRUCTIONS_MAX {
            return Err(BpfError::Length(raw.len()));
        }
        for (at, &(code, yes, no, k)) in raw.iter().enumerate() {
            let after = raw.len() - at - 1;
            match code & 7 {
                LD | LDX if is_load(code) => {
                    if code & 0xe0 == MEM && k >= WORDS {
                        return Err(BpfError::Word(at));
                    }
                }
                ST | STX if code & !7 == 0 => {
                    if k >= WORDS {
                        return Err(BpfError::Word(at));
                    }
                }
                ALU if code & 0xf0 <= XOR => {
                    let fixed = code & X == 0;
                    if fixed && matches!((code & 0xf0, k), (DIV | MOD, 0) | (LSH | RSH, 32..)) {
                        return Err(BpfError::Operand(at));
                    }
                }
                JMP if code & 0xf0 == JA => {
                    if k as usize >= after {
                        return Err(BpfError::Jump(at));
                    }
                }
                JMP if code & 0xf0 <= JSET => {
                    if usize::from(yes.max(no)) >= after {
                        return Err(BpfError::Jump(at));
                    }
                }
                RET if matches!(code & 0x18, 0 | RET_A) => {}
                MISC if matches!(code & 0xf8, 0 | TXA) => {}
                _ => return Err(BpfError::Unknown(at)),
            }
        }
        match raw.last() {
            Some((code, ..)) if code & 7 == RET => Ok(Self(raw.into())),
            _ => Err(BpfError::End),
        }
    }

    /// Whether the program selects a frame. `frame` has the captured bytes.
    pub fn wants(&self, frame: &[u8]) -> bool {
        self.run(frame).unwrap_or(0) != 0
    }

    /// The program's result. `None` if it reads beyond the frame's end, or divides by zero.
    fn run(&self, frame: &[u8]) -> Option<u32> {
        let (mut a, mut x, mut memory, mut at) = (0u32, 0u32, [0u32; WORDS as usize], 0usize);
        let length = frame.len() as u32;
        while let Some(&(code, yes, no, k)) = self.0.get(at) {
            at += 1;
            match code & 7 {
                LD => {
                    a = match code & 0xe0 {
                        IMM => k,
                        LEN => length,
                        MEM => memory[k as usize],
                        ABS => load(frame, k, code)?,
                        _ => load(frame, x.checked_add(k)?, code)?,
                    }
                }
                LDX => {
                    x = match code & 0xe0 {
                        IMM => k,
                        LEN => length,
                        MEM => memory[k as usize],
                        // Four times the low half of a byte: the length of an IPv4 header.
                        _ => 4 * (load(frame, k, BYTE)? & 0xf),
                    }
                }
                ST => memory[k as usize] = a,
                STX => memory[k as usize] = x,
                ALU => a = computed(code & 0xf0, a, if code & X == 0 { k } else { x })?,
                JMP if code & 0xf0 == JA => at += k as usize,
                JMP => {
                    let operand = if code & X == 0 { k } else { x };
                    let is_so = match code & 0xf0 {
                        JEQ => a == operand,
                        JGT => a > operand,
                        JGE => a >= operand,
                        _ => a & operand != 0,
                    };
                    at += usize::from(if is_so { yes } else { no });
                }
                RET => return Some(if code & 0x18 == RET_A { a } else { k }),
                _ if code & 0xf8 == TXA => a = x,
                _ => x = a,
            }
        }
        None
    }
}

fn is_load(code: u16) -> bool {
    let (size, mode) = (code & 0x18, code & 0xe0);
    match (code & 7, mode) {
        (_, IMM | MEM | LEN) => size == WORD,
        (LD, ABS | IND) => matches!(size, WORD | HALF | BYTE),
        (LDX, MSH) => size == BYTE,
        _ => false,
    }
}

/// A big-endian number in the frame.
fn load(frame: &[u8], at: u32, code: u16) -> Option<u32> {
    let rest = frame.get(at as usize..)?;
    match code & 0x18 {
        WORD => rest.first_chunk().map(|bytes| u32::from_be_bytes(*bytes)),
        HALF => rest.first_chunk().map(|bytes| u16::from_be_bytes(*bytes).into()),
        _ => rest.first().map(|byte| u32::from(*byte)),
    }
}

fn computed(operation: u16, a: u32, operand: u32) -> Option<u32> {
    Some(match operation {
        ADD => a.wrapping_add(operand),
        SUB => a.wrapping_sub(operand),
        MUL => a.wrapping_mul(operand),
        DIV => a.checked_div(operand)?,
        MOD => a.checked_rem(operand)?,
        OR => a | operand,
        AND => a & operand,
        XOR => a ^ operand,
        LSH => a.checked_shl(operand).unwrap_or(0),
        RSH => a.checked_shr(operand).unwrap_or(0),
        NEG => a.wrapping_neg(),
        _ => return None,
    })
}

#[cfg(test)]
#[path = "bpf_test.rs"]
mod tests;
