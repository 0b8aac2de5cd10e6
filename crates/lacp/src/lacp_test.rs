//! Two aggregates, or one and a scripted partner, joined by wires without delay that can be cut.

use std::collections::VecDeque;

use super::*;

const MS: u64 = 1_000_000;
const SETTINGS: Settings = Settings {
    is_active: true,
    is_fast: true,
    min_links: 1,
    system_priority: 32768,
    system: Mac([2, 0x4e, 0, 0, 1, 0]),
    key: 7,
    port_priority: 128,
};
const OTHER: Settings = Settings { system: Mac([2, 0x4e, 0, 0, 2, 0]), key: 9, ..SETTINGS };

/// Two ends and the wires between their links.
struct Pair {
    ends: [Aggregate; 2],
    whole: Vec<bool>,
    /// PDUs that each end has sent by each link, with their times.
    sent: [Vec<(usize, Time, Vec<u8>)>; 2],
    now: Time,
}

impl Pair {
    fn new(one: &Settings, other: &Settings, links: usize) -> Self {
        let mut pair = Self {
            ends: [Aggregate::new(one, links), Aggregate::new(other, links)],
            whole: vec![false; links],
            sent: Default::default(),
            now: Time(1),
        };
        (0..links).for_each(|link| pair.set(link, true));
        pair
    }

    fn set(&mut self, link: usize, whole: bool) {
        self.whole[link] = whole;
        for end in &mut self.ends {
            end.link(link, whole, self.now);
            end.tick(self.now);
        }
    }

    /// Lets milliseconds pass.
    fn run(&mut self, ms: u64) {
        let end = self.now.after_ns(ms * MS);
        while self.now < end {
            let wakes = self.ends.iter().flat_map(|end| (0..self.whole.len()).filter_map(|link| end.wake(link)));
            self.now = wakes.min().unwrap_or(end).max(self.now.after_ns(MS)).min(end);
            for from in [0, 1] {
                self.ends[from].tick(self.now);
                for link in 0..self.whole.len() {
                    let mut frames = VecDeque::new();
                    self.ends[from].speak(link, self.now, &mut |frame| {
                        frames.push_back(frame.to_vec());
                        true
                    });
                    for frame in frames {
                        if self.whole[link] {
                            self.ends[1 - from].hear(link, &frame, self.now);
                            self.ends[1 - from].tick(self.now);
                        }
                        self.sent[from].push((link, self.now, frame));
                    }
                }
            }
        }
    }

    fn sending(&self) -> [u32; 2] {
        [self.ends[0].distributing(), self.ends[1].distributing()]
    }

    fn view(&self, end: usize, link: usize) -> View {
        self.ends[end].view(link, self.now).unwrap()
    }
}

/// A partner's PDU that agrees with all that this aggregate says on a link.
fn agreeing(aggregate: &Aggregate, link: usize, key: u16) -> Pdu {
    let ours = aggregate.view(link, Time::ZERO).unwrap().actor;
    let state =
        State::ACTIVITY | State::SHORT_TIMEOUT | State::AGGREGATION | State::SYNCHRONIZATION | State::COLLECTING;
    let port = link as u16 + 101;
    let actor = Info { system_priority: 1, system: Mac([2, 9, 9, 9, 9, 9]), key, port_priority: 1, port, state };
    Pdu { actor, partner: ours }
}

/// An aggregate that hears such a partner each second on some links.
fn with_partner(aggregate: &mut Aggregate, keys: &[Option<u16>], from_s: u64, to_s: u64) {
    for second in from_s..to_s {
        let now = Time(1 + second * 1000 * MS);
        for (link, key) in keys.iter().enumerate() {
            // The partner answers at once, once it knows what changed.
            for _ in 0..3 {
                if let Some(key) = key {
                    let pdu = agreeing(aggregate, link, *key);
                    aggregate.hear(link, &pdu.frame(pdu.actor.system), now);
                }
                aggregate.tick(now);
            }
        }
    }
}

fn up(settings: &Settings, links: usize) -> Aggregate {
    let mut aggregate = Aggregate::new(settings, links);
    (0..links).for_each(|link| aggregate.link(link, true, Time(1)));
    aggregate.tick(Time(1));
    aggregate
}

#[test]
fn links_between_two_systems_become_one_within_three_seconds_and_pdus_are_few() {
    let mut pair = Pair::new(&SETTINGS, &OTHER, 4);
    pair.run(3000);
    assert_eq!(pair.sending(), [0b1111; 2]);
    assert_eq!(pair.ends[0].collecting(), 0b1111);
    let view = pair.view(0, 2);
    let whole = State(0x3f);
    assert_eq!((view.actor.state, view.partner.state, view.partner.system), (whole, whole, OTHER.system));
    assert_eq!((view.actor.key, view.actor.port, view.partner.key, view.partner.port), (7, 3, 9, 3));
    pair.run(30_000);
    for sent in &pair.sent {
        for link in 0..4 {
            let times: Vec<u64> = sent.iter().filter(|(by, ..)| *by == link).map(|(_, at, _)| at.0 / MS).collect();
            assert!(times.windows(4).all(|four| four[3] - four[0] >= 1000), "three a second at most: {times:?}");
            assert!((30..45).contains(&times.len()), "one a second: {times:?}");
        }
    }
}

#[test]
fn a_passive_end_waits_for_an_active_one_and_two_of_them_for_ever() {
    let passive = |settings: Settings| Settings { is_active: false, ..settings };
    let mut pair = Pair::new(&passive(SETTINGS), &OTHER, 2);
    pair.run(6000);
    assert_eq!(pair.sending(), [0b11; 2]);
    let mut silent = Pair::new(&passive(SETTINGS), &passive(OTHER), 2);
    silent.run(10_000);
    assert!(silent.sent.iter().all(Vec::is_empty));
    assert_eq!(silent.sending(), [0b01; 2], "one link without a partner");
}

#[test]
fn a_link_that_is_cut_is_left_at_once_and_used_again_when_it_is_whole() {
    let mut pair = Pair::new(&SETTINGS, &OTHER, 3);
    pair.run(4000);
    pair.set(1, false);
    assert_eq!(pair.sending(), [0b101; 2]);
    pair.run(10_000);
    pair.set(1, true);
    assert_eq!(pair.sending(), [0b101; 2]);
    pair.run(3000);
    assert_eq!(pair.sending(), [0b111; 2]);
}

#[test]
fn a_silent_partner_is_missed_after_three_seconds_or_ninety() {
    for (is_fast, seconds) in [(true, 3), (false, 90)] {
        let mut aggregate = up(&Settings { is_fast, ..SETTINGS }, 2);
        with_partner(&mut aggregate, &[Some(5), Some(5)], 0, 5);
        assert_eq!(aggregate.distributing(), 0b11);
        with_partner(&mut aggregate, &[Some(5), None], 5, 4 + seconds);
        assert_eq!(aggregate.distributing(), 0b11, "{seconds} s are not over");
        with_partner(&mut aggregate, &[Some(5), None], 4 + seconds, 5 + seconds);
        assert_eq!(aggregate.distributing(), 0b01);
        let receive = |aggregate: &Aggregate| aggregate.view(1, Time::ZERO).unwrap().receive;
        assert_eq!(receive(&aggregate), Receive::Expired);
        with_partner(&mut aggregate, &[Some(5), None], 5 + seconds, 8 + seconds);
        assert_eq!(receive(&aggregate), Receive::Defaulted);
        assert_eq!(aggregate.distributing(), 0b01, "a link without a partner is not used beside one with");
    }
}

#[test]
fn it_speaks_as_often_as_its_partner_asks() {
    let slow = Settings { is_fast: false, ..OTHER };
    let mut pair = Pair::new(&SETTINGS, &slow, 1);
    pair.run(10_000);
    let before = pair.sent.each_ref().map(Vec::len);
    pair.run(60_000);
    let more: Vec<usize> = pair.sent.iter().zip(before).map(|(sent, before)| sent.len() - before).collect();
    assert_eq!(more, [2, 60], "the slow end asks for one each 30 s, the fast one for one a second");
    assert_eq!(pair.sending(), [1; 2]);
}

#[test]
fn a_link_whose_partner_speaks_slowly_though_asked_to_be_fast_is_used_for_three_seconds_each_time_and_costs_no_other() {
    let mut aggregate = up(&SETTINGS, 2);
    with_partner(&mut aggregate, &[Some(5), Some(5)], 0, 5);
    assert_eq!(aggregate.distributing(), 0b11);
    for half_minute in 0..4 {
        let begin = 5 + half_minute * 30;
        let mut used = 0;
        for second in begin..begin + 30 {
            let slow = Some(5).filter(|_| second == begin + 29);
            with_partner(&mut aggregate, &[Some(5), slow], second, second + 1);
            assert_eq!(aggregate.distributing() & 0b01, 0b01, "the other goes on");
            used += u32::from(aggregate.distributing() & 0b10 != 0);
        }
        assert!(used <= 3, "{used} s of 30");
        assert_eq!(aggregate.view(0, Time::ZERO).unwrap().receive, Receive::Current);
    }
}

#[test]
fn a_partner_that_changes_its_key_is_left_and_joined_anew() {
    let mut aggregate = up(&SETTINGS, 2);
    with_partner(&mut aggregate, &[Some(5), Some(5)], 0, 5);
    let now = Time(5000 * MS);
    let pdu = agreeing(&aggregate, 1, 6);
    aggregate.hear(1, &pdu.frame(pdu.actor.system), now);
    aggregate.tick(now);
    assert_eq!((aggregate.distributing(), aggregate.collecting()), (0b01, 0b01));
    assert!(aggregate.view(1, now).unwrap().stands_by);
    with_partner(&mut aggregate, &[Some(6), Some(6)], 6, 10);
    assert_eq!(aggregate.distributing(), 0b11, "both have changed");
}

#[test]
fn other_settings_are_taken_while_links_work_and_only_another_identity_is_agreed_anew() {
    let mut pair = Pair::new(&SETTINGS, &OTHER, 2);
    pair.run(5000);
    let slow = Settings { is_fast: false, is_active: false, min_links: 2, ..SETTINGS };
    pair.ends[0].set(&slow);
    pair.ends[0].tick(pair.now);
    for _ in 0..10 {
        pair.run(1000);
        assert_eq!(pair.sending(), [0b11; 2]);
    }
    assert!(!pair.view(1, 0).partner.state.has(State::SHORT_TIMEOUT));
    for settings in [Settings { key: 8, ..slow }, Settings { system: Mac([2, 0x4e, 0, 0, 3, 0]), key: 8, ..slow }] {
        pair.ends[0].set(&settings);
        pair.ends[0].tick(pair.now);
        assert_eq!(pair.sending()[0], 0);
        pair.run(6000);
        assert_eq!(pair.sending(), [0b11; 2]);
        let partner = pair.view(1, 1).partner;
        assert_eq!((partner.key, partner.system), (settings.key, settings.system));
    }
    pair.ends[0].set(&Settings { min_links: 3, ..slow });
    pair.run(3000);
    assert_eq!(pair.sending(), [0; 2], "fewer links than the least");
}

#[test]
fn of_two_partners_one_is_used_and_the_other_when_that_is_gone() {
    let mut aggregate = up(&SETTINGS, 3);
    with_partner(&mut aggregate, &[Some(1), Some(2), Some(2)], 0, 6);
    let first = aggregate.distributing();
    assert!([0b001, 0b110].contains(&first), "one system: {first:#b}");
    let keys = if first == 0b001 { [None, Some(2), Some(2)] } else { [Some(1), None, None] };
    with_partner(&mut aggregate, &keys, 6, 14);
    assert_eq!(aggregate.distributing(), 0b111 ^ first);
    with_partner(&mut aggregate, &[Some(1), Some(2), Some(2)], 14, 20);
    assert_eq!(aggregate.distributing(), 0b111 ^ first, "it stays with the one in use");
}

#[test]
fn fewer_links_than_asked_carry_nothing() {
    let mut pair = Pair::new(&Settings { min_links: 2, ..SETTINGS }, &OTHER, 3);
    pair.run(5000);
    assert_eq!(pair.sending(), [0b111; 2]);
    pair.set(0, false);
    pair.run(100);
    assert_eq!(pair.sending(), [0b110; 2]);
    pair.set(2, false);
    pair.run(1500);
    assert_eq!(pair.sending(), [0; 2]);
    pair.set(2, true);
    pair.run(5000);
    assert_eq!(pair.sending(), [0b110; 2]);
}

#[test]
fn a_link_that_leads_back_here_is_not_used() {
    let mut aggregate = up(&SETTINGS, 2);
    for second in 1..10 {
        let now = Time(second * 1000 * MS);
        aggregate.tick(now);
        let mut frames = Vec::new();
        for link in [0, 1] {
            aggregate.speak(link, now, &mut |frame| {
                frames.push((1 - link, frame.to_vec()));
                true
            });
        }
        frames.iter().for_each(|(link, frame)| _ = aggregate.hear(*link, frame, now));
    }
    let view = aggregate.view(0, Time::ZERO).unwrap();
    assert!(view.is_looped);
    assert_eq!(aggregate.distributing(), 0, "frames would come back");
}

#[test]
fn who_does_not_agree_for_a_minute_churns() {
    let mut aggregate = up(&SETTINGS, 1);
    let partner = |aggregate: &mut Aggregate, second: u64| {
        let mut pdu = agreeing(aggregate, 0, 5);
        pdu.actor.state = pdu.actor.state.with(State::SYNCHRONIZATION, false);
        aggregate.hear(0, &pdu.frame(pdu.actor.system), Time(second * 1000 * MS));
        aggregate.tick(Time(second * 1000 * MS));
        aggregate.view(0, Time(second * 1000 * MS)).unwrap().churns
    };
    assert!((1..60).all(|second| partner(&mut aggregate, second) == [false; 2]));
    assert_eq!(partner(&mut aggregate, 61), [false, true]);
}

#[test]
fn markers_are_answered_and_of_a_flood_five_a_second() {
    let mut aggregate = up(&SETTINGS, 1);
    let mut marker = [0u8; FRAME_BYTES];
    marker[..6].copy_from_slice(&DESTINATION.0);
    marker[12..18].copy_from_slice(&[0x88, 0x09, 2, 1, 1, 22]);
    marker[20..26].fill(9);
    let mut answers = 0;
    for ms in 0..10_000 {
        let now = Time(1 + ms * MS);
        (0..10).for_each(|_| assert!(aggregate.hear(0, &marker, now)));
        aggregate.tick(now);
        aggregate.speak(0, now, &mut |frame| {
            if frame[14] == 2 {
                assert_eq!((frame[16], &frame[17..]), (2, &marker[17..]));
                answers += 1;
            }
            true
        });
    }
    assert_eq!(answers, 50);
}

#[test]
fn a_clock_that_jumps_ends_in_agreement_again() {
    let mut pair = Pair::new(&SETTINGS, &OTHER, 2);
    pair.run(5000);
    pair.now = pair.now.after_ns(1_000_000 * 1000 * MS);
    pair.run(6000);
    assert_eq!(pair.sending(), [0b11; 2]);
    pair.now = Time(1);
    pair.run(6000);
    assert_eq!(pair.sending(), [0b11; 2]);
}

#[test]
fn a_frame_without_room_is_sent_a_little_later_and_not_at_once() {
    let mut aggregate = up(&SETTINGS, 1);
    aggregate.speak(0, Time(1), &mut |_| false);
    assert_eq!(aggregate.wake(0), Some(Time(1 + 10 * MS)));
    let mut tries = 0;
    aggregate.speak(0, Time(5 * MS), &mut |_| {
        tries += 1;
        true
    });
    assert_eq!(tries, 0);
    aggregate.speak(0, Time(20 * MS), &mut |_| {
        tries += 1;
        true
    });
    assert_eq!(tries, 1);
}

/// xorshift64*.
fn random(seed: &mut u64) -> u64 {
    *seed ^= *seed >> 12;
    *seed ^= *seed << 25;
    *seed ^= *seed >> 27;
    seed.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

#[test]
fn whatever_links_fail_and_heal_nobody_sends_where_nobody_takes_and_all_whole_links_come_back() {
    for seed in 1..=12 {
        let mut state = seed;
        let links = 1 + (random(&mut state) % 8) as usize;
        let is_fast = random(&mut state).is_multiple_of(2);
        let mut pair = Pair::new(&SETTINGS, &Settings { is_fast, ..OTHER }, links);
        for _ in 0..200 {
            let (link, ms) = ((random(&mut state) % links as u64) as usize, random(&mut state) % 1500);
            pair.run(ms);
            pair.set(link, !pair.whole[link]);
            let [one, other] = [0, 1].map(|end| (pair.ends[end].distributing(), pair.ends[end].collecting()));
            let whole = (0..links).filter(|link| pair.whole[*link]).fold(0, |all, link| all | 1 << link);
            assert_eq!((one.0 | other.0) & !whole, 0, "seed {seed}: a dead link is used");
            assert_eq!((one.0 & !other.1, other.0 & !one.1), (0, 0), "seed {seed}: nobody takes what is sent");
        }
        (0..links).for_each(|link| pair.set(link, true));
        pair.run(10_000);
        assert_eq!(pair.sending(), [(1 << links) - 1; 2], "seed {seed}");
    }
}

#[test]
fn no_frame_breaks_it() {
    let mut aggregate = up(&SETTINGS, 2);
    let mut state = 1;
    for round in 0..20_000u64 {
        let now = Time(round * 50 * MS);
        let pdu = agreeing(&aggregate, 0, 5);
        let mut frame = pdu.frame(pdu.actor.system).to_vec();
        for _ in 0..random(&mut state) % 4 {
            let at = (random(&mut state) % frame.len() as u64) as usize;
            frame[at] = random(&mut state) as u8;
        }
        frame.truncate((random(&mut state) % 400) as usize);
        aggregate.hear((random(&mut state) % 3) as usize, &frame, now);
        aggregate.tick(now);
        aggregate.speak(0, now, &mut |_| random(&mut state).is_multiple_of(2));
    }
    let end = Time(20_000 * 50 * MS);
    assert!(aggregate.wake(0).is_some_and(|at| at.0 <= end.0 + 30_000 * MS));
}

#[test]
fn an_aggregate_that_goes_on_elsewhere_says_and_does_the_same_at_the_same_time() {
    let mut left = Pair::new(&SETTINGS, &OTHER, 2);
    let mut right = Pair::new(&SETTINGS, &OTHER, 2);
    for pair in [&mut left, &mut right] {
        pair.run(10_250);
    }
    let saved = right.ends[0].save();
    let mut next = Aggregate::new(&SETTINGS, 2);
    assert!(!Aggregate::new(&SETTINGS, 3).restore(&saved), "another number of links");
    assert!(next.restore(&saved));
    assert_eq!(next.save(), saved);
    assert_eq!((next.collecting(), next.distributing()), (0b11, 0b11));
    right.ends[0] = next;
    // One link loses its partner later: the timers that run out are the ones that were begun before.
    for pair in [&mut left, &mut right] {
        pair.run(2_000);
        pair.set(1, false);
        pair.run(10_000);
    }
    assert_eq!(left.sent, right.sent);
    assert_eq!(left.ends[0].save(), right.ends[0].save());
}
