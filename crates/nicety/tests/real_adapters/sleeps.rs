//! A guest sleeps, suspended to RAM, and QEMU wakes it: each driver has put its adapter away, and takes it up again as it finds it.

use std::{panic::resume_unwind, thread};

use nicety_adapters::Entry;
use nicety_guests::{Accel, Guest, GuestConfig, Image, Kernel};
use nicety_trials::extent::in_linux as entries;
use serde_json::json;
use tempfile::TempDir;

use crate::{
    monitor::Monitor,
    stage::{FLOOD, LATER, Stage, ping, port, quiet, send_blocks, sh, well},
    user_mode::machine,
};

/// Blocks of what is sent without DMA, which its driver moves word by word, and with it: a mebibyte.
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
        let mut config = Monitor::at(config, &folder.path().join("qmp"));
        // As a boot loader gets it: when the guest wakes, QEMU writes a kernel that it has unpacked itself into its place again, over what
        // the kernel has become.
        let image = well(Image::of(&stage.root, Kernel::V6_12));
        config.devices.extend(["-kernel".to_owned(), image.compressed().display().to_string()]);
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
            let find =
                format!("path=$(grep -lx {mac} /sys/class/net/*/address); name=${{path%/*}}; name=${{name##*/}}");
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
            assert!(
                after.iter().zip(before).all(|(after, before)| *after > before + 16),
                "{name}: {before:?}, {after:?}"
            );
        }
    }

    /// It sleeps, frames come for it, it wakes.
    fn sleeps(&mut self) {
        let peer = format!("vm{}", self.adapters.len() + 1);
        for (_, number) in &self.adapters {
            sh(&mut self.peer, &format!("({FLOOD} -n -q -i 0.05 {} >/tmp/pinged{number} 2>&1 &)", address(*number, 1)));
        }
        let mut monitor = Monitor::of(&self.folder.path().join("qmp"));
        let counted = thread::scope(|scope| {
            // What is typed while it wakes is lost: its serial port is not set up yet.
            let guest = &mut self.guest;
            let slept = scope
                .spawn(|| sh(guest, "echo mem >/sys/power/state && cd /sys/power/suspend_stats && cat success fail"));
            monitor.wait("query-status", "suspended", LATER);
            self.stage.wait_more("requests", DREAMS, || self.stage.sent(&peer));
            monitor.run("system_wakeup", json!({}));
            slept.join().unwrap_or_else(|panic| resume_unwind(panic))
        });
        assert_eq!(counted, "1\n0\n");
        sh(&mut self.peer, "killall -INT ping; while pidof ping; do usleep 20000; done");
    }
}

/// Registers that the chip has not, and its driver reads when it suspends: LPIC of other chips, of e1000e's (`e1000e_flush_lpic`).
fn holes_read(adapter: &str) -> u64 {
    u64::from(adapter == "e1000e")
}

#[test]
fn a_guest_suspended_to_ram_and_woken_goes_on_over_every_adapter() {
    let mut sleeper = Sleeper::new(&entries());
    sleeper.set_up();
    sleeper.carries();
    sleeper.sleeps();
    sleeper.carries();
    quiet(&mut sleeper.guest);
    for (entry, number) in &sleeper.adapters {
        let (name, report) = (entry.about.name, sleeper.stage.report(&format!("vm{number}")));
        let counted = (&report["condition"], &report["guest_errors"], &report["bad_accesses"]);
        assert_eq!(counted, (&"up".into(), &0.into(), &holes_read(name).into()), "{name}: {report}");
        println!("{name}: {report}");
    }
}
