//! The daemon: as `nicety serve`, on the first core, with its control socket; at its end it says how long locks were held.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use nicety_daemon::control::{Control, Inspect};
use nicety_daemon::daemon::Daemon;
use nicety_daemon::host::Host;
use nicety_daemon::report::{AddressReport, PortReport};

use crate::Error;

#[derive(Default)]
struct Soon(OnceLock<Arc<Daemon>>);

impl Inspect for Soon {
    fn ports(&self) -> Vec<PortReport> {
        self.0.get().map(|daemon| Inspect::ports(daemon.as_ref())).unwrap_or_default()
    }

    fn addresses(&self) -> Vec<AddressReport> {
        Vec::new()
    }
}

/// `[HOLDS] HOST`: HOLDS is the file that takes the holds of locks at the end.
pub fn run(words: &[String]) -> Result<(), Error> {
    let (path, holds) = words.split_last().ok_or("which host file?")?;
    crate::pin(true)?;
    let host = Host::read(Path::new(path)).map_err(|error| error.to_string())?;
    let soon = Arc::new(Soon::default());
    let inspect = Arc::clone(&soon) as Arc<dyn Inspect>;
    let control = Control::start(&host.control(None), &host.path, inspect)?;
    nicety_daemon::serve::serve(&host, None, |daemon| {
        // It is set here alone.
        let _ = soon.0.set(Arc::clone(daemon));
    })?;
    drop(control);
    holds.first().map_or(Ok(()), |file| crate::locks::write(Path::new(file)))
}
