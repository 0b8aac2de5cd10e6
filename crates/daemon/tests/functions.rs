//! 256 functions of four cards in one daemon, each with a driver, and all at once under traffic.

#[allow(dead_code, reason = "other tests use more of it")]
mod function;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use function::Guest;
use nicety_adapters::find;
use nicety_daemon::daemon::{Daemon, PortSpec};
use nicety_frame::Mac;
use nicety_host::{FunctionConfig, PortConfig};
use nicety_switch::Limits;
use nicety_vfio_user::Client;
use tempfile::TempDir;

/// Functions of each card, and in all.
const OF_A_CARD: u16 = 64;
const FUNCTIONS: u16 = 256;
/// The number with which the others are compared.
const FEW: u16 = 16;
/// Limit of a time in which no guest gets on.
const STANDSTILL: Duration = Duration::from_secs(60);
/// Rings that each guest sends, on average: one that was just begun, or is about to be, hardly shows.
const RINGS: u64 = 16;

/// A daemon with functions in pairs, each of which sends to the other.
struct Cards {
    daemon: Daemon,
    dir: TempDir,
    guests: Vec<Guest>,
}

fn address(number: u16) -> Mac {
    let [high, low] = number.to_be_bytes();
    Mac([0x52, 0x54, 0, 0, high, low])
}

impl Cards {
    fn new() -> Self {
        nicety_daemon::descriptors::provide(FUNCTIONS.into(), 1).unwrap();
        nicety_sandbox::begin_for_tests();
        let daemon = Daemon::start(Limits::default(), 1).unwrap();
        Self { daemon, dir: TempDir::new().unwrap(), guests: Vec::new() }
    }

    /// Adds functions with their drivers, until there are this many.
    fn grow(&mut self, to: u16) {
        for number in self.guests.len() as u16..to {
            let socket = self.dir.path().join(format!("vm{number}.sock"));
            let function = FunctionConfig {
                card: format!("nic{}", number / OF_A_CARD),
                number: number % OF_A_CARD,
                trusted: false,
                checks_source: true,
                queries_rss: false,
                min_rate: None,
                is_vepa: false,
            };
            let spec = PortSpec::plain(PortConfig {
                function: Some(function),
                ..PortConfig::new(&format!("vm{number}"), find("ixgbevf").unwrap(), address(number), socket.clone())
            });
            self.daemon.open(spec).unwrap();
            let client = Client::connect(socket).unwrap();
            self.guests.push(Guest::new(client, address(number), address(number ^ 1)));
        }
    }

    /// Frames that each guest has sent, and that it took.
    fn carried(&self) -> Vec<[u64; 2]> {
        let counters = self.daemon.views().into_iter().map(|view| view.state.counters);
        counters.map(|counters| [counters.transmitted().packets, counters.taken().packets]).collect()
    }

    /// Each guest sends as fast as it is served, until they have sent [`RINGS`] each, on average. Returns the growth of
    /// [`Cards::carried`].
    fn flood(&mut self) -> Vec<[u64; 2]> {
        let (before, mut moved) = (self.carried(), Instant::now());
        let (mut sent, all) = (0, RINGS * self.guests.len() as u64);
        while sent < all {
            assert!(moved.elapsed() < STANDSTILL, "{sent} of {all} rings, and no more within {STANDSTILL:?}");
            for guest in &mut self.guests {
                if guest.has_sent() {
                    guest.send();
                    sent += 1;
                    moved = Instant::now();
                }
            }
        }
        let grown = |(before, after): (&[u64; 2], [u64; 2])| [after[0] - before[0], after[1] - before[1]];
        before.iter().zip(self.carried()).map(grown).collect()
    }
}

/// Jain's index of fairness: 1 if all are equal, 1/n if one has all.
fn jain(values: impl Iterator<Item = u64> + Clone) -> f64 {
    let sum: f64 = values.clone().map(|value| value as f64).sum();
    let squares: f64 = values.clone().map(|value| (value as f64).powi(2)).sum();
    sum * sum / (values.count() as f64 * squares)
}

/// Private memory of this process in bytes: guests' memory is shared.
fn private_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn each_of_256_functions_has_its_share_and_costs_little_memory() {
    let mut cards = Cards::new();
    cards.grow(FEW);
    let timed = |cards: &mut Cards| {
        let begin = Instant::now();
        (cards.flood(), begin.elapsed())
    };
    let few = timed(&mut cards);
    let before = private_bytes();
    cards.grow(FUNCTIONS);
    let many = timed(&mut cards);
    let each = (private_bytes() - before) / u64::from(FUNCTIONS - FEW);
    for (what, (carried, took)) in [("16", few), ("256", many)] {
        // A figure of this machine and build, and no bound.
        let frames: u64 = carried.iter().map(|[_, taken]| taken).sum();
        println!("{what} functions: {:.0} frames per second arrived", frames as f64 / took.as_secs_f64());
        let [sent, taken] = [0, 1].map(|way| jain(carried.iter().map(move |counts| counts[way])));
        let least = carried.iter().map(|[sent, _]| sent).min().unwrap();
        println!(
            "{what} functions: Jain's index {sent:.4} of what they sent, {taken:.4} of what they got, {least} at least"
        );
        assert!(sent >= 0.99 && taken >= 0.99, "{what}: {carried:?}");
    }
    println!("{each} bytes of private memory a function, its guest's client included");
    assert!(each < 300 << 10, "{each} bytes");
    cards.daemon.stop();
}

/// Messages are charged to the port that sends them.
#[test]
fn a_function_that_floods_its_mailbox_takes_nothing_from_the_others() {
    let mut cards = Cards::new();
    cards.grow(FEW);
    let mut flooding = cards.guests.remove(0);
    let stop = Arc::new(AtomicBool::new(false));
    let is_over = stop.clone();
    let messages = std::thread::spawn(move || {
        let mut messages = 0u32;
        while !is_over.load(Ordering::Relaxed) {
            // VFU, a message that does not exist, REQ; the answer; ACK.
            flooding.write(0x2fc, 4);
            flooding.write(0x200, 0x1f);
            flooding.write(0x2fc, 1);
            assert_eq!(flooding.read(0x200), 0x6000_001f, "refused");
            flooding.write(0x2fc, 2);
            messages += 1;
        }
        messages
    });
    // The one that sends to it, too: what it does not take is dropped.
    let carried = cards.flood();
    stop.store(true, Ordering::Relaxed);
    let messages = messages.join().unwrap();
    let sent = jain(carried[1..].iter().map(|[sent, _]| *sent));
    println!("{messages} messages; Jain's index {sent:.4} of what the others sent");
    assert!(messages > 0 && sent >= 0.99, "{messages} messages, {carried:?}");
    cards.daemon.stop();
}
