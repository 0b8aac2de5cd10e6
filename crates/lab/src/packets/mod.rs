//! Frames per second between two vhost-user ports: our learning switch compared with testpmd's own forwarding.
//!
//! ```text
//! core A   testpmd: capture 0 → virtio-user 0 ═╗            ╔═ virtio-user 1 ← capture 1      (received frames are discarded)
//! core B                              vhost-user │ nicety, or testpmd `io`, or testpmd `mac` │ vhost-user
//! ```
//!
//! Traffic flows in both directions at once. The figure is the sum of the frames that leave both ports. Every sample starts its
//! processes anew, and the servers alternate, so that other load on the machine affects all of them alike.
//!
//! The generator drops a frame when the server's ring is full. If it drops none, the generator is the limit, not the server, and no faster
//! server would show a higher figure. So each cell tells which share of the generated frames came through.

mod bridge;
mod floods;
mod ovs;
mod testpmd;
mod traffic;

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub use bridge::Bridge;
use floods::{Counts, WITNESS};
use nicety_guests::{Layer, Served};
pub use ovs::{Ovs, PACKAGES as OVS_PACKAGES};
pub use testpmd::{PACKAGES, Testpmd};
pub use traffic::Traffic;

use crate::statistics::{Estimate, paired_ratio};

/// Time for which frames flow before a sample begins.
const WARM: Duration = Duration::from_millis(800);
/// Most time until our switch knows all addresses: on a slow machine the generator drops most frames, so an address may come late.
const LEARNING: Duration = Duration::from_secs(10);
/// Duration of a sample.
const SAMPLE: Duration = Duration::from_millis(1000);
/// Time limit for a server's sockets to appear.
const START: Duration = Duration::from_secs(10);

/// The reason why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// testpmd could not be unpacked.
    #[error(transparent)]
    Lay(#[from] nicety_guests::Error),
    /// A program did not start.
    #[error("{program} could not be started: {source}")]
    Program {
        /// The program.
        program: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A program ended, or did not answer in time.
    #[error("{program} ended or did not answer; it had said\n{said}")]
    Ended {
        /// The program.
        program: &'static str,
        /// Its last lines.
        said: String,
    },
    /// The folder for our files cannot be used.
    #[error("the folder {folder} cannot be used: {source}")]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Our switch did not know all addresses.
    #[error(
        "nicety flooded {flooded} of {sent} frames, and {most} were expected at most: it does not know all addresses, so the sample says \
         nothing about a learning switch. Raise `addresses` and `port_addresses` in the host file of the measurement, or let frames flow \
         for longer before the sample"
    )]
    Flooded {
        /// Frames flooded in the sample.
        flooded: u64,
        /// All frames in the sample.
        sent: u64,
        /// Most frames that may be flooded: those for addresses without room in their set of the table.
        most: u64,
    },
}

/// The server of the two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// The daemon: a learning switch.
    Nicety,
    /// testpmd, which leaves frames unchanged.
    Io,
    /// testpmd, which rewrites addresses.
    Mac,
}

impl Server {
    /// All of them, in the order of a round.
    pub const ALL: [Server; 3] = [Server::Nicety, Server::Io, Server::Mac];
}

/// Ring format of the generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rings {
    /// Split rings.
    Split,
    /// Packed rings (VIRTIO_F_RING_PACKED).
    Packed,
}

/// Programs and parameters of a measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The daemon's program.
    pub nicety: PathBuf,
    /// Folder for sockets and captures: an empty folder of the caller's.
    pub folder: PathBuf,
    /// Cores of the generator and of the server.
    pub cores: [u16; 2],
    /// Number of rounds; each takes one sample of each server.
    pub rounds: usize,
    /// Frame sizes in bytes on the wire, check sequence included.
    pub wire_bytes: Vec<u16>,
    /// Numbers of addresses behind each port.
    pub addresses: Vec<u32>,
    /// The generator's ring format.
    pub rings: Rings,
}

/// The samples for one frame size and number of addresses, in million frames per second, by [`Server::ALL`].
#[derive(Clone, Debug)]
pub struct Cell {
    /// Bytes of a frame on the wire.
    pub wire_bytes: u16,
    /// Addresses behind each port.
    pub addresses: u32,
    /// Samples in the order of rounds.
    pub samples: [Vec<f64>; 3],
    /// Of the frames that the generator made, those that were received again: 0 to 1, for each sample.
    pub shares: [Vec<f64>; 3],
}

impl Cell {
    /// A line of the table: each server's median and interval, and the ratio of ours to testpmd's `io`.
    pub fn line(&self) -> String {
        let shown = |estimate: Option<Estimate>| match estimate {
            None => "-".to_owned(),
            Some(Estimate { median, interval: None, .. }) => format!("{median:.2}"),
            Some(Estimate { median, interval: Some(i), .. }) => format!("{median:.2} [{:.2}, {:.2}]", i.low, i.high),
        };
        let [ours, io, mac] = &self.samples;
        format!(
            "{:>6} {:>9}  {:<20} {:<20} {:<20} {:<18} {}",
            self.wire_bytes,
            self.addresses,
            shown(Estimate::of(ours)),
            shown(Estimate::of(io)),
            shown(Estimate::of(mac)),
            shown(paired_ratio(ours, io)),
            self.shares
                .each_ref()
                .map(|of| Estimate::of(of).map_or("-".to_owned(), |e| format!("{:.2}", e.median)))
                .join(" "),
        )
    }

    /// The head of the table.
    pub const HEAD: &'static str = " bytes addresses  nicety (learning)    testpmd io           testpmd mac          nicety / io        \
                                    share carried by each";
}

/// A server while it runs.
#[derive(Debug)]
enum Running {
    Nicety(Child),
    Testpmd(#[expect(dead_code, reason = "ends when dropped")] Testpmd),
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Self::Nicety(child) = self {
            // The daemon may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Plan {
    /// Measures all cells. Calls `each` with every complete cell, `progress` with a line for each sample.
    ///
    /// # Errors
    /// The first error stops the measurement. No process is left running.
    pub fn run(&self, layer: &Layer, each: &mut dyn FnMut(&Cell), progress: &mut dyn FnMut(&str)) -> Result<(), Error> {
        for &wire_bytes in &self.wire_bytes {
            for &addresses in &self.addresses {
                let mut cell = Cell { wire_bytes, addresses, samples: Default::default(), shares: Default::default() };
                let captures = [0, 1].map(|port| self.folder.join(format!("{port}.pcap")));
                for (port, path) in [0, 1].into_iter().zip(&captures) {
                    Traffic { port, addresses, wire_bytes }.write(path).map_err(|source| self.folder_error(source))?;
                }
                for round in 0..self.rounds {
                    for (i, server) in Server::ALL.into_iter().enumerate() {
                        let (carried, made) = self.sample(layer, server, [&captures[0], &captures[1]], addresses)?;
                        progress(&format!(
                            "{wire_bytes} B, {addresses} addresses, round {}: {server:?} {carried:.2} of {made:.2}",
                            round + 1
                        ));
                        cell.samples[i].push(carried);
                        cell.shares[i].push(carried / made);
                    }
                }
                each(&cell);
            }
        }
        Ok(())
    }

    fn folder_error(&self, source: io::Error) -> Error {
        Error::Folder { folder: self.folder.clone(), source }
    }

    /// Million frames per second: those that left the server's ports, and those that the generator made.
    fn sample(&self, layer: &Layer, server: Server, captures: [&Path; 2], addresses: u32) -> Result<(f64, f64), Error> {
        let sockets = ["a.sock", "b.sock"].map(|name| self.folder.join(name));
        for socket in &sockets {
            match std::fs::remove_file(socket) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(self.folder_error(source)),
                _ => {}
            }
        }
        let sockets = [sockets[0].as_path(), sockets[1].as_path()];
        let [source, target] = self.cores;
        let _running = match server {
            Server::Nicety => Running::Nicety(self.nicety(sockets)?),
            Server::Io => Running::Testpmd(Testpmd::forward(layer, "io", sockets, [target, source])?),
            Server::Mac => Running::Testpmd(Testpmd::forward(layer, "mac", sockets, [target, source])?),
        };
        let frames = addresses.max(256);
        let mut generator = Testpmd::generate(layer, captures, sockets, frames, self.rings, self.cores)?;
        sleep(WARM);
        let begin = Instant::now();
        let mut before = self.counts(server)?;
        while let Some(earlier) = before {
            sleep(WARM / 4);
            before = self.counts(server)?;
            let knows_all = before.is_none_or(|now| now.check(earlier, addresses, self.places()).is_ok());
            if knows_all || begin.elapsed() > LEARNING {
                break;
            }
        }
        for port in 0..4 {
            generator.received_per_second(port)?;
        }
        sleep(SAMPLE);
        let mut received = [0.0; 4];
        for (port, rate) in (0..).zip(&mut received) {
            *rate = generator.received_per_second(port)? / 1e6;
        }
        if let (Some(before), Some(after)) = (before, self.counts(server)?) {
            after.check(before, addresses, self.places())?;
        }
        let [first, out, back, last] = received;
        Ok((out + back, first + last))
    }

    /// Places of our switch's address table: enough for the most addresses of all cells.
    fn places(&self) -> u64 {
        floods::places(self.addresses.iter().copied().max().unwrap_or_default())
    }

    fn control(&self) -> PathBuf {
        self.folder.join("control.sock")
    }

    /// The frames that our switch has counted; `None` if the server is another one.
    fn counts(&self, server: Server) -> Result<Option<Counts>, Error> {
        if server != Server::Nicety {
            return Ok(None);
        }
        let counts = Served::ask_at(&self.control()).and_then(|answer| Counts::in_answer(&answer));
        let said = || format!("{} does not tell the counters of its ports", self.control().display());
        counts.map(Some).ok_or_else(|| Error::Ended { program: "nicety", said: said() })
    }

    /// The daemon on its core, with two virtio-net ports, and one that gets flooded frames only.
    fn nicety(&self, sockets: [&Path; 2]) -> Result<Child, Error> {
        // No limit for a port, so that all addresses are learned.
        let most = self.places();
        let mut host = format!("[switch]\nname = \"packets\"\naddresses = {most}\nport_addresses = {most}\n");
        host.push_str(&format!(
            "[daemon]\ncontrol = \"{}\"\nlisted = false\nbusy_poll = \"always\"\n",
            self.control().display()
        ));
        let witness = self.folder.join("witness.sock");
        let [one, other] = sockets;
        for (i, (name, socket)) in [("port0", one), ("port1", other), (WITNESS, &witness)].into_iter().enumerate() {
            host.push_str(&format!(
                "[[port]]\nname = \"{name}\"\nadapter = \"virtio-net\"\nmac = \"52:54:00:00:00:0{i}\"\nsocket = \"{}\"\n",
                socket.display()
            ));
        }
        let file = self.folder.join("host.toml");
        std::fs::write(&file, host).map_err(|source| self.folder_error(source))?;
        let mut command = Command::new("taskset");
        command.args(["-c", &self.cores[1].to_string()]).arg(&self.nicety).arg("serve").arg(&file);
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut child = spawned.map_err(|source| Error::Program { program: "taskset (of util-linux)", source })?;
        let begin = Instant::now();
        while !sockets.iter().all(|socket| socket.exists()) {
            let ended = !matches!(child.try_wait(), Ok(None));
            if ended || begin.elapsed() > START {
                // The daemon may have ended already.
                let _ = child.kill();
                let _ = child.wait();
                let said = format!("its sockets are not there: try {} serve {}", self.nicety.display(), file.display());
                return Err(Error::Ended { program: "nicety", said });
            }
            sleep(Duration::from_millis(20));
        }
        Ok(child)
    }
}
