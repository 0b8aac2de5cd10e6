//! `index.html`: the answer in sentences, which adapter to choose, the figures, each test's chart beside its table, the
//! method, the host. One file, no scripts, nothing loaded from anywhere.

use std::fmt::Write as _;

use super::chart;
use super::html::Escaped;
use crate::choice::choice;
use crate::findings;
use crate::method::{Guests, Order};
use crate::number;
use crate::results::{Direction, Results, Row, Test};
use crate::statistics::{Estimate, RUNS_FOR_INTERVAL};

const STYLE: &str = include_str!("style.css");

/// How every page begins: by this a later report knows that it may take the place. A change here has to know the pages before it too.
pub(super) const HEAD: &str = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
     <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Nicety: ";

/// Runs during which more than this was stolen are pointed out, in percent.
const STEAL_NOTED_PERCENT: f64 = 5.0;

/// The whole page.
pub(super) fn page(results: &Results) -> String {
    let mut out = String::with_capacity(64 * 1024);
    let headline = headline(results);
    // Writing to a String cannot fail; the results of write! are dropped for that reason throughout.
    let _ = write!(out, "{HEAD}{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n", Escaped(&headline));
    opening(&mut out, results, &headline);
    figures(&mut out, results);
    let _ = writeln!(out, "<h2>Test by test</h2>");
    key(&mut out, results);
    for test in results.tests() {
        one_test(&mut out, results, test);
    }
    method(&mut out, results);
    host(&mut out, results);
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

fn headline(results: &Results) -> String {
    let choice = choice(results).into_iter().next();
    choice.unwrap_or_else(|| match results.adapters().first() {
        Some(adapter) => format!("{adapter}: what it carries and what it costs"),
        None => "Nothing was measured".to_owned(),
    })
}

fn opening(out: &mut String, results: &Results, headline: &str) {
    let date = results.host.date.split('T').next().unwrap_or_default();
    let adapters = results.adapters().len();
    let plural = if adapters == 1 { "adapter" } else { "adapters" };
    let _ = writeln!(out, "<p class=\"kicker\">Nicety · {adapters} network {plural} compared · {}</p>", Escaped(date));
    // The headline is the first sentence of the choice without its reason, which then begins the paragraph below.
    let (short, reason) = headline.split_once(": ").unwrap_or((headline.trim_end_matches('.'), ""));
    let _ = writeln!(out, "<h1>{}</h1>", Escaped(short));
    let mut sentences = choice(results).into_iter().skip(1).collect::<Vec<_>>();
    sentences.insert(0, capitalised(reason));
    let _ = writeln!(out, "<section class=\"choice\" aria-label=\"Which adapter to choose\">");
    for sentence in sentences.iter().filter(|sentence| !sentence.is_empty()) {
        let _ = writeln!(out, "<p>{}</p>", Escaped(sentence));
    }
    let _ = writeln!(out, "</section>\n<p class=\"soft\">{}</p>", with_code(&findings::judged_under(results)));
    let _ = writeln!(out, "<h2>What was found</h2>\n<dl class=\"findings\">");
    for finding in findings::findings(results) {
        let _ = writeln!(out, "<dt>{}</dt><dd>{}</dd>", Escaped(&finding.about), set(&finding.sentence));
    }
    let _ = writeln!(out, "</dl>");
}

/// The sentence, escaped, with its ratios and ranges kept on one line each.
fn set(sentence: &str) -> String {
    Escaped(sentence).to_string().replace(" ×", "\u{a0}×").replace('–', "\u{2060}–\u{2060}").replace(" % ", "\u{a0}% ")
}

fn capitalised(sentence: &str) -> String {
    let mut characters = sentence.chars();
    characters.next().map_or(String::new(), |first| first.to_uppercase().collect::<String>() + characters.as_str())
}

/// The sentence with its command, if it has one, set as code.
fn with_code(sentence: &str) -> String {
    let command = findings::REAL_GUESTS_COMMAND;
    Escaped(sentence).to_string().replace(command, &format!("<code>{command}</code>"))
}

/// The table of everything: a row per adapter and server, a column per test.
fn figures(out: &mut String, results: &Results) {
    let tests = results.tests();
    let servers = results.servers();
    let _ = writeln!(
        out,
        "<h2>All figures</h2>\n<div class=\"scroll\"><table class=\"summary\"><thead><tr><th scope=\"col\">Adapter</th>"
    );
    if servers.len() > 1 {
        let _ = write!(out, "<th scope=\"col\">Served by</th>");
    }
    for test in &tests {
        let _ = write!(
            out,
            "<th scope=\"col\" class=\"n\">{}<span class=\"unit\">{}</span></th>",
            broken(test.short_title()),
            test.unit()
        );
    }
    let _ = writeln!(out, "</tr></thead><tbody>");
    let mut reasons: Vec<&str> = Vec::new();
    for adapter in results.adapters() {
        for server in &servers {
            let _ = write!(out, "<tr><th scope=\"row\">{}</th>", Escaped(adapter));
            if servers.len() > 1 {
                let _ = write!(out, "<td>{}</td>", server.title());
            }
            for test in &tests {
                let _ = write!(
                    out,
                    "<td class=\"n\">{}</td>",
                    summary_cell(results.row(adapter, *test, *server), &mut reasons)
                );
            }
            let _ = writeln!(out, "</tr>");
        }
        for server in results.compared() {
            let _ = write!(
                out,
                "<tr class=\"ratio\"><th scope=\"row\">{}</th><td>{} ÷ QEMU</td>",
                Escaped(adapter),
                server.title()
            );
            for test in &tests {
                let ratio = findings::server_ratio(results, adapter, *test, server);
                let _ = write!(out, "<td class=\"n\">{}</td>", ratio_cell(ratio));
            }
            let _ = writeln!(out, "</tr>");
        }
    }
    let _ = writeln!(out, "</tbody></table></div>");
    if !reasons.is_empty() {
        let _ = writeln!(out, "<ol class=\"foot\">");
        for reason in &reasons {
            let _ = writeln!(out, "<li>{}</li>", Escaped(reason));
        }
        let _ = writeln!(out, "</ol>");
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

fn ratio_cell(ratio: Option<Estimate>) -> String {
    let Some(ratio) = ratio else { return String::new() };
    let range =
        number::ratio_range(&ratio).map_or(String::new(), |range| format!("<span class=\"range\">{range}</span>"));
    format!("{} ×{range}", number::ratio(&ratio))
}

fn summary_cell<'a>(row: Option<&'a Row>, reasons: &mut Vec<&'a str>) -> String {
    let Some(median) = row.and_then(|row| row.median) else {
        let reason = row.and_then(|row| row.absent.as_deref()).unwrap_or("it was not measured");
        let index = reasons.iter().position(|known| *known == reason).unwrap_or_else(|| {
            reasons.push(reason);
            reasons.len() - 1
        });
        return format!("{}<sup>{}</sup>", number::NONE, index + 1);
    };
    let range = row.and_then(|row| row.interval.as_ref()).map(|interval| number::range(interval, median));
    let range = range.map_or(String::new(), |range| format!("<span class=\"range\">{range}</span>"));
    format!("{}{range}", number::figure(median))
}

fn key(out: &mut String, results: &Results) {
    let _ = write!(out, "<p class=\"key\">");
    let servers = results.servers();
    if servers.len() > 1 {
        for server in servers {
            let _ = write!(out, "<span><i class=\"{}\"></i>served by {}</span>", chart::class(server), server.title());
        }
    }
    let interval = if has_intervals(results) { "the bracket is its 95 % interval; " } else { "" };
    let _ = writeln!(out, "A bar ends at the median; {interval}each dot is a run, first runs on top.</p>");
}

fn has_intervals(results: &Results) -> bool {
    results.rows.iter().any(|row| row.interval.is_some())
}

fn one_test(out: &mut String, results: &Results, test: Test) {
    let better = match test.direction() {
        Direction::Higher => "more is better",
        Direction::Lower => "less is better",
    };
    let _ = write!(
        out,
        "<section class=\"test\"><header><h3>{}</h3><span>{}, {better}</span></header>\n<div class=\"pair\"><figure>{}</figure>\n",
        test.title(),
        test.unit(),
        chart::chart(results, test),
    );
    let servers = results.servers();
    let _ = write!(out, "<div class=\"scroll\"><table><thead><tr><th scope=\"col\">Adapter</th>");
    if servers.len() > 1 {
        let _ = write!(out, "<th scope=\"col\">Served by</th>");
    }
    let _ = writeln!(
        out,
        "<th scope=\"col\" class=\"n\">Median</th><th scope=\"col\" class=\"n\">95 % interval</th><th scope=\"col\" class=\"n\">Runs</th></tr></thead><tbody>"
    );
    for adapter in results.adapters() {
        for server in &servers {
            let Some(row) = results.row(adapter, test, *server) else { continue };
            let _ = write!(out, "<tr><th scope=\"row\">{}</th>", Escaped(adapter));
            if servers.len() > 1 {
                let _ = write!(out, "<td>{}</td>", server.title());
            }
            let median = row.median.map_or(number::NONE.to_owned(), number::figure);
            let range = row.median.zip(row.interval.as_ref()).map(|(median, interval)| number::range(interval, median));
            let range = range.unwrap_or_else(|| number::NONE.to_owned());
            let _ = writeln!(
                out,
                "<td class=\"n\">{median}</td><td class=\"n\">{range}</td><td class=\"n\">{}</td></tr>",
                row.samples.len()
            );
        }
    }
    let _ = writeln!(out, "</tbody></table></div></div></section>");
}

fn method(out: &mut String, results: &Results) {
    let method = &results.method;
    let _ = writeln!(
        out,
        "<h2>How it was measured</h2>\n<p>This command measures it again:</p>\n<pre><code>{}</code></pre>\n<ul class=\"notes\">",
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
    let interval = if has_intervals(results) {
        "Intervals are distribution-free: two order statistics that hold the median with at least 95 %. Each stands for itself; of twenty, one may miss.".to_owned()
    } else {
        format!("Fewer than {RUNS_FOR_INTERVAL} runs give no interval.")
    };
    let mut notes = vec![
        guests.to_owned(),
        format!("{rounds} of {} s a run; {order}, in an order that follows from seed {}.", method.seconds, method.seed),
        interval,
        findings::how_ratios_are_made(results).to_owned(),
        "CPU time, register accesses and interrupts are taken over a round's bulk transmit and receive together, or, where nobody is outside, over its runs from guest to guest; a frame is one on the wire, after segmentation.".to_owned(),
    ];
    notes.extend(method.notes.iter().cloned());
    for note in notes {
        let _ = writeln!(out, "<li>{}</li>", Escaped(&note));
    }
    let _ = writeln!(out, "</ul>\n<p>Every sample is in <a href=\"results.json\">results.json</a>.</p>");
    runs(out, results);
}

fn percent(value: Option<f64>) -> String {
    value.map_or(number::NONE.to_owned(), |value| format!("{value:.1} %"))
}

fn runs(out: &mut String, results: &Results) {
    let _ = writeln!(
        out,
        "<details><summary>All {} runs in their order</summary>\n<div class=\"scroll\"><table><thead><tr><th scope=\"col\" class=\"n\">Run</th>\
         <th scope=\"col\" class=\"n\">Round</th><th scope=\"col\">Adapter</th><th scope=\"col\">Served by</th><th scope=\"col\">Load</th>\
         <th scope=\"col\" class=\"n\">Took</th><th scope=\"col\" class=\"n\">Stolen</th><th scope=\"col\">Failure</th></tr></thead><tbody>",
        results.runs.len()
    );
    for run in &results.runs {
        let _ = writeln!(
            out,
            "<tr><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{:.1} s</td><td class=\"n\">{}</td><td>{}</td></tr>",
            run.run.saturating_add(1),
            run.round.saturating_add(1),
            Escaped(&run.adapter),
            run.server.title(),
            run.load,
            run.took_seconds,
            percent(run.steal_percent),
            Escaped(run.failure.as_deref().unwrap_or_default()),
        );
    }
    let _ = writeln!(out, "</tbody></table></div></details>");
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
    let _ = writeln!(out, "<h2>The host</h2>\n<dl>");
    for (name, fact) in [
        ("Processor", host.cpu_model.clone()),
        ("Logical processors", host.cores.to_string()),
        ("Kernel", host.kernel.clone()),
        ("Processor time stolen", stolen),
        ("Date", host.date.clone()),
        ("Nicety", host.nicety_version.clone()),
    ] {
        let _ = writeln!(out, "<dt>{name}</dt><dd>{}</dd>", Escaped(&fact));
    }
    let _ = writeln!(out, "</dl>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::sample;

    #[test]
    fn the_page_needs_nothing_but_itself() {
        for results in [sample::embedded(), sample::two_servers(), sample::linked(), sample::quick()] {
            let page = page(&results);
            for outside in ["<script", "<link", "<img", "<iframe", "src=", "http:", "https:", "@import", "url("] {
                assert!(!page.contains(outside), "{outside}");
            }
            assert_eq!(page.matches("href=").count(), page.matches("href=\"results.json\"").count());
        }
    }

    #[test]
    fn the_page_opens_with_the_answer_and_ends_with_method_and_host() {
        let page = page(&sample::embedded());
        let order = [
            "<h1>Choose virtio-net if the guest has a driver for it</h1>",
            "virtio-net sent 2.00\u{a0}× as much as e1000 (95\u{a0}% interval 2.00\u{2060}–\u{2060}2.00).",
            "<h2>All figures</h2>",
            "<svg",
            "<h2>How it was measured</h2>",
            "<code>cargo run --release -- compare --seed 1</code>",
            "<h2>The host</h2>",
        ];
        let places: Vec<usize> = order.iter().map(|part| page.find(part).unwrap_or_else(|| panic!("{part}"))).collect();
        assert!(places.is_sorted(), "{places:?}");
    }

    #[test]
    fn every_test_has_a_chart_with_a_name_and_a_table_beside_it() {
        let page = page(&sample::two_servers());
        assert_eq!(page.matches("<svg").count(), Test::ALL.len());
        assert_eq!(page.matches("role=\"img\" aria-labelledby=").count(), Test::ALL.len());
        assert_eq!(page.matches("<table").count(), Test::ALL.len() + 2);
        assert!(page.contains("QEMU does not count it"));
        let linked = super::page(&sample::linked());
        assert!(linked.contains("<td>Nicety, stream ÷ QEMU</td>") && linked.contains("class=\"linked\""));
    }

    #[test]
    fn text_from_outside_cannot_become_markup() {
        let mut results = sample::embedded();
        let evil = "<script>alert(\"1\")</script>&'";
        results.host.kernel = evil.to_owned();
        results.method.command = evil.to_owned();
        results.method.notes = vec![evil.to_owned()];
        for run in &mut results.runs {
            (run.adapter, run.failure) = (evil.to_owned(), Some(evil.to_owned()));
        }
        for row in &mut results.rows {
            (row.adapter, row.absent) = (format!("{evil}{}", row.adapter), Some(evil.to_owned()));
        }
        let page = page(&results);
        assert!(!page.contains("<script"));
        assert!(page.contains("Example CPU &lt;9&gt;"));
    }

    #[test]
    fn elements_are_closed_in_the_order_in_which_they_are_opened() {
        for results in [sample::embedded(), sample::two_servers(), sample::linked(), sample::quick()] {
            let page = page(&results);
            let mut open: Vec<&str> = Vec::new();
            for tag in page.split('<').skip(1) {
                let name = tag.split(['>', ' ', '/']).find(|name| !name.is_empty()).unwrap_or_default();
                let single = matches!(name, "!doctype" | "meta" | "br" | "rect" | "circle" | "line" | "path");
                match tag.starts_with('/') {
                    true => assert_eq!(open.pop(), Some(name)),
                    false if !single => open.push(name),
                    false => {}
                }
            }
            assert!(open.is_empty(), "{open:?}");
        }
    }

    #[test]
    fn a_quick_comparison_promises_no_interval() {
        let page = page(&sample::quick());
        assert!(page.contains("Fewer than 7 runs give no interval."));
        assert!(!page.contains("class=\"whisker\"") && !page.contains("class=\"range\""));
    }
}
