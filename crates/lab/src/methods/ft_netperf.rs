//! `ft-netperf`: document 5's figure 6, a guest that receives and that transmits, with fault tolerance off and on, and the traffic of its log; then
//! its latency-bound case, over links between the hosts of several round-trip times.
//!
//! ```text
//! client ─► frames ─► owner (this thread) ═ log, delayed ═► twin (another thread)
//!        ◄─ gate ◄──┘                       ◄═ acknowledgements, delayed ═
//! ```
//! Both hosts are state machines of [`crate::replay`]. The third party, who says which of them owns the guest, is a lease in memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nicety_adapter::Time;
use nicety_frame::Mac;
use nicety_guests::Error;
use nicety_lease::{Keeper, NodeId};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant as Moment;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr, Ipv4Address};

use super::rig::{Measurement, Run, Stay, rig};
use super::{About, Figure, Length, Load, Method, Opening, Rig, Subject, Table, Taken};
use crate::bench::BenchError;
use crate::method::Guests;
use crate::replay::channel::{Reader, Writer};
use crate::replay::replica::Frames;
use crate::replay::{Action, Application, Host, Replica, Role, Settings, Terms};
use crate::results::Direction;

mod native;

/// Rows: fault tolerance off, or on with a link of this round-trip time in microseconds.
const ROWS: [(&str, Option<u64>); 5] =
    [("off", None), ("on", Some(0)), ("on-100us", Some(100)), ("on-500us", Some(500)), ("on-1ms", Some(1000))];
/// Loads: name, title, the guest's application, the client's work.
const LOADS: [(&str, &str, Application, &str); 3] = [
    (
        "receive",
        "The guest receives",
        Application::Discard,
        "client: writes of 64 KB without a pause; guest: drops them",
    ),
    (
        "transmit",
        "The guest transmits",
        Application::Generate,
        "guest: writes of 4 KB without a pause; client: drops them",
    ),
    (
        "latency-bound",
        "One message in flight",
        Application::Echo,
        "client: a message of 1024 bytes, then the next one when it has come back; guest: sends it back",
    ),
];
const FIGURES: [Figure; 4] = [
    Figure::new("throughput", "Throughput", "Mbit/s", Direction::Higher),
    Figure::new("log_out", "Log traffic to the twin", "Mbit/s", Direction::Lower),
    Figure::new("log_in", "Log traffic from the twin", "Mbit/s", Direction::Lower),
    Figure::new("log_share", "Log to the twin, of the payload", "%", Direction::Lower),
];
/// Bytes of a message of the latency-bound load.
const MESSAGE: usize = 1024;
/// Payload bytes of a measurement at least: a machine that is busy takes longer.
const MIN: u64 = 50_000;
/// Buffer bytes of the client, each way.
const BUFFER: usize = 256 << 10;
/// Time that traffic runs before it is measured.
const SETTLING: Duration = Duration::from_millis(200);
/// Time limit for a session to start: a machine with much else to do takes long to copy the guest.
const SOON: Duration = Duration::from_secs(120);
/// The key of the link's messages, and the names of its directions. Nothing is secret.
const KEY: &[u8] = b"a key of the lab";
const THERE: u8 = 1;
const BACK: u8 = 2;
const GUEST: [u8; 4] = [10, 0, 0, 2];
const PORT: u16 = 7;

/// The method (see the module's page).
#[derive(Debug)]
pub struct FtNetperf;

impl Method for FtNetperf {
    fn about(&self) -> About {
        About {
            name: "ft-netperf",
            document: Some((5, "vSphere 4 Fault Tolerance")),
            line: "a fault-tolerant guest receives, transmits, and has one message in flight: throughput and log traffic, off and on",
            needs: "two processors that nothing else uses",
            guests: &[Guests::Embedded],
            overhead_seconds: 0.5,
            memory_mib: None,
            disk_bytes: 0,
        }
    }

    fn field(&self, _guests: Guests, _length: Length) -> Vec<Subject> {
        let rows = ROWS.iter().map(|(name, _)| Subject { adapter: (*name).to_owned(), server: None, driver: None });
        rows.chain([Subject::native()]).collect()
    }

    fn loads(&self, _guests: Guests, length: Length, seconds: Option<u32>) -> Vec<Load> {
        let seconds = seconds.unwrap_or(match length {
            Length::Quick => 1,
            Length::Usual => 5,
            Length::Full => 60,
        });
        let load = |(name, title, _, commands): &(&str, &str, Application, &str)| Load {
            name: (*name).to_owned(),
            title: (*title).to_owned(),
            seconds,
            commands: commands.split("; ").map(str::to_owned).collect(),
        };
        LOADS.iter().map(load).collect()
    }

    fn figures(&self) -> &'static [Figure] {
        &FIGURES
    }

    fn tables(&self, loads: &[Load]) -> Vec<Table> {
        let tables = [
            ("receive", "throughput", "The document's guest received 890 Mbit/s with fault tolerance on."),
            (
                "receive",
                "log_share",
                "All that is received is logged. The document: 950 Mbit/s of log for 890 received, 107 %, headers of the link included; here they are not.",
            ),
            (
                "transmit",
                "throughput",
                "A frame leaves when the twin has all that precedes it; many are on their way at a time.",
            ),
            ("transmit", "log_out", "Acknowledgements only. The document: 54 Mbit/s."),
            (
                "latency-bound",
                "throughput",
                "Each message waits for a round trip of the log: the document's deliberate worst case, without a figure in its text. Published for whole VMs: HyCoR adds less than 1 ms of delay and 59 % of overhead at most (0.63 of the throughput without it); Remus has about 0.5 of it with 20 checkpoints a second.",
            ),
        ];
        let table = |(name, figure, about): (&str, &'static str, &'static str)| {
            let load = loads.iter().find(|load| load.name == name)?;
            let title = FIGURES.iter().find(|known| known.name == figure).map_or(figure, |known| known.title);
            let bases: &[&str] = if figure == "throughput" { &["off", "on"] } else { &[] };
            Some(Table {
                title: format!("{title}: {}", load.title),
                load: load.name.clone(),
                figure,
                bases,
                document: &[],
                about,
            })
        };
        tables.into_iter().filter_map(table).collect()
    }

    fn open(&self, _opening: Opening<'_>) -> Result<Box<dyn Rig>, Error> {
        Ok(rig(Pair))
    }
}

#[derive(Debug)]
struct Pair;

impl Measurement for Pair {
    type Layout = Application;
    type Guests = ();
    const STAY: Stay = Stay::Study;

    fn layout(load: &str) -> Option<Application> {
        LOADS.iter().find(|(name, ..)| *name == load).map(|(_, _, application, _)| *application)
    }

    fn boot(&mut self, _: &Run<'_, Application>) -> Result<(), BenchError> {
        Ok(())
    }

    fn measure(&mut self, _: &mut (), run: &Run<'_, Application>) -> Result<Taken, BenchError> {
        let row = ROWS.iter().find(|(name, _)| *name == run.subject.adapter);
        let missing = || BenchError::Fatal(format!("there is no row {}", run.subject));
        let (_, round_trip_us) = row.ok_or_else(missing)?;
        let delay = round_trip_us.map(|us| Duration::from_micros(us / 2));
        measure(run.layout, delay, run.duration(), run.stop)
    }

    fn natively(&mut self, run: &Run<'_, Application>) -> Result<Taken, BenchError> {
        native::measure(run.layout, run.duration(), run.stop)
    }

    fn notes(&self) -> Vec<String> {
        vec![
            "The guest is an embedded one: an e1000, its driver, TCP and an application as one deterministic value. Its frames have an MTU of \
             1500, without checksum offload or TSO. The client is smoltcp in the same thread, so both share a processor."
                .to_owned(),
            "Each row's link between the hosts is a channel between two threads, with the row's delay; each message is authenticated. \
             Off: no twin, nothing is logged."
                .to_owned(),
            "native: client and application, each on smoltcp's TCP, hand each other their frames in one thread: no guest, no adapter, no log."
                .to_owned(),
        ]
    }
}

/// Sum of what was counted.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    payload: u64,
    out: u64,
    back: u64,
}

fn measure(
    application: Application,
    delay: Option<Duration>,
    duration: Duration,
    stop: &AtomicBool,
) -> Result<Taken, BenchError> {
    let mut session = Session::start(application, delay)?;
    let end = Instant::now() + SOON;
    while session.client.moved == 0 || (delay.is_some() && !session.owner.status().is_protected) {
        session.turn()?;
        if Instant::now() > end {
            return Err(BenchError::Failed(format!("no session within {SOON:?}: {:?}", session.owner.status())));
        }
    }
    session.pass(SETTLING, stop)?;
    let (before, begun) = (session.counts(), Instant::now());
    session.pass(duration, stop)?;
    let end = Instant::now() + SOON;
    while session.client.moved < before.payload + MIN && Instant::now() < end {
        session.turn()?;
    }
    let (after, seconds) = (session.counts(), begun.elapsed().as_secs_f64());
    let megabits = |bytes: u64| bytes as f64 * 8e-6 / seconds;
    let payload = after.payload - before.payload;
    let mut figures = BTreeMap::from([("throughput".to_owned(), megabits(payload))]);
    if delay.is_some() {
        figures.insert("log_out".to_owned(), megabits(after.out - before.out));
        figures.insert("log_in".to_owned(), megabits(after.back - before.back));
        figures.insert("log_share".to_owned(), (after.out - before.out) as f64 * 100.0 / payload.max(1) as f64);
    }
    Ok(Taken { figures, ..Taken::default() })
}

/// Bytes on a delayed link, with the time of their arrival.
type Flying = (Instant, Vec<u8>);

/// An owner with its client, and a twin.
struct Session {
    begun: Instant,
    owner: Host<Replica>,
    keeper: Keeper,
    client: Client,
    /// Frames that the guest has no room for.
    waiting: VecDeque<Vec<u8>>,
    link: Option<Link>,
    counts: Counts,
}

struct Link {
    delay: Duration,
    writer: Writer,
    reader: Reader,
    out: Option<Sender<Flying>>,
    back: Receiver<Flying>,
    /// Bytes that have not arrived.
    arriving: Option<Flying>,
    twin: Option<JoinHandle<()>>,
}

impl Drop for Link {
    fn drop(&mut self) {
        // The twin ends with its link.
        self.out = None;
        let _ended = self.twin.take().map(JoinHandle::join);
    }
}

/// No host is lost because this machine is busy.
fn terms() -> Terms {
    let (lease, long) = (Duration::from_secs(600), Duration::from_secs(100));
    let protect =
        nicety_protect::Terms { lease, silence: long, patience: long, copy: long, ..Terms::default().protect };
    Terms { protect, ..Terms::default() }
}

fn settings(application: Application) -> Settings {
    Settings {
        adapter: "e1000".to_owned(),
        mac: Mac([0x52, 0x54, 0, 0xf7, 0, 1]),
        address: (GUEST, 24),
        application,
        port: PORT,
        seed: 5,
    }
}

fn guest(application: Application) -> Result<Replica, BenchError> {
    Replica::new(&settings(application)).map_err(|error| BenchError::Failed(error.to_string()))
}

fn since(begun: Instant) -> Time {
    Time(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

impl Session {
    fn start(application: Application, delay: Option<Duration>) -> Result<Self, BenchError> {
        let begun = Instant::now();
        let owner = Host::owner(NodeId(1), guest(application)?, terms());
        let link = delay.map(|delay| Link::start(application, delay, begun)).transpose()?;
        let keeper = Keeper::new(u64::try_from(terms().protect.lease.as_nanos()).unwrap_or(u64::MAX));
        let client = Client::new(application);
        Ok(Self { begun, owner, keeper, client, waiting: VecDeque::new(), link, counts: Counts::default() })
    }

    fn counts(&self) -> Counts {
        Counts { payload: self.client.moved, ..self.counts }
    }

    fn pass(&mut self, duration: Duration, stop: &AtomicBool) -> Result<(), BenchError> {
        let end = Instant::now() + duration;
        while Instant::now() < end {
            if stop.load(Ordering::Relaxed) {
                return Err(BenchError::Cancelled);
            }
            self.turn()?;
        }
        Ok(())
    }

    /// Does what is there to do.
    fn turn(&mut self) -> Result<(), BenchError> {
        let mut actions = Vec::new();
        while let Some(bytes) = self.link.as_mut().and_then(Link::arrived) {
            self.counts.back += bytes.len() as u64;
            let Some(link) = &mut self.link else { break };
            link.reader.push(&bytes);
            while let Some(message) = link.reader.read().map_err(|error| BenchError::Failed(error.to_string()))? {
                self.owner.receive(message, since(self.begun));
            }
        }
        self.waiting.extend(self.client.run(self.begun));
        while self.owner.has_room()
            && let Some(frame) = self.waiting.pop_front()
        {
            let _taken = self.owner.offer(frame, since(self.begun));
        }
        self.owner.step(since(self.begun), &mut actions);
        let is_idle = actions.is_empty();
        for action in actions {
            match action {
                Action::Send(message) => {
                    if let Some(link) = &mut self.link {
                        let mut bytes = Vec::new();
                        link.writer.write(&message, &mut bytes);
                        self.counts.out += bytes.len() as u64;
                        let arrival = Instant::now() + link.delay;
                        let sent = link.out.as_ref().is_some_and(|out| out.send((arrival, bytes)).is_ok());
                        if !sent {
                            return Err(BenchError::Failed("the twin has ended".to_owned()));
                        }
                    }
                }
                Action::Emit(frame) => self.client.link.received.push_back(frame),
                Action::Ask(number, request) => {
                    let now = since(self.begun);
                    let answer = self.keeper.ask(NodeId(1), request, now.0);
                    self.owner.answered(number, Some(answer), now);
                }
            }
        }
        if let Role::Out(end) = self.owner.role() {
            return Err(BenchError::Failed(format!("the owner has ended: {end}")));
        }
        if is_idle && self.client.link.received.is_empty() {
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl Link {
    /// Starts a twin.
    fn start(application: Application, delay: Duration, begun: Instant) -> Result<Self, BenchError> {
        let (writer, reader) = (Writer::new(KEY, THERE), Reader::new(KEY, BACK));
        let theirs = (Writer::new(KEY, BACK), Reader::new(KEY, THERE));
        let (out, heard) = channel();
        let (answer, back) = channel();
        // A guest that cannot be made was refused for the owner.
        let work = move || {
            if let Ok(guest) = guest(application) {
                follow(guest, theirs, &heard, &answer, delay, begun);
            }
        };
        let twin = std::thread::Builder::new().name("twin".to_owned()).spawn(work);
        let twin = twin.map_err(|error| BenchError::Failed(error.to_string()))?;
        Ok(Self { delay, writer, reader, out: Some(out), back, arriving: None, twin: Some(twin) })
    }

    /// The next bytes that have arrived.
    fn arrived(&mut self) -> Option<Vec<u8>> {
        let next = self.arriving.take().or_else(|| self.back.try_recv().ok())?;
        if next.0 > Instant::now() {
            self.arriving = Some(next);
            return None;
        }
        Some(next.1)
    }
}

/// The twin, until the owner hangs up.
fn follow(
    guest: Replica,
    (mut writer, mut reader): (Writer, Reader),
    heard: &Receiver<Flying>,
    answer: &Sender<Flying>,
    delay: Duration,
    begun: Instant,
) {
    let mut twin = Host::twin(NodeId(2), guest, terms());
    loop {
        let mut actions = Vec::new();
        match heard.recv_timeout(Duration::from_millis(5)) {
            Ok((arrival, bytes)) => {
                // A sleep may last 50 µs longer than asked for.
                while arrival > Instant::now() {
                    std::thread::yield_now();
                }
                reader.push(&bytes);
                while let Ok(Some(message)) = reader.read() {
                    twin.receive(message, since(begun));
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        twin.step(since(begun), &mut actions);
        for action in actions {
            if let Action::Send(message) = action {
                let mut bytes = Vec::new();
                writer.write(&message, &mut bytes);
                if answer.send((Instant::now() + delay, bytes)).is_err() {
                    return;
                }
            }
        }
    }
}

fn interface(link: &mut Frames, number: u8, address: [u8; 4]) -> Interface {
    let mut config = Config::new(HardwareAddress::Ethernet(EthernetAddress([2, 0, 0, 0, 0, number])));
    config.random_seed = 7;
    let mut interface = Interface::new(config, link, Moment::ZERO);
    interface.update_ip_addrs(|addresses| {
        // A new interface has room for one address.
        let _added = addresses.push(IpCidr::new(Ipv4Address::from(address).into(), 24));
    });
    interface
}

fn socket() -> Socket<'static> {
    let buffer = || SocketBuffer::new(vec![0; BUFFER]);
    let mut socket = Socket::new(buffer(), buffer());
    socket.set_nagle_enabled(false);
    socket
}

/// The outside: TCP by smoltcp.
struct Client {
    link: Frames,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    application: Application,
    /// Bytes of the message that have not come back.
    due: usize,
    /// Payload bytes that have arrived: at the guest, at the client, or there and back.
    moved: u64,
    written: u64,
}

impl Client {
    fn new(application: Application) -> Self {
        let mut link = Frames::default();
        let mut interface = interface(&mut link, 1, [10, 0, 0, 1]);
        let mut socket = socket();
        // A new socket, and an address that is known.
        let _connecting =
            socket.connect(interface.context(), (IpAddress::from(Ipv4Address::from(GUEST)), PORT), 50_000);
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        Self { link, interface, sockets, handle, application, due: 0, moved: 0, written: 0 }
    }

    /// Runs the client, and takes the frames that it sends.
    fn run(&mut self, begun: Instant) -> Vec<Vec<u8>> {
        let now = Moment::from_micros((since(begun).0 / 1000).cast_signed());
        self.interface.poll(now, &mut self.link, &mut self.sockets);
        if self.step() {
            self.interface.poll(now, &mut self.link, &mut self.sockets);
        }
        std::mem::take(&mut self.link.sent).into()
    }

    fn step(&mut self) -> bool {
        let socket = self.sockets.get_mut::<Socket<'_>>(self.handle);
        let mut read = 0;
        while socket.can_recv()
            && let Ok(len) = socket.recv(|bytes| (bytes.len(), bytes.len()))
        {
            read += len;
        }
        let mut moved = read > 0;
        let piece = [b'.'; 16 << 10];
        match self.application {
            Application::Discard => {
                while socket.can_send()
                    && let Ok(sent @ 1..) = socket.send_slice(&piece)
                {
                    self.written += sent as u64;
                    moved = true;
                }
                self.moved = self.written - socket.send_queue() as u64;
            }
            Application::Echo => {
                self.moved += read as u64;
                self.due = self.due.saturating_sub(read);
                if self.due == 0 && socket.can_send() && socket.send_slice(&piece[..MESSAGE]) == Ok(MESSAGE) {
                    self.due = MESSAGE;
                    moved = true;
                }
            }
            Application::Generate => self.moved += read as u64,
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each round trip of the link costs a message as much, and the log has all that is received and little of what is transmitted.
    #[test]
    fn a_slower_link_costs_messages_in_flight_and_the_log_carries_what_comes_in() {
        let stop = AtomicBool::new(false);
        let run_for = |load: usize, row: usize, ms: u64| {
            let delay = ROWS[row].1.map(|us| Duration::from_micros(us / 2));
            measure(LOADS[load].2, delay, Duration::from_millis(ms), &stop).unwrap().figures
        };
        let run = |load, row| run_for(load, row, 300);
        // Log and payload are counted at slightly different moments: in a longer run that matters less.
        let receive = run_for(0, 1, 1500);
        // Payload of 1460 bytes makes a frame of 1514, and the log is at most 1.02 times of frames.
        assert!((100.0..=106.0).contains(&receive["log_share"]), "{receive:?}");
        let transmit = run(1, 1);
        assert!(transmit["throughput"] > 0.0 && transmit["log_share"] < 8.0, "{transmit:?}");
        let off = run(2, 0);
        assert!(off["throughput"] > 0.0 && !off.contains_key("log_out"), "{off:?}");
        // A message of 1024 bytes takes a millisecond at least: at most 8.2 Mbit/s, however fast the machine is.
        let slow = run(2, 4);
        assert!(slow["throughput"] > 0.0 && slow["throughput"] < 8.3, "{slow:?}");
    }
}
