use nicety_ipfix::{Outcome, Seen, Table};

use super::*;

const FROM_ONE: Outcome = Outcome { egress: 2, dropped: 0, directions: 1 };
const BOTH: Outcome = Outcome { egress: 2, dropped: 0, directions: 3 };

fn names(names: &[(u16, &str)]) -> Arc<Names> {
    let port = |name: &str| Arc::new(Port { name: name.to_owned(), vlan: 0 });
    Arc::new(names.iter().map(|(number, name)| (*number, port(name))).collect())
}

/// Records of the flows of as many stations behind this port.
fn records(ingress: u16, count: u32, outcome: Outcome) -> Vec<Record> {
    let (mut table, mut records) = (Table::new(ingress, 64 << 20), Vec::new());
    for station in 0..count {
        let head = [&[2, 0, 0, 0, 0, 2, 2, 0][..], &station.to_be_bytes(), &[8, 6], &[0; 46]].concat();
        table.add(&Seen::of(&head), outcome, (1, 60), 0, &mut |record| records.push(record));
    }
    table.end_where(|_| true, &mut |record| records.push(record));
    records
}

/// A queue, and the inlet for these ports.
fn queue(ports: &[(u16, &str)]) -> (Arc<Queue>, Inlet) {
    let queue = Arc::<Queue>::default();
    let inlet = Inlet::new(&queue, &names(ports));
    (queue, inlet)
}

const PORTS: [(u16, &str); 3] = [(1, "flood"), (2, "vm2"), (3, "vm3")];

/// How many records of each port leave, as far as these many.
fn drained(queue: &Queue, most: usize) -> BTreeMap<String, usize> {
    let (mut records, mut counts) = (VecDeque::new(), BTreeMap::new());
    queue.drain(most, &mut records);
    records.iter().for_each(|one| *counts.entry(one.from.name.clone()).or_default() += 1);
    counts
}

fn counts(of: &[(&str, usize)]) -> BTreeMap<String, usize> {
    of.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

fn lost(queue: &Queue) -> BTreeMap<String, usize> {
    let lost = queue.lost_by_port().into_iter().map(|(name, count)| (name, count as usize)).collect();
    let all = queue.counts().lost.load(Ordering::Relaxed) as usize;
    assert_eq!(BTreeMap::values(&lost).sum::<usize>(), all);
    lost
}

#[test]
fn the_flood_of_one_guest_loses_its_own_records_and_none_of_the_others() {
    let (queue, inlet) = queue(&PORTS);
    inlet.take(&mut records(1, 40_000, FROM_ONE));
    assert_eq!(lost(&queue), counts(&[("flood", 40_000 - WAITING_MAX)]), "alone it may use all room");
    inlet.take(&mut records(2, 1000, FROM_ONE));
    inlet.take(&mut records(3, 500, FROM_ONE));
    inlet.take(&mut records(1, 40_000, FROM_ONE));
    inlet.take(&mut records(2, 1000, FROM_ONE));
    let expected = [("flood", WAITING_MAX - 2500), ("vm2", 2000), ("vm3", 500)];
    assert_eq!(lost(&queue), counts(&[("flood", 80_000 - (WAITING_MAX - 2500))]));
    assert_eq!(drained(&queue, usize::MAX), counts(&expected));
    assert!(queue.is_empty());
}

#[test]
fn two_floods_share_the_room() {
    let (queue, inlet) = queue(&PORTS);
    for _ in 0..2 {
        inlet.take(&mut records(1, 40_000, FROM_ONE));
        inlet.take(&mut records(2, 40_000, FROM_ONE));
    }
    let half = WAITING_MAX / 2;
    assert_eq!(lost(&queue), counts(&[("flood", 80_000 - half), ("vm2", 80_000 - half)]));
    assert_eq!(drained(&queue, usize::MAX), counts(&[("flood", half), ("vm2", half)]));
}

#[test]
fn a_collector_that_takes_little_gets_some_of_each_port() {
    let (queue, inlet) = queue(&PORTS);
    inlet.take(&mut records(1, 10_000, FROM_ONE));
    inlet.take(&mut records(2, 100, FROM_ONE));
    inlet.take(&mut records(3, 10, FROM_ONE));
    let first = drained(&queue, 100);
    assert_eq!(first.values().sum::<usize>(), 100);
    assert!(first["vm2"] >= 40 && first["vm3"] == 10, "{first:?}");
    let rest = drained(&queue, usize::MAX);
    assert_eq!((rest["flood"] + first["flood"], rest["vm2"] + first["vm2"]), (10_000, 100));
}

#[test]
fn a_record_that_waits_keeps_the_names_that_its_ports_had() {
    let (queue, before) = queue(&PORTS);
    before.take(&mut records(1, 1, BOTH));
    // The number is another port's, twenty plans later.
    for plan in 0..20 {
        let name = format!("later{plan}");
        Inlet::new(&queue, &names(&[(1, &name), (2, "other")])).take(&mut records(1, 1, BOTH));
    }
    let mut all = VecDeque::new();
    queue.drain(usize::MAX, &mut all);
    let found: Vec<[&str; 2]> = all.iter().map(|one| [&*one.from.name, &*one.to.name]).collect();
    assert_eq!(found.len(), 21);
    assert!(found.contains(&["flood", "vm2"]) && found.contains(&["later19", "other"]), "{found:?}");
}

#[test]
fn what_a_port_has_lost_is_forgotten_with_it_and_stays_in_the_sum() {
    let (queue, inlet) = queue(&PORTS);
    inlet.take(&mut records(1, 40_000, BOTH));
    let twice = 2 * (40_000 - WAITING_MAX as u64);
    assert_eq!(queue.lost_by_port(), BTreeMap::from([("flood".to_owned(), twice)]), "a record for each direction");
    queue.lose("vm2", 3);
    queue.keep(&names(&PORTS[1..]));
    assert_eq!(queue.lost_by_port(), BTreeMap::from([("vm2".to_owned(), 3)]));
    assert_eq!(queue.counts().lost.load(Ordering::Relaxed), twice + 3);
}
