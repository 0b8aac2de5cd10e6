//! Frames from the tap to the adapter and back.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use nicety_adapter::{
    Batch, Budget, Bus as _, Checksum, Counters, Frames, Offload, PACKET_BYTES, Pick, PortId, Segment, SegmentKind,
    Time, Uplink as _,
};
use nicety_drivers::{BUDGET, Driver, Received};
use nicety_frame::{Fragment, L4Kind, Layout, Mac, checksum};
use nicety_memory::Map;
use nicety_uplink::Tap;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::Fallible;
use crate::bus::UioBus;

/// Buffer for a received packet.
const SLOT: u64 = 128 << 10;
/// Bytes of the longest frame that is not a coalesced packet: an Ethernet frame with two tags.
const FRAME: usize = 1514 + 8;
/// Payload bytes of a frame of 1500 bytes, IPv4 and TCP without options.
const MSS: u16 = 1460;

/// See the module's documentation.
pub struct Forward {
    driver: Box<dyn Driver>,
    bus: UioBus,
    tap: Tap,
    signals: OwnedFd,
    begun: Instant,
    batch: Box<Batch>,
    counters: Counters,
    /// Received packets, for the tap.
    received: Arc<Map>,
    /// Packets from the tap that the adapter has no room for.
    waiting: VecDeque<(Vec<u8>, Offload)>,
    free_buffers: Vec<Vec<u8>>,
    polling: bool,
    /// The adapter has addresses of our memory.
    is_open: bool,
}

/// After any failure the adapter must stop writing to our memory, which other processes will get.
impl Drop for Forward {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            eprintln!("nicety-uio: closing the adapter: {error}");
        }
    }
}

impl Forward {
    /// Opens the driver.
    pub fn open(driver: Box<dyn Driver>, bus: UioBus, tap: Tap) -> Fallible<Self> {
        let (read, write) = UnixStream::pair()?;
        for signal in [signal_hook::consts::SIGHUP, signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            let end = write.try_clone()?;
            signal_hook::low_level::pipe::register(signal, end)?;
        }
        assert!(SLOT >= u64::from(PACKET_BYTES));
        let received = Map::private(BUDGET * SLOT as usize)?;
        let mut forward = Self {
            driver,
            bus,
            tap,
            signals: read.into(),
            begun: Instant::now(),
            batch: Box::default(),
            counters: Counters::default(),
            received: Arc::new(received),
            waiting: VecDeque::new(),
            free_buffers: Vec::new(),
            polling: true,
            is_open: true,
        };
        forward.driver.open(&mut forward.bus)?;
        let features = forward.driver.features();
        forward.tap.expect(features.checksum, features.segment_bytes > 0)?;
        Ok(forward)
    }

    fn close(&mut self) -> Fallible<()> {
        if std::mem::take(&mut self.is_open) {
            self.driver.close(&mut self.bus)?;
        }
        Ok(())
    }

    /// The adapter's address.
    pub fn mac(&self) -> Mac {
        self.driver.mac()
    }

    /// The interface.
    pub fn tap_name(&self) -> &str {
        self.tap.name()
    }

    /// Forwards frames until SIGHUP, SIGINT or SIGTERM, then closes the device.
    pub fn run_until_signal(&mut self) -> Fallible<()> {
        loop {
            if self.polling {
                self.receive().map_err(|error| format!("the driver: {error}"))?;
            }
            let more = self.transmit().map_err(|error| format!("the driver: {error}"))?;
            if self.wait(self.polling || more)? {
                return self.close();
            }
        }
    }

    /// Waits for an interrupt, or for frames of the tap. True if a signal came.
    fn wait(&mut self, at_once: bool) -> Fallible<bool> {
        let tap = if self.waiting.is_empty() { self.tap.descriptor() } else { None };
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.bus.interrupt(), PollFlags::IN),
        ];
        fds.extend(tap.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut fds, at_once.then_some(&none)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(format!("waiting: {errno}").into()),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready.get(1) == Some(&true) {
            self.bus.take().map_err(|error| format!("/dev/uio: {error}"))?;
            self.polling |= self.driver.interrupt(&mut self.bus, 0)?;
            self.bus.unmask_line()?;
        }
        Ok(ready.first() == Some(&true))
    }

    /// Moves received packets, up to a budget, to the tap.
    fn receive(&mut self) -> Result<(), nicety_drivers::DriverError> {
        let Self { driver, bus, tap, batch, received, counters, .. } = self;
        let now = Time(u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
        batch.start(received, PortId(0), 0);
        let mut count = 0;
        let taken = driver.receive(bus, BUDGET, &mut |packet: &mut Vec<u8>, info| {
            let (at, offload) = (count * SLOT, offload(packet, info));
            let written = received.write(at, packet).is_ok();
            if let Some(mut draft) = batch.draft(0).filter(|_| written) {
                let len = u32::try_from(packet.len()).unwrap_or(u32::MAX);
                if draft.push(at, len).is_ok() && draft.finish(offload, 0).is_ok() {
                    count += 1;
                }
            }
        })?;
        let picks: Vec<Pick> = (0..batch.len() as u16).map(Pick::whole).collect();
        // Packets without room in the stack are lost, as on any interface.
        let _refused = tap.deliver(&Frames::new(batch, &picks), counters, now);
        batch.release();
        if taken < BUDGET {
            self.polling = self.driver.rest(&mut self.bus)?;
        }
        Ok(())
    }

    /// Moves a batch of the tap's frames to the adapter. True if there are more, and room.
    fn transmit(&mut self) -> Result<bool, nicety_drivers::DriverError> {
        while let Some((packet, offload)) = self.waiting.front() {
            if !self.driver.transmit(&mut self.bus, packet, offload)? {
                self.driver.flush(&mut self.bus)?;
                return Ok(false);
            }
            self.free_buffers.extend(self.waiting.pop_front().map(|(packet, _)| packet));
        }
        let now = Time(u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
        let progress = self.tap.fetch(PortId(0), Budget::TURN, &mut self.batch, &mut self.counters, now);
        let source = Arc::clone(self.batch.source());
        for packet in self.batch.packets() {
            let mut bytes = self.free_buffers.pop().unwrap_or_default();
            bytes.clear();
            bytes.extend_from_slice(self.batch.head(packet));
            for span in self.batch.spans(packet) {
                let at = bytes.len();
                bytes.resize(at + span.len() as usize, 0);
                source.read_span(*span, bytes.get_mut(at..).unwrap_or_default());
            }
            if !self.waiting.is_empty() || !self.driver.transmit(&mut self.bus, &bytes, &packet.offload)? {
                self.waiting.push_back((bytes, packet.offload));
            } else {
                self.free_buffers.push(bytes);
            }
        }
        self.tap.complete(&self.batch);
        self.batch.release();
        self.driver.flush(&mut self.bus)?;
        Ok(progress.more && self.waiting.is_empty())
    }
}

/// Offload information for the stack about a received packet: its checksum was verified, and it may consist of several segments.
/// The checksum field may be unset, since the adapter vouches for it: so the stack gets a request to compute it.
fn offload(packet: &mut [u8], info: Received) -> Offload {
    let layout = Layout::parse(packet);
    let (Some(l3), Some(l4)) = (layout.l3, layout.l4) else { return Offload::default() };
    if !info.checksum_good || l3.fragment != Fragment::Whole {
        return Offload::default();
    }
    let l4_len = layout.l4_total_len(packet).and_then(|len| u32::try_from(len).ok());
    let sum = l4_len.and_then(|len| checksum::pseudo(packet, &layout, len));
    let field = packet.get_mut(l4.checksum_at()..).and_then(|rest| rest.first_chunk_mut::<2>());
    let (Some(sum), Some(field)) = (sum, field) else { return Offload::default() };
    *field = sum.fold().to_be_bytes();
    let checksum = Checksum::Partial { start: l4.offset, field: l4.offset + l4.kind.checksum_offset() };
    let len = u32::try_from(packet.len()).unwrap_or(u32::MAX);
    let uncut = packet.len() > FRAME && l4.kind == L4Kind::Tcp;
    let segment = if uncut { Segment::of(SegmentKind::Tcp, MSS, layout.headers_len, len) } else { None };
    Offload { checksum, segment }
}
