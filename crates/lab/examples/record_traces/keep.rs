//! Selects the part of a recording to keep: everything where the driver's own order matters, stretches where it repeats itself.
//!
//! - Times are dropped: they are the host's, and would change every line of a new recording.
//! - Of each load, one stretch from the middle is kept, from one interrupt to another. A line above it gives the totals of the load.
//! - The e1000's driver reads 64 words of EEPROM bit by bit (150 accesses a word) and writes tables of 128 registers. Only the
//!   first and the last word of a series, and the first and last registers, are kept.
//! - Drivers of e1000e and igb take a semaphore around each access to the PHY and release it (up to 16 accesses). Only the first and
//!   the last uses are kept, and of repeated reads of the clock the first and the last.

use nicety_adapter::trace::{Access, Event, TimedEvent, Trace};
use nicety_adapters::Entry;

use crate::life::Phase;

/// Events kept of a load.
const STRETCH: usize = 200;
/// EEPROM words kept at the beginning and at the end of each series.
const WORDS: usize = 1;
/// Writes kept at the beginning and at the end of a table.
const TABLE: usize = 3;
/// Most accesses between two words of a series.
const SERIES_GAP: usize = 48;
/// Reads of the clock kept at the beginning and at the end of a series: two of each half.
const CLOCK_READS: usize = 4;
/// Uses of the semaphore kept at the beginning and at the end of a phase: each is a taking and a release.
const SEMAPHORES: usize = 2;
/// Registers that drive an EEPROM's wires, and the bits that can stand from the beginning to the end of a word: EECD's request, or
/// its chip select with an 82544, which has no request (8254x manual, 13.4.3); chip select in the 8139's EECR.
const WIRES: [(&str, &[u64]); 2] = [("EECD", &[1 << 6, 1 << 1]), ("EECR", &[1 << 3])];
/// Registers of a semaphore, and the bits that are zero in the write that ends its use: SWSM with SW_FW_SYNC (82576 datasheet, 8.7.1 and 8.7.3),
/// the software's ownership of MDIO in EXTCNF_CTRL (82574 datasheet, 10.2.2).
const SEMAPHORE: [(&str, u64); 3] = [("SWSM", !0), ("SW_FW_SYNC", 0), ("EXTCNF_CTRL", 1 << 5)];

/// Text of the trace file.
pub fn kept(entry: &Entry, origin: &str, life: &[Phase]) -> Result<String, String> {
    let mut text = Trace::header("vm1", entry.about.name, None, None);
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
            let (records, left_out) = without_semaphores(entry, &records);
            if left_out > 0 {
                text.push_str(&format!("# Left out: {left_out} uses of the PHY's semaphore.\n"));
            }
            shortened(&mut text, entry, &records);
        }
    }
    Ok(text)
}

fn records(phase: &Phase) -> Result<Vec<TimedEvent>, String> {
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
        let record: TimedEvent = content.parse().map_err(|error| format!("{line}: {error}"))?;
        if let Event::Lost(count) = record.event {
            return Err(format!("{count} events of phase {} were lost: this host is too slow to record", phase.name));
        }
        records.push(TimedEvent { at: None, ..record });
    }
    Ok(records)
}

/// Whether this record starts an interrupt.
fn begins(record: &TimedEvent) -> bool {
    matches!(record.event, Event::Interrupt(_) | Event::Line(true))
}

/// A stretch from the middle, from the start of one interrupt to just before another.
fn stretch(records: &[TimedEvent]) -> &[TimedEvent] {
    let middle = records.len() / 2;
    let first = (middle..records.len()).find(|&at| records.get(at).is_some_and(begins)).unwrap_or(middle);
    let after = (first + STRETCH).min(records.len());
    let last = (after..records.len()).find(|&at| records.get(at).is_some_and(begins)).unwrap_or(after);
    records.get(first..last).unwrap_or_default()
}

fn lines(text: &mut String, entry: &Entry, records: &[TimedEvent]) {
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
fn shortened(text: &mut String, entry: &Entry, records: &[TimedEvent]) {
    let mut cuts = tables(entry, records);
    let words = words(entry, records);
    for series in words.chunk_by(|one, next| next.0 - one.1 <= SERIES_GAP) {
        if let (Some(first), Some(last)) = (series.get(WORDS), series.iter().nth_back(WORDS))
            && first.0 < last.0
        {
            cuts.push((first.0, last.1 + 1, format!("{} words of EEPROM", series.len() - 2 * WORDS)));
        }
    }
    cuts.extend(clock(entry, records));
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
fn tables(entry: &Entry, records: &[TimedEvent]) -> Vec<(usize, usize, String)> {
    let mut runs: Vec<(&str, u64, Vec<usize>)> = Vec::new();
    let mut whole = true;
    for (at, record) in records.iter().enumerate() {
        let Event::Access(Access { write, region, offset, value, .. }) = record.event else {
            whole = false;
            continue;
        };
        let name = (entry.register)(region, offset);
        let table = |word| match word {
            // The halves of an address are written in turn.
            "RAH" => Some("RAL"),
            "RAH2" => Some("RAL2"),
            // A window.
            "PAGED" => None,
            word => Some(word),
        };
        match (write, name.and_then(|name| name.index.and_then(|_| table(name.word)))) {
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

/// The middle of a long series of reads of the clock: e1000e reads it up to 50 times where two reads take longer than 131 µs
/// (e1000e_sanitize_systim).
fn clock(entry: &Entry, records: &[TimedEvent]) -> Vec<(usize, usize, String)> {
    let reads_clock = |record: &TimedEvent| match record.event {
        Event::Access(Access { write: false, region, offset, .. }) => {
            (entry.register)(region, offset).is_some_and(|name| matches!(name.word, "SYSTIML" | "SYSTIMH"))
        }
        _ => false,
    };
    let reads: Vec<usize> =
        records.iter().enumerate().filter(|(_, record)| reads_clock(record)).map(|(at, _)| at).collect();
    let series = reads.chunk_by(|one, next| next - one == 1);
    let cut = |series: &[usize]| {
        let (first, after) = (*series.get(CLOCK_READS)?, *series.iter().nth_back(CLOCK_READS - 1)?);
        (first < after).then(|| (first, after, format!("{} reads of the clock", series.len() - 2 * CLOCK_READS)))
    };
    series.filter_map(cut).collect()
}

/// The records without most uses of a semaphore, and the number of those left out. SWSM is used to take SW_FW_SYNC, and again to
/// release it: an even number is left out, so that the last one kept finds the state that it found.
fn without_semaphores(entry: &Entry, records: &[TimedEvent]) -> (Vec<TimedEvent>, usize) {
    let mut uses: Vec<Vec<usize>> = Vec::new();
    let mut open = false;
    for (at, record) in records.iter().enumerate() {
        let Event::Access(Access { write, region, offset, value, .. }) = record.event else { continue };
        let Some(name) = (entry.register)(region, offset) else { continue };
        let Some((_, bits)) = SEMAPHORE.iter().find(|(word, _)| *word == name.word) else { continue };
        match uses.last_mut().filter(|_| open) {
            Some(last) => last.push(at),
            None => uses.push(vec![at]),
        }
        open = !write || *bits == 0 || value & bits != 0;
    }
    let after = uses.len().saturating_sub(SEMAPHORES);
    let count = after.saturating_sub(SEMAPHORES) & !1;
    let cut: Vec<usize> = uses.get(after - count..after).unwrap_or_default().concat();
    let kept = (0..records.len()).filter(|at| !cut.contains(at)).filter_map(|at| records.get(at).cloned());
    (kept.collect(), count)
}

/// First and last record of each EEPROM access: on the wires, or by EERD, a write and the reads until the word is there.
fn words(entry: &Entry, records: &[TimedEvent]) -> Vec<(usize, usize)> {
    let mut words: Vec<(usize, usize)> = Vec::new();
    let mut begun = None;
    let writes = |word: &str, bit: u64| {
        records.iter().any(|record| match record.event {
            Event::Access(Access { write: true, region, offset, value, .. }) => {
                value & bit != 0 && (entry.register)(region, offset).is_some_and(|name| name.word == word)
            }
            _ => false,
        })
    };
    let wires: Vec<(&str, u64)> =
        WIRES.iter().filter_map(|(word, bits)| Some((*word, *bits.iter().find(|bit| writes(word, **bit))?))).collect();
    for (at, record) in records.iter().enumerate() {
        let Event::Access(Access { write, region, offset, value, .. }) = record.event else { continue };
        let Some(name) = (entry.register)(region, offset) else { continue };
        if name.word == "EERD" {
            match words.last_mut() {
                Some(last) if !write => last.1 = at,
                _ => words.push((at, at)),
            }
        }
        // The 8139's drivers read EECR after each write.
        if let Some(last) = words.last_mut().filter(|last| name.word == "EECR" && !write && last.1 + 1 == at) {
            last.1 = at;
        }
        let Some((_, bit)) = wires.iter().find(|(word, _)| write && *word == name.word) else { continue };
        match (begun, value & bit != 0) {
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
