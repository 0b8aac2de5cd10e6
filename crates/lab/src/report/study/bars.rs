//! A bar for each row, with a dot for each run and the interval's whisker. The name stands above its bar, so that a phone has room.

use std::fmt::Write as _;

use crate::method::Server;
use crate::methods::{Figure, Ratios};
use crate::number;
use crate::statistics::Estimate;
use crate::study::figures::{self, Cell};
use crate::subject::Subject;
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
            Some(_) => figures::value(cell, figure),
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
            let (drawn, beyond): (Vec<f64>, Vec<f64>) =
                cell.samples.iter().map(|(_, sample)| *sample).partition(|sample| *sample <= most);
            for sample in drawn {
                let _ =
                    write!(out, "<circle class=\"dot\" cx=\"{:.2}%\" cy=\"{middle:.1}\" r=\"2.6\"/>", percent(sample));
            }
            if !beyond.is_empty() {
                let runs = if beyond.len() == 1 { "1 run".to_owned() } else { format!("{} runs", beyond.len()) };
                let y = bar + 11.0;
                let _ =
                    write!(out, "<text class=\"none last\" x=\"100%\" y=\"{y:.1}\">{runs} beyond this scale</text>");
            }
            if let Some(interval) = of.interval {
                let (low, high, below) = (percent(interval.low), percent(interval.high.min(most)), bar + BAR + 3.0);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Direction;

    fn cell(subject: Subject, samples: &[f64]) -> Cell {
        let estimate = Estimate::of(samples);
        let samples = (0..).zip(samples.iter().copied()).collect();
        Cell { subject, samples, estimate, failures: Vec::new(), marks: Vec::new(), loaded: false }
    }

    #[test]
    fn a_run_beyond_the_scale_is_counted_and_not_drawn_outside_the_chart() {
        let figure = method_figure();
        let ours = cell(Subject::new("vmxnet3", Server::Nicety), &[80.0, 90.0, 100.0]);
        let chart = bars(&[ours.clone(), cell(Subject::native(), &[70.0, 95.0, 400.0])], &figure);
        assert_eq!(chart.matches("<circle").count(), 5, "{chart}");
        assert!(chart.contains(">1 run beyond this scale<") && !chart.contains("400.00%"), "{chart}");
        let far = bars(&[ours, cell(Subject::native(), &[300.0, 350.0, 400.0])], &figure);
        assert_eq!((far.matches("<circle").count(), far.matches(">beyond this scale<").count()), (3, 1), "{far}");
    }

    fn method_figure() -> Figure {
        Figure { name: "mbit", title: "Throughput", unit: "Mbit/s", direction: Direction::Higher, yes_or_no: false }
    }
}
