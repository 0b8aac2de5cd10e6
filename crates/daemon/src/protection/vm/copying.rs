//! The protection that is under way at this host: the twin that is offered, the stream of copies, and what is known of the copies.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nicety_link::Link;
use nicety_protect::{Loads, Pairing};
use nicety_qmp::{Facts, Role as Side, differences};
use rustix::event::PollFlags;

use crate::protection::carrier::{Carrier, Over, Still};
use crate::protection::report::Stops;

/// Within this time after QEMU has closed its stream, its messages may still have been on their way.
const SPOKEN: Duration = Duration::from_millis(50);

/// A twin that the other host offers.
pub(super) struct Offer {
    pub run: u64,
    pub facts: Box<Facts>,
    pub ports: usize,
    /// It may be this VM's twin.
    pub is_checked: bool,
}

impl Offer {
    /// Why it cannot be the twin of a VM that is this now, and has so many ports. Empty: it can.
    pub fn refusals(&self, found: &Result<Box<Facts>, String>, ports: usize) -> Vec<String> {
        let mut why = match found {
            Err(why) => vec![why.clone()],
            Ok(facts) => {
                let mut why = facts.refusals(Side::Primary);
                why.extend(self.facts.refusals(Side::Secondary).into_iter().map(|why| format!("the twin: {why}")));
                why.extend(differences(facts, &self.facts));
                why
            }
        };
        if self.ports != ports {
            why.push(format!(
                "[[vm]] ports names {ports} here, and {} at the other host: name the same number, in the same order",
                self.ports
            ));
        }
        why
    }
}

/// See the module's page.
pub(super) struct Copying {
    /// The twin that is offered, at the owner.
    pub offer: Option<Offer>,
    /// A connection that came for the stream of this protection.
    link: Option<(Pairing, Link)>,
    /// The twin's QEMU listens, and the connection was not there yet.
    waits_for_link: Option<Pairing>,
    carrier: Option<Carrier>,
    /// One of the daemons is being replaced: the bytes that the other one has read of its QEMU's stream, once it has said so.
    sent_there: Option<u64>,
    /// The stream stands still, and has no connection.
    still: Option<Still>,
    /// QEMU has closed its stream, and may be ending.
    cut_at: Option<Instant>,
    /// The copies that the twin has loaded, at the twin.
    pub loads: Loads,
    /// The times for which the VM stood still, at the owner.
    pub stops: Stops,
}

impl Copying {
    /// Nothing is under way for a VM with so many ports.
    pub fn new(ports: usize) -> Self {
        let (loads, stops) = (Loads::new(ports), Stops::default());
        Self {
            offer: None,
            link: None,
            waits_for_link: None,
            carrier: None,
            sent_there: None,
            still: None,
            cut_at: None,
            loads,
            stops,
        }
    }

    /// This VM is copied from now on.
    pub fn begin(&mut self) {
        self.stops.clear();
        self.link = None;
    }

    /// This VM, with so many ports, is the twin from now on.
    pub fn follow(&mut self, ports: usize) {
        self.loads = Loads::new(ports);
    }

    /// The other host has connected for the stream of this protection.
    pub fn joined(&mut self, pairing: Pairing, link: Link) {
        self.link = Some((pairing, link));
    }

    /// The twin's QEMU listens for the copies of this protection.
    pub fn listened(&mut self, pairing: Pairing) {
        self.waits_for_link = Some(pairing);
    }

    /// The connection for the copies, once it is there and the twin's QEMU listens.
    pub fn take_link(&mut self) -> Option<Link> {
        let pairing = self.waits_for_link?;
        let (_, link) = self.link.take_if(|(of, _)| *of == pairing)?;
        self.waits_for_link = None;
        Some(link)
    }

    /// Carries the stream between the other host and this end of QEMU's.
    pub fn carry(&mut self, link: Link, qemu: OwnedFd) {
        self.carrier = Some(Carrier::new(link, qemu));
    }

    /// Nothing more is read of QEMU's stream: the bytes that were. `None`: there is no stream, or it is ending.
    pub fn pause(&mut self) -> Option<u64> {
        if self.is_cut() { None } else { self.carrier.as_mut().map(Carrier::pause) }
    }

    /// The other host's daemon has read so many bytes of its QEMU's stream, and reads nothing more.
    pub fn pauses_there(&mut self, sent: u64) {
        self.sent_there = Some(sent);
    }

    /// After [`Copying::pause`]: it goes on.
    pub fn go_on(&mut self) {
        self.sent_there = None;
        self.carrier.iter_mut().for_each(Carrier::go_on);
    }

    /// Whether nothing of the stream is under way, as far as this host knows.
    pub fn is_still(&self) -> bool {
        self.has_all() && self.carrier.as_ref().is_some_and(|carrier| carrier.is_flushed() && carrier.is_delivered())
    }

    fn has_all(&self) -> bool {
        let sent = self.sent_there;
        sent.zip(self.carrier.as_ref()).is_some_and(|(sent, carrier)| carrier.has_all(sent))
    }

    /// The stream stands still. Ends its connection.
    pub fn stand_still(&mut self) -> Option<Still> {
        if self.has_all() {
            self.still = self.carrier.take().map(Carrier::into_still);
            self.sent_there = None;
        }
        self.still.take()
    }

    /// The stream of another process, which stands still.
    pub fn stands_still(&mut self, still: Still) {
        self.still = Some(still);
    }

    /// Whether the stream can go on over another connection.
    pub fn waits(&self) -> bool {
        self.still.is_some() || self.has_all()
    }

    /// The stream goes on over this connection. `false`: it does not stand still.
    pub fn rejoin(&mut self, link: Link) -> bool {
        let Some(still) = self.stand_still() else { return false };
        self.carrier = Some(Carrier::again(link, still));
        true
    }

    /// The connection that came for this protection's stream, which stands still.
    pub fn take_rejoined(&mut self, pairing: Pairing) -> Option<Link> {
        if !self.waits() {
            return None;
        }
        self.link.take_if(|(of, _)| *of == pairing).map(|(_, link)| link)
    }

    /// The stream is of no use any more.
    pub fn stop_carrying(&mut self) {
        (self.carrier, self.still, self.sent_there) = (None, None, None);
    }

    /// The protection's streams are of no use any more.
    pub fn hang(&mut self) {
        self.stop_carrying();
        (self.cut_at, self.link, self.waits_for_link) = (None, None, None);
    }

    /// Carries what is there. Returns whether anything moved.
    ///
    /// # Errors
    /// The stream has ended.
    pub fn turn(&mut self) -> Result<bool, Over> {
        let Some(carrier) = &mut self.carrier else { return Ok(false) };
        let turned = carrier.turn();
        if turned.is_err() {
            // A daemon that is replaced ends its connections when nothing is under way.
            if let Some(still) = self.stand_still() {
                self.still = Some(still);
                return Ok(false);
            }
            self.carrier = None;
        }
        turned
    }

    /// Bytes that QEMU has written into the stream that there is.
    pub fn written_by_qemu(&self) -> u64 {
        self.carrier.as_ref().map_or(0, |carrier| carrier.carried[0])
    }

    /// QEMU has closed its stream. It may be ending, or not.
    pub fn cut(&mut self, now: Instant) {
        self.cut_at = Some(now);
    }

    /// Whether QEMU has closed its stream, and it is not known yet whether it ends.
    pub fn is_cut(&self) -> bool {
        self.cut_at.is_some()
    }

    /// QEMU has ended, or is not watched any more.
    pub fn forget_cut(&mut self) {
        self.cut_at = None;
    }

    /// Whether a QEMU that has closed its stream lives, for it has said something since. Told once.
    pub fn outlives_cut(&mut self, spoke_at: Option<Instant>) -> bool {
        self.cut_at.take_if(|since| spoke_at.is_some_and(|at| at > *since + SPOKEN)).is_some()
    }

    /// The stream's descriptors, and what to wait for.
    pub fn polled(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.carrier.iter().flat_map(Carrier::polled)
    }

    /// Whether more can be carried at once, whatever the descriptors say.
    pub fn has_more(&self) -> bool {
        self.carrier.as_ref().is_some_and(|carrier| carrier.has_more)
    }

    /// Bytes of QEMU's stream, and on the wire for it, while there is one.
    pub fn bytes(&self) -> Option<(u64, u64)> {
        let Carrier { carried, traffic, .. } = self.carrier.as_ref()?;
        Some((carried.iter().sum(), traffic.iter().sum()))
    }
}
