//! Handles messages: passes each command to the device, and sends the answer (vfio-user.rst, a section per command).

use nicety_peer::PeerFd;
use rustix::io::Errno;

use super::Core;
use super::requests::Kind;
use super::work::Writing;
use crate::codec::request::{Access, DEVICE_INFO_SIZE, DEVICE_PCI, DEVICE_RESET, Request, Writes};
use crate::codec::version::{Capabilities, Version};
use crate::codec::{
    Command, FLAG_ERROR, Header, Malformed, VERSION_MAJOR, VERSION_MINOR, errno_of, irqs, put_u32, put_u64,
};
use crate::device::Device;
use crate::error::SessionError;
use crate::wire::{Message, reply_header};

/// Accesses of a string that take as long as one message.
const PORTS_PER_MESSAGE: u32 = 8;

/// The success of a command, or the errno of its error reply.
pub(super) type Answer = Result<(), Errno>;

impl Core {
    /// Handles one message. An error ends the session.
    pub(super) fn handle(&mut self, message: Message<'_>, device: &mut dyn Device) -> Result<(), SessionError> {
        let Message { header, payload, fds } = message;
        self.work.message();
        if header.is_reply() {
            self.refuse(&fds);
            return self.handle_reply(&header, payload, device);
        }
        let command = Command::from_number(header.command);
        self.counters.count_received(command);
        if self.peer.is_none() {
            self.refuse(&fds);
            return self.handshake(&header, command, payload);
        }
        let Some(command) = command else {
            self.refuse(&fds);
            self.error(&header, Errno::OPNOTSUPP);
            return Ok(());
        };
        let answer = match Request::decode(command, payload) {
            Ok(_) if !fds.is_empty() && !Request::takes_fds(header.command, payload) => {
                self.refuse(&fds);
                Err(Errno::INVAL)
            }
            Ok(request) => self.perform(&header, request, fds, device),
            Err(Malformed(_)) => {
                self.refuse(&fds);
                Err(Errno::INVAL)
            }
        };
        if let Err(errno) = answer {
            self.error(&header, errno);
        }
        Ok(())
    }

    fn perform(&mut self, header: &Header, request: Request<'_>, fds: Vec<PeerFd>, device: &mut dyn Device) -> Answer {
        match request {
            Request::Read(access) => self.read(header, access, device),
            Request::Write(access, data) => self.write(header, access, data, device),
            Request::WriteMulti(writes) => self.write_multi(header, writes, device),
            Request::DmaMap(map) => self.map(header, map, fds, device),
            Request::DmaUnmap { flags, address, size } => self.unmap(header, flags, address, size, device),
            Request::DeviceInfo => self.device_info(header, device),
            Request::RegionInfo { argsz, index } => self.region_info(header, argsz, index, device),
            Request::RegionIoFds { index } => self.region_io_fds(header, index, device),
            Request::IrqInfo { index } => self.irq_info(header, index, device),
            Request::SetIrqs(raw) => {
                self.work.change();
                let info = known_irq(device, raw.index)?;
                let count = fds.len() as u64;
                let set = raw.check(&info, fds).map_err(|_| {
                    self.counters.fds_refused += count;
                    Errno::INVAL
                })?;
                device.set_irqs(set)?;
                self.acknowledge(header);
                Ok(())
            }
            Request::Reset => {
                self.work.change();
                device.reset()?;
                self.acknowledge(header);
                Ok(())
            }
            // No feature exists, migration included: answer as the kernel does.
            Request::Feature { .. } => Err(Errno::NOTTY),
            Request::Version(_) => Err(Errno::INVAL),
            Request::Unsupported => Err(Errno::OPNOTSUPP),
        }
    }

    // Data path.

    /// Checks that an access lies within its region and does not exceed the negotiated limit (like libvfio-user's
    /// `is_valid_region_access`). Otherwise a message of 32 bytes could make this process fill a megabyte.
    fn check(&self, access: Access, device: &dyn Device) -> Answer {
        let most = self.peer.map_or(0, |peer| peer.transfer_limit());
        let end = access.offset.checked_add(u64::from(access.count));
        let lies_within = end.is_some_and(|end| end <= device.region_size(access.region));
        if access.count as usize <= most && lies_within { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// Checks an access and charges its cost. Returns the plain access, and the width of each access of a string in bytes.
    fn admit(&mut self, requested: Access, device: &dyn Device) -> Result<(Access, usize), Errno> {
        let strings = self.peer.is_some_and(|peer| peer.port_strings == Some(true));
        let (access, width) =
            if strings { requested.string().map_err(|_| Errno::INVAL)? } else { (requested, requested.count) };
        if access.count as usize > self.peer.map_or(0, |peer| peer.transfer_limit()) {
            return Err(Errno::INVAL);
        }
        self.check(Access { count: width, ..access }, device)?;
        self.work.bytes(access.count);
        let width = width.max(1);
        self.work.excess((access.count / width).saturating_sub(1) / PORTS_PER_MESSAGE);
        Ok((access, width as usize))
    }

    fn read(&mut self, header: &Header, requested: Access, device: &mut dyn Device) -> Answer {
        let (access, width) = self.admit(requested, device)?;
        self.counters.reads += 1;
        let count = access.count as usize;
        if self.is_given_up(header) {
            let mut unread = vec![0; count];
            for data in unread.chunks_mut(width) {
                device.region_read(access.region, access.offset, data)?;
            }
            if !header.no_reply() {
                self.counters.replies_sent += 1;
                self.outbound.put(reply_header(header), |_| {});
            }
            return Ok(());
        }
        let answer = self.outbound.push(reply_header(header), |out| {
            put_access(out, requested);
            let at = out.len();
            out.resize(at + count, 0);
            for data in out.get_mut(at..).unwrap_or_default().chunks_mut(width) {
                device.region_read(access.region, access.offset, data)?;
            }
            // A read without reply still has its side effects.
            if header.no_reply() { Err(None) } else { Ok(()) }
        });
        match answer {
            Ok(()) => {
                self.counters.replies_sent += 1;
                Ok(())
            }
            Err(None) => Ok(()),
            Err(Some(errno)) => Err(errno),
        }
    }

    fn write(&mut self, header: &Header, requested: Access, data: &[u8], device: &mut dyn Device) -> Answer {
        let (access, width) = self.admit(requested, device)?;
        self.counters.writes += 1;
        self.counters.posted_writes += u64::from(header.no_reply());
        for data in data.chunks(width) {
            let written = device.region_write(access.region, access.offset, data);
            self.work.excess(device.excess());
            written?;
        }
        self.answer(header, |out| put_access(out, requested));
        Ok(())
    }

    fn write_multi(&mut self, header: &Header, writes: Writes<'_>, device: &mut dyn Device) -> Answer {
        // Check all of them before the first takes effect.
        for write in writes.iter() {
            let (access, _) = write.map_err(|_| Errno::INVAL)?;
            self.check(access, device)?;
        }
        let (done, outcome) = self.write_each(header, writes, device);
        if (done as u64) < writes.count() {
            self.writing = Some(Writing::begin(*header, writes, done, outcome));
            return Ok(());
        }
        outcome?;
        self.answer(header, |out| put_u64(out, writes.count()));
        Ok(())
    }

    /// Continues a message with more writes than one call may handle.
    pub(super) fn go_on(&mut self, device: &mut dyn Device) {
        let Some(mut writing) = self.writing.take() else { return };
        let header = writing.header;
        let (done, outcome) = self.write_each(&header, writing.rest(), device);
        writing.went_on(done, outcome);
        if !writing.is_done() {
            self.writing = Some(writing);
            return;
        }
        match writing.outcome {
            Ok(()) => self.answer(&header, |out| put_u64(out, writing.count())),
            Err(errno) => self.error(&header, errno),
        }
    }

    /// Carries out checked writes up to the limit of one call. Returns their number, and the outcome.
    fn write_each(&mut self, header: &Header, writes: Writes<'_>, device: &mut dyn Device) -> (usize, Answer) {
        let (mut done, mut outcome) = (0, Ok(()));
        for (access, data) in writes.iter().flatten() {
            if self.work.is_enough() {
                break;
            }
            done += 1;
            self.work.message();
            self.counters.writes += 1;
            self.counters.posted_writes += u64::from(header.no_reply());
            if data.is_empty() {
                continue;
            }
            let written = device.region_write(access.region, access.offset, data);
            // Posted writes are independent of each other; a reply reports the first error.
            outcome = outcome.and(written);
            self.work.excess(device.excess());
        }
        (done, outcome)
    }

    // Properties of the device.

    fn device_info(&mut self, header: &Header, device: &mut dyn Device) -> Answer {
        let info = device.info();
        self.answer(header, |out| {
            put_u32(out, DEVICE_INFO_SIZE as u32);
            put_u32(out, DEVICE_PCI | if info.resettable { DEVICE_RESET } else { 0 });
            put_u32(out, info.regions);
            put_u32(out, info.irqs);
        });
        Ok(())
    }

    fn region_info(&mut self, header: &Header, argsz: u32, index: u32, device: &mut dyn Device) -> Answer {
        let mut info = known_region(device, index)?;
        if self.peer.is_some_and(|peer| peer.fd_limit() == 0) {
            info.mapping = None;
        }
        let mut fd = None;
        self.answer(header, |out| fd = info.encode(index, argsz, out));
        if let Some(fd) = fd
            && !header.no_reply()
        {
            self.outbound.attach(vec![fd]);
        }
        Ok(())
    }

    fn region_io_fds(&mut self, header: &Header, index: u32, device: &mut dyn Device) -> Answer {
        known_region(device, index)?;
        self.answer(header, |out| {
            put_u32(out, 16);
            put_u32(out, 0);
            put_u32(out, index);
            put_u32(out, 0);
        });
        Ok(())
    }

    fn irq_info(&mut self, header: &Header, index: u32, device: &mut dyn Device) -> Answer {
        let info = known_irq(device, index)?;
        self.answer(header, |out| {
            put_u32(out, irqs::INFO_SIZE as u32);
            put_u32(out, info.flags);
            put_u32(out, index);
            put_u32(out, info.count);
        });
        Ok(())
    }

    // Handshake, and answers to our own requests.

    fn handshake(&mut self, header: &Header, command: Option<Command>, payload: &[u8]) -> Result<(), SessionError> {
        if command != Some(Command::Version) {
            self.error(header, Errno::INVAL);
            return Err(SessionError::NoVersion(header.command));
        }
        let version = match Version::decode(payload) {
            Ok(version) => version,
            Err(why) => {
                self.error(header, Errno::INVAL);
                return Err(SessionError::BadVersion(why));
            }
        };
        if version.major != VERSION_MAJOR {
            self.error(header, Errno::INVAL);
            return Err(SessionError::OtherVersion(version.major));
        }
        let reply = Version {
            major: VERSION_MAJOR,
            minor: version.minor.min(VERSION_MINOR),
            capabilities: Capabilities::answer(&version.capabilities, self.map_limit),
        };
        self.peer = Some(version.capabilities);
        self.answer(header, |out| reply.encode(out));
        Ok(())
    }

    fn handle_reply(&mut self, header: &Header, payload: &[u8], device: &mut dyn Device) -> Result<(), SessionError> {
        self.counters.replies_received += 1;
        let request = self.requests.finish(header).ok_or(SessionError::UnexpectedReply(header.id))?;
        let id = super::DmaId(request.id);
        let result = if header.is_error() {
            Err(errno_of(header.error))
        } else if request.kind == Kind::Write && payload.is_empty() {
            Ok(&[][..])
        } else {
            Ok(request.data(payload).map_err(SessionError::BadReply)?)
        };
        match request.kind {
            Kind::Read => device.dma_read_done(id, result),
            Kind::Write => device.dma_write_done(id, result.map(|_| ())),
        }
        Ok(())
    }

    // Answers.

    pub(super) fn acknowledge(&mut self, header: &Header) {
        self.answer(header, |_| {});
    }

    pub(super) fn answer(&mut self, header: &Header, write: impl FnOnce(&mut Vec<u8>)) {
        if header.no_reply() {
            return;
        }
        self.counters.replies_sent += 1;
        match self.is_given_up(header) {
            true => self.outbound.put(reply_header(header), |_| {}),
            false => self.outbound.put(reply_header(header), write),
        }
    }

    pub(super) fn error(&mut self, header: &Header, errno: Errno) {
        if header.no_reply() {
            return;
        }
        self.counters.errors_sent += 1;
        let reply = reply_header(header);
        let error = errno.raw_os_error().unsigned_abs();
        self.counters.replies_sent += 1;
        let header = Header { flags: reply.flags | FLAG_ERROR, error, ..reply };
        self.outbound.put(header, |_| {});
    }

    /// Counts descriptors that no command takes; the caller drops them, which closes them without blocking.
    pub(super) fn refuse(&mut self, fds: &[PeerFd]) {
        self.counters.fds_refused += fds.len() as u64;
    }
}

fn put_access(out: &mut Vec<u8>, access: Access) {
    put_u64(out, access.offset);
    put_u32(out, access.region);
    put_u32(out, access.count);
}

fn known_region(device: &dyn Device, index: u32) -> Result<crate::RegionInfo, Errno> {
    if index >= device.info().regions {
        return Err(Errno::INVAL);
    }
    // A valid index that the device does not use is a region of size 0.
    Ok(device.region(index).unwrap_or_default())
}

fn known_irq(device: &dyn Device, index: u32) -> Result<irqs::IrqInfo, Errno> {
    if index >= device.info().irqs {
        return Err(Errno::INVAL);
    }
    device.irq_info(index).ok_or(Errno::INVAL)
}
