//! Many hosts, one store: seeded histories in which each of them is cut off, killed, late and started again at random instants, while guests
//! move between hosts and the configuration changes. `NICETY_FULL=1` plays more of them.

mod store;
mod world;

use nicety_fabric::{Basis, Key, Keys, Name};
use nicety_frame::Vni;
use world::{DELAY, LEASE, MS, World, terms, text};

/// Histories of a test: more with `NICETY_FULL=1`, one alone with `NICETY_SEED`.
fn seeds(usual: u64) -> impl Iterator<Item = u64> {
    let is_full = std::env::var_os("NICETY_FULL").is_some_and(|value| value == "1");
    let only: Option<u64> = std::env::var("NICETY_SEED").ok().and_then(|seed| seed.parse().ok());
    let last = if is_full { usual * 20 } else { usual };
    only.unwrap_or(1)..=only.unwrap_or(last)
}

fn any_host(world: &mut World) -> usize {
    let many = world.hosts.len();
    world.random.below(many as u64) as usize
}

fn any_guest(world: &mut World) -> usize {
    let many = world.guests.len();
    world.random.below(many as u64) as usize
}

fn disturb(world: &mut World) {
    let host = any_host(world);
    let guest = any_guest(world);
    let late = world.random.below(100) * MS;
    match world.random.below(18) {
        0 => world.cut(host, !world.hosts[host].is_cut),
        1 => world.majority(!world.store.has_majority),
        2 => {
            let is_kept = !world.random.one_in(4);
            world.kill_daemon(host, is_kept);
        }
        3 => {
            let until = world.now + world.random.below(4_000) * MS;
            world.kill_host(host, Some(until));
        }
        4 => world.stop(guest),
        5..=7 => world.migrate(guest, host, late),
        8 => world.restart_elsewhere(guest, host),
        9 if world.guests[guest].at.is_none() => world.start(guest, host, late),
        10 => world.hang_up(host),
        11 => world.store.compacted = world.store.revision,
        12 | 13 => change(world),
        14 => strange(world),
        // Its tunnel gets another address: one of its own, or by mistake that of another host.
        16 => {
            let address = world.fresh_address();
            let is_kept = !world.random.one_in(4);
            world.readdress(host, address, is_kept);
        }
        17 => {
            let other = any_host(world);
            let address = world.hosts[other].address;
            if other != host && world.hosts[host].address != address {
                world.readdress(host, address, true);
            }
        }
        // All hosts are cut off at once.
        15 if world.random.one_in(3) => {
            let is_cut = world.random.one_in(2);
            (0..world.hosts.len()).for_each(|host| world.cut(host, is_cut));
        }
        _ => {}
    }
}

/// An administrator gives a group another number.
fn change(world: &mut World) {
    if !world.store.has_majority {
        return;
    }
    let many = world.groups.len() as u64;
    let group = world.random.below(many) as usize;
    let group = world.groups[group].clone();
    let vni = Vni::new(1 + world.random.below(7) as u32).unwrap();
    let keys = Keys::new(&Name::new("lab").unwrap());
    let read = |prefix: String| world.store.read(prefix.as_bytes()).entries;
    let config = read(keys.text(&Key::Config));
    let basis = Basis::read(&keys, config.first(), &read(keys.freed())).unwrap();
    let mut groups = basis.config.groups.clone();
    groups.insert(group, vni);
    if let Ok(change) = basis.change(&text(&groups)) {
        let time_to_live = u64::try_from(terms().reuse().as_nanos()).unwrap();
        let lease = world.store.grant_for(time_to_live, world.now);
        let is_done = world.carry_out(&change.transaction(&keys, lease));
        world.changes += u64::from(is_done);
        world.tell(format!("an administrator changes the configuration: {groups:?}, done: {is_done}"));
    }
}

/// Values that nobody can use.
fn strange(world: &mut World) {
    let entries = [
        ("host/h0x", "{}"),
        ("host/-", "{}"),
        ("host/h1/192.0.2.1/", "{}"),
        ("host/stranger/192.0.2", "{}"),
        ("at/g0/h1/02:00:00:00:00:01/", "{}"),
        ("at/g0/stranger/02:00:00:00:00:01", "{\"port\":\"p\",\"sequence\":0}"),
        ("at/g0/stranger/zz", "{\"port\":\"p\",\"sequence\":1}"),
        // A claim of a host that is not there.
        ("at/g1/stranger/02:00:00:00:00:00", "{\"port\":\"p\",\"sequence\":9007199254740991}"),
    ];
    let (key, value) = entries[world.random.below(entries.len() as u64) as usize];
    world.write(key, value);
}

fn calm(world: &mut World) {
    world.majority(true);
    for host in 0..world.hosts.len() {
        world.cut(host, false);
    }
    world.tell_addresses_apart();
    // Leases of earlier runs end, what has vanished is believed gone, and pauses are over.
    let now = world.now;
    world.run(now + 4 * LEASE);
}

/// All hosts know where all guests are within this time.
fn agree(world: &mut World, within: u64, after: &str) {
    let until = world.now + within;
    while world.now < until && !world.differences().is_empty() {
        let next = world.now + 5 * MS;
        world.run(next);
    }
    let differences = world.differences();
    if !differences.is_empty() {
        let keys = world.store.describe(world.now);
        world.fail(&format!("after {after}: {}\n{keys}", differences.join("\n")));
    }
    world.frames(true);
}

/// A history, and then quiet.
fn play(seed: u64, hosts: usize, long: u64) -> World {
    let mut world = World::new(seed, hosts);
    world.run(2 * LEASE);
    agree(&mut world, LEASE, "the beginning");
    let end = world.now + long;
    while world.now < end {
        let pause = (5 + world.random.below(400)) * MS;
        let next = world.now + pause;
        world.run(next);
        disturb(&mut world);
        world.frames(false);
    }
    calm(&mut world);
    agree(&mut world, LEASE, "the storm");
    world.is_punctual = true;
    // What is late arrives.
    let now = world.now;
    world.run(now + LEASE);
    for _ in 0..3 {
        let (guest, host) = (any_guest(&mut world), any_host(&mut world));
        world.migrate(guest, host, 0);
        let now = world.now;
        world.run(now + 1);
        // One transaction may be on its way; then that of the claim, and its changes.
        agree(&mut world, 100 * MS + 5 * DELAY, "a move");
    }
    let host = any_host(&mut world);
    world.kill_host(host, None);
    agree(&mut world, LEASE + 4 * DELAY, "a host's death");
    world
}

#[test]
fn every_address_is_where_its_guest_is_whatever_is_cut_killed_or_late() {
    let (mut taken_back, mut overtaken, mut changes) = (0, 0, 0);
    let (mut readdressed, mut collisions, mut sent, mut arrived) = (0, 0, 0, 0);
    for seed in seeds(340) {
        let hosts = 3 + (seed % 5) as usize;
        let world = play(seed, hosts, 15_000 * MS);
        taken_back += world.taken_back;
        overtaken += world.overtaken;
        changes += world.changes;
        readdressed += world.readdressed;
        collisions += world.collisions;
        sent += world.sent;
        arrived += world.arrived;
    }
    println!(
        "{readdressed} tunnel addresses were changed, {collisions} of them to that of another host; {sent} frames were sent, and came to \
         {arrived} ports"
    );
    println!("{taken_back} times something was taken back, {overtaken} claims overtaken, {changes} changes of groups");
    // Else the histories would be too quiet to prove anything.
    let is_busy = taken_back > 5_000 && overtaken > 150 && changes > 200;
    let is_seen = readdressed > 1_000 && collisions > 500 && arrived > 100_000;
    assert!(std::env::var_os("NICETY_SEED").is_some() || (is_busy && is_seen));
}

#[test]
fn fifty_hosts_agree() {
    for seed in seeds(4) {
        play(seed, 50, 10_000 * MS);
    }
}

/// Nothing moves, so nothing that was told may be taken back: not while the store is away, and not after it is back.
#[test]
fn an_outage_of_the_store_however_long_changes_nothing() {
    for seed in seeds(100) {
        let mut world = World::new(seed, 3 + (seed % 8) as usize);
        world.run(2 * LEASE);
        agree(&mut world, LEASE, "the beginning");
        let now = world.now;
        world.run(now + LEASE);
        world.flaps.clear();
        let long = world.random.below(4 * LEASE / MS) * MS;
        let now = world.now;
        if world.random.one_in(2) {
            world.majority(false);
            world.run(now + long);
            if world.random.one_in(2) {
                // A daemon that is replaced meanwhile goes on by what it knew.
                let host = any_host(&mut world);
                world.flaps.clear();
                world.kill_daemon(host, true);
                let now = world.now;
                world.run(now + LEASE);
                agree(&mut world, 1, "a restart while the store is away");
            }
            world.majority(true);
        } else {
            // Their leases end.
            (0..world.hosts.len()).for_each(|host| world.cut(host, true));
            world.run(now + long);
            world.store.compacted = world.store.revision * i64::from(world.random.one_in(2));
            (0..world.hosts.len()).for_each(|host| world.cut(host, false));
        }
        let now = world.now;
        world.run(now + 4 * LEASE);
        if !world.flaps.is_empty() {
            world.fail(&format!("something was taken back: {}", world.flaps.join("\n")));
        }
        agree(&mut world, 1, "an outage");
    }
}
