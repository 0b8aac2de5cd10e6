//! Two studies of one method side by side: ratio, interval, verdict. For a developer's regression check.

use super::bootstrap;
use super::figures::cell;
use super::journal::Study;
use crate::methods::{Figure, Method, Subject};
use crate::results::Direction;
use crate::statistics::Estimate;

/// The verdict of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The interval of the ratio is on the good side of 1.
    Better,
    /// It is on the bad side of 1.
    Worse,
    /// It contains 1.
    NoDifferenceShown,
    /// There are too few runs for an interval.
    TooFewRuns,
    /// One of them has no figure.
    Missing,
}

impl Verdict {
    /// The verdict in words.
    pub fn title(self) -> &'static str {
        match self {
            Verdict::Better => "better",
            Verdict::Worse => "worse",
            Verdict::NoDifferenceShown => "no difference shown",
            Verdict::TooFewRuns => "too few runs to say",
            Verdict::Missing => "not in both",
        }
    }
}

/// A figure in both studies.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The row.
    pub subject: Subject,
    /// Name of the load.
    pub load: String,
    /// The figure.
    pub figure: Figure,
    /// Medians of the first and the second study.
    pub medians: (Option<Estimate>, Option<Estimate>),
    /// The second divided by the first.
    pub ratio: Option<Estimate>,
    /// What it shows.
    pub verdict: Verdict,
}

/// All figures that one of them has, in the order of the first one's rows.
pub fn diff(method: &dyn Method, first: &Study, second: &Study) -> Vec<Line> {
    let mut subjects = first.head.plan.subjects.clone();
    subjects.extend(second.head.plan.subjects.iter().filter(|s| !first.head.plan.subjects.contains(s)).cloned());
    let mut loads: Vec<&str> = first.head.plan.loads.iter().map(|load| load.name.as_str()).collect();
    let more = second.head.plan.loads.iter().map(|load| load.name.as_str());
    let more: Vec<&str> = more.filter(|name| !loads.contains(name)).collect();
    loads.extend(more);
    let mut lines = Vec::new();
    for load in loads {
        for figure in method.figures().iter().filter(|figure| !figure.yes_or_no) {
            lines.extend(subjects.iter().filter_map(|subject| line(first, second, subject, load, figure)));
        }
    }
    lines
}

fn line(first: &Study, second: &Study, subject: &Subject, load: &str, figure: &Figure) -> Option<Line> {
    let cells = [first, second].map(|study| cell(study, subject, load, figure.name));
    let [old, new] = cells.each_ref().map(|cell| cell.samples.iter().map(|(_, value)| *value).collect::<Vec<f64>>());
    let medians = (cells[0].estimate, cells[1].estimate);
    if medians == (None, None) {
        return None;
    }
    let ratio = bootstrap::ratio_of_medians(&new, &old);
    let verdict = match ratio {
        None => Verdict::Missing,
        Some(Estimate { interval: None, .. }) => Verdict::TooFewRuns,
        Some(ratio) if !ratio.excludes(1.0) => Verdict::NoDifferenceShown,
        Some(ratio) if (ratio.median > 1.0) == (figure.direction == Direction::Higher) => Verdict::Better,
        Some(_) => Verdict::Worse,
    };
    Some(Line { subject: subject.clone(), load: load.to_owned(), figure: *figure, medians, ratio, verdict })
}

/// Differences between the studies' conditions that a reader must know, a sentence each.
pub fn conditions(first: &Study, second: &Study) -> Vec<String> {
    let (one, two) = (&first.head, &second.head);
    let seconds = |study: &Study| {
        study.head.plan.loads.iter().map(|load| load.seconds.to_string()).collect::<Vec<_>>().join(", ")
    };
    let optimised = |built: bool| if built { "with" } else { "without" }.to_owned();
    let facts = [
        ("guests", one.plan.guests.to_string(), two.plan.guests.to_string()),
        ("seconds of the loads", seconds(first), seconds(second)),
        ("processor", one.host.cpu_model.clone(), two.host.cpu_model.clone()),
        ("kernel", one.host.kernel.clone(), two.host.kernel.clone()),
        ("optimisation", optimised(one.optimised), optimised(two.optimised)),
    ];
    let differ = facts.into_iter().filter(|(_, one, two)| one != two);
    differ.map(|(what, one, two)| format!("{what}: {one} in the first, {two} in the second")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::journal::tests::head;
    use super::super::{Options, Record};
    use super::*;
    use crate::methods::{self, Taken};

    /// Seven rounds of `vmxnet3` with these throughputs and CPU costs.
    fn study(mbit: [f64; 7], cpu: f64) -> Study {
        let head = head(&Options { adapters: vec!["vmxnet3".to_owned()], ..Options::default() });
        let items = head.plan.items().into_iter().filter(|item| item.load == "stream");
        let ours = items.filter(|item| item.subject == Subject::new("vmxnet3", crate::method::Server::Nicety));
        let run = |(item, mbit): (super::super::plan::Item, f64)| {
            let figures = [("mbit".to_owned(), mbit), ("cpu".to_owned(), cpu * mbit / mbit)].into();
            Record::new(&item, Ok(Taken { figures, ..Taken::default() }))
        };
        Study { runs: ours.zip(mbit).map(run).collect(), head }
    }

    fn verdicts(first: &Study, second: &Study) -> Vec<(&'static str, Verdict)> {
        let lines = diff(methods::find("vmxnet3-iperf").unwrap(), first, second);
        lines.iter().map(|line| (line.figure.name, line.verdict)).collect()
    }

    #[test]
    fn a_slower_build_is_worse_a_cheaper_one_better_and_noise_shows_no_difference() {
        let before = study([100.0, 101.0, 99.0, 102.0, 98.0, 100.5, 99.5], 1.0);
        let slower = study([80.0, 81.0, 79.0, 82.0, 78.0, 80.5, 79.5], 0.5);
        let noise = study([99.0, 102.0, 98.5, 101.0, 100.0, 97.5, 101.5], 1.0);
        assert_eq!(verdicts(&before, &slower), [("mbit", Verdict::Worse), ("cpu", Verdict::Better)]);
        assert_eq!(verdicts(&slower, &before), [("mbit", Verdict::Better), ("cpu", Verdict::Worse)]);
        assert_eq!(
            verdicts(&before, &noise),
            [("mbit", Verdict::NoDifferenceShown), ("cpu", Verdict::NoDifferenceShown)]
        );
    }

    #[test]
    fn too_few_runs_and_a_missing_figure_are_no_verdict() {
        let before = study([100.0; 7], 1.0);
        let mut few = study([50.0; 7], 1.0);
        few.runs.truncate(3);
        assert_eq!(verdicts(&before, &few)[0], ("mbit", Verdict::TooFewRuns));
        few.runs.clear();
        assert_eq!(verdicts(&before, &few)[0], ("mbit", Verdict::Missing));
    }
}
