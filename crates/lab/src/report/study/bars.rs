//! A bar for each row, with a dot for each run and the interval's whisker. The name stands above its bar, so that a phone has room.

use std::fmt::Write as _;

use crate::method::Server;
use crate::methods::{Figure, Ratios, Subject};
use crate::number;
use crate::statistics::Estimate;
use crate::study::figures::Cell;
use nicety_chart::Escaped;

/// Height of a row, and of its bar, in pixels.
pub const ROW: f64 = 42.0;
pub const BAR: f64 = 14.0;

/// The colour of a row, as a class of the style sheet.
pub fn class(subject: &Subject) -> &'static str {
    match subject.server {
        Some(Server::Nicety) => "ours",
        Some(Server::NicetyStream) => "linked",
        Some(Server::Qemu) | None => "theirs",
    }
}

/// The chart of these cells. All bars begin at zero. What has no virtual machine may be far beyond the others, and sets no scale.
pub fn bars(cells: &[Cell], figure: &Figure) -> String {
    let scaling = || cells.iter().filter(|cell| !cell.subject.is_native());
    let most = scaling().flat_map(|cell| cell.samples.iter().map(|(_, value)| *value)).fold(0.0, f64::max);
    let most =
        scaling().filter_map(|cell| cell.estimate?.interval).fold(most, |most, interval| most.max(interval.high));
    let height = ROW * cells.len() as f64;
    let mut out =
        format!("<svg class=\"chart\" height=\"{height}\" role=\"img\" aria-label=\"{}\">", Escaped(figure.title));
    let percent = |value: f64| if most > 0.0 { value / most * 100.0 } else { 0.0 };
    for (number, cell) in cells.iter().enumerate() {
        let top = ROW * number as f64;
        let class = class(&cell.subject);
        let value = match cell.estimate {
            Some(of) => number::estimate(of.median, of.interval.as_ref()),
            None => "no figure".to_owned(),
        };
        // Writing to a `String` cannot fail.
        let _ = write!(
            out,
            "<g class=\"{class}\"><text class=\"name first\" x=\"0\" y=\"{y:.1}\">{}</text><text class=\"value last\" x=\"100%\" y=\"{y:.1}\">{value}</text>",
            Escaped(&cell.subject.to_string()),
            y = top + 14.0,
        );
        let (bar, middle) = (top + 20.0, top + 20.0 + BAR / 2.0);
        if cell.estimate.is_some_and(|of| of.median > most) {
            let _ = write!(out, "<text class=\"none\" x=\"0\" y=\"{:.1}\">beyond this scale</text>", bar + 11.0);
        } else if let Some(of) = cell.estimate {
            let _ = write!(
                out,
                "<rect class=\"bar\" x=\"0\" y=\"{bar:.1}\" width=\"{:.2}%\" height=\"{BAR}\"/>",
                percent(of.median)
            );
            for (_, sample) in &cell.samples {
                let _ =
                    write!(out, "<circle class=\"dot\" cx=\"{:.2}%\" cy=\"{middle:.1}\" r=\"2.6\"/>", percent(*sample));
            }
            if let Some(interval) = of.interval {
                let (low, high, below) = (percent(interval.low), percent(interval.high), bar + BAR + 3.0);
                let _ = write!(
                    out,
                    "<line class=\"whisker\" x1=\"{low:.2}%\" x2=\"{high:.2}%\" y1=\"{below:.1}\" y2=\"{below:.1}\"/>"
                );
            }
        }
        out.push_str("</g>");
    }
    out.push_str("</svg>");
    out
}

/// Bars of ratios, those of a load under each other, with a line at 1.
pub fn ratios(loads: &[(&String, Vec<Option<Estimate>>)], chart: &Ratios) -> String {
    let all = loads.iter().flat_map(|(_, ratios)| ratios.iter().flatten());
    let most = all.map(|ratio| ratio.interval.map_or(ratio.median, |interval| interval.high)).fold(1.0, f64::max);
    let row = 20.0 + chart.figures.len() as f64 * (BAR + 4.0) + 6.0;
    let height = row * loads.len() as f64;
    // The last fifth is for the figures.
    let percent = |value: f64| value / most * 80.0;
    let one = percent(1.0);
    let mut out =
        format!("<svg class=\"chart\" height=\"{height}\" role=\"img\" aria-label=\"{}\">", Escaped(&chart.title));
    for (number, (label, ratios)) in loads.iter().enumerate() {
        let top = row * number as f64;
        // Writing to a `String` cannot fail.
        let _ = write!(out, "<text class=\"name first\" x=\"0\" y=\"{:.1}\">{}</text>", top + 14.0, Escaped(label));
        for (index, (ratio, (title, _))) in ratios.iter().zip(chart.figures).enumerate() {
            let bar = top + 20.0 + index as f64 * (BAR + 4.0);
            let class = if index == 0 { "ours" } else { "theirs" };
            let (text, y) = (ratio.as_ref().map_or(number::NONE.to_owned(), number::ratio), bar + 11.0);
            let _ = write!(out, "<g class=\"{class}\">");
            if let Some(ratio) = ratio {
                let width = percent(ratio.median);
                let _ =
                    write!(out, "<rect class=\"bar\" x=\"0\" y=\"{bar:.1}\" width=\"{width:.2}%\" height=\"{BAR}\"/>");
                if let Some(interval) = ratio.interval {
                    let (low, high, middle) = (percent(interval.low), percent(interval.high), bar + BAR / 2.0);
                    let _ = write!(
                        out,
                        "<line class=\"whisker\" x1=\"{low:.2}%\" x2=\"{high:.2}%\" y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>"
                    );
                }
            }
            let _ = write!(out, "<text class=\"value last\" x=\"100%\" y=\"{y:.1}\">{title} {text}</text></g>");
        }
    }
    let _ = write!(out, "<line class=\"base\" x1=\"{one:.2}%\" x2=\"{one:.2}%\" y1=\"0\" y2=\"{height}\"/></svg>");
    out
}
