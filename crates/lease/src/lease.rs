//! The rules of a lease.
//!
//! The owner holds a lease. It counts the lease from the moment at which it *asked*. The third party counts from the moment at which it
//! *answered*, which is later. So an owner's lease has always ended for the owner when the third party gives it to another one. The
//! owner ends it a margin earlier, because the two clocks may differ in rate.

use std::fmt;
use std::str::FromStr;

/// One run of a VM or program. One that starts again has another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// A request to the third party. Each is carried out as a whole or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// Own a VM that nobody has ever owned. Not for a run that has had it, and lost it.
    Found,
    /// Own a VM that runs here: nobody owns it, or its owner's lease has run out. Not for a run that has had it, and lost it.
    Begin,
    /// Go on as the owner.
    Renew,
    /// Go on without a secondary: nobody may take the VM over from now on. Only in this epoch.
    Alone {
        /// The epoch that the asking host knows.
        epoch: u32,
    },
    /// From now on `peer` knows all that has left, and may take the VM over when the lease ends. Only in this epoch.
    Pair {
        /// The epoch that the asking host knows.
        epoch: u32,
        /// The secondary.
        peer: NodeId,
    },
    /// Take the VM over.
    Take,
    /// The secondary owns the VM from now on. Refused without a secondary. Asked again after an answer was lost, it is refused, and the
    /// answer names the new owner.
    Give,
    /// Own the VM no longer. Who may take it over may do so at once. If there is none, the VM is gone.
    Release,
}

/// The third party's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Answer {
    /// Whether the request was carried out.
    pub granted: bool,
    /// The owner afterwards.
    pub holder: Option<NodeId>,
    /// It may take the VM over.
    pub peer: Option<NodeId>,
    /// Grows with each change of owner or peer.
    pub epoch: u32,
}

/// Runs that have lost a VM and are remembered. Each is ended by its own host soon.
const PAST: usize = 8;

/// The third party's memory, and its rules. Whoever stores it does each [`Lease::ask`] atomically.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The owner.
    pub holder: Option<NodeId>,
    /// It may take the VM over.
    pub peer: Option<NodeId>,
    /// Grows with each change of the two.
    pub epoch: u32,
    /// Grows with each granted request of the owner: a third party without a clock sees by it that the owner lives.
    pub renewals: u64,
    /// The last owners before this one, the newest first: what they run is stale.
    pub past: [Option<NodeId>; PAST],
}

impl Lease {
    fn lost(&mut self, run: NodeId) {
        let others = self.past.into_iter().flatten().filter(|other| *other != run).map(Some);
        let mut past = std::iter::once(Some(run)).chain(others).chain(std::iter::repeat(None));
        self.past = std::array::from_fn(|_| past.next().flatten());
    }

    /// Carries out a request of `who`. `expired`: the owner has renewed nothing for the whole lease, by the third party's clock.
    pub fn ask(&mut self, who: NodeId, request: Request, expired: bool) -> Answer {
        let owns = self.holder == Some(who);
        let granted = match request {
            Request::Found => owns || (self.holder.is_none() && self.peer.is_none() && !self.past.contains(&Some(who))),
            Request::Begin => owns || ((self.holder.is_none() || expired) && !self.past.contains(&Some(who))),
            Request::Renew | Request::Release => owns,
            Request::Give => owns && self.peer.is_some(),
            Request::Alone { epoch } | Request::Pair { epoch, .. } => owns && epoch == self.epoch,
            // An answer may get lost: asking again is no mistake.
            Request::Take => owns || (self.peer == Some(who) && (expired || self.holder.is_none())),
        };
        if granted {
            let peer = match request {
                Request::Pair { peer, .. } => Some(peer),
                Request::Renew | Request::Release => self.peer,
                Request::Take | Request::Found | Request::Begin if owns => self.peer,
                Request::Found | Request::Begin | Request::Alone { .. } | Request::Take | Request::Give => None,
            };
            let holder = match request {
                Request::Give => self.peer,
                Request::Release => None,
                _ => Some(who),
            };
            let is_about_peer = matches!(request, Request::Alone { .. } | Request::Pair { .. });
            self.epoch += u32::from(holder != self.holder || is_about_peer);
            self.renewals += 1;
            if let Some(run) = self.holder.filter(|left| holder != Some(*left)) {
                self.lost(run);
            }
            (self.holder, self.peer) = (holder, peer);
        }
        Answer { granted, holder: self.holder, peer: self.peer, epoch: self.epoch }
    }
}

/// Digits of the highest count.
const DIGITS: usize = 20;

/// A lease as text, in a file or in etcd:
///
/// ```text
/// holder 1f3a…   the owner, or `-`
/// peer   77c0…   who may take over, or `-`
/// epoch  3
/// renewals 00000000000000001042
/// past 90ce…     owners before
/// ```
/// The renewals always have `DIGITS` digits, so a renewal changes some of them in place, and nothing else.
impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = |id: Option<NodeId>| id.map_or_else(|| "-".to_owned(), |id| format!("{:016x}", id.0));
        let Self { holder, peer, epoch, renewals, past } = *self;
        write!(f, "holder {}\npeer {}\nepoch {epoch}\nrenewals {renewals:0DIGITS$}\npast", id(holder), id(peer))?;
        past.into_iter().flatten().try_for_each(|run| write!(f, " {:016x}", run.0))?;
        f.write_str("\n")
    }
}

/// A text that is no lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no lease")]
pub struct NoLease;

impl FromStr for Lease {
    type Err = NoLease;

    fn from_str(text: &str) -> Result<Self, NoLease> {
        let mut lines = text.lines();
        let id = |text: &str| match text {
            "-" => Some(None),
            text => u64::from_str_radix(text, 16).ok().map(|id| Some(NodeId(id))),
        };
        let mut parse = || {
            let mut value = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
            let (holder, peer) = (id(value("holder")?)?, id(value("peer")?)?);
            let (epoch, renewals) = (value("epoch")?.parse().ok()?, value("renewals")?.parse().ok()?);
            let mut past = Self::default().past;
            // A lease of an earlier version has no such line.
            let runs = lines.next().unwrap_or("past").strip_prefix("past")?.split_whitespace();
            for (to, run) in past.iter_mut().zip(runs) {
                *to = id(run)?;
            }
            Some(Self { holder, peer, epoch, renewals, past })
        };
        parse().ok_or(NoLease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_gives_its_vm_to_the_secondary_in_one_step_and_learns_who_has_it_although_an_answer_was_lost() {
        let [one, two, three] = [1, 2, 3].map(NodeId);
        let mut lease = Lease::default();
        assert!(lease.ask(one, Request::Found, false).granted);
        let alone = lease.ask(one, Request::Give, false);
        assert!(!alone.granted && alone.holder == Some(one), "there is no secondary");
        let epoch = alone.epoch;
        assert!(lease.ask(one, Request::Pair { epoch, peer: two }, false).granted);
        assert!(!lease.ask(two, Request::Give, true).granted && !lease.ask(three, Request::Give, true).granted);
        let given = lease.ask(one, Request::Give, false);
        assert_eq!(given, Answer { granted: true, holder: Some(two), peer: None, epoch: epoch + 2 });
        let again = lease.ask(one, Request::Give, true);
        assert_eq!(again, Answer { granted: false, ..given });
        // The new owner need not wait for anything, and the old one never gets it again.
        assert!(lease.ask(two, Request::Take, false).granted);
        assert!(!lease.ask(one, Request::Begin, true).granted && !lease.ask(three, Request::Begin, false).granted);
        // Nor when the new one has ended, and nobody has it.
        assert!(lease.ask(two, Request::Release, false).granted);
        assert!(!lease.ask(one, Request::Found, true).granted && !lease.ask(one, Request::Begin, true).granted);
    }

    /// A power cut, or a host that reads while another one writes, may leave part of a renewal.
    #[test]
    fn a_renewal_that_is_written_in_part_is_the_same_lease_with_another_count() {
        let (holder, peer) = (Some(NodeId(3)), Some(NodeId(7)));
        let past = std::array::from_fn(|at| (at < 2).then_some(NodeId(9)));
        for renewals in [0, 9, 99, 999_999, u64::MAX - 1] {
            let old = Lease { holder, peer, epoch: 3, renewals, past };
            let new = Lease { renewals: renewals + 1, ..old };
            let texts = [old, new].map(|lease| lease.to_string());
            for at in 0..=texts[0].len() {
                let torn: Lease = format!("{}{}", &texts[1][..at], &texts[0][at..]).parse().unwrap();
                assert_eq!(Lease { renewals, ..torn }, old);
            }
        }
    }

    #[test]
    fn a_lease_is_read_as_it_was_written() {
        let (holder, peer) = (Some(NodeId(u64::MAX)), Some(NodeId(7)));
        let mut lease = Lease { holder, peer, epoch: 3, renewals: 12, ..Lease::default() };
        assert_eq!(lease.to_string().parse(), Ok(lease));
        let text = "holder ffffffffffffffff\npeer 0000000000000007\nepoch 3\nrenewals 00000000000000000012\n";
        assert_eq!(lease.to_string(), format!("{text}past\n"));
        assert_eq!(text.parse(), Ok(lease), "of an earlier version");
        assert_eq!(
            text.replace("renewals 00000000000000000012", "renewals 12").parse(),
            Ok(lease),
            "and of one before"
        );
        lease.past[..2].copy_from_slice(&[Some(NodeId(9)), Some(NodeId(8))]);
        assert_eq!(lease.to_string().parse(), Ok(lease));
        assert_eq!(Lease::default().to_string().parse(), Ok(Lease::default()));
        for text in ["", "holder x\n", "holder -\npeer -\nepoch 3\n", "holder -\npeer -\nepoch -1\nrenewals 0\n"] {
            assert_eq!(text.parse::<Lease>(), Err(NoLease), "{text}");
        }
    }
}
