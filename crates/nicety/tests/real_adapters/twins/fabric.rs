//! A protected VM in a fabric: its address is where it runs, whatever becomes of the host on which it ran before.

use std::time::SystemTime;

use super::*;
use crate::fabric::{
    LOOPBACK,
    requests::Pause,
    sender::{Sender, claims},
    start_etcd,
};

/// Answers before the kill and after it.
const BEFORE: usize = 150;
const AFTER: usize = 30;
/// Answers leave with the copies: those of the last copies have not left. A copy that takes longer than a host may be silent (0.3 s) ends
/// the protection.
const HELD_BACK: Duration = Duration::from_millis(500);

/// Frames of the VM's port on a host: sent, and received.
fn passed(hosts: &Hosts, host: usize) -> [u64; 2] {
    let text = hosts.served[host].get("/v1/ports/vm1").unwrap_or_default();
    let port: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}\n{}", hosts.said()));
    assert_eq!((&port["port_group"], &port["policy"]["vlan"]), (&json!("web"), &json!("10")), "{port}");
    ["transmit", "receive"]
        .map(|way| port[way].as_array().into_iter().flatten().filter_map(|queue| queue["frames"].as_u64()).sum())
}

#[test]
fn a_vm_of_a_fabric_whose_daemon_is_killed_is_reached_at_its_twin_and_stays_there_when_the_daemon_is_back() {
    let root = well(Root::lay(&mut |line| eprintln!("{line}")));
    let mut namespace = well(Namespace::open(&root));
    let _etcd = start_etcd(&mut namespace, LOOPBACK);
    let lease = format!("etcd = \"http://{LOOPBACK}:2379\"");
    let wanted = Wanted { lease: Some([&lease; 2]), is_in_fabric: true, ..Wanted::default() };
    let mut hosts = Hosts::with((root, namespace), well(tempfile::tempdir()), &wanted);
    let sender = Sender::start(&mut hosts.namespace);
    hosts.start(0, false);
    let ready = hosts.vm(0).wait_ready();
    hosts.ready(ready);
    hosts.start(1, true);
    hosts.protected(0);
    let mut requests = sender.requests(hosts.vm(0));
    requests.answered(BEFORE);
    requests.judge("protected", Pause::NONE);
    assert_eq!(claims(&mut hosts.namespace), ["a"], "its twin claims nothing\n{}", hosts.said());

    hosts.protected(0);
    let before = passed(&hosts, 0);
    let (lost, begin) = (Instant::now(), SystemTime::now() - HELD_BACK);
    let Hosts { served, namespace, .. } = &mut hosts;
    well(served[0].kill(namespace));
    hosts.survives(1, lost);
    let end = SystemTime::now();
    hosts.wait(1, "known", |_| sender.place().as_deref() == Some("b"));
    let pause = Pause { begin, end, known: SystemTime::now() };
    requests.answered(AFTER);
    requests.judge("taken over", pause);
    assert_eq!(claims(&mut hosts.namespace).first().map(String::as_str), Some("b"), "{}", hosts.said());
    let after = passed(&hosts, 1);
    println!("{before:?} frames sent and received before, {after:?} after");
    // Those of the last copy go on, which is not older than a second.
    assert!(after.iter().zip(before).all(|(after, before)| after + 100 >= before), "{before:?} {after:?}");
    // Its QEMU there still runs. The next daemon ends it: the lease is another host's.
    let Hosts { served, namespace, .. } = &mut hosts;
    let again = served[0].restart(namespace);
    hosts.ready(again);
    hosts.twin_again(0);
    hosts.protected(1);
    requests.answered(AFTER);
    requests.judge("the daemon is back, and the VM has a twin again", Pause::NONE);
    assert_eq!(sender.place().as_deref(), Some("b"), "{}", hosts.said());
    assert_eq!(claims(&mut hosts.namespace), ["b"], "{}", hosts.said());
    assert!(!hosts.said().contains("is at host a now"), "{}", hosts.said());
    sender.is_apart();
}
