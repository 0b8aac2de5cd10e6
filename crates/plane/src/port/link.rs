//! A link's end of a port: its uplink, its I/O control, and the senders that it holds.

use std::sync::Arc;

use nicety_adapter::{Batch, Budget, Counters, Delivery, Frames, Outbox, PortId, Progress, Set, Time, Uplink};
use nicety_ioc::CLASSES_MAX;
use nicety_memory::Map;

use super::caught::caught;
use super::side::Side;
use super::{Shell, State};
use crate::backlog::{Backlog, Drained};
use crate::order::LaneKey;
use crate::stage::Stage;

/// A port uses a class for this long after its last frame of it, and for twice as long at most.
const USED_NS: u64 = 1_000_000_000;

/// The classes of which a port has lately sent frames, a bit each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used {
    /// Since `since`, and in the [`USED_NS`] before that.
    now: u16,
    before: u16,
    since: Time,
}

impl Used {
    #[inline]
    pub fn insert(&mut self, class: u16, now: Time) {
        let age_ns = now.0.saturating_sub(self.since.0);
        if age_ns >= USED_NS {
            self.before = if age_ns < 2 * USED_NS { self.now } else { 0 };
            (self.now, self.since) = (0, now);
        }
        self.now |= 1 << (class % CLASSES_MAX as u16);
    }

    pub fn has(self, class: u16) -> bool {
        (self.now | self.before) & 1 << (class % CLASSES_MAX as u16) != 0
    }
}

/// A link's end of a port.
pub struct Link {
    /// `None`: it has panicked.
    uplink: Option<Box<dyn Uplink>>,
    /// Its frames lie in memory of its own, which it names in each batch.
    nothing: Arc<Map>,
    /// With I/O control, by port: the classes of its frames, unless all are of one.
    pub(super) used: Vec<Used>,
    /// The time of the next check whether a link that holds senders takes frames, and since when it has taken none.
    watch_at: Option<Time>,
    stuck_since: Time,
    /// It is stuck: it holds no sender until it takes frames again.
    is_stuck: bool,
}

/// Watchdog: a link that holds senders and has taken nothing for this long releases them until it takes frames again. Its peer
/// has stopped reading, and VMs must still reach each other. (Switches have such watchdogs against pause storms.)
const STUCK_NS: u64 = 1_000_000_000;

impl Link {
    pub(super) fn new(uplink: Box<dyn Uplink>) -> Self {
        Self {
            uplink: Some(uplink),
            nothing: Map::empty(),
            used: Vec::new(),
            watch_at: None,
            stuck_since: Time::ZERO,
            is_stuck: false,
        }
    }

    /// Calls the uplink, which may panic. `None` if it has panicked before.
    #[inline]
    fn call<R>(&mut self, act: impl FnOnce(&mut dyn Uplink) -> R) -> Option<R> {
        self.uplink.as_mut().map(|uplink| act(uplink.as_mut()))
    }

    fn watch_by(&mut self, at: Time, shell: &dyn Shell) {
        self.watch_at = Some(at);
        shell.wake_at(at);
    }
}

impl Side for Link {
    fn name(&self) -> &'static str {
        "Link"
    }

    fn abandon(&mut self) {
        self.watch_at = None;
        // Dropping half-changed state may panic again.
        let uplink = self.uplink.take();
        let _panic = caught(|| drop(uplink));
    }

    fn uplink(&mut self) -> Option<&mut dyn Uplink> {
        Some(self.uplink.as_mut()?.as_mut())
    }

    fn tick(&mut self, _counters: &mut Counters, _now: Time) -> bool {
        // After the fetch it tells its next time.
        true
    }

    fn describe(&self, state: &mut State) {
        if let Some(uplink) = &self.uplink {
            state.driven = true;
            state.features = uplink.features();
            state.vacant = uplink.vacant();
            state.remark = uplink.remark();
        }
    }

    fn settle(&mut self, _counters: &mut Counters, shell: &dyn Shell) -> Result<Outbox, String> {
        let (wake, news) = caught(|| self.call(|uplink| (uplink.wake(), uplink.news())))?.unwrap_or_default();
        if let Some(news) = news {
            shell.news(news);
        }
        Ok(Outbox { wake, ..Outbox::default() })
    }

    fn wakes_for_agents(&self) -> bool {
        true
    }

    fn detach(&mut self, _counters: &mut Counters) -> Arc<Map> {
        Map::empty()
    }

    fn passes(&mut self) -> bool {
        self.call(|uplink| uplink.vacant().is_none()).unwrap_or_default()
    }

    fn source(&self) -> &Arc<Map> {
        &self.nothing
    }

    fn fetch(&mut self, budget: Budget, batch: &mut Batch, counters: &mut Counters, now: Time) -> Progress {
        let id = batch.origin;
        self.call(|uplink| uplink.fetch(id, budget, batch, counters, now)).unwrap_or_default()
    }

    fn complete(&mut self, batch: &Batch, _counters: &mut Counters, _now: Time) {
        self.call(|uplink| uplink.complete(batch));
    }

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, now: Time) -> Delivery {
        self.call(|uplink| uplink.deliver(frames, counters, now)).unwrap_or_default()
    }

    fn has_carrier(&mut self) -> bool {
        self.call(|uplink| uplink.carrier()).unwrap_or_default()
    }

    fn withholds(&mut self) -> bool {
        self.call(|uplink| uplink.withholds()).unwrap_or_default()
    }

    fn pause(&mut self, now: Time) {
        self.call(|uplink| uplink.pause(now));
    }

    fn hold_sender(&mut self, sender: PortId, backlog: &mut Backlog, now: Time, shell: &dyn Shell) -> bool {
        let holds = !self.is_stuck && backlog.hold(sender);
        if holds && self.watch_at.is_none() {
            self.stuck_since = now;
            self.watch_by(now.after_ns(STUCK_NS), shell);
        }
        holds
    }

    fn watch(&mut self, backlog: &Backlog, now: Time, shell: &dyn Shell) -> bool {
        if self.watch_at.take_if(|at| *at <= now).is_none() || !backlog.holds() {
            return false;
        }
        let end = self.stuck_since.after_ns(STUCK_NS);
        if now < end {
            self.watch_by(end, shell);
            return false;
        }
        self.is_stuck = true;
        true
    }

    fn lane(&self, sender: PortId, _queue: u16) -> LaneKey {
        LaneKey::peer(sender)
    }

    fn opens_all(&self) -> bool {
        true
    }

    fn must_wait(&self, is_behind: bool, _now: Time) -> bool {
        is_behind
    }

    fn may_drain(&self, room: Set, stage: &Stage) -> bool {
        !room.is_empty() && !stage.backlog.is_empty() && stage.limited_until.is_none()
    }

    fn drained(&mut self, drained: &Drained, _backlog: &mut Backlog, now: Time) {
        if drained.packets > 0 {
            (self.is_stuck, self.stuck_since) = (false, now);
        }
    }

    fn is_due(&self, now: Time) -> bool {
        self.watch_at.is_some_and(|at| at <= now)
    }
}
