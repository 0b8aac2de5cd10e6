//! Polls of the transmit ring by time.

use crate::bench::*;

/// 65536 clocks of 30 ns.
const INTERVAL_NS: u64 = 1_966_080;
/// 32 of these intervals.
const SELDOM_NS: u64 = 32 * INTERVAL_NS;

/// Lets time pass in steps until there is work, at most `most_ns`. Returns the time that passed.
fn until_work(b: &mut Bench, most_ns: u64) -> Option<u64> {
    let begin = b.now;
    while b.now.0 - begin.0 < most_ns {
        b.pass(10_000);
        if b.out.work.contains(0) {
            return Some(b.now.0 - begin.0);
        }
    }
    None
}

/// Opened by a driver that never demands a poll. The first poll is over.
fn opened() -> Bench {
    let mut b = Bench::opened();
    b.wcsr(0, INEA);
    b.out.work = Default::default();
    b
}

#[test]
fn a_frame_that_no_access_follows_goes_out_within_the_interval_and_then_again() {
    let mut b = opened();
    for index in 0..3 {
        b.queue(index, &frame(60));
        let took = until_work(&mut b, 10 * INTERVAL_NS).expect("it is polled");
        assert!(took <= INTERVAL_NS + 10_000, "frame {index}: {took} ns");
        assert_eq!(b.transmit(), [frame(60)]);
        assert_eq!(b.sent(index).0 & OWN, 0);
    }
}

#[test]
fn csr47_says_how_often_and_dpoll_that_it_is_not() {
    let mut b = opened();
    b.wcsr(0, STOP);
    // 20000 clocks.
    b.wcsr(47, 20_000_u16.wrapping_neg());
    b.wcsr(0, STRT);
    b.out.work = Default::default();
    b.queue(0, &frame(60));
    let took = until_work(&mut b, INTERVAL_NS).unwrap();
    assert!((590_000..=610_000).contains(&took), "{took} ns");
    b.transmit();
    b.wcsr(4, 0x1915);
    b.queue(1, &frame(60));
    assert_eq!(until_work(&mut b, 2 * SELDOM_NS), None, "CSR4.DPOLL");
    b.wcsr(4, 0x0915);
    assert!(until_work(&mut b, INTERVAL_NS).is_some());
}

#[test]
fn a_driver_that_demands_polls_gets_no_others_and_idles_without_a_wake_up() {
    let mut b = opened();
    assert!(b.out.wake.is_some());
    b.queue(0, &frame(60));
    b.kick();
    b.transmit();
    // The completion's delay.
    b.pass(INTERVAL_NS);
    b.csr(0);
    b.wcsr(0, INEA | TINT);
    b.out.wake = None;
    b.tick();
    assert_eq!(b.out.wake, None, "it costs nothing");
    b.wcsr(0, STOP);
    b.wcsr(0, STRT | INEA);
    assert!(b.out.wake.is_some(), "until it is started anew");
}

#[test]
fn an_idle_ring_is_polled_ever_more_seldom_and_at_once_when_a_frame_comes() {
    let mut b = opened();
    let mut polls = 0;
    let end = b.now.after_ns(1_000_000_000);
    while let Some(due) = b.out.wake.take_if(|due| *due <= end) {
        b.now = b.now.max(due);
        b.tick();
        polls += 1;
    }
    assert!((15..30).contains(&polls), "{polls} in a second");
    b.queue(0, &frame(60));
    b.bring_one(&frame(60));
    assert!(b.out.work.contains(0), "a reception looks");
    b.transmit();
    b.wcsr(5, 1);
    b.queue(1, &frame(60));
    assert_eq!(until_work(&mut b, 2 * SELDOM_NS), None, "suspended");
}

#[test]
fn the_next_poll_is_saved_and_restored() {
    let mut b = opened();
    let due = b.out.wake.unwrap();
    b.pass(INTERVAL_NS / 2);
    let mut other = Bench::new();
    b.hand_over(&mut other);
    other.restored();
    assert_eq!(other.out.wake, Some(due));
}
