//! A small chart of lines.
//!
//! Lines lie in a picture of their own, which is stretched to the column. Text and grid are outside it, in pixels, and are not stretched.

use std::fmt::Write as _;

use crate::html::Escaped;
use crate::scale::{Linear, Mark};

const TOP: f64 = 8.0;
const PLOT: f64 = 120.0;
const AXIS: f64 = 22.0;
/// Size of the lines' picture in its own units. Any size works, because the picture is stretched.
pub const WIDE: f64 = 1000.0;
/// As [`WIDE`], upward.
pub const HIGH: f64 = 1000.0;

/// A small chart.
pub struct Panel {
    /// Unique on the page.
    pub id: String,
    /// Its heading, as text.
    pub heading: String,
    /// What it shows, for readers who do not see it.
    pub title: String,
    /// Marks of the horizontal axis.
    pub across: Vec<Mark>,
    /// Marks of the vertical axis.
    pub up: Vec<Mark>,
    /// Paths, in the units of the lines' picture.
    pub lines: String,
}

/// Values as steps: each holds from its begin to its end.
pub fn stairs(points: impl Iterator<Item = (f64, f64, f64)>, time: &Linear, rate: &Linear) -> String {
    let mut path = String::new();
    for (begin, end, value) in points {
        let (from, to) = (begin / time.top * WIDE, end / time.top * WIDE);
        let up = HIGH - value / rate.top * HIGH;
        let lead = if path.is_empty() { format!("M{from:.0} {up:.0}") } else { format!("V{up:.0}") };
        let _ = write!(path, "{lead}H{to:.0}");
    }
    path
}

impl Panel {
    /// Its picture.
    pub fn svg(&self) -> String {
        let Panel { id, heading, title, across, up, lines } = self;
        let (heading, title) = (Escaped(heading), Escaped(title));
        let mut svg = format!(
            "<figure class=\"panel\"><figcaption>{heading}</figcaption><svg class=\"chart\" height=\"{:.0}\" role=\"img\" aria-labelledby=\"{id}\">\
             <title id=\"{id}\">{title}</title>",
            TOP + PLOT + AXIS
        );
        for (place, _) in up {
            let y = TOP + PLOT * (1.0 - place);
            let _ = write!(svg, "<line class=\"grid\" x1=\"0\" x2=\"100%\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>");
        }
        let _ = write!(
            svg,
            "<svg class=\"lines\" y=\"{TOP}\" width=\"100%\" height=\"{PLOT}\" viewBox=\"0 0 {WIDE} {HIGH}\" preserveAspectRatio=\"none\">{lines}</svg>"
        );
        for (place, text) in up {
            let y = TOP + PLOT * (1.0 - place) + 4.0;
            let _ = write!(svg, "<text class=\"tick last\" x=\"-6\" y=\"{y:.1}\">{text}</text>");
        }
        for (place, text) in across {
            let class = match *place {
                at if at < 0.04 => "tick first",
                at if at > 0.96 => "tick last",
                _ => "tick",
            };
            let (x, y) = (place * 100.0, TOP + PLOT + 16.0);
            let _ = write!(svg, "<text class=\"{class}\" x=\"{x:.2}%\" y=\"{y:.1}\">{text}</text>");
        }
        svg + "</svg></figure>\n"
    }
}
