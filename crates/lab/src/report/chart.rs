//! A chart per test, as inline SVG: a line for each adapter and server, with the adapter's name on the left. A bar ends at the median,
//! with the figure beside its end. A strip below each bar shows the 95 % interval as a bracket and every sample as a dot.
//!
//! If medians lie too far apart for bars, the scale is logarithmic and a tick marks the median: a bar's length would mean nothing.
//!
//! Lengths along a bar are percentages of the chart's width; all others are pixels. So a chart is as wide as its column, and its text
//! has the same size on a telephone and in print. Colours come from the page's style sheet.

use std::fmt::Write as _;

use crate::method::Server;
use crate::results::{Direction, Results, Row, Test};
use nicety_chart::Escaped;
use nicety_chart::Scale;

/// End of the longest bar or dot, in percent of the chart's width. The rest is for the figure beside it.
const REACH: f64 = 80.0;
/// Height of a bar, and of the figure beside it, which must not cover the strip below.
const BAR: f64 = 9.0;
/// Height of the strip with interval and dots, below each bar.
const STRIP: f64 = 7.0;
const BETWEEN_ROWS: f64 = 1.0;
const BETWEEN_GROUPS: f64 = 4.0;
const TOP: f64 = 4.0;
const AXIS: f64 = 20.0;
/// Width of a letter of the names, at most, and of the widest column of names.
const LETTER: f64 = 8.0;
const NAMES_MAX: f64 = 210.0;

/// The scale of `test`'s chart.
pub(super) fn scale(results: &Results, test: Test) -> Scale {
    let rows = || results.rows.iter().filter(|row| row.test == test);
    let medians: Vec<f64> = rows().filter_map(|row| row.median).collect();
    let samples: Vec<f64> = rows().flat_map(|row| row.samples.iter()).map(|sample| sample.value).collect();
    Scale::of(&medians, &samples)
}

/// Height of each chart of these results, in pixels.
pub(super) fn height(results: &Results) -> f64 {
    bottom(results) + AXIS
}

fn row_height() -> f64 {
    BAR + STRIP + BETWEEN_ROWS
}

fn bottom(results: &Results) -> f64 {
    let group = results.servers().len() as f64 * row_height() + BETWEEN_GROUPS;
    TOP + results.adapters().len() as f64 * group
}

/// The chart of `test`.
pub(super) fn chart(results: &Results, test: Test) -> String {
    let (adapters, servers) = (results.adapters(), results.servers());
    let group = servers.len() as f64 * row_height() + BETWEEN_GROUPS;
    let (scale, bottom) = (scale(results, test), bottom(results));
    let longest = adapters.iter().flat_map(|adapter| name(results, adapter)).map(|line| line.chars().count()).max();
    let longest = longest.unwrap_or(0);
    let names = (longest as f64 * LETTER + 12.0).min(NAMES_MAX);
    let id = test.name();
    let mut svg = String::new();
    // Writing to a `String` cannot fail. This file drops the results of `write!` for that reason.
    let _ = write!(
        svg,
        "<svg class=\"chart bars\" style=\"--names: {names:.0}px\" height=\"{:.0}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\
         <title id=\"{id}-t\">{}, {}</title><desc id=\"{id}-d\">{}</desc>",
        bottom + AXIS,
        test.title(),
        test.unit(),
        Escaped(&description(results, test, &scale)),
    );
    axis(&mut svg, &scale, bottom);
    for (index, adapter) in adapters.iter().enumerate() {
        let top = TOP + index as f64 * group;
        for (number, line) in name(results, adapter).iter().enumerate() {
            let (class, y) =
                (if number == 0 { "name" } else { "name driver" }, top + BAR + number as f64 * row_height());
            let _ = write!(svg, "<text class=\"{class}\" x=\"-8\" y=\"{y:.1}\">{}</text>", Escaped(line));
        }
        let last = top + group - BETWEEN_GROUPS;
        let _ = write!(svg, "<line class=\"base\" x1=\"0\" x2=\"0\" y1=\"{top:.1}\" y2=\"{last:.1}\"/>");
        for (place, server) in servers.iter().enumerate() {
            if let Some(figures) = results.row(adapter, test, *server) {
                row(&mut svg, figures, &scale, top + place as f64 * row_height());
            }
        }
    }
    svg + "</svg>"
}

/// The lines of an adapter's name: its driver has one of its own where the adapter has several rows.
fn name(results: &Results, adapter: &str) -> Vec<String> {
    let heading = results.heading(adapter);
    match heading.split_once(", ").filter(|_| results.servers().len() > 1) {
        Some((adapter, driver)) => vec![adapter.to_owned(), driver.to_owned()],
        None => vec![heading],
    }
}

/// Description for a person who cannot see the chart. The table beside it has the figures.
fn description(results: &Results, test: Test, scale: &Scale) -> String {
    let better = match test.direction() {
        Direction::Higher => "more is better",
        Direction::Lower => "less is better",
    };
    let marks = if scale.is_logarithmic() { "Ticks on a logarithmic scale" } else { "Horizontal bars from zero" };
    let names = results.adapters().join(", ");
    let intervals = if results.rows.iter().any(|row| row.interval.is_some()) { "95 % intervals and " } else { "" };
    format!("{marks}, {better}, for {names}, with {intervals}every sample. The table has the figures.")
}

/// Position along the chart in percent of its width.
fn x(scale: &Scale, value: f64) -> f64 {
    scale.at(value) * REACH
}

fn axis(svg: &mut String, scale: &Scale, bottom: f64) {
    for (place, text) in scale.marks() {
        let (x, is_first) = (place * REACH, place == 0.0);
        if !is_first {
            let _ = write!(svg, "<line class=\"grid\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"{TOP}\" y2=\"{bottom:.1}\"/>");
        }
        let class = if is_first { "tick first" } else { "tick" };
        let _ = write!(svg, "<text class=\"{class}\" x=\"{x:.2}%\" y=\"{:.1}\">{text}</text>", bottom + 14.0);
    }
}

/// The class that colours a server's bar.
pub(super) fn class(server: Server) -> &'static str {
    match server {
        Server::Nicety => "ours",
        Server::NicetyStream => "linked",
        Server::Qemu => "theirs",
    }
}

fn row(svg: &mut String, row: &Row, scale: &Scale, y: f64) {
    let baseline = y + BAR;
    let Some(median) = row.median else {
        let _ = write!(svg, "<text class=\"none\" x=\"8\" y=\"{baseline:.1}\">no figure</text>");
        return;
    };
    let end = x(scale, median);
    let _ = write!(svg, "<g class=\"{}\">", class(row.server));
    if scale.is_logarithmic() {
        let middle = y + BAR / 2.0;
        let _ = write!(
            svg,
            "<line class=\"lead\" x1=\"0\" x2=\"{end:.2}%\" y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>\
             <line class=\"median\" x1=\"{end:.2}%\" x2=\"{end:.2}%\" y1=\"{y:.1}\" y2=\"{:.1}\"/>",
            y + BAR
        );
    } else {
        let _ = write!(svg, "<rect class=\"bar\" x=\"0\" y=\"{y:.1}\" width=\"{end:.2}%\" height=\"{BAR}\"/>");
    }
    strip(svg, row, scale, y + BAR);
    let _ = write!(
        svg,
        "<text class=\"value\" x=\"{end:.2}%\" dx=\"7\" y=\"{baseline:.1}\">{}</text></g>",
        row.shown().unwrap_or_default()
    );
}

/// Draws the interval and the samples in a strip below the bar, where the bar does not hide them.
fn strip(svg: &mut String, row: &Row, scale: &Scale, top: f64) {
    let middle = top + STRIP / 2.0;
    if let Some(interval) = &row.interval {
        let (low, high) = (x(scale, interval.low), x(scale, interval.high));
        for (from, to, above, below) in [
            (low, high, middle, middle),
            (low, low, middle - 3.0, middle + 3.0),
            (high, high, middle - 3.0, middle + 3.0),
        ] {
            let _ = write!(
                svg,
                "<line class=\"whisker\" x1=\"{from:.2}%\" x2=\"{to:.2}%\" y1=\"{above:.1}\" y2=\"{below:.1}\"/>"
            );
        }
    }
    for (index, sample) in row.samples.iter().enumerate() {
        // Dots are spread over the strip's height in the order of runs, so they do not hide each other, and drift shows.
        let place = (index as f64 + 0.5) / row.samples.len().max(1) as f64;
        let _ = write!(
            svg,
            "<circle class=\"dot\" cx=\"{:.2}%\" cy=\"{:.1}\" r=\"2\"/>",
            x(scale, sample.value),
            top + 2.0 + place * (STRIP - 4.0)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::sample;

    #[test]
    fn a_chart_has_a_bar_and_a_bracket_per_row_and_a_dot_per_sample() {
        let svg = chart(&sample::two_servers(), Test::BulkTransmit);
        for (part, times) in
            [("class=\"bar\"", 4), ("class=\"whisker\"", 12), ("class=\"dot\"", 28), ("<title", 1), ("<desc", 1)]
        {
            assert_eq!(svg.matches(part).count(), times, "{part}");
        }
        let quick = chart(&sample::quick(), Test::BulkTransmit);
        assert_eq!(quick.matches("class=\"whisker\"").count(), 0);
        let absent = chart(&sample::two_servers(), Test::ReadsPerFrame);
        assert_eq!(absent.matches("no figure").count(), 2);
    }

    #[test]
    fn figures_too_far_apart_for_bars_are_ticks_on_a_logarithmic_scale() {
        let mut results = sample::two_servers();
        for row in results.rows.iter_mut().filter(|row| row.adapter == "e1000") {
            row.samples.iter_mut().for_each(|sample| sample.value /= 1_000.0);
            row.median = row.median.map(|median| median / 1_000.0);
        }
        let svg = chart(&results, Test::BulkTransmit);
        for (part, times) in [("class=\"bar\"", 0), ("class=\"median\"", 4), ("class=\"dot\"", 28)] {
            assert_eq!(svg.matches(part).count(), times, "{part}");
        }
        assert!(svg.contains("Ticks on a logarithmic scale") && svg.contains(">1000</text>"), "{svg}");
    }

    #[test]
    fn a_figure_stands_beside_its_bars_end_however_far_an_outlier_lies() {
        let mut results = sample::two_servers();
        let row = results.rows.iter_mut().find(|row| row.test == Test::BulkTransmit).unwrap();
        row.samples[3].value = 100_000.0;
        let svg = chart(&results, Test::BulkTransmit);
        let after = |part: &str, key: &str| {
            let (_, rest) = svg.split_once(part).unwrap();
            let (_, value) = rest.split_once(&format!("{key}=\"")).unwrap();
            value.split_once('%').unwrap().0.parse::<f64>().unwrap()
        };
        let (bar, label) = (after("class=\"bar\"", "width"), after("class=\"value\"", " x"));
        assert!(bar == label && label < 2.0, "the bar ends at {bar} %, its figure begins at {label} %");
    }
}
