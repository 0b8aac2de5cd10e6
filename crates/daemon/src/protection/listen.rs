//! The thread that accepts connections of other daemons: each belongs to the VM that its first message names.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nicety_link::{Link, Listener, Place, Secret, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::warn;

use super::note::{Bell, Board, Note};
use super::wire::{Line, VERSION, Wire};

/// Most connections whose first message has not come.
const STRANGERS_MAX: usize = 64;
/// A complaint about the same address comes again after this time.
const COMPLAINT: Duration = Duration::from_secs(60);
/// The pause after a connection that the system could not give.
const REFUSED: Duration = Duration::from_millis(100);
/// Addresses whose complaints are remembered.
const COMPLAINTS_MAX: usize = 256;

struct Stranger {
    line: Line,
    from: Place,
    since: Instant,
}

/// See the module's page.
pub(super) struct Acceptor {
    listener: Listener,
    secret: Secret,
    boards: BTreeMap<String, Arc<Board>>,
    bell: Arc<Bell>,
    strangers: Vec<Stranger>,
    complaints: BTreeMap<String, Instant>,
}

impl Acceptor {
    pub fn new(listener: Listener, secret: Secret, boards: BTreeMap<String, Arc<Board>>, bell: Arc<Bell>) -> Self {
        Self { listener, secret, boards, bell, strangers: Vec::new(), complaints: BTreeMap::new() }
    }

    pub fn run(mut self) {
        while !self.bell.has_ended() {
            self.wait();
            let now = Instant::now();
            self.accept(now);
            for stranger in std::mem::take(&mut self.strangers) {
                self.hear(stranger, now);
            }
        }
    }

    fn wait(&self) {
        let mut fds = vec![PollFd::new(&*self.bell, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        let strangers = self.strangers.iter().map(|stranger| &stranger.line.link);
        fds.extend(strangers.map(|link| PollFd::from_borrowed_fd(link.as_fd(), link.events())));
        // A handshake has a limit of its own.
        let look = Timespec { tv_sec: 1, tv_nsec: 0 };
        let _ready = poll(&mut fds, (!self.strangers.is_empty()).then_some(&look));
    }

    fn accept(&mut self, now: Instant) {
        loop {
            let (stream, from) = match self.listener.accept() {
                Ok(came) => came,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // Without descriptors the next look fails as well.
                    std::thread::sleep(REFUSED);
                    return;
                }
            };
            if self.strangers.len() >= STRANGERS_MAX {
                // The one that has said nothing for the longest time gives way.
                let oldest = self.strangers.iter().enumerate().min_by_key(|(_, stranger)| stranger.since);
                oldest.map(|(at, _)| at).into_iter().for_each(|at| drop(self.strangers.remove(at)));
            }
            let socket = match stream {
                Stream::Tcp(stream) => stream.into(),
                Stream::Unix(stream) => stream.into(),
            };
            match Link::accept(socket, &self.secret) {
                Ok(link) => self.strangers.push(Stranger { line: Line::new(link), from, since: now }),
                Err(why) => self.complain(&from, &why.to_string(), now),
            }
        }
    }

    fn hear(&mut self, mut stranger: Stranger, now: Instant) {
        match stranger.line.first() {
            Ok(None) if now - stranger.since < nicety_link::HANDSHAKE_TIME_MAX => self.strangers.push(stranger),
            Ok(None) => self.complain(&stranger.from, "it has said nothing", now),
            Ok(Some(Wire::Hello { version, .. })) if version != VERSION => {
                let why = format!(
                    "its daemon speaks version {version} of this, and this one {VERSION}: replace the older one"
                );
                self.refuse(stranger, &why, now);
            }
            Ok(Some(Wire::Hello { vm, stream, rejoins, .. })) => match self.boards.get(&vm) {
                Some(board) => match stream {
                    None => board.tell(Note::Line(stranger.line, rejoins)),
                    Some(pairing) => board.tell(Note::Stream(pairing, stranger.line.link)),
                },
                None => self.refuse(stranger, &format!("there is no [[vm]] {vm:?} in its host file"), now),
            },
            Ok(Some(_)) => self.complain(&stranger.from, "it does not say which VM it means", now),
            Err(why) => self.complain(&stranger.from, &why, now),
        }
    }

    fn refuse(&mut self, mut stranger: Stranger, why: &str, now: Instant) {
        self.complain(&stranger.from, why, now);
        if stranger.line.send(&Wire::Refused(why.to_owned())) {
            let _sent = stranger.line.turn();
        }
    }

    fn complain(&mut self, from: &Place, why: &str, now: Instant) {
        let host = match from {
            Place::Tcp(address) => address.ip().to_string(),
            Place::Unix(path) => path.display().to_string(),
        };
        let about = format!("{host}: {why}");
        self.complaints.retain(|_, since| now - *since < COMPLAINT);
        if self.complaints.len() < COMPLAINTS_MAX && !self.complaints.contains_key(&about) {
            warn!("[ft] a connection from {about}");
            self.complaints.insert(about, now);
        }
    }
}
