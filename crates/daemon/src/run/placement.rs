//! The worker that a new port is given: the one that has been busy least lately.
//!
//! A port does not move once it works, because its queues, its lock and its place in an uplink's order belong to its worker. So a new one
//! makes good for the others: it goes where time is left. Nobody knows what it will carry; it counts as much as an average port until the
//! next look.

use std::time::Duration;

/// A look at the workers lasts this long.
pub const LOOK: Duration = Duration::from_millis(250);
/// A look is good for ports that come within this time.
pub const FRESH: Duration = Duration::from_secs(2);
/// Loads that differ by less are equal, in thousandths of a processor: the next quarter of a second differs more.
const STEP: u64 = 100;

/// A worker as a look has found it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// The thousandths of the time in which it was busy.
    pub busy: u64,
    /// The ports that it has now.
    pub ports: usize,
    /// Those of them that came after the look.
    pub newcomers: usize,
    /// The number that its next port would have.
    pub next: u16,
}

/// The workers in the order in which a new port prefers them: by their load, then by their ports, then by the numbers that the port would have.
pub fn order(loads: &[Load]) -> Vec<usize> {
    let (busy, known) = loads.iter().fold((0, 0), |(busy, known), load| {
        (busy + load.busy, known + load.ports.saturating_sub(load.newcomers) as u64)
    });
    let usual = busy.checked_div(known).unwrap_or_default();
    let key = |worker: &usize| {
        let Load { busy, ports, newcomers, next } = loads[*worker];
        ((busy + usual * newcomers as u64 + STEP / 2) / STEP, ports, next)
    };
    let mut order: Vec<usize> = (0..loads.len()).collect();
    order.sort_by_key(key);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(busy: u64, ports: usize, newcomers: usize) -> Load {
        Load { busy, ports, newcomers, next: 0 }
    }

    #[test]
    fn a_port_goes_to_the_worker_that_was_busy_least_though_it_has_most_ports() {
        assert_eq!(order(&[load(900, 1, 0), load(300, 7, 0), load(600, 2, 0)]), [1, 2, 0]);
    }

    #[test]
    fn noise_does_not_decide_and_idle_workers_are_dealt_ports_by_count() {
        assert_eq!(order(&[load(549, 3, 0), load(451, 4, 0)]), [0, 1]);
        assert_eq!(order(&[load(40, 2, 0), load(0, 3, 0), load(0, 1, 0)]), [2, 0, 1]);
        assert_eq!(order(&[Load::default(); 3]), [0, 1, 2]);
    }

    #[test]
    fn ports_that_come_after_one_look_do_not_all_go_to_the_same_worker() {
        let mut loads = [load(800, 2, 0), load(200, 2, 0)];
        let mut dealt = [0, 0];
        for _ in 0..6 {
            let worker = order(&loads)[0];
            dealt[worker] += 1;
            loads[worker].ports += 1;
            loads[worker].newcomers += 1;
        }
        // Each counts as 250 thousandths: two make the second worker almost as busy as the first.
        assert_eq!(dealt, [2, 4]);
    }
}
