//! The thread that tells collectors what the workers have counted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use nicety_adapter::{Reason, Time};
use nicety_host::{Collector, FlowExportConfig};
use nicety_ipfix::{Direction, Due, NOT_ONE, Names, Port, Report, Session, Terms};
use nicety_plane::{FlowSink, drop_reason};
use tracing::{info, warn};

use super::connection::{Connection, Look, Tally};
use super::epoch::Epoch;
use super::lock;
use super::queue::{Inlet, Queue, WAITING_MAX, Waiting};
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
/// The link of a removed export stays for this time, and until all workers have reported its flows.
const REMAINS: Duration = Duration::from_millis(500);
/// It stays no longer than this.
const REMAINS_MAX: Duration = Duration::from_secs(60);
/// Most time to send what is left at the end.
const END: Duration = Duration::from_millis(500);
/// Records that are taken from the queue at a time.
const TAKEN: usize = 256;
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
    /// The ports' names, and the number of the plan that they are of.
    names: Mutex<(u32, Arc<Names>)>,
    away: Mutex<Option<String>>,
}

impl Export {
    /// An export with this number.
    pub fn new(id: u64, config: FlowExportConfig) -> Self {
        let away = Mutex::new(Some("it has not been connected to yet".to_owned()));
        Self { id, config, queue: Arc::default(), names: Mutex::default(), away }
    }

    /// Ports have these names from this plan on. Returns where the plan's records go.
    pub fn learn(&self, version: u32, names: Names) -> Arc<dyn FlowSink> {
        let names = Arc::new(names);
        *lock(&self.names) = (version, Arc::clone(&names));
        self.queue.keep(&names);
        Arc::new(Inlet::new(&self.queue, &names))
    }

    /// Why the collector gets nothing.
    pub fn away(&self) -> Option<String> {
        lock(&self.away).clone()
    }

    /// The newest plan's number and names.
    fn names(&self) -> (u32, Arc<Names>) {
        lock(&self.names).clone()
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
        links.retain(|link| !link.is_over(now));
    }
    let end = Instant::now() + END;
    loop {
        let now = clock.now();
        links.iter_mut().for_each(|link| link.turn(now, epoch));
        let is_done = links.iter().all(Link::is_done);
        if is_done || Instant::now() >= end {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A link for each export. Those of exports that are gone stay for a moment.
fn follow(links: &mut Vec<Link>, exports: &[Arc<Export>], now: Time) {
    for link in links.iter_mut().filter(|link| link.gone.is_none()) {
        let is_there = exports.iter().any(|export| export.id == link.export.id);
        link.gone = (!is_there).then_some(now);
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
    /// Records that were taken from the queue, and not sent yet.
    taken: VecDeque<Waiting>,
    /// The plan whose names the collector knows.
    told: u32,
    /// Its export is gone since this time.
    gone: Option<Time>,
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
            taken: VecDeque::new(),
            told: 0,
            gone: None,
            said: None,
        }
    }

    /// Sends what the workers have reported, if the collector is there. Else it waits.
    fn turn(&mut self, now: Time, epoch: Epoch) {
        match self.connection.look(now) {
            Look::Away => {}
            // Records wait until the next turn: by UDP that one knows whether the templates were refused.
            Look::New => {
                self.session.begin();
                self.announce(now, epoch.ns());
            }
            Look::Open => {
                if self.announce(now, epoch.ns()) {
                    self.send(now, epoch.ns());
                }
            }
        }
        self.connection.flush(now);
        let queue = &self.export.queue;
        queue.counts().records.fetch_add(self.connection.take_sent(), Ordering::Relaxed);
        self.connection.take_lost().iter().for_each(|(port, records)| queue.lose(&port.name, *records));
        self.note(now);
    }

    /// Whether its export is gone, and no worker has anything for it.
    fn is_over(&self, now: Time) -> bool {
        let Some(gone) = self.gone else { return false };
        let since = now.since(gone);
        // Workers hold inlets as long as they have flows.
        let is_reported = Arc::strong_count(&self.export.queue) == 1;
        since >= REMAINS_MAX || (since >= REMAINS && is_reported && self.is_done())
    }

    /// Whether nothing is left that could be sent now.
    fn is_done(&self) -> bool {
        let Self { export, connection, taken, .. } = self;
        !connection.is_open() || (taken.is_empty() && export.queue.is_empty() && connection.is_flushed())
    }

    /// Sends templates and names if they are due. False: the collector lacks them yet.
    fn announce(&mut self, now: Time, epoch_ns: u64) -> bool {
        let Self { export, connection, session, told, .. } = self;
        let (newest, names) = export.names();
        if std::mem::replace(told, newest) != newest {
            session.renew();
        }
        let due = session.due(now.0);
        let is_done = session.announce(&names, now.0, epoch_ns, |message| connection.send(message, Tally::new(), now));
        if is_done && due == Due::All {
            export.queue.counts().templates.fetch_add(1, Ordering::Relaxed);
        }
        is_done
    }

    /// Sends records, as far as the collector takes them now.
    fn send(&mut self, now: Time, epoch_ns: u64) {
        let Self { export, connection, session, taken, .. } = self;
        let (_, names) = export.names();
        // Workers may report more meanwhile: those are for the next turn.
        let mut left = WAITING_MAX;
        loop {
            if taken.is_empty() {
                export.queue.drain(TAKEN.min(left), taken);
                left -= taken.len();
            }
            if !connection.has_room() {
                connection.flush(now);
            }
            if taken.is_empty() || !connection.has_room() {
                return;
            }
            let reports = taken
                .iter()
                .flat_map(|one| Direction::ALL.into_iter().filter_map(|direction| report(one, direction, &names)));
            let (message, count) = session.message(reports, now.0, epoch_ns);
            if count > 0 && !connection.send(&message, tally(taken, count), now) {
                return;
            }
            session.sent(count);
            forget(taken, count);
        }
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

/// The ports of the first records, with the numbers of their reports: so many in all.
fn tally(taken: &VecDeque<Waiting>, reports: u32) -> Tally {
    let (mut tally, mut left) = (Tally::new(), u64::from(reports));
    for one in taken {
        let its = one.reports().min(left);
        if its == 0 {
            break;
        }
        left -= its;
        match tally.last_mut().filter(|(port, _)| Arc::ptr_eq(port, &one.from)) {
            Some((_, records)) => *records += its,
            None => tally.push((Arc::clone(&one.from), its)),
        }
    }
    tally
}

/// Removes the first records, of which so many reports were sent. The first report of a record may be in another message than the second.
fn forget(taken: &mut VecDeque<Waiting>, reports: u32) {
    let mut left = u64::from(reports);
    while let Some(first) = taken.front_mut() {
        if first.reports() <= left {
            left -= first.reports();
            taken.pop_front();
            continue;
        }
        // The first of two.
        if left > 0 {
            first.directions &= !Direction::Ingress.bit();
        }
        return;
    }
}

/// The fields of a record for the port where its frames came in, or where they left. `None`: there is no such port. `names` are those that the
/// collector knows.
fn report<'a>(one: &'a Waiting, direction: Direction, names: &Names) -> Option<Report<'a>> {
    let Waiting { record, from, to, directions } = one;
    if directions & direction.bit() == 0 {
        return None;
    }
    let at = match direction {
        Direction::Ingress => from,
        Direction::Egress => to,
    };
    // The collector takes another port's number for that port.
    let number = |number: u16, port: &Port| names.get(&number).filter(|known| known.name == port.name).map(|_| number);
    let egress = record.key.outcome().egress;
    let to = if egress == NOT_ONE { None } else { number(egress, to) };
    let interfaces = [number(record.ingress, from), to];
    let dropped = drop_reason(record).map(|reason| (status(reason), reason.name()));
    Some(Report { record, direction, interfaces, name: &at.name, untagged: from.vlan, dropped })
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
