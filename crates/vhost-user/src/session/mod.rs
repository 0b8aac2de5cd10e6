//! One front end's connection: its messages, in order (docs/interop/vhost-user.rst, "Communication").
//!
//! A refused message is answered with a failure if the front end requested an answer. Otherwise the front end cannot know of it,
//! so the connection ends and the session returns the reason.

mod before;
mod device_state;
mod inflight;
mod listener;
mod packed;
mod rings;
mod saved;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use nicety_memory::{Map, Misses};
use nicety_peer::PeerFd;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{Shutdown, shutdown};

use crate::ending::{Ended, Refusal};
use crate::iotlb::{Iotlb, question};
use crate::memory::Region;
use crate::port::{Kick, Port};
use crate::protocol::{
    BACKEND_IOTLB, F_ACCESS_PLATFORM, F_LOG_ALL, F_PROTOCOL_FEATURES, Fields, ProtocolFeatures, REGIONS_MAX, REPLY,
    Request, TIMEOUT,
};
use crate::wire::{self, Message};
pub use before::SavedSession1;
use device_state::Transfer;
use inflight::get_inflight;
use listener::SideListener;
use rings::{RingState, Rings};
pub use saved::{NotSaved, SavedSession};

/// The offset of the MTU in configuration space (virtio 1.2, 5.1.4), and its feature bit.
const CONFIG_MTU_AT: u32 = 10;
const FEATURE_MTU: u128 = 1 << 3;

/// Ends a session from another thread.
#[derive(Debug)]
pub struct Closer {
    socket: PeerFd,
    waits: Arc<Waits>,
}

impl Closer {
    /// Makes the session's [`Session::run`] return soon.
    pub fn close(&self) {
        // A closed connection is fine.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// Whether the session waits for its front end: for the rest of a message, or to read answers.
    pub fn is_waiting(&self) -> bool {
        let event = match self.waits.0.load(Ordering::SeqCst) {
            Waits::TO_RECEIVE => PollFlags::IN,
            Waits::TO_SEND => PollFlags::OUT,
            _ => return false,
        };
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.socket, event)], Some(&at_once)).is_ok_and(|ready| ready == 0)
    }
}

/// The call in which a session may wait for its front end.
#[derive(Debug, Default)]
struct Waits(AtomicU8);

impl Waits {
    const NOT: u8 = 0;
    const TO_RECEIVE: u8 = 1;
    const TO_SEND: u8 = 2;

    fn set(&self, what: u8) {
        self.0.store(what, Ordering::SeqCst);
    }
}

/// One connection, in a thread of its own.
pub struct Session {
    /// Closes the descriptors that are in flight in it when it is closed: see [`PeerFd`].
    socket: PeerFd,
    port: Arc<dyn Port>,
    rings: Rings,
    protocol: ProtocolFeatures,
    /// The negotiated features, bit 30 included.
    features: u64,
    status: u8,
    /// The front end's socket for requests of the back end. Dropping it would close that connection.
    requests: Option<PeerFd>,
    /// Readable when translations are missed.
    missed: Arc<OwnedFd>,
    /// The state that the front end keeps for the next back end.
    kept: Option<Arc<Map>>,
    /// The back end's own record of that state, if the front end keeps none.
    record: Option<Arc<Map>>,
    /// The state that the front end passes on.
    transfer: Transfer,
    waits: Arc<Waits>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            socket: _,
            port: _,
            rings,
            protocol,
            features,
            status,
            requests,
            missed: _,
            kept,
            record,
            transfer,
            waits,
        } = self;
        let mut out = f.debug_struct("Session");
        out.field("rings", rings).field("protocol", protocol).field("features", features).field("status", status);
        out.field("requests", &requests.is_some());
        out.field("kept", &kept.is_some())
            .field("record", &record.is_some())
            .field("transfer", transfer)
            .field("waits", waits)
            .finish()
    }
}

/// The result of [`Session::serve_until`].
#[derive(Debug)]
pub enum Served {
    /// The connection has ended.
    Ended(Ended),
    /// The interrupting descriptor is readable. The session goes on when it is called again.
    Interrupted,
}

/// The answer to a message.
enum Answer {
    /// No body; the result, if the front end requested it.
    Done,
    /// This body, always.
    Body(Vec<u8>),
    /// This body with a descriptor.
    File(Vec<u8>, OwnedFd),
}

impl Session {
    /// A session on a connected socket.
    pub fn new(socket: OwnedFd, port: Arc<dyn Port>) -> Result<Self, std::io::Error> {
        let socket = PeerFd::from(socket);
        let flags = fcntl_getfl(&socket)?;
        fcntl_setfl(&socket, flags - OFlags::NONBLOCK)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
        set_socket_timeout(&socket, Timeout::Send, Some(TIMEOUT))?;
        let mut count = 0;
        port.with(&mut |face, _| count = face.rings());
        let (protocol, features, status) = (ProtocolFeatures::default(), 0, 0);
        let (requests, kept, record) = (None, None, None);
        let missed = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let rings = Rings::new(count);
        let (transfer, waits) = (Transfer::Nothing, Arc::default());
        Ok(Self { socket, port, rings, protocol, features, status, requests, missed, kept, record, transfer, waits })
    }

    /// A handle that ends the session from another thread.
    pub fn closer(&self) -> Result<Closer, std::io::Error> {
        let socket = self.socket.as_fd().try_clone_to_owned()?.into();
        Ok(Closer { socket, waits: Arc::clone(&self.waits) })
    }

    /// Serves the connection until it ends. Then stops the rings, releases the memory and informs the port.
    pub fn run(self) -> Ended {
        self.run_beside(None, || Duration::ZERO)
    }

    /// Like [`Session::run`], and also watches `listener`. When another front end connects, `listener` is readable and the
    /// session calls `on_connect`. Then it ignores `listener` for the returned time.
    pub fn run_beside(mut self, listener: Option<BorrowedFd<'_>>, mut on_connect: impl FnMut() -> Duration) -> Ended {
        self.greet();
        match self.serve_until(None, true, listener, &mut on_connect) {
            Served::Ended(ended) => self.end(ended),
            // Nothing interrupts it.
            Served::Interrupted => self.end(Ended::Gone),
        }
    }

    /// Resets the port for a new front end. Call it first, unless the session was [restored](Session::restore).
    pub fn greet(&mut self) {
        self.forget();
    }

    /// Serves the connection until it ends, or until `interrupt` is readable, between two messages. `is_new`: no message has arrived
    /// yet. The owner of the session calls it again after an interruption, or [ends](Session::end) the session.
    pub fn serve_until(
        &mut self,
        interrupt: Option<BorrowedFd<'_>>,
        is_new: bool,
        listener: Option<BorrowedFd<'_>>,
        on_connect: &mut dyn FnMut() -> Duration,
    ) -> Served {
        let mut listener = SideListener::new(listener, on_connect);
        let mut first = is_new.then(|| Instant::now() + TIMEOUT);
        loop {
            match self.wait(first, &mut listener, interrupt) {
                Ok(true) => {}
                Ok(false) => return Served::Interrupted,
                Err(ended) => return Served::Ended(ended),
            }
            if let Err(ended) = self.turn(first.is_some()) {
                return Served::Ended(ended);
            }
            self.port.handled();
            first = None;
        }
    }

    /// Ends the session: stops the rings, releases the memory, and informs the port.
    pub fn end(mut self, ended: Ended) -> Ended {
        // A closer may still hold the socket, so shut it down: the front end must notice. A failure is fine: the front end may
        // have gone.
        let _ = shutdown(&self.socket, Shutdown::Both);
        self.forget();
        self.port.set_memory(Map::empty());
        for ring in 0..self.rings.count() {
            self.port.set_call(ring, None);
            self.port.set_err(ring, None);
        }
        self.port.disconnected();
        ended
    }

    /// Waits until a message begins, or until `end`. False if `interrupt` is readable: it comes first, between two messages.
    fn wait(
        &mut self,
        end: Option<Instant>,
        listener: &mut SideListener<'_>,
        interrupt: Option<BorrowedFd<'_>>,
    ) -> Result<bool, Ended> {
        loop {
            let now = Instant::now();
            let held_up = self.transfer.holds_up();
            let interrupt = interrupt.filter(|_| held_up.is_none());
            let ends = end.into_iter().chain(listener.paused_until(now)).chain(held_up);
            let left = ends.min().map(|at| at.saturating_duration_since(now));
            let timeout =
                left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
            let mut fds = vec![PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&self.missed, PollFlags::IN)];
            fds.extend(interrupt.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            let others = fds.len();
            fds.extend(listener.watched());
            let states = fds.len();
            fds.extend(self.transfer.awaited().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) if end.is_some_and(|end| end <= Instant::now()) => return Err(Ended::Silent),
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(errno) => return Err(Ended::Wire(format!("waiting for a message: {errno}"))),
            }
            let is_ready = |index: usize| fds.get(index).is_some_and(|fd| !fd.revents().is_empty());
            let (speaks, misses, passes) = (is_ready(0), is_ready(1), is_ready(states));
            let (interrupted, connects) = (interrupt.is_some() && is_ready(2), others < states && is_ready(others));
            if passes {
                self.transfer.read();
            }
            if misses {
                self.ask_for_translations();
            }
            if interrupted {
                return Ok(false);
            }
            if speaks {
                return Ok(true);
            }
            if connects {
                listener.accepted();
            }
        }
    }

    /// Asks the front end for what the device misses. A front end that does not read its requests is not waited for: its driver waits.
    fn ask_for_translations(&self) {
        let _already_read = rustix::io::read(&self.missed, &mut [0; 8]);
        let (Some(socket), Some(misses)) = (&self.requests, self.rings.memory.misses()) else { return };
        for miss in misses.take() {
            if wire::send_now(socket.as_fd(), BACKEND_IOTLB, &question(miss)).is_err() {
                return;
            }
        }
    }

    /// The misses of an IOMMU. They wake this session's thread.
    fn misses(&self) -> Arc<Misses> {
        let bell = Arc::clone(&self.missed);
        Arc::new(Misses::new(move || {
            // A full counter means that the thread is being woken already.
            let _ = rustix::io::write(&bell, &1u64.to_ne_bytes());
        }))
    }

    /// VHOST_USER_IOTLB_MSG. On return nothing uses a translation that was taken back.
    fn translate(&mut self, body: &[u8]) -> Result<(), Refusal> {
        let message = Iotlb::read(body).ok_or(Refusal::Body(Request::IotlbMsg))?;
        self.rings.memory.translate(message)?;
        self.port.set_memory(self.rings.memory.map().clone());
        Ok(())
    }

    /// Handles one message; `first` for the first one.
    fn turn(&mut self, first: bool) -> Result<(), Ended> {
        let receive = if first { Message::receive_first } else { Message::receive };
        self.waits.set(Waits::TO_RECEIVE);
        let message = receive(self.socket.as_fd());
        self.waits.set(Waits::NOT);
        let message = message.inspect_err(|error| {
            if let wire::WireError::VfioUser { id } = error {
                wire::decline_vfio_user(self.socket.as_fd(), *id);
            }
        })?;
        let (code, needs_reply) = (message.code, message.needs_reply());
        let served = self.serve(message);
        // Check after serving: Linux's own front end (arch/um/drivers/virtio_uml.c) expects a reply to the message that
        // negotiates replies.
        let asked = needs_reply && self.protocol.has(ProtocolFeatures::REPLY_ACK);
        let (answer, file) = match served {
            Ok(Answer::File(body, file)) => (Message::reply(code, body), Some(file)),
            Ok(Answer::Body(body)) => (Message::reply(code, body), None),
            Ok(Answer::Done) if asked => (Message::reply(code, 0u64.to_ne_bytes().to_vec()), None),
            Ok(Answer::Done) => return Ok(()),
            Err(refusal) if asked => {
                self.port.refused(&refusal);
                (Message::reply(code, 1u64.to_ne_bytes().to_vec()), None)
            }
            Err(refusal) => return Err(refusal.into()),
        };
        let fds: Vec<BorrowedFd<'_>> = file.iter().map(|file| file.as_fd()).collect();
        self.waits.set(Waits::TO_SEND);
        let sent = wire::send(self.socket.as_fd(), answer.code, answer.flags, &answer.body, &fds);
        self.waits.set(Waits::NOT);
        sent.map_err(Ended::from)
    }

    fn serve(&mut self, message: Message) -> Result<Answer, Refusal> {
        let Message { code, flags, body, fds } = message;
        let request = Request::from_code(code).filter(|_| flags & REPLY == 0).ok_or(Refusal::Unknown(code))?;
        let needed = match request {
            Request::GetQueueNum => ProtocolFeatures::MQ,
            Request::NetSetMtu => ProtocolFeatures::MTU,
            Request::GetConfig | Request::SetConfig => ProtocolFeatures::CONFIG,
            Request::ResetDevice => ProtocolFeatures::RESET_DEVICE,
            Request::GetMaxMemSlots | Request::AddMemReg | Request::RemMemReg => ProtocolFeatures::CONFIGURE_MEM_SLOTS,
            Request::SetStatus | Request::GetStatus => ProtocolFeatures::STATUS,
            Request::SetLogBase => ProtocolFeatures::LOG_SHMFD,
            Request::SetBackendReqFd | Request::IotlbMsg => ProtocolFeatures::BACKEND_REQ,
            Request::SendRarp => ProtocolFeatures::RARP,
            Request::GetInflightFd | Request::SetInflightFd => ProtocolFeatures::INFLIGHT_SHMFD,
            Request::SetDeviceStateFd | Request::CheckDeviceState => ProtocolFeatures::DEVICE_STATE,
            _ => ProtocolFeatures::default(),
        };
        if !self.protocol.has(needed) {
            return Err(Refusal::Unknown(code));
        }
        match request {
            Request::SetMemTable => self.set_memory_table(&body, fds)?,
            Request::AddMemReg => self.add_region(&body, fds)?,
            Request::RemMemReg => self.remove_region(&body)?,
            Request::SetVringKick | Request::SetVringCall | Request::SetVringErr => {
                self.set_bell(request, &body, fds)?
            }
            Request::SetLogBase => return self.set_log(&body, fds).map(Answer::Body),
            Request::SetInflightFd => self.set_inflight(&body, fds)?,
            Request::SetBackendReqFd => self.requests = Some(single(request, fds)?),
            Request::SetDeviceStateFd => return self.transfer_state(&body, fds),
            // An eventfd for logged pages. Neither QEMU nor the kernel's vhost uses it.
            Request::SetLogFd => {}
            _ if !fds.is_empty() => return Err(Refusal::Descriptors { request, found: fds.len(), wanted: 0 }),
            Request::GetVringBase => return self.stop_ring(&body).map(Answer::Body),
            Request::CheckDeviceState => return Ok(self.check_state()),
            Request::GetConfig => return self.get_config(&body).map(Answer::Body),
            Request::GetInflightFd => return get_inflight(&body),
            _ => return self.serve_numbers(request, &body),
        }
        Ok(Answer::Done)
    }

    /// Serves messages that carry a number, request one, or carry nothing.
    fn serve_numbers(&mut self, request: Request, body: &[u8]) -> Result<Answer, Refusal> {
        let number = |value: u64| Ok(Answer::Body(value.to_ne_bytes().to_vec()));
        match request {
            Request::GetFeatures => return number(self.offer() | F_PROTOCOL_FEATURES | F_LOG_ALL | self.platform()),
            Request::GetProtocolFeatures => return number(self.offered().0),
            Request::GetQueueNum => return number(u64::from(self.rings.count() / 2)),
            Request::GetMaxMemSlots => return number(REGIONS_MAX as u64),
            Request::GetStatus => return number(u64::from(self.status)),
            Request::SetFeatures => self.set_features(number_in(request, body)?)?,
            Request::SetProtocolFeatures => {
                let asked = ProtocolFeatures(number_in(request, body)?);
                if !self.offered().has(asked) {
                    return Err(Refusal::Features(asked.0));
                }
                self.protocol = asked;
            }
            Request::SetVringNum | Request::SetVringBase | Request::SetVringEnable => {
                self.set_ring_number(request, body)?;
            }
            Request::SetVringAddr => self.set_ring_addresses(body)?,
            Request::IotlbMsg => self.translate(body)?,
            Request::SendRarp => {
                let [a, b, c, d, e, f, ..] = number_in(request, body)?.to_ne_bytes();
                self.port.announce([a, b, c, d, e, f]);
            }
            Request::NetSetMtu => self.check_mtu(number_in(request, body)?)?,
            Request::SetStatus => {
                self.status = number_in(request, body)? as u8;
                // Status 0: the driver resets the device. QEMU sends it behind each stop of the rings too, also for a moment
                // (hw/virtio/vhost.c, vhost_dev_stop): frames for rings that it has stopped wait on.
                if self.status == 0 {
                    self.stop_those(|ring| ring.runs.is_some());
                }
            }
            Request::ResetDevice => self.forget(),
            // SET_OWNER has no effect with one front end per socket. The specification advises to ignore RESET_OWNER.
            Request::SetOwner | Request::ResetOwner => {}
            // The driver sets its address through the control queue.
            _ => return Err(Refusal::Unknown(request as u32)),
        }
        Ok(Answer::Done)
    }

    /// The features of the protocol that this port offers.
    fn offered(&self) -> ProtocolFeatures {
        let ProtocolFeatures(all) = ProtocolFeatures::OFFERED;
        let without = if self.port.offers_state() { 0 } else { ProtocolFeatures::DEVICE_STATE.0 };
        ProtocolFeatures(all & !without)
    }

    /// The device's features that fit into this protocol's 64-bit field.
    fn offer(&self) -> u64 {
        let mut features = 0;
        self.port.with(&mut |face, _| features = face.features() as u64);
        features
    }

    /// VIRTIO_F_ACCESS_PLATFORM, once the front end has a socket on which it can be asked for translations: without one it would never
    /// answer. (QEMU asks for the features again after it has passed that socket; User-Mode Linux, which has no IOMMU, does not.)
    fn platform(&self) -> u64 {
        if self.requests.is_some() { F_ACCESS_PLATFORM } else { 0 }
    }

    fn set_features(&mut self, asked: u64) -> Result<(), Refusal> {
        let is_translated = asked & F_ACCESS_PLATFORM != 0;
        // The log of written pages is by guest-physical addresses, which the device does not know behind an IOMMU.
        if is_translated && (self.requests.is_none() || asked & F_LOG_ALL != 0) {
            return Err(Refusal::Features(asked));
        }
        let (features, logs) = (asked & !F_LOG_ALL, asked & F_LOG_ALL != 0);
        if features != self.features {
            self.give_up_disabled();
        }
        let device = |features: u64| u128::from(features & !(F_PROTOCOL_FEATURES | F_ACCESS_PLATFORM));
        // Said for all adapters at once: one of them may serve no ring that runs.
        let runs = self.rings.states().iter().any(|ring| ring.runs.is_some());
        if runs && device(features) != device(self.features) {
            return Err(Refusal::Features(asked));
        }
        let mut taken = None;
        self.port.with(&mut |face, _| taken = Some(face.take_features(device(features)) && taken != Some(false)));
        if taken != Some(true) {
            return Err(Refusal::Features(asked));
        }
        self.features = features;
        let misses = is_translated.then(|| self.misses());
        let is_turned = self.rings.memory.turn_iotlb(misses);
        if self.rings.memory.turn_log(logs) | is_turned {
            self.memory_changed();
        }
        Ok(())
    }

    /// Sets the log of written pages. Always answers in the same form, so that the front end releases the old log.
    fn set_log(&mut self, body: &[u8], fds: Vec<PeerFd>) -> Result<Vec<u8>, Refusal> {
        let request = Request::SetLogBase;
        let mut fields = Fields(body);
        let place = fields.u64().zip(fields.u64()).filter(|_| fields.0.is_empty());
        let (len, offset) = place.ok_or(Refusal::Body(request))?;
        let fd = single(request, fds)?;
        self.rings.memory.set_log(fd, offset, len)?;
        self.memory_changed();
        Ok(body.to_vec())
    }

    fn check_mtu(&self, asked: u64) -> Result<(), Refusal> {
        let mut own = u16::MAX;
        self.port.with(&mut |face, _| {
            let mut bytes = [0; 2];
            if face.config(CONFIG_MTU_AT, &mut bytes) && face.features() & FEATURE_MTU != 0 {
                own = u16::from_le_bytes(bytes);
            }
        });
        if asked <= u64::from(own) { Ok(()) } else { Err(Refusal::Mtu { asked, own }) }
    }

    /// Reads configuration space. The reply has the requested size, or is empty if the device has less ("VHOST_USER_GET_CONFIG";
    /// QEMU's own back ends do the same: libvhost-user, vu_get_config). The session always answers, and continues.
    fn get_config(&self, body: &[u8]) -> Result<Vec<u8>, Refusal> {
        let refused = Refusal::Body(Request::GetConfig);
        let mut fields = Fields(body);
        let header = (|| Some((fields.u32()?, fields.u32()?, fields.u32()?)))();
        let (offset, size, _flags) = header.ok_or(refused)?;
        if fields.0.len() != size as usize {
            return Err(Refusal::Body(Request::GetConfig));
        }
        let mut reply = body.to_vec();
        let (_, data) = reply.split_at_mut(12);
        let mut within = false;
        self.port.with(&mut |face, _| within = face.config(offset, data));
        if !within {
            self.port.refused(&Refusal::Config { offset, size });
            reply.clear();
        }
        Ok(reply)
    }

    fn set_memory_table(&mut self, body: &[u8], fds: Vec<PeerFd>) -> Result<(), Refusal> {
        let request = Request::SetMemTable;
        let mut fields = Fields(body);
        let header = fields.u32().zip(fields.u32());
        let (count, _padding) = header.ok_or(Refusal::Body(request))?;
        if count as usize != fds.len() {
            return Err(Refusal::Descriptors { request, found: fds.len(), wanted: count as usize });
        }
        let mut regions = Vec::with_capacity(fds.len());
        for _ in 0..fds.len() {
            regions.push(Region::read(&mut fields).ok_or(Refusal::Body(request))?);
        }
        // Linux before 6.12 in user mode (virtio_uml.c) sends a body with room for more regions than the count says.
        if !fields.0.len().is_multiple_of(Region::BYTES) {
            return Err(Refusal::Body(request));
        }
        self.rings.memory.replace(regions, fds)?;
        self.memory_changed();
        Ok(())
    }

    fn add_region(&mut self, body: &[u8], fds: Vec<PeerFd>) -> Result<(), Refusal> {
        let request = Request::AddMemReg;
        let region = single_region(request, body)?;
        let fd = single(request, fds)?;
        self.rings.memory.add(region, fd)?;
        self.memory_changed();
        Ok(())
    }

    /// Removes a region. Descriptors of the message are closed: the specification allows one, and some front ends send it.
    fn remove_region(&mut self, body: &[u8]) -> Result<(), Refusal> {
        self.rings.memory.remove(single_region(Request::RemMemReg, body)?)?;
        self.memory_changed();
        Ok(())
    }

    /// Resets the session to its state before the first message, except memory and calls.
    fn forget(&mut self) {
        self.stop_all();
        self.rings.forget();
        (self.features, self.status, self.kept, self.record) = (0, 0, None, None);
        self.transfer = Transfer::Nothing;
        if self.rings.memory.turn_log(false) | self.rings.memory.turn_iotlb(None) {
            self.memory_changed();
        }
        let count = self.rings.count();
        self.port.with(&mut |face, cx| {
            for ring in 0..count {
                face.enable(ring, false, cx);
            }
            // No ring runs, so the port refuses nothing.
            face.take_features(0);
            face.keep(None);
        });
    }

    fn stop_all(&mut self) {
        self.stop_those(|_| true);
    }

    /// Stops these rings. Frames for one that its front end had stopped before do not wait any more.
    fn stop_those(&mut self, stops: fn(&RingState) -> bool) {
        for ring in 0..self.rings.count() {
            if self.rings.states().get(usize::from(ring)).is_some_and(stops) {
                self.stop(ring);
                self.port.set_kick(ring, Kick::Stopped);
            }
        }
    }
}

fn number_in(request: Request, body: &[u8]) -> Result<u64, Refusal> {
    Ok(u64::from_ne_bytes(body.try_into().map_err(|_| Refusal::Body(request))?))
}

/// The descriptor of a message that must have exactly one.
fn single(request: Request, fds: Vec<PeerFd>) -> Result<PeerFd, Refusal> {
    let [fd] =
        <[PeerFd; 1]>::try_from(fds).map_err(|fds| Refusal::Descriptors { request, found: fds.len(), wanted: 1 })?;
    Ok(fd)
}

fn single_region(request: Request, body: &[u8]) -> Result<Region, Refusal> {
    let mut fields = Fields(body);
    let _padding = fields.u64();
    let region = Region::read(&mut fields);
    region.filter(|_| fields.end().is_some()).ok_or(Refusal::Body(request))
}
