//! Counts flows for collectors ([`crate::flows`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::turn::Turn;
use super::{COUNTED, Plane};
use crate::flows::{Decided, FlowExport, FlowPlan, FlowTables};
use crate::losses::Losses;
use nicety_adapter::{Batch, Time};

impl Plane {
    /// Replaces all exports of flows. `version` must differ from those of earlier calls. A worker follows with its next batch or
    /// [sweep](Self::sweep_flows). Until then it reports to the sinks of the old exports.
    pub fn set_flows(&self, version: u32, exports: Vec<FlowExport>) {
        let is_on = !exports.is_empty();
        self.flows.store(Arc::new(FlowPlan { version, exports: exports.into_iter().map(Arc::new).collect() }));
        self.flow_version.store(version, Ordering::Release);
        match is_on {
            true => self.watched.fetch_or(COUNTED, Ordering::SeqCst),
            false => self.watched.fetch_and(!COUNTED, Ordering::SeqCst),
        };
    }

    /// Counts a batch's frames, by the switch's decision and what receivers have dropped.
    #[inline(never)]
    pub(crate) fn count_flows(
        &self,
        batch: &Batch,
        decided: Decided<'_>,
        losses: &Losses,
        flows: &mut FlowTables,
        now: Time,
    ) {
        self.follow_flows(flows);
        flows.count(batch, decided, losses, now);
    }

    /// Reports some of a worker's flows that are due. The number is limited, so that the worker's ports wait for some 50 µs at most. Call
    /// this again and again.
    pub fn sweep_flows(&self, turn: &mut Turn, now: Time) {
        self.follow_flows(&mut turn.flows);
        turn.flows.sweep(now);
    }

    /// Reports all of a worker's flows.
    pub fn end_flows(&self, turn: &mut Turn) {
        self.follow_flows(&mut turn.flows);
        turn.flows.end();
    }

    #[inline]
    fn follow_flows(&self, flows: &mut FlowTables) {
        if !flows.follows(self.flow_version.load(Ordering::Acquire)) {
            flows.follow(&self.flows.load());
        }
    }
}
