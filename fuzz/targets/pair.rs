//! The far end of a pair: invalid messages, and packets with impossible offloads.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nicety_fuzz::pair::run(data));
