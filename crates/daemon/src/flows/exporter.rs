//! The thread that tells collectors what the workers have counted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use nicety_adapter::{Reason, Time};
use nicety_host::{Collector, FlowExportConfig};
use nicety_ipfix::{Direction, Names, Port, Report, Session, Terms};
use nicety_plane::Reported;
use tracing::{info, warn};

use super::connection::{Connection, Look};
use super::epoch::Epoch;
use super::lock;
use super::queue::Queue;
use crate::clock::Clock;
use crate::run::inbox::Inbox;

/// The workers are asked this often.
const TICK: Duration = Duration::from_millis(100);
/// Templates and names are sent again after this time by UDP.
const TEMPLATES: Duration = Duration::from_secs(20);
/// Most bytes of a message by UDP: it fits into a packet of an Ethernet, also in a tunnel (RFC 7011, section 10.3.3).
const DATAGRAM_BYTES: usize = 1400;
/// Most bytes of a message by TCP.
const MESSAGE_BYTES: usize = 16 << 10;
/// What a removed export's workers have reported may still come for this time.
const REMAINS: Duration = Duration::from_millis(500);
/// Most time to send what is left at the end.
const END: Duration = Duration::from_millis(500);
/// Plans whose names are known: records of older ones have their ports' present names.
const PLANS_MAX: usize = 8;
/// Least time between two lines of the log about one collector.
const QUIET: Duration = Duration::from_secs(60);

/// Forwarding status: dropped, for an unknown reason, by a rule, by a limit (RFC 7270, section 4.12).
const DROPPED: u8 = 128;
const DROPPED_BY_RULE: u8 = 129;
const DROPPED_BY_LIMIT: u8 = 138;

/// An export: what the thread and everybody else share of it.
#[derive(Debug)]
pub(super) struct Export {
    pub id: u64,
    pub config: FlowExportConfig,
    pub queue: Arc<Queue>,
    /// The ports' names by the plans' numbers, the newest last.
    plans: Mutex<VecDeque<(u32, Arc<Names>)>>,
    away: Mutex<Option<String>>,
}

impl Export {
    /// An export with this number.
    pub fn new(id: u64, config: FlowExportConfig) -> Self {
        let away = Mutex::new(Some("it has not been connected to yet".to_owned()));
        Self { id, config, queue: Arc::default(), plans: Mutex::default(), away }
    }

    /// Ports have these names in records of this plan.
    pub fn learn(&self, version: u32, names: Names) {
        let mut plans = lock(&self.plans);
        plans.push_back((version, Arc::new(names)));
        while plans.len() > PLANS_MAX {
            plans.pop_front();
        }
    }

    /// Why the collector gets nothing.
    pub fn away(&self) -> Option<String> {
        lock(&self.away).clone()
    }

    /// The names of a plan, or the newest ones.
    fn names(&self, version: Option<u32>) -> (u32, Arc<Names>) {
        let plans = lock(&self.plans);
        let of = plans.iter().find(|(known, _)| Some(*known) == version);
        of.or(plans.back()).cloned().unwrap_or_default()
    }
}

/// What the thread is to do.
#[derive(Debug, Default)]
pub(super) struct Shared {
    exports: Mutex<Vec<Arc<Export>>>,
    ends: AtomicBool,
    changed: Condvar,
}

impl Shared {
    /// All exports.
    pub fn exports(&self) -> Vec<Arc<Export>> {
        lock(&self.exports).clone()
    }

    /// These exports from now on.
    pub fn set(&self, exports: Vec<Arc<Export>>) {
        *lock(&self.exports) = exports;
        self.changed.notify_all();
    }

    /// The thread ends.
    pub fn end(&self) {
        let _held = lock(&self.exports);
        self.ends.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Waits for the next tick, or for an export if there is nothing to do. Returns the exports, or `None` at the end.
    fn wait(&self, is_idle: bool) -> Option<Vec<Arc<Export>>> {
        let mut exports = lock(&self.exports);
        let ends = || self.ends.load(Ordering::Relaxed);
        if is_idle {
            while exports.is_empty() && !ends() {
                exports = self.changed.wait(exports).unwrap_or_else(|poisoned| poisoned.into_inner());
            }
        } else if !ends() {
            let waited = self.changed.wait_timeout(exports, TICK);
            (exports, _) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        if ends() { None } else { Some(exports.clone()) }
    }
}

/// Runs until the end.
pub(super) fn run(shared: &Shared, clock: Clock, inboxes: &[Arc<Inbox>]) {
    let (mut links, mut epoch): (Vec<Link>, Epoch) = (Vec::new(), Epoch::default());
    while let Some(exports) = shared.wait(links.is_empty()) {
        let now = clock.now();
        epoch.look(now);
        follow(&mut links, &exports, now);
        inboxes.iter().for_each(|inbox| inbox.ask_for_flows());
        links.iter_mut().for_each(|link| link.turn(now, epoch));
        links.retain(|link| link.until.is_none_or(|until| now < until));
    }
    let end = Instant::now() + END;
    loop {
        let now = clock.now();
        links.iter_mut().for_each(|link| link.turn(now, epoch));
        let is_done = links.iter().all(|link| link.connection.is_flushed());
        if is_done || Instant::now() >= end {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A link for each export. Those of exports that are gone stay for a moment.
fn follow(links: &mut Vec<Link>, exports: &[Arc<Export>], now: Time) {
    for link in links.iter_mut().filter(|link| link.until.is_none()) {
        let is_there = exports.iter().any(|export| export.id == link.export.id);
        link.until = (!is_there).then(|| now.after(REMAINS));
    }
    for export in exports {
        if !links.iter().any(|link| link.export.id == export.id) {
            links.push(Link::new(export));
        }
    }
}

/// An export's collector.
#[derive(Debug)]
struct Link {
    export: Arc<Export>,
    connection: Connection,
    session: Session,
    /// Records that were taken from the queue.
    taken: Vec<Reported>,
    /// The plan whose names the collector knows.
    told: u32,
    /// It is removed then.
    until: Option<Time>,
    /// The last line of the log: whether the collector was there, and when.
    said: Option<(bool, Time)>,
}

impl Link {
    fn new(export: &Arc<Export>) -> Self {
        let config = &export.config;
        let (message_bytes, again) = match config.collector {
            Collector::Udp(_) => (DATAGRAM_BYTES, Some(TEMPLATES)),
            Collector::Tcp(_) => (MESSAGE_BYTES, None),
        };
        let session = Session::new(Terms { domain: config.domain, sampling: config.sampling, message_bytes, again });
        Self {
            export: Arc::clone(export),
            connection: Connection::new(config.collector),
            session,
            taken: Vec::new(),
            told: 0,
            until: None,
            said: None,
        }
    }

    /// Sends what the workers have reported.
    fn turn(&mut self, now: Time, epoch: Epoch) {
        let look = self.connection.look(now);
        if look == Look::New {
            self.session.begin();
        }
        if look != Look::Away && self.connection.has_room() {
            self.send(now, epoch.ns());
        }
        let counts = self.export.queue.counts();
        counts.records.fetch_add(self.connection.take_sent(), Ordering::Relaxed);
        counts.lost.fetch_add(self.connection.take_lost(), Ordering::Relaxed);
        self.note(now);
    }

    fn send(&mut self, now: Time, epoch_ns: u64) {
        let Self { export, connection, session, taken, told, .. } = self;
        let (newest, names) = export.names(None);
        if std::mem::replace(told, newest) != newest {
            session.renew();
        }
        let counts = export.queue.counts();
        if session.is_due(now.0) {
            let mut are_sent = true;
            for message in session.templates(&names, now.0, epoch_ns) {
                are_sent &= connection.send(&message, 0, now);
            }
            match are_sent {
                true => _ = counts.templates.fetch_add(1, Ordering::Relaxed),
                // The collector may lack them.
                false => session.renew(),
            }
        }
        taken.clear();
        export.queue.drain(taken);
        let plans: Vec<(u32, Arc<Names>)> =
            versions(taken).map(|version| (version, export.names(Some(version)).1)).collect();
        let reports = taken.iter().flat_map(|reported| {
            let names = plans.iter().find(|(version, _)| *version == reported.version).map(|(_, names)| &**names);
            Direction::ALL.into_iter().filter_map(move |direction| report(reported, direction, names?))
        });
        session.messages(reports, now.0, epoch_ns, |message, records| {
            if !connection.send(message, records.into(), now) {
                counts.lost.fetch_add(records.into(), Ordering::Relaxed);
            }
        });
        // What TCP takes at once.
        let _the_next_turn_sees_it = connection.look(now);
    }

    /// Notes whether the collector gets anything, and logs a change.
    fn note(&mut self, now: Time) {
        let Self { export, connection, said, .. } = self;
        let why = connection.why().map(str::to_owned);
        let (is_there, name, collector) = (why.is_none(), &export.config.name, export.config.collector);
        let may_say = said.is_none_or(|(before, at)| before != is_there && now.since(at) >= QUIET);
        // The first line says that it is away: that it is there is no news.
        if may_say && (said.is_some() || !is_there) {
            *said = Some((is_there, now));
            match &why {
                Some(why) => {
                    warn!(flow_export = name, "the collector {collector} gets nothing: {why}; it is tried again")
                }
                None => info!(flow_export = name, "the collector {collector} gets records again"),
            }
        }
        *lock(&export.away) = why;
    }
}

/// The plans of records: most are of one.
fn versions(records: &[Reported]) -> impl Iterator<Item = u32> {
    let mut versions: Vec<u32> = Vec::new();
    for record in records {
        if !versions.contains(&record.version) {
            versions.push(record.version);
        }
    }
    versions.into_iter()
}

/// What a record says where its frames came in, or where they left. `None`: nothing there.
fn report<'a>(reported: &'a Reported, direction: Direction, names: &'a Names) -> Option<Report<'a>> {
    let record = &reported.record;
    let outcome = record.key.outcome();
    if outcome.directions & direction.bit() == 0 {
        return None;
    }
    let at = match direction {
        Direction::Ingress => record.ingress,
        Direction::Egress => outcome.egress,
    };
    let name = |number| names.get(number).map_or("", |port: &Port| port.name.as_str());
    let untagged = names.get(&record.ingress).map_or(0, |port| port.vlan);
    let dropped = reported.dropped().map(|reason| (status(reason), reason.name()));
    Some(Report { record, direction, name: name(&at), untagged, dropped })
}

/// The forwarding status of a drop.
fn status(reason: Reason) -> u8 {
    match reason {
        Reason::BroadcastStorm | Reason::MulticastStorm | Reason::UnknownStorm | Reason::AddressLimit => {
            DROPPED_BY_LIMIT
        }
        reason if reason.is_refusal() => DROPPED_BY_RULE,
        _ => DROPPED,
    }
}

#[cfg(test)]
#[path = "exporter_test.rs"]
mod tests;
