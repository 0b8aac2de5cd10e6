//! Results of `nicety compare` (`results.json`) as those of the lab's method of the same name, so that a choice cites either.

use std::collections::BTreeMap;

use crate::method;
use crate::plan::{Item, Plan};
use crate::plan::{Length, Load};
use crate::record::RunRecord;
use crate::record::Taken;
use crate::results::{Results, Row, Run, Test};
use crate::run::UNOPTIMISED;
use crate::study::{Head, Options, Study, results};
use crate::subject::Subject;

/// The method's name.
const COMPARE: &str = "compare";
/// The load whose figure `nicety compare` sums over its bulk runs.
pub(super) const BULK: &str = "bulk";

/// Load and figure of a test, as the lab's method names them. None for tests that answer no preference.
fn figure(test: Test) -> Option<(&'static str, &'static str)> {
    Some(match test {
        Test::BulkTransmit => ("bulk-transmit", "mbit"),
        Test::BulkReceive => ("bulk-receive", "mbit"),
        Test::GuestToGuest => ("guest-to-guest", "mbit"),
        Test::RequestResponse => ("request-response", "transactions"),
        Test::RrP50 => ("request-response", "p50"),
        Test::RrP99 => ("request-response", "p99"),
        Test::CpuPerGigabit => (BULK, "cpu"),
        Test::GuestCpuPerGigabit | Test::ReadsPerFrame | Test::WritesPerFrame | Test::InterruptsPerFrame => {
            return None;
        }
    })
}

fn subject(row: &Row) -> Subject {
    Subject { adapter: row.adapter.clone(), server: Some(row.server), driver: row.driver }
}

/// The figures of a comparison as a study. None if it has none.
pub fn of_comparison(results: &Results) -> Option<Study> {
    let mut runs: BTreeMap<Item, Taken> = BTreeMap::new();
    let (mut subjects, mut loads): (Vec<Subject>, Vec<Load>) = (Vec::new(), Vec::new());
    for (row, (load, figure)) in results.rows.iter().filter_map(|row| Some((row, figure(row.test)?))) {
        let subject = subject(row);
        if !subjects.contains(&subject) {
            subjects.push(subject.clone());
        }
        if !loads.iter().any(|known| known.name == load) {
            let seconds = results.method.seconds.round() as u32;
            loads.push(Load { name: load.to_owned(), title: load.replace('-', " "), seconds, commands: Vec::new() });
        }
        for sample in &row.samples {
            let item = Item { round: sample.round, subject: subject.clone(), load: load.to_owned() };
            runs.entry(item).or_default().figures.insert(figure.to_owned(), sample.value);
        }
    }
    let of = &results.method;
    let plan = Plan {
        method: COMPARE.to_owned(),
        guests: of.guests,
        length: Length::Usual,
        subjects,
        loads,
        repeat: of.repeat,
        confidence: None,
        seed: of.seed,
        overhead_seconds: 0.0,
        own: None,
    };
    let head = Head {
        format: results::FORMAT.to_owned(),
        version: results::VERSION,
        command: of.command.clone(),
        options: Options::default(),
        plan,
        host: results.host.clone(),
        optimised: !of.notes.iter().any(|note| note == UNOPTIMISED),
        accelerator: None,
        programs: BTreeMap::new(),
        notes: of.notes.clone(),
    };
    let record = |(item, taken): (Item, Taken)| {
        let others_percent = others_percent(results, &item);
        RunRecord { others_percent, ..RunRecord::new(&item, Ok(taken)) }
    };
    let runs: Vec<RunRecord> = runs.into_iter().map(record).collect();
    (!runs.is_empty()).then_some(Study { head, runs })
}

/// The most that other processes took during the runs behind a figure.
fn others_percent(results: &Results, item: &Item) -> Option<f64> {
    let is_its = |run: &&Run| {
        let load = run.load.to_string().replace(' ', "-");
        let has_load = if item.load == BULK { run.load != method::Load::RequestResponse } else { load == item.load };
        run.round == item.round
            && run.adapter == item.subject.adapter
            && Some(run.server) == item.subject.server
            && has_load
    };
    results.runs.iter().filter(is_its).filter_map(|run| run.others_percent).max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::Server;
    use crate::results::sample;
    use crate::study::figures::cell;

    #[test]
    fn a_comparison_s_medians_are_those_of_its_file() {
        let results = sample::embedded();
        let study = of_comparison(&results).unwrap();
        assert_eq!((study.head.plan.method.as_str(), study.head.plan.guests), ("compare", results.method.guests));
        for (test, load, figure) in [
            (Test::GuestToGuest, "guest-to-guest", "mbit"),
            (Test::RequestResponse, "request-response", "transactions"),
            (Test::RrP99, "request-response", "p99"),
            (Test::CpuPerGigabit, "bulk", "cpu"),
        ] {
            let row = results.row("e1000", test, Server::Nicety).unwrap();
            let ours = cell(&study, &Subject::new("e1000", Server::Nicety), load, figure);
            assert_eq!(ours.estimate.map(|estimate| estimate.median), row.median, "{test:?}");
        }
        let loaded = of_comparison(&sample::loaded()).unwrap();
        let is_loaded = |load| cell(&loaded, &Subject::new("virtio-net", Server::Nicety), load, "mbit").loaded;
        assert_eq!(["guest-to-guest", "bulk-transmit"].map(is_loaded), [true, false]);
        let mut nothing = results;
        nothing.rows.clear();
        assert_eq!(of_comparison(&nothing), None);
    }
}
