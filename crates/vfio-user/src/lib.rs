//! The vfio-user protocol: codec, server and client.
//!
//! A VMM (the client) drives a PCI function in another process (the server) over a UNIX stream socket. QEMU's
//! `docs/interop/vfio-user.rst`, version 0.1, describes the protocol; the structures are those of `<linux/vfio.h>`. This crate
//! knows no particular device, and has no event loop, clock or thread:
//!
//! ```text
//! Listener ──accept──► Session ──decodes──► dyn Device          (server: non-blocking, the caller owns the event loop)
//!                         ▲                    │ raises
//!                      one socket          Interrupts ──eventfd──► the VMM   (any thread)
//!                         ▼
//!                      Client ──answers DMA_READ / DMA_WRITE from── dyn ClientMemory     (blocking, bounded in time)
//! ```
//!
//! - [`codec`] turns bytes into checked requests and back. It does no input or output and trusts no size.
//! - [`Session`] owns an accepted socket: bulk `recvmsg`, file descriptors paired with messages by their position in the
//!   stream, replies sent together, bounded memory both ways.
//! - [`Interrupts`] keeps eventfds, masks and pending interrupts, for INTx, MSI and MSI-X.
//! - [`Listener`] makes and guards the socket in the file system. [`Client`] is the other end.
//!
//! # A device of one register
//!
//! ```
//! use std::time::Duration;
//! use nicety_vfio_user::*;
//!
//! struct Counter { value: u32, interrupts: Interrupts }
//!
//! impl Device for Counter {
//!     fn region(&self, index: u32) -> Option<RegionInfo> {
//!         (index == 0).then(|| RegionInfo::trapped(4096))
//!     }
//!     fn irq_info(&self, index: u32) -> Option<IrqInfo> {
//!         self.interrupts.info(index)
//!     }
//!     fn region_read(&mut self, _region: u32, _offset: u64, data: &mut [u8]) -> Result<(), Errno> {
//!         for (to, from) in data.iter_mut().zip(self.value.to_le_bytes()) {
//!             *to = from;
//!         }
//!         Ok(())
//!     }
//!     fn region_write(&mut self, _region: u32, _offset: u64, _data: &[u8]) -> Result<(), Errno> {
//!         self.value = self.value.wrapping_add(1);
//!         self.interrupts.raise_msix(0);
//!         Ok(())
//!     }
//!     fn dma_map(&mut self, _map: DmaMap) -> Result<Change, Errno> { Ok(Change::Done) }
//!     fn dma_unmap(&mut self, _range: Option<DmaRange>) -> Change { Change::Done }
//!     fn set_irqs(&mut self, set: IrqSet<'_>) -> Result<(), Errno> { self.interrupts.apply(set) }
//!     fn reset(&mut self) -> Result<(), Errno> { self.value = 0; self.interrupts.reset(); Ok(()) }
//! }
//!
//! let (near, far) = std::os::unix::net::UnixStream::pair()?;
//! let server = std::thread::spawn(move || {
//!     let interrupts = Interrupts::new(IrqLayout { msix: 1, ..IrqLayout::default() });
//!     let mut device = Counter { value: 0, interrupts };
//!     let mut session = Session::new(far.into());
//!     loop {
//!         // An event loop would wait here for `wants_read` and `wants_write`.
//!         match session.receive(&mut device) {
//!             Ok(_) => std::thread::yield_now(),
//!             Err(why) => { session.disconnect(&mut device); break why }
//!         }
//!     }
//! });
//! let mut guest = Client::from_socket(near.into(), Duration::from_secs(5), Box::new(NoMemory))?;
//! guest.region_write_posted(0, 0, &[1])?;
//! let mut value = [0; 4];
//! guest.region_read(0, 0, &mut value)?;
//! assert_eq!(value, [1, 0, 0, 0]);
//! drop(guest);
//! assert_eq!(server.join().unwrap(), SessionError::Closed);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod client;
pub mod codec;
mod counters;
mod device;
mod error;
mod interrupts;
mod memory;
mod session;
mod wire;

pub use client::{Client, ClientError, RegionDetails};
pub use codec::irqs::{IrqAction, IrqData, IrqInfo, IrqSet};
pub use codec::region::{Area, Mapping, RegionInfo};
pub use counters::Counters;
pub use device::{Change, Device, DeviceInfo, DmaMap, DmaProtection, DmaRange};
pub use error::SessionError;
pub use interrupts::{
    InterruptCounters, Interrupts, IrqKind, IrqLayout, SavedConnections, SavedInterrupts, SavedVectors,
};
pub use memory::{ClientMemory, MemoryTable, NoMemory};
pub use nicety_peer::{Bell, PeerFd};
pub use nicety_socket::{Accepted, ListenError, Listener, PeerCredentials};
pub use rustix::io::Errno;
pub use session::{Batch, DmaId, DmaRequestError, Progress, SavedSession, Session, Unread, decline};
