//! Pacing in virtual time: the average is the rate, waiting frames are not lost, and nothing wakes a worker meanwhile.

use crate::common::*;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use nicety_adapter::{
    Batch, Budget, Counters, Delivery, Frames, Offload, PortId, Progress, Time, Uplink, UplinkSettings,
};
use nicety_memory::Map;
use nicety_uplink::{Interface, Null, Paced, Pair, Rate, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

fn rate(text: &str) -> Rate {
    text.parse().unwrap()
}

/// Offers frames for this time, whenever they are wanted. Returns the bytes sent.
fn offer(uplink: &mut impl Uplink, sender: &Sender, counters: &mut Counters, milliseconds: u64) -> u64 {
    let mut now = Time::ZERO;
    while now.0 < milliseconds * 1_000_000 {
        let delivery = sender.deliver(uplink, counters, now);
        match uplink.wake() {
            Some(at) => {
                assert!(delivery.refused() != 0);
                assert!(at > now, "a wake-up that has passed already would keep a worker busy");
                now = at;
            }
            None => assert_eq!(delivery.refused(), 0),
        }
    }
    counters.taken().bytes
}

#[test]
fn what_goes_out_keeps_to_its_rate_whatever_the_length_of_frames() {
    for (text, len) in [("950kbit/s", 100), ("100Mbit/s", 1446), ("1Gbit/s", 6)] {
        let mut uplink = Paced::new(Null, rate(text)).unwrap();
        let sender = Sender::new(&vec![(tcp(&payload(len)), Offload::default()); 64]);
        let bytes = offer(&mut uplink, &sender, &mut Counters::default(), 1000);
        let exact = rate(text).bits_per_second() / 8;
        let burst = (exact / 500).max(64 << 10);
        assert!(bytes >= exact - exact / 1000 && bytes <= exact + burst + 1500, "{text}: {bytes} of {exact}");
    }
}

#[test]
fn the_time_for_which_what_goes_out_waits_is_counted() {
    let mut uplink = Paced::new(Null, rate("100Mbit/s")).unwrap();
    let sender = Sender::new(&vec![(tcp(&payload(1446)), Offload::default()); 64]);
    let mut counters = Counters::default();
    offer(&mut uplink, &sender, &mut counters, 1000);
    assert_eq!(counters.transmit_throttled_ns, 0);
    // All but the last wait, which has not ended.
    assert!((990_000_000..=1_000_000_000).contains(&counters.receive_throttled_ns), "{counters:?}");
}

/// A link by which frames of this length come in without end, or none.
struct Endless(u32);

impl Uplink for Endless {
    fn fetch(&mut self, port: PortId, budget: Budget, batch: &mut Batch, _: &mut Counters, _: Time) -> Progress {
        let map = Arc::new(Map::private(1 << 16).unwrap());
        batch.start(&map, port, 0);
        while self.0 > 0 && budget.allows(batch) {
            let mut draft = batch.draft(0).unwrap();
            draft.push(0, self.0).unwrap();
            draft.finish_plain(0);
        }
        Progress { more: self.0 > 0, armed: true }
    }

    fn complete(&mut self, _: &Batch) {}

    fn deliver(&mut self, _: &Frames<'_>, _: &mut Counters, _: Time) -> Delivery {
        Delivery::default()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A link that wants a turn at once, whatever it had.
struct Eager(Endless);

impl Uplink for Eager {
    fn fetch(
        &mut self,
        port: PortId,
        budget: Budget,
        batch: &mut Batch,
        counters: &mut Counters,
        now: Time,
    ) -> Progress {
        self.0.fetch(port, budget, batch, counters, now)
    }

    fn complete(&mut self, _: &Batch) {}

    fn deliver(&mut self, _: &Frames<'_>, _: &mut Counters, _: Time) -> Delivery {
        Delivery::default()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn wake(&self) -> Option<Time> {
        Some(Time::ZERO)
    }
}

#[test]
fn a_link_s_own_wish_for_a_turn_waits_while_nothing_may_come_in() {
    let mut uplink = Paced::new(Eager(Endless(60_000)), rate("1Mbit/s")).unwrap();
    let (mut batch, mut counters, now) = (Batch::new(), Counters::default(), Time(1_000_000));
    uplink.fetch(PortId(0), Budget::TURN, &mut batch, &mut counters, now);
    assert!(!batch.is_empty());
    // One that has had no turn yet has it at once.
    assert_eq!(uplink.wake(), Some(Time::ZERO));
    uplink.fetch(PortId(0), Budget::TURN, &mut batch, &mut counters, now);
    assert!(batch.is_empty());
    let at = uplink.wake().unwrap();
    assert!(at > now, "a wake-up that has passed already would keep a worker busy");
    // What it is given in between may have changed its wish.
    let sender = Sender::new(&[(tcp(b"one"), Offload::default())]);
    sender.deliver(&mut uplink, &mut counters, now);
    assert_eq!(uplink.wake(), Some(Time::ZERO));
    uplink.fetch(PortId(0), Budget::TURN, &mut batch, &mut counters, at);
    assert!(!batch.is_empty());
}

/// Bytes that each queue of an interface takes in a second. The first queue is always served first, as one worker may do.
fn queues_take(lens: [u32; 4]) -> [u64; 4] {
    let interface = Arc::<Interface>::default();
    let mut queues: Vec<_> = lens
        .into_iter()
        .enumerate()
        .map(|(place, len)| {
            let mut queue = Paced::unlimited(Endless(len)).queue_of(&interface, place);
            set(&mut queue, Some("100Mbit/s"));
            queue
        })
        .collect();
    let (mut batch, mut counters, mut taken) = (Batch::new(), Counters::default(), [0; 4]);
    let mut now = Time::ZERO;
    while now.0 < 1_000_000_000 {
        for (queue, taken) in queues.iter_mut().zip(&mut taken) {
            // It has asked for no earlier turn.
            if queue.wake().is_none_or(|at| at <= now) {
                queue.fetch(PortId(0), Budget::TURN, &mut batch, &mut counters, now);
                *taken += batch.packets().iter().map(|packet| packet.wire_bytes()).sum::<u64>();
                queue.complete(&batch);
            }
        }
        now = queues.iter().filter_map(Uplink::wake).min().unwrap_or(now).max(now.after_ns(1000));
    }
    taken
}

#[test]
fn queues_of_an_interface_take_in_its_rate_together_and_none_waits_for_ever() {
    let exact = 12_500_000;
    for lens in [[1514; 4], [60_000, 60_000, 1514, 1514], [1514, 0, 0, 1514]] {
        let taken = queues_take(lens);
        let all: u64 = taken.iter().sum();
        println!("frames of {lens:?} bytes: {taken:?} bytes");
        assert!((exact * 99 / 100..=exact + (64 << 10) + 120_000).contains(&all), "{lens:?}: {taken:?}");
        for (len, taken) in lens.into_iter().zip(taken) {
            assert_eq!(taken > exact / 100, len > 0, "{lens:?}: {taken}");
        }
    }
}

/// A worker that shares its processor with others.
#[test]
fn who_is_woken_late_loses_none_of_the_rate_either_way() {
    // The content of a pair's socket, and three times the content of the bucket.
    const LATE_NS: u64 = 5_000_000;
    let exact = 12_500_000;
    let sender = Sender::new(&vec![(tcp(&payload(1446)), Offload::default()); 64]);
    let mut uplink = Paced::with_burst(Null, rate("100Mbit/s"), 20_000).unwrap();
    let (mut counters, mut now) = (Counters::default(), Time::ZERO);
    while now.0 < 1_000_000_000 {
        sender.deliver(&mut uplink, &mut counters, now);
        now = uplink.wake().map_or(now, |at| at.after_ns(LATE_NS));
    }
    let out = counters.taken().bytes;
    assert!(out.abs_diff(exact) <= exact / 20, "out: {out} of {exact}");

    let (mut outside, inside) = Pair::connected().unwrap();
    let mut uplink = Paced::with_burst(inside, rate("100Mbit/s"), 20_000).unwrap();
    let (mut counters, mut now) = (Counters::default(), Time::ZERO);
    while now.0 < 1_000_000_000 {
        // Frames that the socket has no room for do not matter.
        sender.deliver(&mut outside, &mut Counters::default(), now);
        let (batch, progress) = fetch(&mut uplink, &mut counters, now);
        uplink.complete(&batch);
        if !progress.more {
            now = uplink.wake().map_or(now, |at| at.after_ns(LATE_NS));
        }
    }
    let received = counters.transmitted().bytes;
    assert!(received.abs_diff(exact) <= exact / 20, "in: {received} of {exact}");
}

/// A worker that has more to do: late at first, then interrupted twice after 16 frames, although there are frames and tokens left.
#[test]
fn who_is_interrupted_with_frames_left_loses_none_of_the_rate_either_way() {
    const LATE_NS: u64 = 25_000_000;
    const AWAY_NS: u64 = 20_000_000;
    /// 8 ms of the rate.
    const BURST: u64 = 20_000;
    let exact = 2_500_000;
    let sender = Sender::new(&vec![(tcp(&payload(946)), Offload::default()); 16]);
    let mut uplink = Paced::with_burst(Null, rate("20Mbit/s"), BURST).unwrap();
    let (mut counters, mut now) = (Counters::default(), Time::ZERO);
    while now.0 < 1_000_000_000 {
        while sender.deliver(&mut uplink, &mut counters, now).refused() == 0 {}
        now = uplink.wake().unwrap().after_ns(LATE_NS);
        for _ in 0..2 {
            assert_eq!(sender.deliver(&mut uplink, &mut counters, now).refused(), 0);
            uplink.pause(now);
            now = now.after_ns(AWAY_NS);
        }
    }
    let out = counters.taken().bytes;
    assert!(out >= exact - exact / 20 && out <= exact + exact / 20 + BURST, "out: {out} of {exact}");

    let (mut outside, inside) = Pair::connected().unwrap();
    let mut uplink = Paced::with_burst(inside, rate("20Mbit/s"), BURST).unwrap();
    let (mut counters, mut now) = (Counters::default(), Time::ZERO);
    let mut fetch = |uplink: &mut Paced<Pair>, now| {
        // Frames that the socket has no room for do not matter.
        (0..2).for_each(|_| _ = sender.deliver(&mut outside, &mut Counters::default(), now));
        let mut batch = Batch::new();
        let few = Budget { packets: 16, ..Budget::TURN };
        let progress = uplink.fetch(PortId(1), few, &mut batch, &mut counters, now);
        uplink.complete(&batch);
        progress.more
    };
    while now.0 < 1_000_000_000 {
        while fetch(&mut uplink, now) {}
        now = uplink.wake().unwrap().after_ns(LATE_NS);
        for _ in 0..2 {
            assert!(fetch(&mut uplink, now));
            now = now.after_ns(AWAY_NS);
        }
    }
    let received = counters.transmitted().bytes;
    assert!(received >= exact - exact / 20 && received <= exact + exact / 20 + BURST, "in: {received} of {exact}");
}

/// A pause with nothing to send is none of which tokens are kept.
#[test]
fn who_has_nothing_to_send_saves_no_more_than_a_bucket() {
    let mut uplink = Paced::with_burst(Null, rate("100Mbit/s"), 65_536).unwrap();
    let sender = Sender::new(&vec![(tcp(&payload(946)), Offload::default()); 64]);
    let mut counters = Counters::default();
    assert_eq!(sender.deliver(&mut uplink, &mut counters, Time::ZERO).refused(), 0);
    let before = counters.taken().bytes;
    let later = Time(40_000_000);
    while sender.deliver(&mut uplink, &mut counters, later).refused() == 0 {}
    let burst = counters.taken().bytes - before;
    assert!((65_536..65_536 + 1000).contains(&burst), "{burst}");
}

#[test]
fn a_packet_longer_than_the_bucket_goes_and_is_paid_for_with_all_its_headers() {
    let mut uplink = Paced::with_burst(Null, rate("100Mbit/s"), 1500).unwrap();
    let mut counters = Counters::default();
    let sender = Sender::new(&[(partial(&payload(60_000)), tso())]);
    offer(&mut uplink, &sender, &mut counters, 1000);
    // 42 frames with 54 header bytes each.
    let wire = 60_000 + 42 * 54;
    let expected = 12_500_000 / wire;
    assert!(counters.taken().packets.abs_diff(expected) <= 1, "{} packets", counters.taken().packets);
}

#[test]
fn what_comes_in_waits_where_it_is_and_the_descriptor_is_silent_meanwhile() {
    let (mut outside, inside) = Pair::connected().unwrap();
    let mut uplink = Paced::with_burst(inside, rate("8Mbit/s"), 1500).unwrap();
    let mut counters = Counters::default();
    let sender = Sender::new(&vec![(tcp(&payload(946)), Offload::default()); 64]);
    assert_eq!(sender.deliver(&mut outside, &mut Counters::default(), Time::ZERO).refused(), 0);
    assert!(readable(&uplink));
    let mut now = Time::ZERO;
    loop {
        let (batch, progress) = fetch(&mut uplink, &mut counters, now);
        uplink.complete(&batch);
        assert!(progress.armed && batch.len() <= 2);
        if counters.transmitted().packets == 64 {
            break;
        }
        let mut fds = [PollFd::from_borrowed_fd(uplink.descriptor().unwrap(), PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap(), 0, "nobody is kept awake");
        let (batch, _) = fetch(&mut uplink, &mut counters, now);
        assert!(batch.is_empty());
        let at = uplink.wake().expect("a time to go on at");
        assert!(at > now);
        now = at;
    }
    // A byte takes a microsecond: 64000 of them, less the bucket's initial content.
    assert!((60_000_000..64_000_000).contains(&now.0), "{now:?}");
    assert_eq!((counters.transmit_throttled_ns, counters.receive_throttled_ns), (now.0, 0), "it waited all the time");
}

fn set(uplink: &mut impl Uplink, rate: Option<&str>) {
    let rate = rate.map(|text| text.parse().unwrap());
    uplink.set(&UplinkSettings { rate }).unwrap();
}

#[test]
fn a_limit_comes_changes_and_goes_while_the_link_is_open() {
    let mut uplink = Paced::unlimited(Null);
    let sender = Sender::new(&vec![(tcp(&payload(1446)), Offload::default()); 64]);
    let mut counters = Counters::default();
    // A limited bucket would hold 64 KiB; this is far more.
    for _ in 0..100 {
        assert_eq!(sender.deliver(&mut uplink, &mut counters, Time::ZERO).refused(), 0);
    }
    for (text, exact) in [("100Mbit/s", 12_500_000), ("10Mbit/s", 1_250_000), ("1Gbit/s", 125_000_000)] {
        set(&mut uplink, Some(text));
        let bytes = offer(&mut uplink, &sender, &mut Counters::default(), 1000);
        assert!(bytes >= exact - exact / 1000 && bytes <= exact + exact / 100 + (64 << 10), "{text}: {bytes}");
        // The bucket is empty now. Its next rate begins with a full one.
        set(&mut uplink, None);
        assert_eq!((uplink.wake(), sender.deliver(&mut uplink, &mut counters, Time::ZERO).refused()), (None, 0));
    }
}

#[test]
fn frames_that_wait_for_tokens_go_when_the_limit_goes() {
    let (mut outside, inside) = Pair::connected().unwrap();
    let mut uplink = Paced::unlimited(inside);
    let watched = |uplink: &Paced<Pair>| uplink.descriptor().unwrap().as_raw_fd();
    let link = watched(&uplink);
    let mut counters = Counters::default();
    let sender = Sender::new(&vec![(tcp(&payload(946)), Offload::default()); 64]);
    for limit in [None, Some("10Gbit/s")] {
        set(&mut uplink, Some("8kbit/s"));
        assert_ne!(watched(&uplink), link, "a descriptor that can be silent");
        let before = counters.transmitted().packets;
        assert_eq!(sender.deliver(&mut outside, &mut Counters::default(), Time::ZERO).refused(), 0);
        // Within the bucket's 64 KiB there is no wait. So take it all, then more.
        for _ in 0..2 {
            let (batch, _) = fetch(&mut uplink, &mut counters, Time::ZERO);
            uplink.complete(&batch);
            sender.deliver(&mut outside, &mut Counters::default(), Time::ZERO);
        }
        assert!(uplink.wake().is_some(), "it waits for tokens");
        set(&mut uplink, limit);
        assert!(readable(&uplink));
        assert_eq!(watched(&uplink) == link, limit.is_none());
        while readable_now(&uplink) {
            let (batch, _) = fetch(&mut uplink, &mut counters, Time::ZERO);
            uplink.complete(&batch);
        }
        assert_eq!(counters.transmitted().packets - before, 192, "none was lost");
        set(&mut uplink, None);
    }
}

fn readable_now(uplink: &impl Uplink) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(uplink.descriptor().unwrap(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

/// Fills the socket of a paced uplink that never lacks tokens, and lets its peer read.
fn check_refusal<U: Uplink>((inside, mut outside): (U, U)) {
    let mut uplink = Paced::new(inside, rate("10Tbit/s")).unwrap();
    let mut counters = Counters::default();
    let sender = fill(&mut uplink, &mut counters, 1 << 20);
    assert_eq!(uplink.wake(), None, "nothing to wait for but the peer");
    while uplink.wake().is_none() {
        loop {
            let (batch, progress) = fetch(&mut outside, &mut Counters::default(), Time::ZERO);
            outside.complete(&batch);
            if progress.armed {
                break;
            }
        }
        assert!(readable(&uplink), "room is told");
        fetch(&mut uplink, &mut counters, Time::ZERO);
    }
    check_has_room(&mut uplink, &sender, &mut counters);
}

#[test]
fn what_the_socket_of_a_paced_uplink_refused_is_wanted_when_its_peer_has_read() {
    check_refusal(Pair::connected().unwrap());
    check_refusal(Stream::connected().unwrap());
}
