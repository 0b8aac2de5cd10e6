//! A chart per test, as inline SVG: adapters as groups, servers as bars below each other. A bar ends at the median, with the figure
//! beside its end. A strip below each bar shows the 95 % interval as a bracket and every sample as a dot.
//!
//! Lengths along a bar are percentages of the chart's width; all others are pixels. So a chart is as wide as its column, and its text
//! has the same size on a telephone and in print. Colours come from the page's style sheet.

use std::fmt::Write as _;

use super::html::Escaped;
use crate::method::Server;
use crate::number;
use crate::results::{Direction, Results, Row, Test};

/// End of the longest bar or dot, in percent of the chart's width. The rest is for the figure beside it.
const REACH: f64 = 80.0;
const NAME: f64 = 20.0;
const BAR: f64 = 15.0;
/// Height of the strip with interval and dots, below each bar.
const STRIP: f64 = 15.0;
const BETWEEN_ROWS: f64 = 4.0;
const BETWEEN_GROUPS: f64 = 10.0;
const TOP: f64 = 4.0;
const AXIS: f64 = 24.0;

/// The chart of `test`.
pub(super) fn chart(results: &Results, test: Test) -> String {
    let (adapters, servers) = (results.adapters(), results.servers());
    let row = BAR + STRIP + BETWEEN_ROWS;
    let group = NAME + servers.len() as f64 * row + BETWEEN_GROUPS;
    let bottom = TOP + adapters.len() as f64 * group;
    let scale = Scale::of(results, test);
    let id = test.name();
    let mut svg = String::new();
    // Writing to a `String` cannot fail. This file drops the results of `write!` for that reason.
    let _ = write!(
        svg,
        "<svg class=\"chart\" height=\"{:.0}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\
         <title id=\"{id}-t\">{}, {}</title><desc id=\"{id}-d\">{}</desc>",
        bottom + AXIS,
        test.title(),
        test.unit(),
        Escaped(&description(results, test)),
    );
    axis(&mut svg, &scale, bottom);
    for (index, adapter) in adapters.iter().enumerate() {
        let top = TOP + index as f64 * group;
        let name = results.heading(adapter);
        let _ = write!(svg, "<text class=\"name\" x=\"0\" y=\"{:.1}\">{}</text>", top + NAME - 5.0, Escaped(&name));
        let (first, last) = (top + NAME, top + group - BETWEEN_GROUPS);
        let _ = write!(svg, "<line class=\"base\" x1=\"0\" x2=\"0\" y1=\"{first:.1}\" y2=\"{last:.1}\"/>");
        for (place, server) in servers.iter().enumerate() {
            if let Some(figures) = results.row(adapter, test, *server) {
                bar(&mut svg, figures, &scale, top + NAME + place as f64 * row);
            }
        }
    }
    svg + "</svg>"
}

/// Description for a person who cannot see the chart. The table beside it has the figures.
fn description(results: &Results, test: Test) -> String {
    let better = match test.direction() {
        Direction::Higher => "longer is better",
        Direction::Lower => "shorter is better",
    };
    let names = results.adapters().join(", ");
    format!(
        "Horizontal bars from zero, {better}, for {names}, with 95 % intervals and every sample. The table has the figures."
    )
}

fn axis(svg: &mut String, scale: &Scale, bottom: f64) {
    for tick in &scale.ticks {
        let (x, is_zero) = (scale.x(*tick), *tick == 0.0);
        if !is_zero {
            let _ = write!(svg, "<line class=\"grid\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"{TOP}\" y2=\"{bottom:.1}\"/>");
        }
        let _ = write!(
            svg,
            "<text class=\"{}\" x=\"{x:.2}%\" y=\"{:.1}\">{}</text>",
            if is_zero { "tick first" } else { "tick" },
            bottom + 17.0,
            number::fixed(*tick, scale.decimals),
        );
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

fn bar(svg: &mut String, row: &Row, scale: &Scale, y: f64) {
    let middle = y + BAR / 2.0 + 4.5;
    let Some(median) = row.median else {
        let _ = write!(svg, "<text class=\"none\" x=\"8\" y=\"{middle:.1}\">no figure</text>");
        return;
    };
    let end = scale.x(median);
    let _ = write!(
        svg,
        "<g class=\"{}\"><rect class=\"bar\" x=\"0\" y=\"{y:.1}\" width=\"{end:.2}%\" height=\"{BAR}\"/>\
         <text class=\"value\" x=\"{end:.2}%\" dx=\"7\" y=\"{middle:.1}\">{}</text>",
        class(row.server),
        number::figure(median),
    );
    strip(svg, row, scale, y + BAR);
    let _ = write!(svg, "</g>");
}

/// Draws the interval and the samples in a strip below the bar, where the bar does not hide them.
fn strip(svg: &mut String, row: &Row, scale: &Scale, top: f64) {
    let middle = top + STRIP / 2.0;
    if let Some(interval) = &row.interval {
        let (low, high) = (scale.x(interval.low), scale.x(interval.high));
        for (from, to, above, below) in [
            (low, high, middle, middle),
            (low, low, middle - 5.0, middle + 5.0),
            (high, high, middle - 5.0, middle + 5.0),
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
            "<circle class=\"dot\" cx=\"{:.2}%\" cy=\"{:.1}\" r=\"3\"/>",
            scale.x(sample.value),
            top + 3.0 + place * (STRIP - 6.0)
        );
    }
}

/// Maps figures to positions, from zero to the largest value.
pub(super) struct Scale {
    pub(super) top: f64,
    pub(super) ticks: Vec<f64>,
    pub(super) decimals: usize,
}

impl Scale {
    fn of(results: &Results, test: Test) -> Scale {
        let values = results.rows.iter().filter(|row| row.test == test).flat_map(|row| row.samples.iter());
        Scale::up_to(values.map(|sample| sample.value).fold(0.0, f64::max))
    }

    /// Ticks at 1, 2 or 5 times a power of ten, three to six of them.
    pub(super) fn up_to(most: f64) -> Scale {
        let most = if most.is_normal() && most > 0.0 && most < 1e300 { most } else { 1.0 };
        let power = 10_f64.powf(most.log10().floor());
        let step = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0].into_iter().map(|unit| unit * power).find(|step| most / step <= 5.0);
        let step = step.unwrap_or(most);
        let ticks: Vec<f64> =
            (0..=6_u32).map(|n| f64::from(n) * step).take_while(|tick| *tick <= most * 1.000_001).collect();
        let decimals = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
        Scale { top: most, ticks, decimals }
    }

    /// Position in percent of the chart's width.
    fn x(&self, value: f64) -> f64 {
        (value / self.top).clamp(0.0, 1.0) * REACH
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::sample;

    #[test]
    fn ticks_are_round_numbers_that_reach_most_of_the_way() {
        for (most, step, count) in
            [(3_180.0, 1_000.0, 4), (99.0, 20.0, 5), (0.117, 0.05, 3), (1.0, 0.2, 6), (50.0, 10.0, 6)]
        {
            let scale = Scale::up_to(most);
            assert_eq!(scale.ticks.len(), count, "{most}: {:?}", scale.ticks);
            assert!((scale.ticks[1] - step).abs() < step * 1e-9, "{most}: {:?}", scale.ticks);
        }
    }

    #[test]
    fn figures_that_cannot_be_drawn_to_scale_stay_inside_the_chart() {
        for most in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::MIN_POSITIVE, f64::MAX, 1e-300] {
            let scale = Scale::up_to(most);
            assert!(scale.ticks.len() <= 7);
            for value in [0.0, 1.0, f64::MAX, -f64::MAX, most.abs().min(f64::MAX)] {
                assert!((0.0..=REACH).contains(&scale.x(value)), "{most} {value}");
            }
        }
    }

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
