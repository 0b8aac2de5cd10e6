//! A capture file that the daemon itself writes, on its own thread, for a switch without a control socket.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use nicety_plane::Watcher;

use super::{Encoder, Scope, tap};
use crate::daemon::Daemon;

/// A running capture of a port to a file. It ends with [`FileCapture::end`].
#[derive(Debug)]
pub struct FileCapture {
    watcher: Arc<dyn Watcher>,
    thread: JoinHandle<io::Result<()>>,
}

impl FileCapture {
    /// Starts to write the frames of the port of this name, like `nicety capture`. Returns `None` if there is no such port.
    pub fn begin(daemon: &Daemon, port: &str, mut file: File) -> io::Result<Option<Self>> {
        let names = daemon.names();
        let Some(id) = names.iter().find(|(_, name)| *name == port).map(|(id, _)| *id) else { return Ok(None) };
        let scope = Scope { ports: Some(vec![id]), stage: None, drops: false, filter: None, snap: u32::MAX };
        let (watcher, reader) = tap(scope);
        let mut encoder = Encoder::new(reader, daemon.epoch(), names);
        file.write_all(&encoder.begin(&[id]))?;
        let (begun, wall) = (Instant::now(), daemon.wall());
        let write = move || {
            nicety_sandbox::enter(nicety_sandbox::Kind::Capture)?;
            while let Some(blocks) = encoder.wait() {
                file.write_all(&blocks)?;
            }
            file.write_all(&encoder.statistics(wall + begun.elapsed()))
        };
        let thread = std::thread::Builder::new().name("capture".to_owned()).spawn(write)?;
        daemon.watch(&watcher);
        Ok(Some(Self { watcher, thread }))
    }

    /// Ends the capture. On return all frames so far are in the file. The error is the file's.
    pub fn end(self, daemon: &Daemon) -> io::Result<()> {
        let Self { watcher, thread } = self;
        daemon.unwatch(&watcher);
        // This drops the last watcher, so the thread's queue ends.
        drop(watcher);
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that writes it had panicked")))
    }
}
