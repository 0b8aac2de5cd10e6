//! What the figures say, in sentences: which adapter is ahead and by how much, what serving it by Nicety changes, and which
//! adapter to choose. A difference is claimed only where the interval of the paired ratio does not hold 1.

use crate::method::{Guests, Server};
use crate::number;
use crate::results::{Direction, Results, Row, Test};
use crate::statistics::{Estimate, RUNS_FOR_INTERVAL};

/// The command that judges adapters under unmodified drivers.
pub const REAL_GUESTS_COMMAND: &str = "cargo run --release -- compare --guests qemu";

/// The tests that are a guest's rates: what decides the choice of an adapter.
const RATES: [Test; 4] = [Test::BulkTransmit, Test::BulkReceive, Test::GuestToGuest, Test::RequestResponse];

/// The tests of which a sentence is made.
const TOLD: [Test; 6] = [
    Test::BulkTransmit,
    Test::BulkReceive,
    Test::GuestToGuest,
    Test::RequestResponse,
    Test::RrP99,
    Test::CpuPerGigabit,
];

/// With more adapters than this, a sentence names the nearest two and the last.
const NAMED_AT_MOST: usize = 3;

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it is about: a test's title, or an adapter's name.
    pub about: String,
    /// The finding, a whole sentence.
    pub sentence: String,
}

/// All findings: adapters against each other, then, where both were measured, Nicety against QEMU per adapter.
pub fn findings(results: &Results) -> Vec<Finding> {
    let Some(&server) = results.servers().first() else { return Vec::new() };
    let adapters = TOLD.into_iter().filter_map(|test| {
        Some(Finding { about: test.title().to_owned(), sentence: adapters_sentence(&ranked(results, test, server))? })
    });
    let servers = results.adapters().into_iter().flat_map(|adapter| {
        let sentence = move |server| servers_sentence(results, adapter, server);
        let finding = |sentence| Finding { about: adapter.to_owned(), sentence };
        results.compared().into_iter().filter_map(sentence).map(finding)
    });
    adapters.chain(servers).collect()
}

/// The rows of `test` that have a figure, the best first.
fn ranked(results: &Results, test: Test, server: Server) -> Vec<&Row> {
    let mut rows: Vec<&Row> =
        results.rows.iter().filter(|row| row.test == test && row.server == server && row.median.is_some()).collect();
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
    if named.len() > NAMED_AT_MOST {
        named.drain(2..named.len() - 1);
    }
    let ratios: Vec<(&Row, Estimate)> =
        named.into_iter().filter_map(|other| Some((other, leader.ratio_to(other)?))).collect();
    let (apart, alike): (Vec<_>, Vec<_>) =
        ratios.into_iter().partition(|(_, ratio)| ratio.interval.is_none() || ratio.excludes(1.0));
    // What the brackets hold is said once a sentence.
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
            Some(format!("{} ({} ×, {})", other.adapter, number::ratio(ratio), bracket(ratio)?))
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
    let ratio = number::ratio(ratio);
    match test {
        Test::BulkTransmit | Test::BulkReceive | Test::GuestToGuest => format!("{ratio} × as much as {other}"),
        Test::RequestResponse => format!("{ratio} × as many requests as {other}"),
        Test::RrP50 | Test::RrP99 => format!("{ratio} × as long as {other}"),
        Test::CpuPerGigabit | Test::GuestCpuPerGigabit => format!("{ratio} × the CPU time of {other}"),
        Test::ReadsPerFrame | Test::WritesPerFrame | Test::InterruptsPerFrame => format!("{ratio} × those of {other}"),
    }
}

fn servers_sentence(results: &Results, adapter: &str, server: Server) -> Option<String> {
    let parts: Vec<String> = TOLD
        .into_iter()
        .filter_map(|test| {
            let ratio = server_ratio(results, adapter, test, server)?;
            let range = number::ratio_range(&ratio).map_or(String::new(), |range| format!(" ({range})"));
            let alike = if ratio.interval.is_some() && !ratio.excludes(1.0) { ", no difference shown" } else { "" };
            Some(format!(
                "{} {} ×{range}{alike}",
                test.title().to_lowercase().replace("cpu", "CPU"),
                number::ratio(&ratio)
            ))
        })
        .collect();
    if parts.is_empty() {
        None
    } else {
        let link = if server == Server::NicetyStream { ", over a stream as QEMU's," } else { "" };
        Some(format!("Served by Nicety{link} against QEMU's own model: {}.", parts.join("; ")))
    }
}

/// How many times an adapter's figure under this server is that under QEMU.
pub fn server_ratio(results: &Results, adapter: &str, test: Test, server: Server) -> Option<Estimate> {
    results.row(adapter, test, server)?.ratio_to(results.row(adapter, test, Server::Qemu)?)
}

/// What a ratio is of, in a sentence.
pub fn how_ratios_are_made(results: &Results) -> &'static str {
    if (results.method.repeat as usize) < RUNS_FOR_INTERVAL {
        "Ratios are those of the medians: there are fewer than 7 rounds."
    } else {
        "Ratios are medians of the ratios of runs in the same round."
    }
}

/// Which adapter to choose, a sentence each. Empty with fewer than two adapters.
pub fn choice(results: &Results) -> Vec<String> {
    let Some(&server) = results.servers().first() else { return Vec::new() };
    let order = by_rates(results, server);
    let [first, second, ..] = order.as_slice() else { return Vec::new() };
    let mut sentences = Vec::new();
    let apart = RATES.iter().filter(|test| told_apart(results, **test, server, first, second)).count();
    let measured_well = results.rows.iter().any(|row| row.interval.is_some());
    if measured_well && apart == 0 {
        sentences.push(format!(
            "Choose {first} or {second}, whichever the guest has a driver for: no rate tells them apart."
        ));
    } else {
        let led: Vec<String> = RATES
            .into_iter()
            .filter(|test| ranked(results, *test, server).first().is_some_and(|row| row.adapter == *first))
            .map(|test| test.title().to_lowercase())
            .collect();
        let led = if led.is_empty() {
            "it is near the best everywhere".to_owned()
        } else {
            format!("it has the best median in {}", and(&led))
        };
        sentences.push(format!("Choose {first} if the guest has a driver for it: {led}."));
    }
    let rest: Vec<&str> = order.iter().skip(if measured_well && apart == 0 { 2 } else { 1 }).copied().collect();
    if !rest.is_empty() {
        sentences.push(format!("Otherwise {}.", rest.join(", then ")));
    }
    if let Some(least) = ranked(results, Test::CpuPerGigabit, server).first().filter(|row| row.adapter != *first) {
        let seconds = number::figure(least.median.unwrap_or_default());
        sentences.push(format!(
            "Where the host's processors are scarce, {} costs least: {seconds} CPU-s/Gbit.",
            least.adapter
        ));
    }
    sentences.push("The order is by the geometric mean of the four rates, each as a fraction of the best.".to_owned());
    if !measured_well {
        sentences.push(format!("Fewer than {RUNS_FOR_INTERVAL} runs give no interval: take this as a first look."));
    }
    sentences
}

/// The adapters by the geometric mean of their rates, each as a fraction of the best. An adapter without one of the rates
/// comes after those that have all.
fn by_rates(results: &Results, server: Server) -> Vec<&str> {
    let score = |adapter: &str| {
        let (mut sum, mut rates) = (0.0, 0_u32);
        for test in RATES {
            let best = ranked(results, test, server).first().and_then(|row| row.median);
            let own = results.row(adapter, test, server).and_then(|row| row.median);
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

fn told_apart(results: &Results, test: Test, server: Server, a: &str, b: &str) -> bool {
    let ratio = || results.row(a, test, server)?.ratio_to(results.row(b, test, server)?);
    ratio().is_some_and(|ratio| ratio.excludes(1.0))
}

/// Under whose drivers the adapters were judged, and how to judge them under others.
pub fn judged_under(results: &Results) -> String {
    match results.method.guests {
        Guests::Embedded => format!(
            "These figures judge the adapters under Nicety's own guest drivers. Under unmodified Linux drivers: {REAL_GUESTS_COMMAND}"
        ),
        Guests::Qemu => {
            "These figures judge the adapters under unmodified Linux drivers, in guests of QEMU.".to_owned()
        }
        Guests::Uml => {
            "These figures judge the adapters under unmodified Linux drivers, in user-mode kernels.".to_owned()
        }
    }
}

/// `a`, `a and b`, `a, b and c`.
fn and(parts: &[String]) -> String {
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
    use crate::results::{Sample, sample};

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
    fn without_intervals_no_interval_is_claimed() {
        assert_eq!(about(&sample::quick(), "Bulk receive"), "virtio-net received 2.00 × as much as e1000.");
        assert!(choice(&sample::quick()).last().unwrap().contains("take this as a first look"));
    }

    #[test]
    fn a_ratio_whose_interval_holds_one_is_no_difference() {
        let sentence = about(&sample::embedded(), "Latency, 99th percentile");
        assert_eq!(sentence, "No difference shown between e1000 and virtio-net (1.00 ×, 95 % interval 1.00–1.00).");
    }

    #[test]
    fn nicety_is_set_against_qemu_per_adapter() {
        let sentence = about(&sample::two_servers(), "e1000");
        assert!(
            sentence.starts_with(
                "Served by Nicety against QEMU's own model: bulk transmit 1.50 × (1.50–1.50); bulk receive"
            ),
            "{sentence}"
        );
        assert!(
            sentence.ends_with(
                "99th percentile 1.00 × (1.00–1.00), no difference shown; CPU per gigabit 0.67 × (0.67–0.67)."
            )
        );
    }

    #[test]
    fn each_way_in_which_nicety_serves_is_set_against_qemu() {
        let all = findings(&sample::linked());
        let of: Vec<&str> = all.iter().filter(|f| f.about == "e1000").map(|f| f.sentence.as_str()).collect();
        assert!(of[0].starts_with("Served by Nicety against QEMU's own model: guest to guest 1.50 ×"), "{}", of[0]);
        let stream = "Served by Nicety, over a stream as QEMU's, against QEMU's own model: guest to guest 1.20 ×";
        assert!(of[1].starts_with(stream), "{}", of[1]);
        assert!(all.iter().all(|finding| finding.about != "virtio-net"), "there is nothing to set it against");
    }

    #[test]
    fn the_choice_names_the_leader_its_rates_and_the_rest() {
        let choice = choice(&sample::embedded());
        assert_eq!(
            choice[0],
            "Choose virtio-net if the guest has a driver for it: it has the best median in bulk transmit, bulk receive, guest to guest and request-response."
        );
        assert_eq!(choice[1], "Otherwise e1000.");
    }

    #[test]
    fn adapters_that_no_rate_tells_apart_are_offered_together() {
        let mut results = sample::embedded();
        let rows = results.rows.clone();
        for row in results.rows.iter_mut().filter(|row| row.adapter == "virtio-net") {
            let twin = rows.iter().find(|other| other.adapter == "e1000" && other.test == row.test).unwrap();
            let swing = |s: &Sample| Sample {
                round: s.round,
                value: s.value * if s.round.is_multiple_of(2) { 1.01 } else { 0.99 },
            };
            *row = Row::new("virtio-net", row.test, row.server, twin.samples.iter().map(swing).collect(), None);
        }
        assert_eq!(
            choice(&results)[0],
            "Choose virtio-net or e1000, whichever the guest has a driver for: no rate tells them apart."
        );
    }

    #[test]
    fn an_adapter_that_cannot_do_everything_comes_last_and_nothing_is_said_of_what_is_absent() {
        let fault =
            Fault::On("virtio-net by nicety, bulk receive".to_owned(), BenchError::Impossible("cannot".to_owned()));
        let results = sample::with_faults(vec![fault]);
        assert!(choice(&results)[0].starts_with("Choose e1000"));
        assert_eq!(about(&results, "Bulk receive"), "e1000: 1545 Mbit/s, 95 % interval 1500–1590.");
    }
}
