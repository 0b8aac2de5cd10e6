//! Each run of a load: its rate over time, and the distribution of its latencies, a small chart for each row.

use std::fmt::Write as _;

use super::super::panels::{MARKS, across, latency, middle, path, stairs};
use super::bars::class;
use crate::bench::Percentile;
use crate::methods::Table;
use crate::record::RunRecord;
use crate::study::Study;
use crate::subject::Subject;
use nicety_chart::{Decades, Linear, Mark, Panel};

/// The rate over time of a load's runs. Empty if none has more than one point.
pub fn over_time(study: &Study, table: &Table, unit: &str) -> String {
    let panel = |(number, subject): (usize, &Subject)| {
        let runs = runs(study, subject, &table.load);
        let points = || runs.iter().filter_map(|run| run.series.as_ref()).flat_map(|series| series.points());
        if points().count() <= runs.len() {
            return None;
        }
        let time = Linear::up_to(points().map(|(_, end, _)| end).fold(0.0, f64::max));
        let rate = Linear::up_to(points().map(|(_, _, value)| value).fold(0.0, f64::max));
        let line = |run: &&RunRecord| line(run, &stairs(run.series.as_ref(), &time, &rate));
        let seconds = |(number, (place, text)): (usize, Mark)| (place, if number == 0 { text + " s" } else { text });
        Some(Panel {
            id: format!("{}-time-{number}", table.load),
            heading: subject.to_string(),
            title: format!("{subject} over time, {unit}: {} runs", runs.len()),
            across: time.marks().into_iter().enumerate().map(seconds).collect(),
            up: rate.marks(),
            lines: runs.iter().map(line).collect(),
        })
    };
    let about = format!("Each line is a run: {unit}, over its seconds. Each picture has its own scale.");
    section("Over time", &about, study.head.plan.subjects.iter().enumerate().filter_map(panel))
}

/// The distribution of a load's latencies. Empty if no run has any.
pub fn latencies(study: &Study, load: &str) -> String {
    let panel = |(number, subject): (usize, &Subject)| {
        let runs = runs(study, subject, load);
        let of: Vec<&[Percentile]> = runs.iter().filter_map(|run| run.latency.as_deref()).collect();
        let all = || of.iter().flat_map(|known| known.iter().map(|known| known.us)).filter(|us| *us > 0.0);
        all().next()?;
        let scale = Decades::over(all().fold(f64::MAX, f64::min), all().fold(0.0, f64::max));
        let with = runs.iter().filter(|run| run.latency.is_some());
        let mut lines: String =
            with.map(|run| line(run, &path(&scale, run.latency.as_deref().unwrap_or_default()))).collect();
        // Writing to a `String` cannot fail.
        let _ = write!(lines, "<path class=\"run middle {}\" d=\"{}\"/>", class(subject), path(&scale, &middle(&of)));
        Some(Panel {
            id: format!("{load}-latency-{number}"),
            heading: subject.to_string(),
            title: format!("{subject}, latency by percentile: {} runs", of.len()),
            across: MARKS.iter().map(|(percent, text)| (across(*percent), (*text).to_owned())).collect(),
            up: scale.steps().into_iter().map(|us| (scale.at(us), latency(us))).collect(),
            lines,
        })
    };
    let about = "At 99 % is the time within which 99 of 100 exchanges were answered, at the right end the longest of all. Thin lines are \
                 runs, the thick one is their median.";
    section("Latencies", about, study.head.plan.subjects.iter().enumerate().filter_map(panel))
}

fn section(title: &str, about: &str, panels: impl Iterator<Item = Panel>) -> String {
    let panels: String = panels.map(|panel| panel.svg()).collect();
    if panels.is_empty() {
        return panels;
    }
    format!(
        "<div class=\"over-time\"><h4>{title}</h4>\n<p class=\"about\">{about}</p>\n<div class=\"panels\">{panels}</div></div>\n"
    )
}

fn runs<'a>(study: &'a Study, subject: &Subject, load: &str) -> Vec<&'a RunRecord> {
    study.counted().filter(|run| run.subject == *subject && run.load == load).collect()
}

fn line(run: &RunRecord, path: &str) -> String {
    format!(
        "<path class=\"run {}\" d=\"{path}\"><title>round {}</title></path>",
        class(&run.subject),
        run.round.saturating_add(1)
    )
}
