//! Each version has its features and no others (vmxnet3_defs.h; Linux's `VMXNET3_VERSION_GE_*`).

use crate::data::plain;
use crate::guest::{F_RSS, F_RXCSUM, Guest, MAC, Open, RSS, SHARED, payload};
use crate::packets::udp4;

const UNKNOWN: u32 = u32::MAX;

fn chosen(version: u32) -> Guest {
    let mut guest = Guest::new();
    guest.write(1, 0, 1 << (version - 1));
    guest
}

#[test]
fn a_driver_that_picks_a_version_gets_its_commands_and_no_other() {
    for version in 1..=7 {
        let mut guest = chosen(version);
        let since = |first: u32, answer: u32| if version >= first { answer } else { UNKNOWN };
        assert_eq!(
            guest.command(0xf00d_000a),
            since(3, 128),
            "version {version}: bytes of a transmit data ring's entry"
        );
        assert_eq!(guest.command(0xf00d_000c), since(4, 3), "version {version}: fields of the hash");
        assert_eq!(guest.command(0xf00d_000f), since(6, 0x0808), "version {version}: queues");
        assert_eq!(guest.command(0xf00d_0011), since(7, 0x2ff), "version {version}: capabilities");
        guest.write(1, 0x48, u32::MAX);
        assert_eq!(guest.command(0xf00d_0012), since(7, 0x2ff), "version {version}: those turned on");
        assert_eq!(guest.command(0xcafe_0013), since(7, 0), "version {version}: ring buffer sizes");
        assert_eq!(guest.command(0xcafe_000f), since(3, 0), "version {version}: memory regions");
        assert_eq!(guest.open(Open { version, ..Open::default() }), 0);
        guest.write(1, 0x48, u32::MAX);
        guest.put32(SHARED + 704, 0x3f);
        assert_eq!(guest.command(0xcafe_0010), since(4, 0), "version {version}: setting fields");
        let fields = if version >= 5 { 0x3f } else { since(4, 0x1f) };
        assert_eq!(guest.command(0xf00d_000c), fields, "version {version}: ESP over IPv6 came with version 5");
    }
}

#[test]
fn a_version_has_its_number_of_queues_and_its_longest_frame() {
    for version in 1..=7 {
        let open = |queues| Guest::new().open(Open { version, queues, ..Open::default() }) == 0;
        assert!(open(8));
        assert_eq!(open(32), version >= 6, "version {version}");
        let mut guest = Guest::opened(Open { version, mtu: 9190, ..Open::default() });
        for (len, fits) in [(8972, true), (9162, version >= 6), (9163, false)] {
            guest.deliver(&plain(&udp4(MAC, 1, &payload(len))));
            assert_eq!(!guest.receive(0, true).is_empty(), fits, "version {version}: {len} bytes");
        }
    }
}

#[test]
fn a_version_has_data_rings_from_three_on() {
    for version in 1..=7 {
        let mut guest = Guest::opened(Open { version, ..Open::default() });
        guest.deliver(&plain(&udp4(MAC, 1, b"x")));
        let [low, ..] = guest.receive(0, true)[0].last();
        assert_eq!(low >> 16 & 0x3ff, if version >= 3 { 2 } else { 0 }, "version {version}: ring 2 is the data ring");
    }
}

#[test]
fn versions_that_there_are_not_and_several_at_once_are_not_taken() {
    for asked in [0, 1 << 7, 1 << 8, 1 << 31, 0x3] {
        let mut guest = chosen(5);
        guest.write(1, 0, asked);
        assert_eq!(guest.read(1, 0), 0x7f);
        assert_eq!(guest.command(0xf00d_000c), 3, "{asked:#x}: version 5 stays");
        assert_eq!(guest.command(0xf00d_000f), UNKNOWN, "{asked:#x}");
        assert_eq!(guest.open(Open { version: 5, ..Open::default() }), 0);
    }
}

/// RFC 4303 section 2.1: ESP begins with the security parameters index. Kinds 7 and 8 of VMXNET3_RCD_RSS_TYPE_*.
#[test]
fn esp_is_hashed_with_its_index_once_its_fields_and_capabilities_are_on() {
    for (version, capabilities, v6, on) in [
        (4, 0, false, true),
        (4, 0, true, false),
        (5, 0, true, true),
        (7, 0, false, false),
        (7, 2, false, true),
        (7, 2, true, false),
        (7, 0x200, true, true),
    ] {
        let mut guest = Guest::new();
        guest.put(RSS, &[15, 0, 1, 0, 40, 0, 128, 0]);
        guest.put(RSS + 8, &payload(40));
        guest.put(RSS + 48, &payload(128).iter().map(|byte| byte % 4).collect::<Vec<_>>());
        assert_eq!(guest.open(Open { version, queues: 4, features: F_RSS | F_RXCSUM, ..Open::default() }), 0);
        guest.write(1, 0x48, capabilities);
        guest.put32(SHARED + 704, 0x3f);
        guest.command(0xcafe_0010);
        let mut seen = std::collections::BTreeSet::new();
        for index in 0..32u32 {
            let mut frame = [&MAC[..], &[2, 0, 0, 0, 0, 9]].concat();
            if v6 {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 48, 50, 64]);
                frame.extend([0xfd; 32]);
            } else {
                frame.extend([8, 0, 0x45, 0, 0, 68, 0, 0, 0, 0, 64, 50, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            }
            frame.extend(index.wrapping_mul(0x9e37_79b9).to_be_bytes());
            frame.extend([0; 44]);
            guest.deliver(&plain(&frame));
            for queue in 0..4 {
                for packet in guest.receive(queue, true) {
                    let [low, ..] = packet.last();
                    let plain = if v6 { 3 } else { 1 };
                    let kind = if on { 7 + u32::from(v6) } else { plain };
                    assert_eq!(low >> 26 & 0xf, kind, "version {version}, {capabilities:#x}");
                    seen.insert(queue);
                }
            }
        }
        assert_eq!(seen.len(), if on { 4 } else { 1 }, "version {version}, {capabilities:#x}");
    }
}
