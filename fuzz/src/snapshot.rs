//! Saved states: arbitrary bytes, or an adapter's own state with some bytes changed.

use std::sync::OnceLock;

use nicety_adapters::REGISTRY;
use nicety_trials::random::Random;
use nicety_trials::rig::Rig;
use nicety_trials::{hostile, working};

static SAVED: OnceLock<Vec<Vec<u8>>> = OnceLock::new();

/// Each adapter's state while a driver is at work.
fn saved() -> &'static [Vec<u8>] {
    SAVED.get_or_init(|| {
        let save = |entry: &nicety_adapters::Entry| {
            let mut rig = Rig::new(entry, working::MEMORY, true);
            working::begin(entry.about.name, &mut rig, &mut Random::new(1));
            rig.port.with(rig.now, |adapter, _| adapter.save()).unwrap_or_default()
        };
        REGISTRY.iter().map(save).collect()
    })
}

/// Input: adapter, number of changes, length of the state; then the state or the changes, then the guest's choices.
pub fn run(data: &[u8]) {
    let Some((&[adapter, changes, length], rest)) = data.split_first_chunk() else { return };
    let index = usize::from(adapter) % REGISTRY.len();
    if adapter & 0x80 != 0 {
        let (state, rest) = rest.split_at(usize::from(length).min(rest.len()));
        hostile::run_restored(&REGISTRY[index], state, rest);
        return;
    }
    let mut state = saved()[index].clone();
    let mut choices = Random::of_bytes(rest);
    for _ in 0..changes % 16 {
        let at = choices.below(state.len() as u64) as usize;
        state[at] = choices.below(256) as u8;
    }
    hostile::run_restored(&REGISTRY[index], &state, rest);
}
