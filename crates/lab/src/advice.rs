//! The report's first page in plain words: which adapter to choose, what it costs, and what speaks against it.
//!
//! Each sentence states a figure of the results, or a fact of an adapter's description ([`About`]). It goes no further: what neither of
//! them knows is not said.

use nicety_adapters::{About, Kind, Since};

use crate::choice;
use crate::findings::{self, and, ranked};
use crate::method::{Guests, Server};
use crate::number;
use crate::results::{Results, Row, Test};
use crate::statistics::RUNS_FOR_INTERVAL;

/// The page points out runs with more stolen time than this, in percent.
pub(crate) const STEAL_NOTED_PERCENT: f64 = 5.0;

/// Advice in three parts, a sentence an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Advice {
    /// The adapter to choose, by guest.
    pub choice: Vec<String>,
    /// Its cost: processor time and latency.
    pub cost: Vec<String>,
    /// Doubts about the figures, and obstacles to the adapter.
    pub risk: Vec<String>,
}

/// The advice that these results give. Its parts are empty if nothing was measured.
pub fn advice(results: &Results) -> Advice {
    let Some(&server) = results.servers().first() else { return Advice::default() };
    let order = choice::order(results);
    let Some(first) = order.first().copied().or_else(|| results.adapters().first().copied()) else {
        return Advice::default();
    };
    Advice {
        choice: chosen(results, server, first, &order),
        cost: cost(results, server, first),
        risk: risk(results, server, first),
    }
}

/// The description of the adapter of this name. None for one of a later or an earlier program.
pub(crate) fn about(adapter: &str) -> Option<&'static About> {
    nicety_adapters::find(adapter).map(|entry| entry.about)
}

fn chosen(results: &Results, server: Server, first: &str, order: &[&str]) -> Vec<String> {
    let headline = choice::headline(results).unwrap_or_default();
    let reason = headline.split_once(": ").map_or("", |(_, reason)| reason);
    let mut sentences = vec![capitalised(reason)];
    if let Some(about) = about(first) {
        sentences.push(nature(about));
    }
    let emulated = |name: &&&str| about(name).is_some_and(|about| about.kind == Kind::Emulated);
    let is_paravirtual = about(first).is_some_and(|about| about.kind == Kind::Paravirtual);
    if let Some((name, about)) =
        order.iter().find(emulated).filter(|_| is_paravirtual).and_then(|name| Some((*name, about(name)?)))
    {
        let less = share(results, server, name, first);
        sentences.push(format!(
            "For a guest without that driver, {name} came first of those that imitate a chip{less}. {}",
            drivers(about)
        ));
    }
    sentences.retain(|sentence| !sentence.is_empty());
    sentences
}

/// An adapter's kind, and the systems that have its driver.
fn nature(about: &About) -> String {
    let name = about.name;
    let is = match about.kind {
        Kind::Emulated => format!("{name} imitates a chip ({})", about.chip),
        Kind::Paravirtual => format!("{name} was designed for virtual machines and needs a driver of its own"),
    };
    format!("{is}. {}", drivers(about))
}

fn drivers(about: &About) -> String {
    let of = |system: &str, Since { driver, version, .. }: &Since| {
        let release = version.starts_with(|c: char| c.is_ascii_digit() || c.is_ascii_uppercase());
        format!("{system} {driver}, {}{version}", if release { "since " } else { "" })
    };
    format!("Drivers: {}; {}.", of("Linux", &about.linux), of("Windows", &about.windows))
}

/// `: it moved 0.56 × as much as virtio-net from guest to guest`, as far as measured.
fn share(results: &Results, server: Server, name: &str, first: &str) -> String {
    let row = |adapter| results.row(adapter, Test::GuestToGuest, server);
    let Some(ratio) = row(name).zip(row(first)).and_then(|(own, first)| own.ratio_to(first)) else {
        return String::new();
    };
    if ratio.interval.is_some() && !ratio.excludes(1.0) {
        return format!(": from guest to guest no difference from {first} is shown");
    }
    let range = number::ratio_range(&ratio).map_or(String::new(), |range| format!(" (95 % interval {range})"));
    format!(": it moved {} as much as {first} from guest to guest{range}", number::ratio_words(&ratio))
}

fn cost(results: &Results, server: Server, first: &str) -> Vec<String> {
    let mut sentences = Vec::new();
    let figure = |test| Some(number::figure(results.row(first, test, server)?.median?));
    let whose = match results.method.guests {
        Guests::Embedded => "the daemon's; what the guests do themselves is not in it",
        Guests::Qemu | Guests::Uml => "server and guests together",
    };
    if let Some(seconds) = figure(Test::CpuPerGigabit) {
        sentences.push(format!("A gigabit of payload through {first} took {seconds} s of one processor ({whose})."));
    }
    let by_cost = ranked(results, Test::CpuPerGigabit, server);
    if let (Some(least), Some(most), true) = (by_cost.first(), by_cost.last(), by_cost.len() > 1) {
        let seconds = |row: &Row| number::figure(row.median.unwrap_or_default());
        sentences.push(format!(
            "By the medians {} took the least of all, {} s, and {} the most, {} s.",
            least.adapter,
            seconds(least),
            most.adapter,
            seconds(most)
        ));
    }
    sentences.extend(choice::cheaper(results));
    if let (Some(median), Some(late)) = (figure(Test::RrP50), figure(Test::RrP99)) {
        sentences.push(format!(
            "A request through {first} had its answer after {median} µs (median), and 99 of 100 within {late} µs."
        ));
    }
    sentences.extend(findings::against_qemu(results));
    sentences
}

fn risk(results: &Results, server: Server, first: &str) -> Vec<String> {
    let mut sentences = vec![findings::judged_under(results)];
    if results.rows.iter().all(|row| row.interval.is_none()) {
        sentences.push(format!(
            "Fewer than {RUNS_FOR_INTERVAL} runs give no interval: no difference is proved, and this is no advice yet."
        ));
    }
    sentences.extend(widest(results, server, first));
    sentences.extend(lost(results));
    sentences.extend(disturbed(results));
    if let Some(about) = about(first) {
        sentences.push(format!("The VMM must speak {} to reach {first}.", about.transports.join(" or ")));
        if about.dma {
            sentences.push(format!("{first} works by DMA: the VM must share its memory with the daemon."));
        }
        if about.boot.rom.is_none() {
            sentences.push(format!("No usual option ROM boots a guest from the network through {first}."));
        }
    }
    sentences
}

/// The rate of `first` whose interval is the widest for its median.
fn widest(results: &Results, server: Server, first: &str) -> Option<String> {
    let rates = choice::RATES.into_iter().filter_map(|test| results.row(first, test, server));
    let spread = |row: &Row| Some((row.interval?.high - row.interval?.low) / row.median?);
    let row = rates
        .filter(|row| spread(row).is_some())
        .max_by(|a, b| spread(a).unwrap_or(0.0).total_cmp(&spread(b).unwrap_or(0.0)))?;
    let (median, interval) = (row.median?, row.interval?);
    Some(format!(
        "The least certain rate of {first} is {}: {} {}, 95 % interval {}.",
        row.test.title().to_lowercase(),
        number::figure(median),
        row.unit,
        number::range(&interval, median)
    ))
}

/// Runs without a figure, and whose they were.
fn lost(results: &Results) -> Option<String> {
    let failed = results.runs.iter().filter(|run| run.failure.is_some());
    let mut names: Vec<String> = Vec::new();
    failed.clone().for_each(|run| {
        if !names.contains(&run.adapter) {
            names.push(run.adapter.clone());
        }
    });
    let count = failed.count();
    (count > 0).then(|| {
        format!(
            "{count} of {} runs gave no figure, of {}: the list of all runs says why.",
            results.runs.len(),
            and(&names)
        )
    })
}

/// Runs that the hypervisor disturbed.
fn disturbed(results: &Results) -> Option<String> {
    let count = results.runs.iter().filter(|run| run.steal_percent.is_some_and(|p| p > STEAL_NOTED_PERCENT)).count();
    (count > 0).then(|| {
        format!(
            "During {count} of {} runs the hypervisor gave more than {STEAL_NOTED_PERCENT} % of the processors' time to others.",
            results.runs.len()
        )
    })
}

fn capitalised(sentence: &str) -> String {
    let mut characters = sentence.chars();
    characters.next().map_or(String::new(), |first| first.to_uppercase().collect::<String>() + characters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::BenchError;
    use crate::bench::fake::Fault;
    use crate::results::sample;

    #[test]
    fn the_three_parts_read_as_written_here() {
        let advice = advice(&sample::embedded());
        assert_eq!(
            advice.choice,
            [
                "It is ahead of e1000 in bulk transmit, bulk receive, guest to guest and request-response.",
                "virtio-net was designed for virtual machines and needs a driver of its own. Drivers: Linux virtio_net, since 2.6.25; Windows NetKVM, virtio-win.",
                "For a guest without that driver, e1000 came first of those that imitate a chip: it moved 0.50 × as much as virtio-net from guest to guest (95 % interval 0.50–0.50). Drivers: Linux e1000, since 2.4.19; Windows Intel PRO/1000, since XP x64 and Server 2003."
            ]
        );
        assert_eq!(
            advice.cost,
            [
                "A gigabit of payload through virtio-net took 0.0539 s of one processor (the daemon's; what the guests do themselves is not in it).",
                "By the medians virtio-net took the least of all, 0.0539 s, and e1000 the most, 0.108 s.",
                "A request through virtio-net had its answer after 50.0 µs (median), and 99 of 100 within 99.0 µs."
            ]
        );
        assert_eq!(
            advice.risk,
            [
                "These figures judge the adapters under Nicety's own guest drivers. Under unmodified Linux drivers: nicety compare --guests qemu",
                "The least certain rate of virtio-net is request-response: 386,250 per second, 95 % interval 375,000–397,500.",
                "The VMM must speak vhost-user to reach virtio-net.",
                "virtio-net works by DMA: the VM must share its memory with the daemon."
            ]
        );
    }

    #[test]
    fn a_description_is_quoted_and_never_a_part_of_it_that_is_not_there() {
        for entry in nicety_adapters::REGISTRY {
            let about = entry.about;
            let text = nature(about);
            for fact in
                [about.name, about.linux.driver, about.linux.version, about.windows.driver, about.windows.version]
            {
                assert!(text.contains(fact), "{text}");
            }
            assert_eq!(text.contains(about.chip), about.kind == Kind::Emulated, "{text}");
        }
        let mut results = sample::embedded();
        for row in &mut results.rows {
            row.adapter = format!("unheard-of-{}", row.adapter);
        }
        let Advice { choice, risk, .. } = advice(&results);
        let all = [choice, risk].concat().join(" ");
        assert!(!all.contains("Drivers") && !all.contains("VMM") && !all.contains("ROM"), "{all}");
    }

    #[test]
    fn what_is_wrong_with_the_figures_is_a_risk() {
        let quick = advice(&sample::quick());
        assert!(quick.risk.iter().any(|sentence| sentence.contains("no difference is proved")), "{quick:?}");
        assert!(quick.risk.iter().all(|sentence| !sentence.contains("least certain")), "{quick:?}");
        let failed = BenchError::Failed("the guest stopped answering".to_owned());
        let fault = Fault::On("round 4: e1000 by nicety, bulk receive".to_owned(), failed);
        let mut results = sample::with_faults(vec![fault]);
        results.runs[3].steal_percent = Some(40.0);
        let risk = advice(&results).risk.join(" ");
        assert!(risk.contains("1 of 56 runs gave no figure, of e1000: "), "{risk}");
        assert!(risk.contains("During 1 of 56 runs the hypervisor gave more than 5 %"), "{risk}");
        assert!(advice(&sample::two_servers()).cost.last().unwrap().contains("those of QEMU's own models"));
    }

    #[test]
    fn nothing_measured_gives_no_advice() {
        let mut results = sample::embedded();
        results.rows.clear();
        assert_eq!(advice(&results), Advice::default());
    }
}
