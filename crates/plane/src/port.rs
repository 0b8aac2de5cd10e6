//! One port: its adapter or uplink, and all state that its lock guards.

mod caught;
mod control;
mod copies;
mod family;
mod fault;
mod inner;
mod moved;
mod prospect;
mod steps;
mod voice;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use nicety_adapter::family::{Answer, FunctionPolicy};
use nicety_adapter::trace::{Access, Region};
use nicety_adapter::{
    Adapter, Batch, Context, Counters, Event, Face, News, NotedError, Outbox, PciFace, PortId, Reason, Reset,
    RestoreError, RingFace, RingPlace, Set, Shape, Stall, Time, Uplink,
};
use nicety_frame::Mac;
use nicety_memory::{Map, MapError, Refusal, Refused};
use nicety_pci::PowerState;

use crate::agent::{Agent, Role, SavedAgent};
use crate::backlog::Backlog;
use crate::herald::Herald;
use crate::inward::InwardSlot;
use crate::lldp::{Listener, Neighbour};
use crate::lock::{Held, Lock};
use crate::pace::Pace;
use crate::poll::UsualIdle;
use crate::team::{MemberAgent, Steering, announcement};
pub use caught::caught;
pub use control::ClassState;
use family::Membership;
pub(crate) use family::PortRights;
pub use family::SharedFamily;
pub(crate) use inner::HeldSender;
use inner::{CHANGE_COST, Inner, MESSAGE_COST};
pub use moved::{SavedFrames, SavedNumbers};
use voice::Voice;
pub(crate) use voice::is_unforwarded;

/// The services of a port's owner. Called with the port's lock held: it must not call back into the port, nor block.
pub trait Shell: Send + Sync {
    /// Signals interrupt messages: MSI or MSI-X vectors, or completions on rings.
    fn messages(&self, vectors: Set);

    /// Sets the level of the INTx line.
    fn line(&self, level: bool);

    /// The port has work: give it a turn soon.
    fn schedule(&self);

    /// Give the port a turn at this time, or earlier.
    fn wake_at(&self, time: Time);

    /// The current time, if the owner can read it in some nanoseconds; else `given`, the time of the call above.
    fn now(&self, given: Time) -> Time {
        given
    }

    /// The guest broke queue `number` ([`Outbox::stalled`]). The queue is stopped.
    fn stalled(&self, _number: u16, _stall: Stall) {}

    /// The guest's driver made a mistake ([`Counters::errors`]). A hostile guest does so in each call.
    fn guest_error(&self, _error: &NotedError) {}

    /// The guest's memory map refused the adapter an access: the last one since the last call. A hostile guest causes one in each call.
    fn refused_access(&self, _refusal: &Refusal) {}

    /// The adapter's state must be kept, in case this process is killed ([`Outbox::KEEP`]).
    fn changed(&self) {}

    /// An event at an uplink's peer.
    fn news(&self, _news: News) {}

    /// The port's policy refused a frame of its guest, and the refusal is logged: at most once a second.
    fn refused(&self, _reason: Reason) {}

    /// The adapter or uplink panicked with `cause`: the port no longer works. The port also asks for a turn, which releases the
    /// senders that it holds.
    fn failed(&self, _cause: &str) {}
}

/// The end of a port: an adapter or a link.
pub enum End {
    /// A guest's adapter.
    Adapter(Box<dyn Adapter>),
    /// A link to the outside.
    Uplink(Box<dyn Uplink>),
    /// Nothing: the adapter or uplink panicked with this message.
    Failed(String),
}

impl std::fmt::Debug for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            End::Adapter(_) => "Adapter",
            End::Uplink(_) => "Uplink",
            End::Failed(_) => "Failed",
        })
    }
}

/// A snapshot of a port's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Whether a VM is attached, or it is an uplink.
    pub attached: bool,
    /// Whether the guest's driver has started the adapter; an uplink needs none.
    pub driven: bool,
    /// Packets that the attached VM has sent; `counters` includes those of earlier VMs.
    pub sent: u64,
    /// Its counters.
    pub counters: Counters,
    /// The features that the guest's driver turned on.
    pub features: Vec<&'static str>,
    /// Packets that the attached VM has received; `counters` includes those of earlier VMs.
    pub received: u64,
    /// Frames for it that were dropped because of its receive buffers: where they lie, or that they have no length.
    pub misplaced: u64,
    /// The queues that its driver broke.
    pub stalls: Vec<Stall>,
    /// Why its receiver takes no frame now ([`Adapter::receive_block`]).
    pub receive_block: Option<&'static str>,
    /// Frames in the receive buffer.
    pub backlog_frames: usize,
    /// The time since which the oldest frame waits for receive buffers of the guest.
    pub starved_since: Option<Time>,
    /// Bytes of the receive buffer in use.
    pub backlog_bytes: u64,
    /// Guest memory mapped here, in bytes.
    pub shared_bytes: u64,
    /// Guest memory that the VMM announced but did not share, in bytes.
    pub absent_bytes: u64,
    /// Guest memory first touched by our writes, in bytes: our control group pays for it.
    pub allocated_bytes: u64,
    /// Accesses to guest memory that its map refused the adapter, of this and earlier VMs.
    pub refused: Refused,
    /// Changes of its memory map, by this and earlier VMs.
    pub memory_changes: u64,
    /// The port may not send, because an uplink has no room for its frames.
    pub held: bool,
    /// Its state was saved and it is stopped: see [`Port::stop`].
    pub stopped: bool,
    /// The VMM took back shared memory.
    pub damaged: bool,
    /// The classes of an uplink with I/O control.
    pub classes: Vec<ClassState>,
    /// The classes of what comes in by it, if that is controlled.
    pub inward_classes: Vec<ClassState>,
    /// The reason why an uplink can pass no frames for now.
    pub vacant: Option<String>,
    /// The panic message, if the adapter or uplink panicked. The port passes no frames any more.
    pub failed: Option<String>,
}

impl State {
    /// That of a team: it has no queue of its own.
    pub fn of_team() -> Self {
        Self {
            attached: true,
            driven: true,
            sent: 0,
            counters: Counters::default(),
            features: Vec::new(),
            received: 0,
            misplaced: 0,
            stalls: Vec::new(),
            receive_block: None,
            backlog_frames: 0,
            starved_since: None,
            backlog_bytes: 0,
            shared_bytes: 0,
            absent_bytes: 0,
            allocated_bytes: 0,
            refused: Refused::default(),
            memory_changes: 0,
            held: false,
            stopped: false,
            damaged: false,
            classes: Vec::new(),
            inward_classes: Vec::new(),
            vacant: None,
            failed: None,
        }
    }

    /// Adds the state of a part of the same port.
    pub fn add_part(&mut self, part: Self) {
        self.attached |= part.attached;
        self.driven |= part.driven;
        self.sent += part.sent;
        self.received += part.received;
        self.misplaced += part.misplaced;
        self.counters.add_part(&part.counters);
        self.stalls.extend(part.stalls);
        // A part may have no queue that the driver uses.
        self.receive_block = self.receive_block.and(part.receive_block);
        self.backlog_frames += part.backlog_frames;
        self.backlog_bytes += part.backlog_bytes;
        self.starved_since = [self.starved_since, part.starved_since].into_iter().flatten().min();
        self.refused.reads += part.refused.reads;
        self.refused.writes += part.refused.writes;
        self.refused.last = self.refused.last.or(part.refused.last);
        self.held |= part.held;
        self.damaged |= part.damaged;
        self.failed = self.failed.take().or(part.failed);
    }
}

/// The saved state of a port's adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Time of saving, by the adapter's own clock. The times in the state are of that clock.
    pub at: Time,
    /// Its state, in [its envelope](nicety_adapter::snapshot).
    pub state: Vec<u8>,
}

/// See the crate's page.
pub struct Port {
    id: PortId,
    /// Tells this port from others that have its number at other times. Never 0.
    tenure: u64,
    shell: Box<dyn Shell>,
    has_left: AtomicBool,
    /// Its place in a team, if it is in one.
    member: Option<Member>,
    /// The number that its frames come from: its own, its team's, or that of the port that it is a part of.
    origin: PortId,
    /// Whether it is a part of another port.
    is_part: bool,
    /// [`AGENTS`], [`ASIDE`], [`LOOKED_AT_FIRST`], [`GUARDED`].
    special: AtomicU8,
    /// Whether it was made for an uplink.
    leads_out: bool,
    inward: Arc<InwardSlot>,
    inner: Lock<Inner>,
}

/// Agents speak on the port.
const AGENTS: u8 = 1;
/// It gets a mirror's copies.
const ASIDE: u8 = 2;
/// Frames for it are looked at before they are offered: it is a team's member, or an agent is shown them.
const LOOKED_AT_FIRST: u8 = 4;
/// Frames that come in may have left by another uplink.
const GUARDED: u8 = 8;

/// A port's place in a team.
struct Member {
    /// The team's port number: the origin of the frames that this port fetches.
    team: PortId,
    steering: Arc<Steering>,
    index: usize,
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Port {
    /// A port with nobody attached (an uplink always is), and a receive buffer of this many bytes. An uplink has one such buffer
    /// per sender, of at most [`SENDER_BYTES`](crate::SENDER_BYTES).
    pub fn new(id: PortId, end: End, shell: Box<dyn Shell>, buffer_bytes: u32) -> Result<Self, MapError> {
        let attached = matches!(end, End::Uplink(_));
        let pace = if attached { Pace::whole() } else { Pace::careful() };
        let family = if let End::Adapter(adapter) = &end { adapter.family_of_one() } else { None };
        let family = family.map(Membership::of_one);
        let inner = Inner {
            end,
            family,
            link: None,
            memory: Map::empty(),
            page: None,
            out: Outbox::default(),
            counters: Counters::default(),
            pending: Set::default(),
            next_queue: 0,
            polled: Set::default(),
            poll_at: None,
            usual_idle: UsualIdle::default(),
            active: Time::ZERO,
            room: Set::default(),
            holds: 0,
            watch_at: None,
            stuck_since: Time::ZERO,
            stuck: false,
            is_spread: false,
            owed: 0,
            wake: None,
            shift_ns: 0,
            next_backlog: None,
            spent_backlog: None,
            backlog: if attached { Backlog::of_senders(buffer_bytes) } else { Backlog::of_queues(buffer_bytes) }?,
            control: None,
            copies: None,
            limited_until: None,
            transmit: None,
            receive: None,
            shaped_at: None,
            throttled_since: [None; 2],
            pooled: false,
            logs: None,
            attached,
            stopped: false,
            sent_before: 0,
            received_before: 0,
            misplaced_before: 0,
            in_flight: false,
            speaks_inward: false,
            is_agents_batch: false,
            waiting: 0,
            pace,
            damaged: false,
            is_failure_reported: false,
            errors_reported: 0,
            refusals: Arc::default(),
            refusals_reported: 0,
            memory_changes: 0,
            agents: Vec::new(),
            voice: None,
            hushed_until: Time::ZERO,
            epoch: 0,
            drained: 0,
        };
        static TENURES: AtomicU64 = AtomicU64::new(1);
        let tenure = TENURES.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            id,
            tenure,
            shell,
            has_left: AtomicBool::new(false),
            member: None,
            origin: id,
            is_part: false,
            special: AtomicU8::new(0),
            leads_out: attached,
            inward: Arc::default(),
            inner: Lock::new(inner),
        })
    }

    /// An agent speaks on this port from now on.
    pub fn with_agent(self, role: Role, agent: Box<dyn Agent>) -> Result<Self, MapError> {
        self.set_agent(role, Some(agent))?;
        Ok(self)
    }

    /// An agent takes a role from now on, in place of the one that has it, or nobody does.
    pub fn set_agent(&self, role: Role, agent: Option<Box<dyn Agent>>) -> Result<(), MapError> {
        // Memory for what an uplink's agents say is made once: not in a turn, in which only those get an agent that have one.
        if agent.is_some() && self.leads_out {
            self.prepare_voice()?;
        }
        let mut inner = self.lock();
        inner.agents.retain(|(had, _)| *had != role);
        inner.agents.extend(agent.map(|agent| (role, agent)));
        self.note_agents(&mut inner);
        drop(inner);
        self.stir();
        Ok(())
    }

    /// Memory for what an uplink's agents say, if it has none.
    pub(crate) fn prepare_voice(&self) -> Result<(), MapError> {
        if self.lock().voice.is_none() {
            let voice = Some(Box::new(Voice::new()?));
            let mut inner = self.lock();
            inner.voice = inner.voice.take().or(voice);
        }
        Ok(())
    }

    /// Other agents are there.
    fn note_agents(&self, inner: &mut Inner) {
        inner.note_agents();
        self.mark(AGENTS, !inner.agents.is_empty());
        let is_shown = inner.agents.iter().any(|(role, _)| *role == Role::Querier);
        self.mark(LOOKED_AT_FIRST, is_shown || self.member.is_some());
    }

    /// The state of its agents, for another process. Changes nothing.
    pub fn agents(&self) -> Vec<SavedAgent> {
        self.lock().agents.iter().filter_map(|(_, agent)| agent.save()).collect()
    }

    /// Its agents go on from this state: those that it has, and those that leave when they are done. Call it before the port is served.
    pub fn go_on_with_agents(&self, saved: &[SavedAgent]) -> Result<(), MapError> {
        for saved in saved {
            if let SavedAgent::Herald(frames) = saved {
                self.announce_all(frames.iter().cloned().collect())?;
            }
            self.lock().agents.iter_mut().for_each(|(_, agent)| agent.restore(saved));
        }
        Ok(())
    }

    /// Whether an agent has this role.
    pub fn has_agent(&self, role: Role) -> bool {
        self.lock().agents.iter().any(|(had, _)| *had == role)
    }

    /// Listens for the LLDP of its neighbour, or no longer. What was heard stays until it is too old.
    pub(crate) fn listen(&self, listens: bool) {
        if listens != self.has_agent(Role::Listener) {
            let agent = listens.then(|| Box::new(Listener::default()) as Box<dyn Agent>);
            // Without memory for its voice it does not listen: it says nothing.
            let _no_memory = self.set_agent(Role::Listener, agent);
        }
    }

    /// The present LLDP neighbour, if the port listens.
    pub(crate) fn neighbour(&self, now: Time) -> Option<Neighbour> {
        self.lock().agents.iter().find_map(|(_, agent)| agent.neighbour(now).cloned())
    }

    /// Its LLDP neighbour, which another process has heard, if the port listens.
    pub fn meet(&self, neighbour: &Neighbour) {
        self.lock().agents.iter_mut().for_each(|(_, agent)| agent.meet(neighbour));
    }

    /// This port, an uplink, is a member of the team with this number, at this place. It joins the switch after its team.
    pub fn in_team(self, team: PortId, steering: &Arc<Steering>, index: usize) -> Result<Self, MapError> {
        let agent = MemberAgent::new(Arc::clone(steering), index);
        let mut this = self.with_agent(Role::Member, Box::new(agent))?;
        if let Some(inward) = steering.inward() {
            this.inward = inward;
        }
        this.member = Some(Member { team, steering: Arc::clone(steering), index });
        this.origin = team;
        this.mark(LOOKED_AT_FIRST, true);
        Ok(this)
    }

    /// This port is a part of the one with this number, and not the first ([`Split`](crate::Split)). It joins the switch before that.
    pub fn part_of(self, port: PortId) -> Self {
        Self { origin: port, is_part: true, ..self }
    }

    /// Whether it is a part of another port.
    pub(crate) fn is_part(&self) -> bool {
        self.is_part
    }

    /// Whether the switch knows it by another number: a team's, or that of the port that it is a part of.
    pub(crate) fn is_behind_another(&self) -> bool {
        self.is_part || self.member.is_some()
    }

    /// The number that its frames come from: its own, its team's, or that of the port that it is a part of.
    #[inline]
    pub(crate) fn origin(&self) -> PortId {
        self.origin
    }

    /// The number by which an uplink tells it from other senders.
    #[inline]
    pub(crate) fn sender(&self) -> PortId {
        if self.is_part { self.id } else { self.origin }
    }

    /// The number by which captures name it.
    pub(crate) fn shown_as(&self) -> PortId {
        if self.is_part { self.origin } else { self.id }
    }

    /// The team's number, if it is a member of one.
    pub fn team(&self) -> Option<PortId> {
        self.member.as_ref().map(|member| member.team)
    }

    /// Whether its frames are refused: it is a member of a team that does not collect from it now.
    #[inline]
    pub(crate) fn is_refused(&self) -> bool {
        self.member.as_ref().is_some_and(|member| !member.steering.collects(member.index))
    }

    /// Whether frames that wait here now may be copies: it has just taken over in its team.
    #[inline]
    fn drains(&self) -> bool {
        self.member.as_ref().is_some_and(|member| member.steering.drains(member.index))
    }

    /// What waited when it took over is gone.
    #[cold]
    pub(crate) fn has_drained(&self) {
        if let Some(member) = &self.member {
            member.steering.has_drained(member.index);
        }
    }

    /// Its team's steering, its place there, and the members by which flooded frames are taken, if copies of each come in by all members.
    #[inline]
    pub(crate) fn takes_copies(&self) -> Option<(&Steering, usize, u32)> {
        let member = self.member.as_ref()?;
        Some((&member.steering, member.index, member.steering.floods()?))
    }

    /// Logs what happened.
    pub(crate) fn tell(&self, news: News) {
        self.shell.news(news);
    }

    /// Sends these frames to the neighbour of the link, unless the port has nothing to speak with.
    pub(crate) fn probe(&self, frames: VecDeque<Vec<u8>>) {
        let _no_memory = self.set_agent(Role::Probe, Some(Box::new(Herald::outward(frames))));
    }

    /// Whether frames leave by it: it is no member of a team, or one that its team uses.
    pub(crate) fn distributes(&self) -> bool {
        self.member.as_ref().is_none_or(|member| member.steering.is_usable(member.index))
    }

    /// What waits here is dropped, and the senders that it held are returned.
    pub(crate) fn drop_waiting(&self, reason: Reason) -> Vec<HeldSender> {
        let mut inner = self.lock();
        inner.drop_backlog(reason);
        inner.let_all_go()
    }

    /// Whether it is, or was until it failed, an uplink.
    #[inline]
    pub(crate) fn leads_out(&self) -> bool {
        self.leads_out
    }

    /// The control of what comes in by it.
    #[inline]
    pub(crate) fn inward(&self) -> &InwardSlot {
        &self.inward
    }

    /// Its inward control where this port sets, saves and reports it: queues of one interface share that of the first, so the others have none.
    pub(crate) fn own_inward(&self) -> Option<&InwardSlot> {
        let is_others =
            self.member.as_ref().is_some_and(|member| member.index > 0 && member.steering.inward().is_some());
        (!is_others).then_some(&*self.inward)
    }

    /// Whether agents speak on it.
    #[inline]
    pub(crate) fn has_agents(&self) -> bool {
        self.special.load(Ordering::Relaxed) & AGENTS != 0
    }

    /// Whether frames for it are looked at before they are offered.
    #[inline]
    fn is_looked_at_first(&self) -> bool {
        self.special.load(Ordering::Relaxed) & LOOKED_AT_FIRST != 0
    }

    /// Whether agents speak on it, or it gets a mirror's copies.
    #[inline]
    pub(crate) fn is_special(&self) -> bool {
        self.special.load(Ordering::Relaxed) != 0
    }

    /// Whether it gets a mirror's copies: it belongs to no network.
    pub(crate) fn is_aside(&self) -> bool {
        self.special.load(Ordering::Relaxed) & ASIDE != 0
    }

    /// Whether its frames are decided apart: it gets a mirror's copies, or what comes in may have left by another uplink.
    pub(crate) fn is_apart(&self) -> bool {
        self.special.load(Ordering::Relaxed) & (ASIDE | GUARDED) != 0
    }

    /// What comes in may have left by another uplink.
    pub(crate) fn set_guarded(&self, guarded: bool) {
        let _held = self.lock();
        self.mark(GUARDED, guarded);
    }

    /// Call it with the port's lock held.
    fn mark(&self, bit: u8, is_set: bool) {
        if is_set {
            self.special.fetch_or(bit, Ordering::Relaxed);
        } else {
            self.special.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Shows its agents the frames that the switch did not forward. Returns those that they took, a bit each.
    #[cold]
    pub(crate) fn hear(&self, batch: &Batch, drops: &[(u16, Reason)], now: Time) -> u64 {
        let mut inner = self.lock();
        let taken = inner.hear(batch, drops, now);
        inner.settle(self.shell.as_ref());
        taken
    }

    /// Announces addresses by these frames: to the neighbour of an uplink, or to the switch as a guest's port; in place of earlier ones
    /// that were not sent yet.
    pub(crate) fn announce_all(&self, frames: VecDeque<Vec<u8>>) -> Result<(), MapError> {
        let herald = if self.leads_out { Herald::outward(frames) } else { Herald::inward(frames) };
        self.set_agent(Role::Herald, Some(Box::new(herald)))
    }

    /// Asks for a turn, in which its agents report and speak.
    pub(crate) fn stir(&self) {
        self.lock().pending.insert(0);
        self.shell.schedule();
    }

    /// Its port number on the switch.
    pub fn id(&self) -> PortId {
        self.id
    }

    fn lock(&self) -> Held<'_, Inner> {
        self.inner.hold()
    }

    /// Calls the adapter, then carries out its requests. `None` if this is an uplink, or has failed.
    pub fn with<R>(&self, now: Time, act: impl FnOnce(&mut dyn Adapter, &mut Context<'_>) -> R) -> Option<R> {
        let mut inner = self.lock();
        let result = inner.call(now, act);
        inner.settle(self.shell.as_ref());
        result
    }

    /// Calls the uplink, then asks for a turn, which offers waiting frames again. `None` if this is no uplink, or has failed.
    pub fn with_uplink<R>(&self, act: impl FnOnce(&mut dyn Uplink) -> R) -> Option<R> {
        let mut inner = self.lock();
        if !inner.is_uplink() {
            return None;
        }
        let result = inner.call_uplink(|uplink, _| Some(act(uplink)));
        inner.room.insert(0);
        inner.pending.insert(0);
        inner.settle(self.shell.as_ref());
        self.shell.schedule();
        result
    }

    /// Calls the adapter's PCI face. `None` if it has none.
    pub fn with_pci<R>(&self, now: Time, act: impl FnOnce(&mut dyn PciFace, &mut Context<'_>) -> R) -> Option<R> {
        let act = |adapter: &mut dyn Adapter, cx: &mut Context<'_>| match adapter.face() {
            Face::Pci(pci) => Some(act(pci, cx)),
            Face::Rings(_) => None,
        };
        self.with(now, act).flatten()
    }

    /// Calls the adapter's rings. `None` if it has none.
    pub fn with_rings<R>(&self, now: Time, act: impl FnOnce(&mut dyn RingFace, &mut Context<'_>) -> R) -> Option<R> {
        let act = |adapter: &mut dyn Adapter, cx: &mut Context<'_>| match adapter.face() {
            Face::Rings(rings) => Some(act(rings, cx)),
            Face::Pci(_) => None,
        };
        self.with(now, act).flatten()
    }

    /// Takes, of the features that a driver wants, those that the adapter's rings offer. `None` if it has no rings or refuses.
    pub fn negotiate_rings(&self, wanted: u64, now: Time) -> Option<u64> {
        let taken = self.with_rings(now, |rings, _| {
            let both = rings.features() & u128::from(wanted);
            rings.take_features(both).then_some(both as u64)
        });
        taken.flatten()
    }

    /// Starts and enables a ring at this place. False if the adapter has no such ring or refuses.
    pub fn start_ring(&self, ring: u16, place: RingPlace, now: Time) -> bool {
        let started = self.with_rings(now, |rings, cx| {
            let started = rings.place(ring, place) && rings.start(ring, 0, cx);
            rings.enable(ring, started, cx);
            started
        });
        started == Some(true)
    }

    /// Locks the port while none of its batches is in flight. For control threads only: the owner would wait for itself.
    fn quiet(&self) -> Held<'_, Inner> {
        let mut inner = self.lock();
        inner.waiting += 1;
        while inner.in_flight {
            inner = self.inner.wait(inner);
        }
        inner.waiting -= 1;
        inner
    }

    /// Like [`Port::with_rings`], from a thread other than the owner's: waits until no batch is in flight.
    pub fn with_quiet_rings<R>(
        &self,
        now: Time,
        act: impl FnOnce(&mut dyn RingFace, &mut Context<'_>) -> R,
    ) -> Option<R> {
        let mut inner = self.quiet();
        let result = inner.call(now, |adapter, cx| match adapter.face() {
            Face::Rings(rings) => Some(act(rings, cx)),
            Face::Pci(_) => None,
        });
        inner.owe(MESSAGE_COST);
        inner.settle(self.shell.as_ref());
        // Schedule the fetch that the wait prevented.
        self.shell.schedule();
        result.flatten()
    }

    /// Like [`Port::set_memory`], from a thread other than the owner's. On return nobody holds the old map.
    pub fn set_quiet_memory(&self, memory: Arc<Map>, now: Time) {
        let mut inner = self.quiet();
        let old = inner.replace_memory(memory, now);
        inner.owe(CHANGE_COST);
        inner.settle(self.shell.as_ref());
        self.shell.schedule();
        // Unmapping may wait for the VMM: do it without the lock, so that senders to this port do not wait too.
        drop(inner);
        drop(old);
    }

    /// A register read by the guest. All ones if there is no register, or the adapter is not in D0.
    pub fn read(&self, bar: u8, offset: u64, data: &mut [u8], now: Time) {
        data.fill(0xff);
        let read = self.with_pci(now, |pci, cx| {
            cx.counters.reads += 1;
            if is_awake(pci, false, bar, offset, data, cx) {
                pci.read(bar, offset, data, cx);
            }
        });
        if read.is_none() {
            // The adapter panicked halfway.
            data.fill(0xff);
        }
    }

    /// A register write by the guest. Returns its cost beyond the access, in descriptors read: the caller charges it to the guest,
    /// like the guest's messages.
    pub fn write(&self, bar: u8, offset: u64, data: &[u8], now: Time) -> u32 {
        let written = self.with_pci(now, |pci, cx| {
            cx.counters.writes += 1;
            if is_awake(pci, true, bar, offset, data, cx) {
                pci.write(bar, offset, data, cx);
            }
            std::mem::take(&mut cx.out.excess)
        });
        written.unwrap_or(0)
    }

    /// A register write that the guest made through a mapped page. False if the adapter is not in D0.
    pub(crate) fn store(&self, bar: u8, offset: u64, data: &[u8], now: Time) -> bool {
        let stored = self.with_pci(now, |pci, cx| {
            let awake = is_awake(pci, true, bar, offset, data, cx);
            if awake {
                pci.write(bar, offset, data, cx);
            }
            awake
        });
        stored == Some(true)
    }

    /// A configuration read by the guest.
    pub fn config_read(&self, offset: u64, data: &mut [u8], now: Time) {
        data.fill(0xff);
        self.with_pci(now, |pci, _| pci.function().config_read(offset, data));
    }

    /// A configuration write by the guest.
    pub fn config_write(&self, offset: u16, data: &[u8], now: Time) {
        self.with_pci(now, |pci, cx| pci.config_write(offset, data, cx));
    }

    /// The adapter is this function of a card from now on, if it is a function at all, under this policy of its host. `None`: the
    /// policy that the card has for it. Its queues run on, and it keeps what it may have there.
    pub fn join_family(&self, family: &SharedFamily, function: u16, policy: Option<FunctionPolicy>) {
        self.change_rights(|membership| match policy {
            _ if !membership.is(family, function) => Some(membership.move_to(family, function, policy)),
            Some(policy) => membership.set_host(policy),
            None => None,
        });
    }

    /// The host changes a function's policy. The change is made, and the function told, before its driver's next access.
    pub fn set_function_policy(&self, policy: FunctionPolicy) {
        self.change_rights(|family| family.set_host(policy));
    }

    /// The function's card is reset. Its driver is told, and must reset the function.
    pub fn reset_function(&self) {
        self.change_rights(|family| Some(family.reset()));
    }

    /// The port's own policy changes what its function may do.
    pub(crate) fn set_rights(&self, rights: PortRights) {
        self.change_rights(|family| family.set_port(rights));
    }

    fn change_rights(&self, change: impl FnOnce(&mut Membership) -> Option<Answer>) {
        let mut inner = self.lock();
        let Some(answer) = inner.family.as_mut().and_then(change) else { return };
        let now = self.shell.now(inner.active);
        inner.call(now, |adapter, cx| adapter.notice(Event::Answer(answer), cx));
        inner.settle(self.shell.as_ref());
    }

    /// A VM attaches: from now on the adapter receives frames.
    pub fn attach(&self) {
        let mut inner = self.lock();
        inner.attached = true;
        inner.sent_before = inner.counters.transmitted().packets;
        inner.received_before = inner.counters.taken().packets;
        inner.misplaced_before = misplaced(&inner.counters);
    }

    /// The VM detaches: the adapter is reset and has no memory; frames for it are dropped.
    pub fn detach(&self, now: Time) {
        let mut inner = self.lock();
        (inner.attached, inner.stopped) = (false, false);
        inner.agents.retain(|(role, _)| *role != Role::Herald);
        self.note_agents(&mut inner);
        inner.drop_backlog(Reason::Removed);
        inner.call(now, |adapter, cx| adapter.reset(Reset::Bus, cx));
        inner.report_failure(self.shell.as_ref());
        let old = std::mem::replace(&mut inner.memory, Map::empty());
        inner.damaged = false;
        inner.set_shift(0);
        inner.out = Outbox::default();
        inner.pending = Set::default();
        (inner.polled, inner.poll_at, inner.usual_idle) = (Set::default(), None, UsualIdle::default());
        inner.wake = None;
        drop(inner);
        drop(old);
    }

    /// A guest with this address was migrated here. The port sends a frame that needs no answer, so that every switch on the path
    /// learns the guest's new port. Not for an uplink.
    pub fn announce(&self, address: Mac) {
        if !self.leads_out {
            // QEMU's announcement has the same form.
            let frame = announcement(address, None);
            let _needs_no_memory = self.announce_all(frame.into_iter().collect());
        }
    }

    /// A reset from the bus or the function.
    pub fn reset(&self, kind: Reset, now: Time) {
        let mut inner = self.lock();
        inner.drop_backlog(Reason::Removed);
        inner.call(now, |adapter, cx| adapter.reset(kind, cx));
        inner.settle(self.shell.as_ref());
    }

    /// An uplink has no room for this port's frames (backpressure): the port fetches nothing until it is released. An uplink is
    /// never held.
    pub(crate) fn hold(&self) {
        let mut inner = self.lock();
        inner.holds += i32::from(matches!(inner.end, End::Adapter(_)));
    }

    /// The uplink has room again.
    pub(crate) fn let_go(&self) {
        let mut inner = self.lock();
        inner.holds -= i32::from(matches!(inner.end, End::Adapter(_)));
        if inner.holds <= 0 && !inner.pending.is_empty() {
            self.shell.schedule();
        }
    }

    /// This uplink holds the sender of a batch since an offer: notes which port that is. False if it has released it again.
    pub(crate) fn name_held(&self, sender: &Port) -> bool {
        let mut inner = self.lock();
        // A port that leaves says so before its uplinks forget it, which takes this lock. So a hold of the next port with its number
        // comes later than a name that is given here.
        if sender.has_left() {
            inner.backlog.forget_unnamed(sender.sender());
            return false;
        }
        inner.backlog.name_holder(sender.sender(), sender.tenure)
    }

    /// Tells this port from others that have its number at other times.
    pub(crate) fn tenure(&self) -> u64 {
        self.tenure
    }

    /// This port leaves: its backlog is dropped, and so are frames that other workers still deliver to it. Returns the senders that
    /// it held, if it is an uplink.
    pub(crate) fn retire(&self) -> Vec<HeldSender> {
        self.has_left.store(true, Ordering::Relaxed);
        let mut inner = self.lock();
        inner.attached = false;
        let held = inner.let_all_go();
        inner.drop_backlog(Reason::Removed);
        held
    }

    /// Whether it has left the switch.
    #[inline]
    pub(crate) fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Relaxed)
    }

    /// Whether it is an uplink, and has not failed.
    pub(crate) fn is_uplink(&self) -> bool {
        self.lock().is_uplink()
    }

    /// Gives the port a receive buffer of another size, as soon as the old one is empty. Not for an uplink.
    pub fn set_buffer(&self, bytes: u32) -> Result<(), MapError> {
        let new = Backlog::of_queues(bytes)?;
        let mut inner = self.lock();
        if matches!(inner.end, End::Uplink(_)) {
            return Ok(());
        }
        let old = inner.change_backlog(new);
        // Map and unmap memory without the lock.
        drop(inner);
        drop(old);
        Ok(())
    }

    /// Other ports have left: drop this uplink's holds on them, and what waits here for them.
    pub(crate) fn forget(&self, ports: &[PortId]) {
        self.forget_inward(ports);
        let mut inner = self.lock();
        if matches!(inner.end, End::Uplink(_)) {
            ports.iter().for_each(|&sender| inner.backlog.forget(sender));
        }
    }

    /// Its adapter's state; `None` for an uplink or a failed port. Changes nothing. Call it from a thread other than the owner's:
    /// it waits until no batch is in flight.
    pub fn save(&self, now: Time) -> Option<Saved> {
        let mut inner = self.quiet();
        let saved = inner.save(now);
        inner.report_failure(self.shell.as_ref());
        // Schedule the fetch that the wait prevented.
        if !inner.pending.is_empty() {
            self.shell.schedule();
        }
        saved
    }

    /// Like [`Port::save`], and stops the port. Until it is restored or its VM detaches, it fetches nothing, its timers wait, it
    /// sends no interrupts, and frames for it are dropped. Its owner may also call this, between two turns.
    pub fn stop(&self, now: Time) -> Option<Saved> {
        let mut inner = self.quiet();
        let saved = inner.save(now);
        inner.stopped = saved.is_some();
        inner.drop_backlog(Reason::Removed);
        inner.report_failure(self.shell.as_ref());
        saved
    }

    /// Restores its adapter from a saved state and lets it continue; its clock continues from the time of saving. `None` for an
    /// uplink. The old state's backlog is dropped. Call it from a thread other than the owner's, like [`Port::save`].
    pub fn restore(&self, saved: &Saved, now: Time) -> Option<Result<(), RestoreError>> {
        self.restore_then(saved, now, &mut |_| {})
    }

    /// Like [`Port::restore`]. `prepare` gets the restored adapter before it continues, with the port's lock held.
    pub fn restore_then(
        &self,
        saved: &Saved,
        now: Time,
        prepare: &mut dyn FnMut(&mut dyn Adapter),
    ) -> Option<Result<(), RestoreError>> {
        self.restore_as(Event::Restored, saved, now, prepare)
    }

    /// Like [`Port::restore_then`], with a state that was kept in case of a kill: see [`Event::Lost`].
    pub fn restore_lost(
        &self,
        saved: &Saved,
        now: Time,
        prepare: &mut dyn FnMut(&mut dyn Adapter),
    ) -> Option<Result<(), RestoreError>> {
        self.restore_as(Event::Lost, saved, now, prepare)
    }

    fn restore_as(
        &self,
        event: Event,
        saved: &Saved,
        now: Time,
        prepare: &mut dyn FnMut(&mut dyn Adapter),
    ) -> Option<Result<(), RestoreError>> {
        let mut inner = self.quiet();
        let restored = inner.call(now, |adapter, _| {
            adapter.restore(&saved.state)?;
            prepare(adapter);
            Ok(())
        });
        if restored == Some(Ok(())) {
            inner.stopped = false;
            inner.set_shift(saved.at.0.wrapping_sub(now.0).cast_signed());
            inner.drop_backlog(Reason::Removed);
            inner.out = Outbox::default();
            (inner.pending, inner.polled, inner.poll_at, inner.wake) = (Set::default(), Set::default(), None, None);
            let link = inner.link;
            inner.call(now, |adapter, cx| {
                // First: otherwise the adapter would read values on the page that no driver has written.
                if cx.page.is_some() {
                    adapter.notice(Event::Page, cx);
                }
                adapter.notice(event, cx);
                // The state has the link of another host.
                if let Some(up) = link {
                    adapter.notice(Event::Link(up), cx);
                }
            });
            inner.settle(self.shell.as_ref());
        }
        inner.report_failure(self.shell.as_ref());
        self.shell.schedule();
        restored
    }

    /// The guest's memory changed. Returns the old map: to unmap it, wait until nobody else holds it.
    pub fn set_memory(&self, memory: Arc<Map>, now: Time) -> Arc<Map> {
        let mut inner = self.lock();
        let old = inner.replace_memory(memory, now);
        inner.settle(self.shell.as_ref());
        old
    }

    /// The guest's memory map.
    pub fn memory(&self) -> Arc<Map> {
        Arc::clone(&self.lock().memory)
    }

    /// Whether the VMM took back shared memory: the port does not work until a VMM connects again.
    pub fn damaged(&self) -> bool {
        self.lock().memory.damaged()
    }

    /// The page of doorbells that the guest has mapped, or none.
    pub fn set_page(&self, page: Option<Arc<Map>>) {
        self.lock().page = page;
    }

    /// Shapes its guest's transmit and receive frames from now on; uplinks are not shaped. `logs`: report refusals ([`Shell::refused`]).
    pub(crate) fn set_shapes(&self, transmit: Option<Shape>, receive: Option<Shape>, logs: bool) {
        let mut inner = self.lock();
        inner.set_shapes(transmit, receive);
        inner.logs = logs.then(|| inner.logs.unwrap_or(Time::ZERO));
        // Frames that waited for tokens of the old shapes may go now, or need a new wake-up time.
        inner.shaped_at = None;
        drop(inner);
        self.shell.schedule();
    }

    /// The link goes up or down. From now on it is the host's: a restored state does not change it.
    pub fn set_link(&self, up: bool, now: Time) {
        let mut inner = self.lock();
        inner.link = Some(up);
        inner.call(now, |adapter, cx| adapter.notice(Event::Link(up), cx));
        inner.settle(self.shell.as_ref());
    }

    /// Whether it is an uplink that can pass frames now.
    pub fn has_carrier(&self) -> bool {
        let mut inner = self.lock();
        inner.is_uplink() && inner.call_uplink(|uplink, _| uplink.vacant()).is_none()
    }

    /// Whether it has work now, or a due timer.
    pub fn busy(&self, now: Time) -> bool {
        if self.inward.is_due(now) {
            return true;
        }
        let inner = self.lock();
        if inner.stopped {
            return false;
        }
        (!inner.pending.is_empty() && inner.may_fetch() && inner.may_send(now))
            || (inner.may_drain() && inner.may_receive(now))
            || inner.limited_until.is_some_and(|at| at <= now)
            || inner.watch_at.is_some_and(|at| at <= now)
            || inner.wake.is_some_and(|at| at <= now)
            || inner.poll_at.is_some_and(|at| at <= now)
    }

    /// Bytes that its guest, or the outside of an uplink, has sent and got. Nothing is copied or allocated for it.
    pub fn carried(&self) -> [u64; 2] {
        let inner = self.lock();
        [inner.counters.transmitted().bytes, inner.counters.taken().bytes]
    }

    /// A snapshot of its state.
    pub fn state(&self) -> State {
        let (inward_classes, inward_frames) =
            self.own_inward().and_then(|slot| slot.with(|inward| (inward.states(), inward.len()))).unwrap_or_default();
        let mut inner = self.lock();
        let said = caught(|| said(&inner.end)).unwrap_or_else(|cause| {
            inner.fail(cause);
            Said::default()
        });
        inner.report_failure(self.shell.as_ref());
        State {
            attached: inner.attached,
            driven: said.driven,
            sent: inner.counters.transmitted().packets - inner.sent_before,
            counters: inner.counters.clone(),
            features: said.features,
            received: inner.counters.taken().packets.saturating_sub(inner.received_before),
            misplaced: misplaced(&inner.counters).saturating_sub(inner.misplaced_before),
            stalls: said.stalls,
            receive_block: said.receive_block,
            backlog_frames: inner.backlog.len() + inward_frames,
            starved_since: inner.backlog.starved_since(inner.room),
            backlog_bytes: inner.backlog.used(),
            shared_bytes: inner.memory.mapped_bytes(),
            absent_bytes: inner.memory.absent_bytes(),
            allocated_bytes: inner.memory.allocated_bytes(),
            refused: inner.refusals.refused(),
            memory_changes: inner.memory_changes,
            held: inner.holds > 0,
            stopped: inner.stopped,
            damaged: inner.memory.damaged(),
            classes: inner.control.as_ref().map_or_else(Vec::new, |control| control.states()),
            inward_classes,
            vacant: said.vacant,
            failed: match &inner.end {
                End::Failed(cause) => Some(cause.clone()),
                End::Adapter(_) | End::Uplink(_) => None,
            },
        }
    }
}

/// The parts of [`State`] that the adapter or uplink supplies.
#[derive(Default)]
struct Said {
    driven: bool,
    features: Vec<&'static str>,
    stalls: Vec<Stall>,
    receive_block: Option<&'static str>,
    vacant: Option<String>,
}

/// Frames that a guest's receive buffers could not take: see [`State::misplaced`].
fn misplaced(counters: &Counters) -> u64 {
    [Reason::BadAddress, Reason::BadDescriptor].iter().map(|reason| counters.receive_drops[*reason as usize]).sum()
}

fn said(end: &End) -> Said {
    match end {
        End::Adapter(adapter) => Said {
            driven: adapter.is_driven(),
            features: adapter.features(),
            stalls: (0..Set::NUMBERS).filter_map(|number| adapter.stall(number)).collect(),
            receive_block: adapter.receive_block(),
            vacant: None,
        },
        End::Uplink(uplink) => {
            Said { driven: true, features: uplink.features(), vacant: uplink.vacant(), ..Said::default() }
        }
        End::Failed(_) => Said::default(),
    }
}

/// The expectation of an access.
const AWAKE: &str = "the function in D0 (PCI PM 1.2, 5.4.1)";

/// Whether registers answer: only in D0 (PCI PM 1.2, section 5.4.1). An access in another state is counted.
fn is_awake(pci: &dyn PciFace, write: bool, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) -> bool {
    let awake = pci.function().power_state() == PowerState::D0;
    if !awake {
        cx.bad_access(1, Access::of(write, Region::Bar(bar), offset, data), AWAKE);
    }
    awake
}
