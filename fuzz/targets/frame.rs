//! Arbitrary frame headers: parsing their layout, checksums, segmentation, hashes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nicety_fuzz::frame::run(data));
