//! A collector's socket. Nothing here waits.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nicety_adapter::Time;
use nicety_host::Collector;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with, sockopt,
};

/// Time between two tries.
const AGAIN: Duration = Duration::from_secs(1);
/// A collector that does not answer, or takes nothing, for this time is left, and tried again.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes that a collector by TCP has not taken yet, beyond which nothing is added.
const UNSENT_MAX: usize = 256 << 10;

/// The state of a connection.
#[derive(Debug)]
enum State {
    /// There is none; the next try is at this time.
    Away { again: Time },
    /// TCP connects, since this time.
    Connecting { socket: OwnedFd, since: Time },
    /// There is one. It has taken something last at this time.
    Open { socket: OwnedFd, took: Time },
}

/// The result of a look at a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing can be sent.
    Away,
    /// It has just been opened.
    New,
    /// It is open.
    Open,
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct Connection {
    collector: Collector,
    state: State,
    /// Bytes that TCP has not taken: `unsent[at..]`.
    unsent: Vec<u8>,
    at: usize,
    /// Messages of which TCP has not taken all: where each ends in `unsent`, and its records.
    ends: VecDeque<(usize, u64)>,
    /// Records that were sent, and records that were lost with a connection, since they were taken last.
    sent: u64,
    lost: u64,
    /// It was opened after the last look.
    is_new: bool,
    /// Why it is away.
    why: Option<String>,
}

fn words(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}

impl Connection {
    /// A connection that is to be opened.
    pub fn new(collector: Collector) -> Self {
        let state = State::Away { again: Time::ZERO };
        Self {
            collector,
            state,
            unsent: Vec::new(),
            at: 0,
            ends: VecDeque::new(),
            sent: 0,
            lost: 0,
            is_new: false,
            why: None,
        }
    }

    fn is_tcp(&self) -> bool {
        matches!(self.collector, Collector::Tcp(_))
    }

    /// Why nothing can be sent, since the last try.
    pub fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// Records that were sent since the last call.
    pub fn take_sent(&mut self) -> u64 {
        std::mem::take(&mut self.sent)
    }

    /// Records that were lost with connections since the last call.
    pub fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }

    /// Whether more may be sent.
    pub fn has_room(&self) -> bool {
        self.unsent.len() - self.at < UNSENT_MAX
    }

    /// Whether all was sent.
    pub fn is_flushed(&self) -> bool {
        self.at == self.unsent.len()
    }

    /// Opens it if it is time to, and sends what waits.
    pub fn look(&mut self, now: Time) -> Look {
        if matches!(self.state, State::Away { again } if now >= again) {
            self.open(now);
        }
        self.go_on_connecting(now);
        if self.is_tcp() {
            self.flush(now);
        }
        match self.state {
            State::Open { .. } if std::mem::take(&mut self.is_new) => Look::New,
            State::Open { .. } => Look::Open,
            State::Away { .. } | State::Connecting { .. } => Look::Away,
        }
    }

    fn open(&mut self, now: Time) {
        let address = self.collector.address();
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let kind = if self.is_tcp() { SocketType::STREAM } else { SocketType::DGRAM };
        let opened = socket_with(family, kind, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None);
        let connected = opened.and_then(|socket| match connect(&socket, &address) {
            // UDP has nothing to wait for. TCP may be done on this host: the next look finds that.
            Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
            Err(errno) => Err(errno),
        });
        match connected {
            Ok(socket) if self.is_tcp() => self.state = State::Connecting { socket, since: now },
            Ok(socket) => self.opened(socket, now),
            Err(errno) => self.leave(words(errno), now),
        }
    }

    fn go_on_connecting(&mut self, now: Time) {
        let State::Connecting { socket, since } = &self.state else { return };
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_over = poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&at_once)).is_ok_and(|count| count > 0);
        if !is_over {
            if now.since(*since) >= PATIENCE {
                self.leave("it does not answer".to_owned(), now);
            }
            return;
        }
        match sockopt::socket_error(socket) {
            Ok(Ok(())) => {
                let before = std::mem::replace(&mut self.state, State::Away { again: now });
                if let State::Connecting { socket, .. } = before {
                    self.opened(socket, now);
                }
            }
            Ok(Err(errno)) | Err(errno) => self.leave(words(errno), now),
        }
    }

    fn opened(&mut self, socket: OwnedFd, now: Time) {
        (self.state, self.is_new) = (State::Open { socket, took: now }, true);
        if self.is_tcp() {
            self.why = None;
        }
    }

    /// The connection is over. What was not sent is lost.
    fn leave(&mut self, why: String, now: Time) {
        self.state = State::Away { again: now.after(AGAIN) };
        (self.unsent, self.at) = (Vec::new(), 0);
        self.lost += self.ends.drain(..).map(|(_, records)| records).sum::<u64>();
        (self.why, self.is_new) = (Some(why), false);
    }

    /// Sends a message with so many records, or keeps it until TCP takes it. False: it is lost.
    pub fn send(&mut self, message: &[u8], records: u64, now: Time) -> bool {
        let State::Open { socket, .. } = &self.state else { return false };
        if self.is_tcp() {
            self.unsent.extend_from_slice(message);
            self.ends.push_back((self.unsent.len(), records));
            return true;
        }
        match send(socket, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) => {
                self.why = None;
                self.sent += records;
                true
            }
            // The kernel's queue is full.
            Err(Errno::AGAIN | Errno::NOBUFS) => false,
            Err(errno) => {
                self.leave(words(errno), now);
                false
            }
        }
    }

    /// Sends what TCP takes, and notices whether the collector has closed the connection. Collectors say nothing.
    fn flush(&mut self, now: Time) {
        let State::Open { socket, took } = &mut self.state else { return };
        let mut said = [0; 64];
        let mut over = match recv(&*socket, &mut said[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Some("it has closed the connection".to_owned()),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => None,
            Err(errno) => Some(words(errno)),
        };
        while over.is_none() && self.at < self.unsent.len() {
            match send(&*socket, &self.unsent[self.at..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => (self.at, *took) = (self.at + count, now),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => over = Some(words(errno)),
            }
        }
        while let Some((_, records)) = self.ends.pop_front_if(|(end, _)| *end <= self.at) {
            self.sent += records;
        }
        if self.at == self.unsent.len() {
            self.unsent.clear();
            (self.at, *took) = (0, now);
        } else if now.since(*took) >= PATIENCE {
            over = over.or_else(|| Some(format!("it has taken nothing for {} s", PATIENCE.as_secs())));
        }
        // A collector that is always behind never takes all.
        if self.at >= UNSENT_MAX {
            self.unsent.drain(..self.at);
            self.ends.iter_mut().for_each(|(end, _)| *end -= self.at);
            self.at = 0;
        }
        if let Some(why) = over {
            self.leave(why, now);
        }
    }
}

#[cfg(test)]
#[path = "connection_test.rs"]
mod tests;
