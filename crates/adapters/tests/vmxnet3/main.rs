//! vmxnet3 under its driver: a guest with rings in memory, written by hand after Linux's driver.

mod coalescing;
mod completions;
mod cves;
mod data;
mod guest;
mod hostile;
mod packets;
mod tunnels;
mod versions;

use guest::{Guest, MAC, Open, QUEUES, SHARED};
use nicety_adapter::{Batch, Event, Reset};
use std::time::Duration;

#[test]
fn a_probe_finds_versions_addresses_and_a_link() {
    let mut guest = Guest::new();
    assert_eq!(guest.read(1, 0), 0x7f);
    assert_eq!(guest.read(1, 8), 1);
    assert_eq!(guest.read(1, 0x28).to_le_bytes(), MAC[..4]);
    assert_eq!(guest.read(1, 0x30).to_le_bytes(), [MAC[4], MAC[5], 0, 0]);
    assert_eq!(guest.command(0xf00d_0003).to_le_bytes(), MAC[..4]);
    assert_eq!(guest.command(0xf00d_0004).to_le_bytes(), [MAC[4], MAC[5], 0, 0]);
    assert_eq!(guest.command(0xf00d_0002), 10_000 << 16 | 1);
    assert_eq!(guest.command(0xf00d_0008), 0, "automatic type, automatic masks");
    assert_eq!(guest.command(0xf00d_000f), u32::MAX, "version 1 has no such command");
    guest.write(1, 0, 1 << 6);
    assert_eq!(guest.command(0xf00d_000f), 0x0808);
    assert_eq!(guest.command(0xf00d_000a), 128);
    assert_eq!(guest.counters.bad_accesses(), 0);
}

#[test]
fn activation_refuses_what_no_driver_lays_out() {
    let spoil: [(&str, u64, u32); 9] = [
        ("magic", SHARED, 1),
        ("queue table in nowhere", SHARED + 44, 7),
        ("no queues", SHARED + 62, 0),
        ("33 queues", SHARED + 62, 0x2121),
        ("ring not aligned", QUEUES + 16, 0x1_0100),
        ("ring of 33", QUEUES + 56, 33),
        ("ring of 8192", QUEUES + 56, 8192),
        ("data ring of odd size", QUEUES + 256 + 72, 100 << 16),
        ("vector 65", QUEUES + 72, 65),
    ];
    for (what, at, value) in spoil {
        let mut guest = Guest::opened(Open::default());
        guest.put32(at, value);
        assert_ne!(guest.command(0xcafe_0000), 0, "{what}");
        assert!(guest.counters.guest_errors() > 0, "{what}");
        let mut batch = Batch::new();
        assert!(guest.fetch_into(0, &mut batch).armed && batch.is_empty(), "{what}");
    }
}

#[test]
fn a_link_event_is_told_once_and_acknowledged() {
    let mut guest = Guest::opened(Open::default());
    guest.link(false);
    assert!(guest.out.messages.contains(1), "the event vector");
    assert_eq!(guest.get32(SHARED + 696), 4);
    assert_eq!(guest.command(0xf00d_0002), 0);
    guest.write(1, 0x40, 4);
    assert_eq!(guest.get32(SHARED + 696), 0);
    guest.out = Default::default();
    guest.link(false);
    assert!(guest.out.messages.is_empty());
}

#[test]
fn a_vector_masks_itself_and_what_waits_fires_when_it_is_unmasked() {
    let mut guest = Guest::opened(Open::default());
    guest.link(false);
    assert_eq!(guest.out.messages.len(), 1);
    assert_eq!(guest.read(0, 8), 1);
    guest.out = Default::default();
    guest.link(true);
    assert!(guest.out.messages.is_empty());
    guest.write(0, 8, 0);
    assert!(guest.out.messages.contains(1));
}

#[test]
fn a_mask_lifted_in_a_mapped_page_is_found_without_a_message() {
    let (mut guest, page) = Guest::mapped();
    guest.open(Open::default());
    for round in 0..5 {
        guest.out = Default::default();
        guest.link(round % 2 == 1);
        assert!(guest.out.messages.contains(1), "round {round}");
        let mut word = [0; 4];
        page.read(8, &mut word).unwrap();
        assert_eq!(word, [1, 0, 0, 0], "the guest sees that it is masked");
        page.write(8, &[0; 4]).unwrap();
    }
    // Raised while masked: a tick finds that it is unmasked.
    guest.link(true);
    guest.out = Default::default();
    guest.link(false);
    assert!(guest.out.messages.is_empty());
    page.write(8, &[0; 4]).unwrap();
    guest.now = guest.out.wake.expect("a look");
    guest.tick();
    assert!(guest.out.messages.contains(1));
    let mut batch = Batch::new();
    assert!(!guest.fetch_into(0, &mut batch).armed, "a mapped doorbell tells nobody");
}

#[test]
fn a_new_page_shows_that_all_is_masked() {
    let (mut guest, page) = Guest::mapped();
    guest.call(|adapter, cx| adapter.notice(Event::Page, cx));
    for vector in 0..25 {
        let mut word = [0; 4];
        page.read(8 * vector, &mut word).unwrap();
        assert_eq!(u32::from_le_bytes(word), guest.read(0, 8 * vector), "vector {vector}");
        assert_eq!(word, [1, 0, 0, 0], "vector {vector}");
    }
}

/// DPDK's driver polls, and never unmasks.
#[test]
fn a_mask_that_nobody_lifts_in_a_mapped_page_is_looked_at_ever_more_rarely() {
    let (mut guest, page) = Guest::mapped();
    guest.open(Open::default());
    let mut up = true;
    let mut raise = |guest: &mut Guest| {
        up = !up;
        guest.link(up);
    };
    // The first interrupt masks its vector.
    raise(&mut guest);
    let second = Duration::from_secs(1);
    for round in 0..3 {
        let begun = guest.now;
        guest.out = Default::default();
        raise(&mut guest);
        let mut looks = 0;
        while guest.now.since(begun) < second {
            let next = guest.out.wake.take().expect("a look");
            assert!(next.since(guest.now) <= Duration::from_millis(4) && next > guest.now);
            guest.now = next;
            looks += 1;
            assert!(looks > 1 || next.since(begun) <= Duration::from_micros(200), "round {round}: the first is soon");
            guest.tick();
            // Its vector is raised again and again.
            raise(&mut guest);
            assert!(guest.out.messages.is_empty());
        }
        assert!((200..400).contains(&looks), "{looks} looks in a second");
        page.write(8, &[0; 4]).unwrap();
        guest.now = guest.out.wake.take().unwrap();
        guest.tick();
        assert!(guest.out.messages.contains(1));
        assert_eq!(guest.out.wake, None);
    }
}

#[test]
fn intx_holds_its_line_until_the_cause_is_read() {
    let mut guest = Guest::opened(Open::default());
    let at = guest.msix();
    guest.config_write(at, &[0x40, 0]);
    guest.out = Default::default();
    assert_eq!(guest.read(1, 0x38), 0, "not ours");
    guest.link(false);
    assert_eq!(guest.out.line, Some(true));
    assert_eq!(guest.read(1, 0x38), 2, "vector 1");
    assert_eq!(guest.out.line, Some(false));
    assert_eq!(guest.read(1, 0x38), 0);
}

#[test]
fn a_cause_that_held_the_line_is_told_as_a_message_once_messages_are_on() {
    for auto_mask in [true, false] {
        let mut guest = Guest::new();
        let at = guest.msix();
        guest.config_write(at, &[0x40, 0]);
        guest.open(Open::default());
        // intrConf.autoMask, read again.
        guest.put(SHARED + 80, &[u8::from(auto_mask)]);
        guest.command(0xcafe_0000);
        guest.write(0, 8, 0);
        guest.link(false);
        assert_eq!((guest.out.line, guest.out.messages.len()), (Some(true), 0));
        guest.config_write(at, &[0x40, 0x80]);
        assert_eq!(guest.out.line, Some(false));
        assert_eq!(guest.out.messages.contains(1), !auto_mask, "a vector that has masked itself waits");
        guest.write(0, 8, 0);
        assert!(guest.out.messages.contains(1), "auto mask {auto_mask}");
    }
}

/// vfio-pci does this between an interrupt and its end (drivers/vfio/pci/vfio_pci_intrs.c, `vfio_intx_handler`). PCI 3.0, 6.2.3:
/// setting Interrupt Disable "has no effect on the state of" Interrupt Status.
#[test]
fn intx_that_is_disabled_keeps_its_status_and_cause_and_holds_the_line_again_when_it_is_enabled() {
    let mut guest = Guest::opened(Open::default());
    let at = guest.msix();
    guest.config_write(at, &[0x40, 0]);
    let status = |guest: &mut Guest| guest.config_read::<2>(6)[0] & 1 << 3 != 0;
    for read_while_disabled in [false, true] {
        guest.link(read_while_disabled);
        assert_eq!(guest.out.line, Some(true));
        guest.config_write(4, &[6, 4]);
        assert_eq!((guest.out.line, status(&mut guest)), (Some(false), true));
        if read_while_disabled {
            assert_eq!(guest.read(1, 0x38), 2);
        }
        guest.config_write(4, &[6, 0]);
        assert_eq!(guest.out.line, Some(!read_while_disabled));
        assert_eq!(guest.read(1, 0x38), if read_while_disabled { 0 } else { 2 });
        assert_eq!((guest.out.line, status(&mut guest)), (Some(false), false));
        guest.write(0, 8, 0);
    }
}

#[test]
fn intx_keeps_its_cause_when_the_transport_finds_the_mask_that_firing_set_in_a_mapped_page() {
    let (mut guest, page) = Guest::mapped();
    guest.open(Open::default());
    let at = guest.msix();
    guest.config_write(at, &[0x40, 0]);
    for round in 0..3 {
        guest.link(round % 2 == 1);
        assert_eq!(guest.out.line, Some(true), "round {round}");
        let mut word = [0; 4];
        page.read(8, &mut word).unwrap();
        // A daemon scans the page before the message that reads ICR, and writes the differences.
        guest.write(0, 8, u32::from_le_bytes(word));
        assert_eq!(guest.out.line, Some(true), "round {round}");
        assert_eq!(guest.read(1, 0x38), 2, "round {round}");
        assert_eq!(guest.out.line, Some(false), "round {round}");
        page.write(8, &[0; 4]).unwrap();
    }
}

#[test]
fn a_reset_masks_everything_and_keeps_the_address_that_the_driver_set() {
    let mut guest = Guest::opened(Open::default());
    guest.write(1, 0x28, 0x1234_5602);
    guest.command(0xcafe_0001);
    guest.command(0xcafe_0002);
    assert_eq!(guest.read(0, 0), 1);
    assert_eq!(guest.read(1, 0x28), 0x1234_5602);
    guest.call(|adapter, cx| adapter.reset(Reset::Bus, cx));
    assert_eq!(guest.read(1, 0x28).to_le_bytes(), MAC[..4]);
}

/// Linux's driver does not choose again when its guest wakes (`vmxnet3_resume`), and a VMM may have reset the function meanwhile.
#[test]
fn what_a_driver_chose_when_it_probed_outlives_a_reset_until_the_next_driver_probes() {
    let mut guest = Guest::opened(Open::default());
    guest.write(1, 0x48, 1);
    guest.write(1, 0x28, 0x1234_5602);
    guest.call(|adapter, cx| adapter.reset(Reset::Function, cx));
    assert_eq!(guest.read(1, 0x10), 0, "the shared area is the driver's to tell again");
    assert_eq!(guest.command(0xf00d_000f), 0x0808, "version 7 has this command");
    assert_eq!(guest.command(0xf00d_0012), 1, "DCR");
    assert_eq!(guest.read(1, 0x28), 0x1234_5602);
    guest.config_write(4, &[6]);
    guest.write(1, 0x10, SHARED as u32);
    assert_eq!(guest.command(0xcafe_0000), 0);
    assert_eq!((guest.counters.guest_errors(), guest.counters.bad_accesses()), (0, 0));
    guest.write(1, 0, 1 << 6);
    assert_eq!(guest.command(0xf00d_0012), 0);
    assert_eq!(guest.read(1, 0x28).to_le_bytes(), MAC[..4]);
    guest.call(|adapter, cx| adapter.reset(Reset::Bus, cx));
    assert_eq!(guest.command(0xf00d_000f), u32::MAX, "version 1 has no such command");
}

#[test]
fn holes_read_as_ones_and_are_counted() {
    let mut guest = Guest::new();
    assert_eq!(guest.read(1, 0x50), u32::MAX);
    assert_eq!(guest.read(0, 0x208), u32::MAX);
    assert_eq!(guest.read(0, 4), u32::MAX);
    assert_eq!(guest.counters.bad_accesses(), 3);
}

#[test]
fn registers_are_read_at_every_width_and_as_a_block_and_written_whole() {
    let mut guest = Guest::new();
    // MACL at 0x28, a hole, MACH at 0x30, a hole: as memcpy_fromio() reads them.
    let mut block = [0; 16];
    guest.bar_read(1, 0x28, &mut block);
    let expected = [&MAC[..4], &[0xff; 4], &MAC[4..], &[0; 2], &[0xff; 4]].concat();
    assert_eq!(block[..], expected);
    for (offset, len) in [(0, 1), (3, 1), (0, 2), (2, 2), (0, 8), (1, 3), (3, 7)] {
        let mut bytes = vec![0; len];
        guest.bar_read(1, 0x28 + offset as u64, &mut bytes);
        assert_eq!(bytes, expected[offset..offset + len], "{len} bytes at {offset}");
    }
    // Eight bytes cover a register and the hole behind it.
    let before = guest.counters.bad_accesses();
    guest.bar_write(1, 0x28, &[2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!((guest.read(1, 0x28), guest.counters.bad_accesses()), (0x0504_0302, before + 1));
    for narrow in [&[9][..], &[9, 9], &[9, 9, 9]] {
        guest.bar_write(1, 0x28, narrow);
    }
    guest.bar_write(1, 0x2a, &[9; 4]);
    assert_eq!((guest.read(1, 0x28), guest.counters.bad_accesses()), (0x0504_0302, before + 6));
}

#[test]
fn saving_a_restored_adapter_gives_the_same_bytes() {
    let mut guest = Guest::opened(Open { queues: 2, ..Open::default() });
    guest.send(1, &[&packets::udp4(MAC, 1, b"x")], Default::default());
    let mut batch = Batch::new();
    guest.fetch_into(1, &mut batch);
    guest.complete_of(&batch);
    let saved = guest.nic.save();
    let mut other = Guest::new();
    guest.hand_over(&mut other);
    // And it continues from the first one's state.
    other.own = guest.own;
    other.deliver(&batch);
    assert_eq!(other.receive(0, true).len(), 1);
    for cut in 0..saved.len() {
        assert!(Guest::new().nic.restore(&saved[..cut]).is_err());
    }
}
