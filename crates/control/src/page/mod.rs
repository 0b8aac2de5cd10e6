//! The page: the daemon as a person reads it in a browser, made from the reports that the API gives. It is only read.
//!
//! ```text
//! GET /            the host: a picture, who is blocked, ports, protected VMs, uplinks, classes, drops with their meaning, changes, log, addresses
//! GET /ports/NAME  one port; the query of both is what the reader has chosen (`view.rs`)
//! GET /metrics     for Prometheus, as on the control socket
//! GET /page.css, /page.js
//! ```
//!
//! Everybody on this machine may read. A page of another site in somebody's browser may not: the Host header must name this machine (DNS
//! rebinding), requests that another site has caused are refused, and no answer may be framed or read elsewhere. A thread of its own
//! serves it. It looks at the ports each second, and twice a second at most, however many read.

mod blocked;
mod describe;
mod fabric;
mod flows;
mod history;
mod host;
mod limits;
mod picture;
mod port;
mod ports;
mod reasons;
mod recent;
mod requests;
mod ring;
mod serve;
mod shown;
mod view;
mod vms;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nicety_daemon::handover::path_of;
use nicety_host::{Host, PageAddress};
use nicety_sandbox::Kind;
use nicety_socket::{Access, Listener, Place as SocketPlace};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use tokio::sync::Notify;
use tracing::{info, warn};

use super::{ControlError, Inspect, Look};
use serve::Server;

pub use recent::{Line, Recent};

/// Connections that wait to be accepted.
const BACKLOG: u16 = 64;

/// The page's listening socket: bound, not served yet.
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
    /// Takes the place that the host file names; `None` if it names none.
    ///
    /// # Errors
    /// The place is taken or cannot be made.
    pub fn take(host: &Host) -> Result<Option<Self>, ControlError> {
        let Some(page) = &host.daemon.page else { return Ok(None) };
        let place = match page {
            PageAddress::Loopback(address) => {
                Self::loopback(TcpListener::bind(address)).map_err(|error| failed(page, error))?
            }
            PageAddress::Socket(path) => {
                let access: Access = host.daemon.access.resolve()?;
                let bound = Listener::bind_queue(path, &access, BACKLOG);
                Place::Socket(bound.map_err(|error| failed(page, io::Error::other(error)))?)
            }
        };
        Ok(Some(Self { place, shown: page.to_string() }))
    }

    /// Whether [`Bound::take`] could take the place now. Makes nothing, and takes no connection. A UNIX socket is looked at with `look`.
    ///
    /// # Errors
    /// Those of [`Bound::take`], but for a UNIX socket that another process serves.
    pub(super) fn check(host: &Host, look: Look) -> Result<SocketPlace, ControlError> {
        let Some(page) = &host.daemon.page else { return Ok(SocketPlace::Free) };
        match page {
            PageAddress::Loopback(address) => {
                let bound = bind_only(*address).map(|()| SocketPlace::Free);
                bound.map_err(|errno| failed(page, errno.into()))
            }
            PageAddress::Socket(path) => {
                let access: Access = host.daemon.access.resolve()?;
                look(path, &access).map_err(|error| failed(page, io::Error::other(error)))
            }
        }
    }

    /// Goes on with the listening socket of a daemon that this one replaces; `None` if the host file names none.
    ///
    /// # Errors
    /// That daemon has not passed it, or its file is gone.
    pub fn go_on(host: &Host, socket: Option<OwnedFd>) -> Result<Option<Self>, ControlError> {
        let Some(page) = &host.daemon.page else { return Ok(None) };
        let socket = socket.ok_or_else(|| failed(page, io::Error::other("the daemon before did not serve it")))?;
        let place = match page {
            PageAddress::Loopback(_) => Self::loopback(Ok(socket.into())).map_err(|error| failed(page, error))?,
            PageAddress::Socket(path) => {
                let mut listener = Listener::go_on(socket, path)?;
                listener.own();
                Place::Socket(listener)
            }
        };
        Ok(Some(Self { place, shown: page.to_string() }))
    }

    /// Whether this socket is at the place that the host file names.
    pub fn is_at_place(host: &Host, socket: &OwnedFd) -> bool {
        match &host.daemon.page {
            Some(PageAddress::Loopback(address)) => {
                let listener = socket.try_clone().map(TcpListener::from);
                listener.and_then(|listener| listener.local_addr()).is_ok_and(|bound| bound == *address)
            }
            Some(PageAddress::Socket(path)) => path_of(socket).as_ref() == Some(path),
            None => false,
        }
    }

    fn loopback(listener: io::Result<TcpListener>) -> io::Result<Place> {
        let listener = listener?;
        listener.set_nonblocking(true)?;
        Ok(Place::Loopback(listener))
    }
}

/// Binds a socket that does not listen, as [`TcpListener::bind`] does before it listens.
fn bind_only(address: SocketAddr) -> Result<(), Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)
}

fn failed(page: &PageAddress, error: io::Error) -> ControlError {
    ControlError::Page { place: page.to_string(), error }
}

/// The served page. Dropping it ends its thread.
#[derive(Debug)]
pub struct Page {
    end: Arc<Notify>,
    leaves: Arc<AtomicBool>,
    socket: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Page {
    /// Serves the page at its place. `recent`: the lines of the daemon's log.
    ///
    /// # Errors
    /// The thread or its runtime cannot be made.
    pub fn start(
        bound: Bound,
        host: &Host,
        inspect: Arc<dyn Inspect>,
        recent: Arc<Recent>,
    ) -> Result<Self, ControlError> {
        let Bound { place, shown } = bound;
        let failed = |error| ControlError::Page { place: shown.clone(), error };
        let socket = Some(place.descriptor().map_err(failed)?);
        let end = Arc::<Notify>::default();
        let leaves = Arc::<AtomicBool>::default();
        let (server, leaving) = (Server::new(place, Arc::clone(&end), host, inspect, recent), Arc::clone(&leaves));
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_io().enable_time().build().map_err(failed)?;
        let thread =
            nicety_sandbox::spawn(Kind::Control, "page", 0, move || server.run(&runtime, &leaving)).map_err(failed)?;
        info!(page = shown, "the page is served");
        Ok(Self { end, leaves, socket, thread: Some(thread) })
    }

    /// A descriptor of its listening socket, for the daemon that replaces this one. `None` the second time.
    pub fn socket(&mut self) -> Option<OwnedFd> {
        self.socket.take()
    }

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
    fn descriptor(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Loopback(listener) => listener.as_fd().try_clone_to_owned(),
            Self::Socket(listener) => listener.as_fd().try_clone_to_owned(),
        }
    }
}
