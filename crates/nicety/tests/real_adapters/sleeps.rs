//! A guest sleeps, suspended to RAM, and QEMU wakes it: each driver has put its adapter away, and takes it up again as it finds it.

use std::{panic::resume_unwind, thread, time::Duration};

use nicety_adapters::Entry;
use nicety_guests::{Accel, Guest, GuestConfig, Kernel};
use nicety_trials::extent::in_linux as entries;
use serde_json::json;
use tempfile::TempDir;

use crate::{
    monitor::Monitor,
    stage::{FLOOD, LATER, Stage, ping, port, quiet, send_blocks, sh, well},
    user_mode::machine,
};

/// How often it sleeps.
const NIGHTS: u32 = 2;
/// A mebibyte, in blocks; without DMA, what its driver moves in the same time in QEMU.
const BLOCKS: [u32; 2] = [2, 16];
/// Frames that come meanwhile.
const DREAMS: u64 = 50;

/// The network of each adapter is its own, so that the kernel has no choice which way to go.
fn address(number: u8, host: u8) -> String {
    format!("10.9.{}.{host}", 10 + number)
}

/// A guest with an adapter of each kind, and one beside it.
struct Sleeper {
    stage: Stage,
    folder: TempDir,
    adapters: Vec<(&'static Entry, u8)>,
    guest: Guest,
    peer: Guest,
}

impl Sleeper {
    fn new(all: &[&'static Entry]) -> Sleeper {
        let adapters: Vec<(&Entry, u8)> = all.iter().copied().zip(1..).collect();
        let last = adapters.len() as u8 + 1;
        let ports = adapters.iter().map(|(entry, number)| port(entry.about.name, *number));
        let stage = Stage::with(ports.chain([port("virtio-net", last)]).collect());
        let folder = well(TempDir::new());
        let config = GuestConfig { accel: Accel::Tcg, ..GuestConfig::new(Kernel::V6_12) };
        let config = adapters.iter().fold(config, |c, (_, number)| stage.served.attach(c, &format!("vm{number}")));
        let config = Monitor::at(config, &folder.path().join("qmp"));
        let mut config = config;
        let image = well(nicety_guests::Image::of(&stage.root, Kernel::V6_12));
        config.devices.extend(["-kernel".to_owned(), image.compressed().display().to_string()]);
        if let Ok(more) = std::env::var("SL_MORE") { config.devices.extend(more.split_whitespace().map(str::to_owned)); }
        if let Ok(more) = std::env::var("SL_MACHINE") { config.machine = more; }
        if let Ok(more) = std::env::var("SL_APPEND") { config.append.extend(more.split_whitespace().map(str::to_owned)); }
        let mut guest = well(Guest::start(&stage.root, config));
        let mut peer = well(Guest::start(&stage.root, stage.served.attach(machine(1), &format!("vm{last}"))));
        [&mut guest, &mut peer].into_iter().for_each(|guest| stage.ready(guest.wait_ready()));
        Sleeper { stage, folder, adapters, guest, peer }
    }

    /// Gives every adapter its address, and the other guest one in each network.
    fn set_up(&mut self) {
        // An address is answered for by its own interface alone.
        let own = "cd /proc/sys/net/ipv4/conf/all; echo 1 >arp_ignore; echo 2 >arp_announce";
        sh(&mut self.guest, own);
        sh(&mut self.peer, "ip link set eth0 up");
        for (entry, number) in &self.adapters {
            let mac = port(entry.about.name, *number).mac;
            let find = format!("path=$(grep -lx {mac} /sys/class/net/*/address); name=${{path%/*}}; name=${{name##*/}}");
            let up = format!("ip addr add {}/24 dev $name; ip link set $name up", address(*number, 1));
            let carrier = "until [ $(cat /sys/class/net/$name/carrier) = 1 ]; do usleep 20000; done";
            let driver = sh(&mut self.guest, &format!("{find}; {up}; {carrier}; ethtool -i $name | head -n 1"));
            println!("{}: {}", entry.about.name, driver.trim());
            sh(&mut self.peer, &format!("ip addr add {}/24 dev eth0", address(*number, 2)));
        }
    }

    /// Requests and a mebibyte each way over each adapter.
    fn carries(&mut self) {
        for (entry, number) in &self.adapters {
            let name = format!("vm{number}");
            let before = [self.stage.sent(&name), self.stage.received(&name)];
            ping(&mut self.guest, "", &address(*number, 2));
            ping(&mut self.peer, "", &address(*number, 1));
            let blocks = BLOCKS[usize::from(entry.about.dma)];
            send_blocks(&mut self.guest, &mut self.peer, &address(*number, 2), blocks);
            send_blocks(&mut self.peer, &mut self.guest, &address(*number, 1), blocks);
            let after = [self.stage.sent(&name), self.stage.received(&name)];
            assert!(after.iter().zip(before).all(|(after, before)| *after > before + 16), "{name}: {before:?}, {after:?}");
        }
    }

    /// It sleeps, frames come for it, it wakes.
    fn sleeps(&mut self, night: u32) {
        let peer = format!("vm{}", self.adapters.len() + 1);
        for (_, number) in &self.adapters {
            sh(&mut self.peer, &format!("({FLOOD} -n -q -i 0.05 {} >/tmp/pinged{number} 2>&1 &)", address(*number, 1)));
        }
        let mut monitor = Monitor::of(&self.folder.path().join("qmp"));
        let counted = thread::scope(|scope| {
            // What is typed while it wakes is lost: its serial port is not set up yet.
            let guest = &mut self.guest;
            let slept = scope.spawn(|| sh(guest, "echo mem >/sys/power/state && cd /sys/power/suspend_stats && cat success fail"));
            monitor.wait("query-status", "suspended", LATER);
            self.stage.wait_more("requests", DREAMS, || self.stage.sent(&peer));
            monitor.run("system_wakeup", json!({}));
            slept.join().unwrap_or_else(|panic| resume_unwind(panic))
        });
        assert_eq!(counted, format!("{night}\n0\n"));
        sh(&mut self.peer, "killall -INT ping; while pidof ping; do usleep 20000; done");
    }
}

#[test]
fn a_guest_suspended_to_ram_and_woken_goes_on_over_every_adapter() {
    let mut sleeper = Sleeper::new(&entries());
    sleeper.set_up();
    sleeper.carries();
    for night in 1..=NIGHTS {
        let begin = std::time::Instant::now();
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sleeper.sleeps(night))).is_err() {
            std::thread::sleep(Duration::from_secs(1));
            panic!("CONSOLE {}\nLOG {}\nSTATUS {:?}", sleeper.guest.console(), sleeper.stage.served.log(), std::fs::read_to_string(format!("/proc/{}/status", sleeper.guest.process())));
        }
        println!("night {night}: {:.1?}", begin.elapsed());
        for at in 0..sleeper.adapters.len() {
            let (entry, number) = sleeper.adapters[at];
            let all = std::mem::replace(&mut sleeper.adapters, vec![(entry, number)]);
            let r = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sleeper.carries()));
            sleeper.adapters = all;
            println!("==== {}: {:?} {}", entry.about.name, r.is_ok(), sleeper.stage.report(&format!("vm{number}")));
            if r.is_err() { println!("{}\n{:?}", sleeper.stage.served.log(), sleeper.guest.run("dmesg | tail -n 40; ip -s a; ip n; cat /proc/interrupts; cat /proc/net/snmp", LATER)); }
        }
    }
    println!("{}", sh(&mut sleeper.guest, "dmesg | tail -n 60"));
    quiet(&mut sleeper.guest);
    for (entry, number) in &sleeper.adapters {
        let report = sleeper.stage.report(&format!("vm{number}"));
        assert_eq!((&report["guest_errors"], &report["bad_accesses"]), (&0.into(), &0.into()), "{}: {report}", entry.about.name);
    }
    let _ = Duration::ZERO;
}
