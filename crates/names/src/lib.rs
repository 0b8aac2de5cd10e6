//! Peers and third parties that have names. A thread of its own asks the system for their addresses: the traffic does not wait for it.
#![forbid(unsafe_code)]

use std::fmt::Display;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// A name is looked up again after this time, while its peer does not answer.
const AGAIN: Duration = Duration::from_secs(1);
/// Most addresses of a name that are tried.
pub const ADDRESSES_MAX: usize = 16;

/// The addresses of a name, or the reason why there are none.
pub type Found = Result<Vec<SocketAddr>, String>;

struct Question {
    host: String,
    port: u16,
    answer: Box<dyn FnOnce(Found) + Send>,
}

/// Asks the thread, which ends after the last copy.
#[derive(Clone, Debug)]
pub struct Names(Sender<Question>);

impl std::fmt::Debug for Question {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

fn look_up(host: &str, port: u16) -> Found {
    let found = (host, port).to_socket_addrs().map_err(|error| error.to_string())?;
    Ok(found.take(ADDRESSES_MAX).collect())
}

impl Names {
    /// Starts the thread.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start() -> io::Result<Self> {
        let (questions, asked) = channel();
        nicety_sandbox::spawn_for_names(move || answer(&asked, look_up))?;
        Ok(Self(questions))
    }

    /// Asks for a host's addresses. The thread calls `answer`; without a thread it is dropped.
    pub fn look_up(&self, host: &str, port: u16, answer: Box<dyn FnOnce(Found) + Send>) {
        let _asked = self.0.send(Question { host: host.to_owned(), port, answer });
    }

    fn ask(&self, host: &str, port: u16) -> Receiver<Found> {
        let (answer, found) = channel();
        let answer = move |addresses| {
            // Its port may be gone.
            let _heard = answer.send(addresses);
        };
        self.look_up(host, port, Box::new(answer));
        found
    }
}

fn answer(asked: &Receiver<Question>, look_up: fn(&str, u16) -> Found) {
    for Question { host, port, answer } in asked {
        answer(look_up(&host, port));
    }
}

/// A peer, at a place of type `P` or behind a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer<P> {
    /// Its place is known.
    Place(P),
    /// Its places are the addresses of this host, which may change.
    Name {
        /// The host.
        host: String,
        /// The TCP port.
        port: u16,
    },
}

impl<P: Display> Display for Peer<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Place(place) => place.fmt(f),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// The places of a peer, one after the other.
#[derive(Debug)]
pub struct Addresses<P> {
    peer: Peer<P>,
    known: Vec<P>,
    next: usize,
    /// The question without an answer, and when the last one was asked.
    question: Option<Receiver<Found>>,
    asked_at: Option<Instant>,
    /// The last question's answer, if it is none.
    why_not: Option<String>,
}

impl<P: Clone + Display + From<SocketAddr>> Addresses<P> {
    /// The places of this peer.
    pub fn of(peer: Peer<P>) -> Self {
        let known = match &peer {
            Peer::Place(place) => vec![place.clone()],
            Peer::Name { .. } => Vec::new(),
        };
        Self { peer, known, next: 0, question: None, asked_at: None, why_not: None }
    }

    /// The place to try now. `None`: its name is being looked up.
    ///
    /// # Errors
    /// The name has no address. For a person.
    pub fn next(&mut self, names: &Names, now: Instant) -> Result<Option<P>, String> {
        self.next_within(names, now, Duration::ZERO)
    }

    /// The same for a thread that may wait for so long for the first answer.
    ///
    /// # Errors
    /// As of [`Addresses::next`].
    pub fn next_within(&mut self, names: &Names, now: Instant, limit: Duration) -> Result<Option<P>, String> {
        self.hear(Duration::ZERO);
        // A name server may take longer than the time after which it is asked again.
        if let Peer::Name { host, port } = &self.peer
            && self.question.is_none()
            && self.asked_at.is_none_or(|at| now.saturating_duration_since(at) >= AGAIN)
        {
            (self.question, self.asked_at) = (Some(names.ask(host, *port)), Some(now));
        }
        self.hear(if self.known.is_empty() { limit } else { Duration::ZERO });
        let address = self.known.get(self.next % self.known.len().max(1)).cloned();
        self.next = self.next.wrapping_add(1);
        match (address, &self.why_not) {
            (None, Some(why)) => Err(format!(
                "{}: no address was found for this name ({why}): see to DNS or /etc/hosts, or write the address instead",
                self.peer
            )),
            (address, _) => Ok(address),
        }
    }

    /// Before a message to a person who knows the peer: the place that was tried, if the peer has a name.
    pub fn tried(&self, address: &P) -> String {
        match &self.peer {
            Peer::Place(_) => String::new(),
            Peer::Name { .. } => format!("{}: ", self.at(address)),
        }
    }

    /// The peer with the place that was tried, for a message to a person.
    pub fn at(&self, address: &P) -> String {
        match &self.peer {
            Peer::Place(_) => address.to_string(),
            Peer::Name { .. } => format!("{} at {address}", self.peer),
        }
    }

    fn hear(&mut self, limit: Duration) {
        let Some(question) = &self.question else { return };
        let found = question.recv_timeout(limit);
        if found != Err(RecvTimeoutError::Timeout) {
            self.question = None;
        }
        match found {
            Ok(Ok(known)) if !known.is_empty() => {
                (self.known, self.why_not) = (known.into_iter().map(P::from).collect(), None);
            }
            Ok(Ok(_)) => self.why_not = Some("it has no address".to_owned()),
            // The addresses of before may still be right.
            Ok(Err(why)) => self.why_not = Some(why),
            // There is none yet, or the thread has ended.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> Addresses<SocketAddr> {
        let (host, port) = text.rsplit_once(':').unwrap();
        Addresses::of(Peer::Name { host: host.to_owned(), port: port.parse().unwrap() })
    }

    /// A system that knows one host, and is asked by hand.
    fn system() -> (Names, Receiver<Question>) {
        let (questions, asked) = channel();
        (Names(questions), asked)
    }

    fn answers(asked: &Receiver<Question>, found: Found) {
        let question = asked.try_recv().expect("a question");
        assert_eq!(format!("{question:?}"), "host2:7001");
        (question.answer)(found);
    }

    #[test]
    fn an_address_is_asked_for_nowhere() {
        let (names, asked) = system();
        let (address, now) = ("[fd00::2]:7001".parse().unwrap(), Instant::now());
        let mut peer: Addresses<SocketAddr> = Addresses::of(Peer::Place(address));
        for _ in 0..3 {
            assert_eq!(peer.next(&names, now), Ok(Some(address)));
        }
        assert!(asked.try_recv().is_err() && peer.tried(&address).is_empty());
    }

    #[test]
    fn the_addresses_of_a_name_are_tried_in_turn_and_looked_up_again_after_a_second() {
        let (names, asked) = system();
        let (mut peer, now) = (named("host2:7001"), Instant::now());
        assert_eq!(peer.next(&names, now), Ok(None));
        assert_eq!(peer.next(&names, now), Ok(None), "nobody waits");
        let [one, two, three] = ["[fd00::2]:7001", "10.0.0.2:7001", "10.0.0.3:7001"].map(|text| text.parse().unwrap());
        answers(&asked, Ok(vec![one, two]));
        let tries: Vec<_> = (0..4).map(|_| peer.next(&names, now).unwrap().unwrap()).collect();
        assert!(tries == [one, two, one, two] || tries == [two, one, two, one], "{tries:?}");
        assert_eq!(peer.tried(&two), "host2:7001 at 10.0.0.2:7001: ");
        assert!(asked.try_recv().is_err(), "once a second");
        let later = now + AGAIN;
        peer.next(&names, later).unwrap();
        answers(&asked, Ok(vec![three]));
        assert_eq!(peer.next(&names, later), Ok(Some(three)));
        // A name server that is gone for a while changes nothing.
        peer.next(&names, later + AGAIN).unwrap();
        answers(&asked, Err("Try again".to_owned()));
        assert_eq!(peer.next(&names, later + AGAIN), Ok(Some(three)));
    }

    /// A name server that is out of reach takes five seconds, and the next one answers.
    #[test]
    fn an_answer_that_takes_longer_than_a_second_is_heard() {
        let (names, asked) = system();
        let (mut peer, now) = (named("host2:7001"), Instant::now());
        for second in 0..5 {
            assert_eq!(peer.next(&names, now + second * AGAIN), Ok(None));
        }
        let address = "10.0.0.2:7001".parse().unwrap();
        answers(&asked, Ok(vec![address]));
        assert!(asked.try_recv().is_err(), "it is asked once");
        assert_eq!(peer.next(&names, now + 5 * AGAIN), Ok(Some(address)));
    }

    #[test]
    fn a_name_without_an_address_is_named_with_the_reason() {
        let (names, asked) = system();
        let (mut peer, now) = (named("host2:7001"), Instant::now());
        assert_eq!(peer.next(&names, now), Ok(None));
        answers(&asked, Err("Name or service not known".to_owned()));
        let why = peer.next(&names, now).unwrap_err();
        assert!(
            why.starts_with("host2:7001: no address was found for this name (Name or service not known): see to DNS"),
            "{why}"
        );
        peer.next(&names, now + AGAIN).unwrap_err();
        answers(&asked, Ok(Vec::new()));
        assert!(peer.next(&names, now + AGAIN).unwrap_err().contains("it has no address"));
    }

    #[test]
    fn the_thread_finds_this_host() {
        let names = Names::start().unwrap();
        let mut peer = named("localhost:7001");
        let address = peer.next_within(&names, Instant::now(), Duration::from_secs(30)).unwrap().unwrap();
        assert!(address.ip().is_loopback() && address.port() == 7001, "{address}");
    }
}
