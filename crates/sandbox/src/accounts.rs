//! The thread that looks accounts up once the process is confined to its folders. Landlock's rules name files, not paths: adduser(8)
//! replaces /etc/group by a file that no rule names. So this thread reads all of /etc, and does nothing else.

use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel, sync_channel};

use crate::{Folders, Grant, Kind, enter, starter};

type Act = Box<dyn FnOnce() + Send>;

static QUEUE: OnceLock<Sender<Act>> = OnceLock::new();

/// Starts the thread. Call it before the starter is confined to its folders. `abi` is as for [`crate::confine`].
pub(crate) fn begin(abi: u8) -> io::Result<()> {
    if QUEUE.get().is_some() {
        return Ok(());
    }
    let (queue, asked) = channel::<Act>();
    let (report, confined) = sync_channel(1);
    let work = move || {
        let mut folders = Folders::new();
        folders.grant(PathBuf::from("/etc"), Grant::Read);
        let done = folders.open().confine_this_thread(abi).and_then(|_lacks| enter(Kind::Accounts));
        let is_confined = done.is_ok();
        let _caller_waits = report.send(done);
        if is_confined {
            asked.into_iter().for_each(|act| act());
        }
    };
    starter::spawn("accounts".to_owned(), 0, Box::new(work))?;
    confined.recv().unwrap_or_else(|_| Err(io::Error::other("a thread ended before it was confined")))?;
    let _the_first_holds = QUEUE.set(queue);
    Ok(())
}

/// Does what needs the databases of users and groups, and waits for it. `None` if it panicked, or if no thread could be started.
pub fn look_up<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let Some(queue) = QUEUE.get() else { return crate::aside(act) };
    let (send, receive) = sync_channel(1);
    let act = move || {
        // A panic must not end the thread: the next one asks it too.
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        let _waits = found.map(|found| send.send(found));
    };
    queue.send(Box::new(act)).ok()?;
    receive.recv().ok()
}
