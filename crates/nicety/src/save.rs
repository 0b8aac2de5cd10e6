//! `nicety port save` and `restore`: a port's state from one daemon to another, by a file.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nicety_daemon::control::api::Restored;
use nicety_daemon::control::{self, Ask, REQUEST_MOST, Reply};
use nicety_daemon::saved::PortState;

use crate::exit::{Exit, Failure};
use crate::output;
use crate::ports::{failure, odd};

/// Saves it. The file is whole, or not there.
pub fn save(port: &str, file: &Path, socket: &Path) -> Result<(), Failure> {
    let new = beside(file);
    // Before the port stops.
    let mut options = OpenOptions::new();
    let mut out = options.write(true).create(true).truncate(true).mode(0o600).open(&new).map_err(of(&new))?;
    let saved = match control::ask(socket, Ask::Save { name: port.to_owned() }) {
        Ok(Reply::Saved(saved)) => Ok(saved),
        Ok(other) => Err(odd(&other)),
        Err(error) => Err(failure(error)),
    };
    let saved = saved.inspect_err(|_| _ = fs::remove_file(&new))?;
    let written = out.write_all(&saved).and_then(|()| out.sync_all()).and_then(|()| fs::rename(&new, file));
    if let Err(error) = written {
        let _it_may_not_be_there = fs::remove_file(&new);
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

/// Restores it.
pub fn restore(port: &str, file: &Path, socket: &Path) -> Result<(), Failure> {
    let mut state = Vec::new();
    // A device may never end.
    let most = REQUEST_MOST as u64 + 1;
    File::open(file).and_then(|file| file.take(most).read_to_end(&mut state)).map_err(of(file))?;
    if state.len() > REQUEST_MOST {
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

/// Where the file is written first.
fn beside(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    name.into()
}
