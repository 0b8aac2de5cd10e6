//! The peer's side: a replica of another daemon's adapter, which makes the same calls.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nicety_adapter::tape::{Entry, Player};
use nicety_adapters::find;
use nicety_plane::caught;
use nicety_sealed::{Key, Place};
use rustix::event::PollFlags;
use tracing::{info, warn};

use super::message::{Link, Message};

/// A daemon that says nothing for this long is gone.
const SILENCE: Duration = Duration::from_secs(10);

/// Complaints of peers, which could fill the log: one in this time.
const COMPLAINT: Duration = Duration::from_secs(10);

/// See [`COMPLAINT`].
#[derive(Default)]
pub struct Complaints {
    last: Option<Instant>,
    left_out: u64,
}

impl Complaints {
    /// Logs a complaint, or counts it.
    pub fn tell(&mut self, from: &Place, why: &dyn std::fmt::Display, now: Instant) {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < COMPLAINT) {
            self.left_out += 1;
            return;
        }
        self.last = Some(now);
        match std::mem::take(&mut self.left_out) {
            0 => warn!("the log from {from}: {why}"),
            more => warn!("the log from {from}: {why} ({more} more complaints were left out)"),
        }
    }
}

struct Follows {
    port: String,
    player: Player,
    calls: u64,
}

/// See the module's page.
pub struct Replica {
    link: Link,
    from: Place,
    heard: Instant,
    follows: Option<Follows>,
}

impl AsFd for Replica {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

impl Replica {
    pub fn new(link: Link, from: Place, now: Instant) -> Self {
        Self { link, from, heard: now, follows: None }
    }

    pub fn events(&self) -> PollFlags {
        self.link.events()
    }

    /// Hears, and plays. False if the connection has ended.
    pub fn step(&mut self, key: &Key, now: Instant, complaints: &mut Complaints) -> bool {
        let mut messages = Vec::new();
        let heard = self.link.read(key, &mut messages);
        if !messages.is_empty() {
            self.heard = now;
        }
        for message in messages {
            if let Err(why) = self.hear(message) {
                complaints.tell(&self.from, &why, now);
                self.follows = None;
                self.link.send(&Message::Ends(why));
            }
        }
        let done = heard.and_then(|()| self.link.flush());
        let silence = now.saturating_duration_since(self.heard) > SILENCE;
        let done = done.and_then(|()| if silence { Err(io::Error::other("it says nothing")) } else { Ok(()) });
        if let Err(why) = &done {
            match &self.follows {
                Some(Follows { port, calls, .. }) => {
                    info!("the log of port {port} from {} ends after {calls} calls: {why}", self.from);
                }
                None => complaints.tell(&self.from, why, now),
            }
        }
        done.is_ok()
    }

    fn hear(&mut self, message: Message) -> Result<(), String> {
        match message {
            Message::Begin { port, adapter, made_with, calls } => {
                let entry = find(&adapter).ok_or_else(|| format!("no adapter is called {adapter}"))?;
                let made = (entry.create)(&made_with.settings()?).map_err(|error| error.to_string())?;
                info!("the log of port {port}, an {adapter}, from {} begins", self.from);
                self.follows = Some(Follows { port, player: Player::new(made), calls });
                Ok(())
            }
            Message::Calls { first, entries } => {
                let Some(follows) = &mut self.follows else {
                    // A sign of life.
                    self.link.send(&Message::Known(0));
                    return Ok(());
                };
                if first != follows.calls {
                    return Err(format!("call {first} came in place of call {}", follows.calls));
                }
                follows.calls += entries.len() as u64;
                // They are known here, and played next.
                self.link.send(&Message::Known(follows.calls));
                let _ended = self.link.flush();
                entries.iter().zip(first..).try_for_each(|(entry, number)| play(&mut follows.player, entry, number))
            }
            Message::Known(_) | Message::Ends(_) => Err("that is a peer's message".to_owned()),
        }
    }
}

fn play(player: &mut Player, entry: &Entry, number: u64) -> Result<(), String> {
    match caught(|| player.play(entry)) {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(divergence)) => Err(format!("at call {number} of the port: {divergence}")),
        Err(cause) => Err(format!("at call {number} of the port: {cause}")),
    }
}
