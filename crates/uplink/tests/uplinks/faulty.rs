//! A bad line follows its probabilities, is the same for the same seed, and damages only the packets that it should.

use crate::common::*;
use nicety_adapter::{Counters, Offload, Reason, Time, Uplink};
use nicety_uplink::{Faults, Faulty, Pair};

/// Sends 6400 packets, each with its number, and returns the payloads that arrive.
fn line(faults: Faults, seed: u64) -> (Vec<Vec<u8>>, Counters) {
    let (one, mut other) = Pair::connected().unwrap();
    let mut one = Faulty::new(one, faults, seed).unwrap();
    let mut counters = Counters::default();
    let mut arrived = Vec::new();
    for turn in 0..100u32 {
        let packet = |i: u32| (tcp(&[&(turn * 64 + i).to_be_bytes()[..], &[7; 200]].concat()), Offload::default());
        let sender = Sender::new(&(0..64).map(packet).collect::<Vec<_>>());
        assert_eq!(sender.deliver(&mut one, &mut counters, Time::ZERO).refused().count_ones() % 64, 0);
        loop {
            let (batch, progress) = fetch(&mut other, &mut Counters::default(), Time::ZERO);
            arrived.extend(frames(&batch, PLAIN));
            other.complete(&batch);
            if progress.armed {
                break;
            }
        }
    }
    (arrived, counters)
}

fn numbers(arrived: &[Vec<u8>]) -> Vec<u32> {
    arrived.iter().map(|frame| u32::from_be_bytes(checked_payload(frame)[..4].try_into().unwrap())).collect()
}

#[test]
fn a_good_line_changes_nothing() {
    let (arrived, counters) = line(Faults::default(), 1);
    assert_eq!(numbers(&arrived), (0..6400).collect::<Vec<_>>());
    assert_eq!(counters.taken().packets, 6400);
}

#[test]
fn loss_is_counted_and_the_same_seed_loses_the_same() {
    let faults = Faults { drop: 100, ..Faults::default() };
    let (arrived, counters) = line(faults, 9);
    let lost = counters.receive_drops[Reason::UplinkRefused as usize];
    assert!((500..800).contains(&lost), "{lost} of 6400, where 640 are to be expected");
    assert_eq!(arrived.len() as u64 + lost, 6400);
    assert_eq!(line(faults, 9).0, arrived);
    assert_ne!(line(faults, 10).0, arrived);
}

#[test]
fn doubles_and_disorder_lose_nothing_but_order() {
    let mut seen = numbers(&line(Faults { reorder: 200, ..Faults::default() }, 3).0);
    assert!(!seen.is_sorted());
    seen.sort_unstable();
    assert_eq!(seen, (0..6400).collect::<Vec<_>>());
}

#[test]
fn damage_is_one_bit_behind_the_addresses() {
    let (arrived, _) = line(Faults { corrupt: 50, ..Faults::default() }, 5);
    assert_eq!(arrived.len(), 6400);
    let mut damaged = 0;
    for frame in &arrived {
        let number = u32::from_be_bytes(frame[54..58].try_into().unwrap());
        let right = tcp(&[&number.to_be_bytes()[..], &[7; 200]].concat());
        let bits: u32 = frame.iter().zip(&right).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!(frame[..12], right[..12]);
        damaged += u32::from(bits > 0);
    }
    assert!(damaged > 200, "{damaged}");
}
