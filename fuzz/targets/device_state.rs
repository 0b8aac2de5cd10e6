//! The state of another host's port, which a VMM brings along: damaged or invented.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nicety_fuzz::moved::run(data));
