//! Selection of a received frame's queue.

use nicety_adapter::Reason;

use crate::bench::{KEY, ethernet, ipv4, payload, tcp};
use crate::guest::*;

/// igb_setup_mrqc and igb_write_rss_indir_tbl, with this table.
fn spread(g: &mut Guest, table: impl Fn(u32) -> u8) {
    for (word, bytes) in KEY.chunks(4).enumerate() {
        g.w(0x5c80 + 4 * word as u64, u32::from_le_bytes(bytes.try_into().unwrap()));
    }
    for word in 0..32 {
        let entries = [0, 1, 2, 3].map(|byte| table(4 * word + byte));
        g.w(0x5c00 + 4 * u64::from(word), u32::from_le_bytes(entries));
    }
    g.w(MRQC, 0x0037_0002);
}

/// From 66.9.149.187, port 2794, to 161.142.100.80, port 1766: the first line of the specification's table.
fn flow(protocol: u8) -> Vec<u8> {
    let mut segment = tcp(&payload(40));
    segment[..4].copy_from_slice(&[0x0a, 0xea, 0x06, 0xe6]);
    let mut frame = ethernet(0x0800, &ipv4(protocol, &segment));
    frame[26..34].copy_from_slice(&[66, 9, 149, 187, 161, 142, 100, 80]);
    frame
}

#[test]
fn the_hash_chooses_the_queue_and_is_told() {
    let mut g = Guest::opened();
    // Hash 0x51ccc178 with ports, 0x323e8fc2 without: entries 0x78 and 0x42.
    spread(&mut g, |entry| match entry {
        0x78 => 5,
        0x42 => 9,
        _ => 1,
    });
    for queue in [1, 5, 9] {
        g.open_queue(queue);
    }
    g.bring_one(&flow(6));
    let [information, hash, _, _] = g.written(5, 0);
    assert_eq!((information & 0xf, hash), (1, 0x51cc_c178), "IPv4 with TCP");
    g.bring_one(&flow(47));
    let [information, hash, _, _] = g.written(9, 0);
    assert_eq!((information & 0xf, hash), (2, 0x323e_8fc2), "IPv4 alone");
    g.bring_one(&ethernet(0x88b5, &payload(60)));
    assert_eq!(g.written(0, 0)[..2], [0, 0], "what has no hash goes to the first queue");
    // A new key takes effect at once.
    g.w(0x5c80, 0);
    g.bring_one(&flow(6));
    assert_eq!(g.counters.receive.iter().map(|queue| queue.frames).sum::<u64>(), 4);
    assert_ne!(g.counters.receive[5].frames, 2);
}

#[test]
fn a_queue_that_the_table_names_and_nobody_opened_takes_nothing() {
    let mut g = Guest::opened();
    spread(&mut g, |_| 0xff);
    g.bring_one(&flow(6));
    assert_eq!(g.counters.receive_drops[Reason::ReceiverOff as usize], 1);
}

#[test]
fn a_filter_of_ethertypes_has_a_queue_and_its_number_is_told() {
    let mut g = Guest::opened();
    g.open_queue(3);
    // ETQF 2: enabled, queue 3, 0x88b5.
    g.w(0x5cb0 + 8, 1 << 31 | 1 << 26 | 3 << 16 | 0x88b5);
    g.bring_one(&ethernet(0x88b5, &payload(60)));
    assert_eq!(g.written(3, 0)[0] >> 4 & 0xfff, 1 << 11 | 2);
    g.bring_one(&ethernet(0x88b6, &payload(60)));
    assert_eq!(g.counters.receive[0].frames, 1);
}

#[test]
fn a_filter_of_vlan_priorities_has_a_queue() {
    let mut g = Guest::opened();
    g.open_queue(3);
    // VLAPQF as igb_rxnfc_write_vlan_prio_filter writes it: priority 6 to queue 3.
    g.w(0x55b0, (8 | 3) << 24);
    let tagged = |control: u16| ethernet(0x8100, &[&control.to_be_bytes()[..], &[0x88, 0xb5], &payload(60)].concat());
    g.bring_one(&tagged(6 << 13 | 5));
    assert_eq!(g.counters.receive[3].frames, 1);
    g.bring_one(&tagged(5 << 13 | 5));
    g.bring_one(&ethernet(0x88b5, &payload(60)));
    assert_eq!((g.counters.receive[3].frames, g.counters.receive[0].frames), (1, 2), "another priority, and no tag");
}

#[test]
fn a_filter_of_syn_has_a_queue_and_goes_before_flows_if_its_highest_bit_says_so() {
    let mut g = Guest::opened();
    g.open_queue(3);
    g.open_queue(11);
    let mut opening = flow(6);
    opening[47] = 2;
    // As DPDK's eth_igb_syn_filter_set writes it: enabled, queue 3.
    g.w(0x55fc, 3 << 1 | 1);
    g.bring_one(&opening);
    g.bring_one(&flow(6));
    assert_eq!((g.counters.receive[3].frames, g.counters.receive[0].frames), (1, 1), "and no other segment");
    g.w(0x5a80, 1 << 17);
    g.w(0x59e0, 0xe000_8000 | 1 << 8 | 11 << 16 | 6);
    g.bring_one(&opening);
    assert_eq!((g.counters.receive[3].frames, g.counters.receive[11].frames), (1, 1));
    g.w(0x55fc, 1 << 31 | 3 << 1 | 1);
    g.bring_one(&opening);
    assert_eq!((g.counters.receive[3].frames, g.counters.receive[11].frames), (2, 1));
}

#[test]
fn a_filter_of_a_flow_has_a_queue() {
    let mut g = Guest::opened();
    g.open_queue(11);
    // As DPDK's igb_inject_5tuple_filter_82576 writes it: TCP, this destination port, everything else any.
    g.w(0x5a80, 1766_u32.swap_bytes() >> 16);
    g.w(0x5aa0, 0x0008_1000);
    g.w(0x59e0, 0xe000_8000 | 1 << 8 | 11 << 16 | 6);
    g.bring_one(&flow(6));
    assert_eq!(g.counters.receive[11].frames, 1);
    g.bring_one(&flow(17));
    assert_eq!(g.counters.receive[0].frames, 1, "not TCP");
    // The same with the source address, in network order.
    g.w(0x5980, u32::from_le_bytes([66, 9, 149, 188]));
    g.w(0x59e0, 0xc000_8000 | 1 << 8 | 11 << 16 | 6);
    g.bring_one(&flow(6));
    assert_eq!((g.counters.receive[11].frames, g.counters.receive[0].frames), (1, 2));
}
