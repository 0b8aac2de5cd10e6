//! A port's side: sends the port's log to its peer, and opens the gate as it is acknowledged.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nicety_adapter::tape::{Entry, Gate};
use nicety_names::{Addresses, Names};
use nicety_plane::Port;
use nicety_sealed::{Key, Place};
use tracing::{info, warn};

use super::log::{PortTape, Taken};
use super::message::{Link, Message, hello};
use super::{GRACE, SILENCE};

/// A sign of life goes out after this time of silence.
const HEARTBEAT: Duration = Duration::from_millis(100);
/// The time between two tries to connect.
const RETRY: Duration = Duration::from_millis(100);
/// After a replica that differed: another one would soon differ too.
const RETRY_DIFFERED: Duration = Duration::from_secs(10);
/// Most bytes of calls in a message. One call may be longer.
const MESSAGE_BYTES: usize = 128 << 10;
/// Half of what a gate holds: a guest whose gate has less does not wait for its peer any more.
const LOW_PACKETS: u64 = 2048;
const LOW_BYTES: u64 = 512 << 10;
/// The guest waits for this long before the log says so.
const SLOW: Duration = Duration::from_secs(1);

/// See the module's page.
pub struct Sender {
    tape: Arc<PortTape>,
    port: Weak<Port>,
    addresses: Addresses<Place>,
    /// The connection, and its address.
    link: Option<(Link, Place)>,
    retry_at: Instant,
    /// The peer has joined, and the gate was asked for a log.
    has_asked: bool,
    /// Calls that were sent, if a log has begun.
    sent: Option<u64>,
    /// The peer is known to have the state with which the log began.
    begun_at: u64,
    /// Calls that a message brought, and its time, for messages that are not acknowledged.
    times: VecDeque<(u64, Instant)>,
    heard: Instant,
    spoke: Instant,
    /// The gate is closed until then.
    closed_until: Option<Instant>,
    /// Since when the guest waits, and whether the log has said so.
    full_since: Option<Instant>,
    has_told_slow: bool,
}

impl Sender {
    pub fn new(tape: Arc<PortTape>, port: &Arc<Port>, now: Instant) -> Self {
        // A gate that was made closed is one of a port that goes on.
        let closed_until = Some(now + GRACE);
        let port = Arc::downgrade(port);
        let (link, times) = (None, VecDeque::new());
        let addresses = Addresses::of(tape.peer.at());
        Self {
            tape,
            port,
            addresses,
            link,
            retry_at: now,
            has_asked: false,
            sent: None,
            begun_at: 0,
            times,
            heard: now,
            spoke: now,
            closed_until,
            full_since: None,
            has_told_slow: false,
        }
    }

    pub fn link(&self) -> Option<&Link> {
        self.link.as_ref().map(|(link, _)| link)
    }

    /// Does what is due. False if the port is gone.
    pub fn step(&mut self, key: &Key, names: &Names, now: Instant) -> bool {
        let Some(port) = self.port.upgrade() else { return false };
        if self.link.is_none() && now >= self.retry_at {
            self.retry_at = now + RETRY;
            (self.heard, self.has_asked) = (now, false);
            if let Err(why) = self.connect(key, names, now) {
                self.note_why(&why);
            }
        }
        if let Err(why) = self.talk(key, &port, now) {
            self.lose(&why, now);
        }
        if self.closed_until.is_some_and(|until| now >= until) {
            self.closed_until = None;
            self.give_up();
        }
        self.look_at_gate(now);
        true
    }

    /// Tries the next address of the peer, if one is known.
    fn connect(&mut self, key: &Key, names: &Names, now: Instant) -> Result<(), String> {
        let Some(address) = self.addresses.next(names, now)? else { return Ok(()) };
        let link = Link::connect(&address, hello(key));
        let link = link.map_err(|why| format!("{}{why}", self.addresses.tried(&address)))?;
        self.link = Some((link, address));
        Ok(())
    }

    fn talk(&mut self, key: &Key, port: &Port, now: Instant) -> Result<(), String> {
        let Some((mut link, address)) = self.link.take() else { return Ok(()) };
        let spoken = self.talk_on(&mut link, key, port, now);
        spoken.map_err(|why| format!("{}{why}", self.addresses.tried(&address)))?;
        self.link = Some((link, address));
        Ok(())
    }

    fn talk_on(&mut self, link: &mut Link, key: &Key, port: &Port, now: Instant) -> Result<(), String> {
        let mut messages = Vec::new();
        let read = link.read(key, &mut messages);
        if link.is_joined() && !self.has_asked {
            (self.has_asked, self.heard) = (true, now);
            self.tape.commit.want();
            let mut figures = self.tape.figures();
            if !figures.is_protected {
                figures.why_not = Some("the peer is there, and the log begins with the guest's next call".to_owned());
            }
            drop(figures);
            // The next call begins the log: this one, if the guest may send.
            port.may_go(Gate::RELEASED);
        }
        for message in messages {
            self.heard = now;
            self.hear(message, port, now)?;
        }
        self.speak(link, now)?;
        let flushed = link.flush();
        for (sum, more) in self.tape.figures().traffic.iter_mut().zip(link.take_traffic()) {
            *sum += more;
        }
        read.and(flushed).map_err(|error| error.to_string())?;
        if now.saturating_duration_since(self.heard) > SILENCE {
            return Err("it says nothing".to_owned());
        }
        Ok(())
    }

    fn hear(&mut self, message: Message, port: &Port, now: Instant) -> Result<(), String> {
        match message {
            Message::Known(calls) => {
                let Some(sent) = self.sent else { return Ok(()) };
                if calls > sent {
                    return Err("it acknowledges calls that it cannot have".to_owned());
                }
                self.tape.commit.know(calls);
                let mut figures = self.tape.figures();
                figures.known = figures.known.max(calls);
                while let Some((_, at)) = self.times.pop_front_if(|(needs, _)| *needs <= calls) {
                    figures.acknowledged(now.saturating_duration_since(at));
                }
                let is_new = !figures.is_protected && calls >= self.begun_at && self.tape.commit.is_logging();
                figures.is_protected |= is_new;
                drop(figures);
                if is_new {
                    info!(port = self.tape.port, "protected: {} has its adapter's state", self.tape.peer);
                }
                if self.tape.commit.waiting().packets > 0 {
                    port.may_go(Gate::RELEASED);
                }
                Ok(())
            }
            Message::Ends(why) => {
                // The secondary's replica is of no use.
                self.retry_at = now + RETRY_DIFFERED;
                self.note_why(&why);
                self.sent = None;
                self.give_up();
                Err(why)
            }
            Message::Begin { .. } | Message::Calls { .. } => Err("that is no peer's message".to_owned()),
        }
    }

    fn speak(&mut self, link: &mut Link, now: Instant) -> Result<(), String> {
        if !link.is_joined() {
            return Ok(());
        }
        let Taken { begun, mut calls, is_overfull } = self.tape.take();
        if is_overfull {
            return Err("it is too slow: the log is full".to_owned());
        }
        if let Some(begun) = begun {
            let (port, adapter) = (self.tape.port.clone(), self.tape.adapter.to_owned());
            let made_with = Box::new(self.tape.made_with.clone());
            link.send(&Message::Begin { port, adapter, made_with, calls: begun });
            (self.sent, self.begun_at) = (Some(begun), begun + calls.len() as u64);
            self.closed_until = None;
            self.tape.figures().known = begun;
        }
        let Some(mut first) = self.sent else {
            // Nobody makes a call before a VM attaches.
            self.beat(link, 0, now);
            return Ok(());
        };
        while !calls.is_empty() {
            let (mut entries, mut bytes) = (Vec::new(), 0);
            while let Some(entry) =
                calls.pop_front_if(|entry| bytes == 0 || bytes + Entry::cost(entry) <= MESSAGE_BYTES)
            {
                bytes += entry.cost();
                entries.push(entry);
            }
            let count = entries.len() as u64;
            link.send(&Message::Calls { first, entries });
            first += count;
            self.times.push_back((first, now));
            self.spoke = now;
        }
        self.sent = Some(first);
        self.beat(link, first, now);
        Ok(())
    }

    fn beat(&mut self, link: &mut Link, first: u64, now: Instant) {
        if now.saturating_duration_since(self.spoke) >= HEARTBEAT {
            link.send(&Message::Calls { first, entries: Vec::new() });
            self.spoke = now;
        }
    }

    fn note_why(&self, why: &str) {
        self.tape.figures().why_not = Some(why.to_owned());
    }

    /// The peer is gone. A port that it protected waits for it for a while.
    fn lose(&mut self, why: &str, now: Instant) {
        self.link = None;
        self.retry_at = self.retry_at.max(now + RETRY);
        self.sent = None;
        self.times.clear();
        self.note_why(why);
        if self.tape.commit.close() {
            self.closed_until.get_or_insert(now + GRACE);
        } else {
            self.give_up();
        }
        self.tape.end();
    }

    /// The port goes on without its peer.
    fn give_up(&mut self) {
        if self.sent.is_some() {
            return;
        }
        // First: nobody sees a frame that left, and a port that is protected.
        let mut figures = self.tape.figures();
        if std::mem::take(&mut figures.is_protected) {
            let why = figures.why_not.clone().unwrap_or_default();
            warn!(port = self.tape.port, "not protected any more: {}: {why}", self.tape.peer);
        }
        drop(figures);
        self.tape.commit.open();
        if self.has_asked && self.link.is_some() {
            self.tape.commit.want();
        }
        if let Some(port) = self.port.upgrade() {
            port.may_go(Gate::RELEASED);
        }
    }

    /// A guest that waits for a slow peer says so, once. Each acknowledgement lets it go on for a moment, until the gate is full again.
    fn look_at_gate(&mut self, now: Instant) {
        let waiting = self.tape.commit.waiting();
        if waiting.packets < LOW_PACKETS && waiting.bytes < LOW_BYTES {
            (self.full_since, self.has_told_slow) = (None, false);
        } else if waiting.is_full {
            self.full_since.get_or_insert(now);
        }
        let Some(since) = self.full_since else { return };
        if !self.has_told_slow && now.saturating_duration_since(since) >= SLOW {
            self.has_told_slow = true;
            warn!(port = self.tape.port, "its guest waits for {}, which is slow", self.tape.peer);
        }
    }
}
