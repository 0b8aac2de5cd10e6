//! Guests in user mode, each adapter served by Nicety: unmodified drivers at the host's own speed.

use std::{sync::atomic::AtomicBool, time::Duration};

use super::{
    super::{
        error::Error,
        root::Root,
        uml::{UmlConfig, UmlKernel},
    },
    Ground, Kind, Up,
};
use crate::method::{Contestant, Guests, Server};

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

    fn peer(&self, _adapter: &str) -> Option<Server> {
        None
    }

    fn prepare(&mut self, _ground: &mut Ground) -> Result<(), Error> {
        Ok(())
    }

    fn boot(&self, ground: &mut Ground, contestant: &Contestant, stop: &AtomicBool) -> Result<Up, Error> {
        ground.boot_served(UmlConfig::new(&self.kernel), &contestant.adapter, stop)
    }

    fn notes(&self, _root: &Root) -> Vec<String> {
        vec![
            format!(
                "Guests: kernel {} built as a user-mode program (UML) from Debian's {}, unmodified drivers, one processor, 256 MiB; \
                 two guests, booted afresh for each contestant of each round. Their instructions run at the host's own speed; a \
                 system call in them takes 7 to 50 µs, so that small transfers and absolute latencies are not a machine's: \
                 compare adapters with each other.",
                self.kernel.release(),
                self.kernel.source(),
            ),
            "Nicety: both guests and a tap on one daemon with one worker, doorbells trapped, options as they come."
                .to_owned(),
            "CPU time is that of both guests' processes and the daemon together; netserver's is not.".to_owned(),
        ]
    }
}
