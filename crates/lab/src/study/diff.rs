//! Two studies of one method side by side: ratio, interval, verdict. For a developer's regression check.

use statrs::stats_tests::{Alternative, fishers_exact};

use super::bootstrap;
use super::figures::{Cell, cell};
use super::results::Study;
use crate::methods::{Figure, Method};
use crate::number;
use crate::record::RunRecord;
use crate::results::Direction;
use crate::statistics::{CONFIDENCE, Estimate, RUNS_FOR_INTERVAL};
use crate::subject::Subject;

/// Runs that ended well, of all that were made. It stands in place of a method's own figure of that kind.
const ENDED_WELL: Figure =
    Figure { name: "runs", title: "Ended well", unit: "runs", direction: Direction::Higher, yes_or_no: true };

/// The verdict of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The interval shows that the second is better.
    Better,
    /// The interval shows that the second is worse.
    Worse,
    /// The interval shows neither.
    NoDifferenceShown,
    /// There are too few runs to show a difference.
    TooFewRuns,
    /// All runs of the first failed; the second has a figure.
    FirstFailed,
    /// All runs of the second failed; the first has a figure.
    SecondFailed,
    /// One of them did not measure the figure.
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
            Verdict::FirstFailed => "better: the first failed",
            Verdict::SecondFailed => "worse: the second failed",
            Verdict::Missing => "not in both",
        }
    }

    /// Whether it says anything of the two.
    pub fn is_judged(self) -> bool {
        !matches!(self, Verdict::TooFewRuns | Verdict::Missing)
    }

    /// Whether the second is worse.
    pub fn is_worse(self) -> bool {
        matches!(self, Verdict::Worse | Verdict::SecondFailed)
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
    /// The first and the second study's values.
    pub cells: [Cell; 2],
    /// The second median divided by the first. None for how many of how many runs, and where the first is zero.
    pub ratio: Option<Estimate>,
    /// The verdict.
    pub verdict: Verdict,
}

impl Line {
    /// Whether the first has this figure, and the second does not.
    pub fn is_gone(&self) -> bool {
        let [first, second] = &self.cells;
        self.verdict == Verdict::Missing && !first.samples.is_empty() && second.samples.is_empty()
    }
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
        for figure in method.figures() {
            lines.extend(subjects.iter().filter_map(|subject| line(first, second, subject, load, figure)));
        }
        let known = |line: &&Line| line.load == load && line.figure.yes_or_no;
        let counted: Vec<Subject> = lines.iter().filter(known).map(|line| line.subject.clone()).collect();
        let others = subjects.iter().filter(|subject| !counted.contains(subject));
        lines.extend(others.filter_map(|subject| failures(first, second, subject, load)));
    }
    lines
}

fn line(first: &Study, second: &Study, subject: &Subject, load: &str, figure: &Figure) -> Option<Line> {
    let cells = [first, second].map(|study| cell(study, subject, load, figure.name));
    let [old, new] = cells.each_ref().map(|cell| cell.samples.iter().map(|(_, value)| *value).collect::<Vec<f64>>());
    if old.is_empty() && new.is_empty() {
        return None;
    }
    let (ratio, verdict) = if figure.yes_or_no {
        (None, counts(&cells, figure.direction))
    } else {
        (bootstrap::ratio_of_medians(&new, &old), medians(&cells, &old, &new, figure.direction))
    };
    Some(Line { subject: subject.clone(), load: load.to_owned(), figure: *figure, cells, ratio, verdict })
}

/// The counts of runs that ended well, if some did in both results and some failed.
fn failures(first: &Study, second: &Study, subject: &Subject, load: &str) -> Option<Line> {
    let cells = [first, second].map(|study| {
        let mut cell = cell(study, subject, load, ENDED_WELL.name);
        let here = |run: &&RunRecord| run.subject == *subject && run.load == load;
        cell.samples = study.counted().filter(here).map(|run| (run.round, 1.0)).collect();
        cell.estimate = bootstrap::estimate(&vec![1.0; cell.samples.len()]);
        cell
    });
    // If all failed in one, the figures' own lines say so.
    let some = cells.iter().all(|cell| !cell.samples.is_empty());
    let failed = cells.iter().any(|cell| !cell.failures.is_empty());
    let verdict = counts(&cells, ENDED_WELL.direction);
    let line =
        Line { subject: subject.clone(), load: load.to_owned(), figure: ENDED_WELL, cells, ratio: None, verdict };
    (some && failed).then_some(line)
}

/// The verdict where one study has no figure.
fn one_sided(cells: &[Cell; 2]) -> Option<Verdict> {
    match cells.each_ref().map(|cell| (cell.samples.is_empty(), !cell.failures.is_empty())) {
        [(false, _), (false, _)] => None,
        [(true, true), (false, _)] => Some(Verdict::FirstFailed),
        [(false, _), (true, true)] => Some(Verdict::SecondFailed),
        _ => Some(Verdict::Missing),
    }
}

/// The verdict on medians, by the interval of their difference: a median may be zero, and the ratio then says nothing.
fn medians(cells: &[Cell; 2], old: &[f64], new: &[f64], direction: Direction) -> Verdict {
    if let Some(verdict) = one_sided(cells) {
        return verdict;
    }
    match bootstrap::difference_of_medians(new, old) {
        None => Verdict::Missing,
        Some(Estimate { interval: None, .. }) => Verdict::TooFewRuns,
        Some(difference) if !difference.excludes(0.0) => Verdict::NoDifferenceShown,
        Some(difference) => by(difference.median > 0.0, direction),
    }
}

/// The verdict on how many of how many runs, by Fisher's exact test. A run that failed is none of those.
fn counts(cells: &[Cell; 2], direction: Direction) -> Verdict {
    let of = |cell: &Cell| {
        let yes = cell.samples.iter().filter(|(_, value)| *value > 0.5).count() as u64;
        (yes, (cell.samples.len() + cell.failures.len()) as u64 - yes)
    };
    let [(old, old_not), (new, new_not)] = cells.each_ref().map(of);
    if old + old_not == 0 || new + new_not == 0 {
        return Verdict::Missing;
    }
    let chance = fishers_exact(&[old, old_not, new, new_not], Alternative::TwoSided).unwrap_or(1.0);
    if chance <= 1.0 - CONFIDENCE + f64::EPSILON {
        return by(new * (old + old_not) > old * (new + new_not), direction);
    }
    let few = (old + old_not).min(new + new_not) < RUNS_FOR_INTERVAL as u64;
    if few { Verdict::TooFewRuns } else { Verdict::NoDifferenceShown }
}

fn by(is_more: bool, direction: Direction) -> Verdict {
    if is_more == (direction == Direction::Higher) { Verdict::Better } else { Verdict::Worse }
}

/// Differences between the studies' conditions that a reader must know, a sentence each.
pub fn conditions(first: &Study, second: &Study) -> Vec<String> {
    let (one, two) = (&first.head, &second.head);
    let seconds = |study: &Study| {
        study.head.plan.loads.iter().map(|load| load.seconds.to_string()).collect::<Vec<_>>().join(", ")
    };
    let memory = |study: &Study| study.head.host.memory_bytes.map_or("not known".to_owned(), number::memory);
    let optimised = |built: bool| if built { "with" } else { "without" }.to_owned();
    let facts = [
        ("guests", one.plan.guests.to_string(), two.plan.guests.to_string()),
        ("seconds of the loads", seconds(first), seconds(second)),
        ("processor", one.host.cpu_model.clone(), two.host.cpu_model.clone()),
        ("logical processors", one.host.cores.to_string(), two.host.cores.to_string()),
        ("memory", memory(first), memory(second)),
        ("Nicety", one.host.nicety_version.clone(), two.host.nicety_version.clone()),
        ("kernel", one.host.kernel.clone(), two.host.kernel.clone()),
        ("optimisation", optimised(one.optimised), optimised(two.optimised)),
    ];
    let differ = facts.into_iter().filter(|(_, one, two)| one != two);
    differ.map(|(what, one, two)| format!("{what}: {one} in the first, {two} in the second")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::results::tests::head;
    use super::*;
    use crate::methods;
    use crate::plan::Item;
    use crate::record::Taken;

    /// Seven rounds of `vmxnet3` with these throughputs and CPU costs.
    fn study(mbit: [f64; 7], cpu: f64) -> Study {
        let head = head(&Options { adapters: vec!["vmxnet3".to_owned()], ..Options::default() });
        let items = head.plan.items().into_iter().filter(|item| item.load == "stream");
        let ours = items.filter(|item| item.subject == Subject::new("vmxnet3", crate::method::Server::Nicety));
        let run = |(item, mbit): (Item, f64)| {
            let figures = [("mbit".to_owned(), mbit), ("cpu".to_owned(), cpu * mbit / mbit)].into();
            RunRecord::new(&item, Ok(Taken { figures, ..Taken::default() }))
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

    /// Makes the last `count` runs failures.
    fn fail(study: &mut Study, count: usize) {
        let runs = study.runs.len();
        for run in study.runs.iter_mut().skip(runs - count) {
            run.figures.clear();
            run.failure = Some("the guest ended".to_owned());
        }
    }

    #[test]
    fn an_adapter_whose_runs_all_fail_now_is_worse_and_one_that_failed_before_is_better() {
        let before = study([100.0; 7], 1.0);
        // A load is given up after two failures.
        let mut after = before.clone();
        after.runs.truncate(2);
        fail(&mut after, 2);
        assert_eq!(verdicts(&before, &after), [("mbit", Verdict::SecondFailed), ("cpu", Verdict::SecondFailed)]);
        assert_eq!(verdicts(&after, &before), [("mbit", Verdict::FirstFailed), ("cpu", Verdict::FirstFailed)]);
        assert!(Verdict::SecondFailed.is_worse() && !Verdict::FirstFailed.is_worse());
        assert_eq!(verdicts(&after, &after), []);
    }

    #[test]
    fn runs_that_fail_now_and_then_are_counted() {
        let before = study([100.0; 7], 1.0);
        let (mut once, mut often) = (before.clone(), before.clone());
        fail(&mut once, 1);
        fail(&mut often, 5);
        let runs = |first: &Study, second: &Study| verdicts(first, second).last().copied().unwrap();
        assert_eq!(runs(&before, &once), ("runs", Verdict::NoDifferenceShown));
        // 7 of 7 and 2 of 7: C(7, 2) / C(14, 5) on either side, 0.021 together.
        assert_eq!(runs(&before, &often), ("runs", Verdict::Worse));
        assert_eq!(runs(&often, &before), ("runs", Verdict::Better));
    }

    #[test]
    fn a_figure_that_was_zero_has_no_ratio_and_still_a_verdict() {
        let (none, some) = (study([0.0; 7], 1.0), study([5.0; 7], 1.0));
        let of = |first: &Study, second: &Study| {
            let lines = diff(methods::find("vmxnet3-iperf").unwrap(), first, second);
            (lines[0].verdict, lines[0].ratio.map(|ratio| ratio.median))
        };
        assert_eq!(of(&none, &some), (Verdict::Better, None));
        assert_eq!(of(&some, &none), (Verdict::Worse, Some(0.0)));
        assert_eq!(of(&none, &none), (Verdict::NoDifferenceShown, None));
        // Three zeros of seven: some resamples have the median zero.
        let half = study([0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0], 1.0);
        assert_eq!(of(&half, &some).0, Verdict::Better);
    }

    /// Runs of pcnet in `kvm-scp`, of which so many were stable.
    fn copies(stable: usize, runs: usize) -> Study {
        let mut study = study([1.0; 7], 1.0);
        let plan = Options::default().plan(methods::find("kvm-scp").unwrap()).unwrap();
        let subject = Subject::new("pcnet", crate::method::Server::Nicety);
        let load = plan.loads[0].name.clone();
        let item = |round| Item { round, subject: subject.clone(), load: load.clone() };
        let run = |round: usize| {
            let figures = [("stable".to_owned(), f64::from(u8::from(round < stable)))].into();
            RunRecord::new(&item(round as u32), Ok(Taken { figures, ..Taken::default() }))
        };
        study.head.plan = plan.clone();
        study.runs = (0..runs).map(run).collect();
        study
    }

    #[test]
    fn an_adapter_that_was_stable_and_is_not_any_more_is_worse() {
        let verdict = |first: &Study, second: &Study| {
            let lines = diff(methods::find("kvm-scp").unwrap(), first, second);
            assert_eq!(lines.len(), 1, "{lines:?}");
            (lines[0].figure.name, lines[0].verdict)
        };
        let (stable, not) = (copies(10, 10), copies(0, 10));
        assert_eq!(verdict(&stable, &not), ("stable", Verdict::Worse));
        assert_eq!(verdict(&not, &stable), ("stable", Verdict::Better));
        assert_eq!(verdict(&stable, &copies(9, 10)), ("stable", Verdict::NoDifferenceShown));
        assert_eq!(verdict(&stable, &copies(0, 1)), ("stable", Verdict::TooFewRuns));
        // Fisher, The Design of Experiments, II: three of three against none of three is one of twenty.
        assert_eq!(verdict(&copies(3, 3), &copies(0, 2)), ("stable", Verdict::TooFewRuns));
        let mut failed = copies(10, 10);
        fail(&mut failed, 10);
        assert_eq!(verdict(&stable, &failed), ("stable", Verdict::Worse));
    }
}
