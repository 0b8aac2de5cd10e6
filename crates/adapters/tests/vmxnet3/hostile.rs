//! A hostile or faulty guest: everything stays bounded, nothing panics, every frame is counted.

use std::sync::Arc;

use nicety_adapter::{Batch, PciFace, Pick, Queue};
use nicety_memory::Map;

use crate::guest::{Dice, Guest, MAC, MEMORY, Offload, Open, QUEUES, SHARED};
use crate::packets::udp4;

fn scribble(guest: &mut Guest, dice: &mut Dice) {
    let places = [SHARED, SHARED + 80, SHARED + 120, QUEUES, QUEUES + 256, 0x1_0000, 0x1_1000, 0x1_2000, 0x1_3000];
    let at = places[dice.below(places.len() as u64) as usize] + 4 * dice.below(128);
    let value = match dice.below(4) {
        0 => dice.below(1 << 32) as u32,
        1 => dice.below(MEMORY as u64) as u32,
        2 => 1 << dice.below(32),
        _ => 0,
    };
    guest.put32(at, value);
}

/// Numbers of packets fetched, offered and refused.
#[derive(Default)]
struct Tally {
    fetched: u64,
    brought: u64,
    refused: u64,
}

fn act(guest: &mut Guest, dice: &mut Dice, batch: &mut Batch, inbound: &Batch, tally: &mut Tally) {
    let picks = [Pick::whole(0); 8];
    match dice.below(12) {
        0..4 => scribble(guest, dice),
        4 => {
            let commands = [0xcafe_0000u32, 0xf00d_0000];
            let command = commands[dice.below(2) as usize] + dice.below(22) as u32;
            guest.command(command);
        }
        5 => guest.write(dice.below(3) as u8, 4 * dice.below(1024), dice.below(1 << 32) as u32),
        6 => {
            guest.read(dice.below(3) as u8, 4 * dice.below(1024));
        }
        7 => {
            let queue = dice.below(4) as u16;
            guest.fetch_into(queue, batch);
            tally.fetched += batch.len() as u64;
            if dice.below(3) > 0 {
                guest.complete_of(batch);
            }
        }
        8 => {
            let delivery = guest.deliver_some(inbound, &picks);
            tally.brought += picks.len() as u64;
            tally.refused += u64::from(delivery.refused().count_ones());
        }
        9 => {
            guest.now = guest.now.after_ns(dice.below(1_000_000));
            guest.tick();
        }
        10 => {
            let up = dice.below(2) == 0;
            guest.link(up);
        }
        _ => {
            let saved = guest.nic.save();
            guest.nic.restore(&saved).expect("what it has saved it takes back");
        }
    }
}

/// Commands of Linux's vmxnet3_defs.h: VMXNET3_CMD_RESET_DEV and those of vmxnet3_open.
#[test]
fn random_registers_over_random_memory_leave_every_packet_counted_and_a_device_that_a_reset_makes_new() {
    for seed in 1..=6 {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15 >> seed);
        let mut guest = Guest::opened(Open { queues: 2, ..Open::default() });
        let mut source = Guest::opened(Open::default());
        source.send(0, &[&udp4(MAC, 1, &[7; 900])], Offload::default());
        let (mut batch, mut inbound, mut tally) = (Batch::new(), Batch::new(), Tally::default());
        source.fetch_into(0, &mut inbound);
        for step in 0..10_000 {
            if step % 500 == 0 {
                guest.config_write(4, &[6, 0]);
                guest.open(Open { queues: 2, ..Open::default() });
            }
            act(&mut guest, &mut dice, &mut batch, &inbound, &mut tally);
        }
        let counters = &guest.counters;
        assert_eq!(counters.transmitted().packets, tally.fetched, "seed {seed}");
        let drops = counters.receive_drops.iter().sum::<u64>();
        assert_eq!(counters.taken().packets + drops + tally.refused, tally.brought, "seed {seed}");
        guest.link(true);
        guest.config_write(4, &[6, 0]);
        assert_eq!(guest.command(0xcafe_0002), 0, "RESET_DEV");
        assert_eq!(guest.open(Open { queues: 2, ..Open::default() }), 0, "ACTIVATE_DEV");
        assert_eq!(guest.deliver(&inbound).refused(), 0);
        let received = guest.receive(0, true).into_iter().chain(guest.receive(1, true));
        assert!(received.map(|packet| packet.bytes).eq([udp4(MAC, 1, &[7; 900])]), "seed {seed}");
        guest.send(1, &[&udp4(MAC, 1, &[8; 90])], Offload::default());
        guest.fetch_into(1, &mut batch);
        guest.complete_of(&batch);
        assert_eq!((batch.len(), guest.sent(1)), (1, vec![0]), "seed {seed}");
    }
}

#[test]
fn cve_2016_6834_a_chain_without_end_stops_the_queue_and_tells_the_driver() {
    let mut guest = Guest::opened(Open::default());
    for index in 0..128 {
        guest.put64(0x1_0000 + 16 * index, 0x80_0000);
        guest.put32(0x1_0000 + 16 * index + 8, 60 | 1 << 14);
        guest.put32(0x1_0000 + 16 * index + 12, 0);
    }
    let mut batch = Batch::new();
    // The second round has the other generation: the chain has no end, and no packet is taken.
    guest.fetch_into(0, &mut batch);
    assert!(batch.is_empty());
    assert_eq!(guest.get32(SHARED + 696) & 2, 2, "TQERR");
    guest.command(0xf00d_0000);
    assert_eq!(guest.get32(QUEUES + 80), 1);
    assert_eq!(guest.get32(QUEUES + 84), 0x8000_0000);
    let stall = guest.nic.stall(1).unwrap();
    assert_eq!((stall.queue, stall.why), (Queue::Transmit(0), "a packet fills the whole ring and has no end"));
    assert!(guest.out.stalled.contains(1) && guest.nic.stall(0).is_none(), "{stall}");
    guest.open(Open::default());
    assert_eq!(guest.nic.stall(1), None, "it was activated anew");
}

#[test]
fn a_queue_that_stops_says_why_until_it_is_activated_again() {
    let mut source = Guest::opened(Open::default());
    source.send(0, &[&udp4(MAC, 1, &[7; 900])], Offload::default());
    let (mut batch, mut inbound) = (Batch::new(), Batch::new());
    source.fetch_into(0, &mut inbound);
    let mut guest = Guest::opened(Open::default());
    let whole = Arc::clone(&guest.map);
    for round in 0..2 {
        // A bit that no descriptor has (VMXNET3_TXD_DTYPE); then rings in removed memory.
        guest.put32(0x1_0000 + 12, 3 << 12);
        guest.put32(0x1_0000 + 8, 60 | 1 << 14 | 1 << 16);
        if round > 0 {
            guest.map = Arc::new(Map::private(0x1_0000).unwrap());
        }
        guest.out = Default::default();
        guest.fetch_into(0, &mut batch);
        guest.deliver(&inbound);
        let [receive, transmit] = [0, 1].map(|number| guest.nic.stall(number).map(|stall| (stall.queue, stall.why)));
        let why = ["a descriptor is of a type that there is not", "a ring lies where no memory is"][round];
        assert_eq!(transmit, Some((Queue::Transmit(0), why)));
        assert_eq!(receive, (round > 0).then_some((Queue::Receive(0), why)));
        assert_eq!((guest.out.stalled.contains(0), guest.out.stalled.contains(1)), (round > 0, true));
        guest.out = Default::default();
        guest.fetch_into(0, &mut batch);
        guest.deliver(&inbound);
        assert!(guest.out.stalled.is_empty(), "told once");
        guest.map = Arc::clone(&whole);
        assert_eq!(guest.command(0xcafe_0002), 0, "RESET_DEV");
        assert_eq!([0, 1].map(|number| guest.nic.stall(number)), [None; 2]);
        guest.open(Open::default());
        assert_eq!([0, 1].map(|number| guest.nic.stall(number)), [None; 2]);
    }
}

/// Sends a packet of 60 bytes, the ring's first, whose address is in no memory.
fn send_from_nowhere(guest: &mut Guest) -> Batch {
    guest.put64(0x1_0000, 1 << 40);
    guest.put32(0x1_0000 + 12, 3 << 12);
    guest.put32(0x1_0000 + 8, 60 | 1 << 14);
    let mut batch = Batch::new();
    guest.fetch_into(0, &mut batch);
    batch
}

#[test]
fn cve_2023_3019_descriptors_that_point_at_no_memory_cost_the_guest_its_own_frames() {
    let mut guest = Guest::opened(Open::default());
    let mut batch = send_from_nowhere(&mut guest);
    assert!(batch.is_empty());
    assert_eq!(guest.sent(0), [0]);
    guest.put64(0x1_2000, 1 << 40);
    let mut source = Guest::opened(Open::default());
    source.send(0, &[&udp4(MAC, 1, &[7; 900])], Offload::default());
    source.fetch_into(0, &mut batch);
    assert_eq!(guest.deliver(&batch).refused(), 0);
    assert_eq!(guest.get32(0x1_4000 + 8) >> 14 & 1, 1, "an error completion");
    assert_eq!(guest.counters.receive_drops.iter().sum::<u64>(), 1);
}

#[test]
fn nothing_is_fetched_or_delivered_without_bus_mastering() {
    let mut guest = Guest::opened(Open::default());
    guest.send(0, &[&udp4(MAC, 1, b"x")], Offload::default());
    guest.config_write(4, &[2, 0]);
    let mut batch = Batch::new();
    assert!(guest.fetch_into(0, &mut batch).armed);
    assert!(batch.is_empty());
    guest.config_write(4, &[6, 0]);
    assert!(guest.out.work.contains(0), "what waits is fetched when it may be");
    guest.fetch_into(0, &mut batch);
    guest.config_write(4, &[2, 0]);
    guest.deliver(&batch);
    guest.complete_of(&batch);
    assert!(guest.receive(0, true).is_empty() && guest.sent(0).is_empty());
    let mappable = guest.pci(|face: &mut dyn PciFace, _| face.mappable().unwrap());
    assert_eq!((mappable.bar, mappable.offset, mappable.len), (0, 0, 4096));
}

/// Descriptors without progress are read again and again: the guest that posts them pays for it.
#[test]
fn packets_without_an_end_and_rings_of_bodies_are_paid_for() {
    let mut batch = Batch::new();
    let mut guest = Guest::opened(Open::default());
    // The driver still owns the packet's other descriptors.
    for index in 0..100 {
        guest.put64(0x1_0000 + 16 * index, 0x80_0000);
        guest.put32(0x1_0000 + 16 * index + 8, 60 | 1 << 14);
    }
    for _ in 0..2 {
        guest.out = Default::default();
        guest.fetch_into(0, &mut batch);
        assert_eq!((batch.len(), guest.out.excess), (0, 100));
    }

    let mut source = Guest::opened(Open::default());
    source.send(0, &[&udp4(MAC, 1, &[7; 900])], Offload::default());
    source.fetch_into(0, &mut batch);
    let mut guest = Guest::opened(Open { per_packet: 200, ..Open::default() });
    assert_eq!(guest.deliver(&batch).refused(), 0, "the only head");
    assert_eq!(guest.out.excess, 0);
    for _ in 0..2 {
        guest.out = Default::default();
        assert_eq!(guest.deliver(&batch).refused(), 1);
        assert!(guest.out.excess >= 90, "{} of 126 bodies", guest.out.excess);
    }
}

/// Names of vmxnet3_defs.h in Linux; CMD is at 0x20 of BAR 1.
#[test]
fn a_drivers_mistakes_are_listed_with_place_value_and_expectation() {
    let mut guest = Guest::opened(Open::default());
    let mut batch = send_from_nowhere(&mut guest);
    guest.put64(0x1_2000, 1 << 40);
    let mut source = Guest::opened(Open::default());
    source.send(0, &[&udp4(MAC, 1, &[7; 900])], Offload::default());
    source.fetch_into(0, &mut batch);
    guest.deliver(&batch);
    guest.command(0xcafe_0099);
    guest.put32(SHARED, 1);
    guest.command(0xcafe_0000);
    let said: Vec<String> = guest.counters.errors().iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "transmit queue 0, descriptor 0: 0x10000000000; expected the address of a buffer in guest memory that the device may read"
                .to_owned(),
            "receive queue 0, descriptor 0: 0x10000000000; expected a buffer of ring 1 in guest memory that the device may write"
                .to_owned(),
            "CMD (bar1 0x0020): 0xcafe0099; expected a command of this version (VMXNET3_CMD_*, VRRS)".to_owned(),
            format!(
                "DSAL (bar1 0x0010): {SHARED:#x}; expected a DriverShared with its magic number, and rings within the limits (DSAL, DSAH)"
            ),
        ]
    );
}

/// vmxnet3_rq_alloc_rx_buf and vmxnet3_tq_xmit in Linux's vmxnet3_drv.c write `next2fill`, which is below the ring's size. TXPROD is at 0x600
/// of BAR 0, RXPROD at 0x800, RXPROD2 at 0xa00, each 8 bytes a queue.
#[test]
fn a_producer_index_beyond_its_ring_is_a_guest_error_and_frames_go_on() {
    let mut g = Guest::opened(Open::default());
    for (offset, value) in [(0x600, 0), (0x800, 1), (0xa00, 1), (0x608, 0xffff)] {
        g.write(0, offset, value);
    }
    assert_eq!(g.counters.guest_errors(), 0, "{:?}", g.counters.errors());
    for offset in [0x600, 0x800, 0xa00] {
        g.write(0, offset, 0xffff);
    }
    let said: Vec<String> = g.counters.errors().iter().map(ToString::to_string).collect();
    let expected = "0xffff; expected an index below the ring's size (Vmxnet3_TxQueueConf, Vmxnet3_RxQueueConf)";
    let places = ["TXPROD[0] (bar0 0x0600)", "RXPROD[0] (bar0 0x0800)", "RXPROD2[0] (bar0 0x0a00)"];
    assert_eq!(said, places.map(|place| format!("{place}: {expected}")));
    assert_eq!(g.nic.receive_block(), None);
}

#[test]
fn a_driver_that_is_up_and_receives_nothing_is_told_why() {
    let mut g = Guest::opened(Open::default());
    assert_eq!(g.nic.receive_block(), None);
    g.config_write(4, &[2, 0]);
    assert_eq!(g.nic.receive_block(), Some("bus mastering is off (PCI command register)"));
}
