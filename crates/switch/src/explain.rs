//! Explains a decision step by step, using the deciding code itself.

use nicety_adapter::{Batch, Edit, PortId, Reason, Time};
use nicety_frame::Mac;

use crate::addresses::Key;
use crate::policy::Policy;
use crate::{Plan, Switch};

/// A step of a decision, in order. A step that refuses the frame is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The sender's guards and MTU, with the reason if they refuse the frame.
    Guards(Option<Reason>),
    /// The frame's VLAN, numbered as in [`Learned::fid`](crate::Learned::fid): 0 is the flat network.
    Vlan(Result<u16, Reason>),
    /// Whether its source may send from this port.
    Source(Result<(), Reason>),
    /// The switch learns its source.
    Learns {
        /// The source.
        address: Mac,
        /// The port at which it is learned: where the frame comes in, or the [`Primary`] of that one.
        at: PortId,
        /// The port at which it was known before.
        before: Option<PortId>,
    },
    /// Its source is a group address, and is not learned.
    LearnsNothing(Mac),
    /// Its destination is reserved for the next bridge, so it is not forwarded.
    Reserved(Mac),
    /// Its destination is known at this port.
    Found(PortId),
    /// It is flooded, if the sender's storm control for this kind permits it.
    Floods {
        /// The reason that storm control would give for a refusal.
        kind: Reason,
        /// Whether storm control permits it.
        goes: bool,
    },
    /// Of the ports with [`Policy::snooping`] only members of its group and ports of routers get it; a report goes only to ports of routers.
    Snooped {
        /// It is a report.
        report: bool,
    },
    /// A port that may get it: with this edit, or the reason why it does not.
    Receiver(PortId, Result<Edit, Reason>),
}

/// Records the steps of a decision.
pub(crate) trait Follower {
    /// Whether this is a dry run: nothing is learned or counted.
    const DRY: bool;
    /// Whether pairs of addresses are kept for the next batches, and those that were kept decide.
    const KEEPS: bool = !Self::DRY;

    fn step(&mut self, step: impl FnOnce() -> Step);

    /// The reason if this packet of the batch is not forwarded, whatever the tables say.
    fn skips(&self, _packet: u16) -> Option<Reason> {
        None
    }

    /// The port at which a source is learned that comes in at `origin`.
    #[inline(always)]
    fn place(&self, _source: Key, origin: PortId) -> PortId {
        origin
    }
}

/// The port at which an address is learned, whichever port its frames come in by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Primary {
    /// The address of one station.
    pub address: Mac,
    /// The port, which has joined.
    pub port: PortId,
}

impl Follower for Primary {
    const DRY: bool = false;
    // A pair says that its source is known where its frames came in.
    const KEEPS: bool = false;

    #[inline(always)]
    fn step(&mut self, _: impl FnOnce() -> Step) {}

    fn place(&self, source: Key, origin: PortId) -> PortId {
        if source.address() == self.address { self.port } else { origin }
    }
}

/// Packets that are not forwarded, a bit each.
#[derive(Clone, Copy, Debug, Default)]
pub struct Skipped {
    /// Copies of frames that came in by another link of a team. They are dropped as `unused-link`.
    pub duplicates: u64,
    /// Frames that left by one uplink and came in by another. They are dropped as `looped`.
    pub looped: u64,
    /// The switch's own frames that come back. They are `taken`.
    pub taken: u64,
}

pub(crate) struct Except(pub Skipped);

impl Follower for Except {
    const DRY: bool = false;

    #[inline(always)]
    fn step(&mut self, _: impl FnOnce() -> Step) {}

    #[inline(always)]
    fn skips(&self, packet: u16) -> Option<Reason> {
        let has = |bits: u64| bits.checked_shr(packet.into()).unwrap_or_default() & 1 != 0;
        match self.0 {
            Skipped { duplicates, .. } if has(duplicates) => Some(Reason::UnusedLink),
            Skipped { looped, .. } if has(looped) => Some(Reason::Looped),
            Skipped { taken, .. } if has(taken) => Some(Reason::Taken),
            Skipped { .. } => None,
        }
    }
}

/// No follower: frames are forwarded without steps.
pub(crate) struct Nobody;

impl Follower for Nobody {
    const DRY: bool = false;

    #[inline(always)]
    fn step(&mut self, _: impl FnOnce() -> Step) {}
}

/// The steps of a dry run.
struct Steps {
    steps: Vec<Step>,
    primary: Option<Primary>,
}

impl Follower for Steps {
    const DRY: bool = true;

    fn step(&mut self, step: impl FnOnce() -> Step) {
        self.steps.push(step());
    }

    fn place(&self, source: Key, origin: PortId) -> PortId {
        self.primary.map_or(origin, |primary| primary.place(source, origin))
    }
}

impl<P> Switch<P> {
    /// Decides like [`Switch::forward`], or [`forward_standby`](Switch::forward_standby), and returns the steps. Changes nothing: nothing is learned, and no meter counts. Steps
    /// of several packets in a batch are mixed.
    pub fn explain(&self, batch: &Batch, primary: Option<Primary>, now: Time, plan: &mut Plan) -> Vec<Step> {
        let mut steps = Steps { steps: Vec::new(), primary };
        self.forward_followed(batch, now, plan, &mut steps);
        steps.steps
    }

    /// A port's policy; the default if none was set.
    pub fn policy(&self, port: PortId) -> Policy {
        self.joined.load().members.rules(port).map(|rules| rules.policy.clone()).unwrap_or_default()
    }
}
