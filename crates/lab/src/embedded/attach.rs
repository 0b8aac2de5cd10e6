//! Attaches a guest to an adapter.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nicety_drivers::{Arena, Made};
use nicety_frame::Mac;
use nicety_memory::shared_file;

use super::link::{Driven, GuestError, Link};
use super::pair::PairLink;
use super::tap::TapLink;
use super::vfio::VfioBus;
use super::vhost::VhostLink;
use super::words::Attach;

/// Guest memory. All of it is shared with the adapter's server.
const MEMORY_BYTES: u64 = 32 << 20;
/// The first page stays unused, so that address 0 belongs to no ring or buffer.
const ARENA_BASE: u64 = 4096;
/// Time limit for the server's socket to appear: on a machine with many processes the daemon starts slowly.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Attaches a guest. Retries until the server's socket exists.
pub fn attach(attach: &Attach) -> Result<Box<dyn Link>, GuestError> {
    let begun = Instant::now();
    loop {
        let tried: Result<Box<dyn Link>, GuestError> = match attach {
            Attach::VfioUser { driver, socket, memory } => vfio(driver, socket, memory.as_deref()),
            Attach::VhostUser { socket, memory } => vhost(socket, memory.as_deref()),
            Attach::Pair { socket, mac } => match PairLink::connect(socket, Mac(*mac)) {
                Ok(link) => Ok(Box::new(link)),
                Err(errno) => Err(GuestError::Peer(format!("{}: {errno}", socket.display()))),
            },
            Attach::Tap { name, mac } => TapLink::open(name, Mac(*mac)).map(|link| -> Box<dyn Link> { Box::new(link) }),
        };
        match tried {
            // The daemon has not created its sockets yet.
            Err(_) if begun.elapsed() < TIMEOUT => std::thread::sleep(Duration::from_millis(10)),
            other => return other,
        }
    }
}

/// The file of a guest's memory, in this folder or by memfd. No other process opens it by its name.
fn memory_file(folder: Option<&Path>) -> Result<OwnedFd, GuestError> {
    let Some(folder) = folder else {
        return shared_file("nicety-guest", MEMORY_BYTES).map_err(|error| GuestError::Peer(error.to_string()));
    };
    let path = folder.join(format!("nicety-guest-{}", std::process::id()));
    let made = File::options().read(true).write(true).create_new(true).open(&path);
    let made = made.and_then(|file| {
        std::fs::remove_file(&path)?;
        file.set_len(MEMORY_BYTES)?;
        Ok(file.into())
    });
    made.map_err(|error| GuestError::Peer(format!("{}: {error}", path.display())))
}

fn vfio(name: &str, socket: &Path, memory: Option<&Path>) -> Result<Box<dyn Link>, GuestError> {
    let arena = Arena::new(ARENA_BASE, MEMORY_BYTES - ARENA_BASE);
    let found = nicety_adapters::find(name).and_then(|entry| nicety_drivers::find(entry.about.pci));
    let Some(Made::Pci(driver)) = found.map(|entry| (entry.make)(arena)) else {
        return Err(GuestError::Peer(format!("there is no driver for \"{name}\"")));
    };
    let bus = VfioBus::connect(socket, memory_file(memory)?, MEMORY_BYTES)
        .map_err(|error| GuestError::Peer(error.to_string()))?;
    Ok(Box::new(Driven::open(driver, bus)?))
}

fn vhost(socket: &Path, memory: Option<&Path>) -> Result<Box<dyn Link>, GuestError> {
    let arena = Arena::new(ARENA_BASE, MEMORY_BYTES - ARENA_BASE);
    Ok(Box::new(VhostLink::open(socket, memory_file(memory)?, MEMORY_BYTES, arena)?))
}
