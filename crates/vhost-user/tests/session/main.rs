//! Sessions with our own front end, with the `vhost` crate's, and with hostile peers. The adapter behind them is virtio-net; the
//! port is this test's own.

mod conversation;
mod device_state;
mod frames;
mod hostile;
mod iotlb;
#[path = "../../../peer/tests/lingering/mod.rs"]
mod lingering;
mod port;
mod socket;
