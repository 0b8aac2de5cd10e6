//! `nicety port save` and `restore`: move a port's state from one daemon to another, through a file.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use nicety_control::api::Restored;
use nicety_control::{self as control, Ask, REQUEST_MAX, Reply};
use nicety_daemon::saved::PortState;
use nicety_daemon::whole::Whole;

use crate::answer::{failure, odd};
use crate::exit::{Exit, Failure};
use crate::output;

/// Saves the state. The file is written completely, or not made.
pub fn save(port: &str, file: &Path, socket: &Path) -> Result<(), Failure> {
    // Open the file before the port stops.
    let out = Whole::begin(file).map_err(of(file))?;
    let saved = match control::ask(socket, Ask::Save { name: port.to_owned() }) {
        Ok(Reply::Saved(saved)) => Ok(saved),
        Ok(other) => Err(odd(&other)),
        Err(error) => Err(failure(error)),
    };
    let saved = saved?;
    if let Err(error) = out.finish(&saved) {
        let what = format!("{}: {error}; port {port} stands still: save it to another file", file.display());
        return Err(Failure::new(Exit::Failed, what));
    }
    let state = PortState::from_bytes(&saved).map_err(Failure::with(Exit::Failed))?;
    let (adapter, version) = state.adapter().map_err(Failure::with(Exit::Failed))?;
    let bytes = output::size(saved.len() as u64);
    output::print(&format!(
        "{port}: {adapter}, state version {version}, {bytes}; it stands still until it is restored or its VMM disconnects\n"
    ))
}

/// Restores the state.
pub fn restore(port: &str, file: &Path, socket: &Path) -> Result<(), Failure> {
    let mut state = Vec::new();
    // The limit is for a device file, which may never end.
    let most = REQUEST_MAX as u64 + 1;
    File::open(file).and_then(|file| file.take(most).read_to_end(&mut state)).map_err(of(file))?;
    if state.len() > REQUEST_MAX {
        let what = format!("{}: it is longer than any saved port", file.display());
        return Err(Failure::new(Exit::Usage, what));
    }
    match control::ask(socket, Ask::Restore { name: port.to_owned(), state }).map_err(failure)? {
        Reply::Restored(Restored { name }) => output::print(&format!("{name} goes on\n")),
        other => Err(odd(&other)),
    }
}

fn of(path: &Path) -> impl Fn(std::io::Error) -> Failure {
    move |error| Failure::new(Exit::Failed, format!("{}: {error}", path.display()))
}
