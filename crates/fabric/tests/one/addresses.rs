//! Names of hosts and addresses of tunnels: whose they are.

use std::collections::BTreeSet;
use std::time::Duration;

use nicety_adapter::Time;
use nicety_fabric::{Connection, HOSTS_MAX, Op, Scope, Transaction};

use crate::lab::*;
use crate::store::Store;

#[test]
fn a_second_host_with_a_name_is_refused_until_the_first_is_gone() {
    let mut lab = pair();
    lab.add("a", "192.0.2.9");
    let Connection::Refused { why } = lab.connection(2) else { panic!("{:?}", lab.connection(2)) };
    assert_eq!(
        why,
        "a host with the name \"a\" is registered already: tunnel address 192.0.2.1, version 0.1.0, run 0000000000000064. This one \
         (tunnel address 192.0.2.9, run 0000000000000066) is refused: give it another name. If that was an earlier run on this host, its \
         lease ends within 10s"
    );
    lab.started(2, "web", 1);
    assert_eq!((lab.hosts[2].hops.len(), lab.hosts[2].table.len(), lab.hosts[1].hops.len()), (0, 0, 1));
    assert_eq!(lab.connection(0), Connection::Connected);
    let now = Time(lab.now);
    lab.hosts[0].fabric.leave(now);
    lab.settle();
    assert_eq!((lab.connection(0), lab.connection(2)), (Connection::Left, Connection::Connected));
    assert_eq!(lab.to(1, 5, 1).as_deref(), Some("192.0.2.9"));
    assert!(lab.hosts[0].hops.is_empty() && lab.hosts[0].table.is_empty());
}

#[test]
fn a_second_host_with_a_tunnel_address_is_refused_and_the_first_stays() {
    let mut lab = pair();
    lab.add("c", "192.0.2.1");
    let Connection::Refused { why } = lab.connection(2) else { panic!("{:?}", lab.connection(2)) };
    assert_eq!(
        why,
        "host \"a\" has the tunnel address 192.0.2.1 already, so host \"c\", which has the same one, is refused: give one of them another address"
    );
    // A stranger's key does not get past that either.
    lab.registers("d", "192.0.2.1", 1);
    lab.write("at/web/d/02:00:00:00:00:07", r#"{"port":"p","sequence":99}"#);
    assert_eq!((lab.connection(0), lab.hosts[1].hops.len(), lab.to(1, 5, 7)), (Connection::Connected, 1, None));
    let report = lab.hosts[1].fabric.report(Time(lab.now));
    let reached: Vec<_> = report.hosts.iter().map(|host| (host.name.as_str(), host.is_reached)).collect();
    assert_eq!(reached, [("a", true), ("d", false)]);
}

fn why_refused(lab: &Lab, at: usize) -> String {
    match lab.connection(at) {
        Connection::Refused { why } => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_copied_machine_with_another_address_is_refused_and_shows_nothing_while_the_first_is_there() {
    let mut lab = pair();
    lab.started(0, "web", 1);
    lab.started(1, "web", 2);
    let keys = lab.keys();
    lab.copy(0, "192.0.2.9");
    lab.started(2, "web", 1);
    lab.started(2, "web", 7);
    lab.wait(Duration::from_secs(60));
    let why = why_refused(&lab, 2);
    let both = "tunnel address 192.0.2.1, version 0.1.0, run 0000000000000064. This one (tunnel address 192.0.2.9, run 0000000000000384)";
    assert!(why.contains(both) && why.contains("give it another name"), "{why}");
    assert_eq!((lab.hosts[2].told.len(), lab.hosts[2].transactions), (0, 0), "it shows nothing, for no instant");
    assert_eq!((lab.connection(0), lab.keys()), (Connection::Connected, keys));
    assert_eq!((lab.to(1, 5, 1).as_deref(), lab.to(0, 5, 2).as_deref()), (Some("192.0.2.1"), Some("192.0.2.2")));
    // Once the first one has ended, the copy is the host of that name.
    let now = Time(lab.now);
    lab.hosts[0].fabric.leave(now);
    lab.settle();
    assert_eq!((lab.connection(2), lab.to(1, 5, 1).as_deref()), (Connection::Connected, Some("192.0.2.9")));
    assert_eq!(claimed(&lab), ["host/a/192.0.2.9", "host/b/192.0.2.2"]);
}

/// The two have one run, so the copy writes the key of the first. That one notices, and takes a new run.
#[test]
fn a_copied_machine_with_the_same_address_is_refused_as_soon_as_the_first_hears_of_it() {
    let mut lab = pair();
    lab.started(0, "web", 1);
    lab.started(1, "web", 2);
    let keys = lab.keys();
    lab.hosts[0].is_late = true;
    lab.copy(0, "192.0.2.1");
    lab.started(2, "web", 1);
    lab.started(2, "web", 7);
    assert_eq!((lab.connection(2), lab.to(1, 5, 7).as_deref()), (Connection::Connected, Some("192.0.2.1")));
    lab.hosts[0].is_late = false;
    lab.settle();
    lab.wait(Duration::from_secs(1));
    for _ in 0..2 {
        let why = why_refused(&lab, 2);
        assert!(why.contains("give it another name") && !why.contains("run 0000000000000064. This one"), "{why}");
        assert!(lab.hosts[2].hops.is_empty() && lab.hosts[2].table.is_empty() && lab.hosts[2].flood.is_empty());
        assert_eq!((lab.connection(0), lab.keys()), (Connection::Connected, keys.clone()));
        assert_eq!((lab.to(1, 5, 1).as_deref(), lab.to(1, 5, 7)), (Some("192.0.2.1"), None));
        let before = lab.hosts.iter().map(|host| host.transactions).sum::<usize>();
        lab.wait(Duration::from_secs(60));
        assert_eq!(lab.hosts.iter().map(|host| host.transactions).sum::<usize>(), before, "each of them is quiet");
        // Also after the next start of the first one's daemon.
        lab.again(0, "192.0.2.1");
        lab.started(0, "web", 1);
        lab.wait(Duration::from_secs(1));
    }
}

#[test]
fn a_host_that_is_killed_and_gets_another_address_waits_for_the_end_of_its_old_lease() {
    let mut lab = pair();
    lab.again(0, "192.0.2.9");
    let why = why_refused(&lab, 0);
    assert!(why.ends_with("If that was an earlier run on this host, its lease ends within 10s"), "{why}");
    lab.wait(Duration::from_secs(10));
    assert_eq!((lab.connection(0), lab.hosts[0].told.len()), (Connection::Connected, 1));
    assert_eq!(claimed(&lab), ["host/a/192.0.2.9", "host/b/192.0.2.2"]);
}

#[test]
fn a_refused_host_knows_what_it_has_missed_before_it_takes_part() {
    let mut lab = pair();
    lab.started(1, "web", 2);
    lab.add("a", "192.0.2.9");
    let (now, groups) = (Time(lab.now), BTreeSet::from([name("web")]));
    lab.hosts[2].fabric.needs(&groups, now);
    lab.settle();
    why_refused(&lab, 2);
    // A change comes late, and the end of the first one does not.
    (lab.hosts[2].is_late, lab.hosts[2].in_time) = (true, Some(Scope::Hosts));
    lab.write("config", &TEXT.replace("vni = 5", "vni = 7"));
    let now = Time(lab.now);
    lab.hosts[0].fabric.leave(now);
    lab.settle();
    assert_eq!((lab.connection(2), lab.to(2, 7, 2).as_deref()), (Connection::Connected, Some("192.0.2.2")));
    assert_eq!(lab.to(2, 5, 2), None);
}

fn three() -> Lab {
    let mut lab = pair();
    lab.add("c", "192.0.2.3");
    let now = Time(lab.now);
    lab.hosts[2].fabric.needs(&BTreeSet::from([name("web")]), now);
    lab.settle();
    lab
}

/// The tunnel addresses that are claimed in the store.
fn claimed(lab: &Lab) -> Vec<String> {
    lab.keys().into_iter().filter(|key| key.starts_with("host/") && key.matches('/').count() == 2).collect()
}

#[test]
fn a_record_with_the_address_of_a_newer_host_does_not_take_it_away() {
    for is_claimed in [false, true] {
        let mut lab = three();
        lab.started(0, "web", 1);
        lab.started(1, "web", 2);
        // Somebody has taken the older host over.
        if is_claimed {
            lab.write("host/a/192.0.2.2", "{}");
        }
        lab.write("host/a", &record("192.0.2.2", 100));
        assert_eq!((lab.connection(1), lab.to(2, 5, 2).as_deref()), (Connection::Connected, Some("192.0.2.2")));
        assert_eq!(lab.to(2, 5, 1), None, "nothing is sent to the other one");
        let sentence =
            "nothing is sent to host \"a\": its tunnel address 192.0.2.2 is that of host \"b\", which had it first";
        assert_eq!(lab.refused(2), [sentence]);
        assert_eq!(lab.refused(1), [sentence]);
        // One that was begun later sees the same.
        lab.again(2, "192.0.2.3");
        assert_eq!((lab.to(2, 5, 2).as_deref(), lab.to(2, 5, 1)), (Some("192.0.2.2"), None));
    }
    // An address without a claim is nobody's.
    let mut lab = pair();
    lab.write("host/a", &record("192.0.2.9", 100));
    assert_eq!(lab.refused(1), ["nothing is sent to host \"a\": it has not claimed its tunnel address 192.0.2.9"]);
}

#[test]
fn a_host_that_takes_the_address_of_another_is_refused_until_that_one_has_left_it() {
    let mut lab = three();
    lab.started(0, "web", 1);
    lab.started(1, "web", 2);
    lab.restart(0, "192.0.2.2");
    let Connection::Refused { why } = lab.connection(0) else { panic!("{:?}", lab.connection(0)) };
    assert_eq!(
        why,
        "host \"b\" has the tunnel address 192.0.2.2 already, so host \"a\", which has the same one, is refused: give one of them another address"
    );
    assert_eq!((lab.connection(1), lab.to(2, 5, 2).as_deref()), (Connection::Connected, Some("192.0.2.2")));
    assert!(lab.hosts[0].hops.is_empty(), "it sends nothing from an address that is another host's");
    // The other one has a new address. This one has begun anew, so it believes in a deletion one lease later.
    lab.restart(1, "192.0.2.9");
    lab.wait(Duration::from_secs(12));
    assert_eq!((lab.connection(0), lab.connection(1)), (Connection::Connected, Connection::Connected));
    assert_eq!(claimed(&lab), ["host/a/192.0.2.2", "host/b/192.0.2.9", "host/c/192.0.2.3"]);
    lab.started(0, "web", 1);
    lab.started(1, "web", 2);
    assert_eq!((lab.to(2, 5, 1).as_deref(), lab.to(2, 5, 2).as_deref()), (Some("192.0.2.2"), Some("192.0.2.9")));
    assert!(lab.refused(2).is_empty(), "{:?}", lab.refused(2));
}

#[test]
fn a_host_that_was_refused_after_it_had_registered_registers_again_when_the_other_one_is_gone() {
    let mut lab = pair();
    lab.started(0, "web", 1);
    // A host's key has a lease. That of the other host serves here.
    let lease = lab.store.read(b"/nicety/fabrics/lab/host/b").entries[0].lease;
    let (key, value) = ("/nicety/fabrics/lab/host/a".to_owned(), record("192.0.2.7", 1));
    let ops = vec![Op::Put { key, value, lease }];
    lab.carry_out(&Transaction { compares: Vec::new(), ops, otherwise: None });
    assert!(matches!(lab.connection(0), Connection::Refused { .. }), "{:?}", lab.connection(0));
    lab.delete("host/a");
    lab.wait(Duration::from_secs(2));
    assert_eq!((lab.connection(0), lab.to(1, 5, 1).as_deref()), (Connection::Connected, Some("192.0.2.1")));
}

#[test]
fn a_host_keeps_its_address_over_an_upgrade_and_loses_it_with_its_lease() {
    let mut lab = three();
    lab.started(1, "web", 2);
    // All keys of the first host are written again.
    lab.again(0, "192.0.2.1");
    lab.write("host/b/192.0.2.1", "{}");
    lab.write("host/b", &record("192.0.2.1", 101));
    assert_eq!(lab.connection(0), Connection::Connected);
    assert_eq!(
        lab.reached(2),
        [("a", "192.0.2.1", true), ("b", "192.0.2.1", false)].map(|(host, at, is)| (
            host.to_owned(),
            at.to_owned(),
            is
        ))
    );
    // Whoever takes the address after the end of the lease is there first when its old host comes back.
    let mut lab = three();
    lab.cut(0, true);
    lab.wait(Duration::from_secs(11));
    lab.restart(1, "192.0.2.1");
    lab.wait(Duration::from_secs(12));
    lab.started(1, "web", 2);
    assert_eq!(lab.to(2, 5, 2).as_deref(), Some("192.0.2.1"));
    lab.cut(0, false);
    lab.wait(Duration::from_secs(2));
    assert!(matches!(lab.connection(0), Connection::Refused { .. }), "{:?}", lab.connection(0));
    assert_eq!((lab.connection(1), lab.to(2, 5, 2).as_deref()), (Connection::Connected, Some("192.0.2.1")));
}

#[test]
fn the_claim_of_an_address_that_a_stranger_deletes_is_written_again_and_too_many_are_refused() {
    let mut lab = pair();
    lab.started(0, "web", 1);
    lab.delete("host/a/192.0.2.1");
    assert_eq!(claimed(&lab), ["host/a/192.0.2.1", "host/b/192.0.2.2"]);
    assert_eq!((lab.connection(0), lab.to(1, 5, 1).as_deref()), (Connection::Connected, Some("192.0.2.1")));
    (10..14).for_each(|last| lab.write(&format!("host/a/192.0.2.{last}"), "{}"));
    assert_eq!(
        lab.refused(1),
        ["/nicety/fabrics/lab/host/a/192.0.2.13: host \"a\" claims more than 4 tunnel addresses: this one is left out"]
    );
    assert_eq!(lab.to(1, 5, 1).as_deref(), Some("192.0.2.1"));
    // Its next registration deletes them.
    lab.again(0, "192.0.2.1");
    assert_eq!(claimed(&lab), ["host/a/192.0.2.1", "host/b/192.0.2.2"]);
}

#[test]
fn a_host_beyond_the_limit_is_named_and_reached_once_there_is_room() {
    let mut lab = Lab::new(&[("a", "192.0.2.1")]);
    let address = |number: usize| format!("10.0.{}.{}", number / 256, number % 256);
    let host = |number: usize| format!("h{number:04}");
    for number in 0..=HOSTS_MAX {
        lab.registers(&host(number), &address(number), 1);
    }
    assert_eq!(lab.hosts[0].hops.len(), HOSTS_MAX);
    let last = host(HOSTS_MAX);
    let why = "there are more than 1024 other hosts: this one is left out";
    let key = format!("/nicety/fabrics/lab/host/{last}");
    assert_eq!(lab.refused(0), [format!("{key}: {why}"), format!("{key}/{}: {why}", address(HOSTS_MAX))]);
    for key in [format!("host/h0007/{}", address(7)), "host/h0007".to_owned()] {
        lab.delete(&key);
    }
    lab.wait(Duration::from_secs(9));
    assert_eq!(lab.hosts[0].hops.len(), HOSTS_MAX - 1);
    lab.wait(Duration::from_secs(2));
    assert_eq!((lab.hosts[0].hops.len(), lab.refused(0)), (HOSTS_MAX, Vec::new()));
    assert!(lab.reached(0).contains(&(last, address(HOSTS_MAX), true)));
}

#[test]
fn another_store_with_the_same_revision_brings_its_own_configuration() {
    let mut lab = pair();
    lab.started(0, "web", 1);
    let version = |lab: &Lab| lab.hosts[1].fabric.report(Time(lab.now)).config;
    assert_eq!((version(&lab), lab.to(1, 5, 1).as_deref()), (Some(2), Some("192.0.2.1")));
    for (number, text) in [(7, TEXT.replace("vni = 5", "vni = 7")), (8, TEXT.replace("vni = 5", "vni = 8"))] {
        lab.store = Store::new(10 * SECOND);
        for at in 0..2 {
            lab.cut(at, true);
        }
        lab.write("config", &text);
        (0..2).for_each(|at| lab.cut(at, false));
        lab.wait(Duration::from_secs(25));
        assert_eq!((version(&lab), lab.to(1, number, 1).as_deref()), (Some(2), Some("192.0.2.1")));
    }
}

#[test]
fn a_host_with_another_tunnel_address_keeps_its_addresses_and_the_next_host_may_have_the_old_one() {
    let mut lab = Lab::new(&[("b", "192.0.2.2")]);
    let now = Time(lab.now);
    lab.hosts[0].fabric.needs(&BTreeSet::from([name("web")]), now);
    // This claim gives host "0" a lower number than host "a" will have.
    lab.write("at/web/0/02:00:00:00:00:07", r#"{"port":"p","sequence":9}"#);
    lab.add("a", "192.0.2.1");
    let now = Time(lab.now);
    lab.hosts[1].fabric.needs(&BTreeSet::from([name("web")]), now);
    lab.settle();
    lab.started(1, "web", 1);
    let record = |address: &str, run: u64| {
        format!(r#"{{"address":"{address}","mtu":1500,"run":"{run:016x}","version":"0.1.0"}}"#)
    };
    lab.write("host/0/192.0.2.1", "{}");
    lab.write("host/0", &record("192.0.2.1", 1));
    assert_eq!((lab.to(0, 5, 1).as_deref(), lab.to(0, 5, 7)), (Some("192.0.2.1"), None));
    // Its next daemon has another address, and registers with the same lease.
    lab.cut(1, true);
    lab.write("host/a/192.0.2.9", "{}");
    lab.write("host/a", &record("192.0.2.9", 101));
    lab.delete("host/a/192.0.2.1");
    let found = [1, 7].map(|last| lab.to(0, 5, last));
    assert_eq!(found, ["192.0.2.9", "192.0.2.1"].map(|address| Some(address.to_owned())));
    // An MTU that changes takes nothing away.
    lab.write("host/a", &record("192.0.2.9", 101).replace("1500", "9000"));
    assert_eq!(lab.to(0, 5, 1).as_deref(), Some("192.0.2.9"));
}
