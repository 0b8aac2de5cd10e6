//! A collector's socket. Nothing here waits.
//!
//! A message by TCP counts as sent when the collector's host has acknowledged it: what send(2) has taken is only in this host's memory. By UDP
//! nobody acknowledges. A host that has no collector may say so (ICMP), at the next call for the socket.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use nicety_adapter::Time;
use nicety_host::Collector;
use nicety_ipfix::Port;
use nicety_peer::unacknowledged;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with, sockopt,
};

/// Time between two tries.
const AGAIN: Duration = Duration::from_secs(1);
/// A collector that does not answer, or takes nothing, for this time is left, and tried again.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes that the kernel has not taken yet for a collector by TCP, beyond which nothing is added.
const UNSENT_MAX: usize = 256 << 10;

/// Numbers of records by the ports that their frames came from.
pub(super) type Tally = Vec<(Arc<Port>, u64)>;

fn sum(tally: &Tally) -> u64 {
    tally.iter().map(|(_, records)| records).sum()
}

/// The state of a connection.
#[derive(Debug)]
enum State {
    /// There is none; the next try is at this time.
    Away { again: Time },
    /// TCP connects, since this time.
    Connecting { socket: OwnedFd, since: Time },
    /// There is one.
    Open { socket: OwnedFd, stream: Stream },
}

/// Bytes of a connection by TCP, counted from its first one.
#[derive(Debug, Default)]
struct Stream {
    /// Bytes of all messages.
    queued: u64,
    /// Bytes that the kernel has taken.
    written: u64,
    /// Bytes that the collector's host has acknowledged.
    taken: u64,
    /// The time at which that was more than before, or all.
    took: Time,
    /// The bytes behind `written`.
    unsent: VecDeque<u8>,
    /// Messages that are not acknowledged whole: where each ends, and its records.
    ends: VecDeque<(u64, Tally)>,
}

/// The result of a look at a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing can be sent.
    Away,
    /// It has just been opened. By UDP nobody knows yet whether a collector is there.
    New,
    /// It is open.
    Open,
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct Connection {
    collector: Collector,
    state: State,
    /// Records that were sent, and records that were lost with a connection, since they were taken last.
    sent: u64,
    lost: Tally,
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
        Self { collector, state, sent: 0, lost: Tally::new(), is_new: false, why: None }
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
    pub fn take_lost(&mut self) -> Tally {
        std::mem::take(&mut self.lost)
    }

    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    /// Whether more may be sent.
    pub fn has_room(&self) -> bool {
        matches!(&self.state, State::Open { stream, .. } if stream.unsent.len() < UNSENT_MAX)
    }

    /// Whether the collector's host has all that was sent. By UDP: whether it has left this host.
    pub fn is_flushed(&self) -> bool {
        !matches!(&self.state, State::Open { stream, .. } if stream.taken < stream.queued)
    }

    /// Opens it if it is time to, notices whether the collector is gone, and sends what waits.
    pub fn look(&mut self, now: Time) -> Look {
        if matches!(self.state, State::Away { again } if now >= again) {
            self.open(now);
        }
        self.go_on_connecting(now);
        let is_new = std::mem::take(&mut self.is_new);
        match self.is_tcp() {
            true => self.flush(now),
            false if !is_new => self.hear(now),
            false => {}
        }
        match self.state {
            State::Open { .. } if is_new => Look::New,
            State::Open { .. } => Look::Open,
            State::Away { .. } | State::Connecting { .. } => Look::Away,
        }
    }

    fn open(&mut self, now: Time) {
        let address = self.collector.address();
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let kind = if self.is_tcp() { SocketType::STREAM } else { SocketType::DGRAM };
        let opened = socket_with(family, kind, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None);
        let connected = opened.and_then(|socket| {
            if self.is_tcp() {
                // The kernel gives up what is left of a closed connection after this time, too.
                sockopt::set_tcp_user_timeout(&socket, PATIENCE.as_millis() as u32)?;
            }
            match connect(&socket, &address) {
                // UDP has nothing to wait for. TCP may be done on this host: the next look finds that.
                Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
                Err(errno) => Err(errno),
            }
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
        let stream = Stream { took: now, ..Stream::default() };
        (self.state, self.is_new) = (State::Open { socket, stream }, true);
        if self.is_tcp() {
            self.why = None;
        }
    }

    /// The connection is over. What the collector has not taken is lost.
    fn leave(&mut self, why: String, now: Time) {
        let before = std::mem::replace(&mut self.state, State::Away { again: now.after(AGAIN) });
        if let State::Open { stream, .. } = before {
            self.lost.extend(stream.ends.into_iter().flat_map(|(_, records)| records));
        }
        (self.why, self.is_new) = (Some(why), false);
    }

    /// Sends a message with these records, or keeps it until TCP takes it. False: it was not sent, and its records are the caller's.
    pub fn send(&mut self, message: &[u8], records: Tally, now: Time) -> bool {
        let is_tcp = self.is_tcp();
        let State::Open { socket, stream } = &mut self.state else { return false };
        if is_tcp {
            stream.unsent.extend(message);
            stream.queued += message.len() as u64;
            stream.ends.push_back((stream.queued, records));
            return true;
        }
        match send(socket, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) => {
                self.sent += sum(&records);
                true
            }
            // The kernel's queue is full: later.
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => false,
            Err(errno) => {
                self.leave(words(errno), now);
                false
            }
        }
    }

    /// By UDP: notices whether the collector's host has refused what was sent before.
    fn hear(&mut self, now: Time) {
        let State::Open { socket, .. } = &self.state else { return };
        match sockopt::socket_error(socket) {
            Ok(Ok(())) => self.why = None,
            Ok(Err(errno)) | Err(errno) => self.leave(words(errno), now),
        }
    }

    /// By TCP: sends what the kernel takes, and notices what the collector has got, and whether it has closed the connection. Collectors say
    /// nothing.
    pub fn flush(&mut self, now: Time) {
        if !self.is_tcp() {
            return;
        }
        let State::Open { socket, stream } = &mut self.state else { return };
        let mut said = [0; 64];
        let over = match recv(&*socket, &mut said[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err("it has closed the connection".to_owned()),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(errno) => Err(words(errno)),
        };
        let over = over.and_then(|()| stream.write(socket).map_err(words));
        // Also of one that is over: it may have got something before.
        stream.note_taken(socket, now);
        while let Some((_, records)) = stream.ends.pop_front_if(|(end, _)| *end <= stream.taken) {
            self.sent += sum(&records);
        }
        let over = over.and_then(|()| match now.since(stream.took) >= PATIENCE {
            true => Err(format!("it has taken nothing for {} s", PATIENCE.as_secs())),
            false => Ok(()),
        });
        if let Err(why) = over {
            self.leave(why, now);
        }
    }
}

impl Stream {
    /// Writes what the kernel takes.
    fn write(&mut self, socket: &OwnedFd) -> Result<(), Errno> {
        while !self.unsent.is_empty() {
            match send(socket, self.unsent.as_slices().0, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => {
                    self.unsent.drain(..count);
                    self.written += count as u64;
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Notes what the collector's host has acknowledged.
    fn note_taken(&mut self, socket: &OwnedFd, now: Time) {
        // Without an answer nothing more is known to be there, and it counts as lost at the end of the connection.
        let Ok(waiting) = unacknowledged(socket) else { return };
        let taken = self.written.saturating_sub(waiting as u64);
        if taken > self.taken || taken == self.queued {
            (self.taken, self.took) = (taken.max(self.taken), now);
        }
    }
}

#[cfg(test)]
#[path = "connection_test.rs"]
mod tests;
