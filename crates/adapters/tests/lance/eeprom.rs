//! The EEPROM behind BCR19: a 93C46, bit by bit.

use nicety_adapter::Reset;

use crate::bench::*;

const PVALID: u16 = 0x8000;
const PREAD: u16 = 0x4000;
const EEDET: u16 = 0x2000;
const EEN: u16 = 0x10;
const ECS: u16 = 4;
const ESK: u16 = 2;
const EDI: u16 = 1;

/// Clocks one bit in, and returns the bit that comes out.
fn clock(b: &mut Bench, bit: u32) -> u32 {
    let data = EEN | ECS | if bit & 1 != 0 { EDI } else { 0 };
    b.wbcr(19, data);
    b.wbcr(19, data | ESK);
    u32::from(b.bcr(19) & EDI)
}

/// Sends a start bit and `count` bits of a command, and returns `answer` bits.
fn command(b: &mut Bench, bits: u32, count: u32, answer: u32) -> u32 {
    b.wbcr(19, EEN);
    b.wbcr(19, EEN | ECS);
    clock(b, 1);
    (0..count).rev().for_each(|at| _ = clock(b, bits >> at));
    let word = (0..answer).fold(0, |word, _| word << 1 | clock(b, 0));
    b.wbcr(19, EEN);
    word
}

fn read(b: &mut Bench, address: u32) -> u16 {
    command(b, 0b10 << 6 | address, 8, 16) as u16
}

fn write(b: &mut Bench, address: u32, word: u16) {
    command(b, 0b01 << 22 | address << 16 | u32::from(word), 24, 0);
}

fn bytes(b: &mut Bench) -> Vec<u8> {
    (0..18).flat_map(|address| read(b, address).to_le_bytes()).collect()
}

fn prom(b: &mut Bench) -> Vec<u8> {
    (0..16).map(|at| b.r8(at)).collect()
}

#[test]
fn it_holds_the_address_prom_and_its_first_36_bytes_add_up_to_ff() {
    let mut b = Bench::new();
    assert_eq!(b.bcr(19) & !EDI, PVALID | EEDET | ESK, "it was read at the reset");
    let (stored, shown) = (bytes(&mut b), prom(&mut b));
    assert_eq!(stored[..16], shown);
    assert_eq!(stored.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)), 0xff);
    assert_eq!((read(&mut b, 10), read(&mut b, 16)), (b.bcr(18), b.bcr(22)));
    b.wbcr(19, ECS | ESK | EDI);
    assert_eq!(b.bcr(19) & EDI, EDI, "no wire is driven while EEN is off");
}

#[test]
fn what_software_writes_is_loaded_when_it_asks_and_survives_a_reset() {
    let mut b = Bench::new();
    write(&mut b, 0, 0x7777);
    assert_eq!(read(&mut b, 0), 0x5452, "writing was not enabled");
    command(&mut b, 0b0011_0000, 8, 0);
    write(&mut b, 0, 0x7777);
    assert_eq!((read(&mut b, 0), b.r8(0)), (0x7777, 0x52), "it is not loaded yet");
    b.wbcr(19, PREAD);
    assert_eq!(b.bcr(19) & (PVALID | PREAD | EEDET), EEDET, "its sum is another");
    assert_eq!(prom(&mut b), [0; 16]);
    let adjust = read(&mut b, 15);
    let more = 0x77 + 0x77 - 0x52 - 0x54_u16;
    write(&mut b, 15, adjust.wrapping_sub(more << 8));
    b.wbcr(19, PREAD);
    assert_eq!(b.bcr(19) & (PVALID | PREAD | EEDET), PVALID | EEDET);
    assert_eq!(prom(&mut b)[..6], [0x77, 0x77, 0x00, 0x12, 0x34, 0x56]);
    b.call(|nic, cx| nic.reset(Reset::Bus, cx));
    assert_eq!(prom(&mut b)[..3], [0x77, 0x77, 0x00]);
    assert_eq!(b.csr(12), 0x7777, "the station's address after it");
}

#[test]
fn a_chip_that_is_saved_in_the_middle_of_a_word_goes_on_with_it() {
    let mut b = Bench::new();
    b.wbcr(19, EEN | ECS);
    for bit in [1, 1, 0, 0, 0, 0, 0, 0, 1] {
        clock(&mut b, bit);
    }
    let first = (0..8).fold(0, |word, _| word << 1 | clock(&mut b, 0));
    let mut other = Bench::new();
    other.nic.restore(&b.nic.save()).unwrap();
    let second = (0..8).fold(0, |word, _| word << 1 | clock(&mut other, 0));
    assert_eq!((first, second), (0x12, 0x00), "the second word");
}
