//! Bad cases, one at a time: a few hosts and a store that answers at once.

#[allow(dead_code, reason = "it plays faults too, which these cases do not need")]
#[path = "../many/store.rs"]
mod store;

mod addresses;
mod lab;

use std::collections::BTreeSet;
use std::time::Duration;

use nicety_adapter::Time;
use nicety_fabric::{
    Action, Basis, Connection, Event, Fabric, Hop, Key, Keys, LEARNED_ALL_MAX, LEARNED_MAX, Me, Namesake, Settings,
    Terms, Trouble, Waiting,
};
use nicety_frame::{Mac, Vni};

use lab::*;
use store::Store;

#[test]
fn an_address_is_told_to_the_other_host_and_goes_with_its_port() {
    let mut lab = pair();
    lab.started(0, "web", 1);
    let hosts = ["host/a", "host/a/192.0.2.1", "host/b", "host/b/192.0.2.2"];
    assert_eq!(lab.keys(), [&["at/web/a/02:00:00:00:00:01", "config"][..], &hosts].concat());
    assert_eq!(lab.to(1, 5, 1).as_deref(), Some("192.0.2.1"));
    let now = Time(lab.now);
    lab.hosts[0].fabric.stopped(&name("web"), mac(1), now);
    lab.settle();
    assert_eq!((lab.to(1, 5, 1), lab.keys().len()), (None, 5));
    assert_eq!(lab.connection(0), Connection::Connected);
    let report = lab.hosts[1].fabric.report(now);
    assert_eq!((report.config, report.watches, report.hosts.len(), report.claims), (Some(2), 3, 1, 0));
}

#[test]
fn a_host_whose_uplink_carries_a_group_gets_its_broadcasts_without_a_guest_there() {
    let mut lab = pair();
    let floods = |lab: &Lab, at: usize| {
        let to = |(vni, hop): &(Vni, Hop)| (vni.number(), lab.hosts[at].hops[hop].address.to_string());
        lab.hosts[at].flood.iter().map(to).collect::<Vec<_>>()
    };
    let carries = |lab: &mut Lab, at: usize, uplink: Option<&str>| {
        let now = Time(lab.now);
        lab.hosts[at].fabric.carried(&name("web"), uplink.map(name).as_ref(), now);
        lab.settle();
    };
    assert_eq!(floods(&lab, 0), []);
    carries(&mut lab, 1, Some("eth0"));
    let to_b = [(5, "192.0.2.2".to_owned())];
    let claims = |lab: &Lab| lab.keys().into_iter().filter(|key| key.starts_with("at/")).collect::<Vec<_>>();
    assert_eq!((claims(&lab), floods(&lab, 0)), (vec!["at/web/b/uplink".to_owned()], to_b.to_vec()));
    // It is no address, and no port.
    let report = lab.hosts[0].fabric.report(Time(lab.now));
    assert_eq!((report.hosts[0].addresses, report.groups[0].hosts, report.groups[0].told), (0, 1, 0));
    assert!(lab.hosts[0].fabric.ports_of_hosts().is_empty() && lab.hosts[0].table.is_empty());
    assert_eq!(lab.hosts[1].fabric.report(Time(lab.now)).groups[0].own, 0);
    // Also after its last guest has gone, and with a second such host.
    carries(&mut lab, 0, Some("eth1"));
    lab.started(1, "web", 1);
    let now = Time(lab.now);
    lab.hosts[1].fabric.stopped(&name("web"), mac(1), now);
    lab.settle();
    assert_eq!((floods(&lab, 0), floods(&lab, 1)), (to_b.to_vec(), vec![(5, "192.0.2.1".to_owned())]));
    assert!(lab.refused(0).is_empty() && lab.refused(1).is_empty(), "neither overtakes the other");
    // By another uplink, and after the end of a lease.
    carries(&mut lab, 1, Some("eth2"));
    assert_eq!(floods(&lab, 0), to_b);
    lab.cut(1, true);
    lab.wait(Duration::from_secs(15));
    assert!(!claims(&lab).contains(&"at/web/b/uplink".to_owned()));
    lab.cut(1, false);
    lab.wait(Duration::from_secs(15));
    assert_eq!(floods(&lab, 0), to_b);
    carries(&mut lab, 1, None);
    assert_eq!((floods(&lab, 0), claims(&lab)), (vec![], vec!["at/web/a/uplink".to_owned()]));
}

#[test]
fn a_port_s_name_that_another_host_has_is_reported_with_that_host_and_whether_its_guest_moves() {
    let mut lab = pair();
    let started = |lab: &mut Lab, at: usize, port: &str, last: u8| {
        let now = Time(lab.now);
        lab.hosts[at].fabric.started(&name("web"), mac(last), &name(port), now);
        lab.settle();
    };
    let namesakes = |lab: &Lab, at: usize| lab.hosts[at].fabric.namesakes();
    let expected = |port: &str, host: &str, has_same_address| {
        vec![Namesake { port: name(port), host: name(host), has_same_address }]
    };
    started(&mut lab, 0, "web1", 1);
    started(&mut lab, 1, "web2", 2);
    assert_eq!((namesakes(&lab, 0), namesakes(&lab, 1)), (vec![], vec![]));
    // Its guest moves.
    lab.hosts[1].fabric.waits(&name("web"), mac(1), &name("web1"), Waiting::Expected, Time(lab.now));
    lab.settle();
    assert_eq!(namesakes(&lab, 0), expected("web1", "b", true));
    assert_eq!(namesakes(&lab, 1), expected("web1", "a", true));
    started(&mut lab, 1, "web1", 1);
    let now = Time(lab.now);
    lab.hosts[0].fabric.stopped(&name("web"), mac(1), now);
    lab.settle();
    assert_eq!((namesakes(&lab, 0), namesakes(&lab, 1)), (vec![], vec![]));
    assert!(lab.refused(0).is_empty() && lab.refused(1).is_empty(), "it is no error");
    // Another guest's port.
    started(&mut lab, 0, "web2", 3);
    assert_eq!(namesakes(&lab, 0), expected("web2", "b", false));
    assert_eq!(namesakes(&lab, 1), expected("web2", "a", false));
    // One address of two is the same.
    started(&mut lab, 0, "web2", 2);
    assert_eq!(namesakes(&lab, 1), expected("web2", "a", false));
}

#[test]
fn what_strangers_write_is_refused_with_its_key_and_the_rest_stays() {
    let mut lab = pair();
    lab.started(0, "web", 1);
    lab.write("host/d", "no JSON");
    lab.write("at/web/a/02:00:00:00:00:01x", "{}");
    lab.write("at/web/x/02:00:00:00:00:05", r#"{"port":"p","sequence":-1}"#);
    let refused = lab.refused(1);
    assert_eq!(refused.len(), 3, "{refused:#?}");
    assert!(refused[0].starts_with("/nicety/fabrics/lab/host/d: the value is not a host's record: "), "{refused:#?}");
    assert!(
        refused[1].starts_with("/nicety/fabrics/lab/at/web/a/02:00:00:00:00:01x: part 6 of the MAC"),
        "{refused:#?}"
    );
    assert!(refused[2].starts_with("/nicety/fabrics/lab/at/web/x/02:00:00:00:00:05: the value is not a claim: "));
    assert_eq!(lab.to(1, 5, 1).as_deref(), Some("192.0.2.1"));
    // A key that is right again, or gone, is refused no more.
    lab.write("at/web/x/02:00:00:00:00:05", r#"{"port":"p","sequence":1}"#);
    lab.delete("at/web/a/02:00:00:00:00:01x");
    assert_eq!(lab.refused(1).len(), 1);
}

#[test]
fn a_claim_that_a_stranger_deletes_or_overwrites_is_written_again() {
    let mut lab = pair();
    lab.started(0, "web", 1);
    lab.delete("at/web/a/02:00:00:00:00:01");
    assert_eq!(lab.to(1, 5, 1).as_deref(), Some("192.0.2.1"));
    lab.write("at/web/a/02:00:00:00:00:01", r#"{"port":"other","sequence":1}"#);
    assert_eq!(lab.hosts[1].fabric.places(mac(1))[0].port.as_str(), "vm");
    // One that this host does not want goes.
    lab.write("at/web/a/02:00:00:00:00:09", r#"{"port":"other","sequence":1}"#);
    assert!(!lab.keys().contains(&"at/web/a/02:00:00:00:00:09".to_owned()));
    assert_eq!(lab.to(1, 5, 9), None);
}

#[test]
fn an_own_key_that_a_stranger_deletes_or_damages_is_written_again() {
    let mut lab = pair();
    lab.started(0, "web", 1);
    let value =
        |lab: &Lab, key: &str| lab.store.read(format!("/nicety/fabrics/lab/{key}").as_bytes()).entries[0].value.clone();
    let stranger = r#"{"address":"192.0.2.9","mtu":1500,"run":"00000000000000ff","version":"1"}"#;
    for key in ["host/a", "at/web/a/02:00:00:00:00:01"] {
        let own = value(&lab, key);
        for spoilt in [None, Some("no JSON"), Some(""), Some(stranger)] {
            match spoilt {
                None => lab.delete(key),
                Some(text) => lab.write(key, text),
            }
            lab.wait(Duration::from_secs(1));
            assert_eq!(value(&lab, key), own, "{key}: {spoilt:?}");
            assert_eq!((lab.connection(0), lab.to(1, 5, 1).as_deref()), (Connection::Connected, Some("192.0.2.1")));
            assert!(lab.refused(0).is_empty() && lab.refused(1).is_empty(), "{key}: {spoilt:?} {:?}", lab.refused(1));
        }
    }
}

#[test]
fn a_configuration_that_cannot_be_used_leaves_the_last_one_in_force() {
    let mut lab = pair();
    lab.started(0, "web", 1);
    lab.write("config", "format = 2\n");
    let newer = "format = 2 is of a newer version of this program, which reads format = 1: upgrade it on this host";
    let version = lab.store.revision;
    let refused = format!("version {version} of the configuration is refused: {newer}; version 2 stays in force");
    assert_eq!(lab.refused(1), [refused]);
    // The daemon refuses what collides with its host file.
    lab.hosts[1].refuses = Some("port group \"web\" is in the host file, too");
    lab.write("config", &TEXT.replace("vni = 5", "vni = 7"));
    assert_eq!(lab.to(1, 5, 1).as_deref(), Some("192.0.2.1"));
    assert!(lab.refused(1)[0].contains("is refused: port group \"web\" is in the host file, too; version 2 stays"));
    lab.hosts[1].refuses = None;
    lab.write("config", &TEXT.replace("vni = 5", "vni = 8"));
    assert_eq!((lab.to(1, 5, 1), lab.to(1, 8, 1).as_deref()), (None, Some("192.0.2.1")));
    assert!(lab.refused(1).is_empty());
    lab.delete("config");
    assert_eq!(lab.refused(1), ["its key is not there: the last known configuration stays"]);
    assert_eq!(lab.to(1, 8, 1).as_deref(), Some("192.0.2.1"));
}

#[test]
fn a_host_whose_daemon_cannot_follow_leaves_the_networks_that_a_newer_version_takes_from_their_groups() {
    let vnis = |all: &[u32]| all.iter().map(|number| Vni::new(*number).unwrap()).collect::<BTreeSet<_>>();
    let waits = |lab: &Lab| lab.hosts[1].fabric.report(Time(lab.now)).waits;
    let mut lab = pair();
    lab.started(0, "web", 1);
    // The group "web" gives its number up, and another one may soon have it.
    lab.hosts[1].delays = Some("a change waits to be confirmed");
    lab.write("config", &TEXT.replace("vni = 5", "vni = 7"));
    let (first, left) = (lab.store.revision, vnis(&[5]));
    assert_eq!((&lab.hosts[0].left, &lab.hosts[1].left), (&vnis(&[]), &left));
    let sentence = "waits: a change waits to be confirmed; version 2 stays in force, but nothing goes to other hosts or comes from them in \
                    web, whose VNI may be another group's";
    assert_eq!(waits(&lab), Some(format!("version {first} {sentence}")));
    assert!(lab.refused(1).is_empty());
    // A daemon that starts again leaves it, too, also while the store is away.
    let kept = lab.hosts[1].fabric.keep();
    assert_eq!(kept.left(), left);
    lab.cut(1, true);
    for is_in_force in [true, false] {
        let me = Me { host: name("b"), address: [192, 0, 2, 2].into(), mtu: 1500, version: "0.1.0".to_owned() };
        let settings = Settings { fabric: name("lab"), me, run: 101, seed: 1, terms: Terms::default() };
        let mut again = Fabric::resume(settings, kept.clone(), is_in_force, Time(lab.now));
        again.applied(2, Ok(()), Time(lab.now));
        let actions: Vec<Action> = std::iter::from_fn(|| again.action()).collect();
        let leaves: Vec<_> = actions.iter().filter(|action| matches!(action, Action::Leave { .. })).collect();
        assert_eq!(leaves, [&Action::Leave { vnis: left.clone() }]);
    }
    lab.cut(1, false);
    // A newer version does not wait for the first one. The daemon's tries may come to an end just before.
    lab.hosts[1].delays = None;
    lab.hosts[1].refuses = Some("port group \"new\" is in the host file, too");
    lab.write("config", &TEXT.replace("vni = 6", "vni = 8"));
    assert_eq!((&lab.hosts[1].left, waits(&lab)), (&vnis(&[6]), None));
    assert!(
        lab.refused(1)[0].ends_with("comes from them in db, whose VNI may be another group's"),
        "{:?}",
        lab.refused(1)
    );
    lab.hosts[1].fabric.applied(first, Ok(()), Time(lab.now));
    assert_eq!(lab.to(1, 7, 1), None, "a version that is no more tried");
    lab.hosts[1].refuses = None;
    lab.write("config", &TEXT.replace("vni = 5", "vni = 9"));
    assert_eq!((&lab.hosts[1].left, lab.to(1, 9, 1).as_deref()), (&vnis(&[]), Some("192.0.2.1")));
}

#[test]
fn a_version_that_had_to_wait_is_in_force_when_the_daemon_says_so() {
    let mut lab = pair();
    lab.started(0, "web", 1);
    lab.hosts[1].delays = Some("a change waits to be confirmed");
    lab.write("config", &TEXT.replace("vni = 5", "vni = 7"));
    let version = lab.store.revision;
    assert_eq!(lab.to(1, 7, 1), None);
    lab.hosts[1].fabric.applied(version, Ok(()), Time(lab.now));
    lab.settle();
    assert_eq!((lab.hosts[1].left.len(), lab.to(1, 7, 1).as_deref()), (0, Some("192.0.2.1")));
    let report = lab.hosts[1].fabric.report(Time(lab.now));
    assert_eq!((report.config, report.waits), (Some(version), None));
}

#[test]
fn a_change_is_made_from_the_newest_version_by_one_administrator() {
    let mut lab = pair();
    let new = format!("{TEXT}[[port_group]]\nname = \"new\"\nvni = 9\n");
    let change = |lab: &mut Lab, text: &str| {
        let keys = Keys::new(&name("lab"));
        let read = |prefix: String| lab.store.read(prefix.as_bytes()).entries;
        let basis = Basis::read(&keys, read(keys.text(&Key::Config)).first(), &read(keys.freed())).unwrap();
        let reuse = u64::try_from(Terms::default().reuse().as_nanos()).unwrap();
        basis.change(text).map(|change| change.transaction(&keys, lab.store.grant_for(reuse, lab.now)))
    };
    let (one, other) = (change(&mut lab, &new).unwrap(), change(&mut lab, &new).unwrap());
    assert!(lab.carry_out(&one) && !lab.carry_out(&other));
    // A number goes from one group to another in two steps, with time between them.
    let swapped = new.replace("vni = 5", "vni = 9").replace("\"new\"\nvni = 9", "\"new\"\nvni = 5");
    assert!(change(&mut lab, &swapped).unwrap_err().starts_with("vni 5 of group \"new\" is group \"web\"'s"));
    let freed = new.replace("vni = 5", "vni = 10");
    let transaction = change(&mut lab, &freed).unwrap();
    assert!(lab.carry_out(&transaction));
    let taken = freed.replace("vni = 9", "vni = 5");
    lab.wait(Duration::from_secs(29));
    assert!(change(&mut lab, &taken).unwrap_err().starts_with("vni 5 of group \"new\" was given up a moment ago"));
    lab.wait(Duration::from_secs(2));
    let transaction = change(&mut lab, &taken).unwrap();
    assert!(lab.carry_out(&transaction));
    lab.started(0, "web", 1);
    assert_eq!(lab.to(1, 10, 1).as_deref(), Some("192.0.2.1"));
    assert!(lab.refused(0).is_empty() && lab.refused(1).is_empty());
    assert_eq!(lab.connection(0), Connection::Connected);
}

#[test]
fn a_host_that_does_not_reach_the_store_says_how_long_and_whether_others_take_it_for_gone() {
    let mut lab = pair();
    lab.cut(0, true);
    lab.wait(Duration::from_secs(2));
    let Connection::Away { is_forgotten: false, why, .. } = lab.connection(0) else {
        panic!("{:?}", lab.connection(0))
    };
    assert_eq!(why, "no answer within 1 s");
    lab.wait(Duration::from_secs(9));
    let Connection::Away { is_forgotten: true, since, .. } = lab.connection(0) else {
        panic!("{:?}", lab.connection(0))
    };
    assert_eq!(since, Duration::from_secs(11));
}

#[test]
fn the_higher_sequence_number_wins_and_the_loser_gives_up() {
    let mut lab = pair();
    lab.started(0, "web", 1);
    lab.started(1, "web", 1);
    assert_eq!(lab.hosts[0].moved, [(mac(1), name("b"))]);
    assert_eq!(lab.to(0, 5, 1).as_deref(), Some("192.0.2.2"));
    assert_eq!((lab.to(1, 5, 1), lab.keys().len()), (None, 6), "the loser's key is gone");
    lab.started(0, "web", 1);
    assert_eq!(lab.to(1, 5, 1).as_deref(), Some("192.0.2.1"));
}

#[test]
fn a_host_that_expects_a_guest_gets_its_frames_when_it_has_stopped_elsewhere_and_not_before() {
    let mut lab = pair();
    lab.add("c", "192.0.2.3");
    let (now, groups) = (Time(lab.now), BTreeSet::from([name("web")]));
    lab.hosts[2].fabric.needs(&groups, now);
    lab.started(0, "web", 1);
    lab.waits(1, 1, Waiting::Expected);
    assert_eq!((lab.to(2, 5, 1).as_deref(), lab.to(1, 5, 1).as_deref()), (Some("192.0.2.1"), Some("192.0.2.1")));
    lab.waits(0, 1, Waiting::Stopped);
    assert_eq!((lab.to(2, 5, 1).as_deref(), lab.to(0, 5, 1).as_deref()), (Some("192.0.2.2"), Some("192.0.2.2")));
    lab.started(1, "web", 1);
    assert_eq!((lab.to(2, 5, 1).as_deref(), lab.to(1, 5, 1)), (Some("192.0.2.2"), None));
    assert!(lab.hosts.iter().all(|host| host.moved.is_empty()), "nobody's guest was taken away");
    // It stands still for a while, and goes on there: frames wait for it at that host.
    lab.waits(1, 1, Waiting::Stopped);
    assert_eq!(lab.to(2, 5, 1).as_deref(), Some("192.0.2.2"), "of equal ones the later");
    lab.started(1, "web", 1);
    assert_eq!(lab.to(0, 5, 1).as_deref(), Some("192.0.2.2"));
    // A move that fails: the guest goes on at its old place, and the other VMM leaves.
    lab.waits(0, 1, Waiting::Expected);
    lab.waits(1, 1, Waiting::Stopped);
    assert_eq!(lab.to(2, 5, 1).as_deref(), Some("192.0.2.1"));
    lab.started(1, "web", 1);
    let now = Time(lab.now);
    lab.hosts[0].fabric.stopped(&name("web"), mac(1), now);
    lab.settle();
    assert_eq!(lab.to(2, 5, 1).as_deref(), Some("192.0.2.2"));
    assert_eq!(lab.keys().iter().filter(|key| key.starts_with("at/")).count(), 1);
}

/// A number alone does not order claims whose hosts have not heard of each other. etcd's revisions do.
#[test]
fn of_two_claims_the_one_that_etcd_wrote_last_counts_although_its_host_had_not_heard_of_the_other() {
    for is_last in [true, false] {
        let mut lab = pair();
        lab.hosts[1].is_late = true;
        // The number of a rises, and b hears nothing of it.
        let claims = |lab: &mut Lab| (0..5).for_each(|_| lab.started(0, "web", 1));
        if is_last {
            claims(&mut lab);
            lab.started(1, "web", 1);
        } else {
            lab.started(1, "web", 1);
            claims(&mut lab);
        }
        lab.hosts[1].is_late = false;
        lab.settle();
        let (loser, winner) = if is_last { (0, 1) } else { (1, 0) };
        let of = |host: usize| ["a", "b"][host];
        assert_eq!(lab.hosts[loser].moved.last(), Some(&(mac(1), name(of(winner)))), "{is_last}");
        assert_eq!(lab.to(loser, 5, 1), Some(format!("192.0.2.{}", winner + 1)));
        assert_eq!((lab.to(winner, 5, 1), &lab.hosts[winner].moved[..]), (None, &[][..]), "it has never lost it");
        assert!(lab.keys().contains(&format!("at/web/{}/02:00:00:00:00:01", of(winner))) && lab.keys().len() == 6);
    }
}

#[test]
fn two_guests_with_one_address_are_told_apart_less_and_less_often_and_reported() {
    let mut lab = pair();
    lab.started(0, "web", 1);
    lab.started(1, "web", 1);
    let before: usize = lab.hosts.iter().map(|host| host.transactions).sum();
    for _ in 0..600 {
        lab.learned(0, 1);
        lab.learned(1, 1);
        lab.wait(Duration::from_millis(100));
    }
    let transactions = lab.hosts.iter().map(|host| host.transactions).sum::<usize>() - before;
    assert!(transactions < 60, "{transactions} in a minute");
    assert_eq!(
        lab.refused(0),
        [
            "port \"vm\": its address 02:00:00:00:00:01 of group \"web\" was claimed by another host 5 times in a row or more: two guests may \
              have one address"
        ]
    );
}

#[test]
fn a_guest_that_makes_addresses_up_costs_the_store_little() {
    let mut lab = pair();
    for last in 0..100 {
        lab.learned(0, last);
    }
    lab.wait(Duration::from_secs(2));
    assert_eq!(lab.hosts[1].table.len(), usize::from(LEARNED_MAX));
    // The log has the sentence once, however many more the guest makes up.
    let sentence = [
        "port \"vm\": not all addresses that were learned behind it are claimed, because there are too many: other hosts reach those by flooding",
    ];
    assert_eq!(lab.refused(0), sentence);
    lab.learned(0, 200);
    assert_eq!(lab.refused(0), sentence);
    // Addresses that come and go.
    let before = lab.hosts[0].transactions;
    for round in 0..100 {
        let now = Time(lab.now);
        lab.hosts[0].fabric.stopped(&name("web"), mac(round % 16), now);
        lab.learned(0, round % 16);
        lab.wait(Duration::from_millis(10));
    }
    let transactions = lab.hosts[0].transactions - before;
    assert!(transactions <= 7, "{transactions} transactions in a second");
    // It ends.
    let now = Time(lab.now);
    (0..=200).for_each(|last| lab.hosts[0].fabric.stopped(&name("web"), mac(last), now));
    assert!(lab.refused(0).is_empty(), "{:?}", lab.refused(0));
}

#[test]
fn guests_that_make_addresses_up_take_no_room_from_the_address_of_a_port_and_theirs_wait_for_room() {
    let mut lab = pair();
    let now = Time(lab.now);
    let web = name("web");
    let port = |number: usize| name(&format!("p{}", number / usize::from(LEARNED_MAX)));
    let invented = |number: usize| Mac([2, 1, 0, 0, (number >> 8) as u8, number as u8]);
    let fabric = &mut lab.hosts[0].fabric;
    for number in 0..LEARNED_ALL_MAX {
        assert!(fabric.learned(&web, invented(number), &port(number), now));
    }
    let last = invented(LEARNED_ALL_MAX);
    assert!(!fabric.learned(&web, last, &name("late"), now) && !fabric.has_room(&name("late")));
    lab.started(0, "web", 1);
    lab.waits(0, 2, Waiting::Expected);
    assert_eq!([1, 2].map(|last| lab.to(1, 5, last).as_deref() == Some("192.0.2.1")), [true; 2]);
    // An address that is given up, or becomes a port's own, leaves its room. Then the port of its own has room, and another one.
    let fabric = &mut lab.hosts[0].fabric;
    fabric.stopped(&web, invented(0), now);
    assert!(
        fabric.has_room(&port(0)) && fabric.has_room(&name("late")) && !fabric.has_room(&port(LEARNED_ALL_MAX - 1))
    );
    assert!(fabric.learned(&web, last, &name("late"), now) && !fabric.has_room(&name("late")));
    fabric.started(&web, invented(1), &port(1), now);
    assert!(fabric.learned(&web, invented(0), &port(0), now));
}

#[test]
fn a_store_that_was_restored_from_an_older_state_is_read_anew() {
    let mut lab = pair();
    lab.started(0, "web", 1);
    let mut older = Store::new(10 * SECOND);
    std::mem::swap(&mut lab.store, &mut older);
    lab.write("config", TEXT);
    assert!(lab.store.revision < older.revision);
    lab.cut(0, true);
    lab.cut(1, true);
    lab.cut(0, false);
    lab.cut(1, false);
    lab.wait(Duration::from_secs(25));
    assert_eq!((lab.connection(0), lab.connection(1)), (Connection::Connected, Connection::Connected));
    assert_eq!(lab.to(1, 5, 1).as_deref(), Some("192.0.2.1"));
}

#[test]
fn a_host_that_dies_is_gone_with_its_lease_and_one_that_was_away_has_a_lease_more() {
    let mut lab = pair();
    lab.started(0, "web", 1);
    lab.cut(0, true);
    lab.wait(Duration::from_secs(9));
    // Renewed at most a third of the lease ago.
    lab.wait(Duration::from_secs(2));
    assert_eq!((lab.to(1, 5, 1), lab.hosts[1].hops.len()), (None, 0));
    lab.cut(0, false);
    lab.wait(Duration::from_secs(2));
    assert_eq!(lab.to(1, 5, 1).as_deref(), Some("192.0.2.1"));
    // Now both are cut off for longer than the lease, and the other one comes back first.
    lab.cut(0, true);
    lab.cut(1, true);
    lab.wait(Duration::from_secs(30));
    lab.cut(1, false);
    lab.wait(Duration::from_secs(9));
    assert_eq!(lab.to(1, 5, 1).as_deref(), Some("192.0.2.1"));
    // It reads anew up to a second after it has heard that its own lease has ended, and the lease counts from there.
    lab.wait(Duration::from_secs(4));
    assert_eq!((lab.to(1, 5, 1), lab.hosts[1].hops.len()), (None, 0));
}

#[test]
fn a_claim_that_is_written_later_with_a_lower_number_does_not_count() {
    let mut lab = pair();
    for (host, address) in [("c", "192.0.2.3"), ("d", "192.0.2.4")] {
        lab.registers(host, address, 1);
    }
    let claim = |number: u64| format!(r#"{{"port":"p","sequence":{number}}}"#);
    lab.write("at/web/c/02:00:00:00:00:01", &claim(9));
    lab.write("at/web/d/02:00:00:00:00:01", &claim(8));
    assert_eq!(lab.to(1, 5, 1).as_deref(), Some("192.0.2.3"));
    // Of equal ones the later counts.
    lab.write("at/web/d/02:00:00:00:00:01", &claim(9));
    assert_eq!(lab.to(1, 5, 1).as_deref(), Some("192.0.2.4"));
}

#[test]
fn a_host_that_comes_back_yields_to_a_claim_that_knew_nothing_of_its_own() {
    let mut lab = pair();
    // The number rises.
    for at in [0, 1, 0, 1, 0] {
        lab.started(at, "web", 1);
    }
    lab.add("c", "192.0.2.3");
    lab.cut(0, true);
    lab.wait(Duration::from_secs(25));
    let hosts = ["config", "host/b", "host/b/192.0.2.2", "host/c", "host/c/192.0.2.3"];
    assert_eq!(lab.keys(), hosts, "the claim is gone with its lease");
    lab.started(2, "web", 1);
    let before = lab.hosts[0].moved.len();
    lab.cut(0, false);
    lab.wait(Duration::from_secs(5));
    assert_eq!(lab.hosts[0].moved[before..], [(mac(1), name("c"))]);
    assert_eq!(lab.to(0, 5, 1).as_deref(), Some("192.0.2.3"));
}

#[test]
fn a_claim_whose_answer_was_lost_goes_with_its_port_and_its_group() {
    let mut lab = pair();
    lab.hosts[0].loses_answer = true;
    let now = Time(lab.now);
    lab.hosts[0].fabric.started(&name("web"), mac(1), &name("vm"), now);
    // Its answer is on its way when the last port leaves the group.
    while let Some(action) = lab.hosts[0].fabric.action() {
        if let Action::Transact { call, transaction } = action {
            lab.hosts[0].fabric.needs(&BTreeSet::new(), now);
            lab.act(0, Action::Transact { call, transaction });
        } else {
            lab.act(0, action);
        }
    }
    lab.settle();
    assert!(lab.keys().contains(&"at/web/a/02:00:00:00:00:01".to_owned()));
    lab.wait(Duration::from_secs(1));
    assert!(!lab.keys().contains(&"at/web/a/02:00:00:00:00:01".to_owned()), "{:?}", lab.keys());
}

#[test]
fn a_claim_that_comes_to_the_store_after_its_port_has_gone_is_refused() {
    let mut lab = pair();
    let now = Time(lab.now);
    lab.hosts[0].fabric.started(&name("web"), mac(1), &name("vm"), now);
    // It is on its way for longer than an answer may take.
    let Some(Action::Transact { call, transaction }) = lab.hosts[0].fabric.action() else { panic!("no claim") };
    let result = Err(Trouble::Failed("no answer within 1 s".to_owned()));
    lab.hosts[0].fabric.event(Event::Transacted { call, result }, now);
    lab.hosts[0].fabric.stopped(&name("web"), mac(1), now);
    lab.hosts[0].fabric.needs(&BTreeSet::new(), now);
    lab.wait(Duration::from_secs(1));
    assert!(!lab.carry_out(&transaction), "{:?}", lab.keys());
    assert_eq!((lab.connection(0), lab.keys().len()), (Connection::Connected, 5), "{:?}", lab.keys());
}

#[test]
fn a_daemon_that_ends_before_it_has_applied_what_it_had_known_knows_it_at_its_next_start() {
    let mut lab = Lab::new(&[("a", "192.0.2.1")]);
    lab.wait(Duration::from_secs(1));
    let kept = lab.hosts[0].fabric.keep();
    assert_eq!(kept.config(), Some(TEXT));
    let me = Me { host: name("a"), address: [192, 0, 2, 1].into(), mtu: 1500, version: "0.1.0".to_owned() };
    let settings = || Settings { fabric: name("lab"), me: me.clone(), run: 1, seed: 1, terms: Terms::default() };
    // Nobody calls `applied`.
    let again = Fabric::resume(settings(), kept, false, Time(lab.now)).keep();
    assert_eq!(again.config(), Some(TEXT));
    assert!(again.is_of(&name("lab"), &name("a")) && !again.is_of(&name("lab"), &name("b")));
}
