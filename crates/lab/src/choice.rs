//! Advice on the choice of an adapter. As in the findings, every claim rests on an interval.

use std::cmp::Ordering;

use crate::findings::{and, ranked};
use crate::method::Server;
use crate::number;
use crate::results::{Direction, Results, Test};
use crate::statistics::RUNS_FOR_INTERVAL;

/// The tests of a guest's rates. They decide the choice.
pub(crate) const RATES: [Test; 4] = [Test::BulkTransmit, Test::BulkReceive, Test::GuestToGuest, Test::RequestResponse];

/// The advice, one sentence an entry. Empty with fewer than two adapters.
pub fn choice(results: &Results) -> Vec<String> {
    let parts = [headline(results), in_order(results), cheaper(results), caveat(results)];
    if parts[0].is_none() { Vec::new() } else { parts.into_iter().flatten().collect() }
}

/// The adapter to choose, and the reason behind a colon. None with fewer than two adapters.
pub(crate) fn headline(results: &Results) -> Option<String> {
    let (server, order) = (*results.servers().first()?, order(results));
    let [first, second, ..] = order.as_slice() else { return None };
    Some(if measured_well(results) {
        advice_with_intervals(results, server, first, second)
    } else {
        first_impression(results, server, first)
    })
}

/// All adapters in their order.
pub(crate) fn in_order(results: &Results) -> Option<String> {
    let order = order(results);
    let by = "by the geometric mean of the rates, each as a fraction of the best";
    (order.len() > 1).then(|| format!("In order: {} ({by}).", order.join(", then ")))
}

/// The adapter that takes less processor time than the first in order, if one is shown to.
pub(crate) fn cheaper(results: &Results) -> Option<String> {
    let (server, order) = (*results.servers().first()?, order(results));
    let first = order.first().filter(|_| order.len() > 1)?;
    let least = ranked(results, Test::CpuPerGigabit, server).first().copied()?;
    let shown = shown_order(results, Test::CpuPerGigabit, server, &least.adapter, first);
    (shown == Some(Ordering::Greater)).then(|| {
        let seconds = number::figure(least.median.unwrap_or_default());
        format!(
            "Where the host's processors are scarce, {} costs less than {first}: {seconds} CPU-s/Gbit.",
            least.adapter
        )
    })
}

/// Why the figures are no advice yet.
fn caveat(results: &Results) -> Option<String> {
    (!measured_well(results))
        .then(|| format!("Fewer than {RUNS_FOR_INTERVAL} runs give no interval: this is no advice yet."))
}

fn measured_well(results: &Results) -> bool {
    results.rows.iter().any(|row| row.interval.is_some())
}

/// The adapters that are ranked, the best first.
pub(crate) fn order(results: &Results) -> Vec<&str> {
    results.servers().first().map_or_else(Vec::new, |server| by_rates(results, *server))
}

/// The advice that the intervals support.
fn advice_with_intervals(results: &Results, server: Server, first: &str, second: &str) -> String {
    let tests_with = |order| {
        let tests = RATES.into_iter().filter(|test| shown_order(results, *test, server, first, second) == Some(order));
        tests.map(|test| test.title().to_lowercase()).collect::<Vec<String>>()
    };
    let (ahead, behind) = (tests_with(Ordering::Greater), tests_with(Ordering::Less));
    match (ahead.is_empty(), behind.is_empty()) {
        (true, true) => {
            format!("Choose {first} or {second}, whichever the guest has a driver for: no rate tells them apart.")
        }
        (false, true) => {
            format!("Choose {first} if the guest has a driver for it: it is ahead of {second} in {}.", and(&ahead))
        }
        (true, false) => format!(
            "Choose {first} or {second} by what the guest does: {second} is ahead in {}, no other rate tells them apart.",
            and(&behind)
        ),
        (false, false) => format!(
            "Choose {first} or {second} by what the guest does: {first} is ahead in {}, {second} in {}.",
            and(&ahead),
            and(&behind)
        ),
    }
}

/// The first impression, without intervals.
fn first_impression(results: &Results, server: Server, first: &str) -> String {
    let led = RATES
        .into_iter()
        .filter(|test| ranked(results, *test, server).first().is_some_and(|row| row.adapter == *first))
        .map(|test| test.title().to_lowercase());
    let led: Vec<String> = led.collect();
    let how =
        if led.is_empty() { "was near the best everywhere".to_owned() } else { format!("was first in {}", and(&led)) };
    format!("At a first look {first} is the fastest: it {how}.")
}

/// The adapters by the geometric mean of their rates, each as a fraction of the best. An adapter that lacks one of the rates comes
/// after those that have all.
fn by_rates(results: &Results, server: Server) -> Vec<&str> {
    let score = |adapter: &str| {
        let (mut sum, mut rates) = (0.0, 0_u32);
        for test in RATES {
            let rows = ranked(results, test, server);
            let best = rows.first().and_then(|row| row.median);
            let own = rows.iter().find(|row| row.adapter == adapter).and_then(|row| row.median);
            if let (Some(best), Some(own)) = (best, own) {
                sum += (own / best).ln();
                rates += 1;
            }
        }
        (rates, sum / f64::from(rates.max(1)))
    };
    let mut order: Vec<(&str, (u32, f64))> = results.adapters().into_iter().map(|name| (name, score(name))).collect();
    order.retain(|(_, (rates, _))| *rates > 0);
    order.sort_by(|(_, (rates_a, a)), (_, (rates_b, b))| rates_b.cmp(rates_a).then(b.total_cmp(a)));
    order.into_iter().map(|(name, _)| name).collect()
}

/// Whether the intervals show that `a` does better than `b` in this test (`Greater`) or worse (`Less`). None if the interval contains 1,
/// or there is no interval.
fn shown_order(results: &Results, test: Test, server: Server, a: &str, b: &str) -> Option<Ordering> {
    let ratio = results.row(a, test, server)?.ratio_to(results.row(b, test, server)?)?;
    let order = ratio.excludes(1.0).then(|| ratio.median.total_cmp(&1.0))?;
    Some(if test.direction() == Direction::Higher { order } else { order.reverse() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::BenchError;
    use crate::bench::fake::Fault;
    use crate::method::Driver;
    use crate::results::{Row, Sample, sample};

    /// The sample, in which virtio-net's rows are e1000's with each value multiplied by `times`.
    fn twins(times: impl Fn(Test, u32) -> f64) -> Results {
        let mut results = sample::embedded();
        let rows = results.rows.clone();
        for row in results.rows.iter_mut().filter(|row| row.adapter == "virtio-net") {
            let twin = rows.iter().find(|other| other.adapter == "e1000" && other.test == row.test).unwrap();
            let value = |s: &Sample| Sample { round: s.round, value: s.value * times(row.test, s.round) };
            *row = Row::new("virtio-net", row.test, row.server, twin.samples.iter().map(value).collect(), None);
        }
        results
    }

    fn swing(round: u32) -> f64 {
        if round.is_multiple_of(2) { 1.01 } else { 0.99 }
    }

    #[test]
    fn the_choice_names_the_leader_where_it_is_ahead_and_the_rest() {
        let choice = choice(&sample::embedded());
        assert_eq!(
            choice[0],
            "Choose virtio-net if the guest has a driver for it: it is ahead of e1000 in bulk transmit, bulk receive, guest to guest and request-response."
        );
        assert_eq!(
            choice[1],
            "In order: virtio-net, then e1000 (by the geometric mean of the rates, each as a fraction of the best)."
        );
    }

    #[test]
    fn an_adapter_under_a_user_space_driver_is_not_ranked_with_others_but_with_its_like() {
        let mut results = sample::user_space();
        assert_eq!(choice(&results), Vec::<String>::new(), "e1000 alone is no choice");
        for row in &mut results.rows {
            row.driver = Some(Driver::UserSpace);
        }
        let advice = choice(&results);
        assert!(advice.last().unwrap().contains("vmxnet") && advice.last().unwrap().contains("e1000"), "{advice:?}");
    }

    #[test]
    fn without_intervals_nothing_is_chosen() {
        let advice = choice(&sample::quick());
        assert!(
            advice[0].starts_with("At a first look virtio-net is the fastest: it was first in bulk transmit,"),
            "{advice:?}"
        );
        assert!(advice.last().unwrap().contains("no advice yet"));
        assert!(
            advice.iter().all(|sentence| !sentence.contains("Choose") && !sentence.contains("scarce")),
            "{advice:?}"
        );
    }

    #[test]
    fn adapters_that_no_rate_tells_apart_are_offered_together() {
        let advice = choice(&twins(|_, round| swing(round)));
        assert_eq!(
            advice[0],
            "Choose virtio-net or e1000, whichever the guest has a driver for: no rate tells them apart."
        );
        assert!(
            advice.iter().all(|sentence| !sentence.contains("scarce")),
            "no difference in processor time is shown: {advice:?}"
        );
    }

    #[test]
    fn a_rate_in_which_the_second_is_ahead_is_not_passed_over() {
        // Slightly ahead in the test with a clear interval, far ahead in the test without one.
        let one = choice(&twins(|test, round| match test {
            Test::BulkTransmit => 0.99,
            Test::GuestToGuest if round == 0 => 0.9,
            Test::GuestToGuest => 3.0,
            _ => swing(round),
        }));
        let other = "e1000 is ahead in bulk transmit, no other rate tells them apart.";
        assert_eq!(one[0], format!("Choose virtio-net or e1000 by what the guest does: {other}"));
        let both = choice(&twins(|test, _| if test == Test::BulkTransmit { 0.9 } else { 2.0 }));
        assert!(
            both[0].ends_with(
                "virtio-net is ahead in bulk receive, guest to guest and request-response, e1000 in bulk transmit."
            ),
            "{both:?}"
        );
    }

    #[test]
    fn one_that_is_shown_to_take_less_processor_time_is_named() {
        let advice = choice(&twins(|test, _| if test == Test::CpuPerGigabit { 1.5 } else { 2.0 }));
        assert!(
            advice[2].starts_with("Where the host's processors are scarce, e1000 costs less than virtio-net: "),
            "{advice:?}"
        );
    }

    #[test]
    fn an_adapter_that_cannot_do_everything_comes_last() {
        let fault =
            Fault::On("virtio-net by nicety, bulk receive".to_owned(), BenchError::Impossible("cannot".to_owned()));
        assert!(choice(&sample::with_faults(vec![fault]))[0].starts_with("Choose e1000"));
    }
}
