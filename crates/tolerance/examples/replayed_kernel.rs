//! A real kernel in virtual time: user-mode Linux (`time-travel=ext`) with one of our adapters, a calendar that we serve
//! (include/uapi/linux/um_timetravel.h), and a TCP client, all on one thread. Two runs that write the same transcript are a kernel that can be
//! replayed from its frames and times. docs/adr/0017 says what the kernel needs, and what was seen.
//!
//! ```text
//! replayed_kernel LINUX INITRD TRANSCRIPT [ADAPTER] [BYTES] [SEED]
//! ```

use std::fs::File;
use std::io::{self, BufWriter, IoSlice, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nicety_adapter::{Face, Offload, PortId, Time};
use nicety_memory::{Map, Mapping, Rights};
use nicety_pci::Mode;
use nicety_plane::wire::{Far, Wire};
use nicety_plane::{End, Plane, Port, Turn};
use nicety_switch::Limits;
use nicety_tolerance::GuestTime;
use nicety_tolerance::replica::bus::Memo;
use nicety_vfio_user::{
    Change, Device, DmaMap, DmaRange, Errno, Interrupts, IrqInfo, IrqLayout, IrqSet, RegionInfo, Session,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

#[path = "../tests/help/mod.rs"]
mod help;

/// Operations of the calendar's messages.
const ACK: u32 = 0;
const START: u32 = 1;
const REQUEST: u32 = 2;
const WAIT: u32 = 3;
const GET: u32 = 4;
const UPDATE: u32 = 5;
const RUN: u32 = 6;
const GET_TOD: u32 = 8;
/// The guest's time of day at its start, in nanoseconds of 1970.
const TIME_OF_DAY: u64 = 1_700_000_000_000_000_000;
/// From one end of the network to the other.
const LATENCY_NS: u64 = 50_000;
/// The client begins then.
const BEGIN_NS: u64 = 3_000_000_000;
/// No run takes longer, in the guest's time.
const END_NS: u64 = 60_000_000_000;
/// vfio's number of the configuration space.
const CONFIG_REGION: u32 = 7;

type Failure = Box<dyn std::error::Error>;

/// All that must be equal in two runs, a line each.
struct Transcript(BufWriter<File>);

impl Transcript {
    fn note(&mut self, what: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{what}").expect("the transcript can be written");
    }
}

/// A PCI function that has done all that follows from an access before it answers.
struct Function {
    plane: Plane,
    ports: [Arc<Port>; 2],
    turn: Turn,
    memo: Memo,
    far: Far,
    interrupts: Interrupts,
    map: Map,
    now: Time,
    transcript: Transcript,
}

impl Function {
    fn new(adapter: &str, transcript: Transcript) -> Result<Self, Failure> {
        let entry = nicety_adapters::find(adapter).ok_or("no such adapter")?;
        let plane = Plane::new(Limits { addresses: 1 << 10, ..Limits::default() });
        let (wire, far) = Wire::new(false)?;
        let memo = Memo::default();
        let end = End::Adapter((entry.create)(&nicety_adapters::Settings::new(help::GUEST_MAC))?);
        let port = Arc::new(Port::new(PortId(1), end, Box::new(memo.clone()), 1 << 20)?);
        let uplink = Arc::new(Port::new(PortId(0), End::Uplink(Box::new(wire)), Box::new(Memo::default()), 1 << 20)?);
        for port in [&uplink, &port] {
            plane.join(Arc::clone(port))?;
        }
        port.attach();
        let layout = port.with_pci(Time::ZERO, |pci, _| {
            let function = pci.function();
            let mut pin = [0];
            function.config_read(0x3d, &mut pin);
            let msix = function.msix().map_or(0, |msix| msix.vectors());
            IrqLayout { intx: pin[0] != 0, msi: u16::from(function.msi_vectors()), msix, unmask_eventfd: false }
        });
        let interrupts = Interrupts::new(layout.ok_or("it is no PCI function")?);
        let (turn, map, now) = (Turn::new(), Map::default(), Time::ZERO);
        Ok(Self { plane, ports: [uplink, port], turn, memo, far, interrupts, map, now, transcript })
    }

    fn port(&self) -> &Arc<Port> {
        &self.ports[1]
    }

    /// Does what is due at this time, and raises the interrupts.
    fn settle(&mut self) {
        {
            let mut requests = self.memo.requests();
            requests.wake = requests.wake.filter(|wake| *wake > self.now);
        }
        self.ports[0].ready();
        loop {
            self.memo.requests().scheduled = false;
            let mut more = false;
            for port in &self.ports {
                loop {
                    let outcome = self.plane.turn(port, &mut self.turn, self.now);
                    if !outcome.unfinished {
                        more |= outcome.more;
                        break;
                    }
                }
            }
            if !more && !self.memo.requests().scheduled {
                break;
            }
        }
        let mode = self.port().with(self.now, |adapter, _| match adapter.face() {
            Face::Pci(pci) => pci.function().mode(),
            _ => Mode::None,
        });
        let is_msix = mode == Some(Mode::Msix);
        let mut requests = self.memo.requests();
        while let Some(vector) = requests.messages.pop() {
            self.transcript.note(format_args!("interrupt {vector}"));
            let _raised = if is_msix { self.interrupts.raise_msix(vector) } else { self.interrupts.raise_msi(vector) };
        }
        let _raised = self.interrupts.set_line(requests.line);
    }

    fn raised(&self) -> u64 {
        self.interrupts.counters().delivered
    }

    fn wake(&self) -> Option<u64> {
        self.memo.requests().wake.map(|wake| wake.0)
    }

    fn give(&mut self, frame: Vec<u8>) {
        self.transcript.note(format_args!("{} in {}", self.now.0, hex(&frame)));
        self.far.ends().outgoing.push_back((frame, Offload::default()));
        self.settle();
    }

    fn take(&mut self) -> Vec<Vec<u8>> {
        let frames: Vec<Vec<u8>> = self.far.ends().incoming.drain(..).map(|(frame, _)| frame).collect();
        for frame in &frames {
            self.transcript.note(format_args!("{} out {}", self.now.0, hex(frame)));
        }
        frames
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Device for Function {
    fn region(&self, index: u32) -> Option<RegionInfo> {
        let size = self.port().with_pci(self.now, |pci, _| match index {
            CONFIG_REGION => pci.function().config_size() as u64,
            0..=5 => pci.function().bar_kind(index as usize).map_or(0, |bar| bar.size),
            _ => 0,
        });
        (index < 9).then(|| RegionInfo::trapped(size.unwrap_or(0)))
    }

    fn irq_info(&self, index: u32) -> Option<IrqInfo> {
        self.interrupts.info(index)
    }

    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        match region {
            CONFIG_REGION => self.port().config_read(offset, data, self.now),
            0..=5 => self.port().read(region as u8, offset, data, self.now),
            _ => return Err(Errno::INVAL),
        }
        self.settle();
        self.transcript.note(format_args!("{} read {region} {offset:#x} {}", self.now.0, hex(data)));
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.transcript.note(format_args!("{} write {region} {offset:#x} {}", self.now.0, hex(data)));
        match region {
            CONFIG_REGION => self.port().config_write(offset as u16, data, self.now),
            0..=5 => drop(self.port().write(region as u8, offset, data, self.now)),
            _ => return Err(Errno::INVAL),
        }
        self.settle();
        Ok(())
    }

    fn dma_map(&mut self, map: DmaMap) -> Result<Change, Errno> {
        let fd = map.fd.ok_or(Errno::INVAL)?;
        let fd = fd.as_fd().try_clone_to_owned().map_err(|_| Errno::NOMEM)?;
        let mapping = Mapping::of_file(fd, map.offset, map.range.size, true).map_err(|_| Errno::INVAL)?;
        self.map = self.map.with(map.range.address, Arc::new(mapping), Rights::BOTH).map_err(|_| Errno::INVAL)?;
        let _old = self.port().set_memory(Arc::new(self.map.clone()), self.now);
        Ok(Change::Done)
    }

    fn dma_unmap(&mut self, _: Option<DmaRange>) -> Change {
        self.map = Map::default();
        let _old = self.port().set_memory(Arc::default(), self.now);
        Change::Done
    }

    fn set_irqs(&mut self, set: IrqSet<'_>) -> Result<(), Errno> {
        let applied = self.interrupts.apply(set);
        self.settle();
        applied
    }

    fn reset(&mut self) -> Result<(), Errno> {
        self.port().reset(nicety_adapter::Reset::Function, self.now);
        Ok(())
    }
}

/// The calendar's end of the guest's time socket.
struct Calendar {
    stream: UnixStream,
    sequence: u32,
    /// The time at which the guest wants to run, and whether it waits for it.
    request: Option<u64>,
    waits: bool,
    /// The guest has an interrupt for which it has not asked for the time yet (time_travel_add_irq_event()).
    expects: bool,
    /// It has asked, and asks to run at once next, unless an earlier interrupt waits in it.
    expects_request: bool,
    messages: u64,
}

impl Calendar {
    fn send(&mut self, op: u32, sequence: u32, time: u64) -> io::Result<()> {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&op.to_ne_bytes());
        bytes[4..8].copy_from_slice(&sequence.to_ne_bytes());
        bytes[8..].copy_from_slice(&time.to_ne_bytes());
        self.stream.write_all(&bytes)
    }

    /// The kernel reads two descriptors with the first answer, and takes what is on its stack for them if there are none
    /// (time_travel_handle_message(), TTMH_READ_START_ACK). A file that cannot be mapped means: no shared memory.
    fn send_start(&mut self, sequence: u32) -> Result<(), Failure> {
        let mut bytes = [0; 16];
        bytes[4..8].copy_from_slice(&sequence.to_ne_bytes());
        let null: OwnedFd = File::open("/dev/null")?.into();
        let fds = [null.as_fd(), null.as_fd()];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        sendmsg(&self.stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::empty())?;
        Ok(())
    }

    /// Reads and answers one message. False at the guest's end.
    fn hear(&mut self, now: &mut Time, transcript: &mut Transcript) -> Result<bool, Failure> {
        let mut bytes = [0; 16];
        match self.stream.read_exact(&mut bytes) {
            Err(error) if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
                return Ok(false);
            }
            done => done?,
        }
        self.messages += 1;
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (op, sequence, time) = (word(0), word(4), u64::from(word(8)) | u64::from(word(12)) << 32);
        let mut answer = 0;
        match op {
            ACK => return Ok(true),
            START => {
                self.send_start(sequence)?;
                return Ok(true);
            }
            REQUEST => (self.request, self.expects_request) = (Some(time), false),
            WAIT => self.waits = true,
            GET => {
                self.expects_request = self.waits && self.request.is_none_or(|request| request > now.0);
                (answer, self.expects) = (now.0, false);
            }
            UPDATE => now.0 = now.0.max(time),
            GET_TOD => answer = TIME_OF_DAY,
            _ => return Err(format!("the guest sends operation {op}").into()),
        }
        // How many signals tell of interrupts depends on the host.
        if op != GET {
            transcript.note(format_args!("{} calendar {op} {}", now.0, if op == REQUEST { time } else { 0 }));
        }
        self.send(ACK, sequence, answer)?;
        Ok(true)
    }

    fn run_guest(&mut self, now: Time) -> Result<(), Failure> {
        self.sequence += 1;
        (self.request, self.waits, self.expects_request) = (None, false, false);
        self.send(RUN, self.sequence, now.0)?;
        Ok(())
    }
}

/// The network: frames on their way, and the client.
struct Outside {
    client: help::Client,
    to_guest: std::collections::VecDeque<(u64, Vec<u8>)>,
    to_client: std::collections::VecDeque<(u64, Vec<u8>)>,
}

impl Outside {
    fn due(&self) -> Option<u64> {
        let frames = [&self.to_guest, &self.to_client].map(|frames| frames.front().map(|(at, _)| *at));
        let wake = self.client.wake().filter(|_| !self.client.done()).map(|wake| (wake.0 * 1000).max(BEGIN_NS));
        frames.into_iter().chain([wake]).flatten().min()
    }

    fn step(&mut self, function: &mut Function) {
        let now = function.now.0;
        while let Some((_, frame)) = self.to_guest.pop_front_if(|(at, _)| *at <= now) {
            function.give(frame);
        }
        while let Some((_, frame)) = self.to_client.pop_front_if(|(at, _)| *at <= now) {
            if now >= BEGIN_NS {
                self.client.frame(frame);
            }
        }
        if now >= BEGIN_NS {
            let frames = self.client.run(GuestTime(now / 1000));
            self.to_guest.extend(frames.into_iter().map(|frame| (now + LATENCY_NS, frame)));
        }
    }
}

struct Guest(Child);

impl Drop for Guest {
    fn drop(&mut self) {
        let _ended = (self.0.kill(), self.0.wait());
    }
}

fn start(linux: &Path, initrd: &Path, folder: &Path, word: Option<String>) -> Result<Guest, Failure> {
    let console = File::create(folder.join("console"))?;
    let mut command = Command::new(linux);
    command.args(["seccomp=on", "mem=128M", "con=null", "ssl=null", "stderr=1", "norandmaps", "panic=-1"]);
    command.arg(format!("initrd={}", initrd.display())).arg(format!("uml_dir={}/", folder.display()));
    command.arg("umid=guest").arg(format!("time-travel=ext:1:{}/time", folder.display())).args(word);
    command.env_clear().env("TMPDIR", "/dev/shm").stdin(Stdio::null());
    command.stdout(console.try_clone()?).stderr(console);
    Ok(Guest(command.spawn()?))
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    let _none = std::fs::remove_file(path);
    UnixListener::bind(path)
}

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [linux, initrd, transcript, rest @ ..] = words.as_slice() else {
        return Err("replayed_kernel LINUX INITRD TRANSCRIPT [ADAPTER] [BYTES] [SEED]".into());
    };
    let adapter = rest.first().map_or("e1000e", String::as_str);
    let bytes = rest.get(1).map_or(Ok(100_000), |text| text.parse())?;
    let seed = rest.get(2).map_or(Ok(1), |text| text.parse())?;
    // Its path is in the guest's messages.
    let folder = std::env::temp_dir().join("replayed-kernel");
    std::fs::create_dir_all(&folder)?;
    let (time, device) = (listen(&folder.join("time"))?, listen(&folder.join("device"))?);
    let transcript = Transcript(BufWriter::new(File::create(transcript)?));
    let has_adapter = adapter != "none";
    let mut function = Function::new(if has_adapter { adapter } else { "e1000e" }, transcript)?;
    let device_word = has_adapter.then(|| format!("vfio_user.device={}/device", folder.display()));
    let guest = start(linux.as_ref(), initrd.as_ref(), &folder, device_word)?;
    let (stream, _) = time.accept()?;
    let mut calendar = Calendar {
        stream,
        sequence: 0,
        request: None,
        waits: false,
        expects: false,
        expects_request: false,
        messages: 0,
    };
    let client = help::Client::new(help::Task::Echo { bytes, ahead: 16 << 10 }, seed);
    let mut outside = Outside { client, to_guest: Default::default(), to_client: Default::default() };
    let mut session: Option<Session> = None;
    loop {
        let mut fds = vec![PollFd::new(&calendar.stream, PollFlags::IN), PollFd::new(&device, PollFlags::IN)];
        fds.extend(session.iter().map(|session| PollFd::from_borrowed_fd(session.as_fd(), PollFlags::IN)));
        // A guest that waits, and whose next step is known, has nothing to say.
        let must_wait = !calendar.waits || calendar.expects;
        let limit = match must_wait {
            true => Duration::from_secs(10),
            false if calendar.expects_request => Duration::from_millis(100),
            false => Duration::ZERO,
        };
        let limit = Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: limit.subsec_nanos().into() };
        let ready = poll(&mut fds, Some(&limit))?;
        let [time_ready, device_ready] = [0, 1].map(|index| !fds[index].revents().is_empty());
        let session_ready = fds.get(2).is_some_and(|fd| !fd.revents().is_empty());
        drop(fds);
        if ready == 0 && must_wait {
            return Err(format!("the guest stands still at {} ns", function.now.0).into());
        }
        if device_ready {
            session = Some(Session::new(device.accept()?.0.into()));
        }
        if session_ready && let Some(open) = &mut session {
            while open.receive(&mut function)?.more {}
        }
        if time_ready {
            let mut now = function.now;
            if !calendar.hear(&mut now, &mut function.transcript)? {
                break;
            }
            function.now = now;
        }
        let sent = function.take();
        outside.to_client.extend(sent.into_iter().map(|frame| (function.now.0 + LATENCY_NS, frame)));
        if time_ready || device_ready || session_ready || !calendar.waits || calendar.expects {
            continue;
        }
        // The guest waits. Whatever is due first happens: what comes from outside goes before the guest.
        let request = calendar.request.unwrap_or(u64::MAX);
        let due = [outside.due(), function.wake()].into_iter().flatten().min().unwrap_or(u64::MAX);
        if outside.client.done() || request.min(due) > END_NS {
            break;
        }
        if due <= request {
            let raised = function.raised();
            function.now.0 = function.now.0.max(due);
            function.settle();
            outside.step(&mut function);
            calendar.expects = function.raised() > raised;
        } else {
            function.now.0 = function.now.0.max(request);
            calendar.run_guest(function.now)?;
        }
    }
    drop(guest);
    function.transcript.0.flush()?;
    let (answered, broken) = (outside.client.answered(), outside.client.broken.as_deref().unwrap_or("nothing"));
    println!(
        "{} ns, {} messages of the calendar, {answered} bytes answered, broken: {broken}",
        function.now.0, calendar.messages
    );
    Ok(())
}
