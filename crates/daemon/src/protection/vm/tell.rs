//! What reports and the log say of a VM.

use std::time::Instant;

use nicety_adapter::Time;
use nicety_protect::{Ended, Stage, TwinStage};
use tracing::{info, warn};

use super::{Role, Vm};
use crate::protection::report::VmRole;

impl Vm {
    pub(super) fn report(&mut self, now: Instant) {
        let time = self.time(now);
        let (role, state, why) = match &self.role {
            Role::None => {
                (VmRole::Absent, "absent", Some(self.qemu.why_not().unwrap_or("its QEMU is being asked").to_owned()))
            }
            Role::Owner(owner) => {
                let (state, why) = of_owner(owner.stage(), owner.is_isolated(time), owner.why());
                (VmRole::Owner, state, why.map(str::to_owned))
            }
            Role::Twin(twin) => {
                let (state, why) = of_twin(twin.stage());
                (VmRole::Twin, state, why.map(str::to_owned))
            }
        };
        let is_absent = matches!(&self.role, Role::Owner(owner) if matches!(owner.stage(), Stage::Ended(_)))
            || matches!(&self.role, Role::Twin(twin) if twin.stage() == TwinStage::Stale);
        let role = if is_absent { VmRole::Absent } else { role };
        let why_not = why.map(|why| self.reason(why, time));
        let report = &mut self.report;
        (report.role, report.protected, report.why_not) = (role, state == "protected", why_not);
        report.state = state.to_owned();
        if let Role::Owner(owner) = &self.role {
            let (closed, loaded) = owner.copies();
            (report.epoch, report.lag_epochs) = (closed, closed - loaded);
        }
        (report.stop_median_microseconds, report.stop_most_microseconds) = self.stops.figures();
        if let Some(carrier) = &self.carrier {
            report.stream_bytes = carrier.carried.iter().sum();
            report.wire_bytes = carrier.traffic.iter().sum::<u64>() + self.peer.traffic;
        }
        let waiting = self.ports.iter().filter_map(|port| Some(port.protected.as_ref()?.epochs().waiting()));
        let (packets, bytes) = waiting.fold((0, 0), |(packets, bytes), one| (packets + one.packets, bytes + one.bytes));
        (report.gate_packets, report.gate_bytes) = (packets, bytes);
        let said = format!("{:?} {} {:?}", report.role, report.state, report.why_not);
        if said != self.said {
            let (vm, peer) = (&report.name, &report.peer);
            match (&report.why_not, report.role) {
                (None, _) if report.protected => info!(vm, peer, "protected"),
                (Some(why), VmRole::Owner) if !is_on_its_way(&report.state) => {
                    warn!(vm, state = report.state, "not protected: {why}")
                }
                (why, _) => info!(vm, state = report.state, why, "{}", words(report.role)),
            }
            self.said = said;
        }
        self.board.show(&self.report);
        self.answer_wish(now);
    }

    /// The first reason of several: what an administrator has to see to comes before what follows from it.
    fn reason(&self, why: String, time: Time) -> String {
        if let Some(stays) = self.qemu.stays() {
            return format!("{why}; {stays}");
        }
        let lease = self.lease_why_not.as_ref().map(|lease| format!("{why}; the lease does not answer: {lease}"));
        let is_owner = matches!(self.role, Role::Owner(_));
        match (&self.refusal, lease) {
            (_, Some(lease)) => lease,
            (Some(refusal), _) if is_owner => refusal.clone(),
            _ if self.is_stopped && is_owner => "it was stopped: nicety ft protect takes a twin again".to_owned(),
            _ => match (&self.role, self.peer.why_not()) {
                (Role::Twin(_), Some(peer)) => format!("{why}; {peer}"),
                (Role::Owner(owner), _) if owner.wants_twin(time) && !self.peer.is_there() => {
                    format!("{why}, and no twin is offered: start its QEMU at the other host, with -incoming defer")
                }
                _ => why,
            },
        }
    }

    /// A wish to fail over that was not fulfilled in time.
    fn answer_wish(&mut self, now: Instant) {
        let Some((until, answers)) = &self.wish else { return };
        let done = match &mut self.role {
            Role::Owner(owner) if owner.is_handing_over() => {
                if now < *until {
                    return;
                }
                owner.keep();
                Err("the twin's host does not reach the lease, or does not answer: it could not take over".to_owned())
            }
            Role::Owner(owner) => match owner.stage() {
                Stage::Ended(Ended::HandedOver) => Ok(()),
                // The lease is being given to the twin.
                Stage::Leaving { .. } if now < *until => return,
                _ => Err(format!("the twin does not go on with the VM: {}", owner.why())),
            },
            _ => Err("the VM is not here any more".to_owned()),
        };
        for answer in answers {
            let _gone = answer.send(done.clone());
        }
        self.wish = None;
    }
}

/// States that pass by themselves.
fn is_on_its_way(state: &str) -> bool {
    matches!(state, "begins" | "settling" | "joining" | "leaving")
}

fn words(role: VmRole) -> &'static str {
    match role {
        VmRole::Absent => "the VM is not here",
        VmRole::Owner => "the VM runs here",
        VmRole::Twin => "a twin is here",
    }
}

fn of_owner(stage: Stage, is_isolated: bool, why: &'static str) -> (&'static str, Option<&'static str>) {
    match stage {
        Stage::Begins => ("begins", Some("the lease has not said yet whose VM it is, and nothing leaves until then")),
        Stage::Joining { .. } | Stage::Protected { .. } if is_isolated => {
            ("isolated", Some("the lease has run out because it cannot be reached, and nothing leaves until it is"))
        }
        Stage::Protected { .. } => ("protected", None),
        Stage::Settling => ("settling", Some(why)),
        Stage::Alone => ("alone", Some(why)),
        Stage::Joining { .. } => ("joining", Some(why)),
        Stage::Parting { .. } => ("parting", Some(why)),
        Stage::Leaving { .. } => {
            ("leaving", Some("the VM has ended here, or is handed over, and the lease is asked to say so"))
        }
        Stage::Ended(Ended::Taken) => ("taken", Some("another host has the VM")),
        Stage::Ended(Ended::HandedOver) => ("handed-over", Some("the other host goes on with the VM")),
        Stage::Ended(Ended::Over) => ("over", Some("the VM has ended")),
    }
}

fn of_twin(stage: TwinStage) -> (&'static str, Option<&'static str>) {
    match stage {
        TwinStage::Offers => ("offers", Some("it waits for the owner")),
        TwinStage::Copied { is_heir: true, .. } => ("heir", None),
        TwinStage::Copied { is_whole: true, .. } => ("copied", Some("the lease does not name it yet")),
        TwinStage::Copied { .. } => ("joining", Some("the first copy is on its way")),
        TwinStage::Asks { .. } => ("asks", Some("the owner is silent, and the lease is asked for")),
        TwinStage::Stale => {
            ("stale", Some("its copy is of no use, and its QEMU is to be started again with -incoming defer"))
        }
    }
}

#[cfg(test)]
mod tests {
    use nicety_lease::NodeId;
    use nicety_protect::{Leave, Pairing};

    use super::*;

    #[test]
    fn each_state_has_its_row_in_the_book() {
        let (pairing, peer) = (Pairing(1), NodeId(2));
        let stages = [
            Stage::Begins,
            Stage::Settling,
            Stage::Alone,
            Stage::Joining { pairing, peer, is_copied: false },
            Stage::Protected { pairing, peer },
            Stage::Parting { pairing },
            Stage::Leaving { pairing: None, step: Leave::Release },
            Stage::Ended(Ended::Taken),
            Stage::Ended(Ended::HandedOver),
            Stage::Ended(Ended::Over),
        ];
        let copied = |is_whole, is_heir| TwinStage::Copied { pairing, is_whole, is_heir };
        let twins = [
            TwinStage::Offers,
            copied(false, false),
            copied(true, false),
            copied(true, true),
            TwinStage::Asks { pairing, is_cut: false },
            TwinStage::Stale,
        ];
        let isolated = of_owner(Stage::Protected { pairing, peer }, true, "").0;
        let owners = stages.into_iter().map(|stage| of_owner(stage, false, "").0);
        let twins = twins.into_iter().map(|stage| of_twin(stage).0);
        let book = include_str!("../../../../../docs/fault-tolerance.md");
        for state in owners.chain(twins).chain(["absent", isolated]) {
            let has_row = book.lines().any(|line| line.starts_with("| ") && line.contains(&format!("`{state}`")));
            assert!(has_row, "docs/fault-tolerance.md has no row for {state}");
        }
    }
}
