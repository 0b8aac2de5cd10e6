//! Flows: frames that have addresses, ports and the switch's decision in common, counted for a collector (IPFIX).
//!
//! Each worker has tables of its own, one for each port whose frames it has seen, so that a frame costs no lock and no atomic access. A port
//! has a bounded number of places: a guest that makes a million flows displaces its own. Whoever exports asks each worker from time to time
//! for the flows that are due ([`Plane::sweep_flows`](crate::Plane::sweep_flows)). The flows of a port or an export that is gone are reported
//! by sweeps, too, some at a time: no frame of another port waits for them.

use std::fmt::Debug;
use std::sync::Arc;

use nicety_adapter::{Batch, PACKETS, PortId, Reason, Time};
use nicety_ipfix::{Direction, NOT_ONE, Outcome, Record, Seen, Table};
use nicety_switch::Plan;

use crate::losses::Losses;

/// Records that wait in a worker until it hands them over.
const WAITING_MAX: usize = 64;
/// Work of one sweep of a worker: some 50 µs.
const SWEEP_COST: usize = 2048;
/// The same for flows of ports and exports that are gone.
const CLOSING_COST: usize = 1024;
/// Bits of `Covered`.
const INGRESS: u8 = Direction::Ingress.bit();
const EGRESS: u8 = Direction::Egress.bit();

const _: () = assert!(PACKETS <= u64::BITS as usize);

/// Takes records from workers. It must not block.
pub trait FlowSink: Send + Sync + Debug {
    /// Takes all records out of the list. Records for which there is no room are lost, and counted. Port numbers in records are those of
    /// the [`FlowExport`] to which the sink belongs.
    fn take(&self, records: &mut Vec<Record>);

    /// A flow had to make room for another one of its port, and was reported early.
    fn displaced(&self);
}

/// Whether a port's flows are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Covered {
    /// Tells this port from other ports that have the same number at other times. 0: no port.
    pub identity: u64,
    /// Directions, a bit each ([`Direction::bit`]).
    pub directions: u8,
}

impl Covered {
    /// Both directions.
    pub const BOTH: u8 = INGRESS | EGRESS;
}

/// What is counted for one collector.
#[derive(Clone, Debug)]
pub struct FlowExport {
    /// Identifies the export. An export with the identifier of an earlier one goes on with the tables of that one.
    pub id: u64,
    /// The ports that are counted, by port number. A team and a port with several workers have one entry, their members and parts have
    /// none.
    pub ports: Vec<Covered>,
    /// One frame in so many is counted; at least 1.
    pub sampling: u32,
    /// A flow is reported after this time, although it goes on.
    pub active_ns: u64,
    /// A flow without frames for this time has ended.
    pub idle_ns: u64,
    /// Memory for the flows of one port, on each worker that serves it.
    pub port_bytes: usize,
    /// Gets the records, while these ports have their numbers.
    pub sink: Arc<dyn FlowSink>,
}

impl FlowExport {
    fn covered(&self, port: u16) -> Covered {
        self.ports.get(usize::from(port)).copied().unwrap_or_default()
    }
}

/// All exports of a switch. Replaced as a whole.
#[derive(Debug, Default)]
pub(crate) struct FlowPlan {
    pub version: u32,
    pub exports: Vec<Arc<FlowExport>>,
}

/// The flows that one worker has counted. They are in its [`Turn`](crate::Turn).
#[derive(Debug, Default)]
pub struct FlowTables {
    /// Of the plan that they follow.
    version: u32,
    exports: Vec<ExportTables>,
    /// Tables of ports and exports that are gone. Their flows are reported to the export as it was.
    closing: Vec<(Arc<FlowExport>, Box<Table>)>,
}

#[derive(Debug)]
struct ExportTables {
    export: Arc<FlowExport>,
    /// By the number of the port that frames come from.
    tables: Vec<Option<Box<Table>>>,
    /// Frames until the next one that is counted.
    until_counted: u32,
    waiting: Vec<Record>,
    /// The table that is swept next.
    cursor: usize,
}

/// The switch's decision about a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decided<'a> {
    pub plan: &'a Plan,
    /// The receivers of the plan, without those that get a mirror's copies.
    pub receivers: &'a [PortId],
}

/// A reason in an [`Outcome`].
fn number_of(reason: Reason) -> u8 {
    (reason as u8).saturating_add(1)
}

/// The numbers of the bits that are set.
fn numbers(mut bits: u64) -> impl Iterator<Item = u16> {
    std::iter::from_fn(move || {
        let number = (bits != 0).then_some(bits.trailing_zeros() as u16);
        bits &= bits.wrapping_sub(1);
        number
    })
}

impl FlowTables {
    /// Follows this plan. Flows to ports whose numbers mean others now are reported. Those of exports and from ports that are gone are from
    /// now on reported by sweeps.
    #[cold]
    #[inline(never)]
    pub(crate) fn follow(&mut self, plan: &FlowPlan) {
        self.version = plan.version;
        let mut before = std::mem::take(&mut self.exports);
        for export in &plan.exports {
            let known = before.iter().position(|one| one.export.id == export.id);
            let mut tables = match known {
                Some(place) => before.swap_remove(place),
                None => ExportTables::new(export),
            };
            tables.change(export, &mut self.closing);
            self.exports.push(tables);
        }
        before.into_iter().for_each(|export| export.close(&mut self.closing));
    }

    /// Whether they follow the plan of this number.
    #[inline]
    pub(crate) fn follows(&self, version: u32) -> bool {
        self.version == version
    }

    /// Counts a batch that its receivers have got, but for these losses.
    #[inline]
    pub(crate) fn count(&mut self, batch: &Batch, decided: Decided<'_>, losses: &Losses, now: Time) {
        self.exports.iter_mut().for_each(|export| export.count(batch, decided, losses, now));
    }

    /// Reports flows that are due, some at a time.
    pub(crate) fn sweep(&mut self, now: Time) {
        self.close_some(CLOSING_COST);
        self.exports.iter_mut().for_each(|export| export.sweep(now));
    }

    /// Reports flows of ports and exports that are gone, until that costs so much.
    fn close_some(&mut self, most: usize) {
        let mut cost = 0;
        while cost < most
            && let Some((export, table)) = self.closing.last_mut()
        {
            let mut waiting = Vec::with_capacity(WAITING_MAX);
            cost += table.end_some(|_| true, most - cost, &mut |record| push(&mut waiting, export, record)).cost;
            hand_over(&mut waiting, export);
            if table.flows() == 0 {
                self.closing.pop();
            }
        }
    }

    /// Reports all flows.
    pub(crate) fn end(&mut self) {
        self.close_some(usize::MAX);
        self.exports.iter_mut().for_each(ExportTables::end);
    }
}

impl ExportTables {
    fn new(export: &Arc<FlowExport>) -> Self {
        Self {
            export: Arc::clone(export),
            tables: Vec::new(),
            until_counted: 0,
            waiting: Vec::with_capacity(WAITING_MAX),
            cursor: 0,
        }
    }

    /// Counts for another plan from now on. Only tables with flows to a port that is gone are walked.
    fn change(&mut self, export: &Arc<FlowExport>, closing: &mut Vec<(Arc<FlowExport>, Box<Table>)>) {
        let before = std::mem::replace(&mut self.export, Arc::clone(export));
        let Self { tables, waiting, .. } = self;
        let is_gone = |number: u16| match before.covered(number).identity {
            0 => false,
            identity => identity != export.covered(number).identity,
        };
        let gone: Vec<u16> =
            (0u16..).zip(&before.ports).map(|(number, _)| number).filter(|port| is_gone(*port)).collect();
        let keeps_size = before.port_bytes == export.port_bytes;
        if gone.is_empty() && keeps_size {
            return hand_over(waiting, &before);
        }
        for (number, slot) in (0u16..).zip(tables.iter_mut()) {
            if !keeps_size || is_gone(number) {
                closing.extend(slot.take().map(|table| (Arc::clone(&before), table)));
            } else if let Some(table) = slot
                && gone.iter().any(|port| table.may_go_to(*port))
            {
                let is_over = |Outcome { egress, .. }| egress != NOT_ONE && is_gone(egress);
                table.end_where(|key| is_over(key.outcome()), &mut |record| push(waiting, &before, record));
            }
        }
        hand_over(waiting, &before);
    }

    /// All its tables are closed.
    fn close(mut self, closing: &mut Vec<(Arc<FlowExport>, Box<Table>)>) {
        hand_over(&mut self.waiting, &self.export);
        closing.extend(self.tables.into_iter().flatten().map(|table| (Arc::clone(&self.export), table)));
    }

    /// The packets that are counted, a bit each, of a batch of so many.
    #[inline]
    fn sampled(&mut self, packets: usize) -> u64 {
        let every = self.export.sampling;
        if every <= 1 {
            return u64::MAX;
        }
        let (mut bits, mut at) = (0, self.until_counted);
        while (at as usize) < packets {
            bits |= 1u64.wrapping_shl(at);
            at = at.saturating_add(every);
        }
        self.until_counted = at.saturating_sub(packets as u32);
        bits
    }

    #[inline]
    fn count(&mut self, batch: &Batch, Decided { plan, receivers }: Decided<'_>, losses: &Losses, now: Time) {
        let sampled = self.sampled(batch.len());
        let from = self.export.covered(batch.origin.0).directions & INGRESS;
        let (mut once, mut several) = (0, 0);
        if receivers.len() > 1 {
            for receiver in receivers {
                let packets = plan.packets(*receiver);
                several |= once & packets;
                once |= packets;
            }
        }
        if (several & sampled) != 0 || !losses.all().is_empty() {
            self.count_unusual(batch, Decided { plan, receivers }, losses, (sampled, several), now);
        } else {
            for &PortId(egress) in receivers {
                let directions = from | self.export.covered(egress).directions & EGRESS;
                let packets = plan.packets(PortId(egress)) & sampled;
                if directions != 0 && packets != 0 {
                    self.add(batch, packets, Outcome { egress, dropped: 0, directions }, now);
                }
            }
        }
        if from != 0 && !plan.drops().is_empty() {
            self.count_drops(batch, plan, sampled, now);
        }
    }

    /// Packets with several receivers: once where they come in, and once for each receiver. Packets that a receiver dropped: with the
    /// receiver and the reason.
    #[cold]
    #[inline(never)]
    fn count_unusual(
        &mut self,
        batch: &Batch,
        Decided { plan, receivers }: Decided<'_>,
        losses: &Losses,
        (sampled, several): (u64, u64),
        now: Time,
    ) {
        let from = self.export.covered(batch.origin.0).directions & INGRESS;
        if from != 0 && several & sampled != 0 {
            self.add(batch, several & sampled, Outcome { egress: NOT_ONE, dropped: 0, directions: INGRESS }, now);
        }
        let mut losses = losses.all();
        for &receiver in receivers {
            let PortId(egress) = receiver;
            let to = self.export.covered(egress).directions & EGRESS;
            let mut add = |packets: u64, dropped: u8| {
                for (packets, directions) in [(packets & !several, from | to), (packets & several, to)] {
                    if directions != 0 && packets != 0 {
                        self.add(batch, packets, Outcome { egress, dropped, directions }, now);
                    }
                }
            };
            let mut taken = plan.packets(receiver) & sampled;
            let count = losses.iter().take_while(|loss| loss.receiver == receiver).count();
            let (its, others) = losses.split_at(count);
            for loss in its {
                add(taken & loss.packets, number_of(loss.reason));
                taken &= !loss.packets;
            }
            add(taken, 0);
            losses = others;
        }
    }

    #[cold]
    #[inline(never)]
    fn count_drops(&mut self, batch: &Batch, plan: &Plan, sampled: u64, now: Time) {
        // A frame for the switch itself is no drop.
        for (packet, reason) in plan.drops().iter().filter(|(_, reason)| *reason != Reason::Taken) {
            let bit = 1u64.wrapping_shl((*packet).into()) & sampled;
            if bit != 0 {
                let dropped = number_of(*reason);
                self.add(batch, bit, Outcome { egress: NOT_ONE, dropped, directions: INGRESS }, now);
            }
        }
    }

    /// Counts these packets.
    #[inline]
    fn add(&mut self, batch: &Batch, packets: u64, outcome: Outcome, now: Time) {
        let Self { export, tables, waiting, .. } = self;
        let number = batch.origin.0;
        let table = match tables.get_mut(usize::from(number)) {
            Some(Some(table)) => table,
            _ => Self::table(tables, number, export.port_bytes),
        };
        let all = batch.packets();
        for packet in numbers(packets) {
            let Some(packet) = all.get(usize::from(packet)) else { return };
            let head = batch.head(packet);
            if packet.offload.segment.is_none()
                && let Some(seen) = Seen::usual(head)
                && table.count(&seen, outcome, packet.len(), now.0)
            {
                continue;
            }
            let amount = (packet.frames(), packet.wire_bytes());
            table.add(&Seen::of(head), outcome, amount, now.0, &mut |record| {
                export.sink.displaced();
                push(waiting, export, record);
            });
        }
    }

    /// The table of a port's first flow.
    #[cold]
    #[inline(never)]
    fn table(tables: &mut Vec<Option<Box<Table>>>, number: u16, bytes: usize) -> &mut Table {
        let place = usize::from(number);
        if tables.len() <= place {
            tables.resize_with(place + 1, || None);
        }
        tables[place].get_or_insert_with(|| Box::new(Table::new(number, bytes)))
    }

    fn sweep(&mut self, now: Time) {
        let Self { export, tables, waiting, cursor, .. } = self;
        let (mut cost, count) = (0, tables.len());
        for _ in 0..count {
            let place = *cursor % count;
            *cursor = place + 1;
            let Some(slot) = tables.get_mut(place) else { break };
            let Some(table) = slot else { continue };
            let limits = (export.active_ns, export.idle_ns);
            let swept = table.sweep(limits, now.0, SWEEP_COST - cost, &mut |record| {
                push(waiting, export, record);
            });
            // A port that sends again gets another one.
            if table.flows() == 0 {
                *slot = None;
            }
            cost += swept.cost;
            if cost >= SWEEP_COST {
                *cursor = if swept.is_done { place + 1 } else { place };
                break;
            }
        }
        hand_over(waiting, export);
    }

    /// Reports all flows.
    fn end(&mut self) {
        let Self { export, tables, waiting, .. } = self;
        for table in tables.iter_mut().flatten() {
            table.end_where(|_| true, &mut |record| push(waiting, export, record));
        }
        tables.clear();
        hand_over(waiting, export);
    }
}

fn push(waiting: &mut Vec<Record>, export: &FlowExport, record: Record) {
    waiting.push(record);
    if waiting.len() >= WAITING_MAX {
        export.sink.take(waiting);
    }
}

fn hand_over(waiting: &mut Vec<Record>, export: &FlowExport) {
    if !waiting.is_empty() {
        export.sink.take(waiting);
    }
}

/// The reason for which a record's frames were dropped, if they were.
pub fn drop_reason(record: &Record) -> Option<Reason> {
    let number = record.key.outcome().dropped.checked_sub(1)?;
    Reason::ALL.get(usize::from(number)).copied()
}
