//! The daemon's reports for its control socket.

use std::sync::{Arc, OnceLock};

use nicety_adapter::PortId;
use nicety_daemon::daemon::{Daemon, NoteBytes, RestartError};
use nicety_daemon::fabric::{FabricReport, PlaceReport};
use nicety_daemon::flows::FlowExportReport;
use nicety_daemon::live::Live;
use nicety_daemon::protection::{VmReport, Wish};
use nicety_daemon::report::{AddressReport, PortReport};
use nicety_daemon::saved::{PortState, SaveError};
use nicety_frame::Mac;
use tokio::sync::Notify;

use super::api::AddressList;
use super::{ADDRESSES_MAX, Inspect, STARTING_SENTENCE};

impl Inspect for Daemon {
    fn is_ready(&self) -> bool {
        true
    }

    fn ports(&self) -> Vec<PortReport> {
        self.views().iter().map(PortReport::of).collect()
    }

    fn carried(&self, note: &mut NoteBytes<'_>) {
        Daemon::carried(self, note);
    }

    fn addresses(&self) -> AddressList {
        let names = self.names();
        let name = |id: PortId| {
            names.get(&id).map_or_else(|| format!("(a port that has gone, {})", id.0), |name| name.clone())
        };
        let learned = Daemon::addresses(self);
        let more = learned.len().saturating_sub(ADDRESSES_MAX);
        let addresses = learned.into_iter().take(ADDRESSES_MAX);
        let addresses = addresses.map(|learned| AddressReport {
            address: learned.address.to_string(),
            port: name(learned.port),
            silent_seconds: learned.silent.as_secs(),
        });
        AddressList { addresses: addresses.collect(), more }
    }

    fn vms(&self) -> Vec<VmReport> {
        Daemon::vms(self)
    }

    fn wish(&self, vm: &str, wish: Wish) -> Result<(), String> {
        Daemon::wish(self, vm, wish)
    }

    fn fabric(&self) -> Option<FabricReport> {
        Daemon::fabric(self)
    }

    fn places(&self, mac: Mac) -> Option<Vec<PlaceReport>> {
        Daemon::places(self, mac)
    }

    fn flow_exports(&self) -> Vec<FlowExportReport> {
        Daemon::flow_exports(self)
    }

    fn restart(&self, name: &str) -> Result<(), RestartError> {
        Daemon::restart(self, name)
    }

    fn save(&self, name: &str) -> Result<PortState, SaveError> {
        Daemon::save(self, name)
    }

    fn restore(&self, name: &str, state: PortState) -> Result<(), SaveError> {
        Daemon::restore(self, name, state)
    }
}

/// The daemon, once it runs. The control socket is made before any port is opened, so that a second daemon with the same host
/// file disturbs nothing.
#[derive(Default)]
pub struct Soon {
    live: OnceLock<Arc<Live>>,
    looped: Arc<Notify>,
}

impl Soon {
    /// Sets the running daemon. Only the first call counts.
    pub fn runs(&self, live: &Arc<Live>) {
        let looped = Arc::clone(&self.looped);
        live.daemon().on_loop(Box::new(move || looped.notify_one()));
        let _already_set = self.live.set(Arc::clone(live));
    }
}

impl Inspect for Soon {
    fn is_ready(&self) -> bool {
        self.live.get().is_some()
    }

    fn ports(&self) -> Vec<PortReport> {
        self.live.get().map(|live| Inspect::ports(live.daemon())).unwrap_or_default()
    }

    fn carried(&self, note: &mut NoteBytes<'_>) {
        self.live.get().into_iter().for_each(|live| live.daemon().carried(note));
    }

    fn addresses(&self) -> AddressList {
        let none = || AddressList { addresses: Vec::new(), more: 0 };
        self.live.get().map_or_else(none, |live| Inspect::addresses(live.daemon()))
    }

    fn vms(&self) -> Vec<VmReport> {
        self.live.get().map(|live| live.daemon().vms()).unwrap_or_default()
    }

    fn wish(&self, vm: &str, wish: Wish) -> Result<(), String> {
        let starting = || Err(STARTING_SENTENCE.to_owned());
        self.live.get().map_or_else(starting, |live| live.daemon().wish(vm, wish))
    }

    fn fabric(&self) -> Option<FabricReport> {
        self.live.get()?.daemon().fabric()
    }

    fn places(&self, mac: Mac) -> Option<Vec<PlaceReport>> {
        self.live.get()?.daemon().places(mac)
    }

    fn flow_exports(&self) -> Vec<FlowExportReport> {
        self.live.get().map(|live| live.daemon().flow_exports()).unwrap_or_default()
    }

    fn restart(&self, name: &str) -> Result<(), RestartError> {
        let missing = || Err(RestartError::Missing(name.to_owned()));
        self.live.get().map_or_else(missing, |live| live.restart(name))
    }

    fn save(&self, name: &str) -> Result<PortState, SaveError> {
        let missing = || Err(SaveError::Missing(name.to_owned()));
        self.live.get().map_or_else(missing, |live| live.daemon().save(name))
    }

    fn restore(&self, name: &str, state: PortState) -> Result<(), SaveError> {
        match self.live.get() {
            Some(live) => live.daemon().restore(name, state),
            None => Err(SaveError::Missing(name.to_owned())),
        }
    }

    fn live(&self) -> Option<Arc<Live>> {
        self.live.get().cloned()
    }

    fn looped(&self) -> Option<Arc<Notify>> {
        Some(Arc::clone(&self.looped))
    }
}
