//! Two real guests and the measurements between them: ping, and netperf's TCP_STREAM and TCP_RR.
//!
//! Their configurations choose the adapters. [`qemu_peers`] makes the pair with which Nicety is compared: QEMU's own adapter on both
//! sides, QEMU process to QEMU process over its `-netdev stream`.

use std::{sync::atomic::AtomicBool, time::Duration};

use nicety_guests::{Error, Folder, Guest, GuestConfig, Machine, Root};

use super::netperf::{self, Test};

/// The address of [`qemu_peers`]'s left guest, which sends.
pub const LEFT: &str = "10.0.0.1";
/// The address of [`qemu_peers`]'s right guest, which serves.
pub const RIGHT: &str = "10.0.0.2";
/// Time limit beyond the measured time, in a guest without KVM.
const SLACK: Duration = Duration::from_secs(30);

/// Two guests; the left one sends, the right one serves.
#[derive(Debug)]
pub struct Pair {
    /// The guest that sends.
    pub left: Guest,
    /// The guest that serves.
    pub right: Guest,
    _folder: Option<Folder>,
}

/// ping's counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Ping {
    /// Requests sent.
    pub sent: u32,
    /// Replies received.
    pub received: u32,
    /// The mean round trip in milliseconds, if any reply came.
    pub mean_ms: Option<f64>,
}

/// netperf's rate.
#[derive(Debug, Clone, PartialEq)]
pub struct Rate {
    /// TCP_STREAM: Mbit/s. TCP_RR: request-responses a second.
    pub rate: f64,
    /// Measured time, by the guest's clock.
    pub seconds: f64,
    /// Processor time of both guests during the measurement.
    pub cpu: Duration,
}

impl Rate {
    /// Processor seconds per Gbit of payload, of a TCP_STREAM.
    pub fn cpu_seconds_per_gbit(&self) -> f64 {
        self.cpu.as_secs_f64() / (self.rate * self.seconds / 1000.0)
    }
}

/// Boots a pair with QEMU's own `model` (`e1000`, `vmxnet3`, `igb`) on both sides; `base` gives kernel, memory, processors and acceleration.
///
/// # Errors
/// Those of [`Guest::boot`].
pub fn qemu_peers(root: &Root, base: &GuestConfig, model: &str) -> Result<Pair, Error> {
    let folder = Folder::new()?;
    let path = folder.join("link");
    let server = format!("stream,server=on,addr.type=unix,addr.path={path}");
    let client = format!("stream,server=off,reconnect-ms=100,addr.type=unix,addr.path={path}");
    let side = |address: &str, netdev: &str, mac: &str| {
        GuestConfig { addresses: vec![format!("eth0:{address}/24")], ..base.clone() }
            .adapter(&format!("{model},mac={mac}"), netdev)
    };
    let mut pair = boot(root, side(LEFT, &server, "52:54:00:00:00:01"), side(RIGHT, &client, "52:54:00:00:00:02"))?;
    pair._folder = Some(folder);
    Ok(pair)
}

/// Boots two guests, both at the same time.
///
/// # Errors
/// Those of [`Guest::boot`].
pub fn boot<M: Machine>(root: &Root, left: M, right: M) -> Result<Pair, Error> {
    boot_unless(root, left, right, &AtomicBool::new(false))
}

/// Like [`boot`], but stops when `stop` becomes true.
///
/// # Errors
/// Those of [`boot`], and [`Error::Stopped`].
pub fn boot_unless<M: Machine>(root: &Root, left: M, right: M, stop: &AtomicBool) -> Result<Pair, Error> {
    let mut left = Guest::start(root, left)?;
    let mut right = Guest::start(root, right)?;
    left.wait_ready_unless(stop)?;
    right.wait_ready_unless(stop)?;
    Ok(Pair { left, right, _folder: None })
}

impl Pair {
    /// Pings the right guest from the left one, one request after the other. A first ping resolves the address and is not counted: QEMU's
    /// e1000 holds the first packet back for two seconds.
    ///
    /// # Errors
    /// Those of [`Guest::run`]. A missing reply is a result, not an error.
    pub fn ping(&mut self, address: &str, count: u32) -> Result<Ping, Error> {
        // The path selects iputils' ping, not busybox's. Each request is a program of its own, because iputils waits for the last of
        // several replies no longer than two round trips.
        let ping = format!("/usr/bin/ping -n -q -c 1 -W 3 {address}");
        let command = format!("{ping} >/dev/null; for request in $(seq {count}); do {ping}; done");
        let output = self.left.run(&command, SLACK + Duration::from_secs(3).saturating_mul(count))?;
        parse_ping(&output.text).ok_or(Error::Command { command, code: output.code, said: output.text })
    }

    /// Starts the server for [`Pair::stream`] and [`Pair::request_response`] in the right guest.
    ///
    /// # Errors
    /// Those of [`Guest::succeed`].
    pub fn serve(&mut self) -> Result<(), Error> {
        self.right.succeed("netserver -4 >/dev/null </dev/null 2>&1", SLACK).map(drop)
    }

    /// netperf's TCP_STREAM from the left guest to the right one.
    ///
    /// # Errors
    /// Those of [`Guest::succeed`].
    pub fn stream(&mut self, address: &str, seconds: u32) -> Result<Rate, Error> {
        self.netperf(address, seconds, Test::Stream)
    }

    /// netperf's TCP_RR: one byte in each direction, one transaction at a time.
    ///
    /// # Errors
    /// Those of [`Guest::succeed`].
    pub fn request_response(&mut self, address: &str, seconds: u32) -> Result<Rate, Error> {
        self.netperf(address, seconds, Test::RequestResponse)
    }

    fn netperf(&mut self, address: &str, seconds: u32, test: Test) -> Result<Rate, Error> {
        let before = self.cpu_time();
        let measured = netperf::run(&mut self.left, address, test, seconds, &AtomicBool::new(false))?;
        let cpu = self.cpu_time().saturating_sub(before);
        Ok(Rate { rate: measured.rate, seconds: measured.seconds, cpu })
    }

    /// Keeps a folder while the guests run.
    pub(super) fn keep(&mut self, folder: Folder) {
        self._folder = Some(folder);
    }

    /// The processor time of both guests.
    pub fn cpu_time(&self) -> Duration {
        self.left.cpu_time() + self.right.cpu_time()
    }

    /// The share of the guests' own work in it: see [`Guest::own_cpu_time`].
    pub fn own_cpu_time(&self) -> Duration {
        self.left.own_cpu_time() + self.right.own_cpu_time()
    }
}

/// Parses the output of one or more runs of iputils: `3 packets transmitted, 3 received, ...` and `rtt min/avg/max/mdev =
/// 0.1/0.2/0.3/0.0 ms`.
fn parse_ping(text: &str) -> Option<Ping> {
    let (mut ping, mut sum_ms) = (Ping { sent: 0, received: 0, mean_ms: None }, 0.0);
    let mut replies = 0;
    for line in text.lines() {
        if line.contains(" packets transmitted") {
            let mut words = line.split(", ").map(|part| part.split_whitespace().next()?.parse().ok());
            (ping.sent, replies) = (ping.sent + words.next()??, words.next()??);
            ping.received += replies;
        }
        if let Some((_, times)) = line.strip_prefix("rtt ").and_then(|times| times.split_once("= ")) {
            sum_ms += times.split('/').nth(1)?.parse::<f64>().ok()? * f64::from(replies);
        }
    }
    ping.mean_ms = (ping.received > 0).then(|| sum_ms / f64::from(ping.received));
    (ping.sent > 0).then_some(ping)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_summary_gives_counts_and_the_mean() {
        let text = "PING 10.0.0.2 (10.0.0.2) 56(84) bytes of data.\n\n--- 10.0.0.2 ping statistics ---\n\
                    5 packets transmitted, 4 received, 20% packet loss, time 812ms\nrtt min/avg/max/mdev = 0.513/0.913/1.702/0.405 ms\n";
        assert_eq!(parse_ping(text), Some(Ping { sent: 5, received: 4, mean_ms: Some(0.913) }));
        let lost = "3 packets transmitted, 0 received, +3 errors, 100% packet loss, time 2030ms\n";
        assert_eq!(parse_ping(lost), Some(Ping { sent: 3, received: 0, mean_ms: None }));
        assert_eq!(parse_ping("ping: connect: Network is unreachable\n"), None);
        let one = "1 packets transmitted, 1 received, 0% packet loss, time 0ms\nrtt min/avg/max/mdev = 2.0/2.000/2.0/0.0 ms\n\n";
        let three = one.to_owned() + lost.trim_end() + "\n\n" + &one.replace("2.0", "3.0");
        assert_eq!(parse_ping(&three), Some(Ping { sent: 5, received: 2, mean_ms: Some(2.5) }));
    }

    #[test]
    fn processor_time_is_given_for_what_was_carried() {
        let rate = Rate { rate: 200.0, seconds: 5.0, cpu: Duration::from_secs(8) };
        assert!((rate.cpu_seconds_per_gbit() - 8.0).abs() < 1e-9);
    }
}
