//! Guards judged by Linux: the host behind a tap must not accept anything that a port's guard should block. The test runs itself
//! again in its own user and network namespace, which needs no root rights. Without a tap driver or such a namespace it prints a
//! note and judges nothing.

mod encodings;
mod linux;
#[path = "../namespace/mod.rs"]
mod namespace;
mod queries;

use std::sync::Arc;

use encodings::{ATTACKER, CHAINS, HOST, LINKS, Link, NAMED, packets4, summed6, v6};
use linux::Linux;
use namespace::inside;
use nicety_adapter::{Batch, PortId, Time};
use nicety_memory::Map;
use nicety_switch::{Guards, Limits, Plan, Policy, Switch};

/// One attempt. Its number is in its message to the host.
struct Attempt {
    number: u8,
    name: String,
    frames: Vec<Vec<u8>>,
}

struct Attack {
    name: &'static str,
    /// Sets of guards, each of which must be enough alone.
    guards: &'static [Guards],
    /// All encodings of the attempt, numbered from this number on.
    attempts: fn(u8) -> Vec<Attempt>,
    /// A text that the host shows if it accepted the attempt with this number.
    sign: fn(u8) -> String,
    /// Encodings that the host is known to accept without a guard.
    taken: &'static [&'static str],
}

const NONE: Guards =
    Guards { bpdu: false, dhcp_server: false, arp: false, router_advertisement: false, multicast_router: false };
const ARP: Guards = Guards { arp: true, ..NONE };
const ROUTER: Guards = Guards { router_advertisement: true, ..NONE };
const DHCP: Guards = Guards { dhcp_server: true, ..NONE };

/// Link-local addresses of the host and of its router. Other addresses have a kind and a number.
const HOST6: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
const GATEWAY6: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

fn link_local(kind: u8, number: u8) -> [u8; 16] {
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, kind, 0, number]
}

/// All encodings of a message over IPv6: each link encoding with the usual packet, each packet encoding with the usual link, and
/// both.
fn attempts6(first: u8, next: u8, message: impl Fn(u8) -> ([u8; 16], Vec<u8>)) -> Vec<Attempt> {
    let usual = (LINKS[0], CHAINS[0]);
    let ways = LINKS.map(|link| (link, usual.1)).into_iter();
    let ways = ways.chain(CHAINS[1..].iter().map(|chain| (usual.0, *chain))).chain([(LINKS[3], CHAINS[1])]);
    (first..)
        .zip(ways)
        .map(|(number, ((link, wrap), (chain, pack)))| {
            let (source, payload) = message(number);
            let packets = pack(next, &payload, number);
            let frames = packets.iter().map(|packet| frame(&wrap(0x86dd, &v6(source, HOST6, packet)))).collect();
            Attempt { number, name: format!("{link}, {chain}"), frames }
        })
        .collect()
}

/// All encodings of a message over IPv4.
fn attempts4(first: u8, target: [u8; 4], protocol: u8, message: impl Fn(u8) -> ([u8; 4], Vec<u8>)) -> Vec<Attempt> {
    let packets = |number| {
        let (source, payload) = message(number);
        packets4(source, target, protocol, number, &payload)
    };
    let mut attempts: Vec<Attempt> = (first..)
        .zip(LINKS)
        .map(|(number, (name, link))| {
            let (_, packets) = packets(number).swap_remove(0);
            let frames = packets.iter().map(|packet| frame(&link(0x0800, packet))).collect();
            Attempt { number, name: format!("{name}, plain"), frames }
        })
        .collect();
    for index in 1..packets(0).len() {
        let number = first + attempts.len() as u8;
        let (name, packets) = packets(number).swap_remove(index);
        let frames = packets.iter().map(|packet| frame(&LINKS[0].1(0x0800, packet))).collect();
        attempts.push(Attempt { number, name: format!("plain, {name}"), frames });
    }
    attempts
}

fn frame(rest: &[u8]) -> Vec<u8> {
    let mut frame = [&HOST[..], &ATTACKER, rest].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

fn option(kind: u8) -> Vec<u8> {
    [&[kind, 1][..], &NAMED].concat()
}

fn solicitations(first: u8) -> Vec<Attempt> {
    attempts6(first, 58, |number| {
        let source = link_local(1, number);
        let message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &HOST6, &option(1)].concat();
        (source, summed6(source, HOST6, 58, message, 2))
    })
}

fn advertisements(first: u8) -> Vec<Attempt> {
    attempts6(first, 58, |number| {
        let source = link_local(2, number);
        let message = [&[136, 0, 0, 0, 0x20, 0, 0, 0][..], &source, &option(2)].concat();
        (source, summed6(source, HOST6, 58, message, 2))
    })
}

fn routers(first: u8) -> Vec<Attempt> {
    attempts6(first, 58, |number| {
        let source = link_local(3, number);
        let message = [&[134, 0, 0, 0, 64, 0, 7, 8][..], &[0; 8], &option(1)].concat();
        (source, summed6(source, HOST6, 58, message, 2))
    })
}

fn redirects(first: u8) -> Vec<Attempt> {
    attempts6(first, 58, |number| {
        let far = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, number];
        let message = [&[137, 0, 0, 0, 0, 0, 0, 0][..], &link_local(4, number), &far, &option(2)].concat();
        (GATEWAY6, summed6(GATEWAY6, HOST6, 58, message, 2))
    })
}

fn redirects4(first: u8) -> Vec<Attempt> {
    attempts4(first, [10, 0, 0, 2], 1, |number| {
        // About an echo reply, which needs no socket: net/ipv4/icmp.c, icmp_err.
        let far = [[10, 0, 0, 2], [10, 9, 0, number]].concat();
        let about = [&[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0, 0][..], &far, &[0; 8]].concat();
        let mut message = [&[5, 1, 0, 0, 10, 0, 0, 77][..], &about].concat();
        let sum = nicety_frame::checksum::sum(&message).checksum();
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        ([10, 0, 0, 1], message)
    })
}

fn requests(first: u8) -> Vec<Attempt> {
    let attempt = |(number, (name, link)): (u8, (&str, Link))| {
        let packet = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &NAMED, &[10, 0, 1, number], &[0; 6], &[10, 0, 0, 2]].concat();
        Attempt { number, name: name.to_owned(), frames: vec![frame(&link(0x0806, &packet))] }
    };
    (first..).zip(LINKS).map(attempt).collect()
}

/// DHCP answers from a server's port and from another.
fn answers4(first: u8) -> Vec<Attempt> {
    attempts4(first, [10, 0, 0, 2], 17, |number| {
        let from = if number.is_multiple_of(2) { [0, 67] } else { [4, 43] };
        let payload = *b"an offer";
        ([10, 0, 0, 1], [&from[..], &[0, 68, 0, 17, 0, 0], &payload, &[number]].concat())
    })
}

fn answers6(first: u8) -> Vec<Attempt> {
    attempts6(first, 17, |number| {
        let source = link_local(5, number);
        let from: [u8; 2] = if number.is_multiple_of(2) { [2, 35] } else { [6, 11] };
        let message = [&from[..], &[2, 34, 0, 17, 0, 0], b"a answer", &[number]].concat();
        (source, summed6(source, HOST6, 17, message, 6))
    })
}

const ATTACKS: [Attack; 8] = [
    Attack {
        name: "a neighbour solicits",
        guards: &[ARP],
        attempts: solicitations,
        sign: |number| format!("fe80::1:{number:x} lladdr 02:00:00:00:00:0b"),
        taken: &["plain, plain", "3 tags, plain", "40 tags, plain", "plain, options"],
    },
    Attack {
        name: "a neighbour advertises",
        guards: &[ARP],
        attempts: advertisements,
        sign: |number| format!("fe80::2:{number:x} lladdr 02:00:00:00:00:0b"),
        taken: &["plain, plain", "3 tags, plain", "200 tags, plain", "plain, 20 options"],
    },
    Attack {
        name: "a router advertises",
        guards: &[ROUTER, ARP],
        attempts: routers,
        // The next hop, in the format of /proc/net/ipv6_route.
        sign: |number| format!(" fe800000000000000000000000030{number:03x} "),
        taken: &["plain, plain", "3 tags, plain", "28 tags, plain", "plain, 9 options", "3 tags, options"],
    },
    Attack {
        name: "a router redirects",
        guards: &[ROUTER, ARP],
        attempts: redirects,
        sign: |number| format!("fe80::4:{number:x} lladdr 02:00:00:00:00:0b"),
        taken: &["plain, plain", "9 tags, plain", "plain, long options"],
    },
    Attack {
        name: "a router redirects by ICMP",
        guards: &[ROUTER],
        attempts: redirects4,
        sign: |number| format!("10.9.0.{number} via 10.0.0.77 "),
        taken: &["plain, plain", "3 tags, plain", "plain, options", "plain, two fragments"],
    },
    Attack {
        name: "ARP",
        guards: &[ARP],
        attempts: requests,
        sign: |number| format!("10.0.1.{number} lladdr 02:00:00:00:00:0b"),
        taken: &["plain", "3 tags", "200 tags", "3 service tags"],
    },
    Attack {
        name: "DHCP",
        guards: &[DHCP],
        attempts: answers4,
        sign: |number| format!("port 68 has had {number} "),
        taken: &["plain, plain", "3 tags, plain", "plain, two fragments", "plain, 40 bytes of options"],
    },
    Attack {
        name: "DHCPv6",
        guards: &[DHCP],
        attempts: answers6,
        sign: |number| format!("port 546 has had {number} "),
        taken: &["plain, plain", "3 tags, plain", "plain, two fragments", "plain, an atomic fragment"],
    },
];

/// Forwards a frame from this port. Returns true if another port gets it.
fn forward(switch: &Switch, from: u16, frame: &[u8]) -> bool {
    let map = Arc::new(Map::private(4096).unwrap());
    map.write(0, frame).unwrap();
    let (mut batch, mut plan) = (Batch::new(), Plan::new());
    batch.start(&map, PortId(from), 0);
    let mut draft = batch.draft(0).unwrap();
    draft.push(0, frame.len() as u32).unwrap();
    draft.finish_plain(0);
    switch.forward(&batch, Time(1), &mut plan);
    !plan.receivers().is_empty()
}

fn guarded(guards: Guards) -> Switch {
    let switch = Switch::new(Limits::default());
    for (port, guards) in [(PortId(0), guards), (PortId(1), NONE)] {
        switch.set_policy(port, &Policy { guards, ..Policy::default() });
        switch.join(port, ()).unwrap();
    }
    switch
}

#[test]
fn linux_takes_nothing_that_a_guard_lets_through_however_it_is_wrapped() {
    if !inside("linux_takes_nothing_that_a_guard_lets_through_however_it_is_wrapped") {
        return;
    }
    let mut linux = Linux::new();
    for attack in &ATTACKS {
        let mut first = 1;
        for guards in std::iter::once(None).chain(attack.guards.iter().map(Some)) {
            let attempts = (attack.attempts)(first);
            first += attempts.len() as u8;
            let switch = guards.map_or_else(|| guarded(NONE), |guards| guarded(*guards));
            for attempt in &attempts {
                let passed = attempt.frames.iter().filter(|frame| forward(&switch, 0, frame));
                linux.hears(&passed.cloned().collect::<Vec<_>>());
            }
            let shown = linux.shown();
            let taken = attempts.iter().filter(|attempt| shown.contains(&(attack.sign)(attempt.number)));
            let taken: Vec<&str> = taken.map(|attempt| attempt.name.as_str()).collect();
            match guards {
                Some(guards) => assert_eq!(taken, [] as [&str; 0], "{}: {guards:?}", attack.name),
                None => {
                    println!("{}: Linux takes {taken:?}", attack.name);
                    let missing: Vec<_> = attack.taken.iter().filter(|name| !taken.contains(name)).collect();
                    assert!(missing.is_empty(), "{}: the judge does not see {missing:?} in\n{shown}", attack.name);
                }
            }
        }
    }
}
