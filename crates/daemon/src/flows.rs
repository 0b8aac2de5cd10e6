//! Exports of flows (`[[flow_export]]`): workers count, and a thread of its own tells collectors by IPFIX.
//!
//! ```text
//! worker:        batch, decision → its tables (nicety_plane::FlowTables) → records ──► queue, bounded
//! thread flows:  every 100 ms: asks the workers for what is due; queue → messages ──► collector by UDP or TCP
//! ```
//!
//! A worker never waits here: records for which the queue has no room are lost, and counted by port. Records keep the names that their ports
//! had. The thread waits for no collector: its sockets do not block. All times are those of the frames' clock, to which the time of day at its
//! start is added (`epoch`).

mod connection;
mod epoch;
mod exporter;
mod queue;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use nicety_host::{FlowExportConfig, Host};
use nicety_ipfix::Names;
use nicety_plane::{Covered, FlowExport, FlowSink};
use nicety_sandbox::Kind;
use serde::{Deserialize, Serialize};
use tracing::warn;
use utoipa::ToSchema;

use crate::clock::Clock;
use crate::run::inbox::Inbox;
use exporter::{Export, Shared};

/// The ports of a switch, as collectors get to know them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ports {
    /// Their names, by number.
    pub names: Names,
    /// The numbers of uplinks and teams.
    pub uplinks: Vec<u16>,
}

/// Most ports of [`FlowExportReport::losers`].
const LOSERS: usize = 3;

/// An export of flows: what it counts, and whether its collector gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlowExportReport {
    /// Its name.
    pub name: String,
    /// Its collector, such as `udp:10.0.0.9:4739`.
    pub collector: String,
    /// Names of the ports, uplinks and teams whose flows are counted. `null`: those of all ports.
    pub of: Option<Vec<String>>,
    /// One frame in so many is counted.
    pub sampling: u32,
    /// Records that were sent.
    pub records: u64,
    /// Times that the templates were sent.
    pub templates: u64,
    /// Records that were lost: the collector was away or too slow.
    pub lost: u64,
    /// The same by the ports that the frames came from, of ports that are there and have lost any.
    #[serde(default)]
    pub lost_by_port: BTreeMap<String, u64>,
    /// Flows that were reported early, because their port has no room for more.
    pub displaced: u64,
    /// Why the collector gets nothing. `null`: it gets records, as far as is known.
    pub away: Option<String>,
}

impl FlowExportReport {
    /// The ports in words.
    pub fn ports(&self) -> String {
        self.of.as_ref().map_or_else(|| "all ports".to_owned(), |of| of.join(", "))
    }

    /// The ports that have lost most records, in words.
    pub fn losers(&self) -> String {
        let mut ports: Vec<_> = self.lost_by_port.iter().collect();
        ports.sort_by_key(|(_, lost)| std::cmp::Reverse(**lost));
        let mut words: Vec<String> = ports.iter().take(LOSERS).map(|(port, lost)| format!("{port} {lost}")).collect();
        if ports.len() > LOSERS {
            words.push(format!("{} more", ports.len() - LOSERS));
        }
        if words.is_empty() { "-".to_owned() } else { words.join(", ") }
    }

    /// Whether the collector gets records, in words.
    pub fn state(&self) -> String {
        self.away.as_ref().map_or_else(|| "sending".to_owned(), |why| format!("away: {why}"))
    }
}

/// The exports of a daemon.
#[derive(Debug)]
pub(crate) struct Flows {
    shared: Arc<Shared>,
    clock: Clock,
    inboxes: Vec<Arc<Inbox>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    set: Mutex<Set>,
}

/// What was set last.
#[derive(Debug, Default)]
struct Set {
    configs: Vec<FlowExportConfig>,
    ports: Ports,
    version: u32,
    ids: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Tells a port from others that have its number at other times. Never 0.
fn identity(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish().max(1)
}

impl Flows {
    /// No exports of the workers with these inboxes.
    pub fn new(clock: Clock, inboxes: Vec<Arc<Inbox>>) -> Self {
        Self { shared: Arc::default(), clock, inboxes, thread: Mutex::default(), set: Mutex::default() }
    }

    /// Starts the thread, unless it runs. It sleeps until there is an export. To be called before the process confines itself: a thread that
    /// starts later reaches no collector by TCP.
    pub fn start(&self) {
        let mut thread = lock(&self.thread);
        if thread.is_some() {
            return;
        }
        let (shared, clock, inboxes) = (Arc::clone(&self.shared), self.clock, self.inboxes.clone());
        let started = nicety_sandbox::spawn(Kind::Flows, "flows", 0, move || exporter::run(&shared, clock, &inboxes));
        match started {
            Ok(handle) => *thread = Some(handle),
            Err(error) => warn!("no flows are exported: starting a thread: {error}"),
        }
    }

    /// Exports what this host says from now on. `None`: nothing has changed. Else the number of the workers' new plan, and the plan.
    pub fn set(&self, host: &Host, ports: Ports) -> Option<(u32, Vec<FlowExport>)> {
        let mut set = lock(&self.set);
        let is_idle = host.flow_exports.is_empty() && set.configs.is_empty();
        if is_idle || (set.configs == host.flow_exports && set.ports == ports) {
            return None;
        }
        self.start();
        let version = set.version.wrapping_add(1);
        let (mut exports, mut plan) = (Vec::new(), Vec::new());
        for config in &host.flow_exports {
            let known = self.shared.exports().into_iter().find(|known| is_same(&known.config, config));
            let export = known.unwrap_or_else(|| {
                set.ids += 1;
                Arc::new(Export::new(set.ids, config.clone()))
            });
            plan.push(counted(&export, config, &ports, export.learn(version, ports.names.clone())));
            exports.push(export);
        }
        self.shared.set(exports);
        (set.configs, set.ports, set.version) = (host.flow_exports.clone(), ports, version);
        Some((version, plan))
    }

    /// The states of all exports.
    pub fn reports(&self) -> Vec<FlowExportReport> {
        // An export goes on with its connection when only its ports change, so it may have older ones.
        let configs = lock(&self.set).configs.clone();
        let report = |export: Arc<Export>| {
            let counts = export.queue.counts();
            let config = configs.iter().find(|config| config.name == export.config.name).unwrap_or(&export.config);
            FlowExportReport {
                name: config.name.clone(),
                collector: config.collector.to_string(),
                of: of(config),
                sampling: config.sampling,
                records: counts.records.load(Ordering::Relaxed),
                templates: counts.templates.load(Ordering::Relaxed),
                lost: counts.lost.load(Ordering::Relaxed),
                lost_by_port: export.queue.lost_by_port(),
                displaced: counts.displaced.load(Ordering::Relaxed),
                away: export.away(),
            }
        };
        self.shared.exports().into_iter().map(report).collect()
    }

    /// Sends what the workers have reported, as far as collectors take it at once, and ends the thread.
    pub fn end(&self) {
        self.shared.end();
        let thread = lock(&self.thread).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            warn!("the thread that exports flows had panicked");
        }
    }
}

/// The names of what an export counts. `None`: all ports, and no uplink.
fn of(config: &FlowExportConfig) -> Option<Vec<String>> {
    let FlowExportConfig { ports, uplinks, .. } = config;
    Some([ports.as_ref()?, uplinks].into_iter().flatten().cloned().collect())
}

/// Whether an export goes on with its connection and its counters: only its ports are others.
fn is_same(one: &FlowExportConfig, other: &FlowExportConfig) -> bool {
    let FlowExportConfig { ports, uplinks, .. } = other.clone();
    FlowExportConfig { ports, uplinks, ..one.clone() } == *other
}

/// What workers count for an export.
fn counted(
    export: &Export,
    config: &FlowExportConfig,
    Ports { names, uplinks }: &Ports,
    sink: Arc<dyn FlowSink>,
) -> FlowExport {
    let count = names.keys().next_back().map_or(0, |last| usize::from(*last) + 1);
    let mut ports = vec![Covered::default(); count];
    for (number, port) in names {
        let is_covered = match uplinks.contains(number) {
            true => config.uplinks.contains(&port.name),
            false => config.has_port(&port.name),
        };
        ports[usize::from(*number)] =
            Covered { identity: identity(&port.name), directions: if is_covered { Covered::BOTH } else { 0 } };
    }
    let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    FlowExport {
        id: export.id,
        ports,
        sampling: config.sampling,
        active_ns: ns(config.active.duration()),
        idle_ns: ns(config.idle.duration()),
        port_bytes: usize::try_from(config.memory.0).unwrap_or(usize::MAX),
        sink,
    }
}

#[cfg(test)]
#[path = "flows_test.rs"]
mod tests;
