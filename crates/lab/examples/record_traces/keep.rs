//! Selects the part of a recording to keep: everything where the driver's own order matters, stretches where it repeats itself.
//!
//! - Times are dropped: they are the host's, and would change every line of a new recording.
//! - Of each load, one stretch from the middle is kept, from one interrupt to another. A line above it gives the totals of the load.
//! - The e1000's driver reads 64 words of EEPROM bit by bit (150 accesses a word) and writes tables of 128 registers. Only the
//!   first and the last word, and the first and last registers, are kept.

use nicety_adapter::trace::{Access, Event, Record, Trace};
use nicety_adapters::Entry;

use crate::life::Phase;

/// Events kept of a load.
const STRETCH: usize = 200;
/// EEPROM words kept at the beginning and at the end of each series.
const WORDS: usize = 1;
/// Writes kept at the beginning and at the end of a table.
const TABLE: usize = 3;
/// EECD (8254x manual, 13.4.3). Its request bit asks for the EEPROM.
const EECD: &str = "EECD";
const EECD_REQUEST: u64 = 1 << 6;

/// Text of the trace file.
pub fn kept(entry: &Entry, origin: &str, life: &[Phase]) -> Result<String, String> {
    let mut text = Trace::header("vm1", entry.about.name, None);
    text.push_str(origin);
    for phase in life {
        // Every event of the exchange is kept, so totals would add nothing. The loads are cut.
        let load = matches!(phase.name, "request-response" | "receive") || phase.name.starts_with("transmit");
        let records = records(phase)?;
        text.push_str(&format!("\nmark {}\n", phase.name));
        if load {
            let counts = phase.counts;
            text.push_str(&format!(
                "# The whole: {} frames, {} reads, {} writes, {} interrupts, {} events. This is from its middle.\n",
                counts.frames,
                counts.reads,
                counts.writes,
                counts.interrupts,
                records.len()
            ));
            lines(&mut text, entry, stretch(&records));
        } else {
            shortened(&mut text, entry, &records);
        }
    }
    Ok(text)
}

fn records(phase: &Phase) -> Result<Vec<Record>, String> {
    let mut records = Vec::new();
    for line in &phase.lines {
        let content = line.split('#').next().unwrap_or_default().trim();
        // The first phase contains the header of the file.
        if content.is_empty() || content.starts_with("nicety-trace") || content.starts_with("port ") {
            continue;
        }
        if content.starts_with("adapter ") {
            continue;
        }
        let record: Record = content.parse().map_err(|error| format!("{line}: {error}"))?;
        if let Event::Lost(count) = record.event {
            return Err(format!("{count} events of phase {} were lost: this host is too slow to record", phase.name));
        }
        records.push(Record { at: None, ..record });
    }
    Ok(records)
}

/// Whether this record starts an interrupt.
fn begins(record: &Record) -> bool {
    matches!(record.event, Event::Interrupt(_) | Event::Line(true))
}

/// A stretch from the middle, from the start of one interrupt to just before another.
fn stretch(records: &[Record]) -> &[Record] {
    let middle = records.len() / 2;
    let first = (middle..records.len()).find(|&at| records.get(at).is_some_and(begins)).unwrap_or(middle);
    let after = (first + STRETCH).min(records.len());
    let last = (after..records.len()).find(|&at| records.get(at).is_some_and(begins)).unwrap_or(after);
    records.get(first..last).unwrap_or_default()
}

fn lines(text: &mut String, entry: &Entry, records: &[Record]) {
    for record in records {
        text.push_str(&record.to_string());
        if let Event::Access(access) = &record.event
            && let Some(register) = (entry.register)(access.region, access.offset)
        {
            text.push_str(&format!("  # {register}"));
        }
        text.push('\n');
    }
}

/// Writes the records without most EEPROM words and without most writes to whole tables.
fn shortened(text: &mut String, entry: &Entry, records: &[Record]) {
    let mut cuts = tables(entry, records);
    let words = words(entry, records);
    if let (Some(first), Some(last)) = (words.get(WORDS), words.iter().nth_back(WORDS))
        && first.0 < last.0
    {
        cuts.push((first.0, last.1 + 1, format!("{} words of EEPROM", words.len() - 2 * WORDS)));
    }
    cuts.sort();
    let mut from = 0;
    for (first, after, what) in cuts {
        lines(text, entry, records.get(from..first).unwrap_or_default());
        text.push_str(&format!("# Left out: {what}.\n"));
        from = after;
    }
    lines(text, entry, records.get(from..).unwrap_or_default());
}

/// The middles of runs of equal writes to one table; reads of STATUS may stand between the writes. Each cut is the first record, the
/// record after the last, and a description.
fn tables(entry: &Entry, records: &[Record]) -> Vec<(usize, usize, String)> {
    let mut runs: Vec<(&str, u64, Vec<usize>)> = Vec::new();
    let mut whole = true;
    for (at, record) in records.iter().enumerate() {
        let Event::Access(Access { write, region, offset, value, .. }) = record.event else {
            whole = false;
            continue;
        };
        let name = (entry.register)(region, offset);
        match (write, name.and_then(|name| name.index.map(|_| name.word))) {
            (true, Some(word)) => {
                match runs.last_mut().filter(|(run, same, _)| whole && *run == word && *same == value) {
                    Some((_, _, places)) => places.push(at),
                    None => runs.push((word, value, vec![at])),
                }
                whole = true;
            }
            // The driver reads STATUS between two writes to flush the first one.
            (false, _) if name.is_some_and(|name| name.word == "STATUS") => {}
            _ => whole = false,
        }
    }
    let cut = |(word, _, places): &(&str, u64, Vec<usize>)| {
        let (first, after) = (*places.get(TABLE)?, *places.iter().nth_back(TABLE - 1)?);
        (first < after).then(|| (first, after, format!("{} writes to {word}", places.len() - 2 * TABLE)))
    };
    runs.iter().filter_map(cut).collect()
}

/// First and last record of each EEPROM access, from the request to the release.
fn words(entry: &Entry, records: &[Record]) -> Vec<(usize, usize)> {
    let mut words = Vec::new();
    let mut begun = None;
    for (at, record) in records.iter().enumerate() {
        let Event::Access(Access { write: true, region, offset, value, .. }) = record.event else { continue };
        if (entry.register)(region, offset).is_none_or(|name| name.word != EECD) {
            continue;
        }
        match (begun, value & EECD_REQUEST != 0) {
            (None, true) => begun = Some(at),
            (Some(first), false) => {
                words.push((first, at));
                begun = None;
            }
            _ => {}
        }
    }
    words
}
