//! The measured figures behind a choice: those of the study that knows most of the adapters that fit.

use std::cmp::Reverse;

use super::Prefer;
use crate::host::Host;
use crate::method::Server;
use crate::methods::{self, Figure};
use crate::number;
use crate::plan::Length;
use crate::results::Direction;
use crate::statistics::Estimate;
use crate::study::Study;
use crate::study::figures::{self, Cell};

/// Figures of a method that answer a preference.
#[derive(Debug, Clone, Copy)]
struct Source {
    method: &'static str,
    /// The loads, the best first: a shorter plan has not all of them.
    loads: &'static [&'static str],
    figure: &'static str,
}

const fn source(method: &'static str, loads: &'static [&'static str], figure: &'static str) -> Source {
    Source { method, loads, figure }
}

const PAIRS_STREAM: &[&str] = &["stream-to-vmxnet3", "stream-to-virtio-net"];
const PAIRS_EXCHANGE: &[&str] = &["rr-to-vmxnet3", "rr-to-virtio-net"];
const ESX_STREAM: &[&str] = &["10g-transmit-64K-64K", "1g-transmit-64K-64K"];
const ESX_EXCHANGE: &[&str] = &["10g-rr", "1g-rr"];

/// The sources of a preference. Those that a link's rate limits come last: they tell good adapters apart badly.
fn sources(prefer: Prefer) -> &'static [Source] {
    match prefer {
        Prefer::Throughput => {
            const {
                &[
                    source("vmxnet3-iperf", &["stream"], "mbit"),
                    source("compare", &["guest-to-guest"], "mbit"),
                    source("pairs", PAIRS_STREAM, "mbit"),
                    source("ten-gig", &["one-1500"], "mbit"),
                    source("esx-netperf", ESX_STREAM, "mbit"),
                    source("kvm-scp", &["scp"], "megabytes"),
                ]
            }
        }
        Prefer::Latency => {
            const {
                &[
                    source("vmxnet3-iperf", &["latency"], "transactions"),
                    source("compare", &["request-response"], "transactions"),
                    source("pairs", PAIRS_EXCHANGE, "transactions"),
                    source("esx-netperf", ESX_EXCHANGE, "transactions"),
                ]
            }
        }
        Prefer::Processor => {
            const {
                &[
                    source("vmxnet3-iperf", &["stream"], "cpu"),
                    source("compare", &["guest-to-guest"], "cpu"),
                    source("compare", &[super::comparison::BULK], "cpu"),
                    source("pairs", PAIRS_STREAM, "cpu"),
                    source("ten-gig", &["one-1500"], "cpu"),
                    source("esx-netperf", ESX_STREAM, "cpu"),
                    source("kvm-scp", &["scp"], "cpu"),
                ]
            }
        }
    }
}

/// The measured part of a choice.
#[derive(Debug, Default)]
pub(super) struct Measured {
    /// The adapter that is shown to be ahead of the first by facts. None: the facts decide.
    pub first: Option<String>,
    /// The figures, or why there are none, a sentence each.
    pub sentences: Vec<String>,
}

/// The figures of one study that answer a preference.
struct Answer<'a> {
    study: &'a Study,
    figure: &'static Figure,
    load: &'static str,
    /// Cells with figures, the best first.
    cells: Vec<(Cell, Estimate)>,
}

impl Answer<'_> {
    fn cell(&self, adapter: &str) -> Option<&Cell> {
        self.cells.iter().map(|(cell, _)| cell).find(|cell| cell.subject.adapter == adapter)
    }
}

fn answer<'a>(study: &'a Study, source: &Source, fits: &[&str]) -> Option<Answer<'a>> {
    let plan = &study.head.plan;
    let figure = methods::find(source.method)?.figures().iter().find(|known| known.name == source.figure)?;
    let load = source.loads.iter().find(|load| plan.load(load).is_some())?;
    // A driver in user space costs what a kernel's does not: such rows are not ranked with the others.
    let ours =
        plan.subjects.iter().filter(|subject| subject.server == Some(Server::Nicety) && subject.driver.is_none());
    let fit = ours.filter(|subject| fits.contains(&subject.adapter.as_str()));
    let figures = fit.map(|subject| figures::cell(study, subject, load, figure.name));
    let mut cells: Vec<_> = figures.filter_map(|cell| cell.estimate.map(|estimate| (cell, estimate))).collect();
    cells.sort_by(|(_, a), (_, b)| match figure.direction {
        Direction::Higher => b.median.total_cmp(&a.median),
        Direction::Lower => a.median.total_cmp(&b.median),
    });
    (!cells.is_empty()).then_some(Answer { study, figure, load, cells })
}

/// The first method that measures this adapter.
fn measuring(sources: &[Source], adapter: Option<&&str>) -> Option<&'static str> {
    let has = |source: &&Source| {
        let Some(method) = methods::find(source.method) else { return false };
        let guests = method.about().guests.first().copied();
        let field = guests.map(|guests| method.field(guests, Length::Usual)).unwrap_or_default();
        adapter.is_some_and(|adapter| field.iter().any(|subject| subject.adapter == **adapter))
    };
    sources.iter().find(has).map(|source| source.method)
}

/// The figures of `studies` about the adapters `fits`, which are in the order of the facts.
pub(super) fn measured(prefer: Prefer, fits: &[&str], studies: &[Study], here: &Host) -> Measured {
    let sources = sources(prefer);
    let none = |why: &str| {
        let hint = measuring(sources, fits.first())
            .map_or_else(String::new, |method| format!(" `nicety lab run {method}` measures."));
        let sentences = vec![format!("{why}: the order follows from facts alone.{hint}")];
        Measured { first: None, sentences }
    };
    if studies.is_empty() {
        return none("There are no results of the lab");
    }
    let studies: Vec<&Study> = studies.iter().filter(|study| here.differs_from(&study.head.host).is_none()).collect();
    if studies.is_empty() {
        return none("The results are of another machine");
    }
    match best(sources, fits, &studies) {
        Some(answer) => cited(&answer, fits),
        None => none("The results on this machine have no such figure of the adapters that fit"),
    }
}

/// The study that says most of these adapters.
fn best<'a>(sources: &[Source], fits: &[&str], studies: &[&'a Study]) -> Option<Answer<'a>> {
    let answers = sources.iter().enumerate().flat_map(|(place, source)| {
        let of_method = studies.iter().filter(|study| study.head.plan.method == source.method);
        of_method.filter_map(move |study| Some((place, answer(study, source, fits)?)))
    });
    let best = answers.min_by_key(|(place, answer)| {
        let has_first = fits.first().is_some_and(|first| answer.cell(first).is_some());
        (!answer.study.head.optimised, !has_first, Reverse(answer.cells.len()), *place)
    });
    best.map(|(_, answer)| answer)
}

/// A column of the table of all adapters.
#[derive(Debug, Default)]
pub(super) struct Column {
    /// Figure and unit.
    pub head: String,
    /// The figure within a sentence.
    pub title: String,
    /// Adapter and figure.
    pub cells: Vec<(String, String)>,
    /// The ratio to the first adapter of each that an interval shows to differ from it.
    pub ratios: Vec<(String, Estimate)>,
}

/// The column of a preference. It is empty if this machine has no figures.
pub(super) fn column(prefer: Prefer, all: &[&str], studies: &[Study], here: &Host) -> Column {
    let studies: Vec<&Study> = studies.iter().filter(|study| here.differs_from(&study.head.host).is_none()).collect();
    // A time says more of latency than a rate does.
    let times: Vec<Source> = match prefer {
        Prefer::Latency => sources(prefer).iter().map(|source| Source { figure: "p50", ..*source }).collect(),
        Prefer::Throughput | Prefer::Processor => Vec::new(),
    };
    let Some(answer) = best(&times, all, &studies).or_else(|| best(sources(prefer), all, &studies)) else {
        return Column::default();
    };
    let first = all.first().and_then(|first| answer.cell(first));
    let shown = |(cell, _): &(Cell, Estimate)| {
        let of = figures::ratio(cell, first?).filter(|of| of.excludes(1.0) && answer.study.head.optimised)?;
        Some((cell.subject.adapter.clone(), of))
    };
    let ratios = answer.cells.iter().filter_map(shown).collect();
    let of = |(cell, of): &(Cell, Estimate)| (cell.subject.adapter.clone(), number::figure(of.median) + cell.mark());
    let head = format!("{}, {}", answer.figure.title, answer.figure.unit);
    let title = methods::lower_first(answer.figure.title);
    Column { head, title, cells: answer.cells.iter().map(of).collect(), ratios }
}

/// Quotes an answer, and says whether its figures or the facts decide.
fn cited(answer: &Answer<'_>, fits: &[&str]) -> Measured {
    let Answer { study, figure, load, cells } = answer;
    let head = &study.head;
    let date = head.host.date.split('T').next().unwrap_or_default();
    let said = |(cell, of): &(Cell, Estimate)| {
        format!("{} {} {}", cell.subject.adapter, number::estimate(of.median, of.interval.as_ref()), figure.unit)
    };
    let mut sentences = vec![format!(
        "Measured on this machine ({}, load {load}, {date}, {} guests): {}: {}.",
        head.plan.method,
        head.plan.guests,
        figure.title.to_lowercase(),
        cells.iter().map(said).collect::<Vec<_>>().join(", ")
    )];
    if cells.iter().any(|(_, of)| of.interval.is_none()) {
        sentences.push("These figures have no intervals yet: a first look, which proves no difference.".to_owned());
    }
    if !head.optimised {
        sentences.push("They are of a build without optimisation: the order follows from facts alone.".to_owned());
        return Measured { first: None, sentences };
    }
    let (Some(first), Some((best, _))) = (fits.first(), cells.first()) else {
        return Measured { first: None, sentences };
    };
    let ahead = &best.subject.adapter;
    let Some(firsts) = answer.cell(first) else {
        sentences.push(format!("{first} itself is not among them: it stands first by its facts."));
        return Measured { first: None, sentences };
    };
    if ahead == first {
        return Measured { first: None, sentences };
    }
    if figures::ratio(best, firsts).is_some_and(|ratio| ratio.excludes(1.0)) {
        return Measured { first: Some(ahead.clone()), sentences };
    }
    sentences.push(format!("No difference between {ahead} and {first} is shown: {first} stands first by its facts."));
    Measured { first: None, sentences }
}

#[cfg(test)]
mod tests {
    use nicety_adapters::{Entry, REGISTRY};

    use crate::choose::{Choice, System, Table, Wishes, choose};
    use crate::record::RunRecord;
    use crate::study::Options;

    use super::*;
    use crate::record::Taken;

    fn linux() -> Wishes {
        Wishes {
            system: System::Linux,
            version: None,
            in_box: true,
            network_boot: false,
            migrates: false,
            segmentation: false,
            prefer: Prefer::Throughput,
        }
    }

    fn windows(version: &str) -> Wishes {
        Wishes { system: System::Windows, version: Some(version.to_owned()), ..linux() }
    }

    /// A study of this machine with these figures of adapters under one load, in seven rounds.
    fn study(method: &str, load: &str, figure: &str, of: &[(&str, [f64; 7])]) -> Study {
        let mut head = crate::study::results::tests::head(&Options::default());
        head.plan = Options::default().plan(methods::find(method).unwrap()).unwrap();
        let record = |item: crate::plan::Item| {
            let ours = item.load == load && item.subject.server == Some(Server::Nicety);
            let (_, values) = of.iter().find(|(name, _)| ours && *name == item.subject.adapter)?;
            let value = *values.get(item.round as usize)?;
            let taken = Taken { figures: [(figure.to_owned(), value)].into(), ..Taken::default() };
            Some(RunRecord::new(&item, Ok(taken)))
        };
        let runs = head.plan.items().into_iter().filter_map(record).collect();
        Study { head, runs }
    }

    fn iperf(e1000e: f64, vmxnet3: f64) -> Study {
        study("vmxnet3-iperf", "stream", "mbit", &[("e1000e", [e1000e; 7]), ("vmxnet3", [vmxnet3; 7])])
    }

    fn of(wishes: &Wishes, studies: &[Study]) -> Choice {
        choose(wishes, REGISTRY, studies, &studies[0].head.host).unwrap()
    }

    fn two() -> Vec<Entry> {
        REGISTRY.iter().filter(|entry| ["e1000e", "vmxnet3"].contains(&entry.about.name)).copied().collect()
    }

    #[test]
    fn a_choice_cites_this_machine_s_figures_and_follows_them_among_those_that_were_measured() {
        for (figures, first) in [((1_000.0, 4_000.0), "vmxnet3"), ((5_000.0, 4_000.0), "e1000e")] {
            let studies = [iperf(figures.0, figures.1)];
            let choice = choose(&linux(), &two(), &studies, &studies[0].head.host).unwrap();
            assert_eq!(choice.adapter.as_deref(), Some(first));
            let because = match first {
                "vmxnet3" => "vmxnet3 is made for virtual machines: it needs few messages per frame.",
                _ => {
                    "e1000e imitates the Intel 82574L; it was measured ahead of vmxnet3, which is made for virtual machines."
                }
            };
            assert_eq!(choice.why[0], because);
            let cited = &choice.measured[0];
            assert!(cited.starts_with("Measured on this machine (vmxnet3-iperf, load stream, "), "{cited}");
            assert!(cited.contains("vmxnet3 4000 [4000] Mbit/s"), "{cited}");
            let Table { heads, rows } = choice.table;
            assert_eq!(heads[1], "Throughput, Mbit/s");
            let [best, other] =
                [&rows[0], &rows[1]].map(|row| (row[0].as_str(), row[1].as_str(), row[row.len() - 1].as_str()));
            assert_eq!((best.0, best.1), (first, number::figure(figures.0.max(figures.1)).as_str()));
            assert!(best.2.starts_with("Chosen. ") && other.2.starts_with("Fits too, with 0."), "{best:?} {other:?}");
            assert!(other.2.ends_with(&format!(" × the throughput of {first}.")), "{other:?}");
        }
        let unmeasured = of(&windows("Server 2012"), &[iperf(1_000.0, 4_000.0)]);
        assert_eq!(unmeasured.adapter.as_deref(), Some("igb"));
        let said = "igb itself is not among them: it stands first by its facts.";
        assert!(unmeasured.measured.iter().any(|sentence| sentence == said), "{unmeasured:?}");
    }

    #[test]
    fn figures_of_a_driver_in_user_space_decide_nothing() {
        let entries: Vec<Entry> =
            REGISTRY.iter().filter(|entry| ["vmxnet2", "vmxnet3"].contains(&entry.about.name)).copied().collect();
        let studies =
            [study("vmxnet3-iperf", "stream", "mbit", &[("vmxnet2", [9_000.0; 7]), ("vmxnet3", [4_000.0; 7])])];
        assert_eq!(studies[0].runs.len(), 14, "both have figures");
        let wishes = Wishes { in_box: false, ..linux() };
        let choice = choose(&wishes, &entries, &studies, &studies[0].head.host).unwrap();
        assert_eq!(choice.adapter.as_deref(), Some("vmxnet3"), "{choice:?}");
        assert!(!choice.measured.concat().contains("vmxnet2"), "{choice:?}");
    }

    #[test]
    fn the_method_that_measured_the_adapter_in_question_is_cited_whichever_it_is() {
        let cited = |method: &str, load: &str, figure: &str, prefer| {
            let ours = study(method, load, figure, &[("virtio-net", [900.0; 7]), ("e1000e", [800.0; 7])]);
            let choice = of(&Wishes { prefer, ..linux() }, &[iperf(1_000.0, 4_000.0), ours]);
            assert_eq!(choice.adapter.as_deref(), Some("virtio-net"));
            let start = format!("Measured on this machine ({method}, load {load}, ");
            assert!(choice.measured[0].starts_with(&start), "{:?}", choice.measured);
            assert!(choice.measured[0].contains("virtio-net 900 [900] "), "{:?}", choice.measured);
        };
        cited("compare", "guest-to-guest", "mbit", Prefer::Throughput);
        cited("pairs", "stream-to-vmxnet3", "mbit", Prefer::Throughput);
        cited("compare", "request-response", "transactions", Prefer::Latency);
        let scp = study("kvm-scp", "scp", "megabytes", &[("rtl8139", [11.0; 7]), ("pcnet", [9.0; 7])]);
        let xp = of(&windows("XP"), &[iperf(1_000.0, 4_000.0), scp]);
        assert!(xp.measured[0].contains("(kvm-scp, load scp, ") && xp.measured[0].contains("rtl8139 11.0 [11.0] MB/s"));
        // Less of the host's processors is better.
        let cpu = study("compare", "guest-to-guest", "cpu", &[("virtio-net", [0.09; 7]), ("vmxnet3", [0.03; 7])]);
        let choice = of(&Wishes { prefer: Prefer::Processor, ..linux() }, &[cpu]);
        assert_eq!(choice.adapter.as_deref(), Some("vmxnet3"), "{choice:?}");
    }

    #[test]
    fn the_facts_decide_where_no_difference_is_shown_or_the_build_says_nothing() {
        let apart =
            [("virtio-net", [1_000.0; 7]), ("vmxnet3", [1_010.0, 900.0, 1_200.0, 990.0, 1_020.0, 800.0, 1_100.0])];
        let noise = of(&linux(), &[study("compare", "guest-to-guest", "mbit", &apart)]);
        assert_eq!(noise.adapter.as_deref(), Some("virtio-net"));
        let said = "No difference between vmxnet3 and virtio-net is shown: virtio-net stands first by its facts.";
        assert!(noise.measured.iter().any(|sentence| sentence == said), "{noise:?}");
        let faster = [("virtio-net", [1_000.0; 7]), ("vmxnet3", [5_000.0; 7])];
        let mut debug = study("compare", "guest-to-guest", "mbit", &faster);
        debug.head.optimised = false;
        let choice = of(&linux(), std::slice::from_ref(&debug));
        assert_eq!(choice.adapter.as_deref(), Some("virtio-net"), "{choice:?}");
        assert!(choice.measured.iter().any(|said| said.starts_with("They are of a build without optimisation")));
        // An optimised study of another method goes before it.
        let pairs = study("pairs", "stream-to-vmxnet3", "mbit", &faster);
        let choice = of(&linux(), &[debug, pairs]);
        assert!(choice.measured[0].contains("(pairs, ") && choice.adapter.as_deref() == Some("vmxnet3"), "{choice:?}");
    }

    #[test]
    fn another_machine_s_results_are_no_reason_and_the_hint_names_a_method_that_has_the_adapter() {
        for study in [iperf(1_000.0, 4_000.0), study("compare", "guest-to-guest", "mbit", &[("e1000e", [1.0; 7])])] {
            let elsewhere = Host { cpu_model: "another".to_owned(), ..Host::here() };
            let choice = choose(&linux(), REGISTRY, &[study], &elsewhere).unwrap();
            assert!(choice.measured[0].starts_with("The results are of another machine: "), "{choice:?}");
        }
        for wishes in [linux(), windows("XP")] {
            let choice = choose(&wishes, REGISTRY, &[], &Host::here()).unwrap();
            assert!(choice.measured[0].ends_with(" `nicety lab run compare` measures."), "{choice:?}");
        }
        let igb = choose(&windows("11"), REGISTRY, &[], &Host::here()).unwrap();
        assert!(igb.measured[0].ends_with(" `nicety lab run vmxnet3-iperf` measures."), "{igb:?}");
    }
}
