//! The sandbox of the process itself: a guest that broke out of its adapter into a thread of the daemon finds little that this
//! thread may ask of the kernel.
//!
//! - **Calls** (seccomp(2)): each [`Kind`] of thread has a list of system calls, and makes no others (`calls.rs`). A refused call
//!   fails with EPERM: the code's own error path ends the port or the request. The log names the thread and the call, once for each
//!   kind of thread and call.
//! - **Folders** (landlock(7)): threads that may open files reach only the [folders](Folders) that the host file names.
//!
//! A thread inherits its parent's filters, so a worker could not start a thread of another kind. One thread, the starter, starts all
//! of them ([`spawn`]). Filters are for one thread each; SECCOMP_FILTER_FLAG_TSYNC would give all threads the same.
//!
//! The sandbox is off until [`begin`]: a library's user, such as a test, has none unless it asks.
//!
//! `unsafe` lives in `signal.rs`: the handler of SIGSYS.
#![deny(unsafe_code)]

mod accounts;
mod calls;
mod folders;
mod names;
mod signal;
mod starter;

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use seccompiler::BpfProgram;

pub use accounts::{look_up, look_up_later};
pub use folders::{Folders, Grant, Granted, NotGranted, granted, kernel_lacks};
pub use names::spawn_for_names;
pub use signal::{Refusal, forget_refused_here, refused_here};
pub use starter::ProcFile;

/// The kinds of threads, as in ARCHITECTURE.md, *Threads*. Each has its own list of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Serves ports.
    Worker,
    /// Maps and unmaps the memory of a vfio-user port's VMM.
    Memory,
    /// Serves a vhost-user port's front end.
    Vhost,
    /// Like [`Kind::Vhost`], for a port that connects to its front end.
    VhostConnect,
    /// Serves the control socket.
    Control,
    /// Makes a change.
    ControlChange,
    /// Frees memory that other threads let go.
    Releasing,
    /// Closes descriptors that VMMs have sent.
    Closing,
    /// Closes a connection to a VMM.
    Farewell,
    /// Writes traces.
    Traces,
    /// Writes a capture file.
    Capture,
    /// Reports to the service manager.
    Supervision,
    /// Writes the log.
    Log,
    /// The process's first thread, once everything has started. It reloads the host file.
    Main,
    /// Starts all other threads, and logs refused calls.
    Starter,
    /// Looks users and groups up.
    Accounts,
    /// Protects a VM, or accepts connections of other daemons.
    Tolerance,
    /// Looks names of hosts up.
    Names,
    /// Keeps a VM's lease in a file.
    LeaseFile,
    /// Keeps a VM's lease in etcd.
    LeaseEtcd,
    /// Agrees with the other hosts of a fabric by etcd.
    Fabric,
    /// Exports flows to collectors.
    Flows,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 22] = [
        Self::Worker,
        Self::Memory,
        Self::Vhost,
        Self::VhostConnect,
        Self::Control,
        Self::ControlChange,
        Self::Releasing,
        Self::Closing,
        Self::Farewell,
        Self::Traces,
        Self::Capture,
        Self::Supervision,
        Self::Log,
        Self::Main,
        Self::Starter,
        Self::Accounts,
        Self::Tolerance,
        Self::Names,
        Self::LeaseFile,
        Self::LeaseEtcd,
        Self::Fabric,
        Self::Flows,
    ];

    /// Whether threads of this kind may open files. [`Folders`] confine them. Those of [`Kind::LeaseFile`] open files in one folder only, which
    /// does not count here.
    pub fn opens(self) -> bool {
        matches!(self, Self::ControlChange | Self::Main | Self::Starter | Self::Accounts | Self::Names)
    }
}

thread_local! {
    /// The kind of this thread, if it has entered the sandbox.
    static KIND: Cell<Option<Kind>> = const { Cell::new(None) };
}

/// Turns the sandbox on: from now on, threads that [`spawn`] starts and threads that [`enter`] are confined. Starts the starter
/// thread. Call it before other threads start. A second call does nothing.
///
/// # Errors
/// This kernel has no seccomp filters, or the starter thread cannot be started: the sandbox stays off.
pub fn begin() -> io::Result<()> {
    signal::is_supported()?;
    // rustix reads the auxiliary vector when it is first asked for it, from a file or by a call that no confined thread may make.
    let _page = rustix::param::page_size();
    starter::begin()
}

/// Whether confined threads make no sockets at paths.
static SOCKETS_ELSEWHERE: AtomicBool = AtomicBool::new(false);

/// Another process makes sockets at paths for confined threads, which may not from now on. Call it before [`begin`].
pub fn sockets_are_made_elsewhere() {
    SOCKETS_ELSEWHERE.store(true, Ordering::Relaxed);
}

pub(crate) fn makes_sockets() -> bool {
    !SOCKETS_ELSEWHERE.load(Ordering::Relaxed)
}

/// Whether this thread is confined.
pub fn is_confined_here() -> bool {
    KIND.get().is_some()
}

/// Turns the sandbox on for a test program: a refused call ends the process, with the call's name on stderr.
#[doc(hidden)]
pub fn begin_for_tests() {
    // With the variable a run finds all that a list lacks: strace -f -e signal=SIGSYS.
    if std::env::var_os("NICETY_TEST_GOES_ON").is_none() {
        signal::abort_on_refusal();
    }
    if let Err(why) = begin() {
        eprintln!("without the sandbox: {why}");
    }
}

/// Whether the sandbox is on.
pub fn is_on() -> bool {
    starter::is_on()
}

/// The system calls that confined threads of any kind may make, by name: a service manager's filter must have them all.
///
/// # Errors
/// The lists cannot be compiled.
pub fn calls() -> io::Result<std::collections::BTreeSet<String>> {
    calls::all().map_err(io::Error::other)
}

/// Confines this thread to the calls of its kind, for ever. Does nothing while the sandbox is off.
///
/// # Errors
/// The kernel refused the filter. The thread must end: it may do more than its kind, or less. The error names it, and the remedy.
pub fn enter(kind: Kind) -> io::Result<()> {
    if !is_on() || KIND.get().is_some() {
        return Ok(());
    }
    signal::name_this_thread(kind);
    KIND.set(Some(kind));
    let confined = programs(kind).and_then(|programs| {
        programs.iter().try_for_each(|program| seccompiler::apply_filter(program)).map_err(io::Error::other)
    });
    confined.map_err(|why| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("main");
        io::Error::other(format!("the thread {name} cannot be confined to its system calls (seccomp): {why}; {REMEDY}"))
    })
}

/// The remedy for a kernel that refuses to confine.
pub const REMEDY: &str = "sandbox = \"off\" in [daemon] serves without";

/// The filters of a kind, compiled once.
fn programs(kind: Kind) -> io::Result<&'static [BpfProgram]> {
    static PROGRAMS: [OnceLock<Vec<BpfProgram>>; Kind::ALL.len()] = [const { OnceLock::new() }; Kind::ALL.len()];
    let slot = &PROGRAMS[kind as usize];
    match slot.get() {
        Some(programs) => Ok(programs),
        None => {
            let programs = calls::compile(kind).map_err(io::Error::other)?;
            Ok(slot.get_or_init(|| programs))
        }
    }
}

/// Starts a thread of this kind, with a stack of so many bytes (0: the usual size). Any thread may call this, and waits until the
/// new thread is confined.
///
/// # Errors
/// The system's, or the thread cannot be confined; then it has done nothing.
pub fn spawn(
    kind: Kind,
    name: impl Into<String>,
    stack: usize,
    act: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    begin_to_spawn(kind, name, stack, act).wait()
}

/// Like [`spawn`], but returns at once. The caller [waits](Starting::wait) for the thread later.
pub fn begin_to_spawn(
    kind: Kind,
    name: impl Into<String>,
    stack: usize,
    act: impl FnOnce() + Send + 'static,
) -> Starting {
    if !is_on() {
        return Starting { thread: starter::begin_to_spawn(name.into(), stack, Box::new(act)), entered: None };
    }
    let (report, entered) = std::sync::mpsc::sync_channel(1);
    let confined = move || {
        let done = enter(kind);
        let is_confined = done.is_ok();
        let _caller_waits = report.send(done);
        if is_confined {
            act();
        }
    };
    Starting { thread: starter::begin_to_spawn(name.into(), stack, Box::new(confined)), entered: Some(entered) }
}

/// Starts a thread of this kind that reaches the files of one folder, and no others. The folder must exist. Any thread may call this, and
/// waits until the new thread is confined.
///
/// # Errors
/// The system's, or the thread cannot be confined; then it has done nothing.
pub fn spawn_in(
    kind: Kind,
    name: impl Into<String>,
    folder: &Path,
    act: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let (folder, folders) = (folder.to_owned(), Folders::only(folder, Grant::Write));
    let (report, confined) = std::sync::mpsc::sync_channel(1);
    let work = move || {
        let confine = || {
            if !folder.is_dir() {
                let what = format!("the folder {} cannot be used: it is not there", folder.display());
                return Err(io::Error::new(io::ErrorKind::NotFound, what));
            }
            let _lacks = folders.rules(u8::MAX)?.confine_this_thread()?;
            enter(kind)
        };
        let done = if is_on() { confine() } else { Ok(()) };
        let is_confined = done.is_ok();
        let _caller_waits = report.send(done);
        if is_confined {
            act();
        }
    };
    let thread = starter::begin_to_spawn(name.into(), 0, Box::new(work));
    Starting { thread, entered: Some(confined) }.wait()
}

/// A thread that is being started.
#[derive(Debug)]
pub struct Starting {
    thread: Receiver<io::Result<JoinHandle<()>>>,
    entered: Option<Receiver<io::Result<()>>>,
}

impl Starting {
    /// Waits until it is confined.
    ///
    /// # Errors
    /// The system's, or the thread cannot be confined; then it has done nothing.
    pub fn wait(self) -> io::Result<JoinHandle<()>> {
        let thread = self.thread.recv().unwrap_or_else(|_| Err(starter::ended()))?;
        if let Some(entered) = self.entered {
            // Without a report it panicked before it was confined.
            entered.recv().unwrap_or_else(|_| Err(io::Error::other("a thread ended before it was confined")))?;
        }
        Ok(thread)
    }
}

/// Does what this thread may not: on a thread for changes, and waits for it; on this thread if it may open files. `None` if no
/// thread could be started, or if it panicked.
pub fn aside<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    if KIND.get().is_none_or(Kind::opens) {
        return Some(act());
    }
    let (send, receive) = std::sync::mpsc::sync_channel(1);
    let work = move || {
        let _waits = send.send(act());
    };
    let thread = spawn(Kind::ControlChange, "control-change", 0, work).ok()?;
    let done = receive.recv().ok();
    let _ended = thread.join();
    done
}

/// Confines what remains once everything has started: the starter thread, all threads that it starts from now on, and this thread,
/// to these folders; and this thread to the calls of [`Kind::Main`]. `abi` is the highest version of Landlock to use: tests lower it.
/// Returns what this kernel cannot confine, in words, if anything. Does nothing while the sandbox is off.
///
/// # Errors
/// The kernel refused the rules although it has Landlock, or refused a filter. The process must end.
pub fn confine(folders: &Folders, abi: u8) -> io::Result<Option<String>> {
    if !is_on() {
        return Ok(None);
    }
    let rules = Arc::new(folders.rules(abi)?);
    folders::note(folders, &rules);
    accounts::begin(abi)?;
    starter::confine(Arc::clone(&rules))?;
    let lacks = rules.confine_this_thread()?;
    enter(Kind::Main)?;
    Ok(lacks)
}

/// Calls that were refused so far, each once for each kind of thread.
pub fn refusals() -> Vec<Refusal> {
    signal::refusals()
}
