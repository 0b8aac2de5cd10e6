//! 256 functions of four cards in one daemon, each with a driver, and all at once under traffic. The drivers are bare: an 82599's
//! function driven by hand (Linux, drivers/net/ethernet/intel/ixgbevf), with its rings and buffers in one memory file.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nicety_adapters::{Settings, find};
use nicety_daemon::daemon::{Daemon, PortSpec};
use nicety_frame::Mac;
use nicety_host::{FunctionConfig, LinkState};
use nicety_memory::{Map, Mapping, Rights};
use nicety_switch::Limits;
use nicety_vfio_user::{Client, DmaProtection, DmaRange};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use tempfile::TempDir;

/// Functions of each card, and in all.
const OF_A_CARD: u16 = 64;
const FUNCTIONS: u16 = 256;
/// The number with which the others are compared.
const FEW: u16 = 16;
/// A guest's memory: its rings, a frame, a buffer.
const MEMORY: DmaRange = DmaRange { address: 0, size: 0x4000 };
const TRANSMIT: u64 = 0;
const RECEIVE: u64 = 0x1000;
const FRAME: u64 = 0x2000;
const BUFFER: u64 = 0x3000;
const RING: u32 = 256;
/// Bytes of a frame, without its check sequence.
const BYTES: u32 = 60;
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

struct Guest {
    client: Client,
    memory: Map,
    tail: u32,
    _file: OwnedFd,
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
                link: LinkState::Auto,
                queries_rss: false,
                min_rate: None,
                is_vepa: false,
            };
            let spec = PortSpec {
                worker: None,
                ft_peer: None,
                name: format!("vm{number}"),
                entry: find("ixgbevf").unwrap(),
                settings: Settings::new(address(number)),
                socket: socket.clone(),
                role: Default::default(),
                mapped: false,
                buffer_bytes: 1 << 20,
                access: nicety_socket::Access::default(),
                group: None,
                function: Some(function),
                policy: nicety_switch::Policy::default(),
            };
            self.daemon.open(spec).unwrap();
            self.guests.push(Guest::new(Client::connect(socket).unwrap(), number));
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

impl Guest {
    fn new(client: Client, number: u16) -> Self {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, MEMORY.size).unwrap();
        let mapping = Mapping::of_file(file.try_clone().unwrap(), 0, MEMORY.size, true).unwrap();
        let memory = Map::default().with(0, Arc::new(mapping), Rights::BOTH).unwrap();
        let mut this = Self { client, memory, tail: 0, _file: file };
        let both = DmaProtection { read: true, write: true };
        this.client.dma_map(MEMORY, both, Some((this._file.as_fd(), 0))).unwrap();
        this.client.region_write(7, 4, &[6, 0]).unwrap();
        // VFU, RESET, REQ; the address comes back; ACK.
        for (register, value) in [(0x2fc, 4), (0x200, 1), (0x2fc, 1)] {
            this.write(register, value);
        }
        let Mac([a, b, c, d, ..]) = address(number);
        assert_eq!([this.read(0x200), this.read(0x204)], [0x8000_0001, u32::from_le_bytes([a, b, c, d])]);
        this.write(0x2fc, 2);
        let header = [&address(number ^ 1).0[..], &address(number).0, &[0x88, 0xb5]].concat();
        this.memory.write(FRAME, &header).unwrap();
        for (ring, base) in [(0x1000, RECEIVE), (0x2000, TRANSMIT)] {
            for (offset, value) in [(0, base as u32), (4, 0), (8, RING * 16), (0x10, 0), (0x18, 0), (0x28, 1 << 25)] {
                this.write(ring + offset, value);
            }
        }
        // SRRCTL: advanced descriptors, 2 KiB.
        this.write(0x1014, 0x0200_0002);
        this.repost();
        this.send();
        this
    }

    fn read(&mut self, register: u64) -> u32 {
        let mut word = [0; 4];
        self.client.region_read(0, register, &mut word).unwrap();
        u32::from_le_bytes(word)
    }

    fn write(&mut self, register: u64, value: u32) {
        self.client.region_write(0, register, &value.to_le_bytes()).unwrap();
    }

    /// Whether the last descriptor is done.
    fn has_sent(&self) -> bool {
        let mut status = [0; 4];
        self.memory.read(TRANSMIT + u64::from((self.tail + RING - 1) % RING) * 16 + 12, &mut status).unwrap();
        status[0] & 1 != 0
    }

    /// Posts a ring of frames, and all buffers that were filled.
    fn send(&mut self) {
        self.repost();
        // IFCS, DEXT, data, EOP; RS only of the last one.
        for index in 0..RING - 1 {
            let at = (self.tail + index) % RING;
            let report = if index == RING - 2 { 1 << 27 } else { 0 };
            let words = [FRAME as u32, 0, 0x2330_0000 | report | BYTES, BYTES << 14];
            self.memory.write(TRANSMIT + u64::from(at) * 16, &words.map(u32::to_le_bytes).concat()).unwrap();
        }
        self.tail = (self.tail + RING - 1) % RING;
        self.write(0x2018, self.tail);
    }

    fn repost(&mut self) {
        let head = self.read(0x1010);
        let descriptor = [BUFFER.to_le_bytes(), [0; 8]].concat();
        (0..RING).for_each(|index| self.memory.write(RECEIVE + u64::from(index) * 16, &descriptor).unwrap());
        self.write(0x1018, (head + RING - 1) % RING);
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
    let few = cards.flood();
    let before = private_bytes();
    cards.grow(FUNCTIONS);
    let many = cards.flood();
    let each = (private_bytes() - before) / u64::from(FUNCTIONS - FEW);
    for (what, carried) in [("16", few), ("256", many)] {
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
