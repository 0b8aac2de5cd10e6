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
/// Height of the lines' picture, in the same units as [`WIDE`].
pub const HIGH: f64 = 1000.0;

/// A small chart.
pub struct Panel {
    /// Unique on the page.
    pub id: String,
    /// Its heading, as text.
    pub heading: String,
    /// A description for readers who do not see the picture.
    pub title: String,
    /// Marks of the horizontal axis.
    pub across: Vec<Mark>,
    /// Marks of the vertical axis.
    pub up: Vec<Mark>,
    /// Paths, in the units of the lines' picture.
    pub lines: String,
}

/// A level across a chart, with its name: a link's rate, say.
pub struct Level {
    /// Position on the vertical axis, from 0 to 1. Above 1 it is outside: its name stands at the top, with an arrow and without a line.
    pub place: f64,
    /// Its name.
    pub text: String,
    /// The class of its line.
    pub class: &'static str,
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
        self.with_levels(&[])
    }

    /// Its picture with levels, the highest first.
    pub fn with_levels(&self, levels: &[Level]) -> String {
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
        draw_levels(&mut svg, levels);
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

/// Height of a level's name.
const NAME: f64 = 14.0;

/// Levels, whose names do not cover each other.
fn draw_levels(svg: &mut String, levels: &[Level]) {
    let mut free = TOP;
    for Level { place, text, class } in levels {
        let y = TOP + PLOT * (1.0 - place.clamp(0.0, 1.0));
        let (arrow, is_inside) = if *place > 1.0 { ("↑ ", false) } else { ("", true) };
        if is_inside {
            let _ = write!(svg, "<line class=\"level {class}\" x1=\"0\" x2=\"100%\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>");
        }
        // Above its line where there is room, else below it.
        let top = if y - NAME >= free { y - NAME } else { free.max(y) };
        free = top + NAME;
        let base = (top + 11.0).min(TOP + PLOT - 2.0);
        let text = Escaped(text);
        let _ = write!(svg, "<text class=\"level-name\" x=\"100%\" y=\"{base:.1}\">{arrow}{text}</text>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_levels_stand_apart_and_one_outside_has_an_arrow_and_no_line() {
        let level = |place: f64, text: &str| Level { place, text: text.to_owned(), class: "link" };
        let mut svg = String::new();
        draw_levels(&mut svg, &[level(3.0, "a<b"), level(1.0, "c"), level(0.99, "d"), level(0.2, "e")]);
        assert_eq!(svg.matches("<line").count(), 3);
        assert!(svg.contains(">↑ a&lt;b</text>"), "{svg}");
        let bases: Vec<f64> = svg
            .split("class=\"level-name\"")
            .skip(1)
            .map(|part| part.split("y=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(bases.len(), 4);
        assert!(bases.is_sorted_by(|one, other| other - one >= 13.9), "{bases:?}");
    }
}
