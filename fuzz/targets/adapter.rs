//! Input bytes are the choices of a hostile guest: an adapter of the registry, then registers, rings, memory, frames from the
//! wire, time, resets.
#![no_main]

use nicety_adapters::REGISTRY;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some((which, choices)) = data.split_first() {
        nicety_trials::hostile::run_bytes(&REGISTRY[usize::from(*which) % REGISTRY.len()], choices);
    }
});
