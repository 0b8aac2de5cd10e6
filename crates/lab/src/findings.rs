//! Findings in sentences: which adapter is ahead and by how much, and the effect of serving it by Nicety. A difference is claimed
//! only where the interval of the paired ratio excludes 1. Where no ratio has an interval, the report says that once.

use crate::method::{Guests, Server};
use crate::number;
use crate::results::{Direction, Results, Row, Test};
use crate::statistics::{Estimate, RUNS_FOR_INTERVAL};

/// The command that judges adapters under unmodified drivers.
pub const REAL_GUESTS_COMMAND: &str = "nicety compare --guests qemu";

/// The tests that get a sentence.
const SENTENCE_TESTS: [Test; 6] = [
    Test::BulkTransmit,
    Test::BulkReceive,
    Test::GuestToGuest,
    Test::RequestResponse,
    Test::RrP99,
    Test::CpuPerGigabit,
];

/// With more adapters than this, a sentence names the nearest two and the last.
const NAMED_AT_MAX: usize = 3;

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Subject of the finding: a test's title, or an adapter's name.
    pub about: String,
    /// The finding, a whole sentence.
    pub sentence: String,
}

/// Findings that compare the adapters with each other.
pub fn findings(results: &Results) -> Vec<Finding> {
    let Some(&server) = results.servers().first() else { return Vec::new() };
    let finding = |test: Test| {
        Some(Finding { about: test.title().to_owned(), sentence: adapters_sentence(&ranked(results, test, server))? })
    };
    SENTENCE_TESTS.into_iter().filter_map(finding).collect()
}

/// The rows of `test` that have a figure and are ranked, the best first.
pub(crate) fn ranked(results: &Results, test: Test, server: Server) -> Vec<&Row> {
    let of = |row: &&Row| row.test == test && row.server == server && row.median.is_some() && results.is_ranked(row);
    let mut rows: Vec<&Row> = results.rows.iter().filter(of).collect();
    rows.sort_by(|a, b| {
        let order = a.median.unwrap_or_default().total_cmp(&b.median.unwrap_or_default());
        if test.direction() == Direction::Higher { order.reverse() } else { order }
    });
    rows
}

fn adapters_sentence(ranked: &[&Row]) -> Option<String> {
    let (leader, others) = ranked.split_first()?;
    let median = leader.median?;
    if others.is_empty() {
        let interval =
            leader.interval.map_or(String::new(), |i| format!(", 95 % interval {}", number::range(&i, median)));
        return Some(format!("{}: {} {}{interval}.", leader.adapter, number::figure(median), leader.unit));
    }
    let mut named: Vec<&Row> = others.to_vec();
    if named.len() > NAMED_AT_MAX {
        named.drain(2..named.len() - 1);
    }
    let ratios: Vec<(&Row, Estimate)> =
        named.into_iter().filter_map(|other| Some((other, leader.ratio_to(other)?))).collect();
    let (apart, alike): (Vec<_>, Vec<_>) =
        ratios.into_iter().partition(|(_, ratio)| ratio.interval.is_none() || ratio.excludes(1.0));
    // The first bracket of a sentence names its content: the 95 % interval.
    let mut name = "95 % interval ";
    let mut bracket =
        |ratio: &Estimate| number::ratio_range(ratio).map(|range| std::mem::take(&mut name).to_owned() + &range);
    let apart: Vec<String> = apart
        .iter()
        .map(|(other, ratio)| {
            let times = times(leader.test, ratio, &other.adapter);
            bracket(ratio).map_or(times.clone(), |range| format!("{times} ({range})"))
        })
        .collect();
    let alike: Vec<String> = alike
        .iter()
        .filter_map(|(other, ratio)| {
            Some(format!("{} ({}, {})", other.adapter, number::ratio_words(ratio), bracket(ratio)?))
        })
        .collect();
    let apart = format!("{} {} {}", leader.adapter, verb(leader.test), and(&apart));
    let (leader, alike) = (&leader.adapter, (!alike.is_empty()).then(|| and(&alike)));
    Some(match (apart.ends_with(' '), alike) {
        (false, None) => format!("{apart}."),
        (false, Some(alike)) => format!("{apart}; no difference shown from {alike}."),
        (true, Some(alike)) => format!("No difference shown between {leader} and {alike}."),
        (true, None) => return None,
    })
}

fn verb(test: Test) -> &'static str {
    match test {
        Test::BulkTransmit => "sent",
        Test::BulkReceive => "received",
        Test::GuestToGuest => "moved",
        Test::RequestResponse => "answered",
        Test::RrP50 | Test::RrP99 => "took",
        Test::CpuPerGigabit | Test::GuestCpuPerGigabit => "used",
        Test::ReadsPerFrame | Test::WritesPerFrame | Test::InterruptsPerFrame => "needed",
    }
}

fn times(test: Test, ratio: &Estimate, other: &str) -> String {
    let ratio = number::ratio_words(ratio);
    match test {
        Test::BulkTransmit | Test::BulkReceive | Test::GuestToGuest => format!("{ratio} as much as {other}"),
        Test::RequestResponse => format!("{ratio} as many requests as {other}"),
        Test::RrP50 | Test::RrP99 => format!("{ratio} as long as {other}"),
        Test::CpuPerGigabit | Test::GuestCpuPerGigabit => format!("{ratio} the CPU time of {other}"),
        Test::ReadsPerFrame | Test::WritesPerFrame | Test::InterruptsPerFrame => format!("{ratio} those of {other}"),
    }
}

/// The verdict on the ratio of Nicety's figure to QEMU's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The interval shows that Nicety does better.
    Better,
    /// The interval shows that Nicety does worse.
    Worse,
    /// The interval contains 1.
    Alike,
    /// The medians favour Nicety; there is no interval.
    PerhapsBetter,
    /// The medians favour QEMU; there is no interval.
    PerhapsWorse,
}

impl Verdict {
    /// The verdict in a few words.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Better => "better",
            Verdict::Worse => "worse",
            Verdict::Alike => "no difference shown",
            Verdict::PerhapsBetter => "perhaps better",
            Verdict::PerhapsWorse => "perhaps worse",
        }
    }

    /// Whether Nicety did worse, with or without an interval.
    pub fn is_worse(self) -> bool {
        matches!(self, Verdict::Worse | Verdict::PerhapsWorse)
    }

    fn is_better(self) -> bool {
        matches!(self, Verdict::Better | Verdict::PerhapsBetter)
    }
}

/// The verdict on `ratio`: Nicety's figure in `test` divided by QEMU's.
pub fn verdict(test: Test, ratio: &Estimate) -> Verdict {
    let more = ratio.median > 1.0;
    let better = more == (test.direction() == Direction::Higher);
    match (ratio.interval.is_some(), better) {
        (true, _) if !ratio.excludes(1.0) => Verdict::Alike,
        (false, _) if ratio.median == 1.0 => Verdict::Alike,
        (true, true) => Verdict::Better,
        (true, false) => Verdict::Worse,
        (false, true) => Verdict::PerhapsBetter,
        (false, false) => Verdict::PerhapsWorse,
    }
}

/// The effect of serving the adapters by Nicety, a sentence or two for each of its transports: the number of figures that are better
/// and worse than those of QEMU's own models, and which are worse.
pub fn against_qemu(results: &Results) -> Vec<String> {
    results.compared().into_iter().filter_map(|server| against_qemu_by(results, server)).collect()
}

fn against_qemu_by(results: &Results, server: Server) -> Option<String> {
    let (mut all, mut better) = (0, 0);
    let mut worse: Vec<String> = Vec::new();
    let mut count = 0;
    for adapter in results.adapters() {
        let mut of_adapter: Vec<String> = Vec::new();
        for test in results.tests() {
            let Some(ratio) = server_ratio(results, adapter, test, server) else { continue };
            let verdict = verdict(test, &ratio);
            all += 1;
            better += usize::from(verdict.is_better());
            if verdict.is_worse() {
                let title = test.title().to_lowercase().replace("cpu", "CPU");
                of_adapter.push(format!("{title} ({})", number::ratio_words(&ratio)));
            }
        }
        count += of_adapter.len();
        if !of_adapter.is_empty() {
            worse.push(format!("{adapter} in {}", and(&of_adapter)));
        }
    }
    if all == 0 {
        return None;
    }
    let link =
        if server == Server::NicetyStream { "Nicety over a stream, as QEMU's models have it," } else { "Nicety" };
    let alike = all - better - count;
    let named = if worse.is_empty() { "None is worse.".to_owned() } else { format!("Worse: {}.", worse.join("; ")) };
    Some(format!(
        "Of {all} figures of {link} {better} are better than those of QEMU's own models, {count} worse, and {alike} show no difference. {named}"
    ))
}

/// Ratio of an adapter's figure under this server to its figure under QEMU.
pub fn server_ratio(results: &Results, adapter: &str, test: Test, server: Server) -> Option<Estimate> {
    results.row(adapter, test, server)?.ratio_to(results.row(adapter, test, Server::Qemu)?)
}

/// The rule by which the ratios were computed, as a sentence.
pub fn how_ratios_are_made(results: &Results) -> &'static str {
    if (results.method.repeat as usize) < RUNS_FOR_INTERVAL {
        "Ratios are those of the medians: there are fewer than 7 rounds."
    } else {
        "Ratios are medians of the ratios of runs in the same round."
    }
}

/// Names the drivers under which the adapters were judged, and the command to judge them under others.
pub fn judged_under(results: &Results) -> String {
    let guests = match results.method.guests {
        Guests::Embedded => {
            return format!(
                "These figures judge the adapters under Nicety's own guest drivers. Under unmodified Linux drivers: {REAL_GUESTS_COMMAND}"
            );
        }
        Guests::Qemu => "in guests of QEMU",
        Guests::Uml => "in user-mode kernels",
    };
    let measured = |driven: bool| results.rows.iter().any(|row| row.median.is_some() && row.driver.is_some() == driven);
    let ours = "Nicety's own in the guest's user space (nicety-uio), for no kernel has one";
    match (measured(false), measured(true)) {
        (false, true) => format!("These figures judge the adapters under a user-space driver, {ours}, {guests}."),
        (_, marked) => {
            let but = "Rows marked \"user-space driver\" are not ranked with the others: their driver is";
            let but = if marked { format!(" {but} {ours}.") } else { String::new() };
            format!("These figures judge the adapters under unmodified Linux drivers, {guests}.{but}")
        }
    }
}

/// `a`, `a and b`, `a, b and c`.
pub(crate) fn and(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::BenchError;
    use crate::bench::fake::Fault;
    use crate::results::sample;
    use crate::statistics::Interval;

    fn about(results: &Results, about: &str) -> String {
        findings(results).into_iter().find(|finding| finding.about == about).unwrap().sentence
    }

    #[test]
    fn a_finding_says_how_many_times_and_its_interval() {
        let sentence = about(&sample::embedded(), "Bulk transmit");
        assert_eq!(sentence, "virtio-net sent 2.00 × as much as e1000 (95 % interval 2.00–2.00).");
        let sentence = about(&sample::embedded(), "CPU per gigabit");
        assert_eq!(sentence, "virtio-net used 0.50 × the CPU time of e1000 (95 % interval 0.50–0.50).");
    }

    #[test]
    fn without_intervals_none_is_claimed_and_no_sentence_repeats_that() {
        let sentence = about(&sample::quick(), "Bulk receive");
        assert_eq!(sentence, "virtio-net received 2.00 × as much as e1000.");
    }

    #[test]
    fn a_ratio_whose_interval_holds_one_is_no_difference() {
        let sentence = about(&sample::embedded(), "Latency, 99th percentile");
        assert_eq!(sentence, "No difference shown between e1000 and virtio-net (1.00 ×, 95 % interval 1.00–1.00).");
    }

    #[test]
    fn a_ratio_to_qemu_is_better_or_worse_by_its_tests_direction_and_only_where_the_interval_shows_it() {
        let of = |median: f64, spread: Option<f64>| {
            let interval = spread.map(|by| Interval { low: median - by, high: median + by, coverage: 0.98 });
            Estimate { median, interval, samples: 7 }
        };
        for (test, ratio, expected) in [
            (Test::BulkTransmit, of(1.5, Some(0.1)), Verdict::Better),
            (Test::BulkTransmit, of(0.9, Some(0.05)), Verdict::Worse),
            (Test::BulkTransmit, of(0.9, Some(0.1)), Verdict::Alike),
            (Test::RrP99, of(1.5, Some(0.1)), Verdict::Worse),
            (Test::CpuPerGigabit, of(0.5, Some(0.1)), Verdict::Better),
            (Test::CpuPerGigabit, of(0.5, None), Verdict::PerhapsBetter),
            (Test::GuestToGuest, of(0.5, None), Verdict::PerhapsWorse),
            (Test::GuestToGuest, of(1.0, None), Verdict::Alike),
        ] {
            assert_eq!(verdict(test, &ratio), expected, "{test:?} {ratio:?}");
        }
    }

    #[test]
    fn each_way_in_which_nicety_serves_is_counted_against_qemu() {
        let two = against_qemu(&sample::two_servers());
        let expected = "Of 16 figures of Nicety 12 are better than those of QEMU's own models, 0 worse, and 4 show no difference. None is worse.";
        assert_eq!(two, [expected]);
        let linked = against_qemu(&sample::linked());
        assert!(
            linked.len() == 2 && linked[1].contains("of Nicety over a stream, as QEMU's models have it, "),
            "{linked:?}"
        );
        assert!(against_qemu(&sample::embedded()).is_empty());
    }

    #[test]
    fn nothing_is_said_of_what_is_absent() {
        let fault =
            Fault::On("virtio-net by nicety, bulk receive".to_owned(), BenchError::Impossible("cannot".to_owned()));
        let results = sample::with_faults(vec![fault]);
        assert_eq!(about(&results, "Bulk receive"), "e1000: 1545 Mbit/s, 95 % interval 1500–1590.");
    }
}
