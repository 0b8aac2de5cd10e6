//! One end of a protection by QEMU's COLO (docs/system/qemu-colo.rst, migration/colo.c), as a state machine.
//!
//! ```text
//!              Colo::secondary                               Colo::primary
//! Preparing    x-colo, return-path, events on                the same, x-checkpoint-delay
//!              migrate-incoming
//! Listening    ── the owner joins both sockets, then ──►     (only now Colo::primary)
//! Synchronizing                                              migrate; the VM runs, and stands still at the end
//! Running      MIGRATION colo and RESUME                     MIGRATION colo and RESUME
//!              a checkpoint: STOP, RESUME                    STOP, RESUME
//! Broken       COLO_EXIT "error": the stream has ended       the same; the VM may stand still
//!                 fail_over, when the lease says so
//! FailingOver  x-colo-lost-heartbeat; `yank` if that does not return
//! Alone        the VM runs here, and is not protected
//! ```
//! A checkpoint has this order (`colo_do_checkpoint_transaction`). The secondary's VM stops, then the primary's. State and written pages go
//! over. The secondary has loaded them and runs. The primary runs. Both VMs run between checkpoints. STOP and RESUME reach an owner late
//! on a busy host: they are for figures and for watching, never for the decision to release what a VM has sent.
//!
//! QEMU decides nothing: a broken stream is [`News::Broken`], and the owner asks its lease before it calls [`Colo::fail_over`]. Nothing
//! fences in QEMU: with a silent link both ends would go on.

mod news;
mod steps;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde_json::Value;

pub use news::{News, Phase, Role, Settings, StepLimits};
use steps::{Ask, LOOK_AGAIN, refused};

use crate::{Answer, Command, Dialogue, Item};

/// News that wait for the owner; checkpoints beyond it are only counted.
const NEWS_MAX: usize = 1024;

/// See the module's page. A [`Dialogue`]: [`converse`](crate::converse) carries it over a monitor.
#[derive(Debug)]
pub struct Colo {
    role: Role,
    settings: Settings,
    phase: Phase,
    queue: VecDeque<Ask>,
    /// The one that [`Dialogue::command`] gave and whose number has not come yet.
    given: Option<Ask>,
    under_way: Option<(u64, Ask, Instant)>,
    yank_id: Option<u64>,
    /// End of the phase's time.
    deadline: Option<Instant>,
    poll_at: Option<Instant>,
    has_yanked: bool,
    /// MIGRATION colo was heard: from now on the VM goes on alone by `x-colo-lost-heartbeat`.
    is_colo: bool,
    began: Instant,
    /// QEMU's clock when its VM stopped, and ours.
    stopped: Option<(Duration, Instant)>,
    checkpoints: u64,
    last_checkpoint: Option<Instant>,
    /// The failure that is told when the cancelling is done.
    why: Option<String>,
    news: VecDeque<News>,
}

impl Colo {
    /// The end whose VM runs and becomes protected. The peer's [`Colo::secondary`] must have said [`News::Listening`].
    pub fn primary(settings: Settings, now: Instant) -> Colo {
        Colo::new(Role::Primary, settings, &[Ask::Capabilities, Ask::Delay, Ask::Migrate], now)
    }

    /// The end that was started with `-incoming defer`.
    pub fn secondary(settings: Settings, now: Instant) -> Colo {
        Colo::new(Role::Secondary, settings, &[Ask::Capabilities, Ask::Incoming], now)
    }

    /// An end that COLO runs at already: for an owner that was started again. Also asks for a checkpoint: QEMU does not tell whether its
    /// stream has ended before, but if it has, none comes.
    pub fn adopted(role: Role, settings: Settings, now: Instant) -> Colo {
        Colo::new(role, settings, &[Ask::Mode], now)
    }

    fn new(role: Role, settings: Settings, asks: &[Ask], now: Instant) -> Colo {
        Colo {
            role,
            settings,
            phase: Phase::Preparing,
            queue: asks.iter().copied().collect(),
            given: None,
            under_way: None,
            yank_id: None,
            deadline: None,
            poll_at: None,
            has_yanked: false,
            is_colo: false,
            began: now,
            stopped: None,
            checkpoints: 0,
            last_checkpoint: None,
            why: None,
            news: VecDeque::new(),
        }
    }

    /// The role of this end.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The current phase.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Checkpoints since the first synchronization.
    pub fn checkpoints(&self) -> u64 {
        self.checkpoints
    }

    /// Since when this end's VM has stood still, if it does. By the arrival of QEMU's event.
    pub fn standing_since(&self) -> Option<Instant> {
        self.stopped.map(|(_, since)| since)
    }

    /// When the last checkpoint, or the first synchronization, was complete at this end. By the arrival of QEMU's event.
    pub fn last_checkpoint(&self) -> Option<Instant> {
        self.last_checkpoint
    }

    /// The next news for the owner.
    pub fn news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// Sets the time between two checkpoints, at the primary; from the first call on, not from the next checkpoint. QEMU then makes a
    /// checkpoint at once. Calls while one is under way become one.
    pub fn set_delay(&mut self, delay_ms: u32) {
        self.settings.delay_ms = delay_ms;
        if self.phase == Phase::Running && self.role == Role::Primary && !self.queue.contains(&Ask::ChangeDelay) {
            self.queue.push_back(Ask::ChangeDelay);
        }
    }

    /// Asks for a checkpoint at once.
    pub fn checkpoint(&mut self) {
        self.set_delay(self.settings.delay_ms);
    }

    /// The VM is to go on here, alone: the lease says so. At the primary it may be called in every phase, also to end a protection; before
    /// the first synchronization is done it cancels that. A secondary without a whole copy fails.
    /// [`News::Alone`] or [`News::Failed`] follows within twice `limits.failover`, and the time of an answer.
    pub fn fail_over(&mut self, now: Instant) {
        match (self.phase, self.role) {
            (Phase::Alone | Phase::FailingOver | Phase::Quitting, _) => {}
            (Phase::Running | Phase::Broken, _) => self.lose_heartbeat(now),
            (Phase::Synchronizing, Role::Primary) if self.is_colo => self.lose_heartbeat(now),
            (Phase::Synchronizing, Role::Primary) => self.cancel(None, now),
            (Phase::Cancelling, Role::Primary) => {}
            // Nothing has begun, or it has ended: QEMU is only asked whether its VM runs.
            (_, Role::Primary) => self.end_by(Ask::MigrationStatus, Phase::FailingOver, now),
            (_, Role::Secondary) => {
                self.fail("this secondary has no whole copy of the VM yet, so it cannot go on alone: end it, and start it again".into());
            }
        }
    }

    /// Ends this QEMU. The monitor then says that it was closed.
    pub fn quit(&mut self) {
        self.phase = Phase::Quitting;
        self.deadline = None;
        self.queue.clear();
        self.queue.push_back(Ask::Quit);
    }

    fn tell(&mut self, news: News) {
        if self.news.len() < NEWS_MAX || !matches!(news, News::Checkpoint { .. }) {
            self.news.push_back(news);
        }
    }

    fn fail(&mut self, why: String) {
        if matches!(self.phase, Phase::Failed | Phase::Quitting) {
            return;
        }
        self.phase = Phase::Failed;
        self.rest();
        self.tell(News::Failed(why));
    }

    fn alone(&mut self) {
        self.phase = Phase::Alone;
        self.stopped = None;
        self.rest();
        let news = self.why.take().map_or(News::Alone, News::Failed);
        if matches!(news, News::Failed(_)) {
            self.phase = Phase::Failed;
        }
        self.tell(news);
    }

    /// Nothing is waited for any more. A later live migration must not be COLO's.
    fn rest(&mut self) {
        (self.deadline, self.poll_at) = (None, None);
        self.queue.clear();
        if self.role == Role::Primary || self.phase == Phase::Alone {
            self.queue.push_back(Ask::Release);
        }
    }

    /// Gives up what waits for this one command; the phase has the failover's time.
    fn end_by(&mut self, ask: Ask, phase: Phase, now: Instant) {
        self.phase = phase;
        self.queue.clear();
        self.queue.push_back(ask);
        self.deadline = Some(now + self.settings.limits.failover);
        (self.poll_at, self.has_yanked, self.yank_id) = (None, false, None);
    }

    fn lose_heartbeat(&mut self, now: Instant) {
        self.end_by(Ask::LostHeartbeat, Phase::FailingOver, now);
    }

    fn cancel(&mut self, why: Option<String>, now: Instant) {
        self.why = why;
        self.end_by(Ask::Cancel, Phase::Cancelling, now);
    }

    fn broken(&mut self) {
        self.phase = Phase::Broken;
        self.deadline = None;
        self.tell(News::Broken);
    }

    /// Acts on a limit that has ended.
    fn late(&mut self, now: Instant) {
        let limits = self.settings.limits;
        match self.phase {
            Phase::FailingOver if !self.has_yanked => {
                self.has_yanked = true;
                self.deadline = Some(now + limits.failover);
            }
            Phase::FailingOver => self.fail(format!(
                "QEMU has not gone on alone within {:?}, even after `yank`: its VM may stand still; end it",
                2 * limits.failover
            )),
            Phase::Cancelling => {
                let why = "QEMU has not cancelled the first synchronization in time: its VM may stand still; end it";
                self.fail(why.into());
            }
            Phase::Synchronizing => {
                let why = format!(
                    "the first synchronization has not ended within {:?}: the link is slower than the VM writes its memory, or the other \
                     end stands still",
                    limits.synchronize
                );
                match (self.role, self.is_colo) {
                    (Role::Primary, false) => self.cancel(Some(why), now),
                    // Its VM stands still: its owner has it go on.
                    (Role::Primary, true) => self.broken(),
                    (Role::Secondary, _) => self.fail(why),
                }
            }
            _ => {}
        }
    }

    fn answered(&mut self, ask: Ask, answer: &Answer, now: Instant) {
        match (ask, answer) {
            // The events say the rest. An error of `quit` or of the release changes nothing.
            (Ask::Delay | Ask::ChangeDelay | Ask::Capabilities | Ask::Migrate, Ok(_))
            | (Ask::Quit | Ask::Release | Ask::Yank, _) => {}
            (Ask::Incoming, Ok(_)) => {
                if self.phase == Phase::Preparing {
                    self.phase = Phase::Listening;
                }
                self.tell(News::Listening);
            }
            (Ask::Cancel | Ask::LostHeartbeat, Ok(_)) => self.queue.push_back(Ask::MigrationStatus),
            (Ask::MigrationStatus, Ok(value)) => self.migration_status(value, now),
            (Ask::RunStatus, Ok(value)) => {
                if value["running"] == true {
                    self.alone();
                } else {
                    self.poll_at = Some(now + LOOK_AGAIN);
                }
            }
            (Ask::Mode, Ok(value)) => self.mode(value, now),
            (Ask::Cause, Ok(value)) => {
                let words = value["error-desc"].as_str().unwrap_or("QEMU gives no reason");
                let hint = match self.role {
                    Role::Primary => "the other end's words say more",
                    Role::Secondary => "are both command lines the same? Start this QEMU again",
                };
                self.fail(format!("the first synchronization failed: {words}; {hint}"));
            }
            (Ask::ChangeDelay, Err(failure)) => {
                self.tell(News::Complaint(format!("QEMU refuses the delay: {failure}")))
            }
            // The stream may have ended by itself in between, or somebody else was faster.
            (Ask::LostHeartbeat, Err(failure)) if failure.desc.contains("not in COLO mode") => {
                self.queue.push_back(Ask::MigrationStatus);
            }
            (Ask::Cancel, Err(failure)) if failure.class == "DeviceNotFound" => {
                self.queue.push_back(Ask::MigrationStatus);
            }
            (_, Err(failure)) => {
                let why = refused(ask, &self.settings, failure);
                self.fail(why);
            }
        }
    }

    /// `query-migrate` while this end fails over or cancels.
    fn migration_status(&mut self, value: &Value, now: Instant) {
        match value["status"].as_str() {
            Some("completed" | "cancelled" | "failed") | None => self.queue.push_back(Ask::RunStatus),
            Some("colo") if self.phase == Phase::Cancelling => self.lose_heartbeat(now),
            _ => self.poll_at = Some(now + LOOK_AGAIN),
        }
    }

    /// `query-colo-status`, for an owner that was started again.
    fn mode(&mut self, value: &Value, now: Instant) {
        let wanted = match self.role {
            Role::Primary => "primary",
            Role::Secondary => "secondary",
        };
        match value["mode"].as_str() {
            Some(mode) if mode == wanted => {
                (self.phase, self.is_colo, self.last_checkpoint) = (Phase::Running, true, Some(now));
                self.checkpoint();
                self.tell(News::Adopted);
            }
            // A first synchronization may be under way, of which nobody knows how far it is: that ends.
            Some("none") if self.role == Role::Primary => self.cancel(None, now),
            Some("none") if value["last-mode"] == "secondary" => self.alone(),
            mode => self.fail(format!("QEMU is no {wanted} of COLO: its mode is {}", mode.unwrap_or("unknown"))),
        }
    }

    fn event(&mut self, name: &str, data: &Value, at: Duration, now: Instant) {
        match name {
            "STOP" => self.stopped = Some((at, now)),
            "RESUME" => self.resumed(at, now),
            "MIGRATION" => self.migration(data["status"].as_str().unwrap_or_default(), now),
            "COLO_EXIT" => self.exited(data["reason"].as_str().unwrap_or_default()),
            "SHUTDOWN" => {
                let reason = data["reason"].as_str().unwrap_or("unknown").to_owned();
                self.tell(News::Shutdown { is_guests: data["guest"] == true, reason });
            }
            _ => {}
        }
    }

    fn resumed(&mut self, at: Duration, now: Instant) {
        let stood_still = self.stopped.take().map_or(Duration::ZERO, |(since, _)| at.saturating_sub(since));
        match self.phase {
            Phase::Synchronizing if self.is_colo => {
                self.phase = Phase::Running;
                (self.deadline, self.last_checkpoint) = (None, Some(now));
                self.tell(News::Synchronized { took: now - self.began, stood_still });
            }
            Phase::Running => {
                self.checkpoints += 1;
                self.last_checkpoint = Some(now);
                self.tell(News::Checkpoint { number: self.checkpoints, stood_still });
            }
            _ => {}
        }
    }

    fn migration(&mut self, status: &str, now: Instant) {
        match (status, self.phase) {
            ("active", Phase::Listening | Phase::Preparing) if self.role == Role::Secondary => self.synchronizing(now),
            ("colo", _) => self.is_colo = true,
            ("failed", Phase::Synchronizing | Phase::Listening) => {
                // Only what is asked now is of interest.
                self.queue.clear();
                self.queue.push_back(Ask::Cause);
            }
            ("cancelled" | "completed", Phase::Synchronizing) if self.role == Role::Primary => {
                self.fail(format!("somebody else has ended the first synchronization: its status is {status}"));
            }
            ("completed", Phase::Synchronizing | Phase::Listening) => {
                self.fail("the VM was moved here by a plain live migration: it runs, and nothing protects it".into());
            }
            _ => {}
        }
    }

    fn synchronizing(&mut self, now: Instant) {
        (self.phase, self.began) = (Phase::Synchronizing, now);
        self.deadline = Some(now + self.settings.limits.synchronize);
    }

    fn exited(&mut self, reason: &str) {
        match (reason, self.phase) {
            // `request`: somebody's x-colo-lost-heartbeat, ours or another's.
            ("request", Phase::Running | Phase::Broken) => self.alone(),
            ("request", _) => {}
            (_, Phase::Running | Phase::Synchronizing) => self.broken(),
            _ => {}
        }
    }
}

impl Dialogue for Colo {
    fn command(&mut self, now: Instant) -> Option<Command> {
        if self.deadline.is_some_and(|at| now >= at) {
            self.late(now);
            if self.phase == Phase::FailingOver && self.has_yanked && self.yank_id.is_none() {
                self.given = Some(Ask::Yank);
                return Some(Ask::Yank.command(&self.settings));
            }
        }
        if let Some((_, ask, since)) = self.under_way {
            let limit = self.settings.limits.answer;
            // A failover has its own limit and way out.
            if now >= since + limit && self.phase != Phase::FailingOver {
                self.under_way = None;
                self.fail(format!("QEMU has not answered {} within {limit:?}: its main loop is stuck", ask.name()));
            }
            return None;
        }
        if self.poll_at.is_some_and(|at| now >= at) {
            self.poll_at = None;
            self.queue.push_back(Ask::MigrationStatus);
        }
        let ask = self.queue.pop_front()?;
        if ask == Ask::Migrate {
            self.synchronizing(now);
        }
        self.given = Some(ask);
        self.under_way = Some((0, ask, now));
        Some(ask.command(&self.settings))
    }

    fn sent(&mut self, id: u64) {
        match self.given.take() {
            Some(Ask::Yank) => self.yank_id = Some(id),
            Some(_) => {
                if let Some((under_way, ..)) = &mut self.under_way {
                    *under_way = id;
                }
            }
            None => {}
        }
    }

    fn hear(&mut self, item: &Item, now: Instant) {
        match item {
            Item::Event { name, data, at } => self.event(name, data, *at, now),
            Item::Answer { id, result } => {
                if let Some((_, ask, _)) = self.under_way.take_if(|(under_way, ..)| under_way == id) {
                    self.answered(ask, result, now);
                }
            }
        }
    }

    fn wake_at(&self) -> Option<Instant> {
        if self.under_way.is_none() && !self.queue.is_empty() {
            return Some(self.began);
        }
        let under_way = self.under_way.filter(|_| self.phase != Phase::FailingOver);
        let answer = under_way.map(|(_, _, since)| since + self.settings.limits.answer);
        [self.deadline, self.poll_at, answer].into_iter().flatten().min()
    }
}
