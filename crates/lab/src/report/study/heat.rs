//! A field of cells, coloured by a figure.

use std::fmt::Write as _;

use crate::methods::{Figure, Heat, Method};
use crate::number;
use crate::results::Direction;
use crate::study::Study;
use crate::study::figures;
use crate::subject::Subject;
use nicety_chart::Escaped;

/// The figures are so far apart, by their ratio, that colours follow their logarithms.
const FAR_APART: f64 = 30.0;
/// The strongest colour, in percent: text must stay readable on it.
const STRONGEST: f64 = 62.0;

/// The medians of a chart: each row with its cells.
fn medians<'a>(study: &'a Study, chart: &Heat) -> Vec<(&'a Subject, Vec<Option<f64>>)> {
    let row = |subject: &'a Subject| {
        let median = |(_, load): &(String, String)| {
            figures::cell(study, subject, load, chart.figure).estimate.map(|estimate| estimate.median)
        };
        (subject, chart.loads.iter().map(median).collect::<Vec<_>>())
    };
    // A native link has no adapter at either end: its figure stands in the table below.
    let rows = study.head.plan.subjects.iter().filter(|subject| !subject.is_native()).map(row);
    rows.filter(|(_, cells)| cells.iter().any(Option::is_some)).collect()
}

/// Place of a value between the lowest and the highest: 0 to 1.
fn share(value: f64, low: f64, high: f64) -> f64 {
    let share = if low > 0.0 && high / low > FAR_APART {
        (value / low).ln() / (high / low).ln()
    } else {
        (value - low) / (high - low)
    };
    if share.is_finite() { share.clamp(0.0, 1.0) } else { 1.0 }
}

/// The section of the page. Empty if there is no figure.
pub fn section(study: &Study, method: &dyn Method, chart: &Heat) -> String {
    let figure = method.figures().iter().find(|figure| figure.name == chart.figure);
    let (Some(figure), rows) = (figure, medians(study, chart)) else { return String::new() };
    let all = || rows.iter().flat_map(|(_, cells)| cells.iter().flatten().copied());
    if rows.is_empty() {
        return String::new();
    }
    let (low, high) = (all().fold(f64::MAX, f64::min), all().fold(0.0, f64::max));
    let scale = if low > 0.0 && high / low > FAR_APART { " Colours follow the logarithm." } else { "" };
    let better = if figure.direction == Direction::Higher { "more" } else { "less" };
    let mut out = format!(
        "<section class=\"test\"><header><h3>{}</h3><span>{}, {better} is better</span></header>\n<p class=\"about\">{}{scale}</p>\n\
         <div class=\"scroll\"><table class=\"heat\"><thead><tr><th scope=\"col\">{}</th>",
        Escaped(&chart.title),
        figure.unit,
        Escaped(chart.about),
        chart.rows,
    );
    // Writing to a `String` cannot fail. This function drops the results of `write!` for that reason.
    for (label, _) in &chart.loads {
        let _ = write!(out, "<th scope=\"col\" class=\"n\">{}</th>", Escaped(label));
    }
    out.push_str("</tr></thead><tbody>\n");
    for (subject, cells) in &rows {
        let _ = write!(out, "<tr><th scope=\"row\">{}</th>", Escaped(&subject.adapter));
        for cell in cells {
            let Some(value) = cell else {
                let _ = write!(out, "<td class=\"n\">{}</td>", number::NONE);
                continue;
            };
            let strength = share(*value, low, high) * STRONGEST;
            let _ = write!(out, "<td class=\"n\" style=\"--heat: {strength:.0}%\">{}</td>", number::figure(*value));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div></section>\n");
    out
}

/// The rows of the chart for a terminal, the head first. Empty if there is no figure.
pub fn rows(study: &Study, figure: &Figure, chart: &Heat) -> Vec<Vec<String>> {
    let rows = medians(study, chart);
    if rows.is_empty() {
        return Vec::new();
    }
    let head = [format!("{}, {}", chart.title, figure.unit)].into_iter();
    let head: Vec<String> = head.chain(chart.loads.iter().map(|(label, _)| label.clone())).collect();
    let shown = |cell: &Option<f64>| cell.map_or(number::NONE.to_owned(), number::figure);
    let row = |(subject, cells): &(&Subject, Vec<Option<f64>>)| {
        [format!("  {}", subject.adapter)].into_iter().chain(cells.iter().map(shown)).collect()
    };
    [head].into_iter().chain(rows.iter().map(row)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_cell_is_pale_the_highest_strong_and_far_figures_are_told_apart() {
        assert_eq!((share(10.0, 10.0, 110.0), share(60.0, 10.0, 110.0), share(110.0, 10.0, 110.0)), (0.0, 0.5, 1.0));
        let middle = share(100.0, 1.0, 10_000.0);
        assert!((middle - 0.5).abs() < 1e-9, "{middle}");
        assert_eq!(share(5.0, 5.0, 5.0), 1.0, "one figure alone");
    }
}
