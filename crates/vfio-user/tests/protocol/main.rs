//! The protocol from outside: our own client, another one, handmade bytes, and hostile peers (vfio-user.rst).

mod bytes;
mod changes;
mod client_and_server;
mod descriptors;
mod dma_messages;
mod floods;
mod hostile;
mod interrupts;
mod kept;
mod kit;
mod late;
#[path = "../../../peer/tests/lingering/mod.rs"]
mod lingering;
mod listener;
mod other_client;
