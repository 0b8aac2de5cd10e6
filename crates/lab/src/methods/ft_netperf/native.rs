//! The row without a virtual machine: the client, and the guest's application on smoltcp's TCP, in one thread. What a guest, its adapter and its
//! log cost is what the other rows have less.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::Socket;
use smoltcp::time::Instant as Moment;

use super::{Client, Frames, GUEST, MIN, PORT, SETTLING, SOON, interface, since, socket};
use crate::bench::BenchError;
use crate::record::Taken;
use crate::replay::Application;

/// Bytes that the application writes at a time, as the guest's does.
const WRITE: usize = 4096;

/// The application in the guest's place.
struct Server {
    link: Frames,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    application: Application,
}

impl Server {
    fn new(application: Application) -> Self {
        let mut link = Frames::default();
        let interface = interface(&mut link, 2, GUEST);
        let mut socket = socket();
        // A new socket, and a port that is not 0.
        let _listens = socket.listen(PORT);
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        Self { link, interface, sockets, handle, application }
    }

    /// Runs the application on frames, and takes those that it sends.
    fn run(&mut self, frames: Vec<Vec<u8>>, begun: Instant) -> Vec<Vec<u8>> {
        self.link.received.extend(frames);
        let now = Moment::from_micros((since(begun).0 / 1000).cast_signed());
        self.interface.poll(now, &mut self.link, &mut self.sockets);
        if self.step() {
            self.interface.poll(now, &mut self.link, &mut self.sockets);
        }
        std::mem::take(&mut self.link.sent).into()
    }

    /// One step of the guest's application (`crates/lab/src/replay/replica/application.rs`). Returns whether bytes moved.
    fn step(&mut self) -> bool {
        let socket = self.sockets.get_mut::<Socket<'_>>(self.handle);
        let mut moved = false;
        while socket.can_recv()
            && let Ok(bytes) = socket.recv(|bytes| (bytes.len(), bytes.to_vec()))
        {
            moved = true;
            // A message in flight is shorter than the buffer: all of it is taken.
            let is_echo = self.application == Application::Echo;
            if is_echo && socket.send_slice(&bytes) != Ok(bytes.len()) {
                break;
            }
        }
        if self.application == Application::Generate {
            while socket.can_send()
                && let Ok(1..) = socket.send_slice(&[b'.'; WRITE])
            {
                moved = true;
            }
        }
        moved
    }
}

/// A client and its server, and time.
struct Session {
    begun: Instant,
    client: Client,
    server: Server,
}

impl Session {
    fn turn(&mut self) {
        let sent = self.client.run(self.begun);
        let answers = self.server.run(sent, self.begun);
        self.client.link.received.extend(answers);
    }

    fn pass(&mut self, duration: Duration, stop: &AtomicBool) -> Result<(), BenchError> {
        let end = Instant::now() + duration;
        while Instant::now() < end {
            if stop.load(Ordering::Relaxed) {
                return Err(BenchError::Cancelled);
            }
            self.turn();
        }
        Ok(())
    }
}

/// A run.
pub(super) fn measure(application: Application, duration: Duration, stop: &AtomicBool) -> Result<Taken, BenchError> {
    let (client, server) = (Client::new(application), Server::new(application));
    let mut session = Session { begun: Instant::now(), client, server };
    session.pass(SETTLING, stop)?;
    let (before, begun) = (session.client.moved, Instant::now());
    session.pass(duration, stop)?;
    let end = Instant::now() + SOON;
    while session.client.moved < before + MIN && Instant::now() < end {
        session.turn();
    }
    let (moved, seconds) = (session.client.moved - before, begun.elapsed().as_secs_f64());
    let figures = BTreeMap::from([("throughput".to_owned(), moved as f64 * 8e-6 / seconds)]);
    Ok(Taken { figures, ..Taken::default() })
}

#[cfg(test)]
mod tests {
    use super::super::LOADS;
    use super::*;

    #[test]
    fn each_application_carries_bytes_without_a_guest() {
        for (name, _, application, _) in LOADS {
            let taken = measure(application, Duration::from_millis(20), &AtomicBool::new(false)).unwrap();
            assert!(taken.figures["throughput"] > 0.0, "{name}: {taken:?}");
        }
    }
}
