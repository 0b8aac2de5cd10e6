//! A VMM's vfio-user socket: bytes in pieces of any size, messages that are nearly right, descriptors.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nicety_fuzz::vfio::run(data));
