//! The part that a daemon has in a protection.

use nicety_adapter::Time;
use nicety_protect::{Kept, Owner, Twin};

#[derive(Debug)]
pub enum Role {
    Owner(Owner),
    Twin(Twin),
}

impl Role {
    pub fn kept(&self) -> Option<Kept> {
        match self {
            Self::Owner(owner) => owner.kept(),
            Self::Twin(twin) => twin.kept(),
        }
    }

    pub fn is_paused(&self) -> bool {
        match self {
            Self::Owner(owner) => owner.is_paused(),
            Self::Twin(twin) => twin.is_paused(),
        }
    }

    pub fn pause(&mut self, now: Time) {
        match self {
            Self::Owner(owner) => owner.pause(now),
            Self::Twin(twin) => twin.pause(now),
        }
    }

    pub fn rejoined(&mut self, now: Time) {
        match self {
            Self::Owner(owner) => owner.rejoined(now),
            Self::Twin(twin) => twin.rejoined(now),
        }
    }
}
