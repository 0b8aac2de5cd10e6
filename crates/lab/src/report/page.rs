//! `index.html`: a first page (`front`), the findings, the ratios to QEMU, the figures, each test's chart beside its table and over
//! time, the latencies, the method, the host. One file without scripts, which loads nothing. On paper it has at most
//! eight pages: what is there twice, and each run over time, is for a screen only.

use std::fmt::Write as _;

use super::front::{front, headline, unbroken};
use super::{chart, figures, panels};
use crate::advice::STEAL_NOTED_PERCENT;
use crate::findings;
use crate::folder::PAGE;
use crate::method::{Guests, Order};
use crate::number;
use crate::results::{Direction, Results, Test};
use nicety_chart::Escaped;

const STYLE: &str = include_str!("style.css");

/// Height of a sheet of paper that charts can use, in the style sheet's pixels: Letter, the lower of Letter and A4, less its margins
/// and the section's head.
const SHEET: f64 = 900.0;
/// Height of a chart's heading and of the gap below it.
const CHART_HEAD: f64 = 34.0;
/// Smallest zoom of a chart on paper at which its text, 11.5 pixels high, can still be read: 5.2 points.
const ZOOM_MIN: f64 = 0.6;

/// The whole page.
pub(super) fn page(results: &Results) -> String {
    let mut out = String::with_capacity(256 * 1024);
    let headline = headline(results);
    // Writing to a `String` cannot fail. This file drops the results of `write!` for that reason.
    let _ = write!(out, "{PAGE}{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n", Escaped(&headline));
    front(&mut out, results, &headline);
    contents(&mut out, results);
    found(&mut out, results);
    if !results.compared().is_empty() {
        heading(&mut out, "qemu", "Against QEMU's own models");
        figures::against_qemu(&mut out, results);
    }
    heading(&mut out, "figures", "All figures");
    figures::all(&mut out, results);
    tests(&mut out, results);
    latency(&mut out, results);
    method(&mut out, results);
    runs(&mut out, results);
    host(&mut out, results);
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

/// A section's heading, with an anchor for links.
fn heading(out: &mut String, id: &str, title: &str) {
    let _ = writeln!(out, "<h2 id=\"{id}\">{title}{}</h2>", anchor(id));
}

fn anchor(id: &str) -> String {
    format!(" <a class=\"anchor\" href=\"#{id}\" aria-label=\"Link to this section\">#</a>")
}

/// Table of contents with links.
fn contents(out: &mut String, results: &Results) {
    let _ = write!(out, "<nav aria-label=\"On this page\">");
    let qemu = (!results.compared().is_empty()).then_some(("qemu", "Against QEMU"));
    let latency = results.runs.iter().any(|run| run.latency.is_some()).then_some(("latency", "Latency"));
    let parts = [("found", "What was found")].into_iter().chain(qemu);
    let parts = parts.chain([("figures", "All figures"), ("tests", "Test by test")]).chain(latency);
    for (id, title) in parts.chain([("method", "Method"), ("runs", "All runs"), ("host", "Host")]) {
        let _ = write!(out, "<a href=\"#{id}\">{title}</a> ");
    }
    let _ = writeln!(out, "</nav>");
}

fn found(out: &mut String, results: &Results) {
    heading(out, "found", "What was found");
    let _ = writeln!(out, "<dl class=\"findings\">");
    for finding in findings::findings(results) {
        let _ = writeln!(out, "<dt>{}</dt><dd>{}</dd>", Escaped(&finding.about), unbroken(&finding.sentence));
    }
    let _ = writeln!(out, "</dl>");
}

/// Legend of the servers' colours.
fn servers(out: &mut String, results: &Results) {
    let servers = results.servers();
    if servers.len() > 1 {
        for server in servers {
            let _ = write!(out, "<span><i class=\"{}\"></i>served by {}</span>", chart::class(server), server.title());
        }
    }
}

fn tests(out: &mut String, results: &Results) {
    let (zoom, columns) = on_paper(results);
    let _ = writeln!(out, "<section class=\"sheet\">");
    heading(out, "tests", "Test by test");
    key(out, results);
    let _ = writeln!(out, "<div class=\"tests\" style=\"--zoom: {zoom:.2}; --columns: {columns}\">");
    for test in results.tests() {
        one_test(out, results, test);
    }
    let _ = writeln!(out, "</div></section>");
}

/// Zoom and number of columns of the charts on paper, so that whole charts fill a sheet.
fn on_paper(results: &Results) -> (f64, u32) {
    let height = chart::height(results);
    let zoom = |charts: f64| (SHEET / charts - CHART_HEAD) / height;
    let zoom = [4.0, 3.0, 2.0].into_iter().map(zoom).find(|zoom| *zoom >= ZOOM_MIN).unwrap_or(zoom(1.0));
    let zoom = zoom.clamp(0.3, 1.0);
    // Two servers' charts are high: three beside each other, smaller.
    if height > 500.0 { (zoom.min(0.72), 3) } else { (zoom, 2) }
}

fn key(out: &mut String, results: &Results) {
    let _ = write!(out, "<p class=\"key\">");
    servers(out, results);
    let interval = if has_intervals(results) { "the bracket below it is its 95 % interval; " } else { "" };
    let is_logarithmic = |test: &Test| chart::scale(results, *test).is_logarithmic();
    let ticks = if results.tests().iter().any(is_logarithmic) {
        " On a logarithmic axis, where figures are too far apart for bars, a tick is the median."
    } else {
        ""
    };
    let _ = writeln!(
        out,
        "A bar ends at the median; {interval}each dot is a run, first runs on top.{ticks} Each chart has its own axis.</p>"
    );
}

fn has_intervals(results: &Results) -> bool {
    results.rows.iter().any(|row| row.interval.is_some())
}

fn one_test(out: &mut String, results: &Results, test: Test) {
    let better = match test.direction() {
        Direction::Higher => "more is better",
        Direction::Lower => "less is better",
    };
    let id = test.name();
    let axis = if chart::scale(results, test).is_logarithmic() { ", logarithmic axis" } else { "" };
    let _ = write!(
        out,
        "<section class=\"test\"><header><h3 id=\"{id}\">{}{}</h3><span>{}, {better}{axis}</span></header>\n<div class=\"pair\"><figure>{}</figure>\n",
        test.title(),
        anchor(id),
        test.unit(),
        chart::chart(results, test),
    );
    let servers = results.servers();
    figures::begin(out, "", test.title());
    let _ = write!(out, "<th scope=\"col\">Adapter</th>");
    if servers.len() > 1 {
        let _ = write!(out, "<th scope=\"col\">Served by</th>");
    }
    let intervals = has_intervals(results);
    let interval = if intervals { "<th scope=\"col\" class=\"n\">95 % interval</th>" } else { "" };
    let _ = writeln!(
        out,
        "<th scope=\"col\" class=\"n\">Median</th>{interval}<th scope=\"col\" class=\"n\">Runs</th></tr></thead><tbody>"
    );
    for adapter in results.adapters() {
        for server in &servers {
            let Some(row) = results.row(adapter, test, *server) else { continue };
            figures::row_head(out, results, adapter, *server);
            let median = row.shown().unwrap_or_else(|| number::NONE.to_owned());
            let range = row.median.zip(row.interval.as_ref()).map(|(median, interval)| number::range(interval, median));
            let range = range.unwrap_or_else(|| number::NONE.to_owned());
            let range = if intervals { format!("<td class=\"n\">{range}</td>") } else { String::new() };
            let _ =
                writeln!(out, "<td class=\"n\">{median}</td>{range}<td class=\"n\">{}</td></tr>", row.samples.len());
        }
    }
    figures::end(out);
    // The latency tests share the runs of request-response. Those runs are drawn once, with their rate.
    let load = test.load().filter(|_| !matches!(test, Test::RrP50 | Test::RrP99));
    let over_time = load.map_or(String::new(), |load| panels::over_time(results, load, test.unit()));
    let over_time =
        if over_time.is_empty() { over_time } else { format!("<div class=\"over-time\">{over_time}</div>") };
    let _ = writeln!(out, "</div>{over_time}</section>");
}

fn latency(out: &mut String, results: &Results) {
    let panels = panels::latencies(results);
    if panels.is_empty() {
        return;
    }
    let _ = writeln!(out, "<section>");
    heading(out, "latency", "How latencies are distributed");
    let _ = write!(out, "<p class=\"key\">");
    servers(out, results);
    let _ = writeln!(
        out,
        "How long an exchange took: at 99 % is the time within which 99 of 100 were answered, at the right end the longest of all. \
         Thin lines are runs, the thick one is their median. Each picture has its own scale.</p>\n<div class=\"panels\">{panels}</div></section>"
    );
}

fn method(out: &mut String, results: &Results) {
    let method = &results.method;
    heading(out, "method", "How it was measured");
    let _ = writeln!(
        out,
        "<p>This command measures it again:</p>\n<pre><code>{}</code></pre>\n<ul class=\"notes\">",
        Escaped(&method.command)
    );
    let guests = match method.guests {
        Guests::Embedded => {
            "Guests: Nicety's own guest drivers with smoltcp, each guest a process of its own that reaches its adapter only over the socket."
        }
        Guests::Qemu => "Guests: Linux with its own drivers and netperf, in QEMU.",
        Guests::Uml => "Guests: Linux with its own drivers and netperf, as a user-mode kernel.",
    };
    let order = match method.order {
        Order::EveryRun => "each run is followed by another adapter's",
        Order::EveryContestant => "each adapter does all its loads, then the next one does",
    };
    let rounds = if method.repeat == 1 { "One round".to_owned() } else { format!("{} rounds", method.repeat) };
    // Without intervals the first page says so.
    let interval = has_intervals(results).then(|| {
        "Intervals are distribution-free: two order statistics that hold the median with at least 95 %. Each stands for itself; of twenty, one may miss.".to_owned()
    });
    let mut notes = vec![
        guests.to_owned(),
        format!("{rounds} of {} s a run; {order}, in an order that follows from seed {}.", method.seconds, method.seed),
        findings::how_ratios_are_made(results).to_owned(),
        "CPU time, register accesses and interrupts are taken over a round's bulk transmit and receive together, or, where nobody is outside, over its runs from guest to guest; a frame is one on the wire, after segmentation.".to_owned(),
    ];
    notes.extend(interval);
    notes.extend(method.notes.iter().cloned());
    for note in notes {
        let _ = writeln!(out, "<li>{}</li>", Escaped(&note));
    }
    let _ = writeln!(
        out,
        "</ul>\n<p>Every sample is in <a href=\"results.json\">results.json</a>, and as a table in <a href=\"results.csv\">results.csv</a>.</p>"
    );
}

fn percent(value: Option<f64>) -> String {
    value.map_or(number::NONE.to_owned(), |value| format!("{value:.1} %"))
}

fn runs(out: &mut String, results: &Results) {
    let _ = writeln!(out, "<details id=\"runs\"><summary>All {} runs in their order</summary>", results.runs.len());
    figures::begin(out, "", "All runs");
    let _ = writeln!(
        out,
        "<th scope=\"col\" class=\"n\">Run</th>\
         <th scope=\"col\" class=\"n\">Round</th><th scope=\"col\">Adapter</th><th scope=\"col\">Served by</th><th scope=\"col\">Load</th>\
         <th scope=\"col\" class=\"n\">Took</th><th scope=\"col\" class=\"n\">Stolen</th><th scope=\"col\" class=\"n\">Others</th><th scope=\"col\">Failure</th></tr></thead><tbody>"
    );
    for run in &results.runs {
        let driver = results.driver(&run.adapter, run.server);
        let driver = driver.map_or(String::new(), |driver| format!(", {}", driver.title()));
        let _ = writeln!(
            out,
            "<tr><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td><td>{}{driver}</td><td>{}</td><td class=\"n\">{:.1} s</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>",
            run.run.saturating_add(1),
            run.round.saturating_add(1),
            Escaped(&run.adapter),
            run.server.title(),
            run.load,
            run.took_seconds,
            percent(run.steal_percent),
            percent(run.others_percent),
            Escaped(run.failure.as_deref().unwrap_or_default()),
        );
    }
    figures::end(out);
    let _ = writeln!(out, "</details>");
}

fn host(out: &mut String, results: &Results) {
    let host = &results.host;
    let disturbed =
        results.runs.iter().filter(|run| run.steal_percent.is_some_and(|p| p > STEAL_NOTED_PERCENT)).count();
    let stolen = match disturbed {
        0 => percent(host.steal_percent),
        _ => format!(
            "{} in all; more than {STEAL_NOTED_PERCENT} % during {disturbed} of {} runs",
            percent(host.steal_percent),
            results.runs.len()
        ),
    };
    let or = |known: &Option<String>, else_: &str| known.clone().unwrap_or_else(|| else_.to_owned());
    let _ = writeln!(out, "<section class=\"host\">");
    heading(out, "host", "The host");
    let _ = writeln!(out, "<dl>");
    for (name, fact) in [
        ("Processor", host.cpu_model.clone()),
        ("Logical processors", host.cores.to_string()),
        ("Frequency governor", or(&host.governor, "not known: the kernel shows none")),
        ("Memory", host.memory_bytes.map_or_else(|| "not known".to_owned(), number::memory)),
        ("Hypervisor", or(&host.hypervisor, "not known")),
        ("Kernel", host.kernel.clone()),
        ("Processor time stolen", stolen),
        ("Date", host.date.clone()),
        ("Nicety", host.nicety_version.clone()),
    ] {
        let _ = writeln!(out, "<dt>{name}</dt><dd>{}</dd>", Escaped(&fact));
    }
    let _ = writeln!(out, "</dl></section>");
}

#[cfg(test)]
#[path = "page_test.rs"]
mod tests;
