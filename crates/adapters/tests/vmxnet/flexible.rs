//! The flexible adapter: a lance and a vmxnet in one function.

use nicety_adapter::{Event, Reset};

use crate::bench::*;

const LANCE: u16 = 0x2934;
const VMXNET: u16 = 0x4392;

fn morph_port(b: &mut Bench) -> u16 {
    let mut data = [0; 2];
    b.bar_read(0, 0x20, &mut data);
    u16::from_le_bytes(data)
}

fn morph(b: &mut Bench, chip: u16) {
    b.bar_write(0, 0x20, &chip.to_le_bytes());
}

/// A lance register: RAP, then RDP, as words.
fn csr(b: &mut Bench, number: u16) -> u16 {
    b.bar_write(0, 0x12, &number.to_le_bytes());
    let mut data = [0; 2];
    b.bar_read(0, 0x10, &mut data);
    u16::from_le_bytes(data)
}

fn morphed() -> Bench {
    let mut b = Bench::of("flexible");
    b.base = 0x24;
    morph(&mut b, VMXNET);
    b
}

#[test]
fn it_is_a_lance_with_ports_enough_for_a_driver_to_see_that_it_can_become_another() {
    let mut b = Bench::of("flexible");
    assert_eq!(b.config_read(0), [0x22, 0x10, 0x00, 0x20]);
    assert!(b.pci(|face, _| face.function().bar_kind(0).unwrap().size) > 0x64, "vic_match");
    assert_eq!(morph_port(&mut b), LANCE);
    assert_eq!(csr(&mut b, 88), 0x1003, "pcnet32_probe1 finds its chip");
    b.base = 0x24;
    assert_eq!(b.r(0x18), !0, "the registers of the other are a hole");
    assert_eq!(b.nic.features(), ["lance"]);
}

#[test]
fn linux_s_driver_morphs_by_words_and_vic_by_double_words() {
    let mut b = morphed();
    assert_eq!(morph_port(&mut b), VMXNET);
    assert_eq!(b.r(0x18), 0xbabe_864f);
    assert_eq!(csr(&mut b, 88), 0xffff, "there is no lance any more");
    // vic_attach: keeps the upper half.
    let mut data = [0; 4];
    b.bar_read(0, 0x20, &mut data);
    assert_eq!(u32::from_le_bytes(data), 0x4392);
    b.bar_write(0, 0x20, &0x2934u32.to_le_bytes());
    assert_eq!(morph_port(&mut b), LANCE);
    b.bar_write(0, 0x20, &0x4392u32.to_le_bytes());
    assert_eq!(morph_port(&mut b), VMXNET);
    for value in [0, 0x2934_0000_u32, 0x1234, u32::MAX] {
        b.bar_write(0, 0x20, &value.to_le_bytes());
        assert_eq!(morph_port(&mut b), VMXNET, "{value:#x} is no chip");
    }
    b.bar_write(0, 0x20, &[0x34]);
    assert_eq!(morph_port(&mut b), VMXNET, "nor is a byte");
}

#[test]
fn a_vmxnet_driver_works_on_it_and_configuration_space_goes_over() {
    let mut b = morphed();
    assert_eq!(b.ask(0x2000), 1, "the first vmxnet's features");
    b.lay();
    b.open();
    b.queue(0, &frame(60));
    b.ring_bell();
    assert_eq!(b.sent(), [frame(60)], "bus mastering was turned on for the lance");
    b.bring(&[&frame(60)]);
    assert!(b.line());
    assert_eq!(b.nic.features()[0], "vmxnet");
    b.command(ACK);
    assert!(!b.line());
}

#[test]
fn a_morph_resets_the_device_whatever_it_becomes() {
    for chip in [VMXNET, LANCE] {
        let mut b = morphed();
        b.lay();
        b.open();
        b.w8(0x10, 2);
        b.bring(&[&frame(60)]);
        b.bring(&[&frame(60)]);
        b.queue(0, &frame(60));
        b.ring_bell();
        b.fetch();
        morph(&mut b, chip);
        assert!(!b.line() && !b.nic.is_driven());
        b.complete();
        assert_eq!(b.owner(0), NIC, "a completion from before is nobody's");
        morph(&mut b, VMXNET);
        assert_eq!((b.r(4), b.r8(0x10)), (0, MAC[0]));
    }
    // And the lance's side.
    let mut b = Bench::of("flexible");
    b.bar_write(0, 0x12, &[1, 0]);
    b.bar_write(0, 0x10, &[0x34, 0x12]);
    assert_eq!(csr(&mut b, 1), 0x1234);
    morph(&mut b, LANCE);
    assert_eq!((csr(&mut b, 1), csr(&mut b, 0)), (0, 4));
}

#[test]
fn a_reset_of_the_bus_makes_it_a_lance_as_new() {
    let new = Bench::of("flexible");
    let mut b = morphed();
    b.lay();
    b.open();
    b.bring(&[&frame(60)]);
    b.call(|nic, cx| nic.reset(Reset::Bus, cx));
    assert_eq!((morph_port(&mut b), b.line()), (LANCE, false));
    b.config_write(4, &[7, 0]);
    assert_eq!(b.nic.save(), new.nic.save());
}

#[test]
fn one_cable_is_both_s() {
    let mut b = Bench::of("flexible");
    b.link(false);
    b.base = 0x24;
    morph(&mut b, VMXNET);
    assert_eq!(b.r(0x20), 2);
    b.link(true);
    morph(&mut b, LANCE);
    b.bar_write(0, 0x12, &[4, 0]);
    let mut led = [0; 2];
    b.bar_read(0, 0x16, &mut led);
    assert_eq!(led[1] & 0x80, 0x80, "LED0");
}

#[test]
fn its_state_says_which_it_is() {
    let mut b = morphed();
    b.lay();
    b.open();
    b.bring(&[&frame(60)]);
    let saved = b.nic.save();
    let mut other = Bench::of("flexible");
    (other.map, other.base) = (b.map.clone(), 0x24);
    other.nic.restore(&saved).unwrap();
    assert_eq!(other.nic.save(), saved);
    other.call(|nic, cx| nic.notice(Event::Restored, cx));
    assert!(other.line());
    other.bring(&[&frame(61)]);
    assert_eq!(other.received(0, 1), (DRIVER, 0, 61));
    assert_eq!(morph_port(&mut other), VMXNET);
    // A state that is impossible for one personality changes neither.
    let before = Bench::of("flexible").nic.save();
    let mut third = Bench::of("flexible");
    for cut in (0..saved.len()).step_by(7) {
        let mut damaged = saved.clone();
        damaged[cut] ^= 0x81;
        if third.nic.restore(&damaged).is_err() {
            continue;
        }
        third = Bench::of("flexible");
    }
    assert!(third.nic.restore(&saved[..saved.len() - 1]).is_err());
    let kept = third.nic.save();
    assert!(kept == before || third.nic.restore(&before).is_ok());
}

#[test]
fn an_access_over_a_border_is_each_one_s_part() {
    let mut b = Bench::of("flexible");
    let mut data = [0; 8];
    b.bar_read(0, 0x1c, &mut data);
    assert_eq!(data[4..6], LANCE.to_le_bytes());
    b.base = 0x24;
    morph(&mut b, VMXNET);
    b.bar_read(0, 0x1e, &mut data);
    assert_eq!(data[..4], [0xff, 0xff, 0x92, 0x43]);
    b.bar_read(1, 0x10, &mut data);
    assert_eq!(data, [0xff; 8], "the lance's memory BAR too");
}
