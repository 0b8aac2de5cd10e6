//! The administrators' wishes for a VM.

use std::sync::mpsc::Sender;
use std::time::Instant;

use nicety_protect::{Ended, Stage};

use super::{Role, Vm};
use crate::protection::note::Wish;

/// The wishes that are valid now.
#[derive(Default)]
pub(super) struct Wishes {
    /// No twin is taken.
    pub is_stopped: bool,
    handover: Option<Handover>,
}

/// A handover that administrators wait for.
struct Handover {
    /// Then it is given up.
    until: Instant,
    answers: Vec<Sender<Result<(), String>>>,
}

impl Vm {
    pub(super) fn wish(&mut self, wish: Wish, answer: Sender<Result<(), String>>, now: Instant) {
        let time = self.time(now);
        let Role::Owner(owner) = &mut self.role else {
            let why = format!("the VM {} does not run here: ask at the other host", self.config.name);
            let _gone = answer.send(Err(why));
            return;
        };
        let done = match wish {
            Wish::Protect => {
                self.wishes.is_stopped = false;
                Ok(())
            }
            Wish::Stop => {
                self.wishes.is_stopped = true;
                owner.stop(time);
                Ok(())
            }
            Wish::FailOver if let Some(handover) = &mut self.wishes.handover => return handover.answers.push(answer),
            Wish::FailOver if owner.fail_over(time) => {
                let until = now + 2 * self.terms.lease;
                self.wishes.handover = Some(Handover { until, answers: vec![answer] });
                return;
            }
            Wish::FailOver => Err(format!("the VM is not protected: {}", owner.why())),
        };
        let _gone = answer.send(done);
    }

    /// A wish to fail over that was not fulfilled in time.
    pub(super) fn answer_wish(&mut self, now: Instant) {
        let Some(Handover { until, answers }) = &self.wishes.handover else { return };
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
        self.wishes.handover = None;
    }
}
