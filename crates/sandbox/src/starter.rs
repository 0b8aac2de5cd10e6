//! The thread that starts all others. It also logs refused calls: the handler of a signal cannot.

mod procfs;

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::{Builder, JoinHandle};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::{Errno, write};
use tracing::warn;

pub use self::procfs::ProcFile;
use crate::folders::Rules;
use crate::signal::{self, NOTE};
use crate::{KIND, Kind, enter};

type Act = Box<dyn FnOnce() + Send>;

enum Request {
    Spawn { name: String, stack: usize, act: Act, done: SyncSender<io::Result<JoinHandle<()>>> },
    Read { file: ProcFile, done: SyncSender<io::Result<String>> },
    Confine { rules: Arc<Rules>, done: SyncSender<io::Result<()>> },
}

#[derive(Default)]
struct Queue {
    requests: VecDeque<Request>,
    /// The thread has ended: nobody would answer.
    has_ended: bool,
}

struct Starter {
    queue: Mutex<Queue>,
    bell: OwnedFd,
}

static STARTER: OnceLock<Starter> = OnceLock::new();
/// Two callers at once start one thread.
static BEGIN: Mutex<()> = Mutex::new(());

impl Starter {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Once the starter has ended, the request is dropped, and with it the end of the channel that its caller waits at.
    fn ask(&self, request: Request) {
        let mut queue = self.queue();
        if queue.has_ended {
            return;
        }
        queue.requests.push_back(request);
        drop(queue);
        // A full counter means that it has been woken already.
        let _ = write(&self.bell, &1u64.to_ne_bytes());
    }
}

/// Ends the queue with the thread, also if it panics: callers get an error, and do not wait for ever.
struct End<'a>(&'a Starter);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.has_ended = true;
        let left = std::mem::take(&mut queue.requests);
        drop(queue);
        drop(left);
    }
}

pub(crate) fn is_on() -> bool {
    STARTER.get().is_some()
}

pub(crate) fn begin() -> io::Result<()> {
    let _one_caller = BEGIN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if is_on() {
        return Ok(());
    }
    let notes = signal::install()?;
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    // Waits for the starter's first look at its heap: others may be confined from then on.
    let (ready, started) = sync_channel::<&'static Starter>(0);
    Builder::new().name("starter".to_owned()).spawn(move || {
        signal::name_this_thread(Kind::Starter);
        KIND.set(Some(Kind::Starter));
        shrink_heap();
        // The channel ends if the caller could not go on.
        if let Ok(starter) = started.recv() {
            let _end = End(starter);
            run(starter, &notes);
        }
    })?;
    let starter = STARTER.get_or_init(|| Starter { queue: Mutex::default(), bell });
    let _it_waits = ready.send(starter);
    Ok(())
}

/// Gives memory of this thread's heap back. The first time, glibc reads a file to learn how (malloc/arena.c, `shrink_heap`:
/// /proc/sys/vm/overcommit_memory), which confined threads may not. Blocks below 128 KiB come from the heap, and 128 KiB that are
/// free at its end are given back (mallopt(3): M_MMAP_THRESHOLD, M_TRIM_THRESHOLD).
fn shrink_heap() {
    let blocks: Vec<Vec<u8>> = (0..16).map(|_| Vec::with_capacity(100 << 10)).collect();
    drop(std::hint::black_box(blocks));
}

fn run(starter: &Starter, notes: &OwnedFd) {
    loop {
        let mut waits = [PollFd::new(&starter.bell, PollFlags::IN), PollFd::new(notes, PollFlags::IN)];
        if !matches!(poll(&mut waits, None), Ok(_) | Err(Errno::INTR)) {
            return;
        }
        let _none = rustix::io::read(&starter.bell, &mut [0; 8]);
        let mut note = [0; NOTE];
        while rustix::io::read(notes, &mut note) == Ok(NOTE) {
            let (thread, call) = signal::words(&note);
            warn!("{thread}: the sandbox refused {call}");
        }
        loop {
            let Some(request) = starter.queue().requests.pop_front() else { break };
            match request {
                Request::Spawn { name, stack, act, done } => {
                    let _caller_waits = done.send(start(name, stack, act));
                }
                Request::Read { file, done } => {
                    let _caller_waits = done.send(file.read_here());
                }
                Request::Confine { rules, done } => {
                    let confined = rules.confine_this_thread().and_then(|_lacks| {
                        KIND.set(None);
                        enter(Kind::Starter)
                    });
                    let _caller_waits = done.send(confined);
                }
            }
        }
    }
}

fn start(name: String, stack: usize, act: Act) -> io::Result<JoinHandle<()>> {
    let thread = Builder::new().name(name);
    let thread = if stack == 0 { thread } else { thread.stack_size(stack) };
    thread.spawn(act)
}

pub(crate) fn spawn(name: String, stack: usize, act: Act) -> io::Result<JoinHandle<()>> {
    begin_to_spawn(name, stack, act).recv().unwrap_or_else(|_| Err(ended()))
}

/// Has a thread started. If the starter has ended, so has the channel.
pub(crate) fn begin_to_spawn(name: String, stack: usize, act: Act) -> Receiver<io::Result<JoinHandle<()>>> {
    let (done, started) = sync_channel(1);
    // The starter starts its own threads: nobody else would answer it.
    match STARTER.get().filter(|_| KIND.get() != Some(Kind::Starter)) {
        Some(starter) => starter.ask(Request::Spawn { name, stack, act, done }),
        None => _ = done.send(start(name, stack, act)),
    }
    started
}

/// Reads a file: on this thread if it may open files.
pub(crate) fn read(file: ProcFile) -> io::Result<String> {
    let may_not = KIND.get().is_some_and(|kind| !kind.opens());
    let Some(starter) = STARTER.get().filter(|_| may_not) else { return file.read_here() };
    let (done, read) = sync_channel(1);
    starter.ask(Request::Read { file, done });
    read.recv().unwrap_or_else(|_| Err(ended()))
}

pub(crate) fn ended() -> io::Error {
    io::Error::other("the thread that starts others has ended")
}

/// Confines the starter thread, and with it each thread that it starts from now on.
pub(crate) fn confine(rules: Arc<Rules>) -> io::Result<()> {
    let Some(starter) = STARTER.get() else { return Ok(()) };
    let (done, confined) = sync_channel(1);
    starter.ask(Request::Confine { rules, done });
    confined.recv().unwrap_or_else(|_| Err(ended()))
}
