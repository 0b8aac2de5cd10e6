//! Ports that are closed together. One that takes its time delays no other.

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nicety_frame::Mac;
use nicety_host::{Bytes, PortConfig};
use nicety_switch::Limits;
use tempfile::TempDir;

use super::*;

/// Most time for any step of these tests: less than the 10 s after which a silent front end is disconnected anyway.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A port with this number in its address.
pub(super) fn spec(name: &str, adapter: &str, number: u16, folder: &Path) -> PortSpec {
    PortSpec::plain(PortConfig {
        buffer: Bytes(64 << 10),
        ..PortConfig::new(
            name,
            nicety_adapters::find(adapter).unwrap(),
            Mac([2, 0, 0, 0, (number >> 8) as u8, number as u8]),
            folder.join(format!("{name}.sock")),
        )
    })
}

/// Waits for the end of a connection.
fn sees_its_end(mut vmm: &UnixStream) -> bool {
    vmm.set_read_timeout(Some(TIMEOUT)).unwrap();
    match vmm.read(&mut [0; 64]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

fn until_attached(daemon: &Daemon, count: usize) {
    let end = Instant::now() + TIMEOUT;
    while daemon.views().iter().filter(|view| view.state.attached).count() < count {
        assert!(Instant::now() < end, "{count} are not attached");
        std::thread::yield_now();
    }
}

/// The thread of a vhost-user port needs the port's lock to end. Here the lock is held until every other port's VMM has seen its
/// end: ports that wait for each other would never end.
#[test]
fn no_port_waits_for_the_end_of_another_ones_thread() {
    const PORTS: u8 = 8;
    let folder = TempDir::new().unwrap();
    let daemon = Daemon::start(Limits::default(), 1).unwrap();
    let vmms: Vec<UnixStream> = (1..=PORTS)
        .map(|number| {
            let spec = spec(&format!("vm{number}"), "virtio-net", number.into(), folder.path());
            daemon.open(spec.clone()).unwrap();
            UnixStream::connect(&spec.config.socket).unwrap()
        })
        .collect();
    until_attached(&daemon, PORTS.into());
    let slow = Arc::clone(&daemon.ports()[&PortId(1)].port);
    let waiting = std::thread::scope(|scope| {
        // A panic in here would be the port's.
        slow.with_rings(daemon.clock.now(), |_, _| {
            scope.spawn(|| daemon.stop());
            vmms[1..].iter().filter(|vmm| !sees_its_end(vmm)).count()
        })
    });
    assert_eq!(waiting, Some(0));
    assert!(daemon.views().is_empty());
}
