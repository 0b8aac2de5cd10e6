//! Version 2: a deferred notification was saved as if it were due.

use arrayvec::ArrayVec;
use nicety_adapter::interrupts::{CompletionDelay, ReceiveModeration};
use nicety_adapter::snapshot::{Nothing, Version};
use nicety_adapter::{RestoreError, Time};
use serde::{Deserialize, Serialize};

use super::v3;
use crate::virtio_net::broken::Broken;
use crate::virtio_net::control::Settings;
use crate::virtio_net::registers::Config;
use crate::virtio_net::{PAIRS_MOST, RINGS_MOST};

#[derive(Serialize, Deserialize)]
pub(super) struct State {
    offer: u128,
    features: u128,
    config: Config,
    control: Settings,
    rings: ArrayVec<Queue, RINGS_MOST>,
    resume: ArrayVec<u32, PAIRS_MOST>,
}

#[derive(Serialize, Deserialize)]
struct Queue {
    size: u16,
    descriptors: u64,
    driver: u64,
    device: u64,
    started: bool,
    enabled: bool,
    broken: Option<Broken>,
    next: u16,
    used: u16,
    told: u16,
    quiet: bool,
    starved: bool,
}

impl Version for State {
    const NUMBER: u16 = 2;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

impl Queue {
    /// Converts ring `number` to version 3.
    fn into_next(self, number: usize) -> v3::Queue {
        let Self { size, descriptors, driver, device, started, enabled, broken, next, used, told, quiet, starved } =
            self;
        let (mut moderation, mut delay) = (ReceiveModeration::default(), CompletionDelay::default());
        if used != told && number.is_multiple_of(2) {
            moderation = ReceiveModeration::overdue();
        } else if used != told {
            delay.hurry(Time::default());
        }
        v3::Queue {
            size,
            descriptors,
            driver,
            device,
            started,
            enabled,
            broken,
            next,
            used,
            told,
            quiet,
            starved,
            moderation,
            delay,
            carried: 0,
        }
    }
}

impl State {
    /// Converts to version 3. Deferred notifications have no deadline any more: they are sent first.
    pub(super) fn into_next(self) -> v3::State {
        let Self { offer, features, config, control, rings, resume: _ } = self;
        let rings = rings.into_iter().enumerate().map(|(number, ring)| ring.into_next(number)).collect();
        v3::State { offer, features, config, control, rings }
    }
}
