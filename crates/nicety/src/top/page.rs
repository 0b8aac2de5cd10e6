//! The page of `nicety top`: its contents and layout. Below 80 columns it has fewer columns of rates.

use std::cell::Cell;
use std::cmp::Ordering;

use nicety_control::api::DaemonView;
use nicety_daemon::report::Condition;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row as TableRow, StatefulWidget, Table, TableState, Widget, Wrap};

use super::amount::{short, spaced};
use super::hosts;
use super::sample::{Row, Sample, rows, shares};
use crate::output::{count, size};
use crate::ports::{NO_PORTS, adapter, policy, word};

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

/// Columns by their worth: a narrow screen shows the first ones, in the table's order.
const WORTH: [Column; 8] = [
    Column::Port,
    Column::TxBits,
    Column::RxBits,
    Column::State,
    Column::Drops,
    Column::TxFrames,
    Column::RxFrames,
    Column::Waiting,
];
/// A port's name has at least so many characters of a narrow screen.
const NAME_MIN: u16 = 8;

/// The columns that fit, with their widths, as places in [`COLUMNS`]: the one that the ports are sorted by first, then by worth. The
/// names' column takes what the others leave.
fn fitting(width: u16, sorted: Option<usize>) -> Vec<(usize, u16)> {
    let place = |column: Column| COLUMNS.iter().position(|(known, ..)| *known == column);
    let (mut left, mut shown) = (width.saturating_sub(NAME_MIN), Vec::new());
    let others = WORTH.iter().filter_map(|column| place(*column)).filter(|at| Some(*at) != sorted);
    for at in sorted.into_iter().chain(others).filter(|at| *at != 0) {
        let Some(rest) = left.checked_sub(COLUMNS[at].2 + 1) else { break };
        left = rest;
        shown.push((at, COLUMNS[at].2));
    }
    shown.push((0, (NAME_MIN + left).min(COLUMNS[0].2)));
    shown.sort_unstable();
    shown
}

/// The order of the ports. Equal ones keep the daemon's order, so that they stay in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    /// The column; `None`: the traffic both ways.
    at: Option<usize>,
    /// Whether the greatest comes first.
    is_descending: bool,
}

impl Order {
    /// The initial order of a column: names ascending, numbers descending.
    fn usual(at: Option<usize>) -> Self {
        Self { at, is_descending: at.is_none_or(|at| at >= 2) }
    }

    fn compare(self, one: &Row, other: &Row) -> Ordering {
        let number = |row: &Row| match self.at.map(|at| COLUMNS[at].0) {
            None => row.rates.tx_bits + row.rates.rx_bits,
            Some(Column::TxBits) => row.rates.tx_bits,
            Some(Column::TxFrames) => row.rates.tx_frames,
            Some(Column::RxBits) => row.rates.rx_bits,
            Some(Column::RxFrames) => row.rates.rx_frames,
            Some(Column::Drops) => row.rates.drops,
            Some(Column::Waiting) => row.report.backlog_frames as f64,
            Some(Column::Port | Column::State) => 0.0,
        };
        let order = match self.at.map(|at| COLUMNS[at].0) {
            Some(Column::Port) => one.report.name.cmp(&other.report.name),
            Some(Column::State) => word(one.report.condition).cmp(word(other.report.condition)),
            _ => number(one).total_cmp(&number(other)),
        };
        if self.is_descending { order.reverse() } else { order }
    }
}

/// See the module's documentation.
pub struct Page {
    daemon: DaemonView,
    before: Sample,
    now: Sample,
    order: Order,
    /// The ports in this order.
    rows: Vec<Row>,
    /// The selected port, by name: its row may change.
    chosen: Option<String>,
    is_detailed: bool,
    /// The other hosts of the fabric are shown, from this one on, and not the ports.
    hosts: Option<usize>,
    trouble: Option<String>,
    /// The first row on the screen, and how many there are. Drawing sets both.
    top: Cell<usize>,
    height: Cell<usize>,
}

impl Page {
    /// The page after one sample: no rates yet.
    pub fn new(daemon: DaemonView, first: Sample) -> Self {
        let mut page = Self {
            daemon,
            before: first.clone(),
            now: first,
            order: Order::usual(None),
            rows: Vec::new(),
            chosen: None,
            is_detailed: false,
            hosts: None,
            trouble: None,
            top: Cell::new(0),
            height: Cell::new(1),
        };
        page.sort();
        page
    }

    /// Adds a sample.
    pub fn next(&mut self, sample: Sample) {
        self.before = std::mem::replace(&mut self.now, sample);
        self.trouble = None;
        self.sort();
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
        let page = self.height.get().saturating_sub(1).max(1).cast_signed();
        match (code, &mut self.hosts) {
            (KeyCode::Char('f'), hosts) => {
                *hosts = if hosts.is_none() && self.now.fabric.is_some() { Some(0) } else { None };
                return;
            }
            (KeyCode::Esc, hosts @ Some(_)) => {
                *hosts = None;
                return;
            }
            (_, Some(first)) => {
                let last = self.now.fabric.as_ref().map_or(0, |fabric| fabric.hosts.len().saturating_sub(1));
                let step = match code {
                    KeyCode::Down | KeyCode::Char('j') => 1,
                    KeyCode::Up | KeyCode::Char('k') => -1,
                    KeyCode::PageDown | KeyCode::Char(' ') => page,
                    KeyCode::PageUp | KeyCode::Char('b') => -page,
                    KeyCode::Home | KeyCode::Char('g') => isize::MIN,
                    KeyCode::End | KeyCode::Char('G') => isize::MAX,
                    _ => 0,
                };
                *first = first.saturating_add_signed(step).min(last);
                return;
            }
            (_, None) => {}
        }
        match code {
            KeyCode::Right => self.sort_by(Some(self.order.at.map_or(0, |at| (at + 1).min(COLUMNS.len() - 1)))),
            KeyCode::Left => self.sort_by(self.order.at.and_then(|at| at.checked_sub(1))),
            KeyCode::Char('r') => {
                self.order.is_descending = !self.order.is_descending;
                self.sort();
            }
            KeyCode::Down | KeyCode::Char('j') => self.choose(1),
            KeyCode::Up | KeyCode::Char('k') => self.choose(-1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.choose(page),
            KeyCode::PageUp | KeyCode::Char('b') => self.choose(-page),
            KeyCode::Home | KeyCode::Char('g') => self.choose(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.choose(isize::MAX),
            KeyCode::Enter => self.is_detailed = self.chosen.is_some(),
            KeyCode::Esc => self.is_detailed = false,
            _ => {}
        }
    }

    fn sort_by(&mut self, at: Option<usize>) {
        if self.order.at != at {
            self.order = Order::usual(at);
            self.sort();
        }
    }

    fn sort(&mut self) {
        self.rows = rows(&self.before, &self.now);
        self.rows.sort_by(|one, other| self.order.compare(one, other));
    }

    /// Selects the port so many rows below. If none is selected, the first step selects the first one on the screen.
    fn choose(&mut self, step: isize) {
        let last = self.rows.len().saturating_sub(1);
        let top = self.top.get();
        let at = match (self.place(), step) {
            (None, -1..=1) => top.min(last),
            (place, step) => place.unwrap_or(top).saturating_add_signed(step).min(last),
        };
        self.chosen = self.rows.get(at).map(|row| row.report.name.clone());
    }

    fn place(&self) -> Option<usize> {
        let chosen = self.chosen.as_ref()?;
        self.rows.iter().position(|row| row.report.name == *chosen)
    }

    /// Moves the rows on the screen so that the selected one is among them. Returns the first.
    fn scrolled(&self, height: usize) -> usize {
        let mut top = self.top.get().min(self.rows.len().saturating_sub(height));
        if let Some(at) = self.place() {
            top = top.clamp((at + 1).saturating_sub(height), at);
        }
        self.top.set(top);
        self.height.set(height);
        top
    }

    /// Draws the page.
    pub fn draw(&self, area: Rect, buffer: &mut Buffer) {
        let summary = hosts::summary(&self.before, &self.now);
        let heights = [1, 1, u16::from(summary.is_some())].map(Constraint::Length);
        let [head, cpu, fabric, body] = Layout::vertical(heights.into_iter().chain([Constraint::Min(0)])).areas(area);
        let mut ports = crate::output::count(self.len() as u64, "port");
        if self.order.at.is_none() && self.len() > 1 {
            ports.push_str(if self.order.is_descending { ", most traffic first" } else { ", least traffic first" });
        }
        let host = self.daemon.host.display();
        let line = match &self.trouble {
            None => format!("nicety top  process {}  {ports}  {host}", self.daemon.pid),
            Some(why) => format!("no answer: {}", why.lines().next().unwrap_or_default()),
        };
        Line::styled(line, Modifier::BOLD).render(head, buffer);
        let shares = shares(&self.before, &self.now);
        let shares: Vec<String> = shares.iter().map(|(name, share)| format!("{name} {share:.0} %")).collect();
        Line::raw(format!("CPU  {}", shares.join("  "))).render(cpu, buffer);
        Line::raw(summary.unwrap_or_default()).render(fabric, buffer);
        if let Some(first) = self.hosts {
            return self.other_hosts(first, body, buffer);
        }
        let detail = self.place().filter(|_| self.is_detailed).map(|at| detail(&self.rows[at]));
        match detail {
            Some(lines) => Paragraph::new(lines).wrap(Wrap { trim: false }).render(body, buffer),
            None if self.rows.is_empty() => {
                Paragraph::new(NO_PORTS).wrap(Wrap { trim: false }).render(body, buffer);
            }
            None => self.list(body, buffer),
        }
    }

    /// The other hosts of the fabric, from this one on.
    fn other_hosts(&self, first: usize, area: Rect, buffer: &mut Buffer) {
        let mut lines = hosts::lines(&self.before, &self.now).into_iter();
        let head = lines.next().unwrap_or_else(|| "the fabric has no other host".to_owned());
        self.height.set(usize::from(area.height).saturating_sub(1).max(1));
        let lines = std::iter::once(Line::styled(head, Modifier::BOLD)).chain(lines.skip(first).map(Line::raw));
        Paragraph::new(lines.collect::<Vec<_>>()).render(area, buffer);
    }

    /// Whether the host is in a fabric, and its other hosts for a printed page.
    pub fn fabric(&self) -> Option<Vec<String>> {
        self.now.fabric.as_ref().map(|_| hosts::lines(&self.before, &self.now))
    }

    /// The rows that fit below the table's head. If some do not, the last line says how many.
    fn list(&self, area: Rect, buffer: &mut Buffer) {
        let rows = usize::from(area.height).saturating_sub(1);
        let fits = rows >= self.rows.len();
        let height = if fits { rows } else { rows.saturating_sub(1) }.max(1);
        let top = self.scrolled(height);
        let shown = &self.rows[top..self.rows.len().min(top + height)];
        let [table, foot] = Layout::vertical([Constraint::Min(0), Constraint::Length((!fits).into())]).areas(area);
        self.table(shown, self.place().map(|at| at - top), table, buffer);
        let (above, below) = (top, self.rows.len() - top - shown.len());
        let marks = [(above, "above"), (below, "below")].map(|(count, way)| match count {
            0 => None,
            count => Some(format!("{count} more {way}")),
        });
        Line::styled(marks.into_iter().flatten().collect::<Vec<_>>().join(", "), Modifier::BOLD).render(foot, buffer);
    }

    fn table(&self, rows: &[Row], selected: Option<usize>, area: Rect, buffer: &mut Buffer) {
        let columns = fitting(area.width, self.order.at);
        let cells = |cells: [String; COLUMNS.len()]| {
            TableRow::new(columns.iter().map(|&(at, width)| match COLUMNS[at].0 {
                Column::Port => cut(&cells[at], width),
                Column::State => cells[at].clone(),
                _ => format!("{:>width$}", cells[at], width = usize::from(width)),
            }))
        };
        let mark = |at: usize, name: &str| match self.order {
            Order { at: Some(sorted), is_descending } if sorted == at => {
                format!("{}{name}", if is_descending { '▼' } else { '▲' })
            }
            _ => name.to_owned(),
        };
        let head = cells(std::array::from_fn(|at| mark(at, COLUMNS[at].1))).style(Modifier::BOLD);
        let lines = rows.iter().map(|row| {
            let rates = row.rates;
            cells([
                row.report.name.clone(),
                word(row.report.condition).to_owned(),
                short(rates.tx_bits),
                short(rates.tx_frames),
                short(rates.rx_bits),
                short(rates.rx_frames),
                short(rates.drops),
                short(row.report.backlog_frames as f64),
            ])
            .style(match row.report.condition {
                Condition::Broken | Condition::Failed | Condition::Blocked => Style::from(Modifier::BOLD),
                _ => Style::default(),
            })
        });
        let widths: Vec<Constraint> = columns.iter().map(|(_, width)| Constraint::Length(*width)).collect();
        let table = Table::new(lines, widths).header(head).column_spacing(1).row_highlight_style(Modifier::REVERSED);
        let mut state = TableState::new().with_selected(selected);
        StatefulWidget::render(table, area, buffer, &mut state);
    }
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
    line("adapter", adapter(report));
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

#[cfg(test)]
#[path = "page_test.rs"]
mod tests;
