//! Guests in user mode, each adapter served by Nicety, and by QEMU where its machine `x-remote` can: unmodified drivers at the host's
//! own speed, both servers under the same conditions.
//!
//! ```text
//! QEMU, and nicety-stream:       left ── its server ── UNIX stream ── right's server ── right
//!                               └── one processor ──┘                └──── the other one ────┘
//!
//! nicety:                        left ── one daemon's switch ── right
//! ```
//!
//! Over the stream, each guest has its own server process. Both are bound to one processor, and interrupts are INTx. Frames pass
//! between the two servers one by one, each with its length in front (QEMU's `-netdev stream`; Nicety's uplink of that kind). On
//! Nicety's own switch, one daemon serves both guests, runs on either processor, and raises the interrupts that the driver prefers.

use std::{sync::atomic::AtomicBool, time::Duration};

use nicety_guests::{
    Error, Folder, Link, Port, Root, Served, Setup,
    uml::{Model, UmlConfig, UmlKernel},
};
use rustix::thread::{CpuSet, sched_getaffinity};

use super::{super::pair, Ground, Kind, LEFT_MAC, NOT_IN_QEMU, RIGHT_MAC, Up, addressed, drive, version};
use crate::method::{Contestant, Driver, Guests, Load, Server};

/// Kernel parameter that restricts a guest's driver to INTx, as QEMU's machine `x-remote` does.
const INTX: &str = "pci=nomsi";

/// The reason why QEMU's machine cannot serve its igb. It is known before a guest starts, which would find it out by its time limit alone, in
/// each round again. hw/net/igb.c and hw/remote/machine.c of QEMU 11.1: there is no MSI-X, and the model has no other way to a queue.
const NO_MSIX: &str = "QEMU's igb interrupts by MSI-X alone, which its machine x-remote does not have";
/// The reason why QEMU's pcnet cannot be joined by a stream, known before too. hw/net/pcnet.c pads nothing, and takes nothing shorter; a tap
/// pads for it.
const NOT_PADDED: &str =
    "QEMU's pcnet takes no frame shorter than 60 bytes and pads none, so ARP does not pass between two of them";

/// QEMU's own model of an adapter, or why QEMU does not serve it to these guests. The model must be a PCI function.
pub(super) fn served_model(adapter: &str) -> Result<&'static str, &'static str> {
    let about = nicety_adapters::find(adapter).map(|entry| entry.about);
    match about.and_then(|about| Some((about.qemu?, about.transports))) {
        None => Err(NOT_IN_QEMU),
        Some((_, transports)) if !transports.contains(&"vfio-user") => {
            Err("QEMU has no vhost-user back end of its own, by which these guests would reach it")
        }
        Some(("igb", _)) => Err(NO_MSIX),
        Some((model, _)) => Ok(model),
    }
}

/// The same between two guests, joined by a stream.
pub(super) fn model(adapter: &str) -> Result<&'static str, &'static str> {
    served_model(adapter).and_then(|model| if model == "pcnet" { Err(NOT_PADDED) } else { Ok(model) })
}

/// Why an adapter is not measured over a stream, whose guests have INTx alone.
fn not_joined(adapter: &str, driver: Option<Driver>) -> Option<String> {
    if let Some(driver) = driver {
        return Some(format!("under a {} it is measured on the switch alone", driver.title()));
    }
    let is_function = nicety_adapters::find(adapter).is_some_and(|entry| entry.card.is_some());
    is_function.then(|| "a virtual function has no INTx, which is all that guests have in this row".to_owned())
}

/// A port for a guest with one processor.
fn port(ground: &Ground, name: &str, adapter: &str, mac: &str) -> Result<Port, Error> {
    let mut port = ground.port(name, adapter, mac)?;
    if port.entry.about.transports.contains(&"vhost-user") {
        // One pair is QEMU's own choice for a vhost-user netdev. A user-mode kernel sets up all pairs that the device offers, and uses as
        // many as it has processors.
        port.more += "queues = 1\n";
    }
    Ok(port)
}

/// The two processors on which everything runs. None if we may only use one.
fn processors() -> Option<[usize; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut numbers = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    Some([numbers.next()?, numbers.next()?])
}

/// Guests in user mode (see the module's page).
#[derive(Debug)]
pub(super) struct UserMode {
    kernel: UmlKernel,
    processors: Option<[usize; 2]>,
}

impl UserMode {
    /// Builds the kernel if it is missing.
    pub fn lay(say: &mut dyn FnMut(&str)) -> Result<UserMode, Error> {
        Ok(UserMode { kernel: UmlKernel::lay(say)?, processors: processors() })
    }

    /// The command prefix that binds a program to some of the two processors.
    fn bound(&self, root: &Root, sides: &[usize]) -> Vec<String> {
        let Some(processors) = self.processors else { return Vec::new() };
        let list: Vec<String> = sides.iter().filter_map(|side| processors.get(*side)).map(usize::to_string).collect();
        vec![root.busybox().display().to_string(), "taskset".into(), "-c".into(), list.join(",")]
    }

    /// Both machines with their addresses, each bound to its own processor.
    fn machines(&self, root: &Root, server: Server) -> (UmlConfig, UmlConfig) {
        self.apart(root, addressed(UmlConfig::new(&self.kernel), server))
    }

    /// Binds each machine to its own processor.
    fn apart(&self, root: &Root, (mut left, mut right): (UmlConfig, UmlConfig)) -> (UmlConfig, UmlConfig) {
        (left.before, right.before) = (self.bound(root, &[0]), self.bound(root, &[1]));
        (left, right)
    }

    /// Boots both guests on Nicety's own switch.
    fn boot_switched(&self, ground: &mut Ground, contestant: &Contestant, stop: &AtomicBool) -> Result<Up, Error> {
        let Contestant { adapter, driver, .. } = contestant;
        let ports = vec![port(ground, "left", adapter, LEFT_MAC)?, port(ground, "right", adapter, RIGHT_MAC)?];
        let setup = Setup { before: self.bound(&ground.root, &[0, 1]), ..Setup::default() };
        let served = Served::start_as(&ground.program, &mut ground.namespace, ports, setup)?;
        match driver {
            None => ground.boot_served(self.machines(&ground.root, Server::Nicety), vec![served], stop, |_| Ok(())),
            Some(Driver::UserSpace) => {
                let machine = UmlConfig::new(&self.kernel);
                let (machines, uio) = (self.apart(&ground.root, (machine.clone(), machine)), ground.uio()?);
                ground.boot_served(machines, vec![served], stop, |pair| {
                    uio.in_user_mode(&mut pair.left, stop)?;
                    uio.in_user_mode(&mut pair.right, stop)?;
                    drive(pair, Server::Nicety, stop)
                })
            }
        }
    }

    /// Boots both guests with a daemon for each, and a stream between the daemons.
    fn boot_joined(&self, ground: &mut Ground, adapter: &str, stop: &AtomicBool) -> Result<Up, Error> {
        let folder = Folder::new()?;
        let mut served = Vec::new();
        let ports = [port(ground, "left", adapter, LEFT_MAC)?, port(ground, "right", adapter, RIGHT_MAC)?];
        for (side, port) in ports.into_iter().enumerate() {
            let link = Link::Stream { socket: folder.join("stream"), listens: side == 0 };
            let setup = Setup { link: Some(link), before: self.bound(&ground.root, &[side]), ..Setup::default() };
            match Served::start_as(&ground.program, &mut ground.namespace, vec![port], setup) {
                Ok(one) => served.push(one),
                Err(error) => {
                    // An error of stopping the others has the same cause, so it is dropped.
                    let _ = ground.stop(served);
                    return Err(error);
                }
            }
        }
        let (mut left, mut right) = self.machines(&ground.root, Server::NicetyStream);
        for machine in [&mut left, &mut right] {
            machine.append.push(INTX.to_owned());
        }
        let mut up = ground.boot_served((left, right), served, stop, |_| Ok(()))?;
        up.pair.keep(folder);
        Ok(up)
    }

    /// Boots both guests with QEMU's own model, and a stream between the models.
    fn boot_modelled(&self, ground: &Ground, model: &str, stop: &AtomicBool) -> Result<Up, Error> {
        let folder = Folder::new()?;
        let path = folder.join("stream");
        let (mut left, mut right) = self.machines(&ground.root, Server::Qemu);
        let sides = [(&mut left, LEFT_MAC, "server=on"), (&mut right, RIGHT_MAC, "server=off,reconnect-ms=100")];
        for (machine, mac, role) in sides {
            let netdev = format!("stream,{role},addr.type=unix,addr.path={path}");
            machine.model = Some(Model { device: format!("{model},mac={mac}"), netdev, entrance: Vec::new() });
        }
        let mut pair = pair::boot_unless(&ground.root, left, right, stop)?;
        pair.keep(folder);
        Ok(Up { pair, served: Vec::new() })
    }
}

impl Kind for UserMode {
    fn guests(&self) -> Guests {
        Guests::Uml
    }

    fn overhead(&self) -> Duration {
        Duration::from_millis(1_400)
    }

    fn servers(&self, adapter: &str) -> Vec<Server> {
        let has = |server: &Server| match server {
            Server::Nicety => true,
            Server::NicetyStream => not_joined(adapter, None).is_none(),
            Server::Qemu => model(adapter).is_ok(),
        };
        Server::ALL.into_iter().filter(has).collect()
    }

    fn absent(&self, adapter: &str, driver: Option<Driver>) -> Vec<(Server, String)> {
        let qemu = model(adapter).err().map(|why| (Server::Qemu, why.to_owned()));
        let stream = not_joined(adapter, driver).map(|why| (Server::NicetyStream, why));
        stream.into_iter().chain(qemu).collect()
    }

    fn loads(&self) -> Vec<Load> {
        vec![Load::GuestToGuest, Load::RequestResponse]
    }

    fn prepare(&mut self, _ground: &mut Ground) -> Result<(), Error> {
        Ok(())
    }

    fn boot(&self, ground: &mut Ground, contestant: &Contestant, stop: &AtomicBool) -> Result<Up, Error> {
        let Contestant { adapter, server, .. } = contestant;
        match (server, model(adapter)) {
            (Server::Qemu, Ok(model)) => self.boot_modelled(ground, model, stop),
            (Server::NicetyStream, _) => self.boot_joined(ground, adapter, stop),
            _ => self.boot_switched(ground, contestant, stop),
        }
    }

    fn notes(&self, root: &Root) -> Vec<String> {
        let bound = match self.processors {
            Some([left, right]) => format!(
                "Each guest and its server, a process each, are bound to one processor, {left} and {right}; the one daemon of \
                 \"nicety\" may run on either"
            ),
            None => "There is only one processor for all processes".to_owned(),
        };
        vec![
            format!(
                "Guests: kernel {} built as a user-mode program (UML) from Debian's {}, unmodified drivers, one processor, 256 MiB; \
                 two guests, booted afresh for each contestant of each round. Their instructions run at the host's own speed; a \
                 system call in them takes 7 to 50 µs, so that small transfers and absolute latencies are not a machine's: \
                 compare adapters with each other.",
                self.kernel.release(),
                self.kernel.source(),
            ),
            format!(
                "qemu: QEMU {}'s own models, two processes (machine x-remote) joined by -netdev stream over a UNIX socket, interrupts \
                 by INTx, which is all that x-remote has. nicety-stream: two daemons joined by the same protocol over the same \
                 kind of socket, guests with {INTX}. nicety: both guests on one daemon's switch, MSI-X where the adapter has it. \
                 Nicety's other options as they come: one worker, doorbells mapped for vmxnet3 on the switch (trapped over the stream, \
                 where daemon and guest share a processor), trapped for the others; virtio-net with one queue pair, for the guests have one processor.",
                version(root, "qemu-system-x86"),
            ),
            format!("{bound}."),
            format!("Rows that are not there: {NO_MSIX}; {NOT_PADDED}."),
            "CPU time is that of both guests' processes and of all that serves them, daemons or QEMU.".to_owned(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use nicety_adapters::REGISTRY;

    use super::*;

    #[test]
    fn a_model_that_qemu_has_is_named_and_two_processors_differ() {
        for adapter in ["e1000", "vmxnet3"] {
            assert!(nicety_adapters::find(adapter).is_some());
            assert_eq!(model(adapter), Ok(adapter));
        }
        let others = REGISTRY.iter().map(|entry| entry.about).filter(|about| about.qemu.is_some());
        let not_served: Vec<&str> = others.map(|about| about.name).filter(|name| model(name).is_err()).collect();
        assert_eq!(not_served, ["igb", "pcnet", "virtio-net"]);
        assert_eq!(
            (model("igb"), model("igbvf"), served_model("pcnet")),
            (Err(NO_MSIX), Err(NOT_IN_QEMU), Ok("pcnet"))
        );
        if let Some([left, right]) = processors() {
            assert_ne!(left, right);
        }
    }

    #[test]
    fn only_virtual_functions_are_not_joined_by_a_stream() {
        let names = REGISTRY.iter().map(|entry| entry.about.name);
        let alone: Vec<&str> = names.filter(|name| not_joined(name, None).is_some()).collect();
        assert_eq!(alone, ["igbvf", "ixgbevf"]);
        assert!(not_joined("vmxnet3", Some(Driver::UserSpace)).is_some());
    }
}
