//! The events that QEMU reports.

use std::time::Instant;

use nicety_protect::Stage;
use nicety_qmp::News;
use tracing::{info, warn};

use super::{Role, Vm};
use crate::protection::qemu::{Qemu, QemuNews};

impl Vm {
    pub(super) fn news(&mut self, news: QemuNews, now: Instant) {
        let time = self.time(now);
        match news {
            QemuNews::There(facts, marked) => {
                let is_same = marked.run == self.run && marked.is_known;
                if self.adopt(is_same, now) {
                    self.facts = Some(facts);
                    return;
                }
                match &mut self.role {
                    // Its control socket was lost, and it is the same.
                    Role::Owner(owner) if is_same && !matches!(owner.stage(), Stage::Ended(_)) => {
                        let copies = Qemu::copies(&facts);
                        self.facts = Some(facts);
                        owner.lost("QEMU's control socket was lost for a while", time);
                        let is_told = matches!(owner.stage(), Stage::Settling | Stage::Alone);
                        if is_told && (copies || owner.stage() == Stage::Settling) {
                            self.qemu.go_alone(self.facts.as_deref(), now);
                        }
                    }
                    _ => self.newcomer = Some((facts, marked)),
                }
            }
            QemuNews::Facts(found) => self.checked(found),
            QemuNews::Gone(death) => {
                warn!(vm = self.config.name, "QEMU has ended");
                self.reporter.seems_lost(now);
                self.copying.forget_cut();
                match &mut self.role {
                    Role::None => {}
                    Role::Owner(owner) => owner.died(death, time),
                    Role::Twin(twin) => twin.died(),
                }
            }
            QemuNews::Lost(why) => {
                warn!(vm = self.config.name, "{why}");
                match &mut self.role {
                    Role::None | Role::Owner(_) => {}
                    Role::Twin(twin) => twin.died(),
                }
            }
            QemuNews::Colo(news) => self.colo(news, now),
            QemuNews::Runs => {
                self.copying.loads.vm_runs();
                self.whole(time);
            }
            QemuNews::Stays(why) => warn!(vm = self.config.name, "{why}"),
        }
    }

    fn colo(&mut self, news: News, now: Instant) {
        let time = self.time(now);
        let vm = &self.config.name;
        match (&mut self.role, news) {
            (_, News::Complaint(why)) => warn!(vm, "{why}"),
            (Role::Owner(_), News::Synchronized { took, stood_still }) => {
                info!(vm, ?took, ?stood_still, "the first copy is complete");
                self.copying.stops.push(stood_still);
            }
            (Role::Owner(_), News::Checkpoint { stood_still, .. }) => self.copying.stops.push(stood_still),
            // A carrier that has seen more says so.
            (Role::Owner(owner), News::Broken) if !self.copying.is_cut() => {
                owner.lost("the stream of copies was cut", time)
            }
            (Role::Owner(owner), News::Alone) => owner.went_alone(),
            (Role::Owner(owner), News::Failed(why)) => {
                warn!(vm, "{why}");
                owner.lost("QEMU does not copy its VM: the log says why", time);
                owner.went_alone();
            }
            (Role::Twin(twin), News::Listening) => {
                if let Some(pairing) = twin.pairing() {
                    twin.listens(pairing, time);
                }
            }
            (Role::Twin(_), News::Synchronized { .. } | News::Checkpoint { .. }) => {
                self.ask_whether_it_runs(now);
            }
            (Role::Twin(twin), News::Broken) => twin.lost(time),
            (Role::Twin(twin), News::Failed(why)) => {
                warn!(vm, "{why}");
                twin.died();
            }
            _ => {}
        }
    }
}
