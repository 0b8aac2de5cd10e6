//! A relay between a guest's vfio-user client and its daemon. It keeps the VMM's set-up (version message, memory, eventfds) and can
//! replay it to another daemon: no VMM does that yet.

use std::{
    collections::BTreeMap,
    io::{IoSlice, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};

use nicety_vfio_user::codec::{
    Command, HEADER_SIZE, Header, MAX_MESSAGE_FDS,
    irqs::{ACTION_MASK, ACTION_TRIGGER, ACTION_UNMASK, DATA_EVENTFD},
    request::{DEVICE_INFO_SIZE, UNMAP_ALL},
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        recvmsg, sendmsg,
    },
};
use tempfile::TempDir;

use crate::stage::{SOON, well};

/// Orders to the relay; it reports when each is done.
enum Order {
    /// Stop forwarding from the guest, after the daemon has answered everything and done all posted writes.
    Halt,
    /// Leave the daemon for the one at this socket, and replay the guest's set-up.
    Join(PathBuf),
    /// Forward again.
    GoOn,
}

/// See the module's documentation.
pub struct Relay {
    folder: TempDir,
    orders: Sender<Order>,
    bell: UnixStream,
    done: Receiver<()>,
}

impl Relay {
    /// Starts a relay to the daemon at this socket.
    pub fn new(first: &Path) -> Relay {
        let folder = well(TempDir::new());
        let listener = well(UnixListener::bind(folder.path().join("vm.sock")));
        let (orders, received) = channel();
        let (says, done) = channel();
        let (bell, rung) = well(UnixStream::pair());
        let first = first.to_owned();
        thread::spawn(move || {
            let (guest, _) = well(listener.accept());
            let server = well(UnixStream::connect(first));
            Relaying {
                guest,
                server,
                rung,
                received,
                says,
                client_state: ClientState::default(),
                asked: 0,
                halted: false,
            }
            .run()
        });
        Relay { folder, orders, bell, done }
    }

    /// The socket for the guest.
    pub fn socket(&self) -> String {
        self.folder.path().join("vm.sock").display().to_string()
    }

    /// Moves to the daemon at this socket. `save` is called when the old one is quiet, `restore` when the new one has the set-up.
    pub fn go_to(&mut self, socket: &Path, save: impl FnOnce(), restore: impl FnOnce()) {
        self.order(Order::Halt);
        save();
        self.order(Order::Join(socket.to_owned()));
        restore();
        self.order(Order::GoOn);
    }

    fn order(&mut self, order: Order) {
        well(self.orders.send(order));
        well(self.bell.write_all(&[0]));
        well(self.done.recv_timeout(SOON));
    }
}

/// A message with its descriptors.
struct Message {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Message {
    /// Reads the next message; `None` when the other end has closed.
    fn read(from: &UnixStream) -> Option<Message> {
        let mut message = Message { bytes: vec![0; HEADER_SIZE], fds: Vec::new() };
        message.fill(from, 0)?;
        message.bytes.resize(well(message.header().check()), 0);
        message.fill(from, HEADER_SIZE)?;
        Some(message)
    }

    fn fill(&mut self, from: &UnixStream, mut at: usize) -> Option<()> {
        while at < self.bytes.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_MESSAGE_FDS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let room = &mut [IoSliceMut::new(&mut self.bytes[at..])];
            let received = recvmsg(from, room, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
            for part in control.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = part {
                    self.fds.extend(fds);
                }
            }
            at += Some(received.bytes).filter(|bytes| *bytes > 0)?;
        }
        Some(())
    }

    fn send(&self, to: &UnixStream) {
        let fds: Vec<BorrowedFd<'_>> = self.fds.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_MESSAGE_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(&fds)));
        // A peer that has gone is noticed when it is read from.
        if let Ok(sent) = sendmsg(to, &[IoSlice::new(&self.bytes)], &mut control, SendFlags::NOSIGNAL) {
            let mut to = to;
            let _gone = to.write_all(&self.bytes[sent..]);
        }
    }

    fn header(&self) -> Header {
        Header::decode(self.bytes.first_chunk().unwrap_or_else(|| panic!("a message has a header")))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(std::array::from_fn(|byte| self.bytes[HEADER_SIZE + at + byte]))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(std::array::from_fn(|byte| self.bytes[HEADER_SIZE + at + byte]))
    }
}

/// The VMM's current set-up.
#[derive(Default)]
struct ClientState {
    version: Option<Message>,
    /// DMA_MAP messages by address.
    memory: BTreeMap<u64, Message>,
    /// SET_IRQS messages that connect eventfds, by index, action and range.
    irqs: Vec<([u32; 4], Message)>,
}

impl ClientState {
    fn note(&mut self, message: Message) {
        match Command::from_number(message.header().command) {
            Some(Command::Version) => self.version = Some(message),
            Some(Command::DmaMap) => _ = self.memory.insert(message.u64(16), message),
            Some(Command::DmaUnmap) if message.u32(4) == UNMAP_ALL => self.memory.clear(),
            Some(Command::DmaUnmap) => _ = self.memory.remove(&message.u64(8)),
            Some(Command::DeviceSetIrqs) => {
                let (flags, index, count) = (message.u32(4), message.u32(8), message.u32(16));
                let action = flags & (ACTION_MASK | ACTION_UNMASK | ACTION_TRIGGER);
                let key = [index, action, message.u32(12), count];
                if count == 0 {
                    self.irqs.retain(|([its, ..], _)| *its != index);
                } else if flags & DATA_EVENTFD != 0 {
                    self.irqs.retain(|(its, _)| *its != key);
                    self.irqs.push((key, message));
                }
            }
            _ => {}
        }
    }

    fn all(&self) -> impl Iterator<Item = &Message> {
        self.version.iter().chain(self.memory.values()).chain(self.irqs.iter().map(|(_, message)| message))
    }
}

struct Relaying {
    guest: UnixStream,
    server: UnixStream,
    rung: UnixStream,
    received: Receiver<Order>,
    says: Sender<()>,
    client_state: ClientState,
    /// Number of requests that the daemon has not answered.
    asked: usize,
    halted: bool,
}

impl Relaying {
    /// Runs until either end closes, or the test ends.
    fn run(mut self) {
        while self.round().is_some() {}
    }

    fn round(&mut self) -> Option<()> {
        let mut fds = [
            PollFd::new(&self.rung, PollFlags::IN),
            PollFd::new(&self.server, PollFlags::IN),
            PollFd::new(&self.guest, PollFlags::IN),
        ];
        let watched = if self.halted { 2 } else { 3 };
        well(poll(&mut fds[..watched], None));
        let [rung, server, guest] = fds.map(|fd| !fd.revents().is_empty());
        if server {
            self.answer()?;
        }
        if guest {
            let message = Message::read(&self.guest)?;
            self.asked += usize::from(!message.header().is_reply() && !message.header().no_reply());
            message.send(&self.server);
            self.client_state.note(message);
        }
        if rung {
            self.rung.read_exact(&mut [0]).ok()?;
            self.obey()?;
        }
        Some(())
    }

    /// Forwards a message of the daemon.
    fn answer(&mut self) -> Option<()> {
        let message = Message::read(&self.server)?;
        self.asked -= usize::from(message.header().is_reply());
        message.send(&self.guest);
        Some(())
    }

    fn obey(&mut self) -> Option<()> {
        match self.received.recv().ok()? {
            Order::Halt => {
                while self.asked > 0 {
                    self.answer()?;
                }
                // Posted writes are done when a later request is answered.
                let (command, size) = (Command::DeviceGetInfo as u16, (HEADER_SIZE + DEVICE_INFO_SIZE) as u32);
                let mut bytes = Vec::new();
                Header { id: 0, command, size, flags: 0, error: 0 }.encode(&mut bytes);
                bytes.extend((DEVICE_INFO_SIZE as u32).to_ne_bytes());
                bytes.resize(size as usize, 0);
                ask(&self.server, &Message { bytes, fds: Vec::new() });
                self.halted = true;
            }
            Order::Join(socket) => {
                self.server = well(UnixStream::connect(socket));
                self.client_state.all().for_each(|message| ask(&self.server, message));
            }
            Order::GoOn => self.halted = false,
        }
        self.says.send(()).ok()
    }
}

/// Sends a daemon a request whose answer is not forwarded.
fn ask(server: &UnixStream, question: &Message) {
    question.send(server);
    let answer = Message::read(server).unwrap_or_else(|| panic!("the daemon has closed the connection"));
    assert!(answer.header().is_reply() && !answer.header().is_error(), "{:?}", answer.header());
}
