//! A port's memory thread: it maps and unmaps the memory that the port's VMM shares.
//!
//! The kernel maps and unmaps a file under the file's lock (`i_mmap_rwsem`). A VMM that has mapped the file a thousand times holds
//! that lock for seconds when it punches a hole (docs/adr/0012). So no worker maps memory: each port has a thread for it, and a VMM
//! delays only its own port. A session has one change in progress, and requests of a VMM that has gone are dropped, so at most one
//! change and the memory of earlier VMMs wait in the queue.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use nicety_bell::{Lent, this_thread_may_wait};
use nicety_memory::{Files, Map, MappingError, Piece};

use crate::allowance::{self, Allowance};
use crate::clock::Clock;

/// The thread's stack: it reads at most some lines of procfs.
const STACK: usize = 256 << 10;

/// A part of a file to map.
#[derive(Debug)]
pub struct Wanted {
    /// The file.
    pub fd: Lent,
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
    /// It was mapped, or not.
    Mapped(Result<Piece, MappingError>),
    /// The released memory is unmapped.
    Released,
}

/// See the module's page.
pub struct Mapper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Mapper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mapper").finish_non_exhaustive()
    }
}

struct Shared {
    state: Mutex<State>,
    come: Condvar,
    /// Called when [`Mapper::take`] has a result.
    tell: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    /// Jobs, each with the number of its VMM.
    jobs: VecDeque<(u64, Job)>,
    done: Option<Outcome>,
    /// The number of the current VMM: results for earlier ones are not reported.
    visit: u64,
    over: bool,
}

enum Job {
    Map(Wanted),
    Release(Arc<Map>),
    /// An unread result of a VMM that has gone: drop it.
    Forget(Outcome),
    #[cfg(test)]
    Wait(std::sync::mpsc::Receiver<()>),
}

impl Mapper {
    /// Starts the memory thread of this port. It calls `tell` when a change is done.
    pub fn start(port: &str, tell: impl Fn() + Send + Sync + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared { state: Mutex::default(), come: Condvar::new(), tell: Box::new(tell) });
        let own = Arc::clone(&shared);
        let thread = thread::Builder::new().name(format!("memory {port}")).stack_size(STACK);
        Ok(Self { shared, thread: Some(thread.spawn(move || own.work())?) })
    }

    /// Maps a part of a file.
    pub fn map(&self, wanted: Wanted) {
        self.shared.push(Job::Map(wanted));
    }

    /// Releases a map; its memory is unmapped unless somebody else holds it.
    pub fn release(&self, map: Arc<Map>) {
        self.shared.push(Job::Release(map));
    }

    /// The result of the last change, once it is done.
    pub fn take(&self) -> Option<Outcome> {
        self.shared.state().done.take()
    }

    /// The VMM has gone: drops its pending requests, and unmaps its memory.
    pub fn renew(&self) {
        let mut state = self.shared.state();
        state.visit += 1;
        state.jobs.retain(|(_, job)| !matches!(job, Job::Map(_)));
        if let Some(outcome) = state.done.take() {
            let visit = state.visit;
            state.jobs.push_back((visit, Job::Forget(outcome)));
            self.shared.come.notify_one();
        }
    }

    /// Ends the thread after the remaining work. A caller that may block joins it.
    pub fn end(&mut self) -> Option<JoinHandle<()>> {
        self.shared.state().over = true;
        self.shared.come.notify_one();
        self.thread.take()
    }

    /// Blocks the thread until the sender is used or dropped.
    #[cfg(test)]
    pub fn hold(&self) -> std::sync::mpsc::Sender<()> {
        let (go_on, wait) = std::sync::mpsc::channel();
        self.shared.push(Job::Wait(wait));
        go_on
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        let _nobody_waits_for_it = self.end();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn push(&self, job: Job) {
        let mut state = self.state();
        let visit = state.visit;
        state.jobs.push_back((visit, job));
        drop(state);
        self.come.notify_one();
    }

    fn next(&self) -> Option<(u64, Job)> {
        let idle = |state: &mut State| state.jobs.is_empty() && !state.over;
        let mut state = self.come.wait_while(self.state(), idle).unwrap_or_else(|poisoned| poisoned.into_inner());
        state.jobs.pop_front()
    }

    /// Rests, if the thread has used more than its part of a processor, and not beyond the release of the port.
    fn rest(&self, allowance: &mut Allowance, clock: Clock) {
        if let Some(time) = allowance.rest(allowance::used(), clock.now()) {
            let waits = |state: &mut State| !state.over;
            drop(self.come.wait_timeout_while(self.state(), time, waits));
        }
    }

    fn work(&self) {
        this_thread_may_wait();
        let (clock, mut allowance) = (Clock::start(), Allowance::default());
        // The limit of files per VM includes files of an earlier VM that are not unmapped yet.
        let files = Files::default();
        while let Some((visit, job)) = self.next() {
            self.rest(&mut allowance, clock);
            let outcome = match job {
                Job::Map(Wanted { fd, offset, len, writable }) => {
                    Outcome::Mapped(files.piece(fd, offset, len, writable))
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
                    let _used_or_gone = wait.recv();
                    continue;
                }
            };
            let mut state = self.state();
            if state.visit != visit {
                drop(state);
                drop(outcome);
                continue;
            }
            state.done = Some(outcome);
            drop(state);
            (self.tell)();
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
        let (tell, told) = mpsc::channel();
        (Mapper::start("vm", move || tell.send(()).unwrap_or(())).unwrap(), told)
    }

    fn wanted(name: &str) -> Wanted {
        Wanted { fd: shared_file(name, 1 << 20).unwrap().into(), offset: 0, len: 1 << 20, writable: true }
    }

    fn is_mapped(name: &str) -> bool {
        std::fs::read_to_string("/proc/self/maps").unwrap().contains(&format!("/memfd:{name}"))
    }

    #[test]
    fn memory_is_mapped_and_unmapped_when_it_says_so() {
        let (mapper, told) = started();
        mapper.map(wanted("there"));
        told.recv_timeout(TIMEOUT).unwrap();
        let Some(Outcome::Mapped(Ok(mapping))) = mapper.take() else { panic!("mapped") };
        assert!(is_mapped("there"));
        mapper.release(Arc::new(Map::default().with(0, mapping, Rights::BOTH).unwrap()));
        told.recv_timeout(TIMEOUT).unwrap();
        assert!(matches!(mapper.take(), Some(Outcome::Released)) && !is_mapped("there"));
    }

    #[test]
    fn what_a_vmm_asked_for_that_has_gone_is_told_to_nobody_and_keeps_nothing() {
        let (mut mapper, told) = started();
        let go_on = mapper.hold();
        for _ in 0..1000 {
            mapper.map(wanted("in vain"));
            mapper.renew();
        }
        assert!(mapper.shared.state().jobs.len() <= 1, "only the one that holds it");
        // A change that is done, but whose result was not taken.
        drop(go_on);
        mapper.map(wanted("too late"));
        told.recv_timeout(TIMEOUT).unwrap();
        mapper.renew();
        assert!(mapper.take().is_none());
        mapper.end().unwrap().join().unwrap();
        assert!(told.try_recv().is_err() && !is_mapped("in vain") && !is_mapped("too late"));
    }
}
