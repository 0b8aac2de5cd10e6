//! The third party that says who owns a VM, asked by a thread of its own: a file system that hangs, or a network that is slow, does
//! not stop the VM. What is not answered in time is as if it had not been asked, and the lease runs out. A request that waits behind
//! one that hangs is dropped when there is a newer one: a host asks again for what it still wants.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use nicety_sandbox::Kind;
use rustix::event::{EventfdFlags, eventfd};

use crate::lease::{Answer, NodeId, Request};

/// The third party that holds a lease.
pub trait ThirdParty: Send {
    /// The kind of the thread that asks here.
    fn kind(&self) -> Kind;

    /// The folder whose files that thread uses, if it uses any.
    fn folder(&self) -> Option<&Path> {
        None
    }

    /// Sets the run for which it asks from now on.
    fn be(&mut self, who: NodeId);

    /// Looks whether the owner has renewed.
    fn look(&mut self);

    /// Carries out a request.
    ///
    /// # Errors
    /// Nothing has changed, or the answer is lost.
    fn ask(&mut self, request: Request) -> io::Result<Answer>;
}

/// An answer to the request of this number.
pub type Answered = (u32, io::Result<Answer>);

/// See the module's page.
pub struct Asker {
    requests: Sender<(u32, NodeId, Request)>,
    answers: Receiver<Answered>,
    /// Readable when there are answers.
    bell: Arc<OwnedFd>,
}

impl Asker {
    /// Starts the thread, which ends soon after this value. While nothing is asked it looks this often.
    ///
    /// With the sandbox, a lease in a file needs its folder now, and one in etcd this call before the daemon confines itself to its
    /// folders: later threads reach nothing by TCP.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(mut party: Box<dyn ThirdParty>, look: Duration) -> io::Result<Self> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let rope = Arc::clone(&bell);
        let (requests, asked) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        let (kind, folder) = (party.kind(), party.folder().map(Path::to_owned));
        let work = move || {
            loop {
                match asked.recv_timeout(look) {
                    Ok(first) => {
                        let (number, who, request) = asked.try_iter().last().unwrap_or(first);
                        party.be(who);
                        if answer.send((number, party.ask(request))).is_err() {
                            return;
                        }
                        // A full counter has rung already.
                        let _rung = rustix::io::write(&rope, &1u64.to_ne_bytes());
                    }
                    Err(RecvTimeoutError::Timeout) => party.look(),
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        let _detached = match folder {
            Some(folder) => nicety_sandbox::spawn_in(kind, "lease", &folder, work)?,
            None => nicety_sandbox::spawn(kind, "lease", 0, work)?,
        };
        Ok(Self { requests, answers, bell })
    }

    /// Asks for this run. The answer comes later, or never.
    pub fn ask(&self, number: u32, who: NodeId, request: Request) {
        // The thread ends with this value only.
        let _sent = self.requests.send((number, who, request));
    }

    /// The next answer. Call it until there is none: the descriptor is readable again only for answers that come later.
    pub fn answer(&self) -> Option<Answered> {
        // Before the answers are looked at: one that comes later rings again.
        let _rung = rustix::io::read(&self.bell, &mut [0; 8]);
        self.answers.try_recv().ok()
    }

    /// Waits for one answer, but not longer than this.
    pub fn wait(&self, most: Duration) -> Option<Answered> {
        self.answers.recv_timeout(most).ok()
    }
}

impl AsFd for Asker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::SyncSender;

    use super::*;

    /// Answers when it is told to.
    struct Slow {
        asked: SyncSender<Request>,
        go_on: Receiver<()>,
    }

    impl ThirdParty for Slow {
        fn kind(&self) -> Kind {
            Kind::LeaseFile
        }

        fn be(&mut self, _who: NodeId) {}

        fn look(&mut self) {}

        fn ask(&mut self, request: Request) -> io::Result<Answer> {
            self.asked.send(request).unwrap();
            self.go_on.recv().unwrap();
            Ok(Answer { granted: true, holder: None, peer: None, epoch: 0 })
        }
    }

    /// A third party that stood still for an hour answers the question of now, and not ten thousand old ones first.
    #[test]
    fn requests_that_waited_behind_one_that_hung_are_dropped_but_for_the_newest() {
        let (asked, requests) = mpsc::sync_channel(0);
        let (go, go_on) = mpsc::channel();
        let asker = Asker::start(Box::new(Slow { asked, go_on }), Duration::from_secs(3600)).unwrap();
        asker.ask(1, NodeId(1), Request::Renew);
        assert_eq!(requests.recv(), Ok(Request::Renew));
        for number in 2..10_000 {
            asker.ask(number, NodeId(1), Request::Renew);
        }
        asker.ask(10_000, NodeId(1), Request::Take);
        go.send(()).unwrap();
        assert_eq!(requests.recv(), Ok(Request::Take));
        go.send(()).unwrap();
        let numbers: Vec<u32> = (0..2).map(|_| asker.wait(Duration::from_secs(30)).unwrap().0).collect();
        assert_eq!(numbers, [1, 10_000]);
    }
}
