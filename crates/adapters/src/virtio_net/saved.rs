//! Saved state (between batches, with nothing in flight).

use arrayvec::ArrayVec;
use nicety_adapter::snapshot::{Nothing, Version, decode, encode};
use nicety_adapter::{RestoreError, Snapshot};
use serde::{Deserialize, Serialize};

use super::control::Control;
use super::hashing::{Conf, Hashing};
use super::registers::{Config, feature};
use super::ring::Ring;
use super::{ABOUT, RINGS_MAX, VirtioNet};

#[derive(Serialize, Deserialize)]
struct State {
    offer: u128,
    features: u128,
    config: Config,
    control: Control,
    hashing: Conf,
    rings: ArrayVec<Ring, RINGS_MAX>,
}

impl Version for State {
    const NUMBER: u16 = 4;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

impl Snapshot for VirtioNet {
    fn save(&self) -> Vec<u8> {
        // The steering table is not saved: it is learned again from the guest's frames.
        let Self {
            offer,
            taken,
            config,
            mtu: _,
            control,
            steering: _,
            hashing,
            rings,
            kept: _,
            is_part: _,
            paused_until: _,
        } = self;
        let (control, hashing, rings) = (control.clone(), hashing.conf().clone(), rings.clone());
        let state = State { offer: *offer, features: *taken, config: *config, control, hashing, rings };
        encode(ABOUT.name, State::NUMBER, &state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), RestoreError> {
        let state: State = decode(ABOUT.name, saved)?;
        let State { offer, features, config, control, hashing, rings } = state;
        // A newer daemon may offer more features than the driver saw.
        if offer & !self.offer != 0 || config.pairs != self.config.pairs || config.mtu != self.config.mtu {
            return Err(RestoreError::Impossible("it is of an adapter with other features or queues"));
        }
        if features & !offer != 0 {
            return Err(RestoreError::Impossible("the driver took features that are not offered"));
        }
        if rings.len() != self.rings.len() {
            return Err(RestoreError::Impossible("another number of rings"));
        }
        let packed = features & feature::RING_PACKED != 0;
        let possible = |ring: &Ring| ring.possible(features) && (!packed || ring.is_within());
        if rings.iter().any(|ring| ring.started && !possible(ring)) {
            return Err(RestoreError::Impossible("a ring that lies where none can"));
        }
        if !rings.iter().all(|ring| ring.delay.fits()) {
            return Err(RestoreError::Impossible("a delay that is none"));
        }
        if !control.possible(config.pairs) {
            return Err(RestoreError::Impossible("settings of the control queue"));
        }
        if !hashing.possible(config.pairs) {
            return Err(RestoreError::Impossible("settings of the receive hash"));
        }
        let generations: ArrayVec<u32, RINGS_MAX> = self.rings.iter().map(|ring| ring.generation).collect();
        (self.taken, self.config, self.control, self.rings) = (features, config, control, rings);
        self.hashing = Hashing::new(hashing);
        for (ring, generation) in self.rings.iter_mut().zip(generations) {
            ring.generation = generation.wrapping_add(1);
        }
        Ok(())
    }
}
