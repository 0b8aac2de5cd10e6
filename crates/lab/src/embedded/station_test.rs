//! Two stations that are joined by a socket, turn by turn in one thread: no switch and no adapter between them.

use nicety_frame::Mac;
use smoltcp::iface::Config;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr, Ipv4Cidr};

use super::super::deck::Deck;
use super::super::pair::joined;
use super::*;

const ADDRESSES: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];
const PATIENCE: Duration = Duration::from_secs(20);

struct Side {
    deck: Deck,
    iface: Interface,
    station: Station,
}

fn sides() -> [Side; 2] {
    let macs = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
    let mut number = 0;
    joined(macs).map(|link| {
        let (mac, address) = (macs[number], ADDRESSES[number]);
        number += 1;
        let mut deck = Deck::new(Box::new(link));
        let config = Config::new(HardwareAddress::Ethernet(EthernetAddress(mac.0)));
        let mut iface = Interface::new(config, &mut deck, smoltcp::time::Instant::ZERO);
        iface.update_ip_addrs(|list| list.push(IpCidr::Ipv4(Ipv4Cidr::new(address.into(), 24))).unwrap());
        Side { deck, iface, station: Station::new() }
    })
}

/// Runs both until the first has an answer.
fn until_answer(sides: &mut [Side; 2]) -> Answer {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        for (number, side) in sides.iter_mut().enumerate() {
            side.deck.fill(64).unwrap();
            side.deck.retry().unwrap();
            let now = smoltcp::time::Instant::from_micros(begun.elapsed().as_micros() as i64);
            side.iface.poll(now, &mut side.deck, side.station.sockets());
            let (_, answer) = side.station.step(Instant::now());
            side.deck.flush().unwrap();
            if let (0, Some(answer)) = (number, answer) {
                return answer;
            }
        }
    }
    panic!("no answer in {PATIENCE:?}");
}

#[test]
fn what_a_station_sends_the_other_discards_and_counts_anew_for_each_connection() {
    let mut sides = sides();
    for seconds in [0.2, 0.1] {
        let Side { iface, station, .. } = &mut sides[0];
        station.begin(iface, Task::Send, ADDRESSES[1], seconds).unwrap();
        let Answer::Sent { bytes } = until_answer(&mut sides) else { panic!("another answer") };
        let (arrived, took) = sides[1].station.discarded();
        assert!(bytes > 0);
        assert_eq!(arrived, bytes, "TCP lost nothing");
        assert!(took < PATIENCE);
    }
}

#[test]
fn every_transaction_is_measured() {
    let mut sides = sides();
    let Side { iface, station, .. } = &mut sides[0];
    station.begin(iface, Task::Transact, ADDRESSES[1], 0.1).unwrap();
    let Answer::Transacted { elapsed_ns, each_ns } = until_answer(&mut sides) else { panic!("another answer") };
    assert!(!each_ns.is_empty());
    assert!(each_ns.iter().sum::<u64>() <= elapsed_ns, "transactions do not overlap");
}

#[test]
fn a_service_answers_one_connection_right_after_the_other() {
    let mut sides = sides();
    for _ in 0..30 {
        let Side { iface, station, .. } = &mut sides[0];
        station.begin(iface, Task::Transact, ADDRESSES[1], 0.01).unwrap();
        let Answer::Transacted { each_ns, .. } = until_answer(&mut sides) else { panic!("another answer") };
        assert!(!each_ns.is_empty(), "a client that leaves without a word would keep the service's socket");
    }
}

#[test]
fn an_order_while_another_is_obeyed_is_refused() {
    let mut sides = sides();
    let Side { iface, station, .. } = &mut sides[0];
    station.begin(iface, Task::Send, ADDRESSES[1], 1.0).unwrap();
    assert!(station.begin(iface, Task::Send, ADDRESSES[1], 1.0).is_err());
}
