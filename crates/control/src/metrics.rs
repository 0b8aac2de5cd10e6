//! The metrics of the daemon as text: the control socket and the page give the same.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nicety_daemon::live::Live;
use nicety_daemon::metrics::{self, Facts};
use nicety_daemon::usage;

use super::beside::{Answer, beside};

/// The text. It is made beside the thread that answers, which may not read the kernel's files about this process.
pub(super) async fn text(live: Arc<Live>) -> Answer<String> {
    beside(move || {
        let (daemon, waiting) = (live.daemon(), live.waiting());
        let ports = daemon.views();
        let facts = Facts {
            tunnels: daemon.tunnels(&ports),
            ports,
            vms: daemon.vms(),
            fabric: daemon.fabric(),
            addresses: daemon.addresses().len(),
            threads: usage::threads(),
            process: usage::process(),
            times: daemon.times(),
            captures: live.captures().load(Ordering::Relaxed),
            flow_exports: daemon.flow_exports(),
            wakes: daemon.wakes(),
            pauses: daemon.pauses().to_vec(),
            change: waiting.map_or((false, false), |waiting| (true, waiting.not_undone.is_some())),
        };
        Ok(metrics::text(&facts))
    })
    .await
}
