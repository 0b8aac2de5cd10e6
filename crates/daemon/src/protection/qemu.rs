//! The VM's QEMU: a connection to its control socket, which is sought again and again, and what is asked of it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nicety_link::{Place, Stream};
use nicety_protect::Death;
use nicety_qmp::{
    Cause, Colo, Command, Dialogue, Facts, Inquiry, Item, Limits, Mark, Marked, Monitor, News, Phase, Role, Settings,
    StepLimits, mark,
};
use rustix::event::PollFlags;
use serde_json::json;

use super::process::{Ending, Identity};
use crate::random::random;

/// Between two tries to connect.
const AGAIN: Duration = Duration::from_millis(100);
/// Between two questions whether it lives.
const PROOF: Duration = Duration::from_millis(250);
/// The time for all questions about a VM together.
const INQUIRY: Duration = Duration::from_secs(5);
/// The name by which QEMU knows its end of the stream.
const STREAM: &str = "nicety";

/// News of a QEMU.
#[derive(Debug)]
pub(super) enum QemuNews {
    /// It is there, and this is what it runs.
    There(Box<Facts>, Marked),
    /// The facts of the VM that it runs now, or a sentence why they are not known.
    Facts(Result<Box<Facts>, String>),
    /// It has ended.
    Gone(Death),
    /// Its control socket is lost, for this reason. It may run.
    Lost(String),
    /// News of its COLO.
    Colo(News),
    /// Its VM runs: the answer to the last [`Qemu::ask_whether_it_runs`].
    Runs,
    /// It was told to end, and has not. What is done about it.
    Stays(String),
}

enum State {
    Away(Instant),
    Asks(Monitor, Box<Inquiry>),
    Marks(Monitor, Box<Facts>, Mark),
    /// QEMU is there. The inquiry that is under way, if there is one.
    There(Monitor, Option<Box<Inquiry>>),
}

/// Signs of a QEMU's life and end.
#[derive(Debug, Default)]
struct Signs {
    /// It is about to end, because somebody has ordered that.
    is_ordered: bool,
    /// The process behind the socket.
    who: Identity,
    /// It last said something.
    heard: Option<Instant>,
    /// It last wrote into the stream of copies. Meanwhile its main loop may stand still, and answers nothing.
    wrote: Option<Instant>,
    /// It was last asked whether it lives.
    asked: Option<Instant>,
    /// The question under way whether its VM runs.
    question: Option<u64>,
    /// It was answered that it does.
    runs: bool,
}

/// See the module's page.
pub(super) struct Qemu {
    path: PathBuf,
    state: State,
    colo: Option<Colo>,
    /// A copy that was adopted goes on.
    keeps_on: bool,
    signs: Signs,
    /// The kind of its end, not reported yet: it counts if QEMU does not come back.
    owes: Option<Death>,
    /// The process that it was, if its control socket is lost.
    last: Identity,
    /// The one that was told to end.
    ending: Option<Ending>,
    news: VecDeque<QemuNews>,
    /// Why it cannot be asked, for a person.
    why_not: Option<String>,
}

impl Qemu {
    pub fn new(path: &Path, now: Instant) -> Self {
        let why_not = Some("its QEMU was not asked yet".to_owned());
        Self {
            path: path.to_owned(),
            state: State::Away(now),
            colo: None,
            keeps_on: false,
            signs: Signs::default(),
            owes: None,
            last: Identity::default(),
            ending: None,
            news: VecDeque::new(),
            why_not,
        }
    }

    /// One that the daemon before this one knew. If it is not there, its end is told.
    pub fn known(path: &Path, now: Instant) -> Self {
        Self { owes: Some(Death::Sudden), ..Self::new(path, now) }
    }

    /// Goes on with the copies that it makes, or gets, already.
    pub fn go_on(&mut self, role: Role, delay: Duration, now: Instant) {
        if let State::There(..) = self.state {
            self.colo = Some(Colo::adopted(role, settings(delay), now));
            self.keeps_on = true;
        }
    }

    /// Why it cannot be asked.
    pub fn why_not(&self) -> Option<&str> {
        self.why_not.as_deref()
    }

    /// Why a QEMU that was told to end is still there.
    pub fn stays(&self) -> Option<&str> {
        self.ending.as_ref().and_then(Ending::why)
    }

    /// The next news.
    pub fn news(&mut self) -> Option<QemuNews> {
        self.news.pop_front()
    }

    fn monitor(&mut self) -> Option<&mut Monitor> {
        match &mut self.state {
            State::Away(_) => None,
            State::Asks(monitor, _) | State::Marks(monitor, ..) | State::There(monitor, _) => Some(monitor),
        }
    }

    /// Its descriptor, and what to wait for.
    pub fn polled(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match &self.state {
            State::Away(_) => None,
            State::Asks(monitor, _) | State::Marks(monitor, ..) | State::There(monitor, _) => {
                Some((monitor.as_fd(), monitor.events()))
            }
        }
    }

    /// When [`Qemu::turn`] must be called at the latest.
    pub fn wake_at(&self) -> Option<Instant> {
        let ending = self.ending.as_ref().and_then(Ending::wake_at);
        let (monitor, dialogue) = match &self.state {
            State::Away(again) => return [Some(*again), ending].into_iter().flatten().min(),
            State::Asks(monitor, inquiry) => (monitor, inquiry.wake_at()),
            State::Marks(monitor, _, mark) => (monitor, mark.wake_at()),
            State::There(monitor, Some(inquiry)) => (monitor, inquiry.wake_at()),
            State::There(monitor, None) => (monitor, self.colo.as_ref().and_then(Colo::wake_at)),
        };
        [monitor.wake_at(), dialogue, ending].into_iter().flatten().min()
    }

    /// Has the VM go to the other host by this descriptor, its stream.
    pub fn copy(&mut self, role: Role, stream: OwnedFd, delay: Duration, now: Instant) {
        let settings = settings(delay);
        if let State::There(monitor, _) = &mut self.state {
            monitor.give(STREAM, stream, now);
            self.colo = Some(match role {
                Role::Primary => Colo::primary(settings, now),
                Role::Secondary => Colo::secondary(settings, now),
            });
        }
    }

    /// Whether a VM of these facts is being copied, or has been and waits to go on alone.
    pub fn copies(facts: &Facts) -> bool {
        matches!(facts.migration.as_deref(), Some("colo" | "active" | "setup" | "device"))
    }

    /// Has the VM go on alone, whatever it does. Without its control socket this is to be asked for again when it is back. News: [`News::Alone`], or [`News::Failed`].
    pub fn go_alone(&mut self, facts: Option<&Facts>, now: Instant) {
        let keeps_on = std::mem::take(&mut self.keeps_on);
        if let Some(colo) = self.colo.as_mut().filter(|colo| !matches!(colo.phase(), Phase::Alone | Phase::Failed)) {
            // One that is being adopted fails over when it is.
            if !keeps_on || colo.phase() != Phase::Preparing {
                colo.fail_over(now);
            }
            return;
        }
        // A QEMU that is not copying has nothing to do.
        if !matches!(self.state, State::There(..)) {
            return;
        }
        if self.colo.is_some() || facts.is_some_and(|facts| !Qemu::copies(facts)) {
            return self.news.push_back(QemuNews::Colo(News::Alone));
        }
        self.colo = Some(Colo::adopted(Role::Primary, settings(Duration::from_millis(100)), now));
    }

    /// Asks what it runs now. Only while nothing is copied.
    pub fn inquire(&mut self) {
        if let State::There(_, inquiry) = &mut self.state {
            inquiry.get_or_insert_with(|| Box::new(Inquiry::new(INQUIRY)));
        }
    }

    /// Asks whether it lives, now and then. Its answer is a sign of life like all that it says.
    pub fn prove(&mut self, now: Instant) {
        if self.signs.asked.is_none_or(|at| now - at >= PROOF)
            && let State::There(monitor, _) = &mut self.state
        {
            monitor.send(&Command::new("query-status", json!({})), now);
            self.signs.asked = Some(now);
        }
    }

    /// Asks whether its VM runs now. An answer to an earlier question is none to this one.
    pub fn ask_whether_it_runs(&mut self, now: Instant) {
        if let State::There(monitor, _) = &mut self.state {
            self.signs.question = Some(monitor.send(&Command::new("query-status", json!({})), now));
            self.signs.runs = false;
        }
    }

    /// For how long it has said and written nothing although it was asked. `None`: it was not asked.
    pub fn silent_for(&self, now: Instant) -> Option<Duration> {
        let Signs { heard, asked, wrote, .. } = self.signs;
        let asked = asked.filter(|asked| heard.is_none_or(|heard| heard < *asked))?;
        Some(now - heard.max(wrote).unwrap_or(asked))
    }

    /// It has written into the stream of copies.
    pub fn wrote(&mut self, now: Instant) {
        self.signs.wrote = Some(now);
    }

    /// When it has last said something.
    pub fn spoke_at(&self) -> Option<Instant> {
        self.signs.heard
    }

    /// Asks for a copy at once.
    pub fn hurry(&mut self) {
        if let Some(colo) = &mut self.colo {
            colo.checkpoint();
        }
    }

    /// Marks the run as an owner's.
    pub fn mark(&mut self, run: u64, now: Instant) {
        if let Some(monitor) = self.monitor() {
            monitor.send(&mark(run, false), now);
        }
    }

    /// Ends it. `has_lost`: its VM is another host's, so it is killed if it does not end. A VM that is over may still write its disks.
    pub fn end(&mut self, has_lost: bool, now: Instant) {
        let who = match self.monitor() {
            Some(monitor) => {
                monitor.send(&Command::new("quit", json!({})), now);
                self.signs.is_ordered = true;
                std::mem::take(&mut self.signs.who)
            }
            None => std::mem::take(&mut self.last),
        };
        self.ending = has_lost.then(|| Ending::new(who, now));
    }

    /// Sees to a QEMU that was told to end.
    fn watch_end(&mut self, now: Instant) {
        let is_connected = !matches!(self.state, State::Away(_));
        let Some(ending) = &mut self.ending else { return };
        if ending.is_over(is_connected) {
            self.ending = None;
        } else {
            self.news.extend(ending.turn(now).map(QemuNews::Stays));
        }
    }

    /// Sends and receives what is possible now.
    pub fn turn(&mut self, now: Instant) {
        self.watch_end(now);
        let failed = match &mut self.state {
            State::Away(again) => {
                if now >= *again
                    && !self.connect(now)
                    && let Some(death) = self.owes.take()
                {
                    self.news.push_back(QemuNews::Gone(death));
                }
                return;
            }
            State::Asks(monitor, inquiry) => {
                let turned = carried(monitor, Some(&mut **inquiry), None, &mut self.signs, now);
                match inquiry.result().cloned() {
                    Some(Ok(facts)) => self.found(facts, now),
                    Some(Err(why)) => return self.lose(why, now),
                    None => {}
                }
                turned
            }
            State::Marks(monitor, facts, mark) => {
                let turned = carried(monitor, Some(mark), None, &mut self.signs, now);
                match mark.take() {
                    Some(Ok(marked)) => {
                        self.news.push_back(QemuNews::There(facts.clone(), marked));
                        let there = std::mem::replace(&mut self.state, State::Away(now));
                        if let State::Marks(monitor, ..) = there {
                            self.state = State::There(monitor, None);
                        }
                        self.why_not = None;
                    }
                    Some(Err(why)) => return self.lose(why, now),
                    None => {}
                }
                turned
            }
            State::There(monitor, inquiry @ Some(_)) => {
                let colo = self.colo.as_mut();
                let turned = carried(monitor, inquiry.as_deref_mut(), colo, &mut self.signs, now);
                if let Some(found) = inquiry.as_ref().and_then(|inquiry| inquiry.result().cloned()) {
                    *inquiry = None;
                    self.news.push_back(QemuNews::Facts(found.map(Box::new)));
                }
                turned
            }
            State::There(monitor, None) => {
                let turned = carried(monitor, self.colo.as_mut(), None, &mut self.signs, now);
                while let Some(news) = self.colo.as_mut().and_then(Colo::news) {
                    // A copy that was adopted is to end, or its daemon was replaced.
                    if matches!(news, News::Adopted) && !self.keeps_on {
                        self.colo.iter_mut().for_each(|colo| colo.fail_over(now));
                    }
                    self.news.push_back(QemuNews::Colo(news));
                }
                self.news.extend(std::mem::take(&mut self.signs.runs).then_some(QemuNews::Runs));
                turned
            }
        };
        match failed {
            Ok(()) => {}
            Err(error) if matches!(error.cause, Cause::Closed) => {
                self.away(error.to_string(), now);
                // A QEMU that lives listens again: only the connection was closed, by what stands between or by an administrator.
                if self.connect(now) {
                    self.news.push_back(QemuNews::Lost(error.to_string()));
                } else if let Some(death) = self.owes.take() {
                    self.news.push_back(QemuNews::Gone(death));
                }
            }
            Err(error) => self.lose(error.to_string(), now),
        }
    }

    fn lose(&mut self, why: String, now: Instant) {
        self.away(why.clone(), now);
        self.news.push_back(QemuNews::Lost(why));
    }

    fn away(&mut self, why: String, now: Instant) {
        if let State::There(..) = self.state {
            self.owes = Some(if self.signs.is_ordered { Death::Ordered } else { Death::Sudden });
        }
        (self.state, self.colo) = (State::Away(now + AGAIN), None);
        self.last = std::mem::take(&mut self.signs).who;
        self.ending.take_if(|ending| ending.is_over(false));
        self.why_not = Some(why);
    }

    /// Returns whether somebody listens.
    fn connect(&mut self, now: Instant) -> bool {
        match Stream::connect(&Place::Unix(self.path.clone())) {
            Ok((Stream::Unix(socket), _)) => {
                let mut monitor = Monitor::new(socket.into(), self.path.display().to_string(), Limits::default(), now);
                self.signs.who = Identity::ask(&mut monitor, now);
                self.state = State::Asks(monitor, Box::new(Inquiry::new(INQUIRY)));
                true
            }
            Ok(_) => false,
            Err(error) => {
                self.state = State::Away(now + AGAIN);
                let path = self.path.display();
                let hint = format!("start its QEMU with -qmp unix:{path},server=on,wait=off");
                self.why_not = Some(format!("QMP socket {path}: {error}; {hint}"));
                false
            }
        }
    }

    fn found(&mut self, facts: Facts, now: Instant) {
        let as_twin = facts.status == "inmigrate";
        let fresh = Mark::new(random(), as_twin, INQUIRY);
        if let State::Asks(monitor, _) = std::mem::replace(&mut self.state, State::Away(now)) {
            self.state = State::Marks(monitor, Box::new(facts), fresh);
        }
    }
}

fn settings(delay: Duration) -> Settings {
    let delay_ms = u32::try_from(delay.as_millis()).unwrap_or(u32::MAX);
    Settings { uri: format!("fd:{STREAM}"), delay_ms, limits: StepLimits::default() }
}

/// One turn of a dialogue over its monitor, to which another one listens.
fn carried(
    monitor: &mut Monitor,
    dialogue: Option<&mut impl Dialogue>,
    mut listener: Option<&mut Colo>,
    signs: &mut Signs,
    now: Instant,
) -> Result<(), nicety_qmp::Error> {
    let turned = monitor.turn(now);
    let mut dialogue = dialogue;
    while let Some(item) = monitor.next() {
        signs.heard = Some(now);
        signs.who.hear(&item, monitor, now);
        if matches!(&item, Item::Event { name, .. } if name == "SHUTDOWN") {
            signs.is_ordered = true;
        }
        if let Item::Answer { id, result } = &item
            && signs.question.take_if(|question| question == id).is_some()
        {
            signs.runs = result.as_ref().is_ok_and(|status| status["running"] == true);
        }
        if let Some(listener) = &mut listener {
            listener.hear(&item, now);
        }
        if let Some(dialogue) = &mut dialogue {
            dialogue.hear(&item, now);
        }
    }
    turned?;
    let mut has_sent = false;
    while let Some(command) = dialogue.as_mut().and_then(|dialogue| dialogue.command(now)) {
        let id = monitor.send(&command, now);
        dialogue.iter_mut().for_each(|dialogue| dialogue.sent(id));
        has_sent = true;
    }
    // A `quit`, or a mark, may wait as well.
    if has_sent || monitor.events().contains(PollFlags::OUT) { monitor.turn(now) } else { Ok(()) }
}
