//! Registers with which a chip receives nothing, and the words for them. A tail beyond the ring is undefined in the datasheets of the
//! 82574 (10.2.5) and the 82576 (8.10.8); an 8254x receives with it, as QEMU's e1000.c does (`e1000/nuttx.rs`).

use nicety_adapter::{Queue, Stall};

use crate::bench::*;
use crate::chip::*;

const COMMAND: u16 = 4;
/// CTRL.SLU (317453, 13.4.1).
const SLU: u32 = 1 << 6;
const RAH: u64 = 0x5404;

fn is_open_ended(chip: &Chip) -> bool {
    chip.name.starts_with("e1000") && chip.name != "e1000e"
}

fn stall(chip: &Chip) -> Option<(Queue, &'static str)> {
    chip.nic.stall(0).map(|Stall { queue, why, .. }| (queue, why))
}

#[test]
fn a_receive_ring_whose_tail_or_head_lies_beyond_its_end_says_so_until_it_does_not() {
    each(|chip| {
        for (register, value) in [(RDT, 256), (RDT, 300), (RDH, 256)] {
            chip.open_rings(256);
            chip.w(register, value);
            let receives = register == RDT && is_open_ended(chip);
            let block = (!receives).then_some("RDH or RDT lies beyond its receive ring (RDLEN)");
            assert_eq!(chip.nic.receive_block(), block, "{}: before any frame", chip.name);
            let refused = chip.bring_one(&frame(60)).refused();
            if receives {
                assert_eq!((refused, stall(chip)), (0, None), "{}", chip.name);
                continue;
            }
            assert_eq!(refused, 1, "{}: it waits", chip.name);
            assert_eq!(stall(chip), Some((Queue::Receive(0), "its head or tail lies beyond its end")), "{}", chip.name);
            let said = chip.counters.errors().iter().last().unwrap().to_string();
            let name = if register == RDT { "RDT" } else { "RDH" };
            assert!(said.starts_with(name) && said.ends_with("below RDLEN / 16)"), "{}: {said}", chip.name);
            chip.w(register, 5);
            chip.w(RDT, 255);
            assert_eq!(chip.bring_one(&frame(60)).refused(), 0, "{}", chip.name);
            assert_eq!((stall(chip), chip.nic.receive_block()), (None, None), "{}", chip.name);
        }
    });
}

/// An 8254x's transmit ring, too: 317453, 13.4.38 to 13.4.41, defines no position beyond TDLEN.
#[test]
fn a_transmit_ring_whose_tail_or_head_lies_beyond_its_end_says_so_until_it_does_not() {
    each(|chip| {
        for (register, value) in [(TDT, 256), (TDT, 300), (TDH, 256)] {
            chip.open_rings(256);
            chip.w(register, value);
            assert_eq!(chip.fetch_all(0, cut), [] as [Wire; 0], "{}", chip.name);
            assert_eq!(
                chip.nic.stall(1).map(|Stall { queue, why, .. }| (queue, why)),
                Some((Queue::Transmit(0), "its head or tail lies beyond its end")),
                "{}",
                chip.name
            );
            let said = chip.counters.errors().iter().last().unwrap().to_string();
            let name = if register == TDT { "TDT" } else { "TDH" };
            assert!(said.starts_with(name) && said.ends_with("below TDLEN / 16)"), "{}: {said}", chip.name);
            chip.w(TDH, 5);
            chip.w(TDT, 5);
            chip.fetch_all(0, cut);
            assert_eq!(chip.nic.stall(1).map(|stall| stall.why), None, "{}", chip.name);
        }
    });
}

/// 317453, 13.4.28 and 13.4.39; 82576 datasheet, 8.10.7: a length is a multiple of 128 bytes.
#[test]
fn a_ring_length_that_is_no_multiple_of_eight_descriptors_is_told_in_words() {
    each(|chip| {
        for register in [RDLEN, TDLEN] {
            let before = chip.counters.guest_errors();
            chip.w(register, 100 * 16);
            assert_eq!(chip.counters.guest_errors(), before + 1, "{}", chip.name);
            let said = chip.counters.errors().iter().last().unwrap().to_string();
            assert!(said.contains("0x640") && said.ends_with("(a multiple of 128 bytes)"), "{}: {said}", chip.name);
            chip.w(register, 256 * 16);
            assert_eq!(chip.counters.guest_errors(), before + 1, "{}", chip.name);
        }
    });
}

#[test]
fn a_driver_that_is_up_and_receives_nothing_is_told_why() {
    each(|chip| {
        assert_eq!(chip.nic.receive_block(), None, "{}", chip.name);
        let control = chip.r(RCTL);
        chip.w(RCTL, control & !2);
        assert_eq!(chip.nic.receive_block(), Some("its receiver is off (RCTL.EN)"), "{}", chip.name);
        chip.w(RCTL, 2);
        chip.w(RAH, 0);
        let none = Some("its receive filter accepts no address (RCTL, RAL, RAH, MTA)");
        assert_eq!(chip.nic.receive_block(), none, "{}", chip.name);
        chip.w(RCTL, control | LOOPBACK);
        assert_eq!(chip.nic.receive_block(), Some("it is in loopback"), "{}", chip.name);
        chip.w(RCTL, control);
        chip.link(false);
        assert_eq!(chip.nic.receive_block(), Some("its link is down"), "{}: its host's", chip.name);
        chip.link(true);
        let device = chip.r(CTRL);
        chip.w(CTRL, device & !SLU);
        assert_eq!(chip.nic.receive_block(), Some("its link is down"), "{}: its driver's", chip.name);
        chip.w(CTRL, device);
        chip.w(RDLEN, 0);
        assert_eq!(chip.nic.receive_block(), Some("its receive ring has no length (RDLEN)"), "{}", chip.name);
        chip.config_write(COMMAND, &[3, 0]);
        assert_eq!(chip.nic.receive_block(), Some("bus mastering is off (PCI command register)"), "{}", chip.name);
    });
}
