//! The other end of a pair: messages that are none, packets with offloads that cannot be.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nicety_fuzz::pair::run(data));
