//! A link, its lanes and their sources, simulated with a seed: what each class and port gets, and how long its frames wait.

use std::collections::{BTreeMap, VecDeque};

use nicety_adapter::{Rate, Time};
use nicety_ioc::{ClassTerms, Lane, QUANTUM_BYTES, Scheduler, Terms};

const GBIT: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
/// A TCP packet of 64 KB as 45 frames on the wire.
const TSO: u32 = 45 * 1514;

struct Random(u64);

impl Random {
    /// SplitMix64 (Steele, Lea and Flood 2014).
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }
}

/// The frames that a lane sends.
#[derive(Clone, Copy)]
enum Source {
    /// There is always another of this length.
    Greedy(u32),
    /// Always another, short, long or a segmented packet.
    Mixed,
    /// Greedy for a time, then silent for a time: of this mean length in nanoseconds.
    Now(u64),
    /// One of this length each so many nanoseconds.
    Sparse(u32, u64),
}

struct Sender {
    source: Source,
    waiting: VecDeque<(u32, u64)>,
    next_at: u64,
    is_on: bool,
    /// When each frame was sent, the sum of all bytes up to it, and how long it waited.
    sent: Vec<(u64, u64, u64)>,
    /// Times for which frames waited without a break.
    busy: Vec<(u64, u64)>,
}

struct Link {
    scheduler: Scheduler,
    rate: u64,
    /// In thousandths of a nanosecond, so that no rounding adds up.
    now_ps: u64,
    senders: BTreeMap<Lane, Sender>,
    random: Random,
    idle_ps: u64,
}

impl Link {
    fn new(rate: u64, classes: &[ClassTerms], seed: u64) -> Self {
        let scheduler = Scheduler::new(classes, 256);
        Self { scheduler, rate, now_ps: 0, senders: BTreeMap::new(), random: Random(seed), idle_ps: 0 }
    }

    fn with(mut self, class: u16, port: u16, source: Source) -> Self {
        let sender =
            Sender { source, waiting: VecDeque::new(), next_at: 0, is_on: false, sent: Vec::new(), busy: Vec::new() };
        self.senders.insert(Lane { class, port }, sender);
        self
    }

    fn now(&self) -> u64 {
        self.now_ps / 1000
    }

    /// Frames that have arrived by now join their lanes.
    fn arrive(&mut self) {
        let now = self.now_ps / 1000;
        for (lane, sender) in &mut self.senders {
            let was_empty = sender.waiting.is_empty();
            let begin = sender.refill(now, &mut self.random);
            if was_empty && let Some(request) = sender.request() {
                self.scheduler.add(*lane, request, Time(begin));
                sender.busy.push((now, u64::MAX));
            }
        }
    }

    fn run_until(&mut self, end: u64) {
        while self.now() < end {
            self.arrive();
            let now = self.now();
            match self.scheduler.pick(Time(now)) {
                Ok(grant) => {
                    let sender = self.senders.get_mut(&grant.lane).unwrap();
                    let mut bytes = 0;
                    while bytes < u64::from(grant.bytes)
                        && let Some((len, arrived)) = sender.waiting.pop_front()
                    {
                        self.now_ps += u64::from(len) * 8_000 * SECOND / self.rate;
                        let before = sender.sent.last().map_or(0, |(_, sum, _)| *sum);
                        sender.sent.push((self.now_ps / 1000, before + u64::from(len), self.now_ps / 1000 - arrived));
                        bytes += u64::from(len);
                    }
                    // A greedy source has the next frame before the link is free.
                    if sender.is_greedy() {
                        sender.refill(now, &mut self.random);
                    }
                    let next = sender.request();
                    if next.is_none() {
                        sender.busy.last_mut().unwrap().1 = self.now_ps / 1000;
                    }
                    self.scheduler.served(bytes, next, Time(self.now_ps / 1000));
                }
                Err(until) => {
                    let arrivals = self.senders.values().filter(|sender| sender.next_at > now).map(|s| s.next_at);
                    let next = arrivals.chain(until.map(|at| at.0)).min().unwrap_or(end).max(now + 1);
                    self.idle_ps += next.min(end) * 1000 - self.now_ps.min(next.min(end) * 1000);
                    self.now_ps = next * 1000;
                }
            }
        }
    }

    fn sender(&self, class: u16, port: u16) -> &Sender {
        &self.senders[&Lane { class, port }]
    }

    /// Bytes that a class has sent between two times.
    fn bytes(&self, class: u16, from: u64, to: u64) -> u64 {
        let of_class = self.senders.iter().filter(|(lane, _)| lane.class == class);
        of_class.map(|(_, sender)| sender.bytes(from, to)).sum()
    }
}

impl Sender {
    fn is_greedy(&self) -> bool {
        matches!(self.source, Source::Greedy(_) | Source::Mixed) || matches!(self.source, Source::Now(_) if self.is_on)
    }

    /// Bytes that it sends when it is served.
    fn request(&self) -> Option<u32> {
        let (first, _) = *self.waiting.front()?;
        Some(if self.waiting.len() == 1 { first } else { first.max(QUANTUM_BYTES) })
    }

    /// Frames that have arrived by now join. Returns when the first of them did.
    fn refill(&mut self, now: u64, random: &mut Random) -> u64 {
        let mut begin = now;
        match self.source {
            Source::Greedy(len) => (self.waiting.len()..30).for_each(|_| self.waiting.push_back((len, now))),
            Source::Mixed => {
                for _ in self.waiting.len()..30 {
                    let len = [60, 1514, TSO, 300][random.below(4) as usize];
                    self.waiting.push_back((len, now));
                }
            }
            Source::Now(mean) => {
                if self.next_at <= now {
                    self.is_on = !self.is_on;
                    self.next_at = now + random.below(2 * mean);
                }
                if self.is_on {
                    (self.waiting.len()..2).for_each(|_| self.waiting.push_back((1514, now)));
                }
            }
            Source::Sparse(len, each) => {
                if self.waiting.is_empty() {
                    begin = self.next_at;
                }
                while self.next_at <= now {
                    self.waiting.push_back((len, self.next_at));
                    self.next_at += each;
                }
            }
        }
        begin.min(now)
    }

    fn bytes(&self, from: u64, to: u64) -> u64 {
        let until = |time| {
            let count = self.sent.partition_point(|(at, ..)| *at <= time);
            count.checked_sub(1).map_or(0, |last| self.sent[last].1)
        };
        until(to) - until(from)
    }

    /// The rate in the worst window of this length in which frames waited all the time, in bits per second.
    fn worst(&self, window: u64, end: u64) -> Option<f64> {
        let mut worst = None;
        for &(from, to) in &self.busy {
            let mut at = from;
            while at + window <= to.min(end) {
                let rate = self.bytes(at, at + window) as f64 * 8.0 * SECOND as f64 / window as f64;
                worst = Some(worst.map_or(rate, |worst: f64| worst.min(rate)));
                at += MS;
            }
        }
        worst
    }
}

fn shares(shares: u16) -> Terms {
    Terms { shares, ..Terms::default() }
}

fn reserved(shares: u16, rate: u64) -> Terms {
    Terms { shares, reservation: Rate::new(rate), ..Terms::default() }
}

fn class(class: Terms) -> ClassTerms {
    ClassTerms { class, ..ClassTerms::default() }
}

#[test]
fn a_reservation_is_kept_in_every_window_of_100_ms_whoever_competes() {
    for seed in 0..3 {
        let classes = [
            class(reserved(1, 2 * GBIT)),
            class(reserved(5, 3 * GBIT)),
            class(reserved(1, 2 * GBIT + GBIT / 2)),
            class(shares(100)),
            class(shares(100)),
        ];
        let mut link = Link::new(10 * GBIT, &classes, seed)
            .with(0, 0, Source::Greedy(1514))
            .with(1, 1, Source::Now(150 * MS))
            .with(2, 2, Source::Mixed)
            .with(3, 3, Source::Greedy(TSO))
            .with(4, 4, Source::Now(20 * MS))
            .with(4, 5, Source::Now(3 * MS));
        link.run_until(SECOND);
        for (number, rate) in [(0, 2.0), (1, 3.0), (2, 2.5)] {
            let Some(worst) = link.sender(number, number).worst(100 * MS, SECOND) else { continue };
            let part = worst / (rate * 1e9);
            println!("seed {seed}: class {number}: worst window {part:.4} of its reservation");
            assert!(part >= 0.98, "seed {seed}: class {number}: {part}");
        }
        assert_eq!(link.idle_ps, 0, "the link is never idle while frames wait");
    }
}

#[test]
fn a_reservation_is_kept_on_a_slow_link_whose_packets_take_long() {
    const MBIT: u64 = 1_000_000;
    // A segmented packet takes 13 ms, and is due each 39 ms.
    let reserved = |rate| class(reserved(1, rate));
    let classes = [reserved(14 * MBIT), reserved(14 * MBIT), class(shares(100))];
    let mut link = Link::new(40 * MBIT, &classes, 1);
    for number in 0..3 {
        link = link.with(number, number, Source::Greedy(TSO));
    }
    link.run_until(20 * SECOND);
    for number in 0..2 {
        let rate = link.bytes(number, 0, 20 * SECOND) as f64 * 8.0 / 20.0;
        assert!(rate >= 0.99 * 14e6, "class {number}: {rate}");
    }
}

#[test]
fn an_unused_reservation_is_lent_and_given_back_at_once() {
    let classes = [class(reserved(1, 7 * GBIT)), class(shares(100))];
    let mut link = Link::new(10 * GBIT, &classes, 1).with(1, 1, Source::Greedy(1514));
    link.run_until(SECOND);
    assert!(link.bytes(1, 0, SECOND) * 8 >= 10 * GBIT - 13_000, "all is lent");
    link = link.with(0, 0, Source::Greedy(1514));
    link.run_until(SECOND + 100 * MS);
    let first = link.bytes(0, SECOND, SECOND + MS) * 8;
    assert!(first * 100 >= 7 * MS * 98, "{first} bits in the first millisecond");
    // And it is lent again as soon as it is not used.
    link.senders.get_mut(&Lane { class: 0, port: 0 }).unwrap().source = Source::Sparse(1514, u64::MAX / 2);
    link.run_until(2 * SECOND);
    let lent = link.bytes(1, SECOND + 101 * MS, SECOND + 102 * MS) * 8;
    assert!(lent * 100 >= 10 * MS * 99, "{lent} bits in a millisecond");
}

#[test]
fn a_class_that_had_more_than_its_share_by_its_reservation_does_not_owe_it_afterwards() {
    // Class 0 has 9/10 by its reservation, where its share is 1/2. Then a third class comes: 0 and 2 share what 1 leaves.
    let classes = [class(reserved(50, 7 * GBIT)), class(shares(50)), class(shares(50))];
    let mut link = Link::new(10 * GBIT, &classes, 1).with(0, 0, Source::Greedy(1514)).with(1, 1, Source::Greedy(1514));
    link.run_until(SECOND);
    link.senders.get_mut(&Lane { class: 1, port: 1 }).unwrap().source = Source::Sparse(1514, u64::MAX / 2);
    link.senders.get_mut(&Lane { class: 1, port: 1 }).unwrap().next_at = u64::MAX / 2;
    link = link.with(2, 2, Source::Greedy(1514));
    link.run_until(2 * SECOND);
    let of = |number| link.bytes(number, SECOND + 10 * MS, SECOND + 110 * MS) as f64 * 80.0 / 1e9;
    assert!((of(0) - 7.0).abs() < 0.1 && (of(2) - 3.0).abs() < 0.1, "{} and {}", of(0), of(2));
}

/// Jain's index of fairness.
fn jain(amounts: &[f64]) -> f64 {
    let (sum, squares) = amounts.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    sum * sum / (amounts.len() as f64 * squares)
}

#[test]
fn equal_shares_are_equal_at_4_64_and_256_ports_whatever_their_frames() {
    for ports in [4, 64, 256u16] {
        let mut link = Link::new(10 * GBIT, &[ClassTerms::default()], 7);
        for port in 0..ports {
            let source = [Source::Greedy(60), Source::Greedy(1514), Source::Greedy(TSO), Source::Mixed];
            link = link.with(0, port, source[usize::from(port % 4)]);
        }
        link.run_until(SECOND / 4);
        let amounts: Vec<f64> = (0..ports).map(|port| link.sender(0, port).bytes(0, SECOND / 4) as f64).collect();
        let index = jain(&amounts);
        println!("{ports} ports: Jain's index {index:.5}");
        assert!(index >= 0.99, "{ports} ports: {index}");
    }
}

#[test]
fn shares_of_1_10_and_100_are_kept_within_2_percent_by_classes_and_by_ports() {
    let weights = [1u16, 10, 100];
    let by_class = weights.map(|weight| class(shares(weight)));
    let ports = (0..).zip(weights).map(|(port, weight)| (port, shares(weight))).collect();
    let by_port = [ClassTerms { ports, ..ClassTerms::default() }];
    for (classes, is_class) in [(&by_class[..], true), (&by_port[..], false)] {
        for (lens, time) in [([1514, 1514, 1514], SECOND / 2), ([TSO, 60, 1514], 2 * SECOND)] {
            let mut link = Link::new(10 * GBIT, classes, 3);
            for (number, len) in (0..).zip(lens) {
                link = link.with(if is_class { number } else { 0 }, number, Source::Greedy(len));
            }
            link.run_until(time);
            for (number, weight) in (0..).zip(weights) {
                let sender = link.sender(if is_class { number } else { 0 }, number);
                let ideal = 10.0 * GBIT as f64 / 8.0 * (time as f64 / 1e9) * f64::from(weight) / 111.0;
                let off = sender.bytes(0, time) as f64 / ideal - 1.0;
                println!("shares {weight} of 111, classes {is_class}: {:+.3} %", 100.0 * off);
                assert!(off.abs() < 0.02, "{weight}: {off}");
            }
        }
    }
}

/// The link of the tests of delays.
const LINK: u64 = 10 * GBIT;
/// An urgent class sends so much at once before all others: 64 KiB, and the packet that goes beyond them.
const URGENT_BYTES: u64 = (64 << 10) + TSO as u64;
/// Its reservation there.
const URGENT_RATE: u64 = GBIT / 2;

fn on_link(bytes: u64) -> u64 {
    bytes * 8 * SECOND / LINK
}

fn urgent(rate: u64) -> Terms {
    Terms { is_urgent: true, ..reserved(1, rate) }
}

/// An urgent class's segmented packets: as many as its reservation lets it send.
fn urgent_source() -> Source {
    Source::Sparse(TSO, u64::from(TSO) * 8 * SECOND / URGENT_RATE + 1009)
}

/// Largest packet of the classes that send all the time, and whether an urgent one sends beside them.
const COMPETITORS: [(u32, bool); 3] = [(1514, false), (TSO, false), (TSO, true)];

#[test]
fn beside_a_full_link_a_frame_waits_for_its_guaranteed_rate_and_largest_packets_and_urgent_ones() {
    for (seed, (largest, has_urgent)) in (0..12).zip(COMPETITORS.into_iter().cycle()) {
        let mut random = Random(seed);
        // 15 greedy classes, and one with a frame now and then.
        let mut weights: Vec<u16> = (0..16).map(|_| 1 + random.below(100) as u16).collect();
        weights[0] = [1, 10, 50, 100][seed as usize % 4];
        let sum: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        let mut classes: Vec<ClassTerms> = weights.iter().map(|weight| class(shares(*weight))).collect();
        // Virtual time stands while a packet is sent. So who comes meanwhile waits for its rest, and for those whom it has delayed: behind
        // long packets, twice as long.
        let packets = if largest == TSO { 2 } else { 1 };
        let (mut left, mut others) = (LINK, packets * on_link(largest.into()));
        if has_urgent {
            classes[15].class = Terms { shares: weights[15], ..urgent(URGENT_RATE) };
            left -= URGENT_RATE;
            others += URGENT_BYTES * 8 * SECOND / left;
        }
        for len in [60u32, 1514] {
            let guaranteed = left * u64::from(weights[0]) / sum;
            let at_its_rate = u64::from(len) * 8 * SECOND / guaranteed;
            let mut link = Link::new(LINK, &classes, seed);
            // No two of its frames wait together.
            link = link.with(0, 0, Source::Sparse(len, 2 * (at_its_rate + others) + 7919));
            for number in 1..16 {
                let is_urgent = has_urgent && number == 15;
                let len = if number % 2 == 1 { largest } else { 1514 };
                link = link.with(number, number, if is_urgent { urgent_source() } else { Source::Greedy(len) });
            }
            link.run_until(SECOND / 16);
            let worst = link.sender(0, 0).sent.iter().map(|(_, _, waited)| *waited).max().unwrap();
            println!("share {} of {sum}, {len} bytes: at worst {worst} ns of {at_its_rate} + {others}", weights[0]);
            // Rounding to whole nanoseconds, a few times.
            assert!(worst <= at_its_rate + others + 10, "{worst} ns > {at_its_rate} + {others}");
        }
    }
}

#[test]
fn a_reserved_frame_waits_for_its_reserved_rate_and_one_largest_packet_and_urgent_ones() {
    for (seed, (largest, has_urgent)) in (0..6).zip(COMPETITORS.into_iter().cycle()) {
        let rates = [GBIT / 10, GBIT / 2, 2 * GBIT, 3 * GBIT, GBIT];
        let mut classes: Vec<ClassTerms> = rates.iter().map(|rate| class(reserved(1, *rate))).collect();
        classes.extend([class(shares(100)), class(shares(100)), class(urgent(URGENT_RATE))]);
        let others = on_link(u64::from(largest) + if has_urgent { URGENT_BYTES } else { 0 });
        let mut link = Link::new(LINK, &classes, seed)
            .with(0, 0, Source::Sparse(1514, 1514 * 8 * SECOND / rates[0] + others + 997))
            .with(1, 1, Source::Sparse(60, 60 * 8 * SECOND / rates[1] + others + 997));
        for number in 2..5 {
            link = link.with(number, number, Source::Greedy(1514));
        }
        link = link.with(5, 5, Source::Greedy(largest)).with(6, 6, Source::Now(MS));
        if has_urgent {
            link = link.with(7, 7, urgent_source());
        }
        link.run_until(SECOND / 8);
        for number in [0u16, 1] {
            let len: u64 = if number == 0 { 1514 } else { 60 };
            let at_its_rate = len * 8 * SECOND / rates[usize::from(number)];
            let worst = link.sender(number, number).sent.iter().map(|(_, _, waited)| *waited).max().unwrap();
            println!("{len} bytes at {} bit/s: at worst {worst} ns", rates[usize::from(number)]);
            assert!(worst <= at_its_rate + others + 10, "{worst} ns > {at_its_rate} + {others}");
        }
    }
}

#[test]
fn an_urgent_class_waits_for_one_largest_frame_and_cannot_starve_the_others() {
    let classes = [class(urgent(GBIT / 100)), class(reserved(1, 7 * GBIT)), class(shares(100))];
    let mut link = Link::new(10 * GBIT, &classes, 5)
        .with(0, 0, Source::Sparse(1514, 2 * MS))
        .with(1, 1, Source::Greedy(1514))
        .with(2, 2, Source::Greedy(1514));
    link.run_until(SECOND);
    let worst = link.sender(0, 0).sent.iter().map(|(_, _, waited)| *waited).max().unwrap();
    let largest = 1514 * 8 * SECOND / (10 * GBIT);
    // At its reserved rate alone it would wait for 1.2 ms.
    assert!(worst <= 2 * largest + 10, "{worst} ns");
    link.senders.get_mut(&Lane { class: 0, port: 0 }).unwrap().source = Source::Greedy(1514);
    link.run_until(2 * SECOND);
    let sent = link.bytes(0, SECOND, 2 * SECOND) * 8;
    // Its reservation, its share of 1 in 102 of the rest, and 64 KiB.
    assert!(sent < GBIT / 100 + 10 * GBIT / 102 + GBIT / 100, "{sent} bits in a second");
    let other = link.sender(1, 1).worst(100 * MS, 2 * SECOND).unwrap();
    assert!(other >= 0.98 * 7e9, "{other}");
}

#[test]
fn urgent_frames_that_passed_an_idle_link_count_against_what_may_go_at_once_and_no_more() {
    // A frame takes 0.12 ms at the reserved rate.
    let mut scheduler = Scheduler::new(&[class(urgent(100_000_000)), class(shares(100))], 2);
    let [low, bulk] = [Lane { class: 0, port: 0 }, Lane { class: 1, port: 1 }];
    let mut now = 10 * SECOND;
    for frame in 1..=50 {
        scheduler.passed(low, 1514, Time(now));
        scheduler.add(bulk, TSO, Time(now + 1));
        scheduler.add(low, 1514, Time(now + 2));
        let grant = scheduler.pick(Time(now + 3)).unwrap();
        // 64 KiB, and the frame that goes beyond them.
        if frame * 1514 <= 64 << 10 {
            assert_eq!(grant.lane, low, "frame {frame}");
        } else if frame > 45 {
            assert_eq!(grant.lane, bulk, "frame {frame}");
        }
        scheduler.clear();
        now += 10;
    }
}

#[test]
fn a_limit_holds_in_every_window_and_the_others_have_the_rest() {
    for (limit, len) in [(GBIT, 1514), (50_000_000, 60), (200_000_000, TSO)] {
        let terms = Terms { limit: Rate::new(limit), ..shares(100) };
        for is_class in [true, false] {
            let classes = match is_class {
                true => [class(terms), class(shares(1))],
                false => [ClassTerms { each: terms, ..ClassTerms::default() }, class(shares(1))],
            };
            let mut link =
                Link::new(10 * GBIT, &classes, 9).with(0, 0, Source::Greedy(len)).with(1, 1, Source::Greedy(1514));
            link.run_until(SECOND);
            assert_eq!(link.idle_ps, 0);
            let sender = link.sender(0, 0);
            for window in [MS, 10 * MS, 100 * MS] {
                let most = limit / 1000 * ((window + 2 * MS) / 1000) / 8 / 1000 + 2 * u64::from(len);
                let most = most.max(limit / 8 * (window + 2 * MS) / SECOND + 2 * u64::from(len));
                for at in (0..SECOND - window).step_by(MS as usize) {
                    let bytes = sender.bytes(at, at + window);
                    assert!(bytes <= most, "{bytes} bytes in {window} ns, of {most}");
                }
            }
            let part = sender.bytes(0, SECOND) as f64 * 8.0 / limit as f64;
            assert!((0.98..1.01).contains(&part), "{part} of its limit of {limit}");
        }
    }
    // Alone on the link too.
    let terms = Terms { limit: Rate::new(GBIT), ..shares(100) };
    let mut link = Link::new(10 * GBIT, &[class(terms)], 9).with(0, 0, Source::Greedy(1514));
    link.run_until(SECOND);
    let sent = link.bytes(0, 0, SECOND) * 8;
    assert!(sent < GBIT + GBIT / 100, "{sent}");
}

#[test]
fn a_ports_reservation_is_kept_inside_its_class() {
    let ports = vec![(0, reserved(1, GBIT)), (1, shares(100))];
    let storage = ClassTerms { class: reserved(10, 2 * GBIT), ports, ..ClassTerms::default() };
    let mut link = Link::new(10 * GBIT, &[storage, class(shares(100))], 2)
        .with(0, 0, Source::Greedy(1514))
        .with(0, 1, Source::Mixed)
        .with(1, 2, Source::Greedy(TSO));
    link.run_until(SECOND);
    let worst = link.sender(0, 0).worst(100 * MS, SECOND).unwrap();
    assert!(worst >= 0.98e9, "{worst}");
}

#[test]
fn a_clock_that_jumps_stops_nobody_and_gives_nobody_more_than_its_due() {
    let limited = Terms { limit: Rate::new(GBIT), ..shares(50) };
    let classes = [class(reserved(1, 2 * GBIT)), class(shares(100)), class(limited)];
    for jump in [3600 * SECOND as i64, -(SECOND as i64) * 5, 5 * SECOND as i64] {
        let mut link = Link::new(10 * GBIT, &classes, 2);
        for number in 0..3 {
            link = link.with(number, number, Source::Greedy(1514));
        }
        link.now_ps = 10 * SECOND * 1000;
        link.run_until(10 * SECOND + 100 * MS);
        let from = (link.now() as i64 + jump) as u64;
        link.now_ps = from * 1000;
        for sender in link.senders.values_mut() {
            sender.sent.clear();
            sender.waiting.iter_mut().for_each(|(_, arrived)| *arrived = 0);
        }
        link.run_until(from + 200 * MS);
        let of = |number| link.bytes(number, from, from + 200 * MS) as f64 * 40.0 / 1e9;
        let (first, second, third) = (of(0), of(1), of(2));
        assert!((1.9..2.7).contains(&first), "jump {jump}: {first}");
        assert!((6.0..7.5).contains(&second), "jump {jump}: {second}");
        // Forward: the first one catches up for 50 ms, which takes 10 ms of the link.
        assert!((0.94..1.1).contains(&third), "jump {jump}: {third}");
    }
}
