//! 802.3ad: the members that LACP has agreed on with the partner.

use nicety_adapter::Time;
use nicety_lacp::{Aggregate, Mux, Receive, Settings, View};

use super::mode::Mode;
use super::rule::{Links, Rule};
use super::saved::SavedRule;

/// See the module's page.
#[derive(Debug)]
pub struct Lacp(Aggregate);

impl Lacp {
    /// The LACP of a team of this many members.
    pub fn new(settings: &Settings, members: usize) -> Self {
        Self(Aggregate::new(settings, members))
    }
}

impl Rule for Lacp {
    fn set(&mut self, mode: &Mode, _: Time) -> bool {
        let Mode::Lacp(settings) = mode else { return false };
        self.0.set(settings);
        true
    }

    fn save(&self) -> Option<SavedRule> {
        Some(SavedRule::Lacp(self.0.save()))
    }

    fn restore(&mut self, saved: &SavedRule) -> bool {
        matches!(saved, SavedRule::Lacp(saved) if self.0.restore(saved))
    }

    fn link(&mut self, member: usize, is_up: bool, now: Time) {
        self.0.link(member, is_up, now);
    }

    fn tick(&mut self, now: Time) {
        self.0.tick(now);
    }

    fn hear(&mut self, member: usize, frame: &[u8], now: Time) -> bool {
        self.0.hear(member, frame, now)
    }

    fn speak(&mut self, member: usize, now: Time, send: &mut dyn FnMut(&[u8]) -> bool) {
        self.0.speak(member, now, send);
    }

    fn wake(&self, member: usize) -> Option<Time> {
        self.0.wake(member)
    }

    fn links(&self) -> Links {
        Links { collecting: self.0.collecting(), distributing: self.0.distributing(), lingering: 0 }
    }

    fn words(&self, member: usize, now: Time) -> String {
        self.0.view(member, now).map_or_else(String::new, |view| words(&view))
    }
}

fn words(view: &View) -> String {
    let View { receive, mux, stands_by, partner, is_looped, churns, .. } = view;
    let state = match (receive, mux) {
        (Receive::Disabled, _) => return "no carrier".to_owned(),
        _ if *is_looped => return "its own LACPDUs come back: both ends are here".to_owned(),
        (_, Mux::Distributing) => "active",
        (_, Mux::Collecting) => "takes frames; the partner takes none",
        _ if *stands_by => "stands by",
        (_, Mux::Attached) => "waits for the partner's agreement",
        (_, Mux::Waiting) => "waits for the other links",
        (_, Mux::Detached) => "waits for LACPDUs",
    };
    let partner = match receive {
        Receive::Current => format!("partner {} port {} key {}", partner.system, partner.port, partner.key),
        Receive::Expired if partner.system.0 != [0; 6] => format!("partner {} is silent", partner.system),
        _ => "no partner".to_owned(),
    };
    let churn = match churns {
        [true, _] => "; churn: not in sync for a minute",
        [_, true] => "; churn: the partner has not been in sync for a minute",
        _ => "",
    };
    format!("{state}, {partner}{churn}")
}
