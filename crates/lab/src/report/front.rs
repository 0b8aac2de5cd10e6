//! The first page: the answer as a headline; choice, cost and risk in plain words; the adapters in their order, each with its main
//! figures and the facts of its description.

use std::fmt::Write as _;

use nicety_adapters::{Kind, REGISTRY};

use super::figures;
use crate::advice::{about, advice};
use crate::choice;
use crate::choose::{choose, of_comparison};
use crate::findings;
use crate::method::Driver;
use crate::number;
use crate::results::{Results, Row, Test};
use crate::study::Study;
use crate::usual;
use nicety_chart::Escaped;

/// Tests whose figures stand in the table, as far as they were measured.
const TESTS: [Test; 3] = [Test::GuestToGuest, Test::RequestResponse, Test::CpuPerGigabit];

/// The page's title and its first sentence.
pub(super) fn headline(results: &Results) -> String {
    choice::headline(results).unwrap_or_else(|| match results.adapters().first() {
        Some(adapter) => format!("{adapter}: what it carries and what it costs"),
        None => "Nothing was measured".to_owned(),
    })
}

/// Writes the first page.
pub(super) fn front(out: &mut String, results: &Results, headline: &str) {
    let date = results.host.date.split('T').next().unwrap_or_default();
    let adapters = results.adapters().len();
    let plural = if adapters == 1 { "adapter" } else { "adapters" };
    // Writing to a `String` cannot fail. This file drops the results of `write!` for that reason.
    let _ = writeln!(
        out,
        "<header class=\"front\">\n<p class=\"kicker\">Nicety · {adapters} network {plural} compared · {}</p>",
        Escaped(date)
    );
    // The headline is the first sentence of the choice up to its reason, which begins the first part.
    let short = headline.split_once(": ").map_or(headline.trim_end_matches('.'), |(short, _)| short);
    let _ = writeln!(out, "<h1>{}</h1>\n<div class=\"advice\" id=\"choice\">", Escaped(short));
    let advice = advice(results);
    for (title, sentences) in [("Choice", &advice.choice), ("Cost", &advice.cost), ("Risk", &advice.risk)] {
        let _ = writeln!(out, "<section aria-label=\"{title}\"><p class=\"part\">{title}</p>");
        for sentence in sentences {
            let _ = writeln!(out, "<p>{}</p>", with_code(&unbroken(sentence)));
        }
        let _ = writeln!(out, "</section>");
    }
    let _ = writeln!(out, "</div>");
    if adapters > 0 {
        table(out, results);
    }
    let _ = writeln!(out, "</header>");
}

/// The adapters in their order, then those that are not ranked.
fn table(out: &mut String, results: &Results) {
    let Some(&server) = results.servers().first() else { return };
    let tests: Vec<Test> = TESTS.into_iter().filter(|test| results.tests().contains(test)).collect();
    figures::begin(out, "overview", "All adapters");
    figures::heads(out, &["Adapter", "Kind"], &tests, Test::unit, false);
    for name in ["Linux", "Windows", "Network boot", "Reached by"] {
        let _ = write!(out, "<th scope=\"col\">{name}</th>");
    }
    let _ = writeln!(out, "</tr></thead><tbody>");
    let order = choice::order(results);
    let rest = results.adapters().into_iter().filter(|name| !order.contains(name));
    for adapter in order.iter().copied().chain(rest) {
        let mark = results.driver(adapter, server).map_or("", Driver::title);
        let mark = if mark.is_empty() { String::new() } else { format!("<span class=\"driver\">{mark}</span>") };
        let facts = about(adapter);
        let kind = facts.map_or(number::NONE, |about| match about.kind {
            Kind::Emulated => "emulated",
            Kind::Paravirtual => "paravirtual",
        });
        let _ = write!(out, "<tr><th scope=\"row\">{}{mark}</th><td>{kind}</td>", Escaped(adapter));
        for test in &tests {
            let shown = results.row(adapter, *test, server).and_then(Row::shown);
            let _ = write!(out, "<td class=\"n\">{}</td>", shown.unwrap_or_else(|| number::NONE.to_owned()));
        }
        let boot = facts.map_or(number::NONE, |about| if about.boot.rom.is_some() { "yes" } else { "no" });
        let (linux, windows) =
            facts.map_or((number::NONE, number::NONE), |about| (about.linux.version, about.windows.version));
        let reached = facts.map_or(number::NONE.to_owned(), |about| about.transports.join(", "));
        let _ = writeln!(
            out,
            "<td>{}</td><td>{}</td><td>{boot}</td><td>{}</td></tr>",
            Escaped(linux),
            Escaped(windows),
            Escaped(&reached)
        );
    }
    figures::end(out);
    let served = if results.servers().len() > 1 { format!(" Served by {}.", server.title()) } else { String::new() };
    let order = if order.len() > 1 {
        "The best first, by the geometric mean of its rates, each as a fraction of the best. "
    } else {
        ""
    };
    let _ = writeln!(
        out,
        "<p class=\"about\">{order}Medians.{served} Linux and Windows: since when they have the driver, or where it comes from. Network boot: with the usual option ROMs.</p>"
    );
    chosen(out, results);
    if let Some(line) = results.loaded_line() {
        let _ = writeln!(out, "<p class=\"about\">{}</p>", Escaped(&line));
    }
}

/// Every adapter with what it needs from a guest of today, and why it is chosen or not. For a screen only.
fn chosen(out: &mut String, results: &Results) {
    let studies: Vec<Study> = of_comparison(results).into_iter().collect();
    let Some(usual) = usual::guests().into_iter().next() else { return };
    let Ok(choice) = choose(&usual.wishes, REGISTRY, &studies, &results.host) else { return };
    let _ = writeln!(
        out,
        "<details><summary>{}: what each adapter needs, and why it is chosen or not</summary><div class=\"scroll\" role=\"region\" aria-label=\"Which adapter\" tabindex=\"0\">{}</div></details>",
        Escaped(usual.guest),
        choice.table.html()
    );
}

/// The sentence, escaped, without line breaks inside its ratios and ranges.
pub(super) fn unbroken(sentence: &str) -> String {
    Escaped(sentence).to_string().replace(" ×", "\u{a0}×").replace('–', "\u{2060}–\u{2060}").replace(" % ", "\u{a0}% ")
}

/// The escaped sentence, with its command (if it has one) set as code.
fn with_code(sentence: &str) -> String {
    let command = findings::REAL_GUESTS_COMMAND;
    sentence.replace(command, &format!("<code>{command}</code>"))
}
