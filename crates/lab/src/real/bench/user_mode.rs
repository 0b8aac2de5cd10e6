//! Guests in user mode, each adapter served by Nicety, and by QEMU where its machine `x-remote` can: unmodified drivers at the host's
//! own speed. QEMU's adapters are connected as in [`qemu`](super::qemu): by taps on a bridge.

use std::{sync::atomic::AtomicBool, time::Duration};

use super::{
    super::{
        error::Error,
        pair,
        root::Root,
        uml::{Model, UmlConfig, UmlKernel},
    },
    Ground, Kind, LEFT_MAC, RIGHT_MAC, Up, addressed,
    qemu::{BRIDGED, bridge},
    version,
};
use crate::method::{Contestant, Guests, Server};

/// QEMU's own model of an adapter, if it has been tried under x-remote.
fn model(adapter: &str) -> Option<&'static str> {
    ["e1000", "vmxnet3"].into_iter().find(|model| *model == adapter)
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct UserMode {
    kernel: UmlKernel,
}

impl UserMode {
    /// Builds the kernel if it is not there yet.
    pub fn lay(say: &mut dyn FnMut(&str)) -> Result<UserMode, Error> {
        Ok(UserMode { kernel: UmlKernel::lay(say)? })
    }
}

impl Kind for UserMode {
    fn guests(&self) -> Guests {
        Guests::Uml
    }

    fn overhead(&self) -> Duration {
        Duration::from_millis(900)
    }

    fn peer(&self, adapter: &str) -> Option<Server> {
        model(adapter).map(|_| Server::Qemu)
    }

    fn prepare(&mut self, ground: &mut Ground) -> Result<(), Error> {
        bridge(ground)
    }

    fn boot(&self, ground: &mut Ground, contestant: &Contestant, stop: &AtomicBool) -> Result<Up, Error> {
        let Contestant { adapter, server } = contestant;
        let machine = UmlConfig::new(&self.kernel);
        let Some(model) = model(adapter).filter(|_| *server == Server::Qemu) else {
            return ground.boot_served(machine, adapter, stop);
        };
        let entrance = ground.namespace.entrance();
        let with = |machine: UmlConfig, mac: &str, tap: &str| {
            let (device, netdev) = (format!("{model},mac={mac}"), format!("tap,ifname={tap},script=no,downscript=no"));
            UmlConfig { model: Some(Model { device, netdev, entrance: entrance.clone() }), ..machine }
        };
        let (left, right) = addressed(machine, Server::Qemu);
        let (left, right) = (with(left, LEFT_MAC, BRIDGED[0]), with(right, RIGHT_MAC, BRIDGED[1]));
        Ok(Up { pair: pair::boot_unless(&ground.root, left, right, stop)?, served: None })
    }

    fn notes(&self, root: &Root) -> Vec<String> {
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
                "Nicety: both guests and a tap on one daemon with one worker, options as they come (doorbells mapped for vmxnet3, trapped for the others). QEMU {}: its \
                 own adapters, each in a process of its own (machine x-remote) with a tap on the kernel's bridge, with INTx only; \
                 what it cannot serve so is not there.",
                version(root, "qemu-system-x86"),
            ),
            "CPU time is that of both guests' processes and of what serves them, the daemon or both QEMU processes; netserver's is not."
                .to_owned(),
        ]
    }
}
