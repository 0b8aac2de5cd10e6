//! A chart per test, as inline SVG: adapters as rows, servers as bars beside each other, the 95 % interval as a whisker,
//! every sample as a faint dot. Colours come from the page's style sheet, so that one chart serves light, dark and print.

use std::fmt::Write as _;

use super::html::Escaped;
use crate::method::Server;
use crate::number;
use crate::results::{Direction, Results, Row, Test};

/// All lengths are in units of the view box; the page scales it to its column.
const WIDTH: f64 = 620.0;
const LABEL: f64 = 104.0;
const VALUE: f64 = 76.0;
const BAR: f64 = 20.0;
const BETWEEN_BARS: f64 = 5.0;
const BETWEEN_GROUPS: f64 = 16.0;
const TOP: f64 = 8.0;
const AXIS: f64 = 26.0;

/// The chart of `test`.
pub(super) fn chart(results: &Results, test: Test) -> String {
    let (adapters, servers) = (results.adapters(), results.servers());
    let group = servers.len() as f64 * (BAR + BETWEEN_BARS) - BETWEEN_BARS + BETWEEN_GROUPS;
    let plot_height = adapters.len() as f64 * group;
    let scale = Scale::of(results, test);
    let id = Escaped(test.title()).to_string().to_lowercase().replace([' ', ','], "-");
    let mut svg = String::new();
    // Writing to a String cannot fail; the results of write! are dropped for that reason throughout.
    let _ = write!(
        svg,
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\
         <title id=\"{id}-t\">{}, {}</title><desc id=\"{id}-d\">{}</desc>",
        TOP + plot_height + AXIS,
        test.title(),
        test.unit(),
        Escaped(&description(results, test)),
    );
    axis(&mut svg, &scale, plot_height);
    for (index, adapter) in adapters.iter().enumerate() {
        let top = TOP + index as f64 * group + BETWEEN_GROUPS / 2.0;
        let middle = top + (group - BETWEEN_GROUPS) / 2.0;
        let _ = write!(
            svg,
            "<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LABEL - 12.0,
            middle + 4.5,
            Escaped(adapter)
        );
        for (place, server) in servers.iter().enumerate() {
            let y = top + place as f64 * (BAR + BETWEEN_BARS);
            if let Some(row) = results.row(adapter, test, *server) {
                bar(&mut svg, row, &scale, y);
            }
        }
    }
    let _ = write!(
        svg,
        "<line class=\"base\" x1=\"{LABEL}\" x2=\"{LABEL}\" y1=\"{TOP}\" y2=\"{:.1}\"/></svg>",
        TOP + plot_height
    );
    svg
}

/// What a person who does not see the chart is told; the table beside it has the figures.
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

fn axis(svg: &mut String, scale: &Scale, plot_height: f64) {
    let bottom = TOP + plot_height;
    for tick in &scale.ticks {
        let x = scale.x(*tick);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom:.1}\"/>\
             <text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
            bottom + 18.0,
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
    let middle = y + BAR / 2.0;
    let Some(median) = row.median else {
        let _ = write!(svg, "<text class=\"none\" x=\"{:.1}\" y=\"{:.1}\">no figure</text>", LABEL + 8.0, middle + 4.0);
        return;
    };
    let end = scale.x(median);
    let _ = write!(
        svg,
        "<g class=\"{}\"><rect class=\"bar\" x=\"{LABEL}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\" rx=\"1.5\"/>",
        class(row.server),
        (end - LABEL).max(0.0),
    );
    for (index, sample) in row.samples.iter().enumerate() {
        // Spread over the bar's height in the order of runs: dots that would hide each other do not, and drift shows.
        let place = (index as f64 + 0.5) / row.samples.len().max(1) as f64;
        let _ = write!(
            svg,
            "<circle class=\"dot\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"1.9\"/>",
            scale.x(sample.value),
            y + 2.5 + place * (BAR - 5.0)
        );
    }
    let mut reach = row.samples.iter().map(|sample| scale.x(sample.value)).fold(end, f64::max);
    if let Some(interval) = &row.interval {
        let (low, high) = (scale.x(interval.low), scale.x(interval.high));
        let (above, below) = (middle - 4.5, middle + 4.5);
        let _ = write!(
            svg,
            "<path class=\"whisker\" d=\"M{low:.1} {middle:.1}H{high:.1}M{low:.1} {above:.1}V{below:.1}M{high:.1} {above:.1}V{below:.1}\"/>"
        );
        reach = reach.max(high);
    }
    let _ = write!(
        svg,
        "<line class=\"median\" x1=\"{end:.1}\" x2=\"{end:.1}\" y1=\"{y:.1}\" y2=\"{:.1}\"/>\
         <text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{}</text></g>",
        y + BAR,
        reach + 9.0,
        middle + 4.5,
        number::figure(median),
    );
}

/// From figures to places: from zero to a round number that everything fits below.
struct Scale {
    top: f64,
    ticks: Vec<f64>,
    decimals: usize,
}

impl Scale {
    fn of(results: &Results, test: Test) -> Scale {
        let values = results.rows.iter().filter(|row| row.test == test).flat_map(|row| row.samples.iter());
        Scale::up_to(values.map(|sample| sample.value).fold(0.0, f64::max))
    }

    /// Ticks at 1, 2 or 5 times a power of ten, three to six of them.
    fn up_to(most: f64) -> Scale {
        let most = if most.is_normal() && most > 0.0 && most < 1e300 { most } else { 1.0 };
        let power = 10_f64.powf(most.log10().floor());
        let step = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0].into_iter().map(|unit| unit * power).find(|step| most / step <= 5.0);
        let step = step.unwrap_or(most);
        let ticks: Vec<f64> =
            (0..=6_u32).map(|n| f64::from(n) * step).take_while(|tick| *tick <= most * 1.000_001).collect();
        let decimals = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
        Scale { top: most, ticks, decimals }
    }

    fn x(&self, value: f64) -> f64 {
        LABEL + (value / self.top).clamp(0.0, 1.0) * (WIDTH - LABEL - VALUE)
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
                assert!((LABEL..=WIDTH).contains(&scale.x(value)), "{most} {value}");
            }
        }
    }

    #[test]
    fn a_chart_has_a_bar_and_a_whisker_per_row_and_a_dot_per_sample() {
        let svg = chart(&sample::two_servers(), Test::BulkTransmit);
        for (part, times) in
            [("class=\"bar\"", 4), ("class=\"whisker\"", 4), ("class=\"dot\"", 28), ("<title", 1), ("<desc", 1)]
        {
            assert_eq!(svg.matches(part).count(), times, "{part}");
        }
        let quick = chart(&sample::quick(), Test::BulkTransmit);
        assert_eq!(quick.matches("class=\"whisker\"").count(), 0);
        let absent = chart(&sample::two_servers(), Test::ReadsPerFrame);
        assert_eq!(absent.matches("no figure").count(), 2);
    }
}
