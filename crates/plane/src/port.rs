//! One port: its adapter or uplink, and all state that its lock guards.

mod calls;
mod caught;
mod control;
mod end;
mod family;
mod fault;
mod gated;
mod guest;
mod handover;
mod inner;
mod link;
mod mirrored;
mod primary;
mod questions;
mod shaping;
mod side;
mod state;
mod steps;
mod voice;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use nicety_adapter::family::{Answer, FunctionPolicy};
use nicety_adapter::{
    Adapter, Counters, Event, News, NotedError, PortId, Reason, Reset, RestoreError, Set, Shape, Stall, Time,
};
use nicety_memory::{Map, MapError, Refusal};

use crate::agent::Role;
use crate::backlog::Backlog;
use crate::inward::InwardSlot;
use crate::lock::{Held, Lock};
use crate::pace::Pace;
use crate::poll::UsualIdle;
use crate::stage::Stage;
use crate::team::{MemberAgent, Steering};
pub use caught::caught;
pub use end::End;
use end::either;
use family::Membership;
pub(crate) use family::PortRights;
pub use family::SharedFamily;
pub use handover::{SavedFrames, SavedNumbers};
pub(crate) use inner::HeldSender;
use mirrored::MirrorRate;
use primary::PrimaryPort;
pub use questions::{Intake, Presence, Prospect};
pub use state::State;
use state::misplaced;
pub(crate) use voice::is_unforwarded;
use voice::{Placed, Voice};

/// The services of a port's owner. Called with the port's lock held: it must not call back into the port, nor block.
///
/// 1. The owner makes the [`Port`] with its shell, and [attaches](Port::attach) it when its VM is there.
/// 2. It passes the guest's accesses on ([`Port::read`], [`Port::write`], [`Port::config_write`]). Within such a call the port says what it
///    needs: [`messages`](Shell::messages) and [`line`](Shell::line) for the guest, [`schedule`](Shell::schedule) and
///    [`wake_at`](Shell::wake_at) for itself.
/// 3. After the call the owner delivers the interrupts. Masks are the owner's: [`messages`](Shell::messages) names masked vectors too
///    (`nicety_pci::Pending` keeps them).
/// 4. For each `schedule`, and at each `wake_at`, the owner gives the port a turn ([`Plane::turn`](crate::Plane::turn)), and another one
///    while the outcome says `more` or `unfinished`.
/// 5. It [detaches](Port::detach) the port when the VM goes. No call comes after the port is dropped.
pub trait Shell: Send + Sync {
    /// Signals interrupt messages: MSI or MSI-X vectors, or completions on rings.
    fn messages(&self, vectors: Set);

    /// Sets the level of the INTx line.
    fn line(&self, level: bool);

    /// The port has work: give it a turn soon.
    fn schedule(&self);

    /// Give the port a turn at this time, or earlier.
    fn wake_at(&self, time: Time);

    /// Whether the owner never sleeps: it gives a port whose queues want to be polled a turn in each round.
    fn always_polls(&self) -> bool {
        false
    }

    /// The current time, if the owner can read it in some nanoseconds; else `given`, the time of the call above.
    fn now(&self, given: Time) -> Time {
        given
    }

    /// The guest broke queue `number` ([`stalled`](nicety_adapter::Outbox::stalled)). The queue is stopped.
    fn stalled(&self, _number: u16, _stall: Stall) {}

    /// The guest's driver made a mistake ([`Counters::errors`]). A hostile guest does so in each call.
    fn guest_error(&self, _error: &NotedError) {}

    /// The guest's memory map refused the adapter an access: the last one since the last call. A hostile guest causes one in each call.
    fn refused_access(&self, _refusal: &Refusal) {}

    /// The adapter's state must be kept, in case this process is killed ([`KEEP`](nicety_adapter::Outbox::KEEP)).
    fn changed(&self) {}

    /// An event at an uplink's peer.
    fn news(&self, _news: News) {}

    /// The port's policy refused a frame of its guest, and the refusal is logged: at most once a second.
    fn refused(&self, _reason: Reason) {}

    /// The adapter or uplink panicked with `cause`: the port no longer works. The port also asks for a turn, which releases the
    /// senders that it holds.
    fn failed(&self, _cause: &str) {}
}

/// The saved state of a port's adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Time of saving, by the adapter's own clock. The times in the state are of that clock.
    pub at: Time,
    /// Its state, in [its envelope](nicety_adapter::snapshot).
    pub state: Vec<u8>,
}

/// The numbers of a port in the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its number: no other port has it.
    pub number: PortId,
    /// The number under which the switch sees its frames: its own number, its team's, or that of the port that it is a part of.
    pub origin: PortId,
    /// The number of its lane in the backlog of a link.
    pub sender: PortId,
    /// The number by which captures name it.
    pub shown: PortId,
}

impl Place {
    /// A port of its own.
    fn own(number: PortId) -> Self {
        Self { number, origin: number, sender: number, shown: number }
    }

    /// A part of another port, and not the first one.
    fn part_of(self, port: PortId) -> Self {
        Self { origin: port, shown: port, ..self }
    }

    /// A member of a team.
    fn in_team(self, team: PortId) -> Self {
        Self { origin: team, sender: team, ..self }
    }

    /// Whether the switch knows it by another number.
    pub fn is_behind_another(self) -> bool {
        self.origin != self.number
    }
}

/// See the crate's page.
pub struct Port {
    place: Place,
    /// Tells this port from others that have its number at other times. Never 0.
    tenure: u64,
    shell: Box<dyn Shell>,
    has_left: AtomicBool,
    /// Its place in a team, if it is in one.
    member: Option<Member>,
    /// [`AGENTS`], [`ASIDE`], [`LOOKED_AT_FIRST`], [`GUARDED`], [`STANDS_BY`].
    special: AtomicU8,
    /// The port that it stands by for.
    primary: ArcSwapOption<PrimaryPort>,
    is_link: bool,
    inward: Arc<InwardSlot>,
    inner: Lock<Inner>,
}

/// The state that a port's lock guards.
struct Inner {
    end: End,
    /// The message of its adapter's or uplink's panic: then it passes no frames any more.
    failure: Option<String>,
    is_failure_reported: bool,
    counters: Counters,
    pending: Set,
    /// The queue to fetch from next, among those with work.
    next_queue: u16,
    /// Queues with mapped doorbells, and the time of their next poll.
    polled: Set,
    poll_at: Option<Time>,
    usual_idle: UsualIdle,
    /// Time of the last frames in either direction.
    active: Time,
    /// Receive queues with room for waiting frames; a link sets any number.
    room: Set,
    /// Frames that wait for it.
    stage: Stage,
    /// The rate of its mirror, if it is a mirror's port.
    mirror: Option<MirrorRate>,
    /// Limits the frames per hold.
    pace: Pace,
    /// The work beside its frames, in bytes: charged to the next turn.
    owed: u64,
    wake: Option<Time>,
    attached: bool,
    /// Its state was saved: it is stopped until it is restored, or its VM detaches.
    stopped: bool,
    /// Packets sent before the current VM attached.
    sent_before: u64,
    /// Packets received before the current VM attached; 0 if another process has served that VM.
    received_before: u64,
    /// Frames dropped because of receive buffers before the current VM attached.
    misplaced_before: u64,
    /// A batch of this port is in flight: fetched, not completed.
    in_flight: bool,
    /// The batch in flight is its agents', and not the adapter's or the uplink's.
    is_agents_batch: bool,
    /// Control threads that wait until no batch is in flight; while there are any, nothing is fetched.
    waiting: u32,
    agents: Vec<Placed>,
    /// Some of them face the switch.
    speaks_inward: bool,
    /// Memory for what they say to a link's neighbour.
    voice: Option<Box<Voice>>,
    /// The uplink had no room for an agent's frame: the agents' next turn is not before this time.
    hushed_until: Time,
    in_team: InTeam,
}

/// State of a team's member.
#[derive(Debug, Default)]
struct InTeam {
    /// The team's epoch in which the waiting frames came.
    epoch: u32,
    /// Frames that were fetched since it took over, as long as those that waited then are dropped.
    drained: u32,
    /// The team spreads each sender's flows: it holds nobody, because a sender that waits for one full link leaves the others empty. Frames
    /// for a full link are dropped, as Linux's bonding and its links' queues do.
    is_spread: bool,
}

/// Agents speak on the port.
const AGENTS: u8 = 1;
/// It gets a mirror's copies.
const ASIDE: u8 = 2;
/// Frames for it are looked at before they are offered: it is a team's member, or an agent is shown them.
const LOOKED_AT_FIRST: u8 = 4;
/// Frames that come in may have left by another uplink.
const GUARDED: u8 = 8;
/// It stands by for another port.
const STANDS_BY: u8 = 16;

/// A port's place in a team.
struct Member {
    /// The team's port number: the origin of the frames that this port fetches.
    team: PortId,
    steering: Arc<Steering>,
    index: usize,
}

/// A member of a team by all of whose members flooded frames come in.
pub(crate) struct Flooded<'a> {
    pub team: PortId,
    pub steering: &'a Steering,
    /// Its place.
    pub member: usize,
    /// The members by which flooded frames are taken, a bit each.
    pub taken_by: u32,
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port").field("id", &self.place.number).finish_non_exhaustive()
    }
}

impl Port {
    /// A new port with a receive buffer of `buffer_bytes`. A guest's port has no VM attached yet; an uplink always counts as attached. An
    /// uplink has one such buffer per sender, of at most [`SENDER_BYTES`](crate::SENDER_BYTES).
    pub fn new(id: PortId, end: End, shell: Box<dyn Shell>, buffer_bytes: u32) -> Result<Self, MapError> {
        let (is_link, backlog, pace) = match &end {
            End::Guest(_) => (false, Backlog::of_queues(buffer_bytes)?, Pace::careful()),
            End::Link(_) => (true, Backlog::of_senders(buffer_bytes)?, Pace::whole()),
        };
        let inner = Inner {
            end,
            failure: None,
            is_failure_reported: false,
            counters: Counters::default(),
            pending: Set::default(),
            next_queue: 0,
            polled: Set::default(),
            poll_at: None,
            usual_idle: UsualIdle::default(),
            active: Time::ZERO,
            room: Set::default(),
            stage: Stage::new(backlog),
            mirror: None,
            pace,
            owed: 0,
            wake: None,
            attached: is_link,
            stopped: false,
            sent_before: 0,
            received_before: 0,
            misplaced_before: 0,
            in_flight: false,
            is_agents_batch: false,
            waiting: 0,
            agents: Vec::new(),
            speaks_inward: false,
            voice: if is_link { Some(Box::new(Voice::new()?)) } else { None },
            hushed_until: Time::ZERO,
            in_team: InTeam::default(),
        };
        static TENURES: AtomicU64 = AtomicU64::new(1);
        Ok(Self {
            place: Place::own(id),
            tenure: TENURES.fetch_add(1, Ordering::Relaxed),
            shell,
            has_left: AtomicBool::new(false),
            member: None,
            special: AtomicU8::new(0),
            primary: ArcSwapOption::default(),
            is_link,
            inward: Arc::default(),
            inner: Lock::new(inner),
        })
    }

    /// Makes this uplink a member of the team with this number, at this place. It joins the switch after its team.
    pub fn in_team(self, team: PortId, steering: &Arc<Steering>, index: usize) -> Self {
        let agent = MemberAgent::new(Arc::clone(steering), index);
        let mut this = self.with_agent(Role::Member, Box::new(agent));
        if let Some(inward) = steering.inward() {
            this.inward = inward;
        }
        this.member = Some(Member { team, steering: Arc::clone(steering), index });
        this.place = this.place.in_team(team);
        this.mark(LOOKED_AT_FIRST, true);
        this
    }

    /// Makes this port a part of the port with this number ([`Group`](crate::Group)), but not its first part. It joins the switch before
    /// that port.
    pub fn part_of(self, port: PortId) -> Self {
        Self { place: self.place.part_of(port), ..self }
    }

    /// Its numbers in the switch.
    #[inline]
    pub(crate) fn place(&self) -> Place {
        self.place
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

    /// Whether frames that wait here now may be duplicates: it has just taken over in its team.
    #[inline]
    fn drains(&self) -> bool {
        self.member.as_ref().is_some_and(|member| member.steering.drains(member.index))
    }

    /// Notes that the frames that waited when it took over are gone.
    #[cold]
    pub(crate) fn note_drained(&self) {
        if let Some(member) = &self.member {
            member.steering.note_drained(member.index);
        }
    }

    /// Its place in a team, if flooded frames come in by all members.
    #[inline]
    pub(crate) fn takes_duplicates(&self) -> Option<Flooded<'_>> {
        let Member { team, steering, index } = self.member.as_ref()?;
        Some(Flooded { team: *team, steering, member: *index, taken_by: steering.floods()? })
    }

    /// Logs what happened.
    pub(crate) fn tell(&self, news: News) {
        self.shell.news(news);
    }

    /// Whether frames leave by it: it is no member of a team, or one that its team uses.
    pub(crate) fn distributes(&self) -> bool {
        self.member.as_ref().is_none_or(|member| member.steering.is_usable(member.index))
    }

    /// Drops the frames that wait here, and returns the senders that it held.
    pub(crate) fn drop_waiting(&self, reason: Reason) -> Vec<HeldSender> {
        let mut inner = self.lock();
        inner.drop_backlog(reason);
        inner.let_all_go()
    }

    /// Whether it is a link to the outside.
    #[inline]
    pub(crate) fn is_link(&self) -> bool {
        self.is_link
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

    /// Whether a batch of it is decided in a way of its own: one of the marks is set.
    #[inline]
    pub(crate) fn is_special(&self) -> bool {
        self.special.load(Ordering::Relaxed) != 0
    }

    /// Whether it gets a mirror's copies: it belongs to no network.
    pub(crate) fn is_aside(&self) -> bool {
        self.special.load(Ordering::Relaxed) & ASIDE != 0
    }

    /// Whether what comes in may have left by another link.
    pub(crate) fn is_guarded(&self) -> bool {
        self.special.load(Ordering::Relaxed) & GUARDED != 0
    }

    /// Sets whether frames that come in may have left by another uplink.
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

    /// Asks for a turn, in which its agents report and speak.
    pub(crate) fn stir(&self) {
        self.lock().pending.insert(0);
        self.shell.schedule();
    }

    /// Its port number on the switch.
    pub fn id(&self) -> PortId {
        self.place.number
    }

    fn lock(&self) -> Held<'_, Inner> {
        self.inner.hold()
    }

    /// Makes the adapter this function of a card, if it is a virtual function, with the host's `policy`. `None`: the policy that the card
    /// has for it. Its queues run on. It keeps those addresses and VLANs that it may have there.
    pub fn join_family(&self, family: &SharedFamily, function: u16, policy: Option<FunctionPolicy>) {
        self.change_rights(|membership| match policy {
            _ if !membership.is(family, function) => Some(membership.move_to(family, function, policy)),
            Some(policy) => membership.set_host(policy),
            None => None,
        });
    }

    /// Changes the host's policy for a function. The change is made, and the function is told, before its driver's next access.
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
        let Some(answer) = either!(&mut inner.end, end => end.family()).and_then(change) else { return };
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
        inner.agents.retain(|placed| placed.role != Role::Herald);
        self.note_agents(&mut inner);
        inner.drop_backlog(Reason::Removed);
        inner.call(now, |adapter, cx| adapter.reset(Reset::Bus, cx));
        inner.report_failure(self.shell.as_ref());
        let Inner { end, counters, .. } = &mut *inner;
        let old = either!(end, end => end.detach(counters));
        inner.pending = Set::default();
        (inner.polled, inner.poll_at, inner.usual_idle) = (Set::default(), None, UsualIdle::default());
        inner.wake = None;
        drop(inner);
        drop(old);
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
        either!(&mut inner.end, end => end.hold(1));
    }

    /// The uplink has room again.
    pub(crate) fn let_go(&self) {
        let mut inner = self.lock();
        either!(&mut inner.end, end => end.hold(-1));
        if !either!(&inner.end, end => end.is_held()) && !inner.pending.is_empty() {
            self.shell.schedule();
        }
    }

    /// This uplink holds the sender of a batch since an offer: notes which port that is. False if it has released it again.
    pub(crate) fn name_held(&self, sender: &Port) -> bool {
        let mut inner = self.lock();
        // A port that leaves says so before its uplinks forget it, which takes this lock. So a hold of the next port with its number
        // comes later than a name that is given here.
        if sender.has_left() {
            inner.stage.backlog.forget_unnamed(sender.place.sender);
            return false;
        }
        inner.stage.backlog.name_holder(sender.place.sender, sender.tenure)
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

    /// Gives a guest's port a receive buffer of another size, as soon as the old one is empty.
    pub fn set_buffer(&self, bytes: u32) -> Result<(), MapError> {
        let new = Backlog::of_queues(bytes)?;
        let mut inner = self.lock();
        let Inner { end, stage, .. } = &mut *inner;
        let old = either!(end, end => end.change_backlog(new, &mut stage.backlog));
        // Map and unmap memory without the lock.
        drop(inner);
        drop(old);
        Ok(())
    }

    /// Other ports have left: drop this uplink's holds on them, and what waits here for them.
    pub(crate) fn forget(&self, ports: &[PortId]) {
        self.forget_inward(ports);
        let mut inner = self.lock();
        ports.iter().for_each(|&sender| inner.stage.backlog.forget(sender));
    }

    /// The state of its adapter; `None` for an uplink or a failed port. It changes nothing, and waits until no batch is in flight. So call
    /// it from a thread other than the owner's.
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

    /// Saves like [`Port::save`], and stops the port. A stopped port fetches nothing and sends no interrupts, its timers wait, and frames
    /// for it are dropped. This ends when it is restored or its VM detaches. The owner may also call this, between two turns.
    pub fn stop(&self, now: Time) -> Option<Saved> {
        let mut inner = self.quiet();
        let saved = inner.save(now);
        inner.stopped = saved.is_some();
        inner.drop_backlog(Reason::Removed);
        inner.report_failure(self.shell.as_ref());
        saved
    }

    /// Restores the adapter from a saved state and lets it continue. The adapter's clock continues from the time of saving. The backlog of
    /// the old state is dropped. `None` for an uplink. Call it from a thread other than the owner's, like [`Port::save`].
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
            inner.drop_backlog(Reason::Removed);
            (inner.pending, inner.polled, inner.poll_at, inner.wake) = (Set::default(), Set::default(), None, None);
            let Inner { end, counters, .. } = &mut *inner;
            let link = either!(end, end => end.go_on_from(saved.at, counters, now));
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
        Arc::clone(either!(&self.lock().end, end => end.source()))
    }

    /// Whether the VMM took back shared memory: the port does not work until a VMM connects again.
    pub fn damaged(&self) -> bool {
        either!(&self.lock().end, end => end.source()).damaged()
    }

    /// The page of doorbells that the guest has mapped, or none.
    pub fn set_page(&self, page: Option<Arc<Map>>) {
        either!(&mut self.lock().end, end => end.set_page(page));
    }

    /// Shapes its guest's transmit and receive frames from now on; uplinks are not shaped. `logs`: report refusals ([`Shell::refused`]).
    pub(crate) fn set_shapes(&self, transmit: Option<Shape>, receive: Option<Shape>, logs: bool) {
        let mut inner = self.lock();
        let Inner { end, stage, room, .. } = &mut *inner;
        either!(end, end => end.set_logs(logs));
        if either!(end, end => end.set_shapes(transmit, receive, !stage.backlog.is_empty())) {
            // Offer the backlog once more; a queue without room refuses it.
            room.insert(0);
        }
        drop(inner);
        self.shell.schedule();
    }

    /// Sets the link of the guest's adapter up or down. The host decides it, so a restored state does not change it.
    pub fn set_link(&self, up: bool, now: Time) {
        let mut inner = self.lock();
        either!(&mut inner.end, end => end.set_link(up));
        inner.call(now, |adapter, cx| adapter.notice(Event::Link(up), cx));
        inner.settle(self.shell.as_ref());
    }

    /// Whether it is an uplink that can pass frames now.
    pub fn has_carrier(&self) -> bool {
        let mut inner = self.lock();
        inner.ask(|end, _| either!(end, end => end.passes()))
    }
}
