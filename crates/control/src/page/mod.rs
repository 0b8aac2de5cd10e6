//! The page: the daemon as a person reads it in a browser, made from the reports that the API gives. It is only read.
//!
//! ```text
//! GET /            the host: a picture, ports, uplinks, drops with what they mean, addresses
//! GET /ports/NAME  one port
//! GET /page.css, /page.js
//! ```
//!
//! Whoever is on this machine may read, so a page of another site that is open in somebody's browser must not: the Host header has to be this
//! machine's (DNS rebinding), a request that another site has caused is refused, and no answer may be framed or read elsewhere. A thread of its
//! own serves it. Without readers it does nothing; whatever the readers do, it looks at the ports twice a second at most.

mod describe;
mod history;
mod host;
mod port;
mod reasons;
mod requests;
mod serve;

use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nicety_host::{Host, PageAddress};
use nicety_sandbox::Kind;
use nicety_socket::{Access, Listener};
use rustix::net::sockopt::{set_socket_reuseaddr, set_socket_reuseport};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};
use tokio::sync::Notify;
use tracing::{info, warn};

use super::{ControlError, Inspect};
use serve::Server;

/// Connections that wait to be accepted.
const BACKLOG: u16 = 64;

/// Where the page will be served: bound, not served yet.
#[derive(Debug)]
pub(super) enum Place {
    Loopback(TcpListener),
    Socket(Listener),
}

/// The page's place, bound before the process is confined. Give it to [`Page::start`].
#[derive(Debug)]
pub struct Bound {
    place: Place,
    shown: String,
}

impl Bound {
    /// Takes the place that the host file names; `None` if it names none. `again`: another daemon serves the page there until this one goes
    /// on in its place.
    ///
    /// # Errors
    /// The place is taken or cannot be made.
    pub fn take(host: &Host, again: bool) -> Result<Option<Self>, ControlError> {
        let Some(page) = &host.daemon.page else { return Ok(None) };
        let place = match page {
            PageAddress::Loopback(address) => {
                let failed = |error| ControlError::Page { place: page.to_string(), error };
                if !again {
                    // Sockets that share a port would divide the readers: another daemon's is found by one that does not share.
                    drop(tcp(address, false).map_err(failed)?);
                }
                Place::Loopback(tcp(address, true).map_err(failed)?)
            }
            PageAddress::Socket(path) => {
                if again {
                    let _not_there = std::fs::remove_file(path);
                }
                let access: Access = host.daemon.access.resolve()?;
                Place::Socket(Listener::bind_queue(path, &access, BACKLOG)?)
            }
        };
        Ok(Some(Self { place, shown: page.to_string() }))
    }
}

fn tcp(address: &std::net::SocketAddr, shares: bool) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    set_socket_reuseaddr(&socket, true)?;
    set_socket_reuseport(&socket, shares)?;
    bind(&socket, address)?;
    if shares {
        listen(&socket, BACKLOG.into())?;
    }
    Ok(socket.into())
}

/// The served page. Dropping it ends its thread.
#[derive(Debug)]
pub struct Page {
    end: Arc<Notify>,
    leaves: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Page {
    /// Serves the page at its place.
    ///
    /// # Errors
    /// The thread or its runtime cannot be made.
    pub fn start(bound: Bound, host: &Host, inspect: Arc<dyn Inspect>) -> Result<Self, ControlError> {
        let Bound { place, shown } = bound;
        let failed = |error| ControlError::Page { place: shown.clone(), error };
        let end = Arc::<Notify>::default();
        let leaves = Arc::<AtomicBool>::default();
        let (server, leaving) = (Server::new(place, Arc::clone(&end), host, inspect), Arc::clone(&leaves));
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_io().enable_time().build().map_err(failed)?;
        let thread =
            nicety_sandbox::spawn(Kind::Control, "page", 0, move || server.run(&runtime, &leaving)).map_err(failed)?;
        info!(page = shown, "the page is served");
        Ok(Self { end, leaves, thread: Some(thread) })
    }
}

impl Page {
    /// Ends the thread, and leaves the socket's file to the daemon that serves now.
    pub fn hand_over(self) {
        self.leaves.store(true, Ordering::Relaxed);
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.end.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            warn!("the page's thread had panicked");
        }
    }
}

impl Place {
    fn descriptor(&self) -> io::Result<std::os::fd::OwnedFd> {
        match self {
            Self::Loopback(listener) => listener.as_fd().try_clone_to_owned(),
            Self::Socket(listener) => listener.as_fd().try_clone_to_owned(),
        }
    }
}
