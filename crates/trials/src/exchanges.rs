//! A driver's accesses to its device, step by step with registers' names, for an exchange and for an interrupt. The steps come from
//! a trace or from the simulation, so that the two can be compared.

use std::collections::BTreeMap;

use nicety_adapter::trace::{Access, Event, Trace};
use nicety_adapters::Entry;

/// A read or write of a register by its name, a kick, or an interrupt: `R ICR`, `W TDT`, `kick 1`, `interrupt`.
pub type Step = String;

/// Sequences of steps, and the number of times each occurred.
pub type Exchanges = BTreeMap<Vec<Step>, usize>;

/// The events of a stored trace's phase.
///
/// # Panics
/// If it has no such phase.
pub fn phase<'t>(trace: &'t Trace, name: &str) -> Vec<&'t Event> {
    let events = trace.records.iter().map(|(_, record)| &record.event);
    let mut rest = events.skip_while(|event| !matches!(event, Event::Mark(mark) if mark == name));
    assert!(rest.next().is_some(), "the trace has no phase `{name}`");
    rest.take_while(|event| !matches!(event, Event::Mark(_))).collect()
}

/// The events as steps. A rising line is an interrupt. The VMM's handling of an interrupt is left out: it is no driver's.
pub fn steps<'e>(entry: &Entry, events: impl IntoIterator<Item = &'e Event>) -> Vec<Step> {
    let step = |event: &Event| match event {
        Event::Access(Access { write, region, offset, .. }) => {
            let verb = if *write { 'W' } else { 'R' };
            Some(match (entry.register)(*region, *offset) {
                Some(register) => format!("{verb} {register}"),
                None => format!("{verb} {region} {offset:#06x}"),
            })
        }
        Event::Kick(ring) => Some(format!("kick {ring}")),
        Event::Interrupt(vector) => Some(format!("interrupt {vector}")),
        Event::Line(true) => Some("interrupt".to_owned()),
        _ => None,
    };
    events.into_iter().filter_map(step).collect()
}

/// The sequences that begin with `first` and end before the next one. Steps before the first are left out, and so is the last
/// sequence, which may be incomplete.
pub fn from_each(steps: &[Step], first: &str) -> Exchanges {
    let mut exchanges = Exchanges::new();
    let begins: Vec<usize> = (0..steps.len()).filter(|&at| steps[at] == first).collect();
    for pair in begins.windows(2) {
        *exchanges.entry(steps[pair[0]..pair[1]].to_vec()).or_default() += 1;
    }
    exchanges
}

/// The steps except those in `skip`.
pub fn without(steps: &[Step], skip: &[&str]) -> Vec<Step> {
    steps.iter().filter(|step| !skip.contains(&step.as_str())).cloned().collect()
}

/// The most frequent sequence, and its share of all.
///
/// # Panics
/// If there is no sequence.
pub fn usual(exchanges: &Exchanges) -> (&[Step], f64) {
    let all: usize = exchanges.values().sum();
    let most = exchanges.iter().max_by_key(|(_, times)| **times);
    let (steps, times) = most.unwrap_or_else(|| panic!("nothing is done"));
    (steps, *times as f64 / all as f64)
}

/// Number of reads, of writes and kicks, and of interrupts.
pub fn tally(steps: &[Step]) -> [usize; 3] {
    let count =
        |starts: &[&str]| steps.iter().filter(|step| starts.iter().any(|start| step.starts_with(start))).count();
    [count(&["R "]), count(&["W ", "kick "]), count(&["interrupt"])]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Step> {
        text.split(", ").map(str::to_owned).collect()
    }

    #[test]
    fn what_comes_before_the_first_beginning_and_after_the_last_is_not_counted() {
        let steps = words("R ICR, W TDT, interrupt, R ICR, W TDT, interrupt, R ICR, W TDT, W IMS, W TDT, interrupt");
        let exchanges = from_each(&steps, "W TDT");
        assert_eq!(exchanges.len(), 2);
        assert_eq!(exchanges[&words("W TDT, interrupt, R ICR")], 2);
        assert_eq!(exchanges[&words("W TDT, W IMS")], 1);
        assert_eq!(usual(&exchanges), (&words("W TDT, interrupt, R ICR")[..], 2.0 / 3.0));
    }

    #[test]
    fn a_tally_is_of_reads_of_writes_and_kicks_and_of_interrupts() {
        assert_eq!(tally(&words("W TDT, interrupt, R ICR, kick 1, R STATUS, interrupt 3, R ICR")), [3, 2, 2]);
    }

    #[test]
    fn steps_are_in_registers_names_and_without_what_a_vmm_does() {
        let text = "nicety-trace 2\nadapter e1000\nmark up\nR bar0 0x0 4 0x0\nmark load\nW bar0 0x3818 4 0x1\nline up\n\
                    line down\nirqs 0 unmask 0 1\nR bar0 0x00c0 4 0x80\nW bar0 0x5204 4 0x0\nR bar3 0x10 1 0x0\n\
                    mark down\nreset\n";
        let trace = Trace::parse(text).unwrap();
        let entry = nicety_adapters::find("e1000").unwrap();
        let made = steps(entry, phase(&trace, "load"));
        assert_eq!(made, words("W TDT, interrupt, R ICR, W MTA[1], R bar3 0x0010"));
        assert_eq!(without(&made, &["interrupt", "W TDT"]), words("R ICR, W MTA[1], R bar3 0x0010"));
    }
}
