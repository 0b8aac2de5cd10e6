//! What lies between two hosts and beside them: their link, the third party, keepers and daemons; and a VM with two ports.

use nicety_guests::{Etcd, Process};

use super::between::Between;
use super::*;

/// Hosts whose daemons reach each other by a link that the test may cut.
pub fn linked(wanted: &Wanted<'_>) -> (Hosts, Between) {
    let root = well(Root::lay(&mut |line| eprintln!("{line}")));
    let namespace = well(Namespace::open(&root));
    let place = well(tempfile::tempdir());
    let between = Between::new(place.path());
    (Hosts::with((root, namespace), place, &Wanted { is_between: true, ..*wanted }), between)
}

/// Requests while something is done. Returns what was done, and the longest silence between two answers.
pub fn asked<T>(outside: Guest, hosts: &mut Hosts, act: impl FnOnce(&mut Hosts) -> T) -> (Guest, T, Duration) {
    let requests = std::thread::spawn(move || outside_pings(outside));
    std::thread::sleep(Duration::from_millis(400));
    let done = act(hosts);
    let (outside, _, silence) = requests.join().unwrap_or_else(|_| panic!("the requests"));
    (outside, done, silence)
}

/// The owner has the lease, and goes on alone; the twin is of no use, whichever of the two still hears the other.
#[test]
fn a_link_that_is_cut_both_ways_or_one_way_leaves_one_owner_and_no_wrong_byte() {
    let (mut hosts, between) = linked(&Wanted::default());
    let mut outside = hosts.begin();
    stream(hosts.vm(0), &mut outside, &address(2));
    for (what, cut) in [("both ways", &[0, 1][..]), ("the owner's way", &[0]), ("the twin's way", &[1])] {
        let (back, (), silence) = asked(outside, &mut hosts, |hosts| {
            hosts.protected(0);
            cut.iter().for_each(|&host| between.cut(host, true));
            hosts.wait(0, "alone", |report| report["role"] == "owner" && report["state"] == "alone");
            hosts.wait(1, "of no use", |report| report["role"] == "absent");
        });
        outside = back;
        println!("{what}: silent for {silence:?}, {}", hosts.report(0)["why_not"]);
        // The network stands still until the lease has said that the twin may not take over.
        assert!(silence < Duration::from_secs(3), "{silence:?}\n{}", hosts.said());
        assert_eq!(hosts.report(1)["takeovers"], 0, "{}", hosts.said());
        cut.iter().for_each(|&host| between.cut(host, false));
        hosts.twin_again(1);
        hosts.protected(0);
    }
    finish(hosts.vm(0), &mut outside);
    assert!(between.passed(0) > between.passed(1), "the copies passed there");
}

/// By rule, with its sentence: a copy has ten seconds. The VM goes on.
#[test]
#[ignore = "only with --full: copies that take ten seconds"]
fn a_link_that_is_slower_than_the_vm_writes_its_memory_ends_the_protection_and_the_vm_goes_on() {
    let (mut hosts, between) = linked(&Wanted { checkpoint: "500ms", ..Wanted::default() });
    let mut outside = hosts.begin();
    sh(hosts.vm(0), "dd if=/dev/urandom of=/tmp/block bs=1M count=30 2>/dev/null");
    hosts.protected(0);
    sh(hosts.vm(0), "(while true; do cat /tmp/block >/tmp/copy; done >/dev/null 2>&1 &)");
    between.slow(0, 1 << 20);
    let slow = "a copy took too long: the link is slower than the VM writes its memory";
    hosts.wait(0, "ended", |report| report["why_not"].as_str().is_some_and(|why| why.contains(slow)));
    hosts.wait(0, "alone", |report| report["state"] == "alone");
    println!("{}", hosts.report(0));
    let (text, _) = pings(&mut outside, 20);
    assert_eq!(pinged(&text)[1], 20, "{text}\n{}", hosts.said());
    assert_eq!(hosts.report(1)["takeovers"], 0);
}

/// A protection goes on in the next daemon of the twin's host. Without its keeper a daemon ends, and its VM goes on at the twin.
#[test]
fn an_upgrade_of_the_twins_daemon_costs_no_takeover_and_a_kill_of_the_owners_keeper_one() {
    let mut hosts = Hosts::new("50ms", &["--keeper"]);
    let mut outside = hosts.begin();
    stream(hosts.vm(0), &mut outside, &address(2));
    let (back, (), silence) = asked(outside, &mut hosts, |hosts| {
        hosts.upgrade(1);
    });
    outside = back;
    hosts.protected(0);
    println!("the twin's daemon is replaced: silent for {silence:?}");
    assert_eq!((&hosts.report(0)["takeovers"], &hosts.report(1)["takeovers"]), (&json!(0), &json!(0)));

    let (back, (), silence) = asked(outside, &mut hosts, |hosts| {
        hosts.protected(0);
        let Hosts { served, namespace, .. } = &mut *hosts;
        well(served[0].kill(namespace));
        hosts.wait(1, "taken over", |report| report["role"] == "owner" && report["state"] == "alone");
    });
    outside = back;
    println!("the owner's keeper is killed: silent for {silence:?}");
    assert!(silence < Duration::from_secs(4), "{silence:?}\n{}", hosts.said());
    // Its QEMU still runs, and nobody hears it. The next daemon ends it: the lease is another host's.
    let Hosts { served, namespace, .. } = &mut hosts;
    let again = served[0].restart(namespace);
    hosts.ready(again);
    hosts.twin_again(0);
    hosts.protected(1);
    finish(hosts.vm(1), &mut outside);
    assert_eq!(hosts.report(1)["takeovers"], 1);
}

/// Starts an etcd that is reached at these addresses.
pub fn etcd(namespace: &mut Namespace, place: &Path, urls: &str) -> Process {
    let mut command = well(Etcd::lay(&mut |line| eprintln!("{line}"))).command();
    command.arg(format!("--data-dir={}", place.join("etcd").display()));
    command.args([format!("--listen-client-urls={urls}"), format!("--advertise-client-urls={urls}")]);
    well(namespace.start(&command, &place.join("etcd.log")))
}

/// Both adapters' frames follow from one state of the VM. The third party is an etcd, which stands still for a while.
#[test]
fn a_vm_with_two_ports_and_its_lease_in_etcd_goes_on_at_its_twin_with_both() {
    let root = well(Root::lay(&mut |line| eprintln!("{line}")));
    let mut namespace = well(Namespace::open(&root));
    let place = well(tempfile::tempdir());
    let url = "http://127.0.0.1:2379";
    let etcd = etcd(&mut namespace, place.path(), url);
    let lease = format!("etcd = \"{url}\"");
    let wanted = Wanted { ports: &[1, 3], lease: Some([&lease; 2]), ..Wanted::default() };
    let mut hosts = Hosts::with((root, namespace), place, &wanted);
    let mut outside = hosts.begin();
    // One stream out by the first adapter, and one in by the second.
    sh(&mut outside, "ip addr add 10.9.4.2/24 dev eth0");
    stream(hosts.vm(0), &mut outside, &address(2));
    stream(&mut outside, hosts.vm(0), SECOND);
    let kills = if is_full() { 20 } else { 2 };
    for round in 0..kills {
        let [from, to] = [round % 2, (round + 1) % 2];
        let (back, (), silence) = asked(outside, &mut hosts, |hosts| {
            hosts.protected(from);
            hosts.kill(from);
            hosts.wait(to, "taken over", |report| report["role"] == "owner" && report["state"] == "alone");
        });
        outside = back;
        println!("{round}: silent for {silence:?}");
        hosts.start(from, true);
        hosts.protected(to);
    }
    let last = kills % 2;
    well(hosts.namespace.tell(etcd, "STOP"));
    hosts.wait(last, "isolated", |report| report["state"] == "isolated");
    println!("{}", hosts.report(last)["why_not"]);
    well(hosts.namespace.tell(etcd, "CONT"));
    hosts.protected(last);
    finish(hosts.vm(last), &mut outside);
    finish(&mut outside, hosts.vm(last));
}
