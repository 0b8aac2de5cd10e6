//! The third party that says who owns the guest, asked by a thread of its own: a file system that hangs, or a network that is slow, does
//! not stop the guest. What is not answered in time is as if it had not been asked, and the lease runs out. A request that waits behind
//! one that hangs is dropped when there is a newer one: a host asks again for what it still wants.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use crate::{Answer, Request};

/// Where a lease is.
pub trait ThirdParty: Send {
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
    requests: Sender<(u32, Request)>,
    answers: Receiver<Answered>,
    /// Readable when there are answers.
    bell: UnixStream,
}

impl Asker {
    /// Starts the thread. While nothing is asked it looks this often.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(mut party: Box<dyn ThirdParty>, look: Duration) -> io::Result<Self> {
        let (bell, rope) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        rope.set_nonblocking(true)?;
        let (requests, asked) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        let work = move || {
            loop {
                match asked.recv_timeout(look) {
                    Ok(first) => {
                        let (number, request) = asked.try_iter().last().unwrap_or(first);
                        if answer.send((number, party.ask(request))).is_err() {
                            return;
                        }
                        // A full pipe has rung already.
                        let _rung = (&rope).write(&[0]);
                    }
                    Err(RecvTimeoutError::Timeout) => party.look(),
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        std::thread::Builder::new().name("lease".to_owned()).spawn(work)?;
        Ok(Self { requests, answers, bell })
    }

    /// Asks. The answer comes later, or never.
    pub fn ask(&self, number: u32, request: Request) {
        // The thread ends with this value only.
        let _sent = self.requests.send((number, request));
    }

    /// The next answer.
    pub fn answer(&self) -> Option<Answered> {
        let mut rung = [0; 64];
        while (&self.bell).read(&mut rung).is_ok_and(|read| read == rung.len()) {}
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
        asker.ask(1, Request::Renew);
        assert_eq!(requests.recv(), Ok(Request::Renew));
        for number in 2..10_000 {
            asker.ask(number, Request::Renew);
        }
        asker.ask(10_000, Request::Take);
        go.send(()).unwrap();
        assert_eq!(requests.recv(), Ok(Request::Take));
        go.send(()).unwrap();
        let numbers: Vec<u32> = (0..2).map(|_| asker.wait(Duration::from_secs(30)).unwrap().0).collect();
        assert_eq!(numbers, [1, 10_000]);
    }
}
