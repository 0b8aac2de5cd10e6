//! A bar for each row, with a dot for each run and the interval's whisker. The name stands above its bar, so that a phone has room.

use std::fmt::Write as _;

use super::super::html::Escaped;
use crate::method::Server;
use crate::methods::Figure;
use crate::number;
use crate::study::figures::Cell;

/// Height of a row, and of its bar, in pixels.
const ROW: f64 = 42.0;
const BAR: f64 = 14.0;

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
        let class = match cell.subject.server {
            Some(Server::Nicety) => "ours",
            Some(Server::NicetyStream) => "linked",
            Some(Server::Qemu) | None => "theirs",
        };
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
