//! Changes of a running daemon: by a new host file, or of one entry of it.
//!
//! Every change makes a whole new host file. It is checked like any host file and compared with the running one. The differences
//! are applied port by port. There is one change at a time, and it affects only the entries that its plan names. The running
//! state is kept in the [state file](state), and by the [keeper](texts). A change may [wait to be confirmed](confirm). A few are made
//! beside it (`live/beside.rs`).

mod beside;
mod blocked;
pub mod capture;
pub mod confirm;
mod fabric;
mod origin;
pub mod plan;
pub mod state;
mod steps;
pub mod texts;

use std::borrow::Cow;
use std::convert::Infallible;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError, Weak};
use std::time::{Duration, Instant};

use nicety_host::{Document, FabricGroups, Host, HostErrors, List, PortConfig, did_you_mean, in_one_line};
use nicety_keeper::KeptBy;
use serde::{Deserialize, Serialize};
use signal_hook::iterator::Handle;
use toml::{Table, Value};
use tracing::{info, warn};
use utoipa::ToSchema;

use crate::daemon::{Daemon, RestartError};
use crate::observe::report::PortReport;
use crate::serve::handover::give::{self, UpgradeError};
use crate::serve::handover::{Offer, Offering, Upgraded};
use crate::serve::{Reconciled, ServeError, Steps, reconcile};
use confirm::{Last, Shown, Terms, Waiting, WaitingChange};
use plan::{Change, Plan};
use state::{StateFile, Unconfirmed};
use steps::steps;
use texts::Texts;

/// Time in which an upgrade is given up by a daemon that is told to end: it may just be handing over, and each step has a limit.
const GIVES_UP: Duration = Duration::from_secs(10);

/// The losses that a change may cause to attached VMs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Consent {
    /// None.
    #[default]
    Nothing,
    /// The losses in these lines of a plan.
    These(Vec<String>),
    /// All losses in the plan.
    All,
}

impl Consent {
    fn covers(&self, change: &Change) -> bool {
        match self {
            Self::Nothing => false,
            Self::These(lines) => lines.contains(&change.to_string()),
            Self::All => true,
        }
    }
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Changed {
    /// Changes that were made.
    pub plan: Plan,
    /// Changed keys of the host file that take effect when the daemon is restarted, such as `daemon.workers`. Those of earlier
    /// changes are included.
    pub after_restart: Vec<String>,
    /// Reason why the change will be lost at a restart of the daemon, or when it is killed. `null`: it will not.
    pub not_kept: Option<String>,
    /// Closed ports with their last counters.
    pub closed: Vec<PortReport>,
    /// The change waits to be confirmed. `null`: it stays.
    #[serde(default)]
    pub waiting: Option<WaitingChange>,
}

/// Reasons why nothing was changed, or only a part.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// There is no entry of this name. The last is a hint: the similar name, or all that there are.
    #[error("there is no {0} {1:?}{2}")]
    Missing(List, String, String),
    /// There is already an entry of this name.
    #[error("there is {0} {1:?} already")]
    Exists(List, String),
    /// The result is not a valid host file.
    #[error("{}", .0.list.iter().map(|error| error.to_string()).collect::<Vec<_>>().join("\n"))]
    Wrong(HostErrors),
    /// VMs would lose something, and the caller has not agreed to that.
    #[error("this would cut VMs off, and nothing was done: {}", lines(.0))]
    CutsOff(Vec<Change>),
    /// The change cannot be made.
    #[error("nothing was done: {0}")]
    Refused(String),
    /// This machine lacks something that the change needs.
    #[error("nothing was done: {0}")]
    Lacking(String),
    /// Another change waits to be confirmed. A sentence.
    #[error("nothing was done: {0}")]
    Waits(String),
    /// No change waits to be confirmed. What became of the last one.
    #[error("no change waits to be confirmed{0}")]
    NothingWaits(String),
    /// The change that waits cannot be undone.
    #[error(
        "the change was not undone, and stands: {0}; `nicety confirm` keeps it, `nicety confirm --undo` tries again"
    )]
    NotUndone(String),
    /// The change that waited was undone, and something that was there before does not work.
    #[error("the change was undone, and not all works: {0}; `nicety ports` says what")]
    UndoneBut(String),
    /// Only a part of the change was made.
    #[error("not all was done: {}{}", .why.join("; "), waits_too(.changed))]
    Halfway {
        /// The errors.
        why: Vec<String>,
        /// The changes that were made.
        changed: Box<Changed>,
    },
}

/// A sentence about the part of a change that was made, if it waits to be confirmed.
fn waits_too(changed: &Changed) -> String {
    changed.waiting.as_ref().map_or_else(String::new, |waiting| format!("; {waiting}"))
}

fn lines(changes: &[Change]) -> String {
    changes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Most names that an error lists.
const NAMES_SHOWN_MAX: usize = 16;

/// The error that a list has no entry of this name, with what the person may have meant.
fn missing(document: &Document, list: List, name: &str) -> ChangeError {
    let names = document.names_in(list);
    let other = List::ALL.into_iter().find(|other| document.has(*other, name));
    let hint = match (other, names.as_slice()) {
        (Some(List::Uplinks), _) => format!("; {name} is an uplink"),
        (Some(other), _) => format!("; {name} is a {other}"),
        (None, []) => "; there is none yet".to_owned(),
        (None, names) => match did_you_mean(name, names.iter().map(String::as_str)) {
            meant if meant.is_empty() && names.len() <= NAMES_SHOWN_MAX => {
                format!(" (there are: {})", names.join(", "))
            }
            meant => meant,
        },
    };
    ChangeError::Missing(list, name.to_owned(), hint)
}

/// The running configuration.
#[derive(Debug)]
struct Running {
    host: Host,
    /// The host file as it was last read.
    file: Host,
    /// The change by the host file that was undone last: no start serves the file while it says this.
    refused: Option<Unconfirmed>,
    /// The change that waits to be confirmed.
    waiting: Option<Waiting>,
    /// The last change that waited, and waits no more.
    last: Option<Last>,
}

/// The running daemon, its configuration and its state file.
#[derive(Debug)]
pub struct Live {
    daemon: Arc<Daemon>,
    path: PathBuf,
    state: StateFile,
    running: Mutex<Running>,
    /// Separate from `running`, so that readers do not wait for a change.
    after_restart: Mutex<Vec<String>>,
    /// The change that waits, for readers.
    shown: Shown,
    kept: Option<Mutex<Kept>>,
    /// Ends the process after another has taken over.
    end: OnceLock<Handle>,
    /// Another process has taken over.
    is_replaced: AtomicBool,
    /// The number of running captures.
    captures: Arc<AtomicUsize>,
}

/// The parts that an upgrade needs.
#[derive(Debug)]
struct Kept {
    by: KeptBy,
    /// The control socket.
    control: OwnedFd,
    /// The page's socket, if it is served.
    page: Option<OwnedFd>,
    /// The path of this program.
    program: PathBuf,
}

impl Live {
    /// Changes of a daemon that serves this host. `file` is the host file as it was read.
    pub fn new(daemon: Arc<Daemon>, host: Host, file: Host, state: StateFile) -> Self {
        let (path, refused) = (host.path.clone(), state.refused());
        Self {
            daemon,
            path,
            state,
            running: Mutex::new(Running { host, file, refused, waiting: None, last: None }),
            after_restart: Mutex::default(),
            shown: Shown::default(),
            kept: None,
            end: OnceLock::new(),
            is_replaced: AtomicBool::new(false),
            captures: Arc::default(),
        }
    }

    /// A keeper has started this daemon from this program, and can start the next one. `control` is the control socket, `page`
    /// the page's.
    #[must_use]
    pub fn with_keeper(mut self, by: KeptBy, control: OwnedFd, page: Option<OwnedFd>, program: PathBuf) -> Self {
        self.kept = Some(Mutex::new(Kept { by, control, page, program }));
        if let Err(why) = self.keep_texts(&self.running()) {
            warn!("if this daemon is killed, the next one reads the host file anew: {why}");
        }
        self
    }

    /// The daemon that follows this one if it is killed serves what runs now. Without a keeper nothing is done. The error is a sentence for a
    /// person.
    fn keep_texts(&self, running: &Running) -> Result<(), String> {
        let Some(holder) = self.daemon.holder() else { return Ok(()) };
        let (host, file, _) = running.confirmed();
        Texts::of(host, file).keep(holder, self.daemon.clock_origin_ns() + self.daemon.now_ns())
    }

    /// Closes this when another process serves, and the last client has its answer.
    pub(crate) fn ends_by(&self, handle: Handle) {
        let _already_set = self.end.set(handle);
    }

    /// Another process serves, and the last client has its answer: this process ends.
    pub fn end_handed_over(&self) {
        self.end.get().into_iter().for_each(Handle::close);
    }

    /// Replaces this daemon by a program; by its own path, if none is named. `stops` is called when nothing moves from now on, and
    /// again with false if this daemon goes on. Changes wait. One that waits to be confirmed is undone before. VMs of the ports `without` are not asked, and lose their connections.
    ///
    /// # Errors
    /// See [`UpgradeError`].
    pub fn upgrade(
        &self,
        program: Option<PathBuf>,
        without: &[String],
        stops: &dyn Fn(bool),
    ) -> Result<Upgraded, UpgradeError> {
        let kept = self.kept.as_ref().ok_or(UpgradeError::NotKept)?;
        let kept = match kept.try_lock() {
            Ok(kept) => kept,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(UpgradeError::UnderWay),
        };
        self.undo_for_upgrade().map_err(UpgradeError::Refused)?;
        // A change that has begun is finished first, and none begins.
        let running = self.running();
        let offer = Offer {
            path: self.path.clone(),
            file: running.file.document.text(),
            running: running.host.document.text(),
            origin_ns: self.daemon.clock_origin_ns(),
            ids: self.daemon.numbers(),
            groups: running.host.fabric_groups.as_ref().map(FabricGroups::text),
        };
        let program = program.unwrap_or_else(|| kept.program.clone());
        let page = kept.page.as_ref().map(|page| page.as_fd());
        let offering = Offering { offer: &offer, control: kept.control.as_fd(), page };
        let stops = |is_still: bool| {
            self.daemon.pause_fabric(is_still);
            stops(is_still);
        };
        let upgraded = give::upgrade(&kept.by, &program, &self.daemon, offering, without, &stops);
        if upgraded.as_ref().err().is_none_or(UpgradeError::stands_still) {
            self.is_replaced.store(true, Ordering::Relaxed);
            // Another process makes changes now: those that wait here never begin.
            let _never_released = (ManuallyDrop::new(running), ManuallyDrop::new(kept));
        }
        upgraded
    }

    /// This process is told to end: waits for an upgrade under way, which gives up unless the next daemon has taken over. True if it has.
    pub(crate) fn gives_up_upgrade(&self) -> bool {
        let Some(kept) = &self.kept else { return false };
        let end = Instant::now() + GIVES_UP;
        loop {
            if self.is_replaced.load(Ordering::Relaxed) {
                return true;
            }
            let is_under_way = matches!(kept.try_lock(), Err(TryLockError::WouldBlock));
            if !is_under_way || Instant::now() >= end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The running configuration, in which uplinks are blocked that the plane has blocked for a loop.
    fn running(&self) -> MutexGuard<'_, Running> {
        let mut running = self.running.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let loops = self.daemon.loops();
        if let Some(host) = blocked::with_loops(&running.host, &loops) {
            running.host = host;
        }
        if let Some(waiting) = &mut running.waiting
            && let Some(host) = blocked::with_own_loops(&waiting.host, loops)
        {
            waiting.host = host;
        }
        running
    }

    /// Reads the running host file. `None`: a change is being made, and this does not wait for it.
    pub fn try_host<T>(&self, read: impl FnOnce(&Host) -> T) -> Option<T> {
        match self.running.try_lock() {
            Ok(running) => Some(read(&running.host)),
            Err(TryLockError::Poisoned(poisoned)) => Some(read(&poisoned.into_inner().host)),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn weak_daemon(&self) -> Weak<Daemon> {
        Arc::downgrade(&self.daemon)
    }

    /// The daemon.
    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// The number of running captures. Who starts one counts it, and metrics report it wherever they are asked for.
    pub fn captures(&self) -> &Arc<AtomicUsize> {
        &self.captures
    }

    /// The host file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The running state as a host file.
    pub fn export(&self) -> String {
        self.running().host.document.text()
    }

    /// This key of the host file is not in force, and the log says why.
    pub fn is_not_in_force(&self, key: &str) {
        let mut all = self.after_restart.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !all.iter().any(|known| known == key) {
            all.push(key.to_owned());
        }
    }

    /// Keys that need a restart of the daemon.
    pub fn after_restart(&self) -> Vec<String> {
        self.after_restart.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    fn plan_of(&self, old: &Host, new: &Host) -> Plan {
        let views = self.daemon.views();
        let attached =
            |name: &str| views.iter().any(|view| view.spec.is_some() && view.name == name && view.state.attached);
        Plan::new(old, new, attached)
    }

    /// The changes that applying a host file would make.
    pub fn plan(&self, new: &Host) -> Plan {
        let running = self.running();
        let with_groups = new.with_fabric(running.host.fabric_groups.as_ref());
        let new = with_groups.as_ref().unwrap_or(new);
        let kept = origin::keep(&running.host, new.clone()).and_then(|kept| blocked::keep(&running.host, kept));
        self.plan_of(&running.host, kept.as_ref().unwrap_or(new))
    }

    /// Makes the daemon serve this host file: all of it or nothing, unless an unforeseeable error occurs. Ports with an origin stay.
    pub fn apply(&self, new: &Host, terms: impl Into<Terms>) -> Result<Changed, ChangeError> {
        let mut running = self.running();
        // Compare relative paths as absolute ones.
        let whole = self.understood(&running, &new.document.text())?;
        let with_origins = origin::keep(&running.host, whole.clone()).map_err(ChangeError::Wrong)?;
        let file = (new.path == self.path).then_some(whole);
        self.change(&mut running, with_origins, file, &terms.into())
    }

    /// Reads the host file again and applies it, unless that would cut off a VM. Logs the result.
    pub fn reload(&self) {
        nicety_sandbox::forget_refused_here();
        let path = self.path.display();
        let new = match Host::read(&self.path) {
            Ok(new) => new,
            Err(error) => {
                warn!("the host file was not applied, and nothing was changed: {}", in_one_line(&error));
                return;
            }
        };
        match self.apply(&new, &Consent::Nothing) {
            Ok(Changed { plan, .. }) if plan.is_empty() => info!("{path} says what runs: nothing was changed"),
            Ok(Changed { plan, not_kept, .. }) => {
                info!("{path} was applied: {}", lines(&plan.changes));
                if let Some(why) = not_kept {
                    warn!("what runs was not kept: {why}");
                }
            }
            Err(error @ ChangeError::CutsOff(_)) => {
                warn!("{path} was not applied: {error}; `nicety apply {path}` asks");
            }
            Err(error) => warn!("{path} was not applied: {error}"),
        }
    }

    /// Adds a port, a group, an uplink, a team, a mirror, an export of flows or a class. Its relative paths start at the host file's folder.
    pub fn add(&self, list: List, entry: Table, terms: impl Into<Terms>) -> Result<Changed, ChangeError> {
        let mut running = self.running();
        let is_for_vm = beside::is_for_vm(list, &entry);
        let edit = |host: &Host| match list.name_of(&entry) {
            Some(name) if host.document.has(list, &name) => Err(ChangeError::Exists(list, name)),
            _ => host.changed(&host.document.with(list, entry.clone(), self.folder())).map_err(ChangeError::Wrong),
        };
        self.change_one(&mut running, is_for_vm, &terms.into(), edit)
    }

    /// Removes a port, an empty group, an uplink, a mirror, an export of flows, a class, or a team with its uplinks.
    pub fn remove(&self, list: List, name: &str, terms: impl Into<Terms>) -> Result<Changed, ChangeError> {
        let mut running = self.running();
        let document = &running.host.document;
        if !document.has(list, name) {
            return Err(missing(document, list, name));
        }
        if list == List::Groups
            && let Some(members @ [_, ..]) = document.members(name).as_deref()
        {
            let members = members.join(", ");
            return Err(ChangeError::Refused(format!(
                "port group {name} is in use, by {members}: give them another first"
            )));
        }
        let is_of = |port: &&PortConfig| port.function.as_ref().is_some_and(|function| function.card == name);
        if list == List::Cards {
            let functions: Vec<&str> = running.host.ports.iter().filter(is_of).map(|port| port.name.as_str()).collect();
            if !functions.is_empty() {
                return Err(ChangeError::Refused(format!(
                    "card {name} is in use, by {}: remove these first, or take them off it",
                    functions.join(", ")
                )));
            }
        }
        let is_for_vm = beside::is_for_vm(list, &document.entry(list, name));
        let edit = |host: &Host| match host.document.has(list, name) {
            true => host.changed(&host.document.without(list, name)).map_err(ChangeError::Wrong),
            false => Ok(host.clone()),
        };
        self.change_one(&mut running, is_for_vm, &terms.into(), edit)
    }

    /// Changes values of a port, a group, an uplink, a team, a mirror, an export of flows or a class. A key without a value gets its default.
    pub fn set(
        &self,
        list: List,
        name: &str,
        values: &[(String, Option<Value>)],
        terms: impl Into<Terms>,
    ) -> Result<Changed, ChangeError> {
        let values = |host: &Host| match list {
            List::Ports => Ok(nicety_host::with_usual_priority(&host.document.entry(list, name), values)),
            _ => Ok(blocked::said(list, values)),
        };
        self.set_by(list, name, values, &terms.into())
    }

    /// Changes terms that a port has of its own inside a class: `shares`, `reservation`, `limit`. One without a value is that of the
    /// class's other ports from now on.
    pub fn set_port_terms(
        &self,
        class: &str,
        port: &str,
        values: &[(String, Option<Value>)],
        terms: impl Into<Terms>,
    ) -> Result<Changed, ChangeError> {
        let values = |host: &Host| match host.port(port) {
            Some(_) => Ok(nicety_host::with_port_terms(&host.document.entry(List::Classes, class), port, values)),
            None => Err(missing(&host.document, List::Ports, port)),
        };
        self.set_by(List::Classes, class, values, &terms.into())
    }

    /// Changes values of an entry that depend on what runs.
    fn set_by(
        &self,
        list: List,
        name: &str,
        values: impl Fn(&Host) -> Result<Vec<(String, Option<Value>)>, ChangeError>,
        terms: &Terms,
    ) -> Result<Changed, ChangeError> {
        let mut running = self.running();
        let document = &running.host.document;
        if !document.has(list, name) {
            return Err(missing(document, list, name));
        }
        let is_for_vm = beside::is_for_vm(list, &document.entry(list, name));
        let edit = |host: &Host| {
            if !host.document.has(list, name) {
                return Ok(host.clone());
            }
            let new = host.document.with_values(list, name, &values(host)?, self.folder());
            if !new.has(list, name) {
                let why = format!("a {list} keeps its name, {name}: remove it, and add another");
                return Err(ChangeError::Refused(why));
            }
            host.changed(&new).map_err(ChangeError::Wrong)
        };
        self.change_one(&mut running, is_for_vm, terms, edit)
    }

    /// Changes one entry. A change of a port that comes and goes with a VM is made also while another one waits.
    fn change_one(
        &self,
        running: &mut Running,
        is_for_vm: bool,
        terms: &Terms,
        edit: impl Fn(&Host) -> Result<Host, ChangeError>,
    ) -> Result<Changed, ChangeError> {
        if is_for_vm {
            return self.change_beside(running, terms, edit);
        }
        let new = edit(&running.host)?;
        self.change(running, new, None, terms)
    }

    /// Notes that the host file was written. Changes only the saved live changes. Returns the remaining differences.
    pub fn saved(&self, file: &Host) -> Result<Plan, ChangeError> {
        let mut running = self.running();
        if file.path != self.path {
            return Err(ChangeError::Refused(format!("this daemon serves {}", self.path.display())));
        }
        self.is_free(&running)?;
        running.file = self.understood(&running, &file.document.text())?;
        running.refused = None;
        if let Err(why) = self.keep_texts(&running) {
            warn!(
                "if this daemon is killed, the next one takes the host file that was written for an unapplied one: {why}"
            );
        }
        let kept = self.state.keep(&running.file, &running.host, &[]);
        kept.map_err(|error| ChangeError::Lacking(error.to_string()))?;
        Ok(self.plan_of(&running.host, &running.file))
    }

    /// Restarts a failed port.
    pub fn restart(&self, name: &str) -> Result<(), RestartError> {
        // Excludes other changes.
        let running = self.running();
        let steps = Steps { restart: vec![name.to_owned()], ..Steps::default() };
        let fails = |error| match error {
            ServeError::Port(error) => Err(error),
            _no_other_step => Ok(()),
        };
        reconcile(&self.daemon, Cow::Borrowed(&running.host), steps, fails).map(drop)
    }

    /// Keeps what runs after the plane has blocked an uplink.
    pub fn keep_loops(&self) {
        let running = self.running();
        if let Some(why) = self.unkept(&running) {
            warn!("an uplink was blocked, and that is not kept: {why}");
        }
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// A host file in place of the running one, with the groups of the fabric that are in force.
    fn understood(&self, running: &Running, text: &str) -> Result<Host, ChangeError> {
        Host::parse_with(text, &self.path, running.host.fabric_groups.as_ref()).map_err(ChangeError::Wrong)
    }

    /// Changes the running configuration to `new`, unless another change waits. `file`: the daemon's host file says this now.
    fn change(
        &self,
        running: &mut Running,
        new: Host,
        file: Option<Host>,
        terms: &Terms,
    ) -> Result<Changed, ChangeError> {
        self.is_free(running)?;
        self.make(running, new, file, None, terms)
    }

    /// The same. `confirmed`: what an undo of the change that waits is to bring back from now on.
    fn make(
        &self,
        running: &mut Running,
        new: Host,
        file: Option<Host>,
        confirmed: Option<Host>,
        terms: &Terms,
    ) -> Result<Changed, ChangeError> {
        let new = blocked::keep(&running.host, new).map_err(ChangeError::Wrong)?;
        let plan = self.plan_of(&running.host, &new);
        let against: Vec<Change> = plan.cuts_off().filter(|change| !terms.consent.covers(change)).cloned().collect();
        if !against.is_empty() {
            return Err(ChangeError::CutsOff(against));
        }
        let steps = steps(&plan, &running.host, &new, self.daemon.opener().map(AsRef::as_ref))?;
        let confirm = terms.confirm.as_ref().filter(|_| !plan.is_empty());
        let waiting = confirm.map(|confirm| self.begin_to_wait(running, confirm, &plan, file.as_ref())).transpose()?;
        let mut why = Vec::new();
        let Ok::<_, Infallible>(Reconciled { host, closed, .. }) =
            reconcile(&self.daemon, Cow::Owned(new), steps, |error| {
                why.push(error.to_string());
                Ok(())
            });
        let (host, closed) = (host.into_owned(), closed.iter().map(PortReport::of).collect());
        blocked::log(&running.host, &host);
        running.host = host;
        if let Some(file) = file {
            running.file = file;
            running.refused = None;
        }
        if let (Some(waits), Some(confirmed)) = (&mut running.waiting, confirmed) {
            waits.host = beside::opened(confirmed, &waits.host, &running.host);
        }
        let (waiting, not_kept) = match waiting {
            Some(waiting) => (Some(self.waits(running, waiting)), None),
            // Also if only a part of the change was made.
            None => (None, self.unkept(running)),
        };
        let changed = Changed { after_restart: self.note_after_restart(&plan), plan, not_kept, closed, waiting };
        if why.is_empty() { Ok(changed) } else { Err(ChangeError::Halfway { why, changed: Box::new(changed) }) }
    }

    /// All keys that need a restart, those of this plan included.
    fn note_after_restart(&self, plan: &Plan) -> Vec<String> {
        let mut all = self.after_restart.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for key in plan.after_restart() {
            if !all.contains(&key) {
                all.push(key);
            }
        }
        all.clone()
    }

    /// Saves what a start of this daemon is to serve. Returns the reason if it will be lost.
    fn unkept(&self, running: &Running) -> Option<String> {
        let words = |error| format!("{error}{}", nicety_sandbox::refused_here());
        let at_keeper = self.keep_texts(running).err().map(|why| format!("if the daemon is killed: {why}"));
        let (host, file, unconfirmed) = running.confirmed();
        let in_file = self.state.keep(file, host, &unconfirmed).err().map(words);
        let lacks: Vec<String> = at_keeper.into_iter().chain(in_file).collect();
        (!lacks.is_empty()).then(|| lacks.join("; "))
    }
}
