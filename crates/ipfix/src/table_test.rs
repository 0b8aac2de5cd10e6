use super::*;
use crate::key::Outcome;

const FORWARDED: Outcome = Outcome { egress: 2, dropped: 0, directions: 1 };
const SECOND: u64 = 1_000_000_000;
/// Active timeout 60 s, idle timeout 15 s.
const LIMITS: (u64, u64) = (60 * SECOND, 15 * SECOND);

/// A TCP segment of 60 bytes from this station, with these flags.
fn seen(station: u32, flags: u8) -> Seen {
    let mut head = vec![0; 60];
    head[8..12].copy_from_slice(&station.to_be_bytes());
    head[12..15].copy_from_slice(&[8, 0, 0x45]);
    head[17] = 46;
    head[23] = 6;
    (head[46], head[47]) = (0x50, flags);
    Seen::of(&head)
}

/// Counts frames. Returns the flows that had to make room.
fn add(table: &mut Table, seen: &Seen, outcome: Outcome, amount: (u32, u64), now_ns: u64) -> Vec<Record> {
    let mut displaced = Vec::new();
    table.add(seen, outcome, amount, now_ns, &mut |record| displaced.push(record));
    displaced
}

fn swept(table: &mut Table, now_ns: u64) -> Vec<Record> {
    let mut records = Vec::new();
    while !table.sweep(LIMITS, now_ns, 100, &mut |record| records.push(record)).is_done {}
    records
}

#[test]
fn frames_of_a_flow_are_counted_together_and_reported_when_it_is_silent() {
    let mut table = Table::new(7, 1 << 16);
    for (at, flags) in [(1, 0x02), (2, 0x10), (4, 0x18)] {
        assert_eq!(add(&mut table, &seen(1, flags), FORWARDED, (1, 60), at * SECOND), []);
    }
    assert_eq!(add(&mut table, &seen(2, 0x10), FORWARDED, (2, 2 * 1514), 5 * SECOND), []);
    assert_eq!((table.flows(), swept(&mut table, 18 * SECOND)), (2, Vec::new()), "silent for 14 s");
    let records = swept(&mut table, 19 * SECOND);
    let [one] = &records[..] else { panic!("{records:?}") };
    assert_eq!((one.ingress, one.packets, one.octets, one.flags), (7, 3, 3 * 46, 0x1a));
    assert_eq!((one.first_ns, one.last_ns, one.end), (SECOND, 4 * SECOND, EndReason::Idle));
    assert_eq!(one.key.outcome(), FORWARDED);
    let records = swept(&mut table, 20 * SECOND);
    assert_eq!((records.len(), records[0].packets, records[0].octets), (1, 2, 2 * 1500));
    assert_eq!(table.flows(), 0);
}

#[test]
fn a_flow_that_goes_on_is_reported_after_the_active_timeout_and_begins_again() {
    let mut table = Table::new(0, 1 << 16);
    let mut records = Vec::new();
    for second in 0..=130 {
        add(&mut table, &seen(1, 0x10), FORWARDED, (1, 60), second * SECOND);
        records.extend(swept(&mut table, second * SECOND));
    }
    let shown: Vec<_> = records.iter().map(|one| (one.first_ns / SECOND, one.packets, one.end)).collect();
    assert_eq!(shown, [(0, 61, EndReason::Active), (61, 61, EndReason::Active)]);
    table.end_where(|_| true, &mut |record| records.push(record));
    let last = records.last().unwrap();
    assert_eq!((last.packets, last.end), (9, EndReason::Forced));
    assert_eq!(records.iter().map(|one| one.packets).sum::<u64>(), 131, "each frame is in one record");
}

#[test]
fn a_connection_that_tcp_has_ended_is_reported_a_second_later() {
    for flags in [0x11, 0x04] {
        let mut table = Table::new(0, 1 << 16);
        add(&mut table, &seen(1, flags), FORWARDED, (1, 60), 0);
        assert_eq!(swept(&mut table, SECOND - 1), []);
        assert_eq!(swept(&mut table, SECOND)[0].end, EndReason::Ended);
    }
}

#[test]
fn a_flow_without_a_place_displaces_the_one_that_was_silent_for_longest() {
    // One bucket.
    let mut table = Table::new(0, 1);
    assert_eq!(table.places(), 8);
    for station in 0..8 {
        assert_eq!(add(&mut table, &seen(station, 0), FORWARDED, (1, 60), station.into()), []);
    }
    add(&mut table, &seen(0, 0), FORWARDED, (1, 60), 8);
    let displaced = add(&mut table, &seen(8, 0), FORWARDED, (1, 60), 9);
    let [displaced] = &displaced[..] else { panic!("{displaced:?}") };
    assert_eq!((displaced.end, displaced.first_ns), (EndReason::NoRoom, 1), "station 1: station 0 has sent again");
    assert_eq!(table.flows(), 8);
}

#[test]
fn a_million_flows_take_no_more_memory_than_the_table_has_and_none_is_lost() {
    let mut table = Table::new(0, 1 << 20);
    let (mut packets, mut displaced) = (0, 0);
    for station in 0..1_000_000 {
        table.add(&seen(station, 0), FORWARDED, (1, 60), station.into(), &mut |record| {
            (packets, displaced) = (packets + record.packets, displaced + 1);
        });
    }
    assert!(table.places() * ENTRY_BYTES <= 1 << 20 && table.places() >= 4096, "{}", table.places());
    assert!(table.flows() <= table.places() && displaced == 1_000_000 - table.flows());
    table.end_where(|_| true, &mut |record| packets += record.packets);
    assert_eq!((packets, table.flows()), (1_000_000, 0));
}

#[test]
fn a_thousand_flows_find_places_in_the_usual_table() {
    let mut table = Table::new(0, 1 << 20);
    for round in 0..3u64 {
        for station in 0..1000 {
            assert_eq!(add(&mut table, &seen(station, 0), FORWARDED, (1, 60), round), [], "{station}");
        }
    }
    assert_eq!(table.flows(), 1000);
}

#[test]
fn a_sweep_stops_when_its_work_is_done_and_goes_on_from_there() {
    let mut table = Table::new(0, 1 << 20);
    (0..1000).for_each(|station| assert_eq!(add(&mut table, &seen(station, 0), FORWARDED, (1, 60), 0), []));
    let (mut records, mut calls) = (0, 0);
    loop {
        let swept = table.sweep(LIMITS, 15 * SECOND, 64, &mut |_| records += 1);
        assert!(swept.cost <= 64 + WAYS, "{swept:?}");
        calls += 1;
        if swept.is_done {
            break;
        }
    }
    assert!(records == 1000 && calls > 10, "{records} {calls}");
}

#[test]
fn drops_are_flows_of_their_own_by_reason() {
    let mut table = Table::new(0, 1 << 16);
    for dropped in [0, 1, 2] {
        add(&mut table, &seen(1, 0), Outcome { egress: NOT_ONE, dropped, directions: 1 }, (1, 60), 0);
    }
    assert_eq!(table.flows(), 3);
    let mut reasons = Vec::new();
    table.end_where(|key| key.outcome().dropped != 0, &mut |record| reasons.push(record.key.outcome().dropped));
    reasons.sort_unstable();
    assert_eq!((reasons, table.flows()), (vec![1, 2], 1));
}

#[test]
fn a_table_takes_memory_as_flows_come_and_gives_it_back_when_they_have_ended() {
    let mut table = Table::new(0, 256 << 20);
    let mut places = Vec::new();
    for station in 0..200_000 {
        assert_eq!(add(&mut table, &seen(station, 0), FORWARDED, (1, 60), 0), []);
        if [1, 1000, 200_000].contains(&(station + 1)) {
            places.push(table.places());
        }
    }
    // 256 MiB have room for two million.
    assert_eq!(places, [512, 16_384, 2_097_152]);
    // A thousand of them go on.
    (0..1000).for_each(|station| assert_eq!(add(&mut table, &seen(station, 0), FORWARDED, (1, 60), SECOND), []));
    assert_eq!(swept(&mut table, 15 * SECOND).len(), 199_000);
    assert_eq!((table.flows(), table.places()), (1000, 32_768));
    // They are found where they have moved, and those that have not moved yet, too.
    for station in 0..1000 {
        assert_eq!(add(&mut table, &seen(station, 0), FORWARDED, (1, 60), 16 * SECOND), []);
    }
    let mut packets = Vec::new();
    table.end_where(|_| true, &mut |record| packets.push(record.packets));
    assert_eq!(packets, vec![3; 1000], "each is in one record");
}

#[test]
fn no_flow_waits_until_all_others_have_moved() {
    let mut table = Table::new(0, 256 << 20);
    let mut most = 0;
    for station in 0..100_000 {
        let left = |table: &Table| table.before.as_ref().map_or(0, |left| left.places.tags.len() - left.next);
        let (before, places) = (left(&table), table.places());
        assert_eq!(add(&mut table, &seen(station, 0), FORWARDED, (1, 60), 0), []);
        match places == table.places() {
            true => most = most.max(before - left(&table)),
            false => assert_eq!(before, 0, "{station}: they have all moved when the table grows again"),
        }
    }
    assert!((1..=MOVED).contains(&most), "{most} buckets at once");
    assert_eq!(table.flows(), 100_000);
}

#[test]
fn flows_to_a_port_are_looked_for_only_where_there_may_be_any() {
    let mut table = Table::new(0, 1 << 16);
    let dropped = Outcome { egress: NOT_ONE, dropped: 1, directions: 1 };
    add(&mut table, &seen(1, 0), FORWARDED, (1, 60), 0);
    add(&mut table, &seen(2, 0), dropped, (1, 60), 0);
    let known: Vec<u16> = (0..64).filter(|port| table.may_go_to(*port)).collect();
    assert_eq!(known, [FORWARDED.egress]);
    table.end_where(|_| true, &mut |_| ());
    swept(&mut table, 0);
    assert!(!table.may_go_to(FORWARDED.egress), "it is empty");
}
