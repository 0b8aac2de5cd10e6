//! A guest with an adapter of each kind, each in a network of its own, and a second guest as peer.

use nicety_adapters::Entry;
use nicety_guests::{Guest, GuestConfig};

use crate::{
    stage::{Stage, ping, port, send_blocks, sh, well},
    user_mode::machine,
};

/// Blocks to send, without DMA (the driver moves them word by word) and with it: a mebibyte.
const BLOCKS: [u32; 2] = [2, 16];

/// Waits until an interface has carrier.
pub const CARRIER: &str = "until has_carrier $name; do rest; done";

/// Each adapter has its own network, so the kernel has only one route.
pub fn address(number: u8, host: u8) -> String {
    format!("10.9.{}.{host}", 10 + number)
}

/// See the module's documentation.
pub struct Every {
    pub stage: Stage,
    pub adapters: Vec<(&'static Entry, u8)>,
    pub guest: Guest,
    pub peer: Guest,
}

impl Every {
    /// Starts a guest with this configuration and these adapters.
    pub fn new(all: &[&'static Entry], config: impl FnOnce(&Stage) -> GuestConfig) -> Every {
        let adapters: Vec<(&Entry, u8)> = all.iter().copied().zip(1..).collect();
        let last = adapters.len() as u8 + 1;
        let ports = adapters.iter().map(|(entry, number)| port(entry.about.name, *number));
        let stage = Stage::with(ports.chain([port("virtio-net", last)]).collect());
        let config = config(&stage);
        let config = adapters.iter().fold(config, |c, (_, number)| stage.served.attach(c, &format!("vm{number}")));
        let mut guest = well(Guest::start(&stage.root, config));
        let mut peer = well(Guest::start(&stage.root, stage.served.attach(machine(1), &format!("vm{last}"))));
        [&mut guest, &mut peer].into_iter().for_each(|guest| stage.ready(guest.wait_ready()));
        Every { stage, adapters, guest, peer }
    }

    /// Runs a command in the guest, with the name of an adapter's interface in `$name`. Returns its output.
    #[track_caller]
    pub fn at(&mut self, (entry, number): (&Entry, u8), command: &str) -> String {
        let mac = port(entry.about.name, number).mac;
        let find = format!("path=$(grep -lx {mac} /sys/class/net/*/address); name=${{path%/*}}; name=${{name##*/}}");
        sh(&mut self.guest, &format!("{find}; {command}"))
    }

    /// Gives each adapter its address, and the other guest one in each network.
    pub fn set_up(&mut self) {
        // An interface answers ARP only for its own address.
        let own = "cd /proc/sys/net/ipv4/conf/all; echo 1 >arp_ignore; echo 2 >arp_announce";
        sh(&mut self.guest, own);
        sh(&mut self.peer, "ip link set eth0 up");
        for (entry, number) in self.adapters.clone() {
            let up = format!("ip addr add {}/24 dev $name; ip link set $name up; {CARRIER}", address(number, 1));
            let driver = self.at((entry, number), &format!("{up}; ethtool -i $name | head -n 1"));
            println!("{}: {}", entry.about.name, driver.trim());
            sh(&mut self.peer, &format!("ip addr add {}/24 dev eth0", address(number, 2)));
        }
    }

    /// Sends requests, and a mebibyte in each direction, over each adapter.
    pub fn carries(&mut self) {
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

    /// Checks that every adapter is up, and that its driver has broken no rule. `holes`: expected reads where the chip has no
    /// registers.
    pub fn are_up(&self, holes: impl Fn(&str) -> u64) {
        for (entry, number) in &self.adapters {
            let (name, report) = (entry.about.name, self.stage.report(&format!("vm{number}")));
            let counted = (&report["condition"], &report["guest_errors"], &report["bad_accesses"]);
            assert_eq!(counted, (&"up".into(), &0.into(), &holes(name).into()), "{name}: {report}");
        }
    }
}
