//! The choice as a table: the adapters as rows, the chosen one first; what each needs from the guest, its figures, and why it was chosen or
//! not. As text for a terminal, as Markdown, and for the report.

use std::fmt::Write as _;

use nicety_adapters::About;
use nicety_chart::Escaped;

use super::measured::{Column, column};
use super::{Driver, Prefer, System, Wishes, driver};
use crate::advice::about;
use crate::host::Host;
use crate::number;
use crate::study::Study;

/// Columns of figures.
const FIGURES: [Prefer; 3] = [Prefer::Throughput, Prefer::Processor, Prefer::Latency];

/// The table (see the module's page).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// The columns' heads: adapter, figures as far as there are some, needs, why.
    pub heads: Vec<String>,
    /// A row for each adapter.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// `fits`: the adapters that fit, the chosen one first, with the reason for it. `others`: those that do not fit, with the reason.
    pub(super) fn new(
        fits: &[&About],
        others: &[(String, String)],
        why: Option<&str>,
        (wishes, studies, here): (&Wishes, &[Study], &Host),
    ) -> Table {
        let names: Vec<&str> =
            fits.iter().map(|about| about.name).chain(others.iter().map(|(name, _)| name.as_str())).collect();
        let columns = FIGURES.map(|prefer| (prefer, column(prefer, &names, studies, here)));
        let columns: Vec<_> = columns.into_iter().filter(|(_, column)| !column.cells.is_empty()).collect();
        let decides = columns.iter().find(|(prefer, _)| *prefer == wishes.prefer).map(|(_, column)| column);
        let row = |(at, name): (usize, &&str)| {
            let reason = match (at, others.iter().find(|(other, _)| other == name)) {
                (_, Some((_, why))) => format!("Does not fit: {why}."),
                (0, None) => format!("Chosen. {}", why.unwrap_or_default()),
                (_, None) => beside(name, names.first().copied().unwrap_or_default(), decides),
            };
            let mut row = vec![(*name).to_owned()];
            row.extend(columns.iter().map(|(_, column)| figure(column, name)));
            row.extend([about(name).map_or_else(String::new, |about| needs(about, wishes)), reason]);
            row
        };
        let heads = ["Adapter".to_owned()].into_iter().chain(columns.iter().map(|(_, column)| column.head.clone()));
        let heads = heads.chain(["Needs".to_owned(), "Why".to_owned()]).collect();
        Table { heads, rows: names.iter().enumerate().map(row).collect() }
    }

    /// Number of columns of figures.
    pub fn figures(&self) -> usize {
        self.heads.len().saturating_sub(3)
    }

    /// The table as Markdown, with a line for each adapter.
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        // Figures stand at the right.
        let rule: Vec<&str> =
            (0..self.heads.len()).map(|at| if (1..=self.figures()).contains(&at) { "---:" } else { "---" }).collect();
        let rows = self.rows.iter().map(|row| line(row));
        line(&self.heads) + &format!("|{}|\n", rule.join("|")) + &rows.collect::<String>()
    }

    /// The table for the report. The needs of an adapter, and the reasons, stand below its name.
    pub fn html(&self) -> String {
        let mut out = "<table class=\"whom adapters\"><thead><tr>".to_owned();
        let figures = |row: &[String]| row.get(1..=self.figures()).unwrap_or_default().to_vec();
        // Writing to a `String` cannot fail. This function drops the results of `write!` for that reason.
        let _ = write!(out, "<th scope=\"col\">Adapter <span class=\"unit\">what it needs, and why</span></th>");
        for head in figures(&self.heads) {
            let _ = write!(out, "<th scope=\"col\" class=\"n\">{}</th>", Escaped(&head));
        }
        out.push_str("</tr></thead><tbody>\n");
        for row in &self.rows {
            let [needs, why] = [1, 2].map(|at| at + self.figures()).map(|at| row.get(at).cloned().unwrap_or_default());
            let _ = write!(
                out,
                "<tr><th scope=\"row\">{}<span class=\"because\">{}. {}</span></th>",
                Escaped(row.first().map_or("", String::as_str)),
                Escaped(&needs),
                Escaped(&why)
            );
            for figure in figures(row) {
                let _ = write!(out, "<td class=\"n\">{}</td>", Escaped(&figure));
            }
            out.push_str("</tr>\n");
        }
        out + "</tbody></table>\n"
    }
}

fn figure(column: &Column, adapter: &str) -> String {
    let known = column.cells.iter().find(|(name, _)| name == adapter);
    known.map_or_else(|| number::NONE.to_owned(), |(_, shown)| shown.clone())
}

/// The driver that an adapter needs in the guest.
fn needs(about: &About, wishes: &Wishes) -> String {
    let (system, since) = match wishes.system {
        System::Linux => ("Linux", &about.linux),
        System::Windows => ("Windows", &about.windows),
    };
    match driver(about, wishes) {
        Driver::InBox => format!("{}, in {system} since {}", since.driver, since.version),
        Driver::Install(from) => format!("{}, to be installed: {from}", since.driver),
        Driver::None(_) => format!("{}, which this {system} does not have", since.driver),
    }
}

/// Why an adapter that fits stands behind the first.
fn beside(adapter: &str, first: &str, decides: Option<&Column>) -> String {
    let ratio = decides.and_then(|column| column.ratios.iter().find(|(name, _)| name == adapter));
    match (ratio, decides) {
        (Some((_, ratio)), Some(column)) => {
            format!("Fits too, with {} the {} of {first}.", number::ratio_words(ratio), column.title)
        }
        _ => format!("Fits too, and stands behind {first} by its facts."),
    }
}
