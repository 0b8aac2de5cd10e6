//! Tests of the page on paper: Chromium prints it, and poppler reads the sheets. The typefaces are wide ones: others need no more room.

use std::io::Write as _;
use std::path::Path;

use nicety_guests::{Error, Tool};

use crate::method::{Guests, Server};
use crate::results::{Results, sample};

/// The report fits so many sheets, whatever was compared.
const SHEETS_MAX: usize = 8;
/// A sheet with fewer lines of text is a heading alone, or a remainder.
const LINES_MIN: usize = 6;

/// The programs that print and read.
fn tools() -> Result<[Tool; 2], Error> {
    Ok([Tool::chromium(&mut |_| {})?, Tool::pdftotext(&mut |_| {})?])
}

/// The text of each sheet.
fn printed([chromium, pdftotext]: &[Tool; 2], page: &str, folder: &Path) -> Vec<String> {
    let (html, pdf) = (folder.join("page.html"), folder.join("page.pdf"));
    std::fs::write(&html, page).unwrap();
    let mut print = chromium.browser(folder).unwrap();
    print.arg("--no-pdf-header-footer");
    print.arg(format!("--print-to-pdf={}", pdf.display())).arg(format!("file://{}", html.display()));
    let ended = print.output().unwrap();
    assert!(ended.status.success() && pdf.exists(), "{}", String::from_utf8_lossy(&ended.stderr));
    let text = pdftotext.command().args(["-layout", "-enc", "UTF-8"]).arg(&pdf).arg("-").output().unwrap();
    std::fs::remove_file(&pdf).unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    // Each sheet ends with a form feed.
    text.strip_suffix('\u{c}').unwrap_or(&text).split('\u{c}').map(str::to_owned).collect()
}

/// The titles of the page's headings.
fn headings(page: &str) -> Vec<&str> {
    let begins = ["<h2 id=\"", "<h3 id=\""].into_iter().flat_map(|tag| page.match_indices(tag));
    let title =
        |(at, _): (usize, &str)| page[at..].split_once('>').and_then(|(_, rest)| rest.split('<').next()).map(str::trim);
    begins.filter_map(title).collect()
}

fn check(results: &Results, page: &str, sheets: &[String], what: &str) {
    assert!((2..=SHEETS_MAX).contains(&sheets.len()), "{what}: {} sheets", sheets.len());
    assert!(["Choice", "Cost", "Risk"].iter().all(|part| sheets[0].contains(part)), "{what}: {}", sheets[0]);
    let adapters = results.adapters();
    assert!(adapters.iter().all(|adapter| sheets[0].contains(adapter)), "{what}: the first sheet lacks one");
    assert!(!sheets[0].contains("What was found"), "{what}: the first page has its sheet for itself");
    let titles = headings(page);
    assert!(["Guest to guest", "The host"].iter().all(|title| titles.contains(title)), "{titles:?}");
    for (number, sheet) in sheets.iter().enumerate() {
        let lines: Vec<&str> = sheet.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        assert!(lines.len() >= LINES_MIN, "{what}, sheet {number}: {lines:?}");
        let last = lines.last().unwrap();
        let is_heading = titles.iter().any(|title| last == title || last.starts_with(&format!("{title}  ")));
        assert!(!is_heading && !last.contains("is better"), "{what}, sheet {number} ends with a heading: {last}");
        // A chart begins with its unit and ends with its last adapter.
        let charts = sheet.matches(", more is better").count() + sheet.matches(", less is better").count();
        let ends = sheet.matches(adapters.last().unwrap()).count();
        assert!(charts <= ends, "{what}, sheet {number}: {charts} charts begin, {ends} end");
    }
    let charts: usize = sheets.iter().map(|sheet| sheet.matches(" is better").count()).sum();
    assert!(charts >= results.tests().len(), "{what}: {charts} charts");
}

#[test]
fn the_page_prints_on_eight_sheets_and_no_heading_stands_alone() {
    let tools = match tools() {
        Ok(tools) => tools,
        Err(error) => {
            // Writes past the harness, which captures the output of tests that pass.
            let test = "report::paper::the_page_prints_on_eight_sheets_and_no_heading_stands_alone";
            let _stdout_closed = writeln!(std::io::stdout(), "\nSKIPPED {test}: it cannot be laid: {error}");
            return;
        }
    };
    let folder = std::env::temp_dir().join(format!("nicety-paper-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let all = |guests, servers: &[Server]| sample::every_adapter(guests, servers);
    for (name, results) in [
        ("two adapters", sample::embedded()),
        ("embedded guests", all(Guests::Embedded, &[Server::Nicety])),
        ("guests in QEMU", all(Guests::Qemu, &[Server::Nicety, Server::Qemu])),
        ("user-mode guests", all(Guests::Uml, &Server::ALL)),
    ] {
        let page = super::page(&results);
        // A print takes eight seconds of a processor. Letter is shorter and wider: the longest report shows what it changes.
        let papers = if name.starts_with("user-mode") || std::env::var("NICETY_FULL").is_ok_and(|full| full == "1") {
            &["A4", "letter"][..]
        } else {
            &["A4"]
        };
        for paper in papers {
            let sized = page.replace("size: portrait", &format!("size: {paper} portrait"));
            assert_ne!(sized, page);
            let sheets = printed(&tools, &sized, &folder);
            check(&results, &page, &sheets, &format!("{name} on {paper}"));
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
