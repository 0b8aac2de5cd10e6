//! A front end's vhost-user socket: bytes in pieces of any size, almost correct messages, descriptors.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nicety_fuzz::vhost::run(data));
