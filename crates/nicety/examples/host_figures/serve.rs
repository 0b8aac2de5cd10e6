//! The daemon: like `nicety serve`, on the first core, with its control socket. At its end it writes how long locks were held.

use std::path::Path;
use std::sync::Arc;

use nicety_control::Soon;
use nicety_control::{self as control, Control, Inspect};
use nicety_daemon::live::Live;
use nicety_daemon::live::state::Begin;
use nicety_host::Host;

use crate::Error;

/// `[HOLDS] HOST`: the file HOLDS receives the statistics of lock holds at the end.
pub fn run(words: &[String]) -> Result<(), Error> {
    let (path, holds) = words.split_last().ok_or("which host file?")?;
    crate::pin(true)?;
    let host = Host::read(Path::new(path)).map_err(|error| error.to_string())?;
    let soon = Arc::new(Soon::default());
    let inspect = Arc::clone(&soon) as Arc<dyn Inspect>;
    let begin = Begin::new(host);
    let host = &begin.host;
    let prepared = nicety_daemon::serve::prepare(host, None)?;
    let control = Control::start(control::prepare(host, &host.control(None)?)?, &host.path, inspect)?;
    nicety_daemon::signals::serve(prepared, |daemon| {
        let live = Live::new(Arc::clone(daemon), host.clone(), begin.file.clone(), begin.state.clone());
        let live = Arc::new(live);
        soon.runs(&live);
        Ok(live)
    })?;
    drop(control);
    holds.first().map_or(Ok(()), |file| crate::locks::write(Path::new(file)))
}
