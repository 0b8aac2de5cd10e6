//! Saved state (between batches, with nothing in flight).

use arrayvec::ArrayVec;
use nicety_adapter::{RestoreError, Snapshot, Time, snapshot};
use serde::{Deserialize, Serialize};

use super::control::Control;
use super::registers::Config;
use super::ring::Ring;
use super::{ABOUT, PAIRS_MOST, RINGS_MOST, VirtioNet};
use crate::moderation::Moderation;

const VERSION: u16 = 2;

#[derive(Serialize, Deserialize)]
struct State {
    offer: u128,
    features: u128,
    config: Config,
    control: Control,
    rings: ArrayVec<Ring, RINGS_MOST>,
    resume: ArrayVec<u32, PAIRS_MOST>,
}

impl Snapshot for VirtioNet {
    fn save(&self) -> Vec<u8> {
        // The steering table is not state: it is learnt again from what the guest sends.
        let Self { offer, taken, config, mtu: _, control, steering: _, rings, resume } = self;
        let state = State {
            offer: *offer,
            features: *taken,
            config: *config,
            control: control.clone(),
            rings: rings.clone(),
            resume: resume.clone(),
        };
        snapshot::encode(ABOUT.name, VERSION, &state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), RestoreError> {
        let state: State = snapshot::decode(ABOUT.name, VERSION, saved)?;
        let State { offer, features, config, control, rings, resume } = state;
        if offer != self.offer || config.pairs != self.config.pairs || config.mtu != self.config.mtu {
            return Err(RestoreError::Impossible("it is of an adapter with other features or queues"));
        }
        if features & !offer != 0 {
            return Err(RestoreError::Impossible("the driver took features that are not offered"));
        }
        if rings.len() != self.rings.len() || resume.len() != self.resume.len() {
            return Err(RestoreError::Impossible("another number of rings"));
        }
        if rings.iter().any(|ring| ring.started && !ring.possible()) {
            return Err(RestoreError::Impossible("a ring that lies where none can"));
        }
        if !control.possible(config.pairs) {
            return Err(RestoreError::Impossible("settings of the control queue"));
        }
        let generations: ArrayVec<u32, RINGS_MOST> = self.rings.iter().map(|ring| ring.generation).collect();
        (self.taken, self.config, self.control, self.rings, self.resume) = (features, config, control, rings, resume);
        for (ring, generation) in self.rings.iter_mut().zip(generations) {
            ring.generation = generation.wrapping_add(1);
        }
        for (number, ring) in self.rings.iter_mut().enumerate().filter(|(_, ring)| ring.used != ring.told) {
            if number % 2 == 0 {
                ring.moderation = Moderation::overdue();
            } else {
                ring.patience.hurry(Time::ZERO);
            }
        }
        Ok(())
    }
}
