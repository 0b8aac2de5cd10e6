//! The receiver's address filter: its own address, broadcasts, a hash of 64 bits for multicast ("Address Matching"; CSR8 to CSR15).

use super::registers::{self as r, Bank, mode};
use super::ring::{BAM, LAFM, PAM};

/// The match of a frame's destination, in the bits of a receive descriptor; `None` if the frame does not pass.
pub fn wants(registers: &Bank, head: &[u8]) -> Option<u32> {
    let control = registers[r::MODE];
    let destination = head.first_chunk::<6>()?;
    let mut how = 0;
    if *destination == [0xff; 6] && control & mode::DRCVBC == 0 {
        how = BAM;
    } else if destination[0] & 1 != 0 {
        how = if hashed(registers, destination) { LAFM } else { 0 };
    } else if control & mode::DRCVPA == 0 && own(registers, destination) {
        how = PAM;
    }
    (how != 0 || control & mode::PROM != 0).then_some(how)
}

fn own(registers: &Bank, destination: &[u8; 6]) -> bool {
    destination.chunks_exact(2).zip(registers.of(r::PADR)).all(|(two, word)| match two {
        [low, high] => u32::from(*low) | u32::from(*high) << 8 == *word,
        _ => false,
    })
}

/// The hash is the six upper bits of the destination's CRC (CSR8: LADRF).
fn hashed(registers: &Bank, destination: &[u8; 6]) -> bool {
    let bit = (crc32(destination) >> 26) as usize;
    registers.of(r::LADR).get(bit >> 4).is_some_and(|word| word >> (bit & 15) & 1 != 0)
}

/// The CRC of IEEE 802.3, 3.2.9, before the complement.
fn crc32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc: u32, _| crc >> 1 ^ if crc & 1 != 0 { 0xedb8_8320 } else { 0 })
    })
}
