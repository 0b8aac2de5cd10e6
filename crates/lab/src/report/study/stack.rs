//! A bar for each row, made of parts, with a mark at the measured whole.

use std::fmt::Write as _;

use super::bars::{BAR, ROW};
use crate::methods::Stack;
use crate::number;
use crate::study::Study;
use crate::study::figures;
use crate::subject::Subject;
use nicety_chart::Escaped;

/// Share of the width, in percent, that the longest bar takes.
const WIDTH: f64 = 100.0;

/// The medians of a row.
struct Row<'a> {
    subject: &'a Subject,
    parts: Vec<f64>,
    whole: Option<f64>,
}

impl Row<'_> {
    fn sum(&self) -> f64 {
        self.parts.iter().sum()
    }
}

/// The section of the page. Empty if no row has a figure.
pub fn section(study: &Study, chart: &Stack) -> String {
    let median = |subject: &Subject, figure: &str| {
        figures::cell(study, subject, &chart.load, figure).estimate.map(|estimate| estimate.median)
    };
    let row = |subject| {
        let parts: Vec<f64> = chart.parts.iter().map(|(_, name)| median(subject, name).unwrap_or(0.0)).collect();
        let whole = median(subject, chart.whole.1);
        let parts = fitted(parts, whole);
        (whole.is_some() || parts.iter().any(|part| *part > 0.0)).then_some(Row { subject, parts, whole })
    };
    let rows: Vec<Row<'_>> = study.head.plan.subjects.iter().filter_map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let mut out = format!(
        "<section class=\"test\"><header><h3>{}</h3><span>{}, less is better</span></header>\n<p class=\"about\">{}</p>\n<p class=\"key\">",
        Escaped(&chart.title),
        chart.unit,
        Escaped(chart.about),
    );
    // Writing to a `String` cannot fail. This file drops the results of `write!` for that reason.
    for (number, (title, _)) in chart.parts.iter().enumerate() {
        let _ = write!(out, "<span><i class=\"part{number}\"></i>{title}</span>");
    }
    let _ = writeln!(out, "<span>│ {}</span></p>", chart.whole.0);
    let _ = writeln!(out, "<figure>{}</figure>", bars(&rows, chart));
    out.push_str("<div class=\"scroll\"><table><thead><tr><th scope=\"col\">Adapter</th>");
    for (title, _) in chart.parts.iter().chain([&chart.whole]) {
        let _ = write!(out, "<th scope=\"col\" class=\"n\">{title} <span class=\"unit\">{}</span></th>", chart.unit);
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in &rows {
        let _ = write!(out, "<tr><th scope=\"row\">{}</th>", Escaped(&row.subject.adapter));
        for part in &row.parts {
            let _ = write!(out, "<td class=\"n\">{}</td>", number::figure(*part));
        }
        let whole = row.whole.map_or(number::NONE.to_owned(), number::figure);
        let _ = writeln!(out, "<td class=\"n\">{whole}</td></tr>");
    }
    out.push_str("</tbody></table></div></section>\n");
    out
}

/// The medians of parts may be of different runs, so that their sum is not the whole's median: they are fitted to it in proportion.
fn fitted(parts: Vec<f64>, whole: Option<f64>) -> Vec<f64> {
    let sum: f64 = parts.iter().sum();
    match whole.filter(|_| sum > 0.0) {
        Some(whole) => parts.into_iter().map(|part| part * whole / sum).collect(),
        None => parts,
    }
}

fn bars(rows: &[Row<'_>], chart: &Stack) -> String {
    // A row that is far beyond the second sets no scale: the others would be invisible.
    let mut lengths: Vec<f64> = rows.iter().map(|row| row.sum().max(row.whole.unwrap_or(0.0))).collect();
    lengths.sort_by(|a, b| b.total_cmp(a));
    let most = match lengths.as_slice() {
        [first, second, ..] if *first > 4.0 * *second => *second,
        [first, ..] => *first,
        [] => 0.0,
    };
    let percent = |value: f64| if most > 0.0 { value / most * WIDTH } else { 0.0 };
    let height = ROW * rows.len() as f64;
    let mut out =
        format!("<svg class=\"chart\" height=\"{height}\" role=\"img\" aria-label=\"{}\">", Escaped(&chart.title));
    for (number, row) in rows.iter().enumerate() {
        let top = ROW * number as f64;
        let value = row.whole.map_or(number::NONE.to_owned(), number::figure);
        let _ = write!(
            out,
            "<text class=\"name first\" x=\"0\" y=\"{y:.1}\">{}</text><text class=\"value last\" x=\"100%\" y=\"{y:.1}\">{value}</text>",
            Escaped(&row.subject.adapter),
            y = top + 14.0,
        );
        let bar = top + 20.0;
        if row.sum().max(row.whole.unwrap_or(0.0)) > most {
            let _ = write!(out, "<text class=\"none\" x=\"0\" y=\"{:.1}\">beyond this scale</text>", bar + 11.0);
            continue;
        }
        let mut begin = 0.0;
        for (number, (part, (title, _))) in row.parts.iter().zip(chart.parts).enumerate() {
            let _ = write!(
                out,
                "<rect class=\"bar part{number}\" x=\"{:.2}%\" y=\"{bar:.1}\" width=\"{:.2}%\" height=\"{BAR}\"><title>{title}: {} {}</title></rect>",
                percent(begin),
                percent(*part),
                number::figure(*part),
                chart.unit,
            );
            begin += part;
        }
        if let Some(whole) = row.whole.map(percent) {
            let (above, below) = (bar - 3.0, bar + BAR + 3.0);
            let _ = write!(
                out,
                "<line class=\"whole\" x1=\"{whole:.2}%\" x2=\"{whole:.2}%\" y1=\"{above:.1}\" y2=\"{below:.1}\"/>"
            );
        }
    }
    out.push_str("</svg>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_of_medians_is_as_high_as_the_median_of_the_whole() {
        assert_eq!(fitted(vec![30.0, 20.0, 0.0], Some(40.0)), [24.0, 16.0, 0.0]);
        assert_eq!(fitted(vec![0.0, 0.0], Some(40.0)), [0.0, 0.0]);
        assert_eq!(fitted(vec![3.0], None), [3.0]);
    }
}
