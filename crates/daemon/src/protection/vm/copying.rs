//! The protection that is under way at this host: the twin that is offered, the stream of copies, and what is known of the copies.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nicety_link::Link;
use nicety_protect::{Loads, Pairing};
use nicety_qmp::{Facts, Role as Side, differences};
use rustix::event::PollFlags;

use crate::protection::carrier::{Carrier, Over};
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
        Self { offer: None, link: None, waits_for_link: None, carrier: None, cut_at: None, loads, stops }
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

    /// The stream is of no use any more.
    pub fn stop_carrying(&mut self) {
        self.carrier = None;
    }

    /// The protection's streams are of no use any more.
    pub fn hang(&mut self) {
        (self.carrier, self.cut_at, self.link, self.waits_for_link) = (None, None, None, None);
    }

    /// Carries what is there. Returns whether anything moved.
    ///
    /// # Errors
    /// The stream has ended.
    pub fn turn(&mut self) -> Result<bool, Over> {
        let Some(carrier) = &mut self.carrier else { return Ok(false) };
        carrier.turn().inspect_err(|_| self.carrier = None)
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
