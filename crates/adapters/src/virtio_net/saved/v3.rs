//! Version 3: every ring was split, and had the index up to which its driver was notified.

use arrayvec::ArrayVec;
use nicety_adapter::RestoreError;
use nicety_adapter::interrupts::{CompletionDelay, ReceiveModeration};
use nicety_adapter::snapshot::Version;
use serde::{Deserialize, Serialize};

use super::v2;
use crate::virtio_net::RINGS_MOST;
use crate::virtio_net::broken::Broken;
use crate::virtio_net::control::Settings;
use crate::virtio_net::hashing::Conf;
use crate::virtio_net::registers::Config;
use crate::virtio_net::ring::Ring;

#[derive(Serialize, Deserialize)]
pub(super) struct State {
    pub offer: u128,
    pub features: u128,
    pub config: Config,
    pub control: Settings,
    pub rings: ArrayVec<Queue, RINGS_MOST>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Queue {
    pub size: u16,
    pub descriptors: u64,
    pub driver: u64,
    pub device: u64,
    pub started: bool,
    pub enabled: bool,
    pub broken: Option<Broken>,
    pub next: u16,
    pub used: u16,
    pub told: u16,
    pub quiet: bool,
    pub starved: bool,
    pub moderation: ReceiveModeration,
    pub delay: CompletionDelay,
    pub carried: u64,
}

impl Version for State {
    const NUMBER: u16 = 3;
    type Before = v2::State;

    fn from_before(before: v2::State) -> Result<Self, RestoreError> {
        Ok(before.into_next())
    }
}

impl Queue {
    fn into_next(self) -> Ring {
        let Self { size, descriptors, driver, device, started, enabled, broken, next, used, told, .. } = self;
        let Self { quiet, starved, moderation, delay, carried, .. } = self;
        let untold = used.wrapping_sub(told);
        let place = Ring { size, descriptors, driver, device, started, enabled, broken, ..Ring::default() };
        Ring { next, used, untold, quiet, starved, moderation, delay, carried, ..place }
    }
}

impl State {
    /// Converts to version 4.
    pub(super) fn into_next(self) -> super::State {
        let Self { offer, features, config, control, rings } = self;
        let rings = rings.into_iter().map(Queue::into_next).collect();
        let (control, hashing) = (control.into_next(), Conf::default());
        super::State { offer, features, config, control, hashing, rings }
    }
}
