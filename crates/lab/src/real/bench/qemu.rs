//! Guests in QEMU, each adapter served by Nicety and by QEMU itself.
//!
//! ```text
//!  left ── QEMU's adapter ── tap ─┐
//!                               bridge ── netserver
//! right ── QEMU's adapter ── tap ─┘
//! ```
//!
//! People connect QEMU's adapters by a bridge (libvirt's default), and it is faster than QEMU's own `-netdev stream`.

use std::{sync::atomic::AtomicBool, time::Duration};

use nicety_guests::{Accel, Error, Folder, GuestConfig, Image, Kernel, Root, Served};

use super::{
    super::pair, Ground, Kind, LEFT_MAC, NOT_IN_QEMU, RIGHT_MAC, UPLINK, Up, address, addressed, drive, version,
};
use crate::method::{Contestant, Driver, Guests, Server};

const BRIDGE: &str = "b0";
const BRIDGED: [&str; 2] = ["q1", "q2"];

/// QEMU's own model of an adapter, if it has one.
fn model(adapter: &str) -> Option<&'static str> {
    nicety_adapters::find(adapter)?.about.qemu
}

/// Guests in QEMU (see the module's page).
#[derive(Debug)]
pub(super) struct Qemu {
    accel: Accel,
    kernel: Kernel,
}

impl Qemu {
    pub fn new() -> Qemu {
        Qemu { accel: Accel::Auto, kernel: Kernel::V6_12 }
    }
}

impl Kind for Qemu {
    fn guests(&self) -> Guests {
        Guests::Qemu
    }

    fn overhead(&self) -> Duration {
        Duration::from_millis(3_900)
    }

    fn servers(&self, adapter: &str) -> Vec<Server> {
        [Some(Server::Nicety), model(adapter).map(|_| Server::Qemu)].into_iter().flatten().collect()
    }

    fn absent(&self, adapter: &str, _driver: Option<Driver>) -> Vec<(Server, String)> {
        if model(adapter).is_some() { Vec::new() } else { vec![(Server::Qemu, NOT_IN_QEMU.to_owned())] }
    }

    fn prepare(&mut self, ground: &mut Ground) -> Result<(), Error> {
        ground.namespace.bridge(BRIDGE, &format!("{}/24", address(Server::Qemu, 254)), &BRIDGED)?;
        Image::of(&ground.root, self.kernel)?;
        self.accel = Accel::Auto.resolve(&ground.root)?;
        Ok(())
    }

    fn boot(&self, ground: &mut Ground, contestant: &Contestant, stop: &AtomicBool) -> Result<Up, Error> {
        let Contestant { adapter, server, driver } = contestant;
        let entrance = ground.namespace.entrance();
        let mut machine = GuestConfig { accel: self.accel, entrance, ..GuestConfig::new(self.kernel) };
        // QEMU has read the archive when the guests answer, so the folder may go then.
        let programs = Folder::new()?;
        if !ground.archive.is_empty() {
            machine.archive = Some(programs.write("programs.cpio", &ground.archive)?);
        }
        match server {
            Server::Nicety | Server::NicetyStream => {
                let ports = vec![ground.port("left", adapter, LEFT_MAC)?, ground.port("right", adapter, RIGHT_MAC)?];
                let served = Served::start(&ground.program, &mut ground.namespace, ports, Some(UPLINK))?;
                match driver {
                    None => ground.boot_served(addressed(machine, *server), vec![served], stop, |_| Ok(())),
                    Some(Driver::UserSpace) => {
                        let folder = Folder::new()?;
                        let machine = ground.uio()?.in_qemu(machine, &folder, &ground.archive)?;
                        let machines = (machine.clone(), machine);
                        ground.boot_served(machines, vec![served], stop, |pair| drive(pair, *server, stop))
                    }
                }
            }
            Server::Qemu => {
                let model = model(adapter).unwrap_or(adapter);
                let with = |machine: GuestConfig, mac: &str, tap: &str| {
                    let tap = format!("tap,ifname={tap},script=no,downscript=no");
                    machine.adapter(&format!("{model},mac={mac}"), &tap)
                };
                let (left, right) = addressed(machine, Server::Qemu);
                let (left, right) = (with(left, LEFT_MAC, BRIDGED[0]), with(right, RIGHT_MAC, BRIDGED[1]));
                Ok(Up { pair: pair::boot_unless(&ground.root, left, right, stop)?, served: Vec::new() })
            }
        }
    }

    fn accelerator(&self) -> Option<Accel> {
        Some(self.accel)
    }

    fn notes(&self, root: &Root) -> Vec<String> {
        let kernel = root.packages().iter().find(|p| p.name.starts_with(&format!("linux-image-{}.", self.kernel)));
        let runs = match self.accel {
            Accel::Kvm => "KVM",
            Accel::Auto | Accel::Tcg | Accel::Counted => {
                "QEMU's translator (TCG), for there is no KVM that boots a stock kernel"
            }
        };
        vec![
            format!(
                "Guests: Debian's kernel {}, unmodified drivers, one processor, 256 MiB, in QEMU {} (machine q35), run by {runs}; \
                 two guests, booted afresh for each contestant of each round.",
                kernel.map_or("of unknown version", |package| package.version.as_str()),
                version(root, "qemu-system-x86"),
            ),
            "Nicety: both guests and a tap on one daemon with one worker, options as they come (doorbells mapped for vmxnet3, trapped for the others). QEMU: its own \
             adapters, each with a tap on the kernel's bridge, options as they come, vhost off."
                .to_owned(),
            "CPU time is that of both QEMU processes and the daemon together, guests' own work included; netserver's is not."
                .to_owned(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_registered_adapter_is_compared_and_those_that_qemu_has_twice() {
        for (ours, theirs) in [("e1000", "e1000"), ("vmxnet3", "vmxnet3"), ("virtio-net", "virtio-net-pci")] {
            assert!(nicety_adapters::find(ours).is_some(), "{ours}");
            assert_eq!(model(ours), Some(theirs));
        }
        assert_eq!(model("igbvf"), None);
    }
}
