//! A device that records the calls it gets, and a thread that runs a session for it (vfio-user.rst).

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use nicety_vfio_user::{
    Change, Client, Device, DmaId, DmaMap, DmaRange, Errno, Interrupts, IrqInfo, IrqLayout, IrqSet, MemoryTable,
    RegionInfo, Session, SessionError,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tempfile::TempDir;

/// A temporary folder, and a path for a socket in it.
pub fn place() -> (TempDir, PathBuf) {
    let place = TempDir::new().unwrap();
    let socket = place.path().join("vm.sock");
    (place, socket)
}

/// A call that the device got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceCall {
    Read(u32, u64, usize),
    Write(u32, u64, Vec<u8>),
    Map { address: u64, size: u64, offset: u64, read: bool, write: bool, file: bool },
    Unmap(Option<(u64, u64)>),
    Reset,
    DmaRead(DmaId, Result<Vec<u8>, Errno>),
    DmaWrite(DmaId, Result<(), Errno>),
}

/// Region 0 is 256 bytes of memory. Region 1 can be mapped. Region 2 fails. Region 3 answers any size.
pub struct Model {
    pub bytes: [u8; 256],
    /// The reported extra cost of each write.
    pub excess: u32,
    pub shared: Option<RegionInfo>,
    pub interrupts: Arc<Interrupts>,
    pub calls: Arc<Mutex<Vec<DeviceCall>>>,
    /// Whether changes of memory are made in another thread, whether one is in progress, and its outcome.
    pub slow: bool,
    pub under_way: bool,
    pub outcome: Result<(), Errno>,
}

impl Model {
    pub fn new() -> Model {
        let layout = IrqLayout { intx: true, msi: 1, msix: 40, unmask_eventfd: true };
        Model {
            bytes: [0; 256],
            excess: 0,
            shared: None,
            interrupts: Arc::new(Interrupts::new(layout)),
            calls: Arc::new(Mutex::new(Vec::new())),
            slow: false,
            under_way: false,
            outcome: Ok(()),
        }
    }

    fn change(&self) -> Change {
        if self.slow { Change::UnderWay } else { Change::Done }
    }

    pub fn record(&self, call: DeviceCall) {
        self.calls.lock().unwrap().push(call);
    }

    pub fn calls(&self) -> Vec<DeviceCall> {
        self.calls.lock().unwrap().clone()
    }
}

impl Device for Model {
    fn region(&self, index: u32) -> Option<RegionInfo> {
        match index {
            0 => Some(RegionInfo::trapped(256)),
            1 => self.shared.clone(),
            2 | 3 => Some(RegionInfo::trapped(4 << 20)),
            _ => None,
        }
    }

    fn irq_info(&self, index: u32) -> Option<IrqInfo> {
        self.interrupts.info(index)
    }

    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        self.record(DeviceCall::Read(region, offset, data.len()));
        match region {
            0 => {
                let from = self.bytes.get(offset as usize..).and_then(|b| b.get(..data.len())).ok_or(Errno::INVAL)?;
                data.copy_from_slice(from);
                Ok(())
            }
            3 => {
                data.iter_mut().enumerate().for_each(|(n, b)| *b = (offset as usize + n) as u8);
                Ok(())
            }
            _ => Err(Errno::IO),
        }
    }

    fn excess(&mut self) -> u32 {
        self.excess
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.record(DeviceCall::Write(region, offset, data.to_vec()));
        if region != 0 {
            return Err(Errno::IO);
        }
        let to = self.bytes.get_mut(offset as usize..).and_then(|b| b.get_mut(..data.len())).ok_or(Errno::INVAL)?;
        to.copy_from_slice(data);
        Ok(())
    }

    fn dma_map(&mut self, map: DmaMap) -> Result<Change, Errno> {
        self.record(DeviceCall::Map {
            address: map.range.address,
            size: map.range.size,
            offset: map.offset,
            read: map.protection.read,
            write: map.protection.write,
            file: map.fd.is_some(),
        });
        self.under_way = self.slow;
        Ok(self.change())
    }

    fn dma_unmap(&mut self, range: Option<DmaRange>) -> Change {
        self.record(DeviceCall::Unmap(range.map(|r| (r.address, r.size))));
        self.under_way = self.slow;
        self.change()
    }

    fn dma_changed(&mut self) -> Option<Result<(), Errno>> {
        (!self.under_way).then_some(self.outcome)
    }

    fn set_irqs(&mut self, set: IrqSet<'_>) -> Result<(), Errno> {
        self.interrupts.apply(set)
    }

    fn reset(&mut self) -> Result<(), Errno> {
        self.record(DeviceCall::Reset);
        self.bytes = [0; 256];
        self.interrupts.reset();
        Ok(())
    }

    fn dma_read_done(&mut self, id: DmaId, result: Result<&[u8], Errno>) {
        self.record(DeviceCall::DmaRead(id, result.map(<[u8]>::to_vec)));
    }

    fn dma_write_done(&mut self, id: DmaId, result: Result<(), Errno>) {
        self.record(DeviceCall::DmaWrite(id, result));
    }
}

pub fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

/// Waits until the session has something to do. Returns false after ten seconds.
pub fn wait(session: &Session) -> bool {
    let mut events = PollFlags::empty();
    events.set(PollFlags::IN, session.wants_read());
    events.set(PollFlags::OUT, session.wants_write());
    let mut fds = [PollFd::from_borrowed_fd(session.as_fd(), events)];
    poll(&mut fds, Some(&Timespec { tv_sec: 10, tv_nsec: 0 })).unwrap() > 0
}

/// Runs a session until it ends, as an event loop would.
pub fn run(session: &mut Session, device: &mut dyn Device) -> SessionError {
    loop {
        match session.receive(device) {
            Ok(progress) if progress.more && !session.wants_write() => continue,
            Ok(_) => assert!(wait(session), "nothing happened for ten seconds"),
            Err(error) => {
                session.disconnect(device);
                return error;
            }
        }
    }
}

/// Runs a session in a thread until the client disconnects. Returns the reason, the session and the device.
pub fn serve(socket: OwnedFd, mut model: Model) -> JoinHandle<(SessionError, Session, Model)> {
    std::thread::spawn(move || {
        let mut session = Session::new(socket);
        let error = run(&mut session, &mut model);
        (error, session, model)
    })
}

pub fn client(socket: OwnedFd) -> Client {
    Client::from_socket(socket, Duration::from_secs(5), Box::new(MemoryTable::new())).unwrap()
}

/// An eventfd that does not block.
pub fn event() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC).unwrap()
}

/// Takes the count of an eventfd.
pub fn take(fd: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    match rustix::io::read(fd, &mut bytes) {
        Ok(8) => u64::from_ne_bytes(bytes),
        _ => 0,
    }
}

/// A memfd with these bytes.
pub fn memfd(bytes: &[u8]) -> OwnedFd {
    let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::io::pwrite(&fd, bytes, 0).unwrap();
    fd
}

/// A peer that sends any bytes, and a session beside it, without a thread.
pub struct Raw {
    pub peer: OwnedFd,
    pub session: Session,
    pub model: Model,
}

/// A message with this header and payload.
pub fn message(id: u16, command: u16, flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(id.to_le_bytes());
    bytes.extend(command.to_le_bytes());
    bytes.extend((16 + payload.len() as u32).to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(payload);
    bytes
}

/// 32-bit words one after another.
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// One reply from the stream.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    pub id: u16,
    pub command: u16,
    pub flags: u32,
    pub error: u32,
    pub payload: Vec<u8>,
}

impl Raw {
    /// A session before the handshake.
    pub fn fresh() -> Raw {
        let (peer, far) = pair();
        Raw { peer, session: Session::new(far), model: Model::new() }
    }

    /// A session after the handshake.
    pub fn ready() -> Raw {
        let mut raw = Raw::fresh();
        let json = b"{\"capabilities\":{\"max_msg_fds\":16,\"write_multiple\":true}}\0";
        let payload: Vec<u8> = [&[0, 0, 1, 0], &json[..]].concat();
        raw.send(&message(0, 1, 0, &payload), &[]);
        raw.turn().unwrap();
        assert_eq!(raw.replies().len(), 1);
        raw
    }

    /// Sends bytes and descriptors with one call.
    pub fn send(&self, bytes: &[u8], fds: &[&OwnedFd]) {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
        let borrowed: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !borrowed.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
        }
        let sent = sendmsg(&self.peer, &[std::io::IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(sent, bytes.len());
    }

    /// One turn of the session.
    pub fn turn(&mut self) -> Result<nicety_vfio_user::Progress, SessionError> {
        self.session.receive(&mut self.model)
    }

    /// Turns until there is nothing left to do, or an error.
    pub fn settle(&mut self) -> Result<(), SessionError> {
        loop {
            let before = self.session.counters().bytes_received;
            let progress = self.turn()?;
            if self.session.counters().bytes_received == before && !progress.more {
                return Ok(());
            }
        }
    }

    /// All replies that have been sent so far.
    pub fn replies(&mut self) -> Vec<Reply> {
        use rustix::net::{RecvFlags, recv};
        let mut bytes = Vec::new();
        let mut part = vec![0; 1 << 16];
        while let Ok((count, _)) = recv(&self.peer, &mut part[..], RecvFlags::DONTWAIT) {
            if count == 0 {
                break;
            }
            bytes.extend_from_slice(&part[..count]);
        }
        let mut replies = Vec::new();
        let mut rest = &bytes[..];
        let word = |b: &[u8], at: usize| u32::from_le_bytes(b[at..at + 4].try_into().unwrap());
        while !rest.is_empty() {
            let size = word(rest, 4) as usize;
            replies.push(Reply {
                id: word(rest, 0) as u16,
                command: (word(rest, 0) >> 16) as u16,
                flags: word(rest, 8),
                error: word(rest, 12),
                payload: rest[16..size].to_vec(),
            });
            rest = &rest[size..];
        }
        replies
    }

    /// Sends one command and returns its errno, 0 if it succeeded.
    pub fn errno(&mut self, command: u16, payload: &[u8], fds: &[&OwnedFd]) -> u32 {
        self.send(&message(9, command, 0, payload), fds);
        self.settle().unwrap();
        let replies = self.replies();
        assert_eq!(replies.len(), 1, "{replies:?}");
        let reply = &replies[0];
        assert_eq!((reply.id, reply.command), (9, command));
        assert_eq!(reply.flags, if reply.error == 0 { 1 } else { 0x21 });
        reply.error
    }
}
