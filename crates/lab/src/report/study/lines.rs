//! Several rates over time: a picture for each row, with a line for each rate, from one of its runs.

use std::fmt::Write as _;

use nicety_chart::{Escaped, Linear, Mark, Panel};

use super::super::panels::stairs;
use crate::methods::Lines;
use crate::record::RunRecord;
use crate::study::Study;
use crate::subject::Subject;

/// The section of the page. Empty if no run has lines.
pub fn section(study: &Study, chart: &Lines) -> String {
    let pictures = study.head.plan.subjects.iter().enumerate();
    let pictures: String = pictures.filter_map(|(number, subject)| picture(study, chart, subject, number)).collect();
    if pictures.is_empty() {
        return pictures;
    }
    let mut out = format!(
        "<section class=\"test\"><header><h3>{}</h3><span>{}</span></header>\n<p class=\"about\">{}</p>\n<p class=\"key\">",
        Escaped(&chart.title),
        chart.unit,
        Escaped(chart.about),
    );
    // Writing to a `String` cannot fail. This file drops the results of `write!` for that reason.
    for (number, (title, _)) in chart.lines.iter().enumerate() {
        let _ = write!(out, "<span><i class=\"part{number}\"></i>{}</span>", Escaped(title));
    }
    let _ = writeln!(out, "</p>\n<div class=\"panels\">{pictures}</div></section>");
    out
}

/// The last counted run of a row that has lines.
fn picture(study: &Study, chart: &Lines, subject: &Subject, number: usize) -> Option<String> {
    let of = |run: &&RunRecord| run.subject == *subject && run.load == chart.load && !run.lines.is_empty();
    let run = study.counted().filter(of).last()?;
    let known = || chart.lines.iter().filter_map(|(_, name)| run.lines.get(*name));
    let points = || known().flat_map(|series| series.points());
    let time = Linear::up_to(points().map(|(_, end, _)| end).fold(0.0, f64::max));
    let rate = Linear::up_to(points().map(|(_, _, value)| value).fold(0.0, f64::max));
    let mut lines = String::new();
    for (number, (title, name)) in chart.lines.iter().enumerate() {
        let path = stairs(run.lines.get(*name), &time, &rate);
        if !path.is_empty() {
            let _ =
                write!(lines, "<path class=\"run part{number}\" d=\"{path}\"><title>{}</title></path>", Escaped(title));
        }
    }
    let seconds = |(number, (place, text)): (usize, Mark)| (place, if number == 0 { text + " s" } else { text });
    let panel = Panel {
        id: format!("{}-lines-{number}", chart.load),
        heading: subject.to_string(),
        title: format!("{subject}, round {}: {} over time", run.round.saturating_add(1), chart.unit),
        across: time.marks().into_iter().enumerate().map(seconds).collect(),
        up: rate.marks(),
        lines,
    };
    Some(panel.svg())
}
