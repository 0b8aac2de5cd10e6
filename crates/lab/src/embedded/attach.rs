//! Attaches a guest to an adapter.

use std::path::Path;
use std::time::{Duration, Instant};

use nicety_drivers::{Arena, Made};
use nicety_frame::Mac;

use super::link::{Driven, GuestError, Link};
use super::pair::PairLink;
use super::vfio::VfioBus;
use super::vhost::VhostLink;
use super::words::Attach;

/// Guest memory. All of it is shared with the adapter's server.
const MEMORY_BYTES: u64 = 32 << 20;
/// The first page stays unused, so that address 0 belongs to no ring or buffer.
const ARENA_BASE: u64 = 4096;
/// Time limit for the server's socket to appear.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Attaches a guest. Retries until the server's socket exists.
pub fn attach(attach: &Attach) -> Result<Box<dyn Link>, GuestError> {
    let begun = Instant::now();
    loop {
        let tried: Result<Box<dyn Link>, GuestError> = match attach {
            Attach::VfioUser { driver, socket } => vfio(driver, socket),
            Attach::VhostUser { socket } => vhost(socket),
            Attach::Pair { socket, mac } => match PairLink::connect(socket, Mac(*mac)) {
                Ok(link) => Ok(Box::new(link)),
                Err(errno) => Err(GuestError::Peer(format!("{}: {errno}", socket.display()))),
            },
        };
        match tried {
            // The daemon has not created its sockets yet.
            Err(_) if begun.elapsed() < TIMEOUT => std::thread::sleep(Duration::from_millis(10)),
            other => return other,
        }
    }
}

fn vfio(name: &str, socket: &Path) -> Result<Box<dyn Link>, GuestError> {
    let arena = Arena::new(ARENA_BASE, MEMORY_BYTES - ARENA_BASE);
    let found = nicety_adapters::find(name).and_then(|entry| nicety_drivers::find(entry.about.pci));
    let Some(Made::Pci(driver)) = found.map(|entry| (entry.make)(arena)) else {
        return Err(GuestError::Peer(format!("there is no driver for \"{name}\"")));
    };
    let bus = VfioBus::connect(socket, MEMORY_BYTES).map_err(|error| GuestError::Peer(error.to_string()))?;
    Ok(Box::new(Driven::open(driver, bus)?))
}

fn vhost(socket: &Path) -> Result<Box<dyn Link>, GuestError> {
    let arena = Arena::new(ARENA_BASE, MEMORY_BYTES - ARENA_BASE);
    Ok(Box::new(VhostLink::open(socket, MEMORY_BYTES, arena)?))
}
