//! The hierarchy: a link, its classes, their ports.

use nicety_adapter::Time;

use crate::level::{Level, Pick, Terms};
use crate::{CLASSES_MAX, QUANTUM_BYTES};

/// A port's frames of one class wait in a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    /// The class, from 0.
    pub class: u16,
    /// The port's number.
    pub port: u16,
}

/// The terms of a class, and of its ports in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassTerms {
    /// The class's own.
    pub class: Terms,
    /// Each port's in the class.
    pub each: Terms,
    /// Terms of single ports, by their numbers.
    pub ports: Vec<(u16, Terms)>,
}

/// The lane that is served next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The lane.
    pub lane: Lane,
    /// It may send frames until it has sent this many bytes.
    pub bytes: u32,
}

/// A clock that goes back by more than this was set. Workers differ by less.
const BACK_NS: u64 = 1_000_000_000;

/// See the crate's page.
#[derive(Debug)]
pub struct Scheduler {
    root: Level,
    classes: Vec<Level>,
    picked: Option<(Pick, Pick)>,
    /// The latest time so far.
    latest: Time,
}

impl Scheduler {
    /// Divides a link among classes, at most [`CLASSES_MAX`], and a class among ports 0 to `ports` − 1.
    pub fn new(classes: &[ClassTerms], ports: usize) -> Self {
        let classes = &classes[..classes.len().min(CLASSES_MAX)];
        let mut root = Level::new(classes.len(), Terms::default());
        let level = |(number, terms): (u16, &ClassTerms)| {
            root.set(number, terms.class);
            let mut level = Level::new(ports, terms.each);
            terms.ports.iter().for_each(|(port, terms)| level.set(*port, *terms));
            level
        };
        let classes = (0..).zip(classes).map(level).collect();
        Self { root, classes, picked: None, latest: Time::ZERO }
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.classes.len()
    }

    /// The first frame of a lane waits; it will send `request` bytes when it is served.
    pub fn add(&mut self, Lane { class, port }: Lane, request: u32, now: Time) {
        let Some(level) = self.classes.get_mut(usize::from(class)) else { return };
        level.activate(port, request, now);
        if self.root.is_idle(class) {
            self.root.activate(class, request, now);
        } else {
            self.root.resume(class, now);
        }
    }

    /// The lane that is served next. If all that wait are held by limits, the error says until when; `None` if none waits.
    pub fn pick(&mut self, now: Time) -> Result<Grant, Option<Time>> {
        self.keep_time(now);
        while let Some(class) = self.root.pick(now) {
            let level = &mut self.classes[usize::from(class.member)];
            if let Some(port) = level.pick(now) {
                self.picked = Some((class, port));
                return Ok(Grant { lane: Lane { class: class.member, port: port.member }, bytes: port.request });
            }
            let until = level.limited_until().unwrap_or(now.after_ns(1));
            self.root.suspend(class.member, until);
        }
        Err(self.root.limited_until())
    }

    /// The picked lane sent this many bytes. `next`: it will send as many when it is served again; `None` if nothing of it waits.
    pub fn served(&mut self, bytes: u64, next: Option<u32>, now: Time) {
        let Some((class, port)) = self.picked.take() else { return };
        let level = &mut self.classes[usize::from(class.member)];
        level.served(port, bytes, next, now);
        let request = match (level.active(), next) {
            (0, _) => None,
            (1, Some(next)) => Some(next),
            _ => Some(QUANTUM_BYTES),
        };
        self.root.served(class, bytes, request, now);
    }

    fn keep_time(&mut self, now: Time) {
        if now >= self.latest {
            self.latest = now;
        } else if self.latest.0 - now.0 > BACK_NS {
            self.latest = now;
            self.root.turn_back(now);
            self.classes.iter_mut().for_each(|level| level.turn_back(now));
        }
    }

    /// Whether a lane may send now, past all others: no frame of its class waits, and no limit holds it.
    #[inline]
    pub fn admits(&self, Lane { class, port }: Lane, now: Time) -> bool {
        self.root.is_idle(class)
            && self.root.admits(class, now)
            && self.classes.get(usize::from(class)).is_some_and(|level| level.admits(port, now))
    }

    /// A lane of which no frame waits sent this many bytes.
    #[inline]
    pub fn passed(&mut self, Lane { class, port }: Lane, bytes: u64, now: Time) {
        if let Some(level) = self.classes.get_mut(usize::from(class)) {
            level.passed(port, bytes, now);
            self.root.passed(class, bytes, now);
        }
    }

    /// Whether limits hold frames of a lane, its class's or its own.
    #[inline]
    pub fn is_limited(&self, Lane { class, port }: Lane) -> bool {
        self.root.is_limited(class) || self.classes.get(usize::from(class)).is_some_and(|level| level.is_limited(port))
    }

    /// Whether a lane has a reservation, its class's or its own.
    #[inline]
    pub fn is_reserved(&self, Lane { class, port }: Lane) -> bool {
        self.root.is_reserved(class)
            || self.classes.get(usize::from(class)).is_some_and(|level| level.is_reserved(port))
    }

    /// Nothing waits any more.
    pub fn clear(&mut self) {
        self.root.clear();
        self.classes.iter_mut().for_each(Level::clear);
        self.picked = None;
    }
}
