//! A port's memory thread: it maps and unmaps the memory that the port's VMM shares.
//!
//! The kernel maps and unmaps a file under the file's lock (`i_mmap_rwsem`). A VMM that has mapped the file a thousand times
//! holds that lock for seconds when it punches a hole (docs/adr/0012). So no worker maps memory: each port has a thread for it,
//! and a VMM delays only its own port. A session has one change in progress, and requests of a VMM that has gone are dropped. So
//! the queue holds at most one change and the memory of earlier VMMs.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use nicety_memory::{Files, Map, MappingError, Piece};
use nicety_peer::{PeerFd, this_thread_may_wait};
use nicety_sandbox::Starting;

use crate::allowance::{self, Allowance};
use crate::clock::Clock;

/// The thread's stack. The thread reads at most some lines of procfs.
const STACK: usize = 256 << 10;

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
    thread: Option<Thread>,
}

enum Thread {
    Starting(Starting),
    Runs(JoinHandle<()>),
}

impl std::fmt::Debug for Mapper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mapper").finish_non_exhaustive()
    }
}

struct Shared {
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
    /// Starts the memory thread of this port, whose VMM shares these files. It calls `notify` when a change is done.
    pub fn start(port: &str, files: Arc<Files>, notify: impl Fn() + Send + Sync + 'static) -> io::Result<Self> {
        let mut this = Self::begin(port, files, notify);
        this.started()?;
        Ok(this)
    }

    /// Begins to start it. It has to have [started](Self::started) before the port is served.
    pub fn begin(port: &str, files: Arc<Files>, notify: impl Fn() + Send + Sync + 'static) -> Self {
        let (job_added, notify) = (Condvar::new(), Box::new(notify));
        let shared = Arc::new(Shared { state: Mutex::default(), files, job_added, notify });
        let own = Arc::clone(&shared);
        let kind = nicety_sandbox::Kind::Memory;
        let thread = nicety_sandbox::begin_to_spawn(kind, format!("memory {port}"), STACK, move || own.work());
        Self { shared, thread: Some(Thread::Starting(thread)) }
    }

    /// Waits until the thread runs.
    pub fn started(&mut self) -> io::Result<()> {
        if let Some(thread) = self.thread.take() {
            self.thread = Some(Thread::Runs(thread.wait()?));
        }
        Ok(())
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
            self.shared.job_added.notify_one();
        }
    }

    /// Ends the thread after the remaining work. A caller that may block joins it.
    pub fn end(&mut self) -> Option<JoinHandle<()>> {
        self.shared.state().over = true;
        self.shared.job_added.notify_one();
        self.thread.take()?.wait().ok()
    }

    /// Blocks the thread until the sender is used or dropped.
    #[cfg(test)]
    pub fn hold(&self) -> std::sync::mpsc::Sender<()> {
        let (release_thread, wait) = std::sync::mpsc::channel();
        self.shared.push(Job::Wait(wait));
        release_thread
    }
}

impl Thread {
    fn wait(self) -> io::Result<JoinHandle<()>> {
        match self {
            Self::Starting(thread) => thread.wait(),
            Self::Runs(thread) => Ok(thread),
        }
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

    fn push(&self, job: Job) {
        let mut state = self.state();
        let vmm_number = state.vmm_number;
        state.jobs.push_back((vmm_number, job));
        drop(state);
        self.job_added.notify_one();
    }

    fn next(&self) -> Option<(u64, Job)> {
        let idle = |state: &mut State| state.jobs.is_empty() && !state.over;
        let mut state = self.job_added.wait_while(self.state(), idle).unwrap_or_else(|poisoned| poisoned.into_inner());
        state.jobs.pop_front()
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use nicety_memory::{Rights, shared_file};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    fn started() -> (Mapper, mpsc::Receiver<()>) {
        let (notify, notified) = mpsc::channel();
        (Mapper::start("vm", Arc::default(), move || notify.send(()).unwrap_or(())).unwrap(), notified)
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

    #[test]
    fn what_a_vmm_asked_for_that_has_gone_is_told_to_nobody_and_keeps_nothing() {
        let (mut mapper, notified) = started();
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
