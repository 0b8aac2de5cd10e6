//! A port's memory thread: it maps and unmaps the memory that the port's VMM shares.
//!
//! The kernel maps and unmaps a file under the file's lock (`i_mmap_rwsem`). A VMM that has mapped the file a thousand times
//! holds that lock for seconds when it punches a hole (docs/adr/0012). So no worker maps memory: each port has a thread for it,
//! and a VMM delays only its own port. A session has one change in progress, and requests of a VMM that has gone are dropped. So
//! the queue holds at most one change and the memory of earlier VMMs.
//!
//! VMMs share memory when they start, and most never again: the thread ends when it has had nothing to do for two seconds, and the next
//! change starts another one. So few threads have to end before a killed daemon is replaced, and few to start in the next one.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use nicety_memory::{Files, Map, MappingError, Piece};
use nicety_peer::{PeerFd, this_thread_may_wait};
use nicety_sandbox::Starting;

use crate::clock::Clock;
use crate::run::allowance::{self, Allowance};

/// The thread's stack. The thread reads at most some lines of procfs.
const STACK: usize = 256 << 10;
/// A thread without work ends after this time. Its part of a processor is whole again then (`allowance.rs`), so a VMM gains nothing by a
/// new one.
const IDLE: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(2) };

/// A part of a file to map.
#[derive(Debug)]
pub struct Wanted {
    /// The file.
    pub fd: PeerFd,
    /// The part's offset, in bytes.
    pub offset: u64,
    /// Its length, in bytes.
    pub len: u64,
    /// Whether to map it writable.
    pub writable: bool,
}

/// The result of a change.
#[derive(Debug)]
pub enum Outcome {
    /// The result of mapping a file.
    Mapped(Result<Piece, MappingError>),
    /// The released memory is unmapped.
    Released,
}

/// The memory thread of a port.
pub struct Mapper {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Mapper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mapper").finish_non_exhaustive()
    }
}

struct Shared {
    /// The thread's name.
    name: String,
    /// The size of its stack.
    stack: usize,
    state: Mutex<State>,
    /// The limit of files per VM includes files of an earlier VM that are not unmapped yet.
    files: Arc<Files>,
    job_added: Condvar,
    /// Called when [`Mapper::take`] has a result.
    notify: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    /// Jobs, each with the number of its VMM.
    jobs: VecDeque<(u64, Job)>,
    done: Option<Outcome>,
    /// The number of the current VMM: results for earlier ones are not reported.
    vmm_number: u64,
    /// A thread runs, or is being started: it will look at the jobs once more.
    runs: bool,
    /// The thread that was started last. It may have ended.
    thread: Option<Starting>,
    over: bool,
}

enum Job {
    Map(Wanted),
    Release(Arc<Map>),
    /// Drop an unread result of a VMM that has gone.
    Forget(Outcome),
    #[cfg(test)]
    Wait(std::sync::mpsc::Receiver<()>),
}

impl Mapper {
    /// The memory thread of this port, whose VMM shares these files. It calls `notify` when a change is done.
    pub fn new(port: &str, files: Arc<Files>, notify: impl Fn() + Send + Sync + 'static) -> Self {
        Self::with_stack(STACK, port, files, Box::new(notify))
    }

    fn with_stack(stack: usize, port: &str, files: Arc<Files>, notify: Box<dyn Fn() + Send + Sync>) -> Self {
        let (name, state, job_added) = (format!("memory {port}"), Mutex::default(), Condvar::new());
        Self { shared: Arc::new(Shared { name, stack, state, files, job_added, notify }) }
    }

    /// A part of a file that is mapped already: an IOMMU's page. The thread has nothing to do for it.
    pub fn piece_of_mapped(&self, wanted: &Wanted) -> Option<Piece> {
        self.shared.files.piece_of_mapped(&wanted.fd, wanted.offset, wanted.len, wanted.writable)
    }

    /// Maps a part of a file.
    pub fn map(&self, wanted: Wanted) {
        self.shared.push(Job::Map(wanted));
    }

    /// Releases a map. Its memory is unmapped unless something else holds it.
    pub fn release(&self, map: Arc<Map>) {
        self.shared.push(Job::Release(map));
    }

    /// The result of the last change, once it is done.
    pub fn take(&self) -> Option<Outcome> {
        self.shared.state().done.take()
    }

    /// Drops the pending requests of a VMM that has gone, and unmaps its memory.
    pub fn renew(&self) {
        let mut state = self.shared.state();
        state.vmm_number += 1;
        state.jobs.retain(|(_, job)| !matches!(job, Job::Map(_)));
        if let Some(outcome) = state.done.take() {
            let vmm_number = state.vmm_number;
            state.jobs.push_back((vmm_number, Job::Forget(outcome)));
            self.shared.work_on(state);
        }
    }

    /// Ends the thread after the remaining work. A caller that may block joins it.
    pub fn end(&self) -> Option<JoinHandle<()>> {
        let mut state = self.shared.state();
        state.over = true;
        let thread = state.thread.take();
        drop(state);
        self.shared.job_added.notify_one();
        thread?.wait().ok()
    }

    /// Blocks the thread until the sender is used or dropped.
    #[cfg(test)]
    pub fn hold(&self) -> std::sync::mpsc::Sender<()> {
        let (release_thread, wait) = std::sync::mpsc::channel();
        self.shared.push(Job::Wait(wait));
        release_thread
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        let _thread = self.end();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn push(self: &Arc<Self>, job: Job) {
        let mut state = self.state();
        let vmm_number = state.vmm_number;
        state.jobs.push_back((vmm_number, job));
        self.work_on(state);
    }

    /// Wakes the thread, or starts it. Waits for nobody.
    fn work_on(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if std::mem::replace(&mut state.runs, true) {
            drop(state);
            return self.job_added.notify_one();
        }
        let (before, run) = (state.thread.take(), Run { shared: Arc::clone(self), has_finished: false });
        drop(state);
        // If it cannot be started, `run` is dropped.
        let work = move || run.begin(before);
        let thread = nicety_sandbox::begin_to_spawn(nicety_sandbox::Kind::Memory, self.name.clone(), self.stack, work);
        self.state().thread = Some(thread);
    }

    /// Waits for the next job. `None`: none came within [`IDLE`], or the port is released. Then the thread ends.
    fn next(&self) -> Option<(u64, Job)> {
        let idle = |state: &mut State| state.jobs.is_empty() && !state.over;
        let waited = self.job_added.wait_timeout_while(self.state(), IDLE, idle);
        let (mut state, _) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
        let job = state.jobs.pop_front();
        state.runs = job.is_some();
        job
    }

    /// Rests if the thread has used more than its part of a processor. The rest ends when the port is released.
    fn rest(&self, allowance: &mut Allowance, clock: Clock) {
        if let Some(time) = allowance.rest(allowance::used(), clock.now()) {
            let waits = |state: &mut State| !state.over;
            drop(self.job_added.wait_timeout_while(self.state(), time, waits));
        }
    }

    fn work(&self) {
        this_thread_may_wait();
        let (clock, mut allowance) = (Clock::start(), Allowance::default());
        while let Some((vmm_number, job)) = self.next() {
            self.rest(&mut allowance, clock);
            let outcome = match job {
                Job::Map(Wanted { fd, offset, len, writable }) => {
                    Outcome::Mapped(self.files.piece(fd, offset, len, writable))
                }
                Job::Release(map) => {
                    drop(map);
                    Outcome::Released
                }
                Job::Forget(outcome) => {
                    drop(outcome);
                    continue;
                }
                #[cfg(test)]
                Job::Wait(wait) => {
                    let _released = wait.recv();
                    continue;
                }
            };
            let mut state = self.state();
            if state.vmm_number != vmm_number {
                drop(state);
                drop(outcome);
                continue;
            }
            state.done = Some(outcome);
            drop(state);
            (self.notify)();
        }
    }
}

/// A thread that runs, or is about to.
struct Run {
    shared: Arc<Shared>,
    has_finished: bool,
}

impl Run {
    fn begin(mut self, before: Option<Starting>) {
        // It has had nothing left to do.
        let _ended = before.and_then(|thread| thread.wait().ok()).map(JoinHandle::join);
        self.shared.work();
        self.has_finished = true;
    }
}

impl Drop for Run {
    /// Without the thread nothing is mapped. What it should have unmapped, the thread for all unmaps.
    fn drop(&mut self) {
        if self.has_finished {
            return;
        }
        let mut state = self.shared.state();
        state.runs = false;
        let jobs = std::mem::take(&mut state.jobs);
        let now = state.vmm_number;
        let last = jobs.iter().filter(|(vmm_number, _)| *vmm_number == now).find_map(|(_, job)| match job {
            Job::Map(_) => Some(Outcome::Mapped(Err(MappingError::Os(io::Error::other(NO_THREAD))))),
            Job::Release(_) => Some(Outcome::Released),
            _ => None,
        });
        let is_awaited = last.is_some();
        state.done = last.or(state.done.take());
        drop(state);
        drop(jobs);
        if is_awaited {
            (self.shared.notify)();
        }
    }
}

/// The reason why memory was not mapped.
const NO_THREAD: &str =
    "the thread that maps it cannot be started: allow more threads (ulimit -u; systemd: TasksMax=) or more memory";

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use nicety_memory::{Rights, shared_file};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    fn started() -> (Mapper, mpsc::Receiver<()>) {
        let (notify, notified) = mpsc::channel();
        (Mapper::new("vm", Arc::default(), move || notify.send(()).unwrap_or(())), notified)
    }

    fn wanted(name: &str) -> Wanted {
        Wanted { fd: shared_file(name, 1 << 20).unwrap().into(), offset: 0, len: 1 << 20, writable: true }
    }

    fn is_mapped(name: &str) -> bool {
        std::fs::read_to_string("/proc/self/maps").unwrap().contains(&format!("/memfd:{name}"))
    }

    #[test]
    fn memory_is_mapped_and_unmapped_when_it_says_so() {
        let (mapper, notified) = started();
        mapper.map(wanted("there"));
        notified.recv_timeout(TIMEOUT).unwrap();
        let Some(Outcome::Mapped(Ok(mapping))) = mapper.take() else { panic!("mapped") };
        assert!(is_mapped("there"));
        mapper.release(Arc::new(Map::default().with(0, mapping, Rights::BOTH).unwrap()));
        notified.recv_timeout(TIMEOUT).unwrap();
        assert!(matches!(mapper.take(), Some(Outcome::Released)) && !is_mapped("there"));
    }

    /// Waits until the thread has ended by itself.
    fn rests(mapper: &Mapper) {
        let end = std::time::Instant::now() + TIMEOUT;
        while mapper.shared.state().runs {
            assert!(std::time::Instant::now() < end);
            std::thread::sleep(IDLE);
        }
    }

    #[test]
    fn a_thread_without_work_ends_and_the_next_change_has_another_one() {
        let (mapper, notified) = started();
        assert!(!mapper.shared.state().runs, "none is needed yet");
        for name in ["one", "two"] {
            mapper.map(wanted(name));
            notified.recv_timeout(TIMEOUT).unwrap();
            assert!(matches!(mapper.take(), Some(Outcome::Mapped(Ok(_)))));
            rests(&mapper);
        }
        mapper.end().unwrap().join().unwrap();
    }

    #[test]
    fn without_a_thread_memory_is_refused_and_what_was_released_is_unmapped_by_another_thread() {
        let (notify, notified) = mpsc::channel();
        let notify = move || notify.send(()).unwrap_or(());
        // No address space has room for such a stack.
        let mapper = Mapper::with_stack(1 << 60, "vm", Arc::default(), Box::new(notify));
        for _ in 0..2 {
            mapper.map(wanted("refused"));
            notified.recv_timeout(TIMEOUT).unwrap();
            let Some(Outcome::Mapped(Err(why))) = mapper.take() else { panic!("refused") };
            assert!(why.to_string().contains("TasksMax"), "{why}");
        }
        let Wanted { fd, offset, len, writable } = wanted("released");
        let piece = mapper.shared.files.piece(fd, offset, len, writable).unwrap();
        mapper.release(Arc::new(Map::default().with(0, piece, Rights::BOTH).unwrap()));
        notified.recv_timeout(TIMEOUT).unwrap();
        assert!(matches!(mapper.take(), Some(Outcome::Released)) && mapper.end().is_none());
        let end = std::time::Instant::now() + TIMEOUT;
        while is_mapped("released") {
            assert!(std::time::Instant::now() < end);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_a_vmm_asked_for_that_has_gone_is_told_to_nobody_and_keeps_nothing() {
        let (mapper, notified) = started();
        let release_thread = mapper.hold();
        for _ in 0..1000 {
            mapper.map(wanted("in vain"));
            mapper.renew();
        }
        assert!(mapper.shared.state().jobs.len() <= 1, "only the one that holds it");
        // A change that is done, but whose result was not taken.
        drop(release_thread);
        mapper.map(wanted("too late"));
        notified.recv_timeout(TIMEOUT).unwrap();
        mapper.renew();
        assert!(mapper.take().is_none());
        mapper.end().unwrap().join().unwrap();
        assert!(notified.try_recv().is_err() && !is_mapped("in vain") && !is_mapped("too late"));
    }
}
