//! Saved states, damaged or invented, and traffic on an adapter that has accepted one.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nicety_fuzz::snapshot::run(data));
