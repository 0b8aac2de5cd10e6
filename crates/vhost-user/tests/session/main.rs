//! Sessions and what can speak to them: our own front end, the `vhost` crate's, and peers that mean no good. The adapter
//! behind them is virtio-net; the port is this test's.

mod conversation;
mod frames;
mod hostile;
#[path = "../../../bell/tests/lingering/mod.rs"]
mod lingering;
mod port;
mod socket;
