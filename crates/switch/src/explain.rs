//! How a decision comes about, told step by step by the code that decides.

use nicety_adapter::{Batch, Edit, PortId, Reason, Time};
use nicety_frame::Mac;

use crate::policy::Policy;
use crate::{Plan, Switch};

/// A step of a decision, in the order in which they are taken. One that refuses the frame is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The sender's guards and MTU: what they refuse it as.
    Guards(Option<Reason>),
    /// The frame's VLAN, as [`Learned::fid`](crate::Learned::fid) numbers them: 0 is the flat network.
    Vlan(Result<u16, Reason>),
    /// Whether its source may send from this port.
    Source(Result<(), Reason>),
    /// Its source is learned; where that was known before.
    Learns(Mac, Option<PortId>),
    /// Its source is a group's address, and not learned.
    LearnsNothing(Mac),
    /// Its destination is one for the next bridge and no further.
    Reserved(Mac),
    /// Its destination is known at this port.
    Found(PortId),
    /// It goes to many: the sender's storm control, of the kind that this reason names, lets it through or does not.
    Floods {
        /// What storm control would refuse it as.
        kind: Reason,
        /// Whether it goes.
        goes: bool,
    },
    /// Of ports with [`Policy::snooping`] only those that have joined its group get it, and routers'; of a report, routers' alone.
    Snooped {
        /// It is a report.
        report: bool,
    },
    /// A port that may get it: with this change, or why not.
    Receiver(PortId, Result<Edit, Reason>),
}

/// Who follows a decision.
pub(crate) trait Follower {
    /// Whether the decision is only asked for: nothing is learned or counted.
    const DRY: bool;

    fn step(&mut self, step: impl FnOnce() -> Step);
}

/// Nobody: frames are forwarded, and no step is made.
pub(crate) struct Nobody;

impl Follower for Nobody {
    const DRY: bool = false;

    #[inline(always)]
    fn step(&mut self, _: impl FnOnce() -> Step) {}
}

impl Follower for Vec<Step> {
    const DRY: bool = true;

    fn step(&mut self, step: impl FnOnce() -> Step) {
        self.push(step());
    }
}

impl Switch {
    /// Decides as [`Switch::forward`] does, says by which steps, and changes nothing: nothing is learned, and no meter counts. The
    /// steps of a batch of several packets are mixed.
    pub fn explain(&self, batch: &Batch, now: Time, plan: &mut Plan) -> Vec<Step> {
        let mut steps = Vec::new();
        self.forward_followed(batch, now, plan, &mut steps);
        steps
    }

    /// What a port may do; as one of a flat switch if nobody has said.
    pub fn policy(&self, port: PortId) -> Policy {
        self.members.load().rules(port).map(|rules| rules.policy.clone()).unwrap_or_default()
    }
}
