//! The page of `nicety top`: its contents and layout, at 80 columns or more.

use nicety_daemon::control::api::DaemonView;
use nicety_daemon::report::Condition;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row as TableRow, StatefulWidget, Table, TableState, Widget, Wrap};

use super::sample::{Row, Sample, rows, shares};
use crate::output::{count, size};
use crate::ports::{policy, word};

/// Columns that the ports can be sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Port,
    State,
    TxBits,
    TxFrames,
    RxBits,
    RxFrames,
    Drops,
    Waiting,
}

const COLUMNS: [(Column, &str, u16); 8] = [
    (Column::Port, "PORT", 16),
    (Column::State, "STATE", 8),
    (Column::TxBits, "TX bit/s", 9),
    (Column::TxFrames, "TX f/s", 8),
    (Column::RxBits, "RX bit/s", 9),
    (Column::RxFrames, "RX f/s", 8),
    (Column::Drops, "DROP/s", 8),
    (Column::Waiting, "WAIT", 6),
];

/// See the module's documentation.
pub struct Page {
    daemon: DaemonView,
    before: Sample,
    now: Sample,
    /// The column to sort by, and whether the order is reversed; `None`: the daemon's order.
    sorted: Option<(usize, bool)>,
    /// The selected port, by name: its row may change.
    chosen: Option<String>,
    is_detailed: bool,
    trouble: Option<String>,
}

impl Page {
    /// The page after one sample: no rates yet.
    pub fn new(daemon: DaemonView, first: Sample) -> Self {
        Self {
            daemon,
            before: first.clone(),
            now: first,
            sorted: None,
            chosen: None,
            is_detailed: false,
            trouble: None,
        }
    }

    /// Adds a sample.
    pub fn next(&mut self, sample: Sample) {
        self.before = std::mem::replace(&mut self.now, sample);
        self.trouble = None;
    }

    /// Shows the reason why there is no new sample.
    pub fn fails(&mut self, why: String) {
        self.trouble = Some(why);
    }

    /// Number of ports.
    pub fn len(&self) -> usize {
        self.now.ports.len()
    }

    /// Handles a key, except those that end the program.
    pub fn key(&mut self, code: KeyCode) {
        let last = COLUMNS.len() - 1;
        match code {
            KeyCode::Right => self.sorted = Some(self.sorted.map_or((0, false), |(at, _)| usual(at.min(last - 1) + 1))),
            KeyCode::Left => self.sorted = self.sorted.and_then(|(at, _)| at.checked_sub(1)).map(usual),
            KeyCode::Char('r') => self.sorted = self.sorted.map(|(at, turned)| (at, !turned)),
            KeyCode::Down | KeyCode::Char('j') => self.choose(1),
            KeyCode::Up | KeyCode::Char('k') => self.choose(-1),
            KeyCode::Enter => self.is_detailed = self.chosen.is_some(),
            KeyCode::Esc => self.is_detailed = false,
            _ => {}
        }
    }

    fn choose(&mut self, step: isize) {
        let rows = self.rows();
        let at = self.place(&rows).map_or(0, |at| at.saturating_add_signed(step).min(rows.len().saturating_sub(1)));
        self.chosen = rows.get(at).map(|row| row.report.name.clone());
    }

    fn place(&self, rows: &[Row]) -> Option<usize> {
        rows.iter().position(|row| Some(&row.report.name) == self.chosen.as_ref())
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = rows(&self.before, &self.now);
        let Some((at, turned)) = self.sorted else { return rows };
        let column = COLUMNS[at].0;
        let number = |row: &Row| match column {
            Column::TxBits => row.rates.tx_bits,
            Column::TxFrames => row.rates.tx_frames,
            Column::RxBits => row.rates.rx_bits,
            Column::RxFrames => row.rates.rx_frames,
            Column::Drops => row.rates.drops,
            Column::Waiting => row.report.backlog_frames as f64,
            Column::Port | Column::State => 0.0,
        };
        rows.sort_by(|one, other| match column {
            Column::Port => one.report.name.cmp(&other.report.name),
            Column::State => word(one.report.condition).cmp(word(other.report.condition)),
            _ => number(one).total_cmp(&number(other)),
        });
        if turned {
            rows.reverse();
        }
        rows
    }

    /// Draws the page.
    pub fn draw(&self, area: Rect, buffer: &mut Buffer) {
        let [head, cpu, body] =
            Layout::vertical([Constraint::Length(1), Constraint::Length(1), Constraint::Min(0)]).areas(area);
        let ports = crate::output::count(self.len() as u64, "port");
        let host = self.daemon.host.display();
        let line = match &self.trouble {
            None => format!("nicety top  process {}  {ports}  {host}", self.daemon.pid),
            Some(why) => format!("no answer: {}", why.lines().next().unwrap_or_default()),
        };
        Line::styled(line, Modifier::BOLD).render(head, buffer);
        let shares = shares(&self.before, &self.now);
        let shares: Vec<String> = shares.iter().map(|(name, share)| format!("{name} {share:.0} %")).collect();
        Line::raw(format!("CPU  {}", shares.join("  "))).render(cpu, buffer);
        let rows = self.rows();
        let detail = self.place(&rows).filter(|_| self.is_detailed).map(|at| detail(&rows[at]));
        match detail {
            Some(lines) => Paragraph::new(lines).wrap(Wrap { trim: false }).render(body, buffer),
            None => self.table(&rows, body, buffer),
        }
    }

    fn table(&self, rows: &[Row], area: Rect, buffer: &mut Buffer) {
        let right = |text: String, width: u16| format!("{text:>width$}", width = usize::from(width));
        let cells = |cells: [String; COLUMNS.len()]| {
            let aligned = cells.into_iter().zip(COLUMNS).enumerate();
            TableRow::new(aligned.map(|(at, (text, (_, _, width)))| if at < 2 { text } else { right(text, width) }))
        };
        let mark = |at: usize, name: &str| match self.sorted {
            Some((sorted, turned)) if sorted == at => format!("{}{name}", if turned { '▼' } else { '▲' }),
            _ => name.to_owned(),
        };
        let head = cells(std::array::from_fn(|at| mark(at, COLUMNS[at].1))).style(Modifier::BOLD);
        let lines = rows.iter().map(|row| {
            let rates = row.rates;
            cells([
                cut(&row.report.name, COLUMNS[0].2),
                word(row.report.condition).to_owned(),
                short(rates.tx_bits),
                short(rates.tx_frames),
                short(rates.rx_bits),
                short(rates.rx_frames),
                short(rates.drops),
                short(row.report.backlog_frames as f64),
            ])
            .style(match row.report.condition {
                Condition::Broken | Condition::Failed => Style::from(Modifier::BOLD),
                _ => Style::default(),
            })
        });
        let table = Table::new(lines, COLUMNS.map(|(_, _, width)| Constraint::Length(width)))
            .header(head)
            .column_spacing(1)
            .row_highlight_style(Modifier::REVERSED);
        let mut state = TableState::new().with_selected(self.place(rows));
        StatefulWidget::render(table, area, buffer, &mut state);
    }
}

/// The initial order of a column: names ascending, numbers descending.
fn usual(at: usize) -> (usize, bool) {
    (at, at >= 2)
}

/// All details of one port.
fn detail(row: &Row) -> Vec<Line<'static>> {
    let Row { rates, report, drops, queues } = row;
    let mut lines = vec![Line::styled(format!("{}: {}", report.name, report.sentence), Modifier::BOLD)];
    let mut line = |name: &str, what: String| {
        if !what.is_empty() {
            lines.push(Line::raw(format!("  {name:9}  {what}")));
        }
    };
    line("adapter", report.adapter.clone().unwrap_or_else(|| "(uplink)".to_owned()));
    line("address", report.mac.clone().unwrap_or_default());
    line("policy", policy(report));
    line("features", report.features.join(", "));
    line("TX", format!("{}bit/s, {} frames/s", spaced(rates.tx_bits), short(rates.tx_frames)));
    line("RX", format!("{}bit/s, {} frames/s", spaced(rates.rx_bits), short(rates.rx_frames)));
    for (way, queue, bits, frames) in queues {
        line("queue", format!("{way} {queue}: {}bit/s, {} frames/s", spaced(*bits), short(*frames)));
    }
    for (way, reason, count, rate) in drops {
        line("dropped", format!("{way} {reason}: {count}, {}/s", short(*rate)));
    }
    if report.backlog_frames > 0 {
        line("backlog", format!("{}, {}", count(report.backlog_frames, "frame"), size(report.backlog_bytes)));
    }
    lines.push(Line::raw("Esc goes back"));
    lines
}

fn cut(name: &str, width: u16) -> String {
    let width = usize::from(width);
    // Names are ASCII.
    if name.chars().count() <= width { name.to_owned() } else { name.chars().take(width - 1).chain(['…']).collect() }
}

/// An amount with three digits and a letter: `0`, `12`, `1.23k`, `941M`.
fn short(amount: f64) -> String {
    // An empty sum is -0.
    let (mut amount, mut letters) = (amount + 0.0, ["k", "M", "G", "T"].iter());
    let mut letter = "";
    while amount >= 999.5 {
        let Some(next) = letters.next() else { break };
        (amount, letter) = (amount / 1e3, next);
    }
    let decimals = match amount {
        _ if letter.is_empty() => usize::from(amount.fract() != 0.0 && amount < 9.95),
        _ if amount < 9.995 => 2,
        _ => usize::from(amount < 99.95),
    };
    format!("{amount:.decimals$}{letter}")
}

/// Like [`short`], with a space before the letter, for a unit.
fn spaced(amount: f64) -> String {
    let text = short(amount);
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    format!("{} {}", &text[..at], &text[at..])
}

#[cfg(test)]
#[path = "page_test.rs"]
mod tests;
