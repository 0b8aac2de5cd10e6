//! IGMP and MLD queries judged by Linux. The timers of its groups show the queries that it answers. Each bit of a valid query is
//! changed and the checksums are corrected. Linux must answer every query that snooping accepts.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nicety_adapter::PortId;
use nicety_frame::checksum;
use nicety_switch::{Limits, Policy, Switch};

use crate::encodings::ATTACKER;
use crate::forward;
use crate::linux::Linux;
use crate::namespace::inside;

/// The test's functions for IGMPv3 or MLDv2.
struct Protocol {
    group: fn(u16) -> IpAddr,
    query: fn(u16) -> Vec<u8>,
    /// Corrects the query's checksums.
    sum: fn(&mut [u8]),
    report: fn(u16) -> Vec<u8>,
    /// Bytes of the query without padding.
    len: usize,
    /// Place of the longest response time, and the code of two seconds.
    soon: (usize, &'static [u8]),
}

/// The code of a group number. Two codes differ in at least two bits, so that no single bit changes one into another.
fn code(number: u16) -> [u8; 2] {
    (number << 1 | number.count_ones() as u16 & 1).to_be_bytes()
}

fn group4(number: u16) -> [u8; 4] {
    let [high, low] = code(number);
    [239, 2, high, low]
}

fn group6(number: u16) -> [u8; 16] {
    let [high, low] = code(number);
    [0xff, 0x15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, high, low]
}

fn sum(bytes: &mut [u8], at: usize, pseudo: checksum::Sum) {
    bytes[at..at + 2].fill(0);
    let made = pseudo.then(checksum::sum(bytes), false).checksum();
    bytes[at..at + 2].copy_from_slice(&made.to_be_bytes());
}

/// A frame from a router at 10.0.0.1 with a router alert: RFC 3376, section 4.
fn frame4(target: [u8; 4], message: &[u8]) -> Vec<u8> {
    let mac = [1, 0, 0x5e, target[1] & 0x7f, target[2], target[3]];
    let header = [0x46, 0xc0, 0, 24 + message.len() as u8, 0, 0, 0, 0, 1, 2, 0, 0, 10, 0, 0, 1];
    let mut frame = [&mac[..], &ATTACKER, &[8, 0], &header, &target, &[0x94, 4, 0, 0], message].concat();
    sum4(&mut frame);
    frame
}

fn sum4(frame: &mut [u8]) {
    sum(&mut frame[14..38], 10, checksum::Sum::ZERO);
    sum(&mut frame[38..], 2, checksum::Sum::ZERO);
}

/// A frame from fe80::1 with a router alert: RFC 3810, section 5.
fn frame6(target: [u8; 16], message: &[u8]) -> Vec<u8> {
    let mac = [0x33, 0x33, target[12], target[13], target[14], target[15]];
    let header = [0x60, 0, 0, 0, 0, 8 + message.len() as u8, 0, 1];
    let source = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let alert = [58, 0, 5, 2, 0, 0, 1, 0];
    let mut frame = [&mac[..], &ATTACKER, &[0x86, 0xdd], &header, &source, &target, &alert, message].concat();
    sum6(&mut frame);
    frame
}

fn sum6(frame: &mut [u8]) {
    let address = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&frame[at..at + 16]).unwrap());
    let pseudo = checksum::pseudo_v6(address(22), address(38), 58, frame.len() as u32 - 62);
    sum(&mut frame[62..], 2, pseudo);
}

const IGMP: Protocol = Protocol {
    group: |number| Ipv4Addr::from(group4(number)).into(),
    // Hosts may take very long to answer.
    query: |number| frame4(group4(number), &[&[0x11, 0xff, 0, 0][..], &group4(number), &[2, 125, 0, 0]].concat()),
    sum: sum4,
    report: |number| frame4([224, 0, 0, 22], &[&[0x22, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0][..], &group4(number)].concat()),
    len: 50,
    soon: (39, &[20]),
};

const MLD: Protocol = Protocol {
    group: |number| Ipv6Addr::from(group6(number)).into(),
    query: |number| {
        let message = [&[130, 0, 0, 0, 0xff, 0xff, 0, 0][..], &group6(number), &[2, 125, 0, 0]].concat();
        frame6(group6(number), &message)
    },
    sum: sum6,
    report: |number| {
        let target = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 22];
        frame6(target, &[&[143, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0][..], &group6(number)].concat())
    },
    len: 90,
    soon: (66, &2000_u16.to_be_bytes()),
};

/// Whether a query, if it asks for an answer soon, ends another port's membership before its time.
fn is_believed(protocol: &Protocol, number: u16, query: &[u8]) -> bool {
    let switch = Switch::new(Limits { addresses: 64, ..Limits::default() });
    for port in [PortId(0), PortId(1)] {
        switch.set_policy(port, &Policy { snooping: true, ..Policy::default() });
        switch.join(port, ()).unwrap();
    }
    forward(&switch, 1, &(protocol.report)(number));
    let left = || switch.wanted(nicety_adapter::Time(1)).first().map(|wanted| wanted.left.as_secs());
    assert_eq!(left(), Some(260));
    let (mut query, (at, code)) = (query.to_vec(), protocol.soon);
    query[at..at + code.len()].copy_from_slice(code);
    (protocol.sum)(&mut query);
    forward(&switch, 0, &query);
    left() != Some(260)
}

#[test]
fn a_query_that_snooping_believes_is_one_that_linux_answers() {
    if !inside("queries::a_query_that_snooping_believes_is_one_that_linux_answers") {
        return;
    }
    let mut linux = Linux::new();
    for protocol in [IGMP, MLD] {
        let bits = (protocol.len * 8) as u16;
        let groups: Vec<IpAddr> = (0..=2 * bits).map(protocol.group).collect();
        linux.joins(&groups);
        assert!(linux.answers().is_disjoint(&groups.iter().copied().collect()), "nobody has asked yet");
        let mut believed = BTreeSet::new();
        for bits_at_once in (0..bits).collect::<Vec<_>>().chunks(16) {
            let changed = |bit: &u16| {
                let mut query = (protocol.query)(*bit);
                assert_eq!(query.len(), protocol.len);
                query[usize::from(*bit / 8)] ^= 1 << (*bit % 8);
                (protocol.sum)(&mut query);
                query
            };
            let mut queries: Vec<_> = bits_at_once.iter().map(changed).collect();
            for (bit, query) in bits_at_once.iter().zip(&queries) {
                believed.extend(is_believed(&protocol, *bit, query).then(|| (protocol.group)(*bit)));
            }
            // The kernel queues up to 32 queries (net/ipv6/mcast.c, igmp6_event_query). The last one sent is valid.
            let last = bits + bits_at_once[0];
            queries.push((protocol.query)(last));
            linux.hears(&queries);
            linux.wait_until(|linux| linux.answers().contains(&(protocol.group)(last)));
        }
        let taken = linux.answers();
        let wrongly: Vec<&IpAddr> = believed.difference(&taken).collect();
        assert_eq!(wrongly, [] as [&IpAddr; 0]);
        let only_linux = (0..bits).filter(|bit| taken.contains(&(protocol.group)(*bit))).count() - believed.len();
        println!("{} of {bits} are believed, Linux takes {only_linux} more", believed.len());
        assert!(!believed.is_empty() && is_believed(&protocol, 2 * bits, &(protocol.query)(2 * bits)));
    }
}
