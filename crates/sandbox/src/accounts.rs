//! The thread that looks accounts up once the process is confined to its folders. Landlock's rules name files, not paths: adduser(8)
//! replaces /etc/group by a file that no rule names. So this thread reads all of /etc, and does nothing else. It reads as a user who
//! owns no file: /etc/shadow stays closed to it, also where the daemon runs as root.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel, sync_channel};

use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use rustix::process::{DumpableBehavior, dumpable_behavior, geteuid, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_thread_groups};
use tracing::warn;

use crate::{Folders, Grant, Kind, enter, starter};

/// The passwords' hashes.
const SHADOW: &str = "/etc/shadow";

type Act = Box<dyn FnOnce() + Send>;

static QUEUE: OnceLock<Sender<Act>> = OnceLock::new();

/// Starts the thread. Call it before the starter is confined to its folders. `abi` is as for [`crate::confine`].
pub(crate) fn begin(abi: u8) -> io::Result<()> {
    if QUEUE.get().is_some() {
        return Ok(());
    }
    let (queue, asked) = channel::<Act>();
    let (report, confined) = sync_channel(1);
    let work = move || {
        let done = confine_to_etc(Kind::Accounts, &[], abi);
        let is_confined = done.is_ok();
        let _caller_waits = report.send(done);
        if is_confined {
            asked.into_iter().for_each(|act| act());
        }
    };
    starter::spawn("accounts".to_owned(), 0, Box::new(work))?;
    confined.recv().unwrap_or_else(|_| Err(io::Error::other("a thread ended before it was confined")))?;
    let _the_first_holds = QUEUE.set(queue);
    Ok(())
}

/// Confines this thread to reading /etc, and these folders where they are.
pub(crate) fn confine_to_etc(kind: Kind, more: &[&str], abi: u8) -> io::Result<()> {
    let mut folders = Folders::new();
    folders.grant(PathBuf::from("/etc"), Grant::Read);
    more.iter().for_each(|folder| folders.grant_if_there(*folder, Grant::Read));
    let _lacks = folders.rules(abi)?.confine_this_thread()?;
    give_up_files_of_root();
    enter(kind)
}

/// The user and group nobody: the kernel's own default for users without a number (proc(5), overflowuid).
const NOBODY: u32 = 65_534;

/// Gives up the capabilities of this thread, and if it is root's, root's rights to files, as far as the system lets it: the package's
/// unit refuses privileged calls, and runs the daemon as a user of its own. The thread's filter lets it take nothing back.
///
/// Not by setresuid(2): nobody's processes could then send signals to this thread, or trace it. setfsuid(2) changes its rights to files
/// alone.
fn give_up_files_of_root() {
    if geteuid().is_root() {
        // A change of credentials forbids core dumps of the whole process (proc(5), /proc/sys/fs/suid_dumpable).
        let dumpable = dumpable_behavior();
        // In a user namespace nobody may have no number, and groups cannot be changed.
        let _refused = set_thread_groups(&[]);
        setfsgid(Gid::from_raw(NOBODY));
        setfsuid(Uid::from_raw(NOBODY));
        if dumpable == Ok(DumpableBehavior::Dumpable) {
            let _no_core_dumps_then = set_dumpable_behavior(DumpableBehavior::Dumpable);
        }
    }
    let none = CapabilitySet::empty();
    let _refused = set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none });
    if File::open(SHADOW).is_ok() {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        warn!("the thread {name} may read {SHADOW}: run the daemon as a user who may not");
    }
}

/// Has this done as [`look_up`] does, and does not wait: a database may be a service that answers late, or never. What comes after it
/// waits for it.
///
/// # Errors
/// No thread could be started for it.
pub fn look_up_later(act: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let ended = || io::Error::other("the thread that looks accounts up has ended");
    match QUEUE.get() {
        Some(queue) => queue.send(Box::new(|| caught(act))).map_err(|_| ended()),
        None => crate::spawn(Kind::ControlChange, "accounts", 0, act).map(drop),
    }
}

/// A panic must not end the thread: the next one asks it too.
fn caught(act: impl FnOnce()) {
    let _panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
}

/// Does what needs the databases of users and groups, and waits for it. `None` if it panicked, or if no thread could be started.
pub fn look_up<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let Some(queue) = QUEUE.get() else { return crate::aside(act) };
    let (send, receive) = sync_channel(1);
    let act = move || {
        let _waits = send.send(act());
    };
    queue.send(Box::new(|| caught(act))).ok()?;
    receive.recv().ok()
}
