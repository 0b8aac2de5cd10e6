//! Small charts, one for each adapter: each run's rate over time, and the distribution of its latencies. A run is a line; its colour
//! and its dashes show the server.

use std::fmt::Write as _;

use nicety_chart::{Decades, HIGH, Linear, Mark, Panel, WIDE};

use super::chart::class;
use crate::bench::Percentile;
use crate::method::Load;
use crate::number;
use crate::results::{Results, Run};
use crate::series::Series;
use crate::statistics;

/// Percentiles with a mark, and the mark's text. The last one is the maximum.
pub(super) const MARKS: [(f64, &str); 5] =
    [(50.0, "50 %"), (90.0, "90 %"), (99.0, "99 %"), (99.9, "99.9 %"), (100.0, "all")];

/// The rate over time of the runs of `load`. Empty if none of them has a series.
pub(super) fn over_time(results: &Results, load: Load, unit: &str) -> String {
    let runs: Vec<&Run> = results.runs.iter().filter(|run| run.load == load && run.series.is_some()).collect();
    if runs.iter().filter_map(|run| run.series.as_ref()).all(|series| series.values.is_empty()) {
        return String::new();
    }
    let panels = results.adapters().into_iter().enumerate().filter_map(|(number, adapter)| {
        let of: Vec<&Run> = runs.iter().copied().filter(|run| run.adapter == adapter).collect();
        let points = || of.iter().filter_map(|run| run.series.as_ref()).flat_map(|series| series.points());
        let time = Linear::up_to(points().map(|(_, end, _)| end).fold(0.0, f64::max));
        let rate = Linear::up_to(points().map(|(_, _, value)| value).fold(0.0, f64::max));
        let lines: String = of.iter().map(|run| line(run, &stairs(run.series.as_ref(), &time, &rate))).collect();
        (!of.is_empty()).then(|| {
            let seconds =
                |(number, (place, text)): (usize, Mark)| (place, if number == 0 { text + " s" } else { text });
            Panel {
                id: format!("{}-time-{number}", load.to_string().replace(' ', "-")),
                heading: results.heading(adapter),
                title: format!("{adapter}, {load} over time, {unit}: {} runs", of.len()),
                across: time.marks().into_iter().enumerate().map(seconds).collect(),
                up: rate.marks(),
                lines,
            }
        })
    });
    let panels: String = panels.map(|panel| panel.svg()).collect();
    format!(
        "<h4>Over time</h4>\n<p class=\"about\">Each line is a run: {unit}, over its seconds. Each picture has its own scale.</p>\n<div class=\"panels\">{panels}</div>\n"
    )
}

/// A run's rate as steps: each point holds over its interval.
pub(super) fn stairs(series: Option<&Series>, time: &Linear, rate: &Linear) -> String {
    nicety_chart::stairs(series.iter().flat_map(|series| series.points()), time, rate)
}

fn line(run: &Run, path: &str) -> String {
    let round = run.round.saturating_add(1);
    format!(
        "<path class=\"run {}\" d=\"{path}\"><title>{}, round {round}</title></path>",
        class(run.server),
        run.server.title()
    )
}

/// The distribution of request-response latencies. Empty if no run has latencies.
pub(super) fn latencies(results: &Results) -> String {
    let runs: Vec<(&Run, &[Percentile])> =
        results.runs.iter().filter_map(|run| Some((run, run.latency.as_deref()?))).collect();
    let across: Vec<Mark> = MARKS.iter().map(|(percent, text)| (across(*percent), (*text).to_owned())).collect();
    let panels = results.adapters().into_iter().enumerate().filter_map(|(number, adapter)| {
        let of: Vec<&(&Run, &[Percentile])> = runs.iter().filter(|(run, _)| run.adapter == adapter).collect();
        let all = || of.iter().flat_map(|(_, latency)| latency.iter().map(|known| known.us)).filter(|us| *us > 0.0);
        let scale = Decades::over(all().fold(f64::MAX, f64::min), all().fold(0.0, f64::max));
        let mut lines: String = of.iter().map(|(run, latency)| line(run, &path(&scale, latency))).collect();
        for server in results.servers() {
            let own: Vec<&[Percentile]> =
                of.iter().filter(|(run, _)| run.server == server).map(|(_, latency)| *latency).collect();
            let _ =
                write!(lines, "<path class=\"run middle {}\" d=\"{}\"/>", class(server), path(&scale, &middle(&own)));
        }
        all().next().is_some().then(|| Panel {
            id: format!("latency-{number}"),
            heading: results.heading(adapter),
            title: format!("{adapter}, latency in µs by percentile: {} runs", of.len()),
            across: across.clone(),
            up: scale.steps().into_iter().map(|us| (scale.at(us), latency(us))).collect(),
            lines,
        })
    });
    panels.map(|panel| panel.svg()).collect()
}

/// The median over the runs, for each percentile that all of them have.
pub(super) fn middle(runs: &[&[Percentile]]) -> Vec<Percentile> {
    let Some((first, rest)) = runs.split_first() else { return Vec::new() };
    let at =
        |latency: &[Percentile], percent| latency.iter().find(|known| known.percent == percent).map(|known| known.us);
    let of = |known: &Percentile| {
        let mut values = vec![known.us];
        for latency in rest {
            values.push(at(latency, known.percent)?);
        }
        Some(Percentile { percent: known.percent, us: statistics::median(&values)? })
    };
    first.iter().filter_map(of).collect()
}

/// Position of a percentile, from 0 to 1. Each further nine takes an equal step; the maximum comes after the fourth.
pub(super) fn across(percent: f64) -> f64 {
    const NINES: f64 = 4.0;
    const ALL: f64 = 4.6;
    let nines = if percent >= 100.0 { ALL } else { (-(1.0 - percent / 100.0).log10()).clamp(0.0, NINES) };
    nines / ALL
}

/// `50 µs`, `2 ms`, `1 s`.
pub(super) fn latency(us: f64) -> String {
    let (value, unit) = match us {
        _ if us >= 0.999e6 => (us / 1e6, "s"),
        _ if us >= 0.999e3 => (us / 1e3, "ms"),
        _ => (us, "µs"),
    };
    let decimals = if value >= 0.999 { 0 } else { number::decimals(value) };
    format!("{} {unit}", number::fixed(value, decimals))
}

/// A run's percentiles as a line.
pub(super) fn path(scale: &Decades, latency: &[Percentile]) -> String {
    let mut path = String::new();
    for known in latency {
        let lead = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{lead}{:.0} {:.0}", across(known.percent) * WIDE, HIGH - scale.at(known.us) * HIGH);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::sample;

    #[test]
    fn each_run_is_a_line_in_its_adapters_panel() {
        let panels = over_time(&sample::two_servers(), Load::BulkReceive, "Mbit/s");
        assert_eq!(panels.matches("<figure").count(), 2);
        assert_eq!(panels.matches("class=\"run ours\"").count(), 14);
        assert_eq!(panels.matches("class=\"run theirs\"").count(), 14);
        assert!(panels.contains("<title>QEMU, round 7</title>"), "{panels}");
        assert!(panels.contains(">0 s</text>") && panels.contains(">1,000</text>") || panels.contains(">1000</text>"));
    }

    #[test]
    fn each_runs_latencies_are_a_line_and_their_median_another() {
        let panels = latencies(&sample::two_servers());
        assert_eq!(panels.matches("<figure").count(), 2);
        assert_eq!((panels.matches("\"run ours\"").count(), panels.matches("\"run middle ours\"").count()), (14, 2));
        // The samples are 1 to 100 µs.
        for text in ["1 µs", "10 µs", "100 µs", "50 %", "99.9 %", "all"] {
            assert!(panels.contains(&format!(">{text}</text>")), "{text}");
        }
    }

    #[test]
    fn each_panel_fits_its_own_runs() {
        let mut results = sample::two_servers();
        for run in results.runs.iter_mut().filter(|run| run.adapter == "e1000") {
            let series = run.series.as_mut().unwrap();
            series.values.iter_mut().for_each(|value| *value /= 1_000.0);
            run.latency.iter_mut().flatten().for_each(|known| known.us *= 1_000.0);
        }
        let highest = |panels: &str, number: usize| {
            let panel = panels.split("<figure").nth(number + 1).unwrap();
            let lines = panel.split(" d=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
            let heights = lines
                .flat_map(|line| line.split(['M', 'V', 'L']).skip(1))
                .filter_map(|step| step.split(['H', ' ']).next_back().unwrap().parse::<f64>().ok());
            heights.fold(f64::MAX, f64::min)
        };
        let panels = latencies(&results);
        assert!(panels.contains(">1 ms</text>") && panels.contains(">1 µs</text>"), "{panels}");
        assert!(highest(&panels, 0) < 1.0 && highest(&panels, 1) < 1.0);
        let panels = over_time(&results, Load::BulkReceive, "Mbit/s");
        assert!(panels.contains(">1.5</text>") && panels.contains(">3000</text>"), "{panels}");
    }

    #[test]
    fn a_latency_is_written_in_its_own_unit() {
        for (us, text) in
            [(0.5, "0.500 µs"), (50.0, "50 µs"), (2e3, "2 ms"), (1e5, "100 ms"), (1e6, "1 s"), (5e7, "50 s")]
        {
            assert_eq!(latency(us), text);
        }
    }

    #[test]
    fn results_without_them_have_no_panel() {
        let mut results = sample::quick();
        results.runs.iter_mut().for_each(|run| (run.series, run.latency) = (None, None));
        assert_eq!(over_time(&results, Load::BulkTransmit, "Mbit/s"), "");
        assert_eq!(latencies(&results), "");
    }

    #[test]
    fn percentiles_lie_in_their_order() {
        let places = [0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0].map(across);
        assert!(places.is_sorted_by(|a, b| a < b) && places[0] == 0.0 && places[6] == 1.0, "{places:?}");
    }
}
