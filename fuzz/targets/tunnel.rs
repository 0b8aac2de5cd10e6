//! The far end of a tunnel: datagrams that are nearly VXLAN.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nicety_fuzz::tunnel::run(data));
