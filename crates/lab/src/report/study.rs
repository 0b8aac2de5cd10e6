//! The page of a study, and the page in front of several: self-contained, without scripts, readable on paper and on a phone.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use nicety_adapters::Kind;

use super::front::unbroken;
use crate::advice::about;
use crate::folder::{self, PAGE, ReportError};
use crate::method::Server;
use crate::methods::{self, Chart, Figure, Method, Ratios, Table};
use crate::number;
use crate::plan::Length;
use crate::statistics::{Estimate, RUNS_FOR_INTERVAL};
use crate::study::figures::{self, Cell};
use crate::study::{ResultsError, Study, results};
use crate::subject::Subject;
use nicety_chart::Escaped;

mod bars;
mod detail;
mod front;
mod heat;
mod lines;
mod stack;
mod words;

const STYLE: &str = include_str!("style.css");
const INDEX: &str = "index.html";
/// The price of looking after each round (docs/lab.md, "Statistics"; the test that simulates it is in `study/bootstrap.rs`).
const LOOKING: &str = "To end at the first narrow interval costs some of its coverage: in simulated studies of one figure such intervals held the \
                       true median 92 to 98 times of 100, less often the wider the runs spread.";
/// The method whose results say how long a boot from the network takes.
const BOOT: &str = "boot";

/// Writes the page of the study in `folder` (`index.html`). Boot times come from the results beside it, if there are any.
///
/// # Errors
/// It cannot be written; the message names the remedy.
pub fn write(study: &Study, folder: &Path) -> Result<(), ReportError> {
    let boot = folder.parent().and_then(|parent| Study::read(&parent.join(BOOT)).ok());
    folder::write(folder, &[(INDEX, &page_with(study, boot.as_ref()))])
}

/// Writes the page in front of these studies, each with its folder, into `place`.
///
/// # Errors
/// It cannot be written; the message names the remedy.
pub fn write_front(place: &Path, studies: &[(PathBuf, Study)]) -> Result<(), ReportError> {
    folder::write(place, &[(INDEX, &front::page(place, studies))])
}

/// Checks that the pages can be written, before anything is measured: the one in `folder`, and the one in the method's own folder.
///
/// # Errors
/// A place is taken, or cannot be written.
pub fn check(folder: &Path, of_method: &Path) -> Result<(), ReportError> {
    folder::check(folder, &[INDEX])?;
    folder::check(of_method, &[INDEX, results::HEAD])
}

/// The studies in folders below `folder`, in the order of the methods. One that cannot be read is left out.
pub fn studies(folder: &Path) -> Vec<Study> {
    all_studies(folder).into_iter().filter_map(Result::ok).collect()
}

/// The studies in folders below `folder`, in the order of the methods, with the reason for each that cannot be read. A method without
/// results is neither.
pub fn all_studies(folder: &Path) -> Vec<Result<Study, ResultsError>> {
    let read = methods::ALL.iter().map(|method| Study::read(&folder.join(method.about().name)));
    read.filter(|read| !matches!(read, Err(ResultsError::Nothing(_)))).collect()
}

/// The text of a study's page.
pub fn page(study: &Study) -> String {
    page_with(study, None)
}

/// The text of a study's page. `boot` are results of the method `boot` on the same machine.
fn page_with(study: &Study, boot: Option<&Study>) -> String {
    let mut out = String::with_capacity(64 * 1024);
    let Some(method) = methods::find(&study.head.plan.method) else { return out };
    let about = method.about();
    // Writing to a `String` cannot fail. This file drops the results of `write!` for that reason.
    let _ = write!(out, "{PAGE}{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n", about.name);
    let date = study.head.host.date.split('T').next().unwrap_or_default();
    let document = about
        .document
        .map_or_else(|| "Nicety's own".to_owned(), |(number, title)| format!("document {number}: {title}"));
    let _ = writeln!(
        out,
        "<header>\n<p class=\"kicker\">Nicety's lab · {} · <span>{} guests · {}</span></p>\n<h1>{}</h1>",
        Escaped(&document),
        study.head.plan.guests,
        Escaped(date),
        unbroken(&words::headline(study, method)),
    );
    for sentence in words::summary(study, method) {
        let _ = writeln!(out, "<p>{}</p>", unbroken(&sentence));
    }
    out.push_str("<nav aria-label=\"On this page\">");
    let texts = study.runs.iter().any(|run| !run.texts.is_empty()).then_some(("shown", "What the guests show"));
    let failed = study.failed().next().map(|_| ("failed", "What failed"));
    let facts = has_facts(study).then_some(("beside", "What else decides"));
    let parts = [("figures", "Figures")].into_iter().chain(facts).chain(texts).chain(failed);
    for (id, title) in parts.chain([("method", "Method"), ("runs", "All runs"), ("host", "Host")]) {
        let _ = write!(out, "<a href=\"#{id}\">{title}</a> ");
    }
    out.push_str("</nav>\n</header>\n");
    heading(&mut out, "figures", "Figures");
    if let Some(line) = figures::loaded_line(study) {
        let _ = writeln!(out, "<p class=\"about\">{}</p>", Escaped(&line));
    }
    for chart in method.charts(&study.head.plan.loads) {
        match &chart {
            Chart::Ratios(chart) => ratios(&mut out, study, chart),
            Chart::Stack(chart) => out.push_str(&stack::section(study, chart)),
            Chart::Heat(chart) => out.push_str(&heat::section(study, method, chart)),
            Chart::Lines(chart) => out.push_str(&lines::section(study, chart)),
        }
    }
    let mut drawn: Vec<String> = Vec::new();
    for table in method.tables(&study.head.plan.loads) {
        // A load's first table has the figure of its series.
        let is_first = !drawn.contains(&table.load);
        drawn.push(table.load.clone());
        one_table(&mut out, study, method, &table, is_first);
    }
    if has_facts(study) {
        beside(&mut out, study, boot);
    }
    shown(&mut out, study);
    failures(&mut out, study);
    how(&mut out, study, method);
    runs(&mut out, study, method);
    host(&mut out, study);
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

fn heading(out: &mut String, id: &str, title: &str) {
    let _ = writeln!(
        out,
        "<h2 id=\"{id}\">{title} <a class=\"anchor\" href=\"#{id}\" aria-label=\"Link to this section\">#</a></h2>"
    );
}

/// Ratios of two adapters under several loads, in the form of a document's chart.
fn ratios(out: &mut String, study: &Study, chart: &Ratios) {
    let subject = |name: &str| {
        let ours = |subject: &&Subject| subject.adapter == name && subject.server == Some(Server::Nicety);
        study.head.plan.subjects.iter().find(ours)
    };
    let Some((of, base)) = subject(chart.of).zip(subject(chart.base)) else { return };
    let ratios = chart.loads.iter().map(|(label, load)| {
        let ratio = |(_, figure): &(&str, &str)| {
            let cell = |subject| figures::cell(study, subject, load, figure);
            figures::ratio(&cell(of), &cell(base))
        };
        (label, chart.figures.iter().map(ratio).collect::<Vec<_>>())
    });
    let ratios: Vec<_> = ratios.collect();
    if ratios.iter().all(|(_, ratios)| ratios.iter().all(Option::is_none)) {
        return;
    }
    let _ = writeln!(
        out,
        "<section class=\"test\"><header><h3>{}</h3><span>{} ÷ {}</span></header>\n<p class=\"about\">{}</p>\n<figure>{}</figure>",
        Escaped(&chart.title),
        chart.of,
        chart.base,
        Escaped(chart.about),
        bars::ratios(&ratios, chart),
    );
    out.push_str("<div class=\"scroll\"><table><thead><tr><th scope=\"col\">Load</th>");
    for (title, _) in chart.figures {
        let _ = write!(out, "<th scope=\"col\" class=\"n\">{title}</th>");
    }
    if chart.is_documents {
        out.push_str("<th scope=\"col\" class=\"n\">in the document</th>");
    }
    out.push_str("</tr></thead><tbody>\n");
    for (label, ratios) in &ratios {
        let _ = write!(out, "<tr><th scope=\"row\">{}</th>", Escaped(label));
        for ratio in ratios {
            let _ = write!(out, "<td class=\"n\">{}</td>", ratio_cell(ratio.as_ref()));
        }
        let document = if chart.is_documents { "<td class=\"n soft\">bars without numbers</td>" } else { "" };
        let _ = writeln!(out, "{document}</tr>");
    }
    out.push_str("</tbody></table></div></section>\n");
}

/// A figure's chart, and its table with the ratios beside the document's.
fn one_table(out: &mut String, study: &Study, method: &dyn Method, table: &Table, is_first: bool) {
    let Some(figure) = method.figures().iter().find(|figure| figure.name == table.figure) else { return };
    let cells = figures::column(study, table);
    if cells.iter().all(|cell| cell.samples.is_empty() && cell.failures.is_empty()) {
        return;
    }
    let better = if figure.direction == crate::results::Direction::Higher { "more" } else { "less" };
    let load = study.head.plan.load(&table.load).map_or("", |load| load.title.as_str());
    let _ = writeln!(
        out,
        "<section class=\"test\"><header><h3>{}</h3><span>{}; {}, {better} is better</span></header>",
        Escaped(&table.title),
        Escaped(load),
        figure.unit
    );
    let _ = writeln!(out, "<p class=\"about\">{}</p>", Escaped(table.about));
    if !figure.yes_or_no {
        let _ = writeln!(out, "<figure>{}</figure>", bars::bars(&cells, figure));
    }
    out.push_str(
        "<div class=\"scroll\"><table><thead><tr><th scope=\"col\">Adapter <span class=\"unit\">and its server</span></th>",
    );
    let _ =
        write!(out, "<th scope=\"col\" class=\"n\">{} <span class=\"unit\">{}</span></th>", figure.title, figure.unit);
    for base in bases(table, &cells) {
        let document = if has_document(table, base) { " <span class=\"unit\">and in the document</span>" } else { "" };
        let _ = write!(out, "<th scope=\"col\" class=\"n\">÷ {base}{document}</th>");
    }
    if has_peers(&cells) {
        out.push_str("<th scope=\"col\" class=\"n\">÷ QEMU's own</th>");
    }
    out.push_str("<th scope=\"col\" class=\"n\">Runs</th><th scope=\"col\">Remark</th></tr></thead><tbody>\n");
    for cell in &cells {
        row(out, table, &cells, cell, figure);
    }
    out.push_str("</tbody></table></div>\n");
    if is_first {
        out.push_str(&detail::over_time(study, table, figure.unit));
        out.push_str(&detail::latencies(study, &table.load));
    }
    out.push_str("</section>\n");
}

fn row(out: &mut String, table: &Table, cells: &[Cell], cell: &Cell, figure: &Figure) {
    // Below the name: on a phone a column for it would push the figures out of sight.
    let driver = cell.subject.driver.map_or(String::new(), |driver| format!(", {}", driver.title()));
    let adapter = &cell.subject.adapter;
    let value = figures::value(cell, figure);
    let value = match value.split_once(" [") {
        Some((median, range)) => format!("{median}<span class=\"range\">{}</span>", range.trim_end_matches(']')),
        None => value,
    };
    let _ = write!(
        out,
        "<tr><th scope=\"row\">{}<span class=\"driver\">{}{driver}</span></th><td class=\"n\">{value}</td>",
        Escaped(adapter),
        cell.subject.served()
    );
    for base in bases(table, cells) {
        let of = figures::base_of(cells, cell, base).filter(|other| other.subject != cell.subject);
        let ratio = of.and_then(|of| figures::ratio(cell, of));
        let document = figures::documents(table, adapter, base);
        let document =
            document.map_or(String::new(), |ratio| format!("<span class=\"range\">document {ratio:.2}</span>"));
        let _ = write!(out, "<td class=\"n\">{}{document}</td>", ratio_cell(ratio.as_ref()));
    }
    if has_peers(cells) {
        let ratio = figures::peer_of(cells, cell).and_then(|of| figures::ratio(cell, of));
        let _ = write!(out, "<td class=\"n\">{}</td>", ratio_cell(ratio.as_ref()));
    }
    let failed = match cell.failures.len() {
        0 => None,
        1 => Some("1 run failed".to_owned()),
        n => Some(format!("{n} runs failed")),
    };
    let remarks: Vec<String> = failed.into_iter().chain(cell.marks.iter().cloned()).collect();
    let class = if cell.failures.is_empty() { "" } else { " class=\"worse\"" };
    let _ = writeln!(
        out,
        "<td class=\"n\">{}</td><td{class}>{}</td></tr>",
        cell.samples.len(),
        Escaped(&remarks.join("; "))
    );
}

/// The bases that were measured.
fn bases<'a>(table: &'a Table, cells: &'a [Cell]) -> impl Iterator<Item = &'static str> + 'a {
    table.bases.iter().copied().filter(|base| cells.iter().any(|cell| cell.subject.adapter == *base))
}

/// Whether a row is QEMU's.
fn has_peers(cells: &[Cell]) -> bool {
    cells.iter().any(|cell| cell.subject.server == Some(Server::Qemu))
}

/// Whether the document has a ratio to this base.
fn has_document(table: &Table, base: &str) -> bool {
    table.document.iter().any(|(_, to, _)| *to == base)
}

fn ratio_cell(ratio: Option<&Estimate>) -> String {
    let Some(ratio) = ratio else { return number::NONE.to_owned() };
    let range =
        number::ratio_range(ratio).map_or(String::new(), |range| format!("<span class=\"range\">{range}</span>"));
    format!("{}{range}", number::ratio(ratio))
}

/// Seconds of booting from the network: a heading for each load of these results.
fn boots(boot: Option<&Study>) -> Vec<(&Study, &crate::plan::Load)> {
    boot.into_iter().flat_map(|study| study.head.plan.loads.iter().map(move |load| (study, load))).collect()
}

/// An adapter's median time to a loaded kernel, at our own server: unpacking itself, which follows, is the same with each adapter.
fn boot_time(study: &Study, load: &crate::plan::Load, adapter: &str) -> String {
    let Some(figure) =
        methods::find(BOOT).and_then(|method| method.figures().iter().find(|figure| figure.name == "loaded"))
    else {
        return number::NONE.to_owned();
    };
    let ours = Subject::new(adapter, Server::Nicety);
    let of = figures::cell(study, &ours, &load.name, figure.name).estimate;
    of.map_or(number::NONE.to_owned(), |of| format!("{} {}", number::figure(of.median), figure.unit))
}

/// Whether rows are adapters, of which something else is known.
fn has_facts(study: &Study) -> bool {
    study.head.plan.adapters().iter().any(|name| about(name).is_some())
}

/// Facts of the adapters that decide beside figures.
fn beside(out: &mut String, study: &Study, boot: Option<&Study>) {
    heading(out, "beside", "What else decides");
    let boots = boots(boot);
    let asked = study.head.plan.method == "vmxnet3-iperf" && boots.is_empty();
    let hole = match (asked, methods::find(BOOT)) {
        (false, _) => "",
        (true, Some(_)) => {
            " Seconds from power-on to a loaded kernel by PXE are not measured here: <code>nicety lab run boot</code> does."
        }
        (true, None) => {
            " Seconds from power-on to a kernel by PXE are not measured: the method <code>boot</code> is not there yet."
        }
    };
    let _ = writeln!(
        out,
        "<p class=\"about\">From <code>nicety adapters</code>, which gives the sources. The link speed that an adapter shows is no limit.{hole}</p>"
    );
    out.push_str(
        "<div class=\"scroll\"><table><thead><tr><th scope=\"col\">Adapter</th><th scope=\"col\">Kind</th><th scope=\"col\" class=\"n\">Link shown</th>\
         <th scope=\"col\">Boots by PXE</th>",
    );
    for (_, load) in &boots {
        let _ = write!(out, "<th scope=\"col\" class=\"n\">To a loaded kernel: {}</th>", Escaped(&load.title));
    }
    out.push_str(
        "<th scope=\"col\">Driver in Linux</th><th scope=\"col\">Driver in Windows</th></tr></thead><tbody>\n",
    );
    for name in study.head.plan.adapters() {
        let Some(about) = about(name) else { continue };
        let kind = if about.kind == Kind::Paravirtual { "paravirtual" } else { "emulated" };
        let pxe = if about.boot.rom.is_some() { "yes" } else { "no" };
        let times: String = boots
            .iter()
            .map(|(study, load)| format!("<td class=\"n\">{}</td>", boot_time(study, load, name)))
            .collect();
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">{name}</th><td>{kind}</td><td class=\"n\">{} Mbit/s</td><td>{pxe}</td>{times}<td>{}, {}</td><td>{}, {}</td></tr>",
            number::fixed(f64::from(about.link_mbps), 0),
            about.linux.driver,
            about.linux.version,
            about.windows.driver,
            about.windows.version,
        );
    }
    out.push_str("</tbody></table></div>\n");
}

/// Texts that the guests showed, of each subject's last run.
fn shown(out: &mut String, study: &Study) {
    if study.runs.iter().all(|run| run.texts.is_empty()) {
        return;
    }
    heading(out, "shown", "What the guests show");
    for subject in &study.head.plan.subjects {
        let last = study.runs.iter().rev().find(|run| run.subject == *subject && !run.texts.is_empty());
        let Some(run) = last else { continue };
        let _ = writeln!(out, "<h3>{}</h3>", Escaped(&subject.to_string()));
        for (title, text) in &run.texts {
            let _ = writeln!(out, "<h4>{}</h4>\n<pre><code>{}</code></pre>", Escaped(title), Escaped(text.trim_end()));
        }
    }
}

fn failures(out: &mut String, study: &Study) {
    if study.failed().next().is_none() {
        return;
    }
    heading(out, "failed", "What failed");
    for run in study.failed() {
        let _ = writeln!(
            out,
            "<h4>Round {}: {}, {}</h4>\n<pre><code>{}</code></pre>",
            run.round.saturating_add(1),
            Escaped(&run.subject.to_string()),
            Escaped(&run.load),
            Escaped(run.failure.as_deref().unwrap_or_default())
        );
    }
}

fn how(out: &mut String, study: &Study, method: &dyn Method) {
    let (head, plan) = (&study.head, &study.head.plan);
    heading(out, "method", "How it was measured");
    let _ = writeln!(
        out,
        "<p>This command measures it again:</p>\n<pre><code>{}</code></pre>\n<p>What ran:</p>\n<pre><code>",
        Escaped(&head.command)
    );
    for load in &plan.loads {
        for command in &load.commands {
            let _ = writeln!(out, "{}", Escaped(command));
        }
    }
    out.push_str("</code></pre>\n<ul class=\"notes\">\n");
    let interval = if (study.rounds() as usize) < RUNS_FOR_INTERVAL {
        format!("Fewer than {RUNS_FOR_INTERVAL} runs give no interval: a first look.")
    } else {
        "A figure is the median of its runs; brackets and whiskers are its bootstrap 95 % interval. Of twenty, one may miss.".to_owned()
    };
    let mut notes = vec![
        format!(
            "{}; in each, every row has its turn, in an order that follows from seed {}.",
            rounds(study),
            plan.seed
        ),
        interval,
        "A ratio is the median of the ratios within a round, so that what disturbs both cancels out.".to_owned(),
    ];
    notes.extend(plan.confidence.map(|share| confidence(study, method, share)));
    if plan.length != Length::Full {
        notes.push("Shorter runs than the document's: --full has its durations.".to_owned());
    }
    if !head.optimised {
        notes.insert(0, "Nicety was built without optimisation: these figures say nothing about its speed.".to_owned());
    }
    for note in notes.iter().chain(&head.notes) {
        let _ = writeln!(out, "<li>{}</li>", Escaped(note));
    }
    let _ = writeln!(
        out,
        "</ul>\n<p>Every sample is in <a href=\"{runs}\">{runs}</a>, a line a run; the plan is in <a href=\"{head}\">{head}</a>.</p>",
        runs = results::RUNS,
        head = results::HEAD
    );
}

/// The rounds that were made, of those that were planned.
fn rounds(study: &Study) -> String {
    let (made, planned) = (study.rounds(), study.head.plan.repeat);
    let word = if made == 1 { "round" } else { "rounds" };
    match study.head.plan.confidence {
        Some(_) => format!("{made} {word}, of at most {planned}"),
        None if made < planned => format!("{made} {word} so far, of {planned}"),
        None => format!("{made} {word}"),
    }
}

/// The rule that ends a study early, and whether it did.
fn confidence(study: &Study, method: &dyn Method, share: f64) -> String {
    let (percent, made) = ((share * 1000.0).round() / 10.0, study.rounds() as usize);
    let wide = figures::too_wide(study, method, share).count();
    let reached = match wide {
        _ if made < RUNS_FOR_INTERVAL => "Not reached yet".to_owned(),
        0 => "Reached".to_owned(),
        1 => "Not reached: 1 interval is wider".to_owned(),
        n => format!("Not reached: {n} intervals are wider"),
    };
    format!(
        "It ends when the interval of each figure in the tables reaches at most {percent} % of its median to either side, which is looked at after \
         each round from the {RUNS_FOR_INTERVAL}th on. {reached}. {LOOKING}"
    )
}

fn runs(out: &mut String, study: &Study, method: &dyn Method) {
    let _ = writeln!(
        out,
        "<details id=\"runs\"><summary>All {} runs in their order</summary><div class=\"scroll\"><table><thead><tr><th scope=\"col\" class=\"n\">Round</th>\
         <th scope=\"col\">Row</th><th scope=\"col\">Load</th><th scope=\"col\" class=\"n\">Took</th><th scope=\"col\" class=\"n\">Stolen</th><th scope=\"col\" class=\"n\">Others</th><th scope=\"col\">Figures</th></tr></thead><tbody>",
        study.runs.len()
    );
    for run in &study.runs {
        let known =
            |figure: &Figure| Some(format!("{} {}", number::figure(*run.figures.get(figure.name)?), figure.unit));
        let mut said: Vec<String> = method.figures().iter().filter_map(known).collect();
        said.extend(run.discarded.then(|| "repeated, counts nowhere".to_owned()));
        said.extend(run.failure.as_ref().map(|_| "failed".to_owned()));
        let [steal, others] = [run.steal_percent, run.others_percent]
            .map(|percent| percent.map_or(number::NONE.to_owned(), |percent| format!("{percent:.1} %")));
        let _ = writeln!(
            out,
            "<tr><td class=\"n\">{}</td><td>{}</td><td>{}</td><td class=\"n\">{:.1} s</td><td class=\"n\">{steal}</td><td class=\"n\">{others}</td><td>{}</td></tr>",
            run.round.saturating_add(1),
            Escaped(&run.subject.to_string()),
            Escaped(&run.load),
            run.took_seconds,
            Escaped(&said.join(", ")),
        );
    }
    out.push_str("</tbody></table></div></details>\n");
}

fn host(out: &mut String, study: &Study) {
    let host = &study.head.host;
    heading(out, "host", "The host");
    out.push_str("<dl>\n");
    let steals: Vec<f64> = study.runs.iter().filter_map(|run| run.steal_percent).collect();
    let most = steals.iter().copied().fold(f64::NAN, f64::max);
    let stolen = if most.is_nan() { "not known".to_owned() } else { format!("at most {most:.1} % during a run") };
    let or = |known: &Option<String>| known.clone().unwrap_or_else(|| "not known".to_owned());
    for (name, fact) in [
        ("Processor", host.cpu_model.clone()),
        ("Logical processors", host.cores.to_string()),
        ("Memory", host.memory_bytes.map_or("not known".to_owned(), number::memory)),
        ("Hypervisor", or(&host.hypervisor)),
        ("Kernel", host.kernel.clone()),
        ("Processor time stolen", stolen),
        ("Date", host.date.clone()),
        ("Nicety", host.nicety_version.clone()),
    ] {
        let _ = writeln!(out, "<dt>{name}</dt><dd>{}</dd>", Escaped(&fact));
    }
    out.push_str("</dl>\n");
}

/// A study's first figures as a table for a terminal.
pub fn table(study: &Study) -> String {
    let mut text = String::new();
    let Some(method) = methods::find(&study.head.plan.method) else { return text };
    for chart in method.charts(&study.head.plan.loads) {
        let Chart::Heat(chart) = chart else { continue };
        let Some(figure) = method.figures().iter().find(|figure| figure.name == chart.figure) else { continue };
        let rows = heat::rows(study, figure, &chart);
        if !rows.is_empty() {
            text += &columns(&rows);
            text.push('\n');
        }
    }
    for table in method.tables(&study.head.plan.loads) {
        let Some(figure) = method.figures().iter().find(|figure| figure.name == table.figure) else { continue };
        let cells = figures::column(study, &table);
        if cells.iter().all(|cell| cell.samples.is_empty() && cell.failures.is_empty()) {
            continue;
        }
        let mut head = vec![format!("{}, {}", table.title, figure.unit), "MEDIAN".to_owned()];
        head.extend(bases(&table, &cells).map(|base| format!("÷ {base}")));
        head.extend(has_peers(&cells).then(|| "÷ QEMU".to_owned()));
        let mut rows = vec![head];
        for cell in &cells {
            let value = figures::value(cell, figure);
            let ratio = |base: &str| {
                let of = figures::base_of(&cells, cell, base).filter(|other| other.subject != cell.subject);
                let ratio = of.and_then(|of| figures::ratio(cell, of));
                let document = figures::documents(&table, &cell.subject.adapter, base);
                let document = document.map_or(String::new(), |ratio| format!(" (document {ratio:.2})"));
                ratio.map_or(number::NONE.to_owned(), |ratio| number::ratio(&ratio) + &document)
            };
            let mut row = vec![format!("  {}", cell.subject), value];
            row.extend(bases(&table, &cells).map(ratio));
            if has_peers(&cells) {
                let peer = figures::peer_of(&cells, cell).and_then(|of| figures::ratio(cell, of));
                row.push(peer.map_or(number::NONE.to_owned(), |ratio| number::ratio(&ratio)));
            }
            rows.push(row);
        }
        text += &columns(&rows);
        text.push('\n');
    }
    if let Some(line) = figures::loaded_line(study) {
        text += &format!("{line}\n");
    }
    text
}

/// Rows with aligned columns, two spaces apart.
fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
