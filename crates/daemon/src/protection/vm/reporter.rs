//! A VM's state in reports and in the log.

use std::time::{Duration, Instant};

use nicety_adapter::Time;
use nicety_host::VmConfig;
use nicety_plane::Waiting;
use nicety_protect::{Ended, Stage, TwinStage};
use tracing::{info, warn};

use super::copying::Copying;
use super::{Role, VmPort};
use crate::protection::peer::Peer;
use crate::protection::qemu::Qemu;
use crate::protection::report::{VmReport, VmRole};

/// Between two reports of a VM of which nothing is new: a stream that moves has many turns.
const AGAIN: Duration = Duration::from_millis(10);

/// See the module's page.
#[derive(Default)]
pub(super) struct Reporter {
    report: VmReport,
    /// The state that was logged last.
    logged: String,
    /// Why the third party does not answer.
    lease_why_not: Option<String>,
    /// Why the twin that is offered is none.
    refusal: Option<String>,
    reported_at: Option<Instant>,
    /// Since when the owner seems lost.
    lost_at: Option<Instant>,
}

/// The parts of a VM that a report shows.
pub(super) struct View<'a> {
    pub role: &'a Role,
    pub qemu: &'a Qemu,
    pub peer: &'a Peer,
    pub copying: &'a Copying,
    pub ports: &'a [VmPort],
    /// An administrator wants no twin.
    pub is_stopped: bool,
    pub time: Time,
}

impl Reporter {
    pub fn new(config: &VmConfig) -> Self {
        let report = VmReport { name: config.name.clone(), peer: config.peer.to_string(), ..VmReport::default() };
        Self { report, ..Self::default() }
    }

    /// Whether a report is due. `is_news`: something has happened.
    pub fn is_due(&mut self, is_news: bool, now: Instant) -> bool {
        let is_due = is_news || self.reported_at.is_none_or(|at| now - at >= AGAIN);
        if is_due {
            self.reported_at = Some(now);
        }
        is_due
    }

    /// The third party has answered, or not, for this reason.
    pub fn lease_answered(&mut self, why_not: Option<String>) {
        self.lease_why_not = why_not;
    }

    /// The twin that was offered is taken.
    pub fn accepted(&mut self) {
        self.refusal = None;
    }

    /// The twin that was offered cannot be taken, for this reason.
    pub fn refused(&mut self, why: String) {
        if self.refusal.as_ref() != Some(&why) {
            warn!(vm = self.report.name, "not protected: {why}");
        }
        self.refusal = Some(why);
    }

    /// The owner seems lost.
    pub fn seems_lost(&mut self, now: Instant) {
        self.lost_at.get_or_insert(now);
    }

    /// The owner is well, or another VM is here.
    pub fn is_well(&mut self) {
        self.lost_at = None;
    }

    /// The lease says that this host goes on with the VM.
    /// `unseen`: what waited in the owner's gates when the last copy was made.
    pub fn takes_over(&mut self, unseen: Option<Waiting>) {
        warn!(vm = self.report.name, "the lease says that this host goes on with the VM");
        self.report.takeovers += 1;
        self.report.takeover_unseen_packets = unseen.map(|unseen| unseen.packets);
        self.report.takeover_unseen_bytes = unseen.map(|unseen| unseen.bytes);
    }

    /// The VM's frames leave here.
    pub fn opens(&mut self, now: Instant) {
        let took = self.lost_at.take().filter(|_| self.report.takeovers > 0).map(|since| now - since);
        if let Some(took) = took {
            self.report.takeover_microseconds = u64::try_from(took.as_micros()).ok();
            info!(vm = self.report.name, ?took, "the VM goes on here");
        }
    }

    /// The report, and what is new in the log.
    pub fn report(&mut self, view: &View<'_>) -> &VmReport {
        let (role, state, why) = match view.role {
            Role::None => {
                (VmRole::Absent, "absent", Some(view.qemu.why_not().unwrap_or("its QEMU is being asked").to_owned()))
            }
            Role::Owner(owner) => {
                let (state, why) = of_owner(owner.stage(), owner.is_isolated(view.time), owner.why());
                (VmRole::Owner, state, why.map(str::to_owned))
            }
            Role::Twin(twin) => {
                let (state, why) = of_twin(twin.stage());
                (VmRole::Twin, state, why.map(str::to_owned))
            }
        };
        let is_absent = matches!(view.role, Role::Owner(owner) if matches!(owner.stage(), Stage::Ended(_)))
            || matches!(view.role, Role::Twin(twin) if twin.stage() == TwinStage::Stale);
        let role = if is_absent { VmRole::Absent } else { role };
        let why_not = why.map(|why| self.reason(why, view));
        let report = &mut self.report;
        (report.role, report.protected, report.why_not) = (role, state == "protected", why_not);
        report.state = state.to_owned();
        if let Role::Owner(owner) = view.role {
            let (closed, loaded) = owner.copies();
            (report.epoch, report.lag_epochs) = (closed, closed - loaded);
        }
        (report.stop_median_microseconds, report.stop_most_microseconds) = view.copying.stops.figures();
        if let Some((stream, wire)) = view.copying.bytes() {
            (report.stream_bytes, report.wire_bytes) = (stream, wire + view.peer.traffic);
        }
        let waiting = view.ports.iter().filter_map(|port| Some(port.protected.as_ref()?.epochs().waiting()));
        let (packets, bytes) = waiting.fold((0, 0), |(packets, bytes), one| (packets + one.packets, bytes + one.bytes));
        (report.gate_packets, report.gate_bytes) = (packets, bytes);
        self.log();
        &self.report
    }

    fn log(&mut self) {
        let report = &self.report;
        let new = format!("{:?} {} {:?}", report.role, report.state, report.why_not);
        if new == self.logged {
            return;
        }
        self.logged = new;
        let (vm, peer) = (&report.name, &report.peer);
        match (&report.why_not, report.role) {
            (None, _) if report.protected => info!(vm, peer, "protected"),
            (Some(why), VmRole::Owner) if !is_on_its_way(&report.state) => {
                warn!(vm, state = report.state, "not protected: {why}")
            }
            (why, _) => info!(vm, state = report.state, why, "{}", words(report.role)),
        }
    }

    /// The first reason of several: what an administrator has to see to comes before what follows from it.
    fn reason(&self, why: String, view: &View<'_>) -> String {
        if let Some(stays) = view.qemu.stays() {
            return format!("{why}; {stays}");
        }
        let lease = self.lease_why_not.as_ref().map(|lease| format!("{why}; the lease does not answer: {lease}"));
        let is_owner = matches!(view.role, Role::Owner(_));
        match (&self.refusal, lease) {
            (_, Some(lease)) => lease,
            (Some(refusal), _) if is_owner => refusal.clone(),
            _ if view.is_stopped && is_owner => "it was stopped: nicety ft protect takes a twin again".to_owned(),
            _ => match (view.role, view.peer.why_not()) {
                (Role::Twin(_), Some(peer)) => format!("{why}; {peer}"),
                (Role::Owner(owner), _) if owner.wants_twin(view.time) && !view.peer.is_there() => {
                    format!("{why}, and no twin is offered: start its QEMU at the other host, with -incoming defer")
                }
                _ => why,
            },
        }
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
        Stage::Parting { .. } if is_isolated => {
            let why = "the twin is lost, and the lease has run out because it cannot be reached: nothing leaves until it is, for the twin \
                       may have gone on";
            ("isolated", Some(why))
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
        // Whether or not the twin is heard: the lease has run out.
        let isolated = of_owner(Stage::Protected { pairing, peer }, true, "").0;
        assert_eq!(of_owner(Stage::Parting { pairing }, true, "").0, isolated);
        let owners = stages.into_iter().map(|stage| of_owner(stage, false, "").0);
        let twins = twins.into_iter().map(|stage| of_twin(stage).0);
        let book = include_str!("../../../../../docs/fault-tolerance.md");
        for state in owners.chain(twins).chain(["absent", isolated]) {
            let has_row = book.lines().any(|line| line.starts_with("| ") && line.contains(&format!("`{state}`")));
            assert!(has_row, "docs/fault-tolerance.md has no row for {state}");
        }
    }
}
