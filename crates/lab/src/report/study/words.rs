//! A study in plain words: sentences from its figures and from what `nicety adapters` knows, never beyond them.

use nicety_adapters::Kind;

use crate::advice::about;
use crate::findings::and;
use crate::method::Server;
use crate::methods::{Method, Table};
use crate::number;
use crate::results::Direction;
use crate::statistics::Estimate;
use crate::study::Study;
use crate::study::figures::{self, Cell};

/// The page's headline.
pub fn headline(study: &Study, method: &dyn Method) -> String {
    let tables = method.tables(&study.head.plan.loads);
    let Some(table) = tables.first() else { return method.about().line.to_owned() };
    let cells = figures::column(study, table);
    let Some(best) = best(&cells, method, table) else { return "Nothing was measured yet".to_owned() };
    let with = table.bases.iter().find_map(|base| {
        let ratio =
            figures::ratio(best, figures::base_of(&cells, best, base).filter(|of| of.subject != best.subject)?)?;
        let (adapter, ratio_words) = (&best.subject.adapter, number::ratio_words(&ratio));
        let figure = method.figures().iter().find(|figure| figure.name == table.figure);
        let carries = match figure.filter(|figure| figure.direction == Direction::Lower) {
            Some(figure) => format!("{adapter} has {ratio_words} the {} of {base}", lower_first(figure.title)),
            None => format!("{adapter} carries {ratio_words} what {base} does"),
        };
        Some(if ratio.interval.is_some() { carries } else { format!("First look: {carries}") })
    });
    with.unwrap_or_else(|| {
        let look = if best.estimate.is_some_and(|of| of.interval.is_some()) { "" } else { "First look: " };
        format!("{look}{} is ahead in {}", best.subject.adapter, lower_first(&table.title))
    })
}

/// A title within a sentence: `Latency` becomes `latency`, `CPU` stays.
fn lower_first(title: &str) -> String {
    let mut letters = title.chars();
    match (letters.next(), letters.clone().next()) {
        (Some(first), Some(second)) if second.is_lowercase() => first.to_lowercase().chain(letters).collect(),
        _ => title.to_owned(),
    }
}

/// The best of our own rows.
fn best<'a>(cells: &'a [Cell], method: &dyn Method, table: &Table) -> Option<&'a Cell> {
    let direction = method.figures().iter().find(|figure| figure.name == table.figure)?.direction;
    // A driver in user space costs what a kernel's does not: such rows are not ranked.
    let ranked = |cell: &&Cell| cell.subject.server == Some(Server::Nicety) && cell.subject.driver.is_none();
    let ours = cells.iter().filter(ranked).filter(|cell| cell.estimate.is_some());
    let by = |cell: &&Cell| {
        cell.estimate.map_or(0.0, |of| if direction == Direction::Higher { of.median } else { -of.median })
    };
    ours.max_by(|a, b| by(a).total_cmp(&by(b)))
}

/// A ratio of two of our rows that the document has too.
pub struct Beside {
    /// The table's title.
    pub title: String,
    /// The adapter whose figure is divided.
    pub adapter: &'static str,
    /// The adapter by whose figure it is divided.
    pub base: &'static str,
    /// Our ratio.
    pub ratio: Estimate,
    /// The document's.
    pub document: f64,
}

/// The document's ratios of which we measured both rows. A pair has one ratio: its inverse says nothing new.
pub fn beside_documents(study: &Study, method: &dyn Method) -> Vec<Beside> {
    let mut beside = Vec::new();
    for table in method.tables(&study.head.plan.loads) {
        let cells = figures::column(study, &table);
        let row =
            |name: &str| cells.iter().find(|c| c.subject.adapter == name && c.subject.server == Some(Server::Nicety));
        for (at, (adapter, base, document)) in table.document.iter().enumerate() {
            let is_inverse = table.document.iter().take(at).any(|(one, other, _)| (one, other) == (base, adapter));
            let ratio = row(adapter).zip(row(base)).and_then(|(one, of)| figures::ratio(one, of));
            if let Some(ratio) = ratio.filter(|_| !is_inverse) {
                beside.push(Beside { title: table.title.clone(), adapter, base, ratio, document: *document });
            }
        }
    }
    beside
}

/// A paragraph for whoever must choose: sentences.
pub fn summary(study: &Study, method: &dyn Method) -> Vec<String> {
    let mut said = Vec::new();
    if !study.head.optimised {
        said.push("Nicety was built without optimisation: these figures say nothing about its speed.".to_owned());
    }
    for Beside { title, adapter, base, ratio, document } in beside_documents(study, method) {
        let range = number::ratio_range(&ratio).map_or(String::new(), |range| format!(" [{range}]"));
        said.push(format!(
            "{title}: {adapter} has {}{range} what {base} has; the document's hypervisor, guests and hardware gave {document:.2} ×.",
            number::ratio_words(&ratio)
        ));
    }
    if let Some(table) = method.tables(&study.head.plan.loads).first() {
        let cells = figures::column(study, table);
        if let Some(best) = best(&cells, method, table) {
            said.extend(whom(&best.subject.adapter));
        }
    }
    let failed = study.failed().count();
    if failed > 0 {
        let mut names: Vec<String> = study.failed().map(|run| run.subject.to_string()).collect();
        names.sort();
        names.dedup();
        let runs = if failed == 1 { "1 run".to_owned() } else { format!("{failed} runs") };
        said.push(format!("{runs} failed, of {}: see below.", and(&names)));
    }
    said
}

/// The guests that an adapter is for.
fn whom(adapter: &str) -> Option<String> {
    let about = about(adapter)?;
    let kind = match about.kind {
        Kind::Paravirtual => "is made for virtual machines and needs its own driver",
        Kind::Emulated => "imitates a chip, so most systems have its driver",
    };
    let boot = if about.boot.rom.is_some() {
        "boots from the network by the usual option ROMs"
    } else {
        "has no usual option ROM for network boot"
    };
    Some(format!(
        "{adapter} {kind} (Linux: {}, {}; Windows: {}, {}), and {boot}.",
        about.linux.driver, about.linux.version, about.windows.driver, about.windows.version
    ))
}
