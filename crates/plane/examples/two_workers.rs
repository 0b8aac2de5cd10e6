//! Frames per second of two pairs of virtio-net ports at one switch, served by one worker and by two: what workers share is what two of them
//! lose.
//!
//! ```sh
//! cargo run --release -p nicety-plane --example two_workers 64 1000
//! ```
//! Arguments: bytes of a frame with its check sequence, addresses per port, and `packed` for packed rings.
//!
//! A worker is a thread here. It serves its pair's ports and is their driver, but only the time in `Plane::turn` counts. Rounds of half a
//! second alternate: one thread with the first pair; two threads; two threads, each with a switch of its own. The figures are medians, and
//! the ratios are those of each round. Two processors may be less than twice one, if they share a core or have other work. Two switches
//! share nothing, so the last ratio is what sharing a switch costs.
//!
//! On a further switch the first pair is beside a hostile one: each of its frames has a source address that the switch has not seen. What the
//! first pair carries is compared with what it does there beside a friendly one. The hostile pair has a VLAN: without one its frames would
//! reach the others too, as the switch forgets its addresses.
#![forbid(unsafe_code)]

mod help;
mod virtio;

use std::sync::Barrier;
use std::time::{Duration, Instant};

use nicety_adapter::Time;
use nicety_plane::{Plane, Turn};
use nicety_switch::{Limits, Policy, Vlan, VlanId};
use virtio::{ACCESS, Addresses, BURST, Error, Guest, frame, serve};

const ROUNDS: usize = 11;
const ROUND: Duration = Duration::from_millis(500);
/// Time between two bursts on the switch's clock.
const STEP_NS: u64 = 20_000;

/// One pair, its worker's state, and its own time.
struct Pair {
    guests: [Guest; 2],
    addresses: Addresses,
    turn: Turn,
    now: Time,
}

impl Pair {
    /// Carries frames for a round. Returns how many a second of turns carried.
    fn round(&mut self, plane: &Plane, start: &Barrier) -> Result<f64, Error> {
        start.wait();
        let began = Instant::now();
        let (mut frames, mut served) = (0, Duration::ZERO);
        while began.elapsed() < ROUND {
            self.now = self.now.after_ns(STEP_NS);
            let Self { guests, addresses, turn, now } = self;
            guests.iter_mut().try_for_each(|guest| guest.send(addresses, *now))?;
            let turns = Instant::now();
            guests.iter().for_each(|guest| serve(plane, &guest.port, turn, *now));
            served += turns.elapsed();
            guests.iter_mut().try_for_each(Guest::receive)?;
            frames += 2 * u32::from(BURST);
        }
        Ok(f64::from(frames) / served.as_secs_f64())
    }
}

/// A round of two workers at once. Returns what each carries a second.
fn together(pairs: [&mut Pair; 2], planes: [&Plane; 2]) -> Result<[f64; 2], Error> {
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        let [one, other] = pairs;
        let work = |pair: &mut Pair, plane| pair.round(plane, &start).map_err(|error| error.to_string());
        let other = scope.spawn(move || work(other, planes[1]));
        let one = work(one, planes[0]);
        Ok([one?, other.join().unwrap_or_else(|_| Err("a worker has panicked".into()))?])
    })
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn main() -> Result<(), Error> {
    help::on_request(include_str!("two_workers.rs"));
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let packed = words.pop_if(|word| word == "packed").is_some();
    let [bytes, count] = &words[..] else { return Err("arguments: bytes addresses".into()) };
    let (frame, count) = (frame(bytes.parse()?)?, count.parse::<usize>()?.max(1));
    let plane = || {
        // So much room that no set is full of learned addresses.
        let addresses = Limits::default().addresses.max(256 * count);
        Plane::new(Limits { addresses, port_addresses: u32::MAX, ..Limits::default() })
    };
    let pair = |plane: &Plane, first| -> Result<Pair, Error> {
        let guests = [Guest::new(plane, first, &frame, packed)?, Guest::new(plane, first + 1, &frame, packed)?];
        let addresses = Addresses::learned(plane, &guests, count, false, false)?;
        Ok(Pair { guests, addresses, turn: Turn::new(), now: Time::ZERO })
    };
    let (shared, own) = (plane(), [plane(), plane()]);
    let [mut first, mut second] = [pair(&shared, 0)?, pair(&shared, 2)?];
    let visited = plane();
    let [mut visitor, mut friendly, mut hostile] = [pair(&visited, 0)?, pair(&visited, 2)?, pair(&visited, 4)?];
    hostile.addresses.invents = true;
    let vlan = Vlan::Access(VlanId::new(ACCESS).ok_or("no VLAN")?);
    let of_hostile = Policy { vlan, ..Policy::default() };
    hostile.guests.iter().for_each(|guest| visited.set_policy(&guest.port, &of_hostile));
    let mut apart = [pair(&own[0], 0)?, pair(&own[1], 2)?];
    let [mut one, mut two, mut two_apart, mut gain, mut kept, mut beside] = [const { Vec::new() }; 6];
    for _ in 0..ROUNDS {
        let alone = first.round(&shared, &Barrier::new(1))?;
        let both: f64 = together([&mut first, &mut second], [&shared, &shared])?.iter().sum();
        let [beside_friendly, _] = together([&mut visitor, &mut friendly], [&visited, &visited])?;
        let [beside_hostile, _] = together([&mut visitor, &mut hostile], [&visited, &visited])?;
        let [one_apart, other_apart] = apart.each_mut();
        let unshared: f64 = together([one_apart, other_apart], [&own[0], &own[1]])?.iter().sum();
        beside.push(beside_hostile / beside_friendly);
        one.push(alone);
        two.push(both);
        two_apart.push(unshared);
        gain.push(both / alone);
        kept.push(both / unshared);
    }
    println!("{bytes} bytes, {count} addresses per port{}", if packed { ", packed" } else { "" });
    let [one, two, two_apart] = [one, two, two_apart].map(|figures| median(figures) / 1e6);
    println!("one worker: {one:.2} Mpps; two: {two:.2} Mpps; two with a switch each: {two_apart:.2} Mpps");
    println!("two carry {:.2} times one, and {:.2} times two that share nothing", median(gain), median(kept));
    println!(
        "beside guests that invent addresses a worker carries {:.2} times what it does beside others",
        median(beside)
    );
    Ok(())
}
