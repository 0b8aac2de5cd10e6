//! The stage of all of these tests: a private network with a tap in it, a daemon, guests at its ports.

use std::{
    fmt::Display,
    path::Path,
    time::{Duration, Instant},
};

use nicety_guests::{Accel, Guest, GuestConfig, Kernel, Link, Machine, Namespace, Port, Root, Served, Setup, Start};
use nicety_trials::scope::is_full;

/// Limit of a command that takes no time itself, in a translated guest on a busy host.
pub const SOON: Duration = Duration::from_secs(30);
/// Limit of a command that moves megabytes.
pub const LATER: Duration = Duration::from_secs(90);
/// Polling interval of counters.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Requests as fast as they are answered, or a hundred per second. With its path: the shell would use busybox's own `ping`, which
/// cannot do that.
pub const FLOOD: &str = "/usr/bin/ping -f";
/// The host's interface in the tests' network, and its address there.
pub const TAP: &str = "n0";
/// An interface of the host that leads nowhere, see [`Stage::with_wire`].
pub const WIRE: &str = "n1";
/// See [`TAP`].
pub const HOST: &str = "10.9.3.254";

/// The value. An error fails the test.
#[track_caller]
pub fn well<T, E: Display>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

/// Runs `test` for each of these at the same time, each on its own stage: for tests that mostly wait.
pub fn side_by_side<T: Sync>(all: &[T], test: impl Fn(&T) + Sync) {
    std::thread::scope(|scope| {
        for each in all {
            scope.spawn(|| test(each));
        }
    });
}

/// A network and a daemon with these ports.
pub struct Stage {
    pub root: Root,
    pub served: Served,
    pub namespace: Namespace,
}

/// A guest's address by its number.
pub fn address(number: u8) -> String {
    format!("10.9.3.{number}")
}

/// MAC address of the adapter at the port of this number.
pub fn mac(number: u8) -> String {
    format!("52:54:00:4e:03:{number:02x}")
}

/// A port of this adapter, named after its number.
pub fn port(adapter: &str, number: u8) -> Port {
    let entry = nicety_adapters::find(adapter).unwrap_or_else(|| panic!("{adapter} is registered"));
    Port::new(&format!("vm{number}"), entry, &mac(number))
}

/// Lines of a port's table: its doorbells are words in pages that the daemon polls.
pub const MAPPED: &str = "doorbells = \"mapped\"\n";

/// Lines of the daemon's table, or of a port's whose queue pairs are dealt to both workers.
pub const TWO_WORKERS: &str = "workers = 2\n";

/// A port with this many queue pairs, which two workers serve.
pub fn port_of_pairs(number: u8, pairs: u8) -> Port {
    Port { more: format!("queues = {pairs}\n{TWO_WORKERS}"), ..port("virtio-net", number) }
}

/// A guest in QEMU whose virtio-net has this many queue pairs, and further options. With one processor its driver uses one pair until
/// `ethtool -L` says otherwise.
pub fn with_pairs(mut config: GuestConfig, pairs: u8, words: &str) -> GuestConfig {
    let (net, own) = match pairs {
        1 => (String::new(), String::new()),
        _ => (format!("queues={pairs},"), format!("mq=on,vectors={},", 2 * pairs + 2)),
    };
    for word in &mut config.devices {
        *word = word.replace("vhost-user,", &format!("vhost-user,{net}"));
        *word = word.replace("virtio-net-pci,", &format!("virtio-net-pci,{own}{words}"));
    }
    config
}

/// Like [`port`]; a virtual function's doorbells are mapped.
pub fn mapped_port(adapter: &str, number: u8) -> Port {
    let more = if adapter.ends_with("vf") { MAPPED } else { "" };
    Port { more: more.to_owned(), ..port(adapter, number) }
}

impl Stage {
    /// A daemon with one port for each of these adapters, numbered from 1, and the host behind a tap.
    pub fn new(adapters: &[&str]) -> Stage {
        Stage::with((1..).zip(adapters).map(|(number, adapter)| port(adapter, number)).collect())
    }

    /// A daemon with these ports, and the host behind a tap.
    pub fn with(ports: Vec<Port>) -> Stage {
        Stage::linked(ports, Link::Tap(TAP.to_owned()))
    }

    /// A daemon with two workers and these ports, and the host behind a tap.
    pub fn with_two_workers(ports: Vec<Port>) -> Stage {
        let (link, daemon_more) = (Some(Link::Tap(TAP.to_owned())), TWO_WORKERS.to_owned());
        Stage::set_up(ports, Setup { link, daemon_more, ..Setup::default() })
    }

    /// A daemon with these ports, and the host behind a tap; the host file has these tables, too.
    pub fn beside(ports: Vec<Port>, tables: &str) -> Stage {
        let link = Some(Link::Tap(TAP.to_owned()));
        Stage::set_up(ports, Setup { link, link_more: tables.to_owned(), ..Setup::default() })
    }

    /// A daemon with these ports and this uplink.
    pub fn linked(ports: Vec<Port>, link: Link) -> Stage {
        Stage::set_up(ports, Setup { link: Some(link), ..Setup::default() })
    }

    /// A daemon with these ports, and the host behind a tap; another tap, [`WIRE`], leads nowhere. The host file has these tables, too.
    pub fn with_wire(ports: Vec<Port>, tables: &str) -> Stage {
        let root = well(Root::lay(&mut |line| eprintln!("{line}")));
        let mut namespace = well(Namespace::open(&root));
        well(namespace.tap(TAP, Some(&format!("{HOST}/24"))));
        well(namespace.tap(WIRE, None));
        // Linux answers for the host's address on every interface.
        well(namespace.run(&format!("ip link set {WIRE} arp off; ip link set {WIRE} up"), SOON));
        let taps = [TAP, WIRE].map(|name| format!("[[uplink]]\nkind = \"tap\"\nname = \"{name}\"\n")).concat();
        let setup = Setup { daemon_more: format!("{taps}{tables}"), ..Setup::default() };
        let program = Path::new(env!("CARGO_BIN_EXE_nicety"));
        let served = well(Served::start_as(program, &mut namespace, ports, setup));
        Stage { root, served, namespace }
    }

    /// A daemon with these ports and settings.
    pub fn set_up(ports: Vec<Port>, setup: Setup) -> Stage {
        Self::set_up_as(Path::new(env!("CARGO_BIN_EXE_nicety")), ports, setup)
    }

    /// The same, served by another program.
    pub fn set_up_as(program: &Path, ports: Vec<Port>, setup: Setup) -> Stage {
        let root = well(Root::lay(&mut |line| eprintln!("{line}")));
        let mut namespace = well(Namespace::open(&root));
        if let Some(Link::Tap(name)) = &setup.link {
            well(namespace.tap(name, Some(&format!("{HOST}/24"))));
        }
        let served = well(Served::start_as(program, &mut namespace, ports, setup));
        Stage { root, served, namespace }
    }

    /// Configuration of a guest in QEMU at a port. It need not boot: it goes on where a guest of the same kernel was saved.
    pub fn config(&self, kernel: Kernel, number: u8) -> GuestConfig {
        let start = Start::Saved;
        self.at_port(GuestConfig { accel: Accel::Tcg, start, ..GuestConfig::new(kernel) }, number)
    }

    /// A machine at a port, with the port's address.
    pub fn at_port<M: Machine>(&self, machine: M, number: u8) -> M {
        let machine = machine.address("eth0", &format!("{}/24", address(number)));
        self.served.attach(machine, &format!("vm{number}"))
    }

    /// Starts a guest in QEMU at each of these ports, at the same time.
    pub fn boot<const N: usize>(&self, kernel: Kernel, numbers: [u8; N]) -> [Guest; N] {
        self.boot_all(numbers.map(|number| self.config(kernel, number)))
    }

    fn boot_all<M: Machine, const N: usize>(&self, machines: [M; N]) -> [Guest; N] {
        let mut guests = machines.map(|machine| well(Guest::start(&self.root, machine)));
        guests.iter_mut().for_each(|guest| self.ready(guest.wait_ready()));
        guests
    }

    /// The value. An error fails the test, with the daemon's log.
    #[track_caller]
    pub fn ready<T, E: Display>(&self, result: Result<T, E>) -> T {
        result.unwrap_or_else(|error| panic!("{error}\nthe daemon said\n{}", self.served.log()))
    }

    /// The daemon's report about a port.
    pub fn report(&self, name: &str) -> serde_json::Value {
        let answer = self.served.ask().unwrap_or_else(|| panic!("the daemon answers"));
        let answer: serde_json::Value = well(serde_json::from_str(&answer));
        let ports = answer["ports"].as_array().cloned().unwrap_or_default();
        ports.into_iter().find(|port| port["name"] == name).unwrap_or_else(|| panic!("no port {name} in {answer}"))
    }

    /// Frames that a port's guest received.
    pub fn received(&self, name: &str) -> u64 {
        self.by_queue(name, "receive").iter().sum()
    }

    /// Frames that a port's guest sent.
    pub fn sent(&self, name: &str) -> u64 {
        self.by_queue(name, "transmit").iter().sum()
    }

    /// Frames of each queue of a port, `transmit` or `receive`; the daemon leaves out queues without frames.
    pub fn by_queue(&self, name: &str, direction: &str) -> Vec<u64> {
        let report = self.report(name);
        let queues = report[direction].as_array().into_iter().flatten();
        queues.filter_map(|queue| queue["frames"].as_u64()).collect()
    }

    /// Frames for a port's guest that were dropped, for any reason.
    pub fn dropped(&self, name: &str) -> u64 {
        let report = self.report(name);
        report["receive_drops"].as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum()
    }

    /// Waits until the count has grown by `more`.
    pub fn wait_more(&self, what: &str, more: u64, count: impl Fn() -> u64) {
        self.wait_more_or(what, more, count, String::new);
    }

    /// Waits until the count has grown by `more`. If it does not, the test fails with the text of `why` and the daemon's answer.
    pub fn wait_more_or(&self, what: &str, more: u64, count: impl Fn() -> u64, why: impl Fn() -> String) {
        let (before, end) = (count(), Instant::now() + SOON);
        while count() < before + more {
            assert!(
                Instant::now() < end,
                "there are no {what}: {} after {before}\n{}\n{}\nthe daemon said\n{}",
                count(),
                why(),
                self.served.ask().unwrap_or_default(),
                self.served.log()
            );
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Waits until the daemon has logged a text.
    pub fn wait_log(&self, text: &str) {
        self.wait_until(text, || self.served.log().contains(text));
    }

    /// Waits for a condition of the daemon.
    pub fn wait_until(&self, what: &str, done: impl Fn() -> bool) {
        let end = Instant::now() + SOON;
        while !done() {
            assert!(Instant::now() < end, "no `{what}` from the daemon:\n{}", self.served.log());
            std::thread::yield_now();
        }
    }

    /// Number of the daemon's log lines about a port that contain a text.
    pub fn log_count(&self, name: &str, text: &str) -> usize {
        let port = format!("port=\"{name}\"");
        self.served.log().lines().filter(|line| line.contains(&port) && line.contains(text)).count()
    }
}

/// Makes one change to the stage's daemon.
pub fn change(stage: &mut Stage, words: &str) {
    let report = stage.report("vm1");
    let host = Path::new(report["socket"].as_str().unwrap_or_default()).with_file_name("host.toml");
    let program = env!("CARGO_BIN_EXE_nicety");
    well(stage.namespace.run(&format!("{program} {words} --host {}", host.display()), SOON));
}

/// Runs `command` in the guest. It must exit with 0. Returns its output.
#[track_caller]
pub fn sh(guest: &mut Guest, command: &str) -> String {
    match guest.succeed(command, LATER) {
        Ok(output) => output,
        Err(error) => {
            let state = guest.succeed("free; ps; dmesg | tail -n 30", SOON);
            panic!("{error}\nThe guest then:\n{}", state.unwrap_or_else(|worse| worse.to_string()))
        }
    }
}

/// Sends four requests, each of which must be answered. Each is a `ping` of its own: for several replies iputils waits for the last
/// no longer than two round trips.
#[track_caller]
pub fn ping(guest: &mut Guest, options: &str, to: &str) {
    sh(guest, &format!("(for n in 1 2 3 4; do /usr/bin/ping -n -q -c 1 -W 10 {options} {to} || exit 1; done)"));
}

/// Sends a file over a TCP connection: a million bytes in small pieces, the rest in large ones. busybox's nc alone would make three
/// system calls per kilobyte, most of the time of a send.
pub const SENDER: &str = "sh -c 'exec </tmp/sent 2>/dev/null; dd bs=1000 count=1000; dd bs=64k'";

/// Counts of `ping`: requests, answers, and duplicates. No answer may be damaged.
#[track_caller]
pub fn pinged(text: &str) -> [u64; 3] {
    for damage in ["wrong data", "corrupted"] {
        assert!(!text.contains(damage), "{text}");
    }
    let line = text.lines().find(|line| line.contains(" packets transmitted, ")).unwrap_or_else(|| panic!("{text}"));
    let count = |word: &str| {
        let part = line.split(", ").find(|part| part.contains(word))?;
        part.trim_start_matches('+').split(' ').next()?.parse().ok()
    };
    [count("transmitted"), count("received"), count("duplicates").or(Some(0))]
        .map(|count| count.unwrap_or_else(|| panic!("{text}")))
}

/// Requests as fast as they are answered, until so many were: each once. With `-c` alone `ping` waits for the last reply no longer than
/// twice the longest round trip so far, which a busy host may exceed; with a deadline it asks until it has its answers. Some requests may
/// be on their way then.
#[track_caller]
pub fn answered_each_once(guest: &mut Guest, options: &str, requests: u64, to: &str) {
    let text = sh(guest, &format!("{FLOOD} -n -q -w 80 -c {requests} {options} {to}"));
    let [sent, answered, doubled] = pinged(&text);
    let on_their_way = requests / 10;
    assert!(
        answered >= requests && sent <= answered + on_their_way && doubled == 0,
        "{requests} answers, each once: {text}"
    );
}

/// Most frames that the daemon holds in one turn, request and answer: frames that were delivered but not returned to their sender
/// when the daemon was killed are sent again by the next daemon.
pub const IN_HAND: u64 = 2 * nicety_adapter::PACKETS as u64;

/// `megabytes`, or as many as an adapter carries in a gigabit's time: a slow chip is slow for its driver too.
pub fn amount(adapter: &str, megabytes: u32) -> u32 {
    let entry = nicety_adapters::find(adapter).unwrap_or_else(|| panic!("{adapter} is registered"));
    (usual(megabytes) * entry.about.link_mbps.min(1000) / 1000).max(1)
}

/// A quarter of these megabytes, or of their packets, in a normal run, and all in a full one: each goes three times through a guest's
/// processor, which is an emulated one, and a few already go many times around every ring.
pub fn usual(amount: u32) -> u32 {
    if is_full() { amount } else { amount.div_ceil(4) }
}

/// Sends random bytes over TCP. Compares the checksum of the received bytes with that of the sent ones.
#[track_caller]
pub fn send(from: &mut Guest, to: &mut Guest, address: &str, megabytes: u32) {
    send_blocks(from, to, address, 16 * megabytes);
}

/// Like [`send`], with `blocks` blocks of 64 KiB.
#[track_caller]
pub fn send_blocks(from: &mut Guest, to: &mut Guest, address: &str, blocks: u32) {
    let receive = "rm -f /tmp/came; (nc -l -p 9000 -e sh -c 'sha256sum >/tmp/came' >/dev/null 2>&1 &)";
    sh(to, &format!("{receive}; until netstat -ltn | grep -q :9000; do rest; done"));
    let made = format!("dd if=/dev/urandom of=/tmp/sent bs=64k count={blocks} 2>/dev/null; sha256sum </tmp/sent");
    let sent = sh(from, &format!("{made}; nc {address} 9000 -e {SENDER}; rm /tmp/sent"));
    assert!(sent.len() > 64, "{sent:?}");
    let came = sh(to, "until [ -s /tmp/came ]; do rest; done; cat /tmp/came");
    assert_eq!(came, sent, "what came to {address}");
}

/// Checks that the guest's kernel has logged no complaint. Intel's drivers count their probes, and report missing options from the
/// 33rd board on (e1000_param.c, E1000_MAX_NIC): that is excluded.
#[track_caller]
pub fn quiet(guest: &mut Guest) {
    let complaints = "bug:|warning:|\\boops|call trace|unit hang|hung|timed out|reset adapter";
    let text = sh(guest, &format!("dmesg | grep -iE '{complaints}' | grep -v 'no configuration for board' || true"));
    if !text.is_empty() {
        // With the lines around, which name the cause.
        let around = sh(guest, &format!("dmesg | grep -iE -B 12 -A 30 '{complaints}' | tail -n 200"));
        panic!("the kernel complains:\n{text}\n{around}");
    }
}
