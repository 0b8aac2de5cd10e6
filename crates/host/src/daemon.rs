//! `[daemon]`: its workers, its control socket, its files and its page.

use std::path::{Path, PathBuf};

use super::access::{self, AccessConfig, CONTROL_KEYS, access};
use super::form::{Form, words};
use super::page::{PAGE, PageAddress, page};
use super::paths::{self, Paths};
use super::walk::{Key, Kind, Section, Walk};

/// Most workers of a daemon.
pub(super) const WORKERS_MAX: u32 = 64;
/// Whether the daemon's threads are confined.
const SANDBOX: [(&str, bool); 2] = [("on", true), ("off", false)];
/// Whether workers poll all the time.
const BUSY_POLL: [(&str, bool); 2] = [("adaptive", false), ("always", true)];
/// Most folders for live changes.
const FOLDERS_MAX: usize = 64;

/// `[daemon]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonConfig {
    /// Threads that serve ports.
    pub workers: usize,
    /// Whether they never sleep: each has a processor of its own.
    pub always_polls: bool,
    /// The control socket, if the file names one. [`Host::control`](super::Host::control) knows the default.
    pub control: Option<PathBuf>,
    /// The accounts that may connect to it.
    pub access: AccessConfig,
    /// The group whose members may also make changes, by name or number.
    pub change_group: Option<String>,
    /// The file that keeps live changes, if the file names one. [`Host::state`](super::Host::state) knows the default.
    pub state: Option<PathBuf>,
    /// Whether `nicety ports` and `attach` find the daemon without its host file.
    pub listed: bool,
    /// Whether the daemon's threads are confined.
    pub sandbox: bool,
    /// Folders that live changes may use, besides those that the file names elsewhere.
    pub folders: Vec<PathBuf>,
    /// The address of the page about the daemon. `None`: there is no page.
    pub page: Option<PageAddress>,
}

impl Default for DaemonConfig {
    fn default() -> Self {
        Self {
            workers: 1,
            always_polls: false,
            control: None,
            access: AccessConfig::default(),
            change_group: None,
            state: None,
            listed: true,
            sandbox: true,
            folders: Vec::new(),
            page: None,
        }
    }
}

pub(super) static DAEMON: Kind = Kind {
    heading: "[daemon]",
    name: "daemon",
    keys: &[
        Key::new("workers", Form::Number(1, WORKERS_MAX), "a whole number from 1 to 64"),
        Key::new("busy_poll", Form::Words(&words(&BUSY_POLL)), "\"adaptive\" or \"always\""),
        Key::new("control", Form::Socket, "a path of at most 107 bytes"),
        CONTROL_KEYS[0],
        CONTROL_KEYS[1],
        CONTROL_KEYS[2],
        CONTROL_KEYS[3],
        Key::new("control_change_group", Form::Account, "a group's name or number, whose members may also change"),
        Key::new("state", Form::Path, "a path, of no other file or socket here"),
        Key::new("listed", Form::Flag, "true or false"),
        Key::new("sandbox", Form::Words(&words(&SANDBOX)), "\"on\" or \"off\""),
        Key::new("folders", Form::Paths(FOLDERS_MAX), "paths of at most 64 folders, with commas between them"),
        PAGE,
    ],
    several: false,
};

pub(super) fn daemon(walk: &mut Walk, section: Section<'_>, dir: &Path, paths: &mut Paths) -> DaemonConfig {
    let workers = walk.integer(section, "workers").map_or(1, |found| found.value as usize);
    let always_polls = walk.word(section, "busy_poll", &BUSY_POLL).is_some_and(|found| found.value);
    let control = paths.socket(walk, section, "control", dir);
    let listed = walk.boolean(section, "listed").is_none_or(|found| found.value);
    let state = paths.state(walk, section, dir);
    let change_group = access::name(walk, section, "control_change_group");
    let sandbox = walk.word(section, "sandbox", &SANDBOX).is_none_or(|found| found.value);
    let folders = paths::folders(walk, section, dir, FOLDERS_MAX);
    let access = access(walk, section, &access::CONTROL);
    let page = page(walk, section, dir, paths);
    DaemonConfig { workers, always_polls, control, access, change_group, state, listed, sandbox, folders, page }
}
