//! A driver's reads and writes before any frame moves.

use nicety_adapter::Reset;

use crate::bench::*;

#[test]
fn every_driver_finds_the_version_that_it_knows() {
    for model in ["vmxnet", "vmxnet2"] {
        let mut b = Bench::of(model);
        let (low, high) = (b.r(0x18), b.r(0x1c));
        assert_eq!(low & 0xffff_0000, 0xbabe_0000);
        assert!((low..=high).contains(&0xbabe_864f));
    }
}

#[test]
fn the_enhanced_one_has_the_features_that_a_driver_tests_and_the_first_has_not() {
    let mut b = Bench::of("vmxnet2");
    // ZERO_COPY_TX, TSO, JUMBO_FRAME, LPD.
    assert_eq!(b.ask(0x2000), 0xf);
    // SG, IP4_CSUM, HW_CSUM, HIGH_DMA, TSO, APROM, HEADER_COPY, TX_CHAIN, RX_CHAIN, LPD.
    assert_eq!(b.ask(0x1000), 0x1_e0af);
    assert_eq!((b.ask(0x200), b.ask(0x400)), (512, 512), "what vmxnet_probe_features takes at most");
    let mut b = Bench::of("vmxnet");
    assert_eq!((b.ask(0x2000), b.ask(0x1000)), (1, 0x208f));
    assert_eq!((b.ask(0x200), b.ask(0x400)), (128, 128), "VIC_NBUF_MAX");
    assert_eq!(b.r(0x0c), 128, "the last answer stays");
}

#[test]
fn the_address_lies_in_its_prom_and_can_be_changed_beside_it() {
    let mut b = Bench::opened("vmxnet");
    let address = |b: &mut Bench, at: u64| (0..6).map(|n| b.r8(at + n)).collect::<Vec<u8>>();
    assert_eq!((address(&mut b, 0x28), address(&mut b, 0x10)), (MAC.to_vec(), MAC.to_vec()));
    let other = [2, 0, 0, 0, 0, 0x77];
    (0..6).for_each(|n| b.w8(0x10 + n, other[n as usize]));
    assert_eq!((address(&mut b, 0x28), address(&mut b, 0x10)), (MAC.to_vec(), other.to_vec()));
    b.bring(&[&frame(60), &to(other, 60)]);
    assert_eq!(b.received(0, 0).0, DRIVER);
    assert_eq!(b.received(0, 1).0, NIC, "the old address is nobody's");
    b.call(|nic, cx| nic.reset(Reset::Bus, cx));
    assert_eq!(address(&mut b, 0x10), MAC, "until a reset");
}

#[test]
fn the_link_is_read_and_never_interrupts() {
    let mut b = Bench::opened("vmxnet");
    assert_eq!(b.r(0x20), 3, "CONNECTED, ENABLED");
    b.link(false);
    assert_eq!((b.r(0x20), b.line()), (2, false));
    b.bring(&[&frame(60)]);
    b.queue(0, &frame(60));
    b.ring_bell();
    assert!(b.sent().is_empty());
    assert_eq!((b.received(0, 0).0, b.owner(0)), (NIC, DRIVER));
    b.link(true);
    assert_eq!(b.r(0x20), 3);
}

#[test]
fn buffers_for_headers_are_pinned_if_they_are_there() {
    let mut b = Bench::opened("vmxnet2");
    b.put32(DATA + 0x7c, TX_DATA);
    b.put32(DATA + 0x80, 16 * 128);
    b.put32(DATA + 0x84, 128);
    assert_eq!(b.ask(0x800), 16);
    assert_eq!(b.r(0x20), 7, "TX_PINNED");
    assert!(b.nic.features().contains(&"tx-pinned"));
    b.put32(DATA + 0x7c, MEMORY as u32 - 16);
    assert_eq!((b.ask(0x800), b.r(0x20)), (0, 3), "half of them lie nowhere");
    b.put32(DATA + 0x80, 0);
    assert_eq!(b.ask(0x800), 0);
    assert_eq!(b.counters.guest_errors(), 2);
}

#[test]
fn what_names_no_driver_s_data_is_not_taken_and_reads_as_no_length() {
    type Case = (&'static str, fn(&Bench));
    let cases: [Case; 12] = [
        ("magic", |b| b.put32(DATA, 0xbabe_864e)),
        ("no receive ring", |b| b.put32(DATA + RX_LENGTH, 0)),
        ("a receive ring that is too long", |b| b.put32(DATA + RX_LENGTH, 513)),
        ("no transmit ring", |b| b.put32(DATA + TX_LENGTH, 0)),
        ("a transmit ring that is too long", |b| b.put32(DATA + TX_LENGTH, 513)),
        ("a ring of pages that is too long", |b| b.put32(DATA + RX_LENGTH_2, 2049)),
        ("rings over the data", |b| b.put32(DATA + RX_OFFSET, 0)),
        ("a ring that ends behind it", |b| b.put32(DATA + TX_OFFSET, b.length() - 64)),
        ("a ring far away", |b| b.put32(DATA + TX_OFFSET, u32::MAX - 3)),
        ("a ring at an odd place", |b| b.put32(DATA + RX_OFFSET, 177)),
        ("a position that is none", |b| b.put32(DATA + SAVED, 8)),
        ("another such", |b| b.put32(DATA + SAVED + 8, u32::MAX)),
    ];
    for (what, spoil) in cases {
        let mut b = Bench::of("vmxnet2");
        b.lay();
        spoil(&b);
        b.w(0, DATA);
        b.w(4, b.length());
        assert_eq!((b.r(4), b.nic.is_driven()), (0, false), "{what}");
        assert_eq!(b.counters.guest_errors(), 1, "{what}");
        b.lay();
        b.open();
    }
    for (at, length) in [(DATA, 175), (DATA, u32::MAX), (MEMORY as u32 - 100, 1000), (u32::MAX - 3, 1000)] {
        let mut b = Bench::of("vmxnet2");
        b.lay();
        b.w(0, at);
        b.w(4, length);
        assert_eq!(b.r(4), 0, "{at:#x}, {length}");
    }
}

#[test]
fn registers_are_written_whole_and_what_lies_between_them_reads_as_ones() {
    let mut b = Bench::of("vmxnet");
    b.w(0, 0x1234_5678);
    b.bar_write(0, 0, &[0xff, 0xff]);
    assert_eq!(b.r(0), 0x1234_5678);
    b.w(0x18, 0);
    assert_eq!(b.r(0x18), 0xbabe_864f);
    assert_eq!((b.r(0x16) & 0xffff, b.r(0x38), b.r(0x3c), b.r(0x40)), (0xffff, !0, !0, !0));
    let mut data = [0; 8];
    b.bar_read(0, 0x18, &mut data);
    assert_eq!(data, [0x4f, 0x86, 0xbe, 0xba, 0x4f, 0x86, 0xbe, 0xba]);
    assert_eq!(b.ask(0x8888), 0);
    assert_eq!(b.counters.guest_errors(), 1, "no command");
    [8, 0x10, 0x80, 0x4000, 0x8000].iter().for_each(|command| assert_eq!(b.ask(*command), 0));
    assert_eq!(b.counters.guest_errors(), 1);
}

#[test]
fn a_driver_that_starts_again_finds_its_rings_where_it_left_them() {
    let mut b = Bench::opened("vmxnet2");
    b.bring(&[&frame(60), &frame(4000)]);
    b.queue(0, &frame(60));
    b.ring_bell();
    assert_eq!(b.sent().len(), 1);
    b.w(0, 0);
    assert_eq!((b.r(4), b.nic.is_driven()), (0, false));
    assert_eq!([0, 4, 8].map(|n| b.get32(DATA + SAVED + n)), [2, 1, 1], "as Solaris's Vxn_Stop and Vxn_Start need it");
    b.open();
    b.bring(&[&frame(61)]);
    assert_eq!(b.received(0, 2), (DRIVER, 0, 61));
    // Linux's driver starts again.
    b.w(0, 0);
    b.lay();
    b.open();
    b.bring(&[&frame(62)]);
    assert_eq!(b.received(0, 0), (DRIVER, 0, 62));
}
