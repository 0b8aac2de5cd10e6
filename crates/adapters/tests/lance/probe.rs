//! A driver's reads and writes before any frame moves.

use nicety_adapter::Reset;

use crate::bench::*;

#[test]
fn linux_finds_the_chip_by_words_its_address_twice_and_its_link() {
    let mut b = Bench::new();
    b.command(0x0107);
    // pcnet32_probe1
    b.reset();
    assert_eq!(b.csr(0), 4);
    b.w16(0x12, 88);
    assert_eq!(b.r16(0x12), 88, "pcnet32_wio_check");
    let chip = u32::from(b.csr(88)) | u32::from(b.csr(89)) << 16;
    assert_eq!((chip & 0xfff, chip >> 12 & 0xffff), (0x003, 0x2621));
    let by_csr: Vec<u8> = (12..15).flat_map(|n| b.csr(n).to_le_bytes()).collect();
    let by_prom: Vec<u8> = (0..6).map(|n| b.r8(n)).collect();
    assert_eq!((by_csr, by_prom), (MAC.to_vec(), MAC.to_vec()));
    b.wbcr(20, 2);
    assert_eq!(b.bcr(20), 0x0302, "SSIZE32, CSRPCNET");
    let asel = b.bcr(2);
    b.wbcr(2, asel | 0x1000);
    assert_eq!(b.bcr(2), 0x1002);
    assert_ne!(b.bcr(4), 0xc0, "pcnet32_check_media: there is a link");
    b.link(false);
    assert_eq!(b.bcr(4), 0xc0);
    assert_eq!(b.csr(0), 4, "and nothing interrupts for it");
}

#[test]
fn the_address_prom_adds_up_and_can_be_written_in_its_shadow_alone() {
    let mut b = Bench::new();
    let bytes: Vec<u8> = (0..16).map(|n| b.r8(n)).collect();
    assert_eq!((bytes[9], &bytes[14..]), (0x11, &b"WW"[..]));
    let sum: u16 = bytes.iter().enumerate().filter(|(n, _)| !(12..14).contains(n)).map(|(_, b)| u16::from(*b)).sum();
    assert_eq!(sum.to_le_bytes(), bytes[12..14]);
    assert_eq!(b.r16(2), u16::from_le_bytes([MAC[2], MAC[3]]), "pcnet32_get_regs reads words");
    b.bar_write(0, 0, &[0x77]);
    assert_eq!(b.r8(0), MAC[0]);
    b.wbcr(2, 0x0102);
    b.bar_write(0, 0, &[0x77]);
    assert_eq!(b.r8(0), 0x77, "BCR2.APROMWE");
    b.call(|nic, cx| nic.reset(Reset::Bus, cx));
    assert_eq!(b.r8(0), MAC[0]);
}

#[test]
fn a_double_word_to_rdp_makes_all_ports_double_words_until_a_hardware_reset() {
    let mut b = Bench::new();
    b.w(0x10, 0);
    b.double = true;
    b.reset();
    assert_eq!(b.csr(0), 4);
    b.w(0x14, 88);
    assert_eq!(b.r(0x14), 88, "pcnet32_dwio_check");
    assert_eq!(b.r(0x10), 0x0262_1003, "both halves of the chip's identity");
    assert_eq!(b.bcr(18) & 0x80, 0x80);
    b.w16(0x10, 0x1234);
    assert_eq!(b.counters.bad_accesses(), 1, "words are no accesses any more");
    b.call(|nic, cx| nic.reset(Reset::Bus, cx));
    b.double = false;
    assert_eq!((b.csr(0), b.bcr(18)), (4, 0x9001));
}

#[test]
fn both_bars_show_the_same_ports() {
    let mut b = Bench::new();
    b.bar_write(1, 0x12, &[76, 0]);
    assert_eq!(b.r16(0x12), 76);
    let mut data = [0; 2];
    b.bar_read(1, 0x10, &mut data);
    assert_eq!(b.r16(0x10), u16::from_le_bytes(data));
    let sizes = b.pci(|face, _| [0, 1].map(|bar| face.function().bar_kind(bar).unwrap().size));
    assert_eq!(sizes, [0x20, 0x20]);
}

#[test]
fn the_initialization_block_fills_the_registers_that_it_is_for() {
    let mut b = Bench::opened();
    assert_eq!(b.csr(0) & 0x7f, 0x73, "IENA, RXON, TXON, STRT, INIT");
    assert_eq!((b.csr(15), b.csr(6)), (0x0080, 0x4500));
    assert_eq!([b.csr(24), b.csr(25), b.csr(30), b.csr(31)], [0, 2, 0, 1], "BADR and BADX");
    assert_eq!([b.csr(76), b.csr(78)], [0xffe0, 0xfff0], "two's complements of 32 and 16");
    assert_eq!([b.csr(72), b.csr(74)], [0xffe0, 0xfff0]);
    assert_eq!([b.csr(16), b.csr(17)], [b.csr(1), b.csr(2)]);
    assert_eq!(b.csr(58), b.bcr(20));
}

#[test]
fn a_block_that_lies_in_no_memory_is_a_memory_error() {
    let mut b = Bench::new();
    b.command(7);
    b.wbcr(20, 2);
    b.wcsr(2, 0xf000);
    b.wcsr(0, INIT);
    assert_eq!(b.csr(0), 0x8000 | MERR | INTR | STOP, "not initialized");
    b.wcsr(0, MERR);
    b.wcsr(1, BLOCK as u16);
    b.wcsr(2, 0);
    b.rings();
    b.wcsr(0, INIT);
    assert_eq!(b.csr(0), IDON | INTR | INIT);
}

#[test]
fn stop_ends_all_and_a_soft_reset_keeps_where_the_block_is() {
    let mut b = Bench::opened();
    b.bring_one(&frame(100));
    assert!(b.line());
    b.wcsr(0, STOP);
    assert_eq!((b.csr(0), b.line()), (4, false));
    assert_eq!(b.csr(76), 0xffe0, "rings stay");
    b.reset();
    assert_eq!((b.r16(0x12), b.csr(0), b.csr(4), b.csr(3)), (0, 4, 0x0115, 0));
    assert_eq!((b.csr(1), b.bcr(20)), (BLOCK as u16, 0x0302), "pcnet32_poll's restart needs both");
    b.wcsr(0, INIT);
    assert_eq!(b.csr(0) & IDON, IDON);
}

#[test]
fn what_describes_rings_changes_only_while_the_chip_stands_still_or_is_suspended() {
    let mut b = Bench::opened();
    b.wcsr(15, 0x8000);
    b.wbcr(20, 0);
    assert_eq!((b.csr(15), b.bcr(20)), (0x0080, 0x0302));
    b.wcsr(5, 1);
    assert_eq!(b.csr(5), 1, "pcnet32_suspend waits for it");
    b.wcsr(15, 0x8080);
    b.wcsr(8, 0xffff);
    b.wcsr(5, 0);
    assert_eq!((b.csr(15), b.csr(8), b.csr(5)), (0x8080, 0xffff, 0));
    b.wcsr(0, STOP);
    b.wbcr(20, 4);
    assert_eq!(b.bcr(20), 0x0200, "pcnet32_close: back to 16 bits");
}

#[test]
fn every_register_that_ethtool_dumps_can_be_read() {
    let mut b = Bench::opened();
    for n in 0..128 {
        b.csr(n);
        b.bcr(n);
    }
    assert_eq!((b.bcr(0), b.bcr(1), b.bcr(5), b.bcr(22), b.bcr(33)), (5, 5, 0x84, 0xff06, 0));
}

#[test]
fn vlance_is_the_same_chip_with_vmware_s_subsystem() {
    let identity = |model: &str| {
        let data: [u8; 48] = Bench::of(model).config_read(0);
        (data[..4].to_vec(), data[44..48].to_vec())
    };
    let device = vec![0x22, 0x10, 0x00, 0x20];
    assert_eq!(identity("pcnet"), (device.clone(), vec![0; 4]));
    assert_eq!(identity("vlance"), (device.clone(), device));
}
