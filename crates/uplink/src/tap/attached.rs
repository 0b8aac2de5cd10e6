//! A descriptor of `/dev/net/tun` that is attached to a tap.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nicety_keeper::{Asked, ChannelError, OPENS_WITHIN, Opened, Opener};
use rustix::fs::{Mode, OFlags};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Gid, getegid, geteuid, getgroups};
use rustix::thread::{CapabilitySet, capabilities};

use super::TapError;
use super::link::{self, Link, TapLink};
use crate::system;
use crate::virtio_header::HEADER_BYTES;

/// Offloads to request from the kernel, best first. It answers EINVAL to unknown ones (UDP came with Linux 6.2).
const OFFLOADS: [u32; 3] = [
    libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN | libc::TUN_F_USO4 | libc::TUN_F_USO6,
    libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN,
    0,
];

/// The queues of a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queues {
    /// It has one, as most taps.
    One,
    /// It has several, of which we hold at most this many already. Other processes would get a part of the frames: they may hold none.
    Several {
        /// Ours.
        held: u32,
    },
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Attached {
    /// The interface's name.
    pub(super) name: String,
    pub(super) fd: OwnedFd,
    /// The `TUN_F_*` that the kernel accepted.
    pub(super) offloads: u32,
    /// The interface's number; 0 if that is not known.
    pub(super) index: u32,
}

/// Finds out whether a tap of this name can be attached, or made, as far as possible without doing so. It cannot find out whether
/// another process has it.
pub(super) fn check(name: &str, queues: Queues, by: Option<&Opener>) -> Result<(), TapError> {
    driver()?;
    attachable(name, queues, by.map_or_else(administers, Opener::administers))
}

/// Whether this process may make taps, and attach to those of others.
fn administers() -> bool {
    capabilities(None).is_ok_and(|ours| ours.effective.contains(CapabilitySet::NET_ADMIN))
}

/// Opens the tap driver.
fn driver() -> Result<OwnedFd, TapError> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open("/dev/net/tun", flags, Mode::empty()).map_err(TapError::opening)
}

/// Checks that the interface of this name is a tap that we may use, or one that we may make (`tun_not_capable` and `tun_set_iff` in
/// `drivers/net/tun.c`).
fn attachable(name: &str, queues: Queues, administers: bool) -> Result<(), TapError> {
    // Without an answer the attempt to attach will report the error.
    let Ok(link) = link::of(name) else { return Ok(()) };
    let name_owned = || name.to_owned();
    match link {
        Some(Link::Other(kind)) => Err(TapError::NotTap { name: name_owned(), kind }),
        Some(Link::Tap(TapLink { several: true, .. })) if queues == Queues::One => {
            Err(TapError::Several { name: name_owned() })
        }
        Some(Link::Tap(TapLink { several: false, .. })) if queues != Queues::One => {
            Err(TapError::Single { name: name_owned() })
        }
        // The kernel lets any process that may use the tap take more of its queues.
        Some(Link::Tap(TapLink { held, .. })) if matches!(queues, Queues::Several { held: ours } if held > ours) => {
            Err(TapError::Busy { name: name_owned() })
        }
        Some(Link::Tap(TapLink { owner, group, .. })) => {
            let user = geteuid().as_raw();
            let in_group = |group| {
                getegid().as_raw() == group || getgroups().is_ok_and(|ours| ours.contains(&Gid::from_raw(group)))
            };
            let ours = owner.is_none_or(|owner| owner == user) && group.is_none_or(in_group);
            if ours || administers { Ok(()) } else { Err(TapError::foreign(name, owner, group, user)) }
        }
        // `tap%d`: the kernel chooses a number.
        None if administers => Ok(()),
        None => Err(TapError::Permission { name: name_owned() }),
    }
}

/// The line by which a tap is named at the keeper.
pub(super) fn line(name: &str) -> String {
    format!("tap {name}")
}

impl Attached {
    /// Like [`Attached::new`], from a worker, which may not open the driver. Without an opener.
    pub(super) fn again(name: &str, queues: Queues) -> Result<Self, TapError> {
        let name = name.to_owned();
        aside(move || Self::new(&name, queues))
    }

    /// Attaches to the tap of this name, or makes it.
    pub(super) fn new(name: &str, queues: Queues) -> Result<Self, TapError> {
        let fd = driver()?;
        attachable(name, queues, administers())?;
        let several = queues != Queues::One;
        let actual =
            system::set_interface(fd.as_fd(), name, several).map_err(|error| TapError::attaching(name, error))?;
        Self::configured(&actual, fd)
    }

    /// The same by an opener, and waits for it.
    pub(super) fn by(opener: &Opener, name: &str, queues: Queues) -> Result<Self, TapError> {
        let asked = ask(opener, name, queues, OPENS_WITHIN)?;
        let late = || Err(format!("it has not answered within {OPENS_WITHIN:?}"));
        Self::answered(name, asked.answer(OPENS_WITHIN).unwrap_or_else(late))
    }

    /// The tap that an opener has attached, if it has answered. A worker may call this.
    pub(super) fn answered_to(asked: &Asked, name: &str) -> Option<Result<Self, TapError>> {
        let answer = asked.answer(Duration::ZERO)?;
        let name = name.to_owned();
        Some(aside(move || Self::answered(&name, answer)))
    }

    fn answered(name: &str, answer: Result<Opened, String>) -> Result<Self, TapError> {
        let (actual, fd) = answer.map_err(|why| TapError::Keeper { name: name.to_owned(), why })?;
        Self::configured(&actual, fd)
    }

    fn configured(name: &str, fd: OwnedFd) -> Result<Self, TapError> {
        let os = |doing| move |source: io::Error| TapError::Os { doing, source };
        system::set_header(fd.as_fd(), HEADER_BYTES).map_err(os("setting a tap's header (TUNSETVNETHDRSZ)"))?;
        Ok(Self::go_on(name, fd))
    }

    /// With a descriptor that is attached already. The interface may have been renamed since, and of `tap%d` the kernel chose the number.
    pub(super) fn go_on(name: &str, fd: OwnedFd) -> Self {
        let name = &system::attached_to(fd.as_fd()).unwrap_or_else(|_deleted| name.to_owned());
        let offloads = OFFLOADS.into_iter().find(|&flags| system::set_offload(fd.as_fd(), flags).is_ok()).unwrap_or(0);
        let index = any_socket().and_then(|socket| name_to_index(socket, name)).unwrap_or(0);
        Self { name: name.to_owned(), fd, offloads, index }
    }
}

/// Asks an opener for a tap, or a queue of one. Other reasons why it cannot be attached than rights are found here: an opener does not know
/// which queues are ours.
fn ask(opener: &Opener, name: &str, queues: Queues, within: Duration) -> Result<Asked, TapError> {
    attachable(name, queues, opener.administers())?;
    let several = if queues == Queues::One { "" } else { " queue" };
    let keeper = |error: ChannelError| TapError::Keeper { name: name.to_owned(), why: error.to_string() };
    opener.ask(&(line(name) + several), within).map_err(keeper)
}

/// Asks for it from a worker, which waits for nobody.
pub(super) fn ask_later(opener: &Arc<Opener>, name: &str, queues: Queues) -> Result<Asked, TapError> {
    let (opener, name) = (Arc::clone(opener), name.to_owned());
    aside(move || ask(&opener, &name, queues, Duration::ZERO))
}

/// Does what a worker may not.
fn aside<T: Send + 'static>(act: impl FnOnce() -> Result<T, TapError> + Send + 'static) -> Result<T, TapError> {
    nicety_sandbox::aside(act).unwrap_or_else(|| {
        let source = io::Error::other("no thread could be started for it");
        Err(TapError::Os { doing: "attaching to a tap", source })
    })
}

/// Whether an interface has this name. A worker may make no socket.
pub(super) fn is_there(name: &str) -> bool {
    let name = name.to_owned();
    let found = nicety_sandbox::aside(move || any_socket().and_then(|socket| name_to_index(socket, &name)).is_ok());
    found.unwrap_or(false)
}

/// Any socket, for ioctls on an interface: netdevice(7).
pub(super) fn any_socket() -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}
