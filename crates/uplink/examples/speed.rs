//! The packets per second that a pair and a tap carry, on one thread. For the tap run it where it may make one:
//! `unshare -Urn cargo run --release -p nicety-uplink --example speed`.

mod help;

use std::sync::Arc;
use std::time::{Duration, Instant};

use nicety_adapter::{
    Batch, Budget, Checksum, Counters, Frames, Offload, Pick, PortId, Segment, SegmentKind, Time, Uplink,
};
use nicety_memory::Map;
use nicety_uplink::{Null, Pair, Tap};

const TIME: Duration = Duration::from_millis(500);

/// A full batch of equal packets.
fn packets(len: usize) -> Batch {
    let mut frame = vec![0u8; len];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 10, 9, 8, 2, 10, 9, 8, 1]);
    frame[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
    frame[46] = 0x50;
    let checksum = Checksum::Partial { start: 34, field: 50 };
    let segment = Segment { kind: SegmentKind::Tcp, mss: 1448, headers: 54 };
    let offload =
        if len > 1514 { Offload { checksum, segment: Some(segment) } } else { Offload { checksum, segment: None } };
    let map = Arc::new(Map::private(64 * len).expect("memory"));
    let mut batch = Batch::new();
    batch.start(&map, PortId(0), 0);
    while Budget::TURN.allows(&batch) {
        let at = (batch.len() * len) as u64;
        map.write(at, &frame).expect("room");
        let mut draft = batch.draft(54).expect("room");
        draft.push(at, len as u32).expect("room");
        draft.finish(offload, 0).expect("TCP");
    }
    batch
}

/// Packets per second: delivers to `to`, and fetches from `from` if it is given.
fn measure(len: usize, to: &mut dyn Uplink, mut from: Option<&mut dyn Uplink>) -> f64 {
    let batch = packets(len);
    let picks: Vec<Pick> = (0..batch.len() as u16).map(Pick::whole).collect();
    let mut arrived = Batch::new();
    let mut counters = Counters::default();
    let begin = Instant::now();
    while begin.elapsed() < TIME {
        to.deliver(&Frames::new(&batch, &picks), &mut counters, Time::ZERO);
        while let Some(from) = &mut from {
            let progress = from.fetch(PortId(1), Budget::TURN, &mut arrived, &mut counters, Time::ZERO);
            if !arrived.is_empty() {
                from.complete(&arrived);
            }
            arrived.release();
            if progress.armed {
                break;
            }
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let drops: u64 = counters.receive_drops.iter().chain(&counters.transmit_drops).sum();
    if drops > 0 {
        println!("  {drops} dropped");
    }
    let done = if from.is_some() { counters.transmitted() } else { counters.taken() };
    done.packets as f64 / seconds
}

fn main() {
    help::on_request(include_str!("speed.rs"));
    let mut tap = Tap::open("speed0");
    if let Ok(tap) = &tap {
        let up = std::process::Command::new("ip").args(["link", "set", tap.name(), "up"]).status();
        println!("tap: {:?}, {}", up, tap.features().join(" "));
    }
    for len in [64, 1514, 65_000] {
        let (mut one, mut other) = Pair::connected().expect("a pair");
        let gigabits = |rate: f64| rate * len as f64 * 8.0 / 1e9;
        let null = measure(len, &mut Null, None);
        let pair = measure(len, &mut one, Some(&mut other));
        println!(
            "{len:6} bytes: null {null:.0}/s; pair, sent and received, {pair:.0}/s ({:.2} Gbit/s)",
            gigabits(pair)
        );
        match &mut tap {
            Ok(tap) => {
                let rate = measure(len, tap, None);
                println!("{len:6} bytes: tap, sent, {rate:.0}/s ({:.2} Gbit/s)", gigabits(rate));
            }
            Err(error) => println!("no tap: {error}"),
        }
    }
}
