//! The page's tables: all measurements, and the ratios of Nicety's figures to QEMU's.

use std::fmt::Write as _;

use crate::findings;
use crate::method::{Driver, Server};
use crate::number;
use crate::results::{Direction, Results, Row, Test};
use nicety_chart::Escaped;

/// Starts a table that scrolls within its own area and keeps its first column visible.
pub(super) fn begin(out: &mut String, class: &str, label: &str) {
    // Writing to a `String` cannot fail. This file drops the results of `write!` for that reason.
    let _ = write!(
        out,
        "<div class=\"scroll\" role=\"region\" aria-label=\"{label}\" tabindex=\"0\"><table class=\"{class}\"><thead><tr>"
    );
}

/// Ends the table.
pub(super) fn end(out: &mut String) {
    let _ = writeln!(out, "</tbody></table></div>");
}

/// Heads of named columns and of a column per test. `last` ends the row.
pub(super) fn heads(out: &mut String, named: &[&str], tests: &[Test], unit: impl Fn(Test) -> &'static str, last: bool) {
    for name in named {
        let _ = write!(out, "<th scope=\"col\">{name}</th>");
    }
    for test in tests {
        let _ = write!(
            out,
            "<th scope=\"col\" class=\"n\">{}<span class=\"unit\">{}</span></th>",
            broken(test.short_title()),
            unit(*test)
        );
    }
    if last {
        let _ = writeln!(out, "</tr></thead><tbody>");
    }
}

/// The table of all figures: a row per adapter and server, a column per test.
pub(super) fn all(out: &mut String, results: &Results) {
    let (tests, servers) = (results.tests(), results.servers());
    begin(out, "summary", "All figures");
    let named: &[&str] = if servers.len() > 1 { &["Adapter", "Served by"] } else { &["Adapter"] };
    heads(out, named, &tests, Test::unit, true);
    let mut reasons: Vec<&str> = Vec::new();
    for adapter in results.adapters() {
        for server in &servers {
            row_head(out, results, adapter, *server);
            for test in &tests {
                let cell = summary_cell(results.row(adapter, *test, *server), &mut reasons);
                let _ = write!(out, "<td class=\"n\">{cell}</td>");
            }
            let _ = writeln!(out, "</tr>");
        }
    }
    end(out);
    if !reasons.is_empty() {
        let _ = writeln!(out, "<ol class=\"foot\">");
        for reason in &reasons {
            let _ = writeln!(out, "<li>{}</li>", Escaped(reason));
        }
        let _ = writeln!(out, "</ol>");
    }
}

/// Starts a row with its adapter, and with its server if there are several.
pub(super) fn row_head(out: &mut String, results: &Results, adapter: &str, server: Server) {
    let mark = results.driver(adapter, server).map_or("", Driver::title);
    let mark = if mark.is_empty() { String::new() } else { format!("<span class=\"driver\">{mark}</span>") };
    let _ = write!(out, "<tr><th scope=\"row\">{}{mark}</th>", Escaped(adapter));
    if results.servers().len() > 1 {
        let _ = write!(out, "<td>{}</td>", server.title());
    }
}

/// A title over two lines, broken at its last space or hyphen.
fn broken(title: &str) -> String {
    match title.rsplit_once(' ').map(|(first, last)| (first, "", last)).or_else(|| {
        let (first, last) = title.rsplit_once('-')?;
        Some((first, "-", last))
    }) {
        Some((first, hyphen, last)) => format!("{first}{hyphen}<br>{last}"),
        None => title.to_owned(),
    }
}

fn summary_cell<'a>(row: Option<&'a Row>, reasons: &mut Vec<&'a str>) -> String {
    let Some((median, shown)) = row.and_then(|row| Some((row.median?, row.shown()?))) else {
        let reason = row.and_then(|row| row.absent.as_deref()).unwrap_or("it was not measured");
        let index = reasons.iter().position(|known| *known == reason).unwrap_or_else(|| {
            reasons.push(reason);
            reasons.len() - 1
        });
        return format!("{}<sup>{}</sup>", number::NONE, index + 1);
    };
    let range = row.and_then(|row| row.interval.as_ref()).map(|interval| number::range(interval, median));
    let range = range.map_or(String::new(), |range| format!("<span class=\"range\">{range}</span>"));
    shown + &range
}

/// Writes the ratio of each of Nicety's figures to QEMU's, with worse ones marked and named. Without QEMU's figures there are none.
pub(super) fn against_qemu(out: &mut String, results: &Results) {
    let compared = results.compared();
    let ratio = |adapter: &str, test, server| findings::server_ratio(results, adapter, test, server);
    let known = |test: &Test| {
        let any = |adapter: &str| compared.iter().any(|server| ratio(adapter, *test, *server).is_some());
        results.adapters().into_iter().any(any)
    };
    let tests: Vec<Test> = results.tests().into_iter().filter(known).collect();
    for sentence in findings::against_qemu(results) {
        let _ = writeln!(out, "<p>{}</p>", Escaped(&sentence));
    }
    begin(out, "summary ratios", "Ratios to QEMU");
    let better = |test: Test| match test.direction() {
        Direction::Higher => "more is better",
        Direction::Lower => "less is better",
    };
    heads(out, &["Adapter", "Ratio"], &tests, better, true);
    for adapter in results.adapters() {
        for server in &compared {
            if tests.iter().all(|test| ratio(adapter, *test, *server).is_none()) {
                continue;
            }
            let _ = write!(out, "<tr><th scope=\"row\">{}</th><td>{} ÷ QEMU</td>", Escaped(adapter), server.title());
            for test in &tests {
                let Some(estimate) = ratio(adapter, *test, *server) else {
                    let _ = write!(out, "<td class=\"n\">{}</td>", number::NONE);
                    continue;
                };
                let verdict = findings::verdict(*test, &estimate);
                let (class, mark) = if verdict.is_worse() { ("n worse", "▼ ") } else { ("n", "") };
                let range = number::ratio_range(&estimate)
                    .map_or(String::new(), |range| format!("<span class=\"range\">{range}</span>"));
                let _ = write!(
                    out,
                    "<td class=\"{class}\">{} ×<span class=\"word\">{mark}{}</span>{range}</td>",
                    number::ratio(&estimate),
                    verdict.word()
                );
            }
            let _ = writeln!(out, "</tr>");
        }
    }
    end(out);
    let _ = writeln!(out, "<p class=\"about\">{}</p>", findings::how_ratios_are_made(results));
}
