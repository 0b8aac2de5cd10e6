//! The thread that looks names of hosts up. As the one for accounts it reads all of /etc, whose files are replaced, and owns none of them.

use std::io;
use std::sync::mpsc::sync_channel;

use crate::accounts::confine_to_etc;
use crate::{Kind, is_on, starter};

/// Folders in which programs that manage name servers keep resolv.conf(5): /etc has a link to it.
const RESOLVERS: [&str; 3] = ["/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager"];

/// Starts a thread that may look names up. Call it before [`confine`](crate::confine): later threads do not reach /etc. Name servers are
/// asked by UDP only.
///
/// # Errors
/// The system's, or the thread cannot be confined; then it has done nothing.
pub fn spawn_for_names(act: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let (report, confined) = sync_channel(1);
    let work = move || {
        let done = if is_on() { confine_to_etc(Kind::Names, &RESOLVERS, u8::MAX) } else { Ok(()) };
        let is_confined = done.is_ok();
        let _caller_waits = report.send(done);
        if is_confined {
            act();
        }
    };
    let _detached = starter::spawn("names".to_owned(), 0, Box::new(work))?;
    confined.recv().unwrap_or_else(|_| Err(io::Error::other("a thread ended before it was confined")))
}
