//! The table of `nicety ports`: a line for each port, in 80 to 120 columns, and the choice of ports.

use nicety_daemon::report::{Condition, PortReport, QueueReport};

use super::{LISTED_MAX, word};
use crate::cli::{Chosen, PortState};
use crate::output::columns;

/// Columns of a text that may be cut, and the least that stays of each.
const CUT_MIN: usize = 8;
/// The widest table.
const WIDTH_MAX: usize = 120;
/// The narrowest terminal for which a table is cut.
const WIDTH_MIN: usize = 80;
/// The least number that is shown with three digits and a letter.
const LONG_NUMBER: u64 = 100_000;

/// Advice for a switch without ports.
pub const NO_PORTS: &str = "this switch has no ports yet: `nicety port add NAME adapter=… mac=… socket=…` adds one\n";

impl Chosen {
    /// Whether any ports are left out.
    pub fn is_choice(&self) -> bool {
        self.group.is_some() || self.vlan.is_some() || !self.state.is_empty()
    }

    /// Whether this port is shown.
    pub fn has(&self, port: &PortReport) -> bool {
        self.group.as_ref().is_none_or(|group| port.port_group.as_ref() == Some(group))
            && self.vlan.is_none_or(|vlan| carries(port, vlan))
            && (self.state.is_empty() || self.state.iter().any(|state| is_in(port.condition, *state)))
    }
}

fn is_in(condition: Condition, state: PortState) -> bool {
    match state {
        PortState::Down => condition != Condition::Up,
        PortState::Waiting => condition == Condition::Waiting,
        PortState::Attached => condition == Condition::Attached,
        PortState::Up => condition == Condition::Up,
        PortState::Saved => condition == Condition::Saved,
        PortState::Broken => condition == Condition::Broken,
        PortState::Failed => condition == Condition::Failed,
        PortState::Blocked => condition == Condition::Blocked,
    }
}

/// Whether a port's policy lets frames of this VLAN pass: as an access port's, a trunk's or a service VLAN.
fn carries(port: &PortReport, vlan: u16) -> bool {
    let number = |text: &str| text.parse::<u16>().ok();
    let is_part = |part: &str| match part.split_once('-') {
        None => number(part) == Some(vlan),
        Some((first, last)) => {
            number(first).zip(number(last)).is_some_and(|(first, last)| (first..=last).contains(&vlan))
        }
    };
    let value = |key: &str| port.policy.get(key).map(String::as_str);
    let one = [value("vlan"), value("qinq")].into_iter().flatten().any(is_part);
    one || value("trunk").is_some_and(|trunk| trunk == "all" || trunk.split(',').any(is_part))
}

/// A port's VLANs in a word or two.
fn vlan(port: &PortReport) -> String {
    let value = |key: &str| port.policy.get(key);
    match (value("vlan"), value("trunk"), value("qinq")) {
        (Some(vlan), ..) => vlan.clone(),
        (_, Some(trunk), _) => format!("trunk {trunk}"),
        (.., Some(qinq)) => format!("qinq {qinq}"),
        _ => "-".to_owned(),
    }
}

/// A count of at most five characters.
pub(super) fn short(count: u64) -> String {
    if count < LONG_NUMBER {
        return count.to_string();
    }
    let (mut amount, mut letters) = (count as f64 / 1e3, "kMGTPE".chars());
    let mut letter = letters.next();
    while amount >= 999.5 {
        (amount, letter) = (amount / 1e3, letters.next());
    }
    let decimals = if amount < 9.995 { 2 } else { usize::from(amount < 99.95) };
    format!("{amount:.decimals$}{}", letter.unwrap_or('Z'))
}

/// A port's adapter in a word.
pub fn adapter(port: &PortReport) -> String {
    let link = if port.members.is_some() { "(team)" } else { "(uplink)" };
    port.adapter.clone().unwrap_or_else(|| link.to_owned())
}

fn frames(queues: &[QueueReport]) -> u64 {
    queues.iter().map(|queue| queue.frames).fold(0, u64::saturating_add)
}

/// A line for each of these ports. Columns that would be empty are left out. A text that is wider than `width` is cut.
pub fn table(ports: &[PortReport], width: Option<usize>) -> String {
    let has_groups = ports.iter().any(|port| port.port_group.is_some());
    let has_vlans = ports.iter().any(|port| vlan(port) != "-");
    let row = |texts: [String; 5], numbers: [String; 4]| {
        let [name, adapter, group, vlan, state] = texts;
        let texts = [Some(name), Some(adapter), has_groups.then_some(group), has_vlans.then_some(vlan), Some(state)];
        let row: Vec<String> = texts.into_iter().flatten().chain(numbers).collect();
        row
    };
    let head = ["PORT", "ADAPTER", "GROUP", "VLAN", "STATE"].map(str::to_owned);
    let mut rows = vec![row(head, ["TX", "RX", "DROPPED", "ERRORS"].map(str::to_owned))];
    rows.extend(ports.iter().map(|port| {
        let adapter = adapter(port);
        let group = port.port_group.clone().unwrap_or_else(|| "-".to_owned());
        let drops = port.transmit_drops.values().chain(port.receive_drops.values());
        let dropped = drops.fold(0, |sum: u64, drop| sum.saturating_add(*drop));
        let state = word(port.condition).to_owned();
        let numbers = [frames(&port.transmit), frames(&port.receive), dropped, port.guest_errors].map(short);
        row([port.name.clone(), adapter, group, vlan(port), state], numbers)
    }));
    let texts = rows[0].len() - 4;
    align_right(&mut rows, texts);
    if let Some(width) = width {
        // The state is never cut.
        fit(&mut rows, texts - 1, width.clamp(WIDTH_MIN, WIDTH_MAX));
    }
    columns(&rows)
}

fn width_of(rows: &[Vec<String>], column: usize) -> usize {
    rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
}

/// Aligns the columns from this one on to the right.
pub(super) fn align_right(rows: &mut [Vec<String>], first: usize) {
    for column in first..rows[0].len() {
        let width = width_of(rows, column);
        rows.iter_mut().for_each(|row| row[column] = format!("{:>width$}", row[column]));
    }
}

/// Cuts the first columns until a row has at most `width` characters: first the widest of those behind the name, then the name.
fn fit(rows: &mut [Vec<String>], cut: usize, width: usize) {
    let mut widths: Vec<usize> = (0..rows[0].len()).map(|column| width_of(rows, column)).collect();
    let total = |widths: &[usize]| widths.iter().sum::<usize>() + 2 * (widths.len() - 1);
    while total(&widths) > width {
        let is_long = |column: &usize| widths[*column] > CUT_MIN;
        let widest = (1..cut).filter(is_long).max_by_key(|column| widths[*column]);
        let Some(column) = widest.or(Some(0).filter(is_long)) else { break };
        widths[column] -= 1;
    }
    for row in rows {
        for (column, (cell, &width)) in row.iter_mut().zip(&widths).enumerate() {
            let len = cell.chars().count();
            if len > width {
                // Names often differ at their end.
                let last = if column == 0 { width / 2 } else { 0 };
                let chars = |from: usize, count: usize| cell.chars().skip(from).take(count);
                *cell = chars(0, width - 1 - last).chain(['…']).chain(chars(len - last, last)).collect();
            }
        }
    }
}

/// The reason why ports do not work, for the first of them.
fn troubles(ports: &[PortReport]) -> String {
    let is_bad =
        |port: &&PortReport| matches!(port.condition, Condition::Broken | Condition::Failed | Condition::Blocked);
    let bad: Vec<&PortReport> = ports.iter().filter(is_bad).collect();
    let lines = bad.iter().take(LISTED_MAX).map(|port| format!("{}: {}\n", port.name, port.sentence));
    let more = match bad.len().saturating_sub(LISTED_MAX) {
        0 => String::new(),
        more => format!("and {more} more: nicety ports --state broken,failed,blocked --long\n"),
    };
    if bad.is_empty() { String::new() } else { format!("\n{}{more}", lines.collect::<String>()) }
}

/// The first port that would not survive a kill of the daemon, and how many more there are.
fn unkept(ports: &[PortReport]) -> String {
    let mut unkept = ports.iter().filter_map(|port| Some((&port.name, port.not_kept.as_ref()?)));
    let Some((name, why)) = unkept.next() else { return String::new() };
    let more = match unkept.count() {
        0 => String::new(),
        more => format!(" (and {more} more ports)"),
    };
    format!("\nif the daemon were killed now, the VM of {name} would lose its adapter{more}: {why}\n")
}

/// The whole text: the table, and what a person should know of it. `all` is the number of the switch's ports, with uplinks.
pub fn page(ports: &[PortReport], all: usize, width: Option<usize>) -> String {
    match (ports.len(), all) {
        (0, 0) => NO_PORTS.to_owned(),
        (0, 1) => "the only port does not match\n".to_owned(),
        (0, all) => format!("none of the {all} ports matches\n"),
        (shown, all) => {
            let mut text = table(ports, width) + &troubles(ports) + &unkept(ports);
            if shown == all && ports.iter().all(|port| port.adapter.is_none()) {
                text.push('\n');
                text.push_str(NO_PORTS);
            }
            text
        }
    }
}

#[cfg(test)]
#[path = "table_test.rs"]
mod tests;
