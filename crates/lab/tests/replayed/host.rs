//! The host of a guest whose boot can be repeated: its calendar and its adapters on one thread. All that follows from a message is done
//! before the message is answered, so that nothing depends on the host's time.

use std::{
    cell::RefCell,
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixListener,
    },
    path::Path,
    process::{Child, Command, Stdio},
    rc::Rc,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use nicety_adapter::{Adapter, Offload, PciFace, PortId, Reset, Set, Time};
use nicety_adapters::{Settings, find};
use nicety_frame::Mac;
use nicety_guests::Folder;
use nicety_memory::{Map, Mapping, Rights};
use nicety_pci::Mode;
use nicety_plane::{
    End, Plane, Port, Shell, Turn,
    wire::{Far, Wire},
};
use nicety_switch::Limits;
use nicety_vfio_user::{
    Change, Device, DmaMap, DmaRange, Errno, Interrupts, IrqInfo, IrqLayout, IrqSet, RegionInfo, Session, SessionError,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    calendar::{Calendar, State},
    outside::{Frames, Outside},
};

const CONFIG_REGION: u32 = 7;
/// BARs come before the ROM.
const BARS: std::ops::Range<u32> = 0..6;
const BUFFER: u32 = 1 << 20;
const ADDRESSES: usize = 1 << 10;
/// Most turns until all ports are idle. More mean an endless loop.
const TURNS: usize = 100_000;
/// The guest sends something within this time, or it has stopped.
const PATIENCE_S: i64 = 60;

/// Something that happened, with its virtual time. Two boots are equal if their events are.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// A message to the calendar: its number, and its time.
    Calendar(u32, u64),
    /// The calendar let the guest run.
    Run,
    /// The guest read a register of an adapter: region, offset, bytes.
    Read(usize, u32, u64, Vec<u8>),
    /// The guest wrote one.
    Write(usize, u32, u64, Vec<u8>),
    /// Another message to an adapter.
    Message(usize, &'static str),
    /// An adapter has interrupted.
    Interrupt(usize, u16),
    /// The guest sent a frame.
    Sent(Vec<u8>),
    /// The guest was sent a frame.
    Received(Vec<u8>),
}

/// A boot: what happened, in order, with the virtual time in nanoseconds, and the console.
#[derive(Debug, Default)]
pub struct Boot {
    pub events: Vec<(u64, Event)>,
    pub console: String,
}

impl Boot {
    pub fn sent(&self) -> Frames {
        let frame = |(time, event): &(u64, Event)| match event {
            Event::Sent(frame) => Some((*time, frame.clone())),
            _ => None,
        };
        self.events.iter().filter_map(frame).collect()
    }

    pub fn received(&self) -> Frames {
        let frame = |(time, event): &(u64, Event)| match event {
            Event::Received(frame) => Some((*time, frame.clone())),
            _ => None,
        };
        self.events.iter().filter_map(frame).collect()
    }

    /// Number of messages of the guest.
    pub fn messages(&self) -> usize {
        let is_message = |event: &Event| {
            matches!(event, Event::Calendar(..) | Event::Read(..) | Event::Write(..) | Event::Message(..))
        };
        self.events.iter().filter(|(_, event)| is_message(event)).count()
    }
}

/// The requests of a port.
#[derive(Debug, Default)]
struct Asked {
    scheduled: bool,
    wake: Option<Time>,
    /// Interrupts that the guest can find.
    raised: Vec<u16>,
}

/// A port's shell: interrupts go to the guest's pipes at once, and all else is noted.
#[derive(Clone)]
struct Notes {
    asked: Arc<Mutex<Asked>>,
    interrupts: Arc<Interrupts>,
    msix: Arc<AtomicBool>,
}

impl Notes {
    fn new(layout: IrqLayout) -> Notes {
        Notes { asked: Arc::default(), interrupts: Arc::new(Interrupts::new(layout)), msix: Arc::default() }
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap()
    }
}

impl Shell for Notes {
    fn messages(&self, mut vectors: Set) {
        while let Some(vector) = vectors.pop() {
            let delivered = match self.msix.load(Ordering::Relaxed) {
                true => self.interrupts.raise_msix(vector),
                false => self.interrupts.raise_msi(vector),
            };
            if delivered {
                self.asked().raised.push(vector);
            }
        }
    }

    fn line(&self, level: bool) {
        if self.interrupts.set_line(level) {
            self.asked().raised.push(u16::MAX);
        }
    }

    fn schedule(&self) {
        self.asked().scheduled = true;
    }

    fn wake_at(&self, time: Time) {
        let mut asked = self.asked();
        asked.wake = Some(asked.wake.map_or(time, |earlier| earlier.min(time)));
    }
}

/// A switch with the guest's adapters and a wire to the outside.
struct World {
    now: u64,
    plane: Plane,
    uplink: Arc<Port>,
    far: Far,
    adapters: Vec<(Arc<Port>, Notes)>,
    turn: Turn,
    outside: Box<dyn Outside>,
    events: Vec<(u64, Event)>,
}

impl World {
    fn note(&mut self, event: Event) {
        self.events.push((self.now, event));
    }

    /// Gives turns until nobody has work at this time, and hands the guest's frames on. True if the guest was interrupted.
    fn settle(&mut self) -> bool {
        let now = Time(self.now);
        self.uplink.ready();
        let mut turns = 0;
        let mut more = true;
        while more {
            more = false;
            turns += 1;
            assert!(turns < TURNS, "somebody never stops");
            for (_, notes) in &self.adapters {
                let mut asked = notes.asked();
                asked.scheduled = false;
                if asked.wake.is_some_and(|at| at <= now) {
                    asked.wake = None;
                }
            }
            let ports = self.adapters.iter().map(|(port, _)| port).chain([&self.uplink]);
            for port in ports {
                loop {
                    let outcome = self.plane.turn(port, &mut self.turn, now);
                    if !outcome.unfinished {
                        more |= outcome.more;
                        break;
                    }
                }
            }
            let is_due = |asked: &Asked| asked.scheduled || asked.wake.is_some_and(|at| at <= now);
            more |= self.adapters.iter().any(|(_, notes)| is_due(&notes.asked()));
        }
        let sent: Vec<_> = self.far.ends().incoming.drain(..).collect();
        for (frame, _) in sent {
            self.outside.sent(self.now, &frame);
            self.note(Event::Sent(frame));
        }
        let mut rung = false;
        for number in 0..self.adapters.len() {
            let raised = std::mem::take(&mut self.adapters[number].1.asked().raised);
            for vector in raised {
                rung = true;
                self.note(Event::Interrupt(number, vector));
            }
        }
        rung
    }

    /// The next time at which an adapter or the outside does something by itself.
    fn next(&mut self) -> u64 {
        let wakes = self.adapters.iter().filter_map(|(_, notes)| notes.asked().wake).map(|Time(ns)| ns);
        wakes.chain(self.outside.next()).min().unwrap_or(u64::MAX)
    }

    /// That time, or a later one, is now. True if the guest was interrupted.
    fn advance(&mut self, now: u64) -> bool {
        self.now = self.now.max(now);
        for frame in self.outside.take(self.now) {
            self.note(Event::Received(frame.clone()));
            self.far.ends().outgoing.push_back((frame, Offload::default()));
        }
        self.settle()
    }
}

/// An adapter behind vfio-user.
struct PortDevice {
    number: usize,
    world: Rc<RefCell<World>>,
    port: Arc<Port>,
    notes: Notes,
    map: Map,
    sizes: [u64; 9],
}

impl PortDevice {
    fn now(&self) -> Time {
        Time(self.world.borrow().now)
    }

    /// All that follows from a message is done.
    fn settled(&self, event: Event) {
        let mut world = self.world.borrow_mut();
        world.note(event);
        // The guest looks for interrupts after each answer.
        world.settle();
    }

    fn mode_changed(&self) {
        if let Some(mode) = self.port.with_pci(self.now(), |pci, _| pci.function().mode()) {
            self.notes.msix.store(mode == Mode::Msix, Ordering::Relaxed);
        }
    }
}

impl Device for PortDevice {
    fn region(&self, index: u32) -> Option<RegionInfo> {
        let size = *self.sizes.get(index as usize)?;
        let mut info = RegionInfo::trapped(size);
        (info.readable, info.writable) = (size > 0, size > 0);
        Some(info)
    }

    fn irq_info(&self, index: u32) -> Option<IrqInfo> {
        self.notes.interrupts.info(index)
    }

    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        match region {
            CONFIG_REGION => self.port.config_read(offset, data, self.now()),
            region if BARS.contains(&region) => self.port.read(region as u8, offset, data, self.now()),
            _ => data.fill(0xff),
        }
        self.settled(Event::Read(self.number, region, offset, data.to_vec()));
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        match region {
            CONFIG_REGION => {
                self.port.config_write(u16::try_from(offset).map_err(|_| Errno::INVAL)?, data, self.now());
                self.mode_changed();
            }
            region if BARS.contains(&region) => _ = self.port.write(region as u8, offset, data, self.now()),
            _ => {}
        }
        self.settled(Event::Write(self.number, region, offset, data.to_vec()));
        Ok(())
    }

    fn dma_map(&mut self, map: DmaMap) -> Result<Change, Errno> {
        let DmaRange { address, size } = map.range;
        let rights = Rights { read: map.protection.read, write: map.protection.write };
        let file = map.fd.ok_or(Errno::INVAL)?;
        let mapping = Mapping::of_file(file, map.offset, size, rights.write).map_err(|_| Errno::INVAL)?;
        self.map = self.map.with(address, Arc::new(mapping), rights).map_err(|_| Errno::INVAL)?;
        self.port.set_memory(Arc::new(self.map.clone()), self.now());
        self.settled(Event::Message(self.number, "map"));
        Ok(Change::Done)
    }

    fn dma_unmap(&mut self, _range: Option<DmaRange>) -> Change {
        self.map = Map::default();
        self.port.set_memory(Arc::new(Map::default()), self.now());
        Change::Done
    }

    fn set_irqs(&mut self, set: IrqSet<'_>) -> Result<(), Errno> {
        let applied = self.notes.interrupts.apply(set);
        self.settled(Event::Message(self.number, "interrupts"));
        applied
    }

    fn reset(&mut self) -> Result<(), Errno> {
        self.port.reset(Reset::Function, self.now());
        self.notes.interrupts.set_line(false);
        self.mode_changed();
        self.settled(Event::Message(self.number, "reset"));
        Ok(())
    }
}

fn size_of(pci: &dyn PciFace, region: u32) -> u64 {
    match region {
        CONFIG_REGION => pci.function().config_size() as u64,
        region if BARS.contains(&region) => pci.function().bar_kind(region as usize).map_or(0, |bar| bar.size),
        _ => 0,
    }
}

fn irq_layout(pci: &dyn PciFace) -> IrqLayout {
    let function = pci.function();
    let mut pin = [0];
    function.config_read(0x3d, &mut pin);
    IrqLayout {
        intx: pin[0] != 0,
        msi: u16::from(function.msi_vectors()),
        msix: function.msix().map_or(0, |msix| msix.vectors()),
        unmask_eventfd: false,
    }
}

/// A connection to be, then one.
struct Slot {
    listener: UnixListener,
    session: Option<Session>,
    device: PortDevice,
}

impl Slot {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.session.as_ref().map_or(self.listener.as_fd(), |session| session.as_fd())
    }

    fn hear(&mut self) -> io::Result<()> {
        let Some(session) = &mut self.session else {
            let (socket, _) = self.listener.accept()?;
            self.session = Some(Session::new(socket.into()));
            return Ok(());
        };
        loop {
            match session.receive(&mut self.device) {
                Ok(progress) if progress.more => {}
                Ok(_) => return Ok(()),
                // The guest has powered off: which of its sockets closes first is the host's affair.
                Err(SessionError::Closed) => {
                    self.session = None;
                    return Ok(());
                }
                Err(error) => return Err(io::Error::other(format!("{error:?}"))),
            }
        }
    }
}

/// A guest's machine.
pub struct Machine<'a> {
    pub kernel: &'a Path,
    pub initramfs: &'a Path,
    pub adapters: &'a [&'a str],
    pub seed: u64,
    /// The boot ends here, if the guest has not ended before, in nanoseconds of its time.
    pub until_ns: u64,
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

/// A guest with its host.
pub struct Host {
    world: Rc<RefCell<World>>,
    calendar: Calendar,
    slots: Vec<Slot>,
    folder: Folder,
    has_ended: bool,
    _child: Ended,
}

impl Host {
    /// Starts a guest. Its time begins at 0, and moves by [`Host::advance`].
    pub fn start(machine: &Machine<'_>, outside: Box<dyn Outside>) -> io::Result<Host> {
        let folder = Folder::new().map_err(io::Error::other)?;
        let plane = Plane::new(Limits { addresses: ADDRESSES, ..Limits::default() });
        let (wire, far) = Wire::new(false).map_err(io::Error::other)?;
        let end = End::link(Box::new(wire));
        let uplink = Port::new(PortId(0), end, Box::new(Notes::new(IrqLayout::default())), BUFFER);
        let uplink = Arc::new(uplink.map_err(io::Error::other)?);
        plane.join(Arc::clone(&uplink)).map_err(io::Error::other)?;
        let (adapters, events) = (Vec::new(), Vec::new());
        let world = World { now: 0, plane, uplink, far, adapters, turn: Turn::new(), outside, events };
        let world = Rc::new(RefCell::new(world));
        let mut slots = Vec::new();
        for (number, name) in machine.adapters.iter().enumerate() {
            slots.push(slot(&world, &folder, number, name)?);
        }
        let listener = UnixListener::bind(folder.path().join("time"))?;
        let child = Ended(spawn(machine, &folder)?);
        let (socket, _) = listener.accept()?;
        let calendar = Calendar::new(socket)?;
        Ok(Host { world, calendar, slots, folder, has_ended: false, _child: child })
    }

    /// Its console so far.
    pub fn console(&self) -> String {
        let bytes = std::fs::read(self.folder.path().join(CONSOLE)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Everything that happened since the last call.
    pub fn take_events(&mut self) -> Vec<(u64, Event)> {
        std::mem::take(&mut self.world.borrow_mut().events)
    }

    /// The next time at which anything happens by itself. `None`: the guest has powered off.
    pub fn next(&mut self) -> Option<u64> {
        match self.calendar.state() {
            _ if self.has_ended => None,
            State::Runs => Some(self.world.borrow().now),
            State::Waits(wanted) => Some(self.world.borrow_mut().next().min(wanted)),
        }
    }

    /// Does all that happens until this time, that time included.
    pub fn advance(&mut self, until_ns: u64) -> io::Result<()> {
        let advanced = self.serve(until_ns);
        advanced.map_err(|error| {
            let events = &self.world.borrow().events;
            io::Error::other(format!("{error}, after {:?} and {}", events.last(), self.console()))
        })
    }

    fn serve(&mut self, until_ns: u64) -> io::Result<()> {
        while !self.has_ended {
            match self.calendar.state() {
                State::Runs => match wait(&self.calendar, &self.slots)?.checked_sub(1) {
                    Some(slot) => self.slots[slot].hear()?,
                    None => {
                        let mut world = self.world.borrow_mut();
                        match self.calendar.hear(world.now)? {
                            Some(message) => world.note(Event::Calendar(message.op, message.time)),
                            None => self.has_ended = true,
                        }
                    }
                },
                State::Waits(wanted) => {
                    let mut world = self.world.borrow_mut();
                    let next = world.next().min(wanted);
                    if next > until_ns {
                        return Ok(());
                    }
                    let rung = world.advance(next);
                    if rung || world.now >= wanted {
                        world.note(Event::Run);
                        self.calendar.run(world.now)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The name of the file with the console's output. A file, because a pipe interrupts when it has room again.
const CONSOLE: &str = "console";

/// Its command line is the same in each boot: the guest can read it.
fn spawn(machine: &Machine<'_>, folder: &Folder) -> io::Result<Child> {
    std::fs::copy(machine.initramfs, folder.path().join("initramfs"))?;
    let mut command = Command::new(machine.kernel);
    command.current_dir(folder.path()).env_clear().env("PATH", "/usr/bin:/bin").env("TMPDIR", "/dev/shm");
    command.args(["time-travel=ext:time", "con=null", "con0=null,fd:1", "ssl=null", "mem=64M", "noreboot", "panic=-1"]);
    command.arg(format!("random_seed={}", machine.seed)).args(["uml_dir=uml/", "umid=guest", "initrd=initramfs"]);
    command.args((0..machine.adapters.len()).map(|number| format!("vfio_user.device=adapter{number}")));
    command.stdin(Stdio::null()).stdout(File::create(folder.path().join(CONSOLE))?).stderr(Stdio::null());
    command.spawn()
}

/// Boots a guest, and runs it until it powers off.
pub fn boot(machine: &Machine<'_>, outside: Box<dyn Outside>) -> io::Result<Boot> {
    let mut host = Host::start(machine, outside)?;
    host.advance(machine.until_ns)?;
    Ok(Boot { events: host.take_events(), console: host.console() })
}

fn slot(world: &Rc<RefCell<World>>, folder: &Folder, number: usize, name: &str) -> io::Result<Slot> {
    let entry = find(name).ok_or_else(|| io::Error::other(format!("no adapter {name}")))?;
    let settings = Settings::new(Mac([0x52, 0x54, 0, 0x12, 0x34, number as u8]));
    let mut adapter: Box<dyn Adapter> = (entry.create)(&settings).map_err(io::Error::other)?;
    let nicety_adapter::Face::Pci(pci) = adapter.face() else {
        return Err(io::Error::other("not a PCI function"));
    };
    let notes = Notes::new(irq_layout(pci));
    let sizes = std::array::from_fn(|region| size_of(pci, region as u32));
    let id = PortId(number as u16 + 1);
    let port = Port::new(id, End::guest(adapter), Box::new(notes.clone()), BUFFER).map_err(io::Error::other)?;
    let port = Arc::new(port);
    let mut own = world.borrow_mut();
    own.plane.join(Arc::clone(&port)).map_err(io::Error::other)?;
    port.attach();
    own.adapters.push((Arc::clone(&port), notes.clone()));
    let listener = UnixListener::bind(folder.path().join(format!("adapter{number}")))?;
    let device = PortDevice { number, world: Rc::clone(world), port, notes, map: Map::default(), sizes };
    Ok(Slot { listener, session: None, device })
}

/// The descriptor that the guest has written to: 0 is the calendar's. The guest waits for each answer, so there is one.
fn wait(calendar: &Calendar, slots: &[Slot]) -> io::Result<usize> {
    let mut polled = vec![PollFd::from_borrowed_fd(calendar.as_fd(), PollFlags::IN)];
    polled.extend(slots.iter().map(|slot| PollFd::from_borrowed_fd(slot.descriptor(), PollFlags::IN)));
    let patience = Timespec { tv_sec: PATIENCE_S, tv_nsec: 0 };
    if poll(&mut polled, Some(&patience))? == 0 {
        return Err(io::Error::other("the guest runs and says nothing"));
    }
    polled.iter().position(|one| !one.revents().is_empty()).ok_or_else(|| io::Error::other("nothing was ready"))
}
