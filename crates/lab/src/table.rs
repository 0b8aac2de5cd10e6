//! The table for a terminal: adapters as rows, tests as columns, units in the head, intervals beside the medians.
//!
//! The table is split into blocks, so that it fits [`WIDTH`] columns with any figures: a column that does not fit beside the others
//! starts a new block.

use crate::findings;
use crate::host::LOADED_MARK;
use crate::method::Server;
use crate::number;
use crate::results::{Results, Row, Test};
use crate::statistics::RUNS_FOR_INTERVAL;

/// Terminal width that the table fits, in columns.
pub const WIDTH: usize = 100;

/// Gap between two columns.
const GAP: &str = "  ";

/// Tests grouped by block.
const BLOCKS: [&[Test]; 3] = [
    &[Test::BulkTransmit, Test::BulkReceive, Test::GuestToGuest],
    &[Test::RequestResponse, Test::RrP50, Test::RrP99],
    &[
        Test::CpuPerGigabit,
        Test::GuestCpuPerGigabit,
        Test::ReadsPerFrame,
        Test::WritesPerFrame,
        Test::InterruptsPerFrame,
    ],
];

/// A column: two header lines, and a cell per line of the table.
struct Column {
    heads: [String; 2],
    cells: Vec<Cell>,
}

/// A figure, aligned to the right, and the text after it, aligned to the left.
#[derive(Default)]
struct Cell {
    figure: String,
    after: String,
}

/// A line of the table: an adapter's figures under a server, or their ratio to QEMU's.
#[derive(Clone, Copy)]
enum Line<'a> {
    Figures(&'a str, Server),
    Ratio(&'a str, Server),
}

impl<'a> Line<'a> {
    fn adapter(&self) -> &'a str {
        let (Line::Figures(adapter, _) | Line::Ratio(adapter, _)) = self;
        adapter
    }

    /// Label of the line. A ratio names its server only if several are compared.
    fn name(&self, compared: usize) -> &'static str {
        match self {
            Line::Figures(_, Server::Nicety) => "nicety",
            Line::Figures(_, Server::NicetyStream) => "nicety-stream",
            Line::Figures(_, Server::Qemu) => "qemu",
            Line::Ratio(..) if compared < 2 => "ratio",
            Line::Ratio(_, Server::NicetyStream) => "stream ÷ qemu",
            Line::Ratio(..) => "nicety ÷ qemu",
        }
    }
}

/// Number of lines of a reason that the table shows.
const REASON_LINES: usize = 2;

/// Reasons for missing figures, numbered in order of appearance.
#[derive(Default)]
struct Footnotes(Vec<String>);

impl Footnotes {
    fn mark(&mut self, reason: &str) -> String {
        let index = self.0.iter().position(|known| known == reason).unwrap_or_else(|| {
            self.0.push(reason.to_owned());
            self.0.len() - 1
        });
        superscript(index + 1)
    }
}

fn superscript(number: usize) -> String {
    const DIGITS: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    number.to_string().bytes().filter_map(|digit| DIGITS.get(usize::from(digit.wrapping_sub(b'0')))).collect()
}

/// The first lines of a reason, which may contain a long console log.
fn brief(reason: &str) -> String {
    match reason.match_indices('\n').nth(REASON_LINES - 1) {
        Some((end, _)) => format!("{} … (results.json has the rest)", &reason[..end]),
        None => reason.to_owned(),
    }
}

/// The whole table with its title, its footnotes and a note on the drivers. It ends with a newline.
pub fn render(results: &Results) -> String {
    let lines = lines(results);
    let present = results.tests();
    let mut footnotes = Footnotes::default();
    let mut out = title(results);
    for block in BLOCKS {
        let columns: Vec<Column> = block
            .iter()
            .filter(|test| present.contains(test))
            .map(|test| column(results, &lines, *test, &mut footnotes))
            .collect();
        out.push_str(&laid(&labels(&lines, results), columns));
    }
    for (index, reason) in footnotes.0.iter().enumerate() {
        out.push('\n');
        out.push_str(&wrapped(&format!("{} {}.", superscript(index + 1), brief(reason))));
    }
    if !footnotes.0.is_empty() {
        out.push('\n');
    }
    if let Some(line) = results.loaded_line() {
        out.push('\n');
        out.push_str(&wrapped(&line));
        out.push('\n');
    }
    if !results.compared().is_empty() {
        out.push('\n');
        out.push_str(&wrapped(findings::how_ratios_are_made(results)));
        out.push('\n');
    }
    out.push('\n');
    out.push_str(&wrapped(&findings::judged_under(results)));
    out.push('\n');
    out
}

fn title(results: &Results) -> String {
    let repeat = results.method.repeat;
    let (runs, interval) = match repeat {
        1 => ("One run".to_owned(), ""),
        _ if (repeat as usize) < RUNS_FOR_INTERVAL => (format!("Medians of {repeat} runs"), ""),
        _ => (format!("Medians of {repeat} runs"), " [95 % interval]"),
    };
    let none =
        if interval.is_empty() { format!("; fewer than {RUNS_FOR_INTERVAL} runs: no interval") } else { String::new() };
    let ratio = if results.compared().len() == 1 { "; ratio: nicety ÷ qemu" } else { "" };
    format!("{runs} of {} s{interval}{none}{ratio}\n", results.method.seconds)
}

fn lines(results: &Results) -> Vec<Line<'_>> {
    let servers = results.servers();
    let mut lines = Vec::new();
    for adapter in results.adapters() {
        lines.extend(servers.iter().map(|server| Line::Figures(adapter, *server)));
        let known = |server: &Server| {
            let ratio = |test| findings::server_ratio(results, adapter, test, *server);
            results.tests().into_iter().any(|test| ratio(test).is_some())
        };
        lines.extend(results.compared().into_iter().filter(known).map(|server| Line::Ratio(adapter, server)));
    }
    lines
}

/// Footnote for a figure with fewer samples than the title says.
fn lost_run(results: &Results, row: &Row) -> Option<String> {
    let (had, rounds) = (row.samples.len(), results.method.repeat as usize);
    let mut runs = results.runs.iter().filter(|run| run.adapter == row.adapter && run.server == row.server);
    let run = runs.find(|run| run.failure.is_some() && row.test.load().is_none_or(|load| load == run.load))?;
    let why = run.failure.as_deref().filter(|_| had < rounds)?;
    Some(format!("The median of {had}, for round {} gave no figure: {why}", run.round + 1))
}

fn column(results: &Results, lines: &[Line<'_>], test: Test, footnotes: &mut Footnotes) -> Column {
    let cells = lines
        .iter()
        .map(|line| match line {
            Line::Figures(adapter, server) => {
                let row = results.row(adapter, test, *server);
                match row.and_then(|row| Some((row, row.median?))) {
                    Some((row, median)) => {
                        let loaded = if row.loaded { LOADED_MARK } else { "" };
                        let range = row.interval.map(|i| format!(" [{}]", number::range(&i, median)));
                        let lost = lost_run(results, row).map(|reason| footnotes.mark(&reason));
                        Cell {
                            figure: number::figure(median),
                            after: loaded.to_owned() + &range.unwrap_or_default() + &lost.unwrap_or_default(),
                        }
                    }
                    None => {
                        let reason = row.and_then(|row| row.absent.as_deref()).unwrap_or("it was not measured");
                        Cell { figure: number::NONE.to_owned(), after: footnotes.mark(reason) }
                    }
                }
            }
            Line::Ratio(adapter, server) => match findings::server_ratio(results, adapter, test, *server) {
                Some(ratio) => Cell {
                    figure: number::ratio(&ratio),
                    after: number::ratio_range(&ratio).map_or(" ×".to_owned(), |range| format!(" × [{range}]")),
                },
                None => Cell::default(),
            },
        })
        .collect();
    Column { heads: [test.short_title().to_owned(), test.unit().to_owned()], cells }
}

impl Column {
    fn figure_width(&self) -> usize {
        self.cells.iter().map(|cell| width(&cell.figure)).max().unwrap_or(0)
    }

    fn width(&self) -> usize {
        let after = self.cells.iter().map(|cell| width(&cell.after)).max().unwrap_or(0);
        let heads = self.heads.iter().map(|head| width(head)).max().unwrap_or(0);
        heads.max(self.figure_width() + after)
    }
}

/// One block, or several if the columns do not fit beside each other.
fn laid(labels: &[String], columns: Vec<Column>) -> String {
    let label_width = labels.iter().map(|label| width(label)).max().unwrap_or(0).max(width("adapter"));
    let mut out = String::new();
    let most = evenly(label_width, &columns);
    let mut columns = columns.into_iter().peekable();
    while columns.peek().is_some() {
        let mut block: Vec<Column> = Vec::new();
        let mut used = label_width;
        while let Some(column) =
            columns.next_if(|c| block.is_empty() || block.len() < most && used + GAP.len() + c.width() <= WIDTH)
        {
            used += GAP.len() + column.width();
            block.push(column);
        }
        out.push('\n');
        for (place, name) in ["", "adapter"].into_iter().enumerate() {
            let heads = block.iter().map(|c| padded(c.heads.get(place).map_or("", String::as_str), c.width()));
            push_line(&mut out, &padded(name, label_width), heads);
        }
        for (index, label) in labels.iter().enumerate() {
            let cells = block.iter().map(|c| {
                let cell = c.cells.get(index);
                let (figure, after) = cell.map_or(("", ""), |cell| (cell.figure.as_str(), cell.after.as_str()));
                let indent = " ".repeat(c.figure_width().saturating_sub(width(figure)));
                padded(&format!("{indent}{figure}{after}"), c.width())
            });
            push_line(&mut out, &padded(label, label_width), cells);
        }
    }
    out
}

/// Maximum number of columns in a block. It spreads the columns evenly over the fewest blocks that the width allows: not three and one.
fn evenly(label_width: usize, columns: &[Column]) -> usize {
    let (mut blocks, mut used) = (1, label_width);
    for column in columns {
        let wide = GAP.len() + column.width();
        if used > label_width && used + wide > WIDTH {
            (blocks, used) = (blocks + 1, label_width);
        }
        used += wide;
    }
    columns.len().div_ceil(blocks)
}

/// Row labels: `e1000  nicety`, `qemu`, `ratio`. The adapter's name appears once. A driver is added where it is not the guests' own.
fn labels(lines: &[Line<'_>], results: &Results) -> Vec<String> {
    let adapter_width = lines.iter().map(|line| width(line.adapter())).max().unwrap_or(0);
    let (name_servers, compared) = (results.servers().len() > 1, results.compared().len());
    let mut last = None;
    lines
        .iter()
        .map(|line| {
            let shown = if last == Some(line.adapter()) { "" } else { line.adapter() };
            last = Some(line.adapter());
            let mark = match line {
                Line::Figures(adapter, server) => results.driver(adapter, *server),
                Line::Ratio(..) => None,
            };
            let mark = mark.map_or(String::new(), |driver| format!(", {}", driver.title()));
            match name_servers {
                true => format!("{}  {}{mark}", padded(shown, adapter_width), line.name(compared)),
                false => format!("{shown}{mark}"),
            }
        })
        .collect()
}

fn push_line(out: &mut String, label: &str, cells: impl Iterator<Item = String>) {
    let mut line = label.to_owned();
    for cell in cells {
        line.push_str(GAP);
        line.push_str(&cell);
    }
    out.push_str(line.trim_end());
    out.push('\n');
}

/// `text` broken between words, so that no line is wider than [`WIDTH`] unless a single word is.
fn wrapped(text: &str) -> String {
    let mut out = String::new();
    let mut used = 0;
    for word in text.split_whitespace() {
        if used > 0 && used + 1 + width(word) > WIDTH {
            out.push('\n');
            used = 0;
        } else if used > 0 {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += width(word);
    }
    out
}

fn padded(text: &str, to: usize) -> String {
    format!("{text}{}", " ".repeat(to.saturating_sub(width(text))))
}

/// Number of terminal columns of `text`. No character used here is wider than one.
fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::BenchError;
    use crate::bench::fake::Fault;
    use crate::results::{Sample, sample};

    #[test]
    fn the_embedded_table_reads_as_written_here() {
        let table = render(&sample::embedded());
        let expected = "\
Medians of 7 runs of 1.5 s [95 % interval]

            Bulk transmit     Bulk receive      Guest to guest
adapter     Mbit/s            Mbit/s            Mbit/s
e1000       1545 [1500–1590]  1545 [1500–1590]  1545 [1500–1590]
virtio-net  3090 [3000–3180]  3090 [3000–3180]  3090 [3000–3180]
";
        assert!(table.starts_with(expected), "{table}");
        assert!(
            table.ends_with(
                "\nThese figures judge the adapters under Nicety's own guest drivers. Under unmodified Linux drivers:\n\
             nicety compare --guests qemu\n"
            ),
            "{table}"
        );
    }

    #[test]
    fn of_a_reason_with_a_whole_console_the_table_shows_the_beginning() {
        assert_eq!(brief("QEMU does not count it"), "QEMU does not count it");
        assert_eq!(brief("it did not come up\nno device"), "it did not come up\nno device");
        let dump = "it did not come up\nno device\n00: ff\n10: ff";
        assert_eq!(brief(dump), "it did not come up\nno device … (results.json has the rest)");
    }

    #[test]
    fn with_two_servers_each_adapter_has_their_ratio_and_what_is_not_counted_a_footnote() {
        let table = render(&sample::two_servers());
        assert!(table.contains("e1000       nicety  1545 [1500–1590]"), "{table}");
        assert!(table.contains("            ratio   1.50 × [1.50–1.50]"), "{table}");
        assert!(table.contains("\n¹ QEMU does not count it.\n"), "{table}");
        assert!(table.lines().any(|line| line.contains("qemu") && line.contains("–¹")), "{table}");
    }

    #[test]
    fn each_way_in_which_nicety_serves_has_a_line_and_its_ratio_and_who_is_absent_the_reason() {
        let table = render(&sample::linked());
        let expected = "\
Medians of 7 runs of 3 s [95 % interval]

                           Guest to guest
adapter                    Mbit/s
e1000       nicety         1545 [1500–1590]
            nicety-stream  1236 [1200–1272]
            qemu           1030 [1000–1060]
            nicety ÷ qemu  1.50 × [1.50–1.50]
            stream ÷ qemu  1.20 × [1.20–1.20]
virtio-net  nicety         3090 [3000–3180]
            nicety-stream  2472 [2400–2544]
            qemu              –¹
";
        assert!(table.starts_with(expected), "{table}");
        assert!(table.contains("¹ QEMU has none.\n² QEMU does not count it.\n"), "{table}");
        assert!(table.contains("CPU per gigabit"), "costs are taken over what there is: {table}");
    }

    #[test]
    fn a_user_space_driver_is_named_beside_its_figures_and_below() {
        let table = render(&sample::user_space());
        let expected = "\
Medians of 7 runs of 5 s [95 % interval]; ratio: nicety ÷ qemu

                                   Bulk transmit       Bulk receive        Guest to guest
adapter                            Mbit/s              Mbit/s              Mbit/s
e1000   nicety                     1545 [1500–1590]    1545 [1500–1590]    1545 [1500–1590]
        qemu                       1030 [1000–1060]    1030 [1000–1060]    1030 [1000–1060]
        ratio                      1.50 × [1.50–1.50]  1.50 × [1.50–1.50]  1.50 × [1.50–1.50]
vmxnet  nicety, user-space driver  1545 [1500–1590]    1545 [1500–1590]    1545 [1500–1590]
        qemu                          –¹                  –¹                  –¹
";
        assert!(table.starts_with(expected), "{table}");
        assert_eq!(table.matches("nicety, user-space driver ").count(), table.matches("vmxnet  ").count(), "{table}");
        assert!(table.contains("¹ QEMU has no such adapter.\n"), "{table}");
        let last = table.split("\n\n").last().unwrap().replace('\n', " ");
        assert!(last.contains("Rows marked \"user-space driver\" are not ranked with the others"), "{last}");
        let mut alone = sample::user_space();
        alone.rows.retain(|row| row.adapter == "vmxnet" && row.median.is_some());
        let table = render(&alone);
        assert!(table.contains("\nvmxnet, user-space driver  1545 [1500–1590]"), "{table}");
        assert!(table.contains("judge the adapters under a user-space driver, Nicety's own"), "{table}");
        assert!(!table.contains("unmodified"), "{table}");
    }

    #[test]
    fn a_figure_of_fewer_runs_than_the_title_says_has_a_footnote_that_says_why() {
        let failed = BenchError::Failed("the guest stopped answering".to_owned());
        let results = sample::with_faults(vec![Fault::On("round 4: e1000 by nicety, bulk receive".to_owned(), failed)]);
        let table = render(&results);
        assert!(table.contains("The median of 6, for round 4 gave no figure: the guest stopped answering."), "{table}");
        let whole = render(&sample::two_servers());
        assert!(!whole.contains("The median of"), "{whole}");
    }

    #[test]
    fn no_line_is_wider_than_a_hundred_columns_whatever_the_figures() {
        let fault = Fault::On("e1000 by nicety, bulk receive".to_owned(), BenchError::Impossible("word ".repeat(60)));
        let mut wide = sample::two_servers();
        for row in &mut wide.rows {
            let huge = |s: &Sample| Sample { round: s.round, value: s.value * 1e9 + f64::from(s.round) };
            *row = Row::new(
                &row.adapter,
                row.test,
                row.server,
                row.samples.iter().map(huge).collect(),
                row.absent.clone(),
            );
        }
        for results in [
            sample::embedded(),
            sample::quick(),
            sample::two_servers(),
            sample::linked(),
            sample::user_space(),
            sample::with_faults(vec![fault]),
            wide,
        ] {
            let table = render(&results);
            for line in table.lines() {
                assert!(width(line) <= WIDTH, "{} columns: {line}", width(line));
            }
            for test in results.tests() {
                assert!(table.contains(test.short_title()));
            }
        }
    }

    #[test]
    fn a_figure_of_a_loaded_machine_has_a_mark_and_one_line_explains_it() {
        let table = render(&sample::loaded());
        assert!(table.contains("3090† [3000–3180]\n"), "{table}");
        // Guest to guest of the one adapter; what others have, and costs of its other loads, have none. One mark is the line's.
        assert_eq!(table.matches('†').count(), 1 + marked(&sample::loaded()), "{table}");
        let line = "\n† Other processes took more than 10 % of the processors' time during a run of this figure: measure\nagain when the machine is quiet.\n";
        assert!(table.contains(line), "{table}");
        assert!(!render(&sample::embedded()).contains('†'));
    }

    fn marked(results: &Results) -> usize {
        results.rows.iter().filter(|row| row.loaded).count()
    }

    #[test]
    fn fewer_than_seven_runs_are_said_to_have_no_interval() {
        let table = render(&sample::quick());
        assert!(table.starts_with("Medians of 3 runs of 0.5 s; fewer than 7 runs: no interval\n"), "{table}");
        assert!(!table.contains('['));
    }
}
