//! Pauses of upgrades, and frames.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::path::Path;
use std::time::Duration;

use nicety_guests::Served;
use nicety_lab::statistics::percentile;
use serde_json::Value;

use crate::Error;

/// The steps of an upgrade, by their names in the answer.
const STEPS: [(&str, &str); 4] = [
    ("stop_ns", "the workers stop"),
    ("image_ns", "images are made and sent"),
    ("check_ns", "the rest is checked"),
    ("go_ns", "ports go on"),
];

/// Pauses in nanoseconds.
#[derive(Default)]
pub struct Figures {
    /// The pause of each port in each upgrade.
    ports: Vec<u64>,
    /// The time of each upgrade in which nothing moved.
    whole: Vec<u64>,
    /// The time from each request to its answer.
    asked: Vec<u64>,
    /// The parts of [`Figures::whole`].
    steps: [Vec<u64>; STEPS.len()],
    /// Bytes and descriptors of the last upgrade.
    handed: [u64; 2],
    /// Upgrades that were refused because the machine was busy.
    pub late: usize,
}

/// p50, p99 and maximum, in milliseconds.
pub fn spread(ns: &[u64]) -> Option<String> {
    let mut ns = ns.to_vec();
    let mut ms = |percent| percentile(&mut ns, percent).map(|ns| ns as f64 / 1e6);
    Some(format!("{:.1} ms (p50), {:.1} ms (p99), {:.1} ms (maximum)", ms(50.0)?, ms(99.0)?, ms(100.0)?))
}

impl Figures {
    /// Adds the answer of an upgrade.
    pub fn add(&mut self, answer: &Value, asked: Duration) -> Result<(), Error> {
        let ns = |value: &Value| value["stopped_ns"].as_u64().ok_or("an answer without a pause");
        self.whole.push(ns(answer)?);
        for port in answer["ports"].as_array().ok_or("an answer without ports")? {
            self.ports.push(ns(port)?);
        }
        let step = |name: &str| answer["steps"][name].as_u64().ok_or_else(|| format!("an answer without {name}"));
        for ((name, _), ns) in STEPS.iter().zip(&mut self.steps) {
            ns.push(step(name)?);
        }
        self.handed = [step("bytes")?, step("descriptors")?];
        self.asked.push(u64::try_from(asked.as_nanos())?);
        Ok(())
    }

    /// Prints them.
    pub fn print(&self) {
        println!("{} upgrades in a row; {} more were refused: the machine was too busy", self.whole.len(), self.late);
        for (what, ns) in [
            ("a port stood still for", &self.ports),
            ("nothing moved for", &self.whole),
            ("from request to answer", &self.asked),
        ] {
            println!("  {what} {}", spread(ns).unwrap_or_default());
        }
        for ((_, what), ns) in STEPS.iter().zip(&self.steps) {
            println!("    {what}: {}", spread(ns).unwrap_or_default());
        }
        let [bytes, descriptors] = self.handed;
        println!("  handed over in the last one: {bytes} bytes, {descriptors} descriptors");
    }
}

/// Most frames of a packet: 64 KiB of TCP in segments of 1,446 bytes.
const PACKET_FRAMES: u64 = 46;

/// Frames of a kind of guests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    sent: u64,
    received: u64,
    /// Packets by reason. One may be of several frames.
    dropped: BTreeMap<String, u64>,
}

/// Frames of the daemon's ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    /// The counts of embedded guests.
    pub embedded: Counts,
    /// The counts of real guests. They send multicast frames, which not everybody gets.
    pub real: Counts,
}

impl Counts {
    /// In pairs, each frame is received by the other guest, or is of a packet that is counted as dropped.
    pub fn adds_up(&self) -> bool {
        let packets = self.dropped.values().sum::<u64>();
        (packets..=packets * PACKET_FRAMES).contains(&self.sent.saturating_sub(self.received))
    }

    fn since(&self, before: &Counts) -> Counts {
        let of = |name: &String| before.dropped.get(name).copied().unwrap_or(0);
        let dropped = self.dropped.iter().map(|(name, count)| (name.clone(), count - of(name)));
        Counts {
            sent: self.sent - before.sent,
            received: self.received - before.received,
            dropped: dropped.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

impl Frames {
    pub fn since(&self, before: &Frames) -> Frames {
        Frames { embedded: self.embedded.since(&before.embedded), real: self.real.since(&before.real) }
    }
}

impl Display for Counts {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Counts { sent, received, dropped } = self;
        let lost = i128::from(*sent) - i128::from(*received);
        let packets = dropped.values().sum::<u64>();
        write!(f, "{sent} frames sent, {received} received, {lost} lost; packets counted as dropped: {packets}")?;
        dropped.iter().try_for_each(|(reason, count)| write!(f, ", {reason} {count}"))
    }
}

/// The counts of all ports.
pub fn frames(control: &Path) -> Result<Frames, Error> {
    let answer = Served::ask_at(control).ok_or("the daemon does not answer")?;
    let answer: Value = serde_json::from_str(&answer)?;
    let mut frames = Frames::default();
    for port in answer["ports"].as_array().ok_or("an answer without ports")? {
        let name = port["name"].as_str().unwrap_or_default();
        let counts = match name.chars().next() {
            Some('p') => &mut frames.embedded,
            Some('m') => &mut frames.real,
            _ => continue,
        };
        let sum = |way: &str| -> u64 {
            port[way].as_array().into_iter().flatten().filter_map(|queue| queue["frames"].as_u64()).sum()
        };
        counts.sent += sum("transmit");
        counts.received += sum("receive");
        for way in ["transmit_drops", "receive_drops"] {
            for (reason, count) in port[way].as_object().into_iter().flatten() {
                *counts.dropped.entry(reason.clone()).or_default() += count.as_u64().unwrap_or(0);
            }
        }
    }
    Ok(frames)
}
