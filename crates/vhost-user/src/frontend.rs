//! A minimal front end, for guests in this process and for tests.
//!
//! It connects, negotiates features, shares memory files, places rings and returns their eventfds. The user handles rings and
//! frames.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nicety_adapter::RingPlace;
use nicety_peer::Bell;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::memory::Region;
use crate::protocol::{F_LOG_ALL, F_PROTOCOL_FEATURES, NEED_REPLY, NO_FD, ProtocolFeatures, Request, VERSION};
use crate::wire::{self, Message, WireError};

/// The difference between this front end's own addresses and the guest's; any nonzero value works.
const USER_OFFSET: u64 = 0x5000_0000_0000;

/// Failures of a front end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrontendError {
    /// The socket could not be reached, or failed.
    #[error("{path}: {errno}")]
    Connect {
        /// The socket.
        path: String,
        /// The reason.
        errno: Errno,
    },
    /// The connection broke.
    #[error("the back end: {0}")]
    Wire(String),
    /// The back end refused a request.
    #[error("the back end refused {0:?}")]
    Refused(Request),
    /// The back end's answer was invalid.
    #[error("the back end's answer to {0:?} makes no sense")]
    Answer(Request),
    /// The system refused.
    #[error(transparent)]
    Os(#[from] std::io::Error),
}

/// Guest memory to share.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a> {
    /// First guest-physical address.
    pub base: u64,
    /// Bytes.
    pub len: u64,
    /// The file.
    pub fd: BorrowedFd<'a>,
    /// First byte in the file.
    pub offset: u64,
}

impl Shared<'_> {
    fn region(&self) -> Region {
        Region { guest: self.base, len: self.len, user: self.base.wrapping_add(USER_OFFSET), offset: self.offset }
    }

    /// The body of a message about one region: padding, then the region.
    fn alone(&self) -> [u8; 40] {
        let mut body = [0; 40];
        body[8..].copy_from_slice(&self.region().bytes());
        body
    }
}

/// The eventfds of a started ring.
#[derive(Debug)]
pub struct Bells {
    /// Signal it after adding buffers.
    pub kick: Bell,
    /// Signalled when buffers are completed.
    pub call: Bell,
}

impl Bells {
    /// Waits for a call. Returns false after the timeout.
    pub fn wait(&self, most: Duration) -> Result<bool, Errno> {
        let until = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        poll(&mut [PollFd::new(&self.call, PollFlags::IN)], Some(&until))?;
        Ok(self.call.clear())
    }
}

/// A connection to a back end.
#[derive(Debug)]
pub struct Frontend {
    socket: OwnedFd,
    protocol: ProtocolFeatures,
}

impl Frontend {
    /// Connects to a back end's socket.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, FrontendError> {
        let path = path.as_ref();
        let connected = (|| {
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
            connect(&socket, &SocketAddrUnix::new(path)?)?;
            Ok(socket)
        })();
        let failed = |errno| FrontendError::Connect { path: path.display().to_string(), errno };
        Ok(Self::from_socket(connected.map_err(failed)?))
    }

    /// A front end on a connected socket.
    pub fn from_socket(socket: OwnedFd) -> Self {
        Self { socket, protocol: ProtocolFeatures::default() }
    }

    /// Negotiates the wanted features that are offered, and returns them. Negotiates all protocol features that both sides
    /// support.
    pub fn negotiate(&mut self, wanted: u64) -> Result<u64, FrontendError> {
        self.tell(Request::SetOwner, &[], &[])?;
        let offered = self.ask(Request::GetFeatures)?;
        let mut taken = offered & wanted & !F_PROTOCOL_FEATURES;
        if offered & F_PROTOCOL_FEATURES != 0 {
            let both = self.ask(Request::GetProtocolFeatures)? & ProtocolFeatures::OFFERED.0;
            self.tell(Request::SetProtocolFeatures, &both.to_ne_bytes(), &[])?;
            self.protocol = ProtocolFeatures(both);
            taken |= F_PROTOCOL_FEATURES;
        }
        self.tell(Request::SetFeatures, &taken.to_ne_bytes(), &[])?;
        Ok(taken & !F_PROTOCOL_FEATURES)
    }

    /// Queue pairs that the back end has.
    pub fn queue_pairs(&mut self) -> Result<u64, FrontendError> {
        self.ask(Request::GetQueueNum)
    }

    /// Shares the guest's memory, replacing what was shared before.
    pub fn share(&mut self, memory: &[Shared<'_>]) -> Result<(), FrontendError> {
        let mut body = (memory.len() as u32).to_ne_bytes().to_vec();
        body.extend([0; 4]);
        memory.iter().for_each(|shared| body.extend(shared.region().bytes()));
        let fds: Vec<BorrowedFd<'_>> = memory.iter().map(|shared| shared.fd).collect();
        self.tell(Request::SetMemTable, &body, &fds)
    }

    /// Shares one more piece of the guest's memory.
    pub fn share_more(&mut self, shared: &Shared<'_>) -> Result<(), FrontendError> {
        self.tell(Request::AddMemReg, &shared.alone(), &[shared.fd])
    }

    /// Removes a shared piece of memory.
    pub fn unshare(&mut self, shared: &Shared<'_>) -> Result<(), FrontendError> {
        self.tell(Request::RemMemReg, &shared.alone(), &[])
    }

    /// Shares a log of written pages: one bit per 4 KiB from guest-physical address 0, `len` bytes long.
    pub fn share_log(&mut self, fd: BorrowedFd<'_>, len: u64) -> Result<(), FrontendError> {
        let body = [len.to_ne_bytes(), [0; 8]].concat();
        self.exchange(Request::SetLogBase, &body, &[fd]).map(drop)
    }

    /// Turns the log on or off; `features` are the negotiated ones.
    pub fn log(&mut self, features: u64, on: bool) -> Result<(), FrontendError> {
        let log = if on { F_LOG_ALL } else { 0 };
        self.tell(Request::SetFeatures, &(features | F_PROTOCOL_FEATURES | log).to_ne_bytes(), &[])
    }

    /// Gets an inflight file for these rings, in the back end's own format. If this back end is killed, pass the file to the next
    /// one.
    pub fn inflight(&mut self, rings: u16, size: u16) -> Result<OwnedFd, FrontendError> {
        let mut body = [[0; 8]; 2].concat();
        body.extend([rings, size].map(u16::to_ne_bytes).concat());
        self.send(Request::GetInflightFd, VERSION, &body, &[])?;
        let reply = Message::receive(self.socket.as_fd()).map_err(broken)?;
        let file = reply.fds.first().filter(|_| reply.code == Request::GetInflightFd as u32);
        file.ok_or(FrontendError::Answer(Request::GetInflightFd))?.as_fd().try_clone_to_owned().map_err(Into::into)
    }

    /// Passes an inflight file to a back end.
    pub fn keep_inflight(&mut self, file: BorrowedFd<'_>, rings: u16, size: u16) -> Result<(), FrontendError> {
        let len = rustix::fs::fstat(file).map_err(std::io::Error::from)?.st_size as u64;
        let mut body = [len.to_ne_bytes(), [0; 8]].concat();
        body.extend([rings, size].map(u16::to_ne_bytes).concat());
        self.tell(Request::SetInflightFd, &body, &[file])
    }

    /// Starts a ring at a guest-physical address, and enables it.
    pub fn start(&mut self, ring: u16, place: RingPlace, base: u32) -> Result<Bells, FrontendError> {
        let bells = Bells {
            kick: Bell::new().map_err(std::io::Error::from)?,
            call: Bell::new().map_err(std::io::Error::from)?,
        };
        let number = u32::from(ring);
        self.tell(Request::SetVringNum, &pair(number, place.size.into()), &[])?;
        self.tell(Request::SetVringBase, &pair(number, base), &[])?;
        let mut addresses = pair(number, 0);
        for address in [place.descriptors, place.device, place.driver] {
            addresses.extend(address.wrapping_add(USER_OFFSET).to_ne_bytes());
        }
        addresses.extend([0; 8]);
        self.tell(Request::SetVringAddr, &addresses, &[])?;
        self.tell(Request::SetVringCall, &u64::from(ring).to_ne_bytes(), &[bells.call.as_fd()])?;
        self.tell(Request::SetVringKick, &u64::from(ring).to_ne_bytes(), &[bells.kick.as_fd()])?;
        if self.protocol != ProtocolFeatures::default() {
            self.enable(ring, true)?;
        }
        Ok(bells)
    }

    /// An eventfd that is signalled when the driver breaks the ring.
    pub fn error_bell(&mut self, ring: u16) -> Result<Bell, FrontendError> {
        let bell = Bell::new().map_err(std::io::Error::from)?;
        self.tell(Request::SetVringErr, &u64::from(ring).to_ne_bytes(), &[bell.as_fd()])?;
        Ok(bell)
    }

    /// Enables or disables a ring.
    pub fn enable(&mut self, ring: u16, on: bool) -> Result<(), FrontendError> {
        self.tell(Request::SetVringEnable, &pair(ring.into(), on.into()), &[])
    }

    /// Stops a ring; returns its position.
    pub fn stop(&mut self, ring: u16) -> Result<u32, FrontendError> {
        let reply = self.exchange(Request::GetVringBase, &pair(ring.into(), 0), &[])?;
        let base = reply.get(4..8).and_then(|bytes| bytes.try_into().ok());
        base.map(u32::from_ne_bytes).ok_or(FrontendError::Answer(Request::GetVringBase))
    }

    /// Reads configuration space.
    pub fn config(&mut self, offset: u32, data: &mut [u8]) -> Result<(), FrontendError> {
        let mut body = pair(offset, data.len() as u32);
        body.extend([0; 4]);
        body.extend(std::iter::repeat_n(0, data.len()));
        let reply = self.exchange(Request::GetConfig, &body, &[])?;
        let bytes = reply.get(12..).filter(|bytes| bytes.len() == data.len());
        data.copy_from_slice(bytes.ok_or(FrontendError::Answer(Request::GetConfig))?);
        Ok(())
    }

    /// Tells the device's status (virtio 1.2, 2.1), if the back end wants to know it. DPDK's uses no ring before DRIVER_OK.
    pub fn set_status(&mut self, status: u8) -> Result<(), FrontendError> {
        if !self.protocol.has(ProtocolFeatures::STATUS) {
            return Ok(());
        }
        self.tell(Request::SetStatus, &u64::from(status).to_ne_bytes(), &[])
    }

    /// Has the back end write its port's state into `pipe`, which the caller closes then; all rings are stopped. Read the other end to its
    /// end, then call [`check_state`](Self::check_state).
    pub fn save_state(&mut self, pipe: BorrowedFd<'_>) -> Result<(), FrontendError> {
        self.transfer(0, pipe)
    }

    /// Has the back end read its port's state from `pipe`. Write it into the other end and close that, then call
    /// [`check_state`](Self::check_state).
    pub fn load_state(&mut self, pipe: BorrowedFd<'_>) -> Result<(), FrontendError> {
        self.transfer(1, pipe)
    }

    fn transfer(&mut self, direction: u32, pipe: BorrowedFd<'_>) -> Result<(), FrontendError> {
        let reply = self.exchange(Request::SetDeviceStateFd, &pair(direction, 0), &[pipe])?;
        let done = reply.try_into().map(u64::from_ne_bytes) == Ok(NO_FD);
        if done { Ok(()) } else { Err(FrontendError::Refused(Request::SetDeviceStateFd)) }
    }

    /// Whether the back end has written or read its state.
    pub fn check_state(&mut self) -> Result<(), FrontendError> {
        let done = self.ask(Request::CheckDeviceState)? == 0;
        if done { Ok(()) } else { Err(FrontendError::Refused(Request::CheckDeviceState)) }
    }

    /// Has the back end announce a guest with this address.
    pub fn rarp(&mut self, address: [u8; 6]) -> Result<(), FrontendError> {
        let [a, b, c, d, e, f] = address;
        self.tell(Request::SendRarp, &[a, b, c, d, e, f, 0, 0], &[])
    }

    /// Resets the device.
    pub fn reset(&mut self) -> Result<(), FrontendError> {
        self.tell(Request::ResetDevice, &[], &[])
    }

    fn ask(&mut self, request: Request) -> Result<u64, FrontendError> {
        let reply = self.exchange(request, &[], &[])?;
        let number = reply.try_into().map_err(|_| FrontendError::Answer(request))?;
        Ok(u64::from_ne_bytes(number))
    }

    fn exchange(&mut self, request: Request, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Vec<u8>, FrontendError> {
        self.send(request, VERSION, body, fds)?;
        self.reply(request)
    }

    /// Sends a request, and waits for the result if the back end supports that.
    fn tell(&mut self, request: Request, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), FrontendError> {
        if !self.protocol.has(ProtocolFeatures::REPLY_ACK) {
            return self.send(request, VERSION, body, fds);
        }
        self.send(request, VERSION | NEED_REPLY, body, fds)?;
        if self.reply(request)? == [0; 8] { Ok(()) } else { Err(FrontendError::Refused(request)) }
    }

    fn send(&mut self, request: Request, flags: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), FrontendError> {
        wire::send(self.socket.as_fd(), request as u32, flags, body, fds).map_err(broken)
    }

    fn reply(&mut self, request: Request) -> Result<Vec<u8>, FrontendError> {
        let reply = Message::receive(self.socket.as_fd()).map_err(broken)?;
        if reply.code == request as u32 { Ok(reply.body) } else { Err(FrontendError::Answer(request)) }
    }
}

fn broken(error: WireError) -> FrontendError {
    FrontendError::Wire(error.to_string())
}

/// Two 32-bit numbers.
fn pair(first: u32, second: u32) -> Vec<u8> {
    [first.to_ne_bytes(), second.to_ne_bytes()].concat()
}
