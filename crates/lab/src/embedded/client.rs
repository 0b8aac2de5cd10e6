//! A station's client: one order's connections, from connecting until they are closed.

use std::time::{Duration, Instant};

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, State};

use super::compare::Compare;
use super::words::{Answer, Compared};

/// Time limit for the other side to acknowledge the rest of a stream.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which a sender with a limit writes.
const PACE: Duration = Duration::from_millis(1);

/// A client with its connections.
pub struct Client {
    /// Its connections.
    pub handles: Vec<SocketHandle>,
    /// Bytes of a write.
    pub write_bytes: usize,
    /// Duration of the work, counted from the connection.
    pub span: Duration,
    /// Whether all connections are made.
    pub connected: bool,
    /// End of the work. Before the connection: the time limit to connect.
    pub until: Instant,
    /// Its work.
    pub work: Work,
}

/// The work of a client, then the closing of its connections.
pub enum Work {
    /// A bulk transfer.
    Send(Sending),
    /// Exchanges.
    Transact(Exchanges),
    /// A stream that is compared.
    Compare(Compare),
    /// The other side has until `give_up` to close.
    Closing {
        /// The answer to give.
        answer: Option<Answer>,
        /// The end of waiting.
        give_up: Instant,
    },
    /// The answer follows with the next poll.
    Parting {
        /// The answer to give.
        answer: Option<Answer>,
    },
}

/// A bulk transfer, over all connections together.
#[derive(Default)]
pub struct Sending {
    bytes: u64,
    a_second: Option<u64>,
    begun: Option<Instant>,
}

/// Exchanges of single bytes.
#[derive(Default)]
pub struct Exchanges {
    begun: Option<Instant>,
    sent: Option<Instant>,
    each_ns: Vec<u64>,
}

impl Client {
    /// The latest end of the work, or the next write.
    pub fn deadline(&self, now: Instant) -> Instant {
        match self.work {
            Work::Closing { give_up, .. } => give_up,
            Work::Send(Sending { a_second: Some(_), .. }) if self.connected => self.until.min(now + PACE),
            Work::Compare(ref compare) if now >= self.until => compare.stands_at(self.until),
            Work::Compare(Compare { a_second: Some(_), .. }) if self.connected => self.until.min(now + PACE),
            _ => self.until,
        }
    }

    /// Does a piece of the work, or of closing after it. Returns whether anything moved.
    pub fn step(&mut self, sockets: &mut SocketSet<'static>, chunk: &mut [u8], now: Instant) -> bool {
        if !self.connected && self.handles.iter().all(|handle| sockets.get::<Socket<'_>>(*handle).may_send()) {
            (self.connected, self.until) = (true, now + self.span);
        }
        let open = self.handles.iter().all(|handle| sockets.get::<Socket<'_>>(*handle).is_open());
        let mut over = now >= self.until || !open;
        let moved = match (&mut self.work, self.handles.as_slice()) {
            (Work::Send(sending), handles) => {
                let piece = chunk.get(..self.write_bytes).unwrap_or_default();
                sending.step(sockets, handles, piece, now, !over && self.connected)
            }
            (Work::Transact(exchanges), [handle, ..]) => exchanges.step(sockets.get_mut(*handle), chunk, now, over),
            (Work::Compare(compare), [handle, ..]) => {
                let moved = self.connected && compare.step(sockets.get_mut(*handle), chunk, now, over);
                over &= !open || compare.is_whole() || now >= compare.stands_at(self.until);
                moved
            }
            (Work::Transact(_) | Work::Compare(_), []) => return false,
            (Work::Closing { .. }, _) => return self.close(sockets, now),
            (Work::Parting { .. }, _) => return false,
        };
        if over {
            self.end(sockets, now);
        }
        moved || over
    }

    /// Ends the work with its answer, which is given when the connections are closed.
    fn end(&mut self, sockets: &mut SocketSet<'static>, now: Instant) {
        for handle in &self.handles {
            sockets.get_mut::<Socket<'_>>(*handle).close();
        }
        let answer = match &mut self.work {
            Work::Send(Sending { bytes, .. }) => Answer::Sent { bytes: *bytes },
            Work::Transact(Exchanges { begun, each_ns, .. }) => Answer::Transacted {
                elapsed_ns: begun.map_or(0, |begun| now.duration_since(begun).as_nanos() as u64),
                each_ns: std::mem::take(each_ns),
            },
            Work::Compare(Compare { sent, received, different, .. }) => {
                Answer::Compared(Compared { sent: *sent, received: *received, different: *different })
            }
            Work::Closing { .. } | Work::Parting { .. } => return,
        };
        self.work = Work::Closing { answer: Some(answer), give_up: now + TIMEOUT };
    }

    /// Aborts connections that are closed, or that the other side does not close in time.
    fn close(&mut self, sockets: &mut SocketSet<'static>, now: Instant) -> bool {
        let Work::Closing { answer, give_up } = &mut self.work else { return false };
        let closed = self.handles.iter().all(|handle| {
            let state = sockets.get::<Socket<'_>>(*handle).state();
            matches!(state, State::Closed | State::TimeWait | State::FinWait2)
        });
        if !closed && now < *give_up {
            return false;
        }
        // The next poll sends the resets: the other side's service listens again at once.
        for handle in &self.handles {
            sockets.get_mut::<Socket<'_>>(*handle).abort();
        }
        self.work = Work::Parting { answer: answer.take() };
        true
    }
}

impl Sending {
    /// A transfer of at most so many bytes a second.
    pub fn new(a_second: Option<u64>) -> Sending {
        Sending { a_second, ..Sending::default() }
    }

    /// Fills the connections if it `writes`. They take turns, a write of `piece` each, as an application's threads do.
    fn step(
        &mut self,
        sockets: &mut SocketSet<'static>,
        handles: &[SocketHandle],
        piece: &[u8],
        now: Instant,
        writes: bool,
    ) -> bool {
        let before = self.bytes;
        let seconds = now.duration_since(*self.begun.get_or_insert(now)).as_secs_f64();
        let most = self.a_second.map_or(u64::MAX, |most| (most as f64 * seconds) as u64);
        let mut wrote = writes;
        while wrote {
            wrote = false;
            for handle in handles {
                if self.bytes >= most {
                    break;
                }
                let socket = sockets.get_mut::<Socket<'_>>(*handle);
                if socket.can_send() {
                    let n = socket.send_slice(piece).unwrap_or(0);
                    self.bytes += n as u64;
                    wrote |= n > 0;
                }
            }
        }
        self.bytes > before
    }
}

impl Exchanges {
    /// Takes an answer, and sends the next byte.
    fn step(&mut self, socket: &mut Socket<'_>, chunk: &mut [u8], now: Instant, over: bool) -> bool {
        let answered = socket.can_recv() && socket.recv_slice(chunk).is_ok();
        if let (true, Some(at)) = (answered, self.sent.take_if(|_| answered)) {
            self.each_ns.push(u64::try_from(now.duration_since(at).as_nanos()).unwrap_or(u64::MAX));
        }
        let next = !over && self.sent.is_none() && socket.can_send() && socket.send_slice(&[1]).is_ok();
        if next {
            self.sent = Some(now);
            self.begun.get_or_insert(now);
        }
        answered || next
    }
}
