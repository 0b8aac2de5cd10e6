//! The poll interval of mapped doorbells: a guest's write to a mapped page causes no event, so the page is polled
//! (docs/feedback-loops.md, "Poll interval").
//!
//! The interval is an eighth of the queue's idle time. So polling adds little delay, and an idle guest costs almost no CPU time.
//! Polling slows down for a port until its usual idle time ([`UsualIdle`]) is nearly over. Ports that have been idle for long are
//! polled together, at multiples of [`MAX_NS`].

use nicety_adapter::Time;

/// The shortest poll interval.
pub const MIN_NS: u64 = 20_000;
/// The longest poll interval.
pub const MAX_NS: u64 = 5_000_000;
/// The poll interval is the idle time divided by this.
const PART: u64 = 8;
/// The longest usual idle time. The transfer that ends it is seen late by at most an eighth of it.
const HABIT_MAX_NS: u64 = 4_000_000;

/// A port's usual idle time, between two unsolicited transmissions.
#[derive(Clone, Copy, Debug, Default)]
pub struct UsualIdle {
    usual_ns: u64,
    /// The guest received frames since it last transmitted, and may answer at any time.
    may_answer: bool,
}

impl UsualIdle {
    /// The guest received frames and may answer at any time: the usual idle time does not apply.
    pub fn received(&mut self) {
        self.may_answer = true;
    }

    /// A poll found work. A short idle time replaces the average, because a transfer may have begun; long ones are averaged.
    pub fn ended(&mut self, active: Time, now: Time) {
        let silence = silence_ns(active, now);
        // Work without a poll in between does not end an idle time.
        if std::mem::take(&mut self.may_answer) || silence < MIN_NS {
            return;
        }
        let longer = silence.saturating_sub(self.usual_ns) / PART;
        self.usual_ns = silence.min(self.usual_ns + longer).min(HABIT_MAX_NS);
    }

    /// The next poll time. `active` is the time of the queues' last work.
    pub fn next(self, active: Time, now: Time) -> Time {
        let usual = if self.may_answer { 0 } else { self.usual_ns };
        let wait = (silence_ns(active, now).max(usual) / PART).clamp(MIN_NS, MAX_NS);
        if wait < MAX_NS {
            return now.after_ns(wait);
        }
        let Time(soon) = now.after_ns(MIN_NS);
        Time(soon.checked_next_multiple_of(MAX_NS).unwrap_or(soon))
    }
}

fn silence_ns(active: Time, now: Time) -> u64 {
    u64::try_from(now.since(active).as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time(1_000_000_003);

    #[test]
    fn looks_come_at_once_then_ever_rarer_and_idle_queues_share_theirs() {
        let (mut now, mut looks) = (START, 0u32);
        while now.since(START).as_millis() < 1_000 {
            let at = UsualIdle::default().next(START, now);
            assert!(at > now && at <= now.after_ns(MAX_NS + MIN_NS));
            (now, looks) = (at, looks + 1);
        }
        assert!((200..400).contains(&looks), "{looks} looks in the first second");
        // A poll at such a multiple is slightly late.
        let Time(one) = UsualIdle::default().next(START, now.after_ns(1));
        assert_eq!(Time(one), now.after_ns(MAX_NS));
        let Time(other) = UsualIdle::default().next(Time(7), now.after_ns(12_345));
        assert_eq!((one % MAX_NS, one), (0, other));
    }

    /// Polls until it finds work, which arrives `after` the last work. Returns the number of polls and the delay.
    fn find(usual: &mut UsualIdle, active: &mut Time, after: u64) -> (u32, u64) {
        let (came, mut now) = (active.after_ns(after), *active);
        let mut looks = 0;
        while now < came {
            (now, looks) = (usual.next(*active, now), looks + 1);
        }
        usual.ended(*active, now);
        *active = now;
        (looks, now.since(came).as_nanos() as u64)
    }

    #[test]
    fn what_comes_at_a_steady_pace_takes_a_few_looks_each_and_is_seen_in_time() {
        for after in [30_000, 300_000, 2_000_000, 20_000_000] {
            let (mut usual, mut active) = (UsualIdle::default(), START);
            let finds = (0..100).map(|_| find(&mut usual, &mut active, after));
            let (looks, late) = finds.last().unwrap();
            assert!(looks <= 25, "{looks} looks for {after}");
            assert!(after > 2_000_000 || looks <= 9, "{looks} looks for {after}");
            assert!(late <= (after / 7).max(MIN_NS), "{late} after {after}");
        }
    }

    #[test]
    fn what_goes_on_without_a_look_between_is_no_silence() {
        let (mut usual, mut active) = (UsualIdle::default(), START);
        assert!((0..100).map(|_| find(&mut usual, &mut active, 2_000_000)).last().unwrap().0 <= 9);
        usual.ended(active, active.after_ns(5_000));
        assert!(find(&mut usual, &mut active, 2_000_000).0 <= 9);
    }

    #[test]
    fn an_answer_is_looked_for_at_once_whatever_the_guest_does_of_its_own_accord() {
        let (mut usual, mut active) = (UsualIdle::default(), START);
        (0..100).for_each(|_| assert!(find(&mut usual, &mut active, HABIT_MAX_NS).1 <= HABIT_MAX_NS / 7));
        usual.received();
        for after in [60_000, 150_000] {
            let mut usual = usual;
            assert!(find(&mut usual, &mut active.clone(), after).1 <= MIN_NS, "an answer after {after}");
            // The usual idle time is unchanged.
            assert!(find(&mut usual, &mut active.clone(), HABIT_MAX_NS).0 <= 9);
        }
    }

    #[test]
    fn a_transfer_that_begins_is_looked_at_as_often_as_ever_after_a_few_frames() {
        let (mut usual, mut active) = (UsualIdle::default(), START);
        let steady = (0..100).map(|_| find(&mut usual, &mut active, HABIT_MAX_NS));
        assert!(steady.last().unwrap().0 <= 9);
        let late: Vec<u64> = (0..4).map(|_| find(&mut usual, &mut active, 1_000).1).collect();
        assert!(late.iter().sum::<u64>() <= HABIT_MAX_NS / 4, "{late:?}");
        assert!(late[3] <= MIN_NS, "{late:?}");
    }
}
