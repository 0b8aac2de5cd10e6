//! Chooses the worker of a new port.

use std::time::Instant;

use nicety_adapter::PortId;

use super::{Daemon, PortSpec, Running};
use crate::run::placement::{FRESH, LOOK, Load, order};
use crate::usage::threads;

/// A look at the workers.
#[derive(Clone, Debug)]
pub(super) struct Look {
    at: Instant,
    /// The thousandths of the time in which each was busy.
    busy: Vec<u64>,
    /// The ports that each has been given since.
    given: Vec<usize>,
}

impl Daemon {
    /// Free port numbers of so many workers: the one that the port names, or those that were busy least lately.
    pub(super) fn free_ids(&self, spec: &PortSpec, workers: usize) -> Vec<PortId> {
        let mut chosen = self.by_load();
        if let Some(named) = spec.config.worker {
            let named = usize::from(named) % self.workers.len();
            chosen.sort_by_key(|worker| *worker != named);
        }
        chosen.truncate(workers);
        self.give(&chosen);
        // Number 0 is reserved for the first uplink.
        chosen.into_iter().map(|worker| self.free_id_on(worker, 1)).collect()
    }

    /// The lowest free port number of a worker with the fewest ports.
    pub(super) fn free_id_of_fewest(&self) -> PortId {
        let fewest = order(&self.loads(None));
        self.free_id_on(fewest.first().copied().unwrap_or_default(), 1)
    }

    /// The workers, those first that were busy least lately. Before a VM is there none is busy, and nobody looks.
    fn by_load(&self) -> Vec<usize> {
        let is_used = || self.ports().values().any(|running| running.port.state().attached);
        if self.workers.len() < 2 || !is_used() {
            return order(&self.loads(None));
        }
        let mut last = self.look.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let look = match last.take().filter(|look| look.at.elapsed() < FRESH) {
            Some(look) => look,
            None => self.look(),
        };
        let order = order(&self.loads(Some(&look)));
        *last = Some(look);
        order
    }

    fn look(&self) -> Look {
        // Time between two waits has no busy polling in it; processor time has no waiting for a processor in it. Work is what both count.
        let worked = || -> Vec<(u64, Option<u64>)> {
            let (now, mut threads) = (self.clock.now(), threads());
            let ran = (0..self.workers.len()).map(|worker| threads.remove(&format!("worker{worker}")));
            let ran = ran.map(|ran| ran.map(|ran| ran.as_nanos() as u64));
            self.workers.iter().map(|worker| worker.inbox.worked_ns(now)).zip(ran).collect()
        };
        let (before, begun) = (worked(), Instant::now());
        std::thread::sleep(LOOK);
        let lasted = (begun.elapsed().as_nanos() as u64).max(1);
        let busy = worked().into_iter().zip(before).map(|((worked, ran), (worked_before, ran_before))| {
            let ran = ran.zip(ran_before).map_or(u64::MAX, |(now, before)| now.saturating_sub(before));
            (worked.saturating_sub(worked_before).min(ran) * 1000 / lasted).min(1000)
        });
        let busy = busy.collect();
        Look { at: Instant::now(), busy, given: vec![0; self.workers.len()] }
    }

    /// The workers' loads, as far as somebody has looked.
    fn loads(&self, look: Option<&Look>) -> Vec<Load> {
        let mut loads = vec![Load::default(); self.workers.len()];
        if let Some(Look { at: _, busy, given }) = look {
            for ((load, busy), given) in loads.iter_mut().zip(busy).zip(given) {
                (load.busy, load.newcomers) = (*busy, *given);
            }
        }
        for part in self.ports().values().flat_map(Running::parts) {
            loads[usize::from(part.id().0) % self.workers.len()].ports += 1;
        }
        let used = self.used_ids();
        let mut left = loads.len();
        for id in (1..u16::MAX).filter(|id| !used.contains(&PortId(*id))) {
            let load = &mut loads[usize::from(id) % self.workers.len()];
            if load.next == 0 {
                load.next = id;
                left -= 1;
            }
            if left == 0 {
                break;
            }
        }
        loads
    }

    fn give(&self, workers: &[usize]) {
        let mut last = self.look.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(look) = last.as_mut() {
            workers.iter().for_each(|worker| look.given[*worker] += 1);
        }
    }
}
