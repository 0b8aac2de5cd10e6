//! The measurements of a run, and the run's record on disk.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bench::Percentile;
use crate::plan::Item;
use crate::series::Series;
use crate::subject::Subject;

/// The measurements of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Taken {
    /// Values by the figure's name.
    pub figures: BTreeMap<String, f64>,
    /// The rate over time, in the unit of the load's main figure.
    pub series: Option<Series>,
    /// Several rates over time, by name, in one unit.
    pub lines: BTreeMap<String, Series>,
    /// Percentiles of latencies.
    pub latency: Option<Vec<Percentile>>,
    /// Texts that guests showed, by title: `lspci`, `dmesg`.
    pub texts: BTreeMap<String, String>,
    /// Remarks on the run that a reader must know, such as `guest-bound`.
    pub marks: Vec<String>,
    /// Percentage of the processors' time that the hypervisor gave to others during the measurement itself. None: the rig does not mark
    /// its begin and end, and the run's whole time counts.
    pub steal_percent: Option<f64>,
}

impl Taken {
    /// A run without figures, and the remark that says why.
    pub(crate) fn marked(mark: impl Into<String>) -> Taken {
        Taken { marks: vec![mark.into()], ..Taken::default() }
    }

    /// Adds latencies: their percentiles, and the figures `p50` and `p99` of them.
    #[must_use]
    pub(crate) fn with_latency(mut self, latency: Option<Vec<Percentile>>) -> Taken {
        for known in latency.iter().flatten().filter(|known| [50.0, 99.0].contains(&known.percent)) {
            self.figures.insert(format!("p{}", known.percent), known.us);
        }
        self.latency = latency;
        self
    }
}

/// A run that has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The round, counted from 0.
    pub round: u32,
    /// The row of the tables.
    #[serde(flatten)]
    pub subject: Subject,
    /// Name of the load.
    pub load: String,
    /// Its begin: RFC 3339, in UTC.
    pub date: String,
    /// Duration with starting and settling, in seconds.
    pub took_seconds: f64,
    /// Percentage of the processors' time that the hypervisor gave to others: during the measurement itself where the rig marks it, else
    /// during the whole run.
    pub steal_percent: Option<f64>,
    /// Percentage of it that other processes than the lab's own took during the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others_percent: Option<f64>,
    /// Values by the figure's name.
    #[serde(default)]
    pub figures: BTreeMap<String, f64>,
    /// Why there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Whether the run was repeated because it was disturbed; it then counts nowhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub discarded: bool,
    /// Remarks, such as `disturbed` and `guest-bound`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<String>,
    /// The rate over time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<Series>,
    /// Several rates over time, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lines: BTreeMap<String, Series>,
    /// Percentiles of latencies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Vec<Percentile>>,
    /// Texts that guests showed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub texts: BTreeMap<String, String>,
}

impl RunRecord {
    /// The record of a run with these measurements.
    pub fn new(item: &Item, taken: Result<Taken, String>) -> RunRecord {
        let (taken, failure) = match taken {
            Ok(taken) => (taken, None),
            Err(why) => (Taken::default(), Some(why)),
        };
        let Taken { figures, series, lines, latency, texts, marks, steal_percent } = taken;
        RunRecord {
            round: item.round,
            subject: item.subject.clone(),
            load: item.load.clone(),
            date: String::new(),
            took_seconds: 0.0,
            steal_percent,
            others_percent: None,
            figures,
            failure,
            discarded: false,
            marks,
            series,
            lines,
            latency,
            texts,
        }
    }

    /// The planned run.
    pub fn item(&self) -> Item {
        Item { round: self.round, subject: self.subject.clone(), load: self.load.clone() }
    }
}
