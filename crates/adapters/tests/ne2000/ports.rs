//! A driver's reads before any frame moves, and the data port.

use nicety_adapter::Outbox;
use nicety_adapter::trace::Region;
use nicety_adapters::ne2000::registers::{TABLE, name};

use crate::bench::*;

#[test]
fn the_table_holds_together_and_ports_have_their_names() {
    assert_eq!(TABLE.check(), Ok(()));
    let word = |offset| name(Region::Bar(0), offset).map(|name| (name.word, name.index));
    assert_eq!(
        [word(0), word(7), word(0x13), word(0x1f)],
        [Some(("CR", None)), Some(("PAGED", Some(7))), Some(("DATA", None)), Some(("RESET", None))]
    );
    assert_eq!(word(0x20), None);
}

#[test]
fn pci_identity_and_ports_are_the_chip_s() {
    let mut b = Bench::new();
    let head: [u8; 64] = b.config_read(0);
    assert_eq!(head[..4], [0xec, 0x10, 0x29, 0x80]);
    assert_eq!(head[9..12], [0, 0, 2]);
    assert_eq!((head[0x10] & 3, head[0x3d]), (1, 1), "ports, and pin A");
    assert_eq!(b.pci(|face, _| face.function().bar_kind(0).unwrap().size), 0x20);
}

#[test]
fn linux_s_probe_finds_an_8390_its_address_and_nothing_of_a_counter() {
    let mut b = Bench::new();
    assert_ne!(b.inb(E8390_CMD), 0xff);
    b.outb(0x61, E8390_CMD);
    let kept = b.inb(0x0d);
    b.outb(0xff, 0x0d);
    b.outb(0x20, E8390_CMD);
    b.inb(0x0d);
    assert_eq!(b.inb(0x0d), 0, "a tally counter, which reading clears");
    b.outb(0x61, E8390_CMD);
    assert_eq!(b.inb(0x0d), 0xff, "a byte of the hash");
    b.outb(kept, 0x0d);
    b.outb(0x21, E8390_CMD);
    b.reset();
    let program = [
        (0x21, E8390_CMD),
        (0x49, EN0_DCFG),
        (0, EN0_RCNTLO),
        (0, EN0_RCNTHI),
        (0, EN0_IMR),
        (0xff, EN0_ISR),
        (0x20, EN0_RXCR),
        (0x02, EN0_TXCR),
        (32, EN0_RCNTLO),
        (0, EN0_RCNTHI),
        (0, EN0_RSARLO),
        (0, EN0_RSARHI),
        (0x0a, E8390_CMD),
    ];
    program.iter().for_each(|&(value, offset)| b.outb(value, offset));
    let prom: Vec<u8> = (0..32).map(|_| b.inb(NE_DATAPORT)).collect();
    assert_eq!(prom[..6], MAC);
    assert_eq!(prom[14..16], [0x57, 0x57]);
    assert_eq!((b.counters.bad_accesses(), b.counters.guest_errors()), (0, 0));
}

#[test]
fn a_byte_wide_reader_finds_every_byte_of_the_prom_twice() {
    let mut b = Bench::new();
    b.outb(0x48, EN0_DCFG);
    b.remote(0x0a, 0, 32);
    let prom: Vec<u8> = (0..32).map(|_| b.inb(NE_DATAPORT)).collect();
    for (pair, byte) in prom.chunks(2).zip(MAC) {
        assert_eq!(pair, [byte, byte]);
    }
    assert_eq!(prom[28..], [0x57; 4]);
}

#[test]
fn page_0_and_page_3_tell_that_it_is_realtek_s() {
    let mut b = Bench::new();
    // ID0, ID1: 'P', 'C'.
    assert_eq!([b.inb(0x0a), b.inb(0x0b)], [0x50, 0x43]);
    b.outb(0xe1, E8390_CMD);
    assert_eq!([b.inb(0x0e), b.inb(0x0f)], [0x29, 0x80]);
}

#[test]
fn full_duplex_is_set_on_page_3_where_writes_are_enabled_and_nowhere_else() {
    let mut b = Bench::opened();
    let has = |b: &Bench| b.nic.features().contains(&"full-duplex");
    b.outb(0xe0, E8390_CMD);
    b.outb(0x40, 0x06);
    assert!(!has(&b), "CONFIG3 is protected");
    // set_realtek_fdx.
    for (value, offset) in [(0xe0, E8390_CMD), (0xc0, 0x01), (0x40, 0x06), (0x00, 0x01), (0x20, E8390_CMD)] {
        b.outb(value, offset);
    }
    assert!(has(&b));
    b.outb(0xe0, E8390_CMD);
    b.outb(0x00, 0x06);
    assert_eq!(b.inb(0x06) & 0x40, 0x40);
    b.outb(0x20, E8390_CMD);
    assert_eq!(b.send(&frame(PEER, MAC, 60, 0)).len(), 1, "and it goes on");
}

#[test]
fn a_driver_s_next_write_arrives_in_its_register_when_the_daemon_was_killed_before_it() {
    let mut program = vec![(0x21, E8390_CMD), (RX_PAGE, EN0_STARTPG), (STOP_PAGE, EN0_STOPPG), (0x61, E8390_CMD)];
    program.extend(MAC.into_iter().zip(1..));
    program.extend([(RX_PAGE, EN1_CURPAG), (0x21, E8390_CMD)]);
    for killed in 0..program.len() {
        let mut b = Bench::opened();
        let mut kept = b.nic.save();
        for (at, &(value, offset)) in program.iter().enumerate() {
            if at == killed {
                b.nic = Bench::new().nic;
                b.nic.restore(&kept).unwrap();
            }
            b.outb(value, offset);
            if std::mem::take(&mut b.out).stalled.contains(Outbox::KEEP) {
                kept = b.nic.save();
            }
        }
        b.outb(0x61, E8390_CMD);
        let address = [1, 2, 3, 4, 5, 6].map(|offset| b.inb(offset));
        b.outb(0xa1, E8390_CMD);
        assert_eq!(
            (address, [1, 2].map(|offset| b.inb(offset))),
            (MAC, [RX_PAGE, STOP_PAGE]),
            "killed before {killed}"
        );
    }
}

#[test]
fn page_2_shows_what_page_0_was_written_with_bits_that_are_always_set() {
    let mut b = Bench::opened();
    b.outb(0x3f, EN0_IMR);
    b.outb(0xa2, E8390_CMD);
    let shown = [1, 2, 4, 0x0c, 0x0d, 0x0e, 0x0f].map(|offset| b.inb(offset));
    assert_eq!(shown, [RX_PAGE, STOP_PAGE, TX_PAGE, 0xc4, 0xe0, 0xc9, 0x3f]);
    b.outb(0x99, 1);
    assert_eq!(b.inb(1), RX_PAGE, "it cannot be written");
}

#[test]
fn every_width_of_the_data_port_moves_its_bytes_and_an_odd_end_completes_too() {
    for (width, words) in [(1, false), (2, false), (4, false), (2, true), (4, true)] {
        for count in [1_usize, 2, 3, 4, 61, 64, 255] {
            let mut b = Bench::opened();
            b.outb(if words { 0x49 } else { 0x48 }, EN0_DCFG);
            let data: Vec<u8> = (0..count.next_multiple_of(width)).map(|i| i as u8 ^ 0x5a).collect();
            b.remote(0x12, 0x4000, count as u16);
            assert_eq!(b.inb(EN0_ISR) & ENISR_RDC, 0);
            data.chunks(width).for_each(|piece| b.bar_write(0, NE_DATAPORT, piece));
            assert_ne!(b.inb(EN0_ISR) & ENISR_RDC, 0, "{count} bytes by {width}");
            b.outb(ENISR_RDC, EN0_ISR);
            b.bar_write(0, NE_DATAPORT, &[0xee; 4][..width]);
            b.remote(0x0a, 0x4000, count as u16);
            let mut back = vec![0; data.len()];
            back.chunks_mut(width).for_each(|piece| b.bar_read(0, NE_DATAPORT, piece));
            assert_eq!(back, data, "{count} bytes by {width}");
            assert_ne!(b.inb(EN0_ISR) & ENISR_RDC, 0);
            let mut beyond = [0; 4];
            b.bar_read(0, NE_DATAPORT, &mut beyond[..width]);
            assert_eq!(beyond[..width], [0xff; 4][..width], "what is beyond the transfer reads as ones");
        }
    }
}

#[test]
fn eight_bytes_at_once_are_two_accesses_and_any_port_of_the_eight_is_the_data_port() {
    let mut b = Bench::opened();
    b.block_output(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], TX_PAGE);
    b.remote(0x0a, 0x4000, 12);
    let mut eight = [0; 8];
    b.bar_read(0, NE_DATAPORT, &mut eight);
    assert_eq!(eight, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(b.r16(0x16), 0x0a09);
    assert_eq!(b.r16(0x12), 0x0c0b);
}

#[test]
fn a_byte_of_a_word_takes_the_other_one_with_it() {
    let mut b = Bench::opened();
    b.block_output(&[1, 2, 3, 4, 5, 6], TX_PAGE);
    b.remote(0x0a, 0x4000, 6);
    assert_eq!([b.inb(NE_DATAPORT), b.inb(NE_DATAPORT), b.inb(NE_DATAPORT)], [1, 3, 5]);
    assert_ne!(b.inb(EN0_ISR) & ENISR_RDC, 0);
}

#[test]
fn remote_dma_goes_on_from_the_ring_s_first_page_at_its_last_and_tells_where_it_is() {
    let mut b = Bench::opened();
    let data: Vec<u8> = (0..128).collect();
    b.remote(0x12, 0x7fc0, 128);
    data.chunks(4).for_each(|piece| b.bar_write(0, NE_DATAPORT, piece));
    assert_eq!([b.inb(EN0_RSARLO), b.inb(EN0_RSARHI)], [0x40, RX_PAGE]);
    assert_eq!(b.block_input(0x7fc0, 128), data);
    assert_eq!(b.block_input(u16::from(RX_PAGE) << 8, 64), data[64..]);
}

#[test]
fn the_prom_cannot_be_written_and_where_there_is_no_memory_ones_are_read() {
    let mut b = Bench::opened();
    for at in [0, 0x20, 0x3ffc, 0x8000, 0xfffc] {
        b.remote(0x12, at, 4);
        b.bar_write(0, NE_DATAPORT, &[1, 2, 3, 4]);
        let read = b.block_input(at, 4);
        assert_eq!(read, if at == 0 { [MAC[0], MAC[0], MAC[1], MAC[1]] } else { [0xff; 4] }, "{at:#x}");
    }
}
