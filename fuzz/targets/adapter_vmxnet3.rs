//! Bytes as the choices of a hostile guest of vmxnet3: registers, rings, memory, frames from the wire, time, resets.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some(entry) = nicety_adapters::find("vmxnet3") {
        nicety_trials::hostile::run_bytes(entry, data);
    }
});
