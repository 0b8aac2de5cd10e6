//! The IEEE 1588 clock, and the times at which messages left and arrived: igb_ptp.c.

use crate::bench::{ethernet, ipv4, payload};
use crate::guest::*;

const SYSTIML: u64 = 0xb600;
const SYSTIMH: u64 = 0xb604;
const TIMINCA: u64 = 0xb608;
const TSYNCTXCTL: u64 = 0xb614;
const TXSTMPL: u64 = 0xb618;
const TSYNCRXCTL: u64 = 0xb620;
const RXSTMPL: u64 = 0xb624;

fn clocked() -> Guest {
    let mut g = Guest::opened();
    // igb_ptp_init: 16 << 19 every 16 ns.
    g.w(TIMINCA, 1 << 24 | 16 << 19);
    g
}

fn read(g: &mut Guest, low: u64) -> u64 {
    let low_word = u64::from(g.r(low));
    low_word | u64::from(g.r(low + 4)) << 32
}

#[test]
fn the_clock_counts_nanoseconds_as_linux_sets_it() {
    let mut g = clocked();
    let before = read(&mut g, SYSTIML);
    g.now = g.now.after_ns(1_000_000);
    assert_eq!((read(&mut g, SYSTIML) - before) >> 19, 1_000_000);
    g.w(SYSTIML, 0);
    g.w(SYSTIMH, 7);
    assert_eq!(read(&mut g, SYSTIML), 7 << 32);
}

#[test]
fn the_departure_of_a_packet_that_asks_for_it_is_noted_once() {
    let mut g = clocked();
    g.w(TSYNCTXCTL, 1 << 4);
    let frame = ethernet(0x88f7, &payload(60));
    g.send_plain(0, &frame);
    assert_eq!(g.r(TSYNCTXCTL) & 1, 0, "nobody asked");
    let now = read(&mut g, SYSTIML);
    g.put(TX_DATA, &frame);
    g.push(0, [TX_DATA as u32, 0, DATA | 1 << 19 | frame.len() as u32, 0]);
    g.ring(0);
    assert_eq!(g.drain(0), [frame]);
    assert_eq!((g.r(TSYNCTXCTL) & 1, read(&mut g, TXSTMPL)), (1, now));
    assert_eq!(g.r(TSYNCTXCTL) & 1, 0, "reading it frees it");
}

#[test]
fn the_arrival_of_an_event_of_version_2_is_noted_until_it_is_read() {
    let mut g = clocked();
    // igb_ptp_set_timestamp_mode: ETQF 3 with the bit of 1588, every event of version 2.
    g.w(0x5cb0 + 12, 1 << 30 | 1 << 26 | 0x88f7);
    g.w(TSYNCRXCTL, 1 << 4 | 0x0a);
    let mut message = vec![0; 44];
    message[30..32].copy_from_slice(&[0x12, 0x34]);
    g.bring_one(&ethernet(0x88f7, &message));
    assert_eq!((g.written(0, 0)[2] >> 16 & 1, g.r(TSYNCRXCTL) & 1), (1, 1));
    assert_eq!(g.r(0xb630) >> 16, 0x3412, "RXSATRH: the message's number");
    let now = read(&mut g, SYSTIML);
    assert_eq!(read(&mut g, RXSTMPL), now);
    assert_eq!(g.r(TSYNCRXCTL) & 1, 0);
    // A general message, and one of another protocol, are not stamped.
    message[0] = 0x0b;
    g.bring_one(&ethernet(0x88f7, &message));
    g.bring_one(&ethernet(0x88b5, &message));
    assert_eq!((g.written(0, 1)[2] >> 16 & 1, g.r(TSYNCRXCTL) & 1), (0, 0));
    // Over UDP, port 319, with a flow filter.
    g.w(0x59e0 + 12, 0xe800_8000 | 17);
    g.w(0x5a80 + 12, 319_u32.swap_bytes() >> 16);
    message[0] = 0;
    let udp = [&[1, 0x3f, 1, 0x3f, 0, 52, 0, 0], &message[..]].concat();
    g.bring_one(&ethernet(0x0800, &ipv4(17, &udp)));
    assert_eq!((g.written(0, 3)[2] >> 16 & 1, g.r(TSYNCRXCTL) & 1), (1, 1));
}
