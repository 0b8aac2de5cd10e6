//! A study in plain words: sentences from its figures and from what `nicety adapters` knows, never beyond them.

use nicety_adapters::Kind;

use crate::advice::about;
use crate::findings::and;
use crate::method::Server;
use crate::methods::{Figure, Method, Table, lower_first};
use crate::number;
use crate::results::Direction;
use crate::statistics::Estimate;
use crate::study::Study;
use crate::study::figures::{self, Cell};

/// The page's headline. It says that an adapter is ahead only where the interval of the ratio excludes 1.
pub fn headline(study: &Study, method: &dyn Method) -> String {
    let tables = method.tables(&study.head.plan.loads);
    let Some(table) = tables.first() else { return method.about().line.to_owned() };
    let figure = method.figures().iter().find(|figure| figure.name == table.figure);
    let cells = figures::column(study, table);
    let found = figure.and_then(|figure| Some((figure, best(&cells, method, table).or_else(|| mode(&cells, table))?)));
    let Some((figure, best)) = found else { return "Nothing was measured yet".to_owned() };
    let with = table.bases.iter().find_map(|base| {
        let of = figures::base_of(&cells, best, base).filter(|of| of.subject != best.subject)?;
        Some(beside_base(best, base, &figures::ratio(best, of)?, figure, table))
    });
    with.unwrap_or_else(|| beside_others(&cells, best, figure, table))
}

/// The best row beside a base, as far as the interval goes.
fn beside_base(best: &Cell, base: &str, ratio: &Estimate, figure: &Figure, table: &Table) -> String {
    let adapter = &best.subject.adapter;
    let said = compared(adapter, base, ratio.median, figure);
    match number::ratio_range(ratio) {
        None => format!("First look: {said}"),
        Some(_) if ratio.excludes(1.0) => said,
        Some(range) => format!(
            "{}: no difference shown between {adapter} and {base} ({}, 95 % interval {range})",
            table.title,
            number::ratio_words(ratio)
        ),
    }
}

/// A ratio in words, the greater one first: `off is 1.96 times as fast as on`.
fn compared(one: &str, other: &str, ratio: f64, figure: &Figure) -> String {
    let (more, less, ratio) = if ratio < 1.0 { (other, one, 1.0 / ratio) } else { (one, other, ratio) };
    let estimate = Estimate { median: ratio, interval: None, samples: 1 };
    let times = number::ratio_words(&estimate).replace('×', "times");
    let is_rate = figure.unit.ends_with("/s") || figure.unit == "per second";
    let is_time = ["s", "ms", "µs", "ns"].contains(&figure.unit);
    if times == "1.00 times" {
        format!("{more} and {less} differ by less than 1 %")
    } else if is_rate && figure.direction == Direction::Higher {
        format!("{more} is {times} as fast as {less}")
    } else if is_time {
        format!("{more} takes {times} as long as {less}")
    } else {
        format!("{more} has {times} the {} of {less}", lower_first(figure.title))
    }
}

/// The best row beside all others, as far as the intervals go.
fn beside_others(cells: &[Cell], best: &Cell, figure: &Figure, table: &Table) -> String {
    let (adapter, title) = (&best.subject.adapter, &table.title);
    let value = format!("{} {}", figures::value(best, figure), figure.unit);
    let others: Vec<&Cell> = ranked(cells).filter(|cell| cell.subject != best.subject).collect();
    if others.is_empty() {
        return format!("{title}: {adapter} has {value}; no other adapter has a figure");
    }
    let ratios: Vec<(&Cell, Option<Estimate>)> =
        others.into_iter().map(|other| (other, figures::ratio(best, other))).collect();
    if ratios.iter().any(|(_, ratio)| ratio.is_none_or(|ratio| ratio.interval.is_none())) {
        let second = next(&ratios, figure);
        let said = second.map_or_else(String::new, |(other, ratio)| {
            format!(": {}", compared(adapter, &other.subject.adapter, ratio.median, figure))
        });
        return format!("First look: {title}: {adapter} is ahead with {value}{said}");
    }
    let alike = ratios.iter().filter(|(_, ratio)| ratio.is_some_and(|ratio| !ratio.excludes(1.0)));
    let alike: Vec<String> = alike.map(|(other, _)| other.subject.adapter.clone()).collect();
    if let (true, Some((second, ratio))) = (alike.is_empty(), next(&ratios, figure)) {
        let said = compared(adapter, &second.subject.adapter, ratio.median, figure);
        return format!("{title}: {adapter} is ahead with {value}: {said}");
    }
    format!("{title}: no difference shown between {adapter} and {}", and(&alike))
}

/// The second best, with the best one's ratio to it.
fn next<'a>(ratios: &[(&'a Cell, Option<Estimate>)], figure: &Figure) -> Option<(&'a Cell, Estimate)> {
    let known = ratios.iter().filter_map(|(cell, ratio)| Some((*cell, (*ratio)?)));
    match figure.direction {
        Direction::Higher => known.min_by(|(_, a), (_, b)| a.median.total_cmp(&b.median)),
        Direction::Lower => known.max_by(|(_, a), (_, b)| a.median.total_cmp(&b.median)),
    }
}

/// Our own rows that have a figure. A driver in user space costs what a kernel's does not: such rows are not ranked.
fn ranked(cells: &[Cell]) -> impl Iterator<Item = &Cell> {
    let ours = |cell: &&Cell| cell.subject.server == Some(Server::Nicety) && cell.subject.driver.is_none();
    cells.iter().filter(ours).filter(|cell| cell.estimate.is_some())
}

/// The best of our own rows.
fn best<'a>(cells: &'a [Cell], method: &dyn Method, table: &Table) -> Option<&'a Cell> {
    let direction = method.figures().iter().find(|figure| figure.name == table.figure)?.direction;
    let by = |cell: &&Cell| {
        cell.estimate.map_or(0.0, |of| if direction == Direction::Higher { of.median } else { -of.median })
    };
    ranked(cells).max_by(|a, b| by(a).total_cmp(&by(b)))
}

/// The first row beside the base, of a method whose rows are no adapters but ways to run one guest.
fn mode<'a>(cells: &'a [Cell], table: &Table) -> Option<&'a Cell> {
    let is_mode = |cell: &&Cell| cell.subject.server.is_none() && !cell.subject.is_native();
    let mut modes = cells.iter().filter(is_mode).filter(|cell| cell.estimate.is_some());
    modes.find(|cell| table.bases.first().is_some_and(|base| cell.subject.adapter != *base))
}

/// A ratio of two of our rows that the document has too.
pub struct Beside {
    /// The table's title.
    pub title: String,
    /// The adapter whose figure is divided.
    pub adapter: &'static str,
    /// The adapter by whose figure it is divided.
    pub base: &'static str,
    /// Our ratio.
    pub ratio: Estimate,
    /// The document's.
    pub document: f64,
}

/// The document's ratios of which we measured both rows. A pair has one ratio: its inverse says nothing new.
pub fn beside_documents(study: &Study, method: &dyn Method) -> Vec<Beside> {
    let mut beside = Vec::new();
    for table in method.tables(&study.head.plan.loads) {
        let cells = figures::column(study, &table);
        let row =
            |name: &str| cells.iter().find(|c| c.subject.adapter == name && c.subject.server == Some(Server::Nicety));
        for (at, (adapter, base, document)) in table.document.iter().enumerate() {
            let is_inverse = table.document.iter().take(at).any(|(one, other, _)| (one, other) == (base, adapter));
            let ratio = row(adapter).zip(row(base)).and_then(|(one, of)| figures::ratio(one, of));
            if let Some(ratio) = ratio.filter(|_| !is_inverse) {
                beside.push(Beside { title: table.title.clone(), adapter, base, ratio, document: *document });
            }
        }
    }
    beside
}

/// A paragraph for whoever must choose: sentences.
pub fn summary(study: &Study, method: &dyn Method) -> Vec<String> {
    let mut said = Vec::new();
    if !study.head.optimised {
        said.push("Nicety was built without optimisation: these figures say nothing about its speed.".to_owned());
    }
    for Beside { title, adapter, base, ratio, document } in beside_documents(study, method) {
        let range = number::ratio_range(&ratio).map_or(String::new(), |range| format!(" [{range}]"));
        let held = ratio.interval.is_some() && !ratio.excludes(1.0);
        let shown = if held { " (no difference shown)" } else { "" };
        said.push(format!(
            "{title}: {adapter} has {}{range} what {base} has{shown}; the document's hypervisor, guests and hardware gave {document:.2} ×.",
            number::ratio_words(&ratio)
        ));
    }
    if let Some(table) = method.tables(&study.head.plan.loads).first() {
        let cells = figures::column(study, table);
        if let Some(best) = best(&cells, method, table) {
            said.extend(whom(&best.subject.adapter));
        }
    }
    let failed = study.failed().count();
    if failed > 0 {
        let mut names: Vec<String> = study.failed().map(|run| run.subject.to_string()).collect();
        names.sort();
        names.dedup();
        let runs = if failed == 1 { "1 run".to_owned() } else { format!("{failed} runs") };
        said.push(format!("{runs} failed, of {}: see below.", and(&names)));
    }
    said
}

/// The guests that an adapter is for.
fn whom(adapter: &str) -> Option<String> {
    let about = about(adapter)?;
    let kind = match about.kind {
        Kind::Paravirtual => "is made for virtual machines and needs its own driver",
        Kind::Emulated => "imitates a chip, so most systems have its driver",
    };
    let boot = if about.boot.rom.is_some() {
        "boots from the network by the usual option ROMs"
    } else {
        "has no usual option ROM for network boot"
    };
    Some(format!(
        "{adapter} {kind} (Linux: {}, {}; Windows: {}, {}), and {boot}.",
        about.linux.driver, about.linux.version, about.windows.driver, about.windows.version
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::methods;
    use crate::plan::Item;
    use crate::plan::Length;
    use crate::record::RunRecord;
    use crate::record::Taken;
    use crate::study::Options;
    use crate::study::results::tests::head_of;
    use crate::subject::Subject;

    /// A study of `method` in which these adapters have these values of the first table's figure, a round each.
    fn study(method: &dyn Method, values: &[(&str, &[f64])]) -> Study {
        let adapters = values.iter().map(|(adapter, _)| (*adapter).to_owned()).collect();
        let head = head_of(method, &Options { adapters, length: Some(Length::Full), ..Options::default() });
        let table = method.tables(&head.plan.loads)[0].clone();
        let run = |adapter: &str, (round, value): (usize, &f64)| {
            let subject = Subject::new(adapter, Server::Nicety);
            let subject = head.plan.subjects.iter().find(|of| **of == subject).unwrap().clone();
            let figures = BTreeMap::from([(table.figure.to_owned(), *value)]);
            let item = Item { round: round as u32, subject, load: table.load.clone() };
            RunRecord::new(&item, Ok(Taken { figures, ..Taken::default() }))
        };
        let runs = values.iter().flat_map(|(adapter, of)| of.iter().enumerate().map(move |of| run(adapter, of)));
        Study { runs: runs.collect(), head }
    }

    fn headline_of(method: &str, values: &[(&str, &[f64])]) -> String {
        let method = methods::find(method).unwrap();
        headline(&study(method, values), method)
    }

    const STEADY: [f64; 7] = [100.0, 101.0, 99.0, 102.0, 98.0, 100.5, 99.5];
    const NOISY: [f64; 7] = [87.0, 109.0, 103.0, 88.0, 108.0, 104.0, 101.0];

    #[test]
    fn the_headline_claims_a_ratio_only_if_its_interval_excludes_one() {
        let twice = STEADY.map(|value| value * 2.0);
        let of = |vmxnet3: &[f64]| headline_of("vmxnet3-iperf", &[("e1000e", &STEADY), ("vmxnet3", vmxnet3)]);
        assert_eq!(of(&twice), "vmxnet3 is 2.00 times as fast as e1000e");
        // 104 ÷ 100.5 in the middle round of seven.
        let noise = of(&NOISY);
        assert!(
            noise.contains(": no difference shown between vmxnet3 and e1000e (1.03 ×, 95 % interval 0."),
            "{noise}"
        );
        assert_eq!(of(&[300.0]), "First look: vmxnet3 is 3.00 times as fast as e1000e");
    }

    #[test]
    fn rows_that_are_no_adapters_are_set_beside_the_first_base_and_never_called_unmeasured() {
        let method = methods::find("ft-netperf").unwrap();
        let head = head_of(method, &Options { length: Some(Length::Full), ..Options::default() });
        let table = method.tables(&head.plan.loads)[0].clone();
        let run = |row: &str, round: u32, value: f64| {
            let subject = head.plan.subjects.iter().find(|of| of.adapter == row).unwrap().clone();
            let figures = BTreeMap::from([(table.figure.to_owned(), value)]);
            let item = Item { round, subject, load: table.load.clone() };
            RunRecord::new(&item, Ok(Taken { figures, ..Taken::default() }))
        };
        let rows = [("off", 100.0), ("on", 40.0), ("on-100us", 30.0), ("native", 900.0)];
        let runs = rows.iter().flat_map(|(row, value)| (0..7).map(move |round| (*row, round, *value)));
        let study = Study { runs: runs.map(|(row, round, value)| run(row, round, value)).collect(), head };
        assert_eq!(headline(&study, method), "off is 2.50 times as fast as on");
        let nothing = Study { runs: Vec::new(), head: study.head };
        assert_eq!(headline(&nothing, method), "Nothing was measured yet");
    }

    #[test]
    fn an_adapter_is_ahead_only_of_others_that_were_measured() {
        let alone = headline_of("vmxnet3-iperf", &[("e1000e", &STEADY)]);
        assert!(alone.ends_with(": e1000e has 100 [98–102] Mbit/s; no other adapter has a figure"), "{alone}");
        let of = |second: &[f64]| headline_of("boot", &[("e1000e", &STEADY), ("vmxnet3", second)]);
        let slower = STEADY.map(|value| value * 2.0);
        let ahead = ": e1000e is ahead with 100 [98–102] s: vmxnet3 takes 2.00 times as long as e1000e";
        assert!(of(&slower).ends_with(ahead), "{}", of(&slower));
        assert!(of(&NOISY).contains(": no difference shown between e1000e and vmxnet3"), "{}", of(&NOISY));
        let once = headline_of("boot", &[("e1000e", &[12.0]), ("vmxnet3", &[13.0])]);
        assert!(
            once.starts_with("First look: ")
                && once.ends_with(": e1000e is ahead with 12.0 s: vmxnet3 takes 1.08 times as long as e1000e"),
            "{once}"
        );
    }
}
