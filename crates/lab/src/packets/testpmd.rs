//! DPDK's testpmd (Debian package `dpdk-dev`), as a source of frames over virtio-user and as a peer over vhost-user.
//!
//! Its own command line controls it: commands on standard input, answers on standard output.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use nicety_guests::Layer;

use super::{Error, Rings};

/// Packages to unpack: testpmd, and the drivers that it loads.
pub const PACKAGES: &[&str] = &[
    "libc6",
    "dpdk-dev",
    "librte-net-virtio25",
    "librte-net-vhost25",
    "librte-net-pcap25",
    "librte-mempool-ring25",
    "librte-bus-vdev25",
    "coreutils",
];
/// `stdbuf -oL` preloads this library. Without a terminal it makes testpmd write each line at once.
const LINE_BY_LINE: &str = "usr/libexec/coreutils/libstdbuf.so";
/// testpmd's drivers, relative to the libraries.
const DRIVERS: &str = "dpdk/pmds-25.0";
/// Time limit to map memory and configure ports.
const START: Duration = Duration::from_secs(30);
/// Time limit of an answer.
const ANSWER: Duration = Duration::from_secs(5);
/// Buffers of a peer. A generator has two more for each of its frames.
const BUFFERS: u32 = 16_384;
/// Memory per buffer, with DPDK's headers. Without huge pages no buffer crosses a page.
const BUFFER_BYTES: u32 = 4_608;

/// A running testpmd. Dropping it ends it.
#[derive(Debug)]
pub struct Testpmd {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    seen: Vec<String>,
}

/// The common command line: the forwarding thread runs on the first core, the waiting thread on the other.
fn command(layer: &Layer, [core, other]: [u16; 2], buffers: u32) -> Command {
    let mut command = layer.program("usr/bin/dpdk-testpmd");
    command.env("LD_PRELOAD", layer.path(LINE_BY_LINE)).env("_STDBUF_O", "L");
    // `-m` counts in MB. Without huge pages the memory is a memory file.
    let megabytes = 128 + u64::from(buffers) * u64::from(BUFFER_BYTES) / 1_000_000;
    command.args(["-l", &format!("{core},{other}"), "--main-lcore", &other.to_string()]);
    // Shared configuration is locked, and a second process on the machine would end at once.
    command.args(["--no-huge", "-m", &megabytes.to_string(), "--no-telemetry", "--no-pci", "--no-shconf"]);
    let drivers = layer.libraries().join(DRIVERS);
    for driver in ["mempool_ring", "bus_vdev", "net_virtio", "net_vhost", "net_pcap"] {
        command.arg("-d").arg(drivers.join(format!("librte_{driver}.so")));
    }
    command
}

impl Testpmd {
    /// Forwards between two sockets on which it listens. `mode` is `io` (frames unchanged) or `mac` (addresses rewritten).
    pub fn forward(layer: &Layer, mode: &str, sockets: [&Path; 2], cores: [u16; 2]) -> Result<Self, Error> {
        let mut command = command(layer, cores, BUFFERS);
        for (i, socket) in sockets.iter().enumerate() {
            command.arg("--vdev").arg(format!("net_vhost{i},iface={},queues=1", socket.display()));
        }
        Self::start(command, mode, BUFFERS)
    }

    /// Connects to two listening sockets. Sends the frames of a capture file into each of them endlessly, and receives the frames that come
    /// out. The captures are its ports 0 and 3, the sockets 1 and 2.
    pub fn generate(
        layer: &Layer,
        captures: [&Path; 2],
        sockets: [&Path; 2],
        frames: u32,
        rings: Rings,
        cores: [u16; 2],
    ) -> Result<Self, Error> {
        // Buffers hold each capture.
        let buffers = BUFFERS + 2 * frames;
        let mut command = command(layer, cores, buffers);
        let capture = |i: usize| format!("net_pcap{i},rx_pcap={},infinite_rx=1", captures[i].display());
        let socket = |i: usize| {
            let packed = u8::from(rings == Rings::Packed);
            format!("net_virtio_user{i},path={},queues=1,queue_size=1024,packed_vq={packed}", sockets[i].display())
        };
        // `io` forwards between ports 0 and 1, and between 2 and 3.
        for device in [capture(0), socket(0), socket(1), capture(1)] {
            command.arg("--vdev").arg(device);
        }
        Self::start(command, "io", buffers)
    }

    fn start(mut command: Command, mode: &str, buffers: u32) -> Result<Self, Error> {
        command.args(["--", "-i", "--auto-start", "--nb-cores=1", "--port-topology=paired"]);
        command.arg(format!("--forward-mode={mode}")).arg(format!("--total-num-mbufs={buffers}"));
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|source| Error::Program { program: "dpdk-testpmd", source })?;
        let missing = || Error::Ended { program: "dpdk-testpmd", said: String::new() };
        let input = child.stdin.take().ok_or_else(missing)?;
        let output = child.stdout.take().ok_or_else(missing)?;
        let complaints = child.stderr.take().ok_or_else(missing)?;
        let (sender, lines) = channel();
        read_lines(complaints, sender.clone());
        read_lines(output, sender);
        let mut this = Self { child, input, lines, seen: Vec::new() };
        // The prompt ends no line, so an answer proves that testpmd is ready.
        this.say("show config fwd")?;
        this.until(START, |line| line.contains("nb forwarding cores"))?;
        Ok(this)
    }

    fn say(&mut self, command: &str) -> Result<(), Error> {
        writeln!(self.input, "{command}").and_then(|()| self.input.flush()).map_err(|_| self.ended())
    }

    fn ended(&self) -> Error {
        let tail = self.seen.len().saturating_sub(12);
        Error::Ended { program: "dpdk-testpmd", said: self.seen.get(tail..).unwrap_or_default().join("\n") }
    }

    fn until(&mut self, most: Duration, wanted: impl Fn(&str) -> bool) -> Result<String, Error> {
        let begin = Instant::now();
        loop {
            match self.lines.recv_timeout(most.saturating_sub(begin.elapsed())) {
                Ok(line) => {
                    let found = wanted(&line).then(|| line.clone());
                    self.seen.push(line);
                    if let Some(line) = found {
                        return Ok(line);
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Err(self.ended()),
            }
        }
    }

    /// Frames per second that a port has received since the last call, by testpmd's own clock.
    pub fn received_per_second(&mut self, port: u16) -> Result<f64, Error> {
        self.say(&format!("show port stats {port}"))?;
        let line = self.until(ANSWER, |line| line.trim_start().starts_with("Rx-pps:"))?;
        let number = line.split_whitespace().nth(1).and_then(|word| word.parse().ok());
        number.ok_or_else(|| self.ended())
    }
}

fn read_lines(from: impl Read + Send + 'static, to: Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if to.send(line).is_err() {
                return;
            }
        }
    });
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        // testpmd may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
