//! Saved states, damaged or invented, and traffic over what an adapter took of them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nicety_fuzz::snapshot::run(data));
