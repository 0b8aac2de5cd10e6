//! A daemon, a guest at each of its ports, and a peer at the far end of its uplink, if it has one.
//!
//! ```text
//! guest 0 ── port 0 ┐
//! guest 1 ── port 1 ├ switch ── uplink (pair) ── peer
//! crowd ──── more ──┘
//! ```
//!
//! A crowd is one process at many ports. Its drivers are up, receive packets and do nothing else.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nicety_guests::{Folder, FolderError};
use rustix::process::{Pid, Signal, kill_process};

use super::child::{GuestProcess, reap};
use super::cpu;
use super::program::{EXEC, GUEST, Program};
use super::words::{Answer, Attach, Compared, Counts, Offered, Order, Shape};
use crate::bench::BenchError;
use crate::method::Doorbells;
use crate::rate::Rate;
use crate::series::Sampler;
use crate::spent::Spent;
use crate::windows::Windows;

/// Time limit for a guest to attach, and to answer beyond the duration of its order.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for the rest of a stream that is compared. A guest gives up one that stands, and this one that comes in drops.
const COMPARED: Duration = Duration::from_secs(300);
const CONTROL: &str = "control.sock";
const UPLINK: &str = "uplink.sock";
const LOG: &str = "daemon.log";
/// Time limit for a crowd to attach to one port.
const TIMEOUT_EACH: Duration = Duration::from_millis(200);
/// Maximum number of guests. Their addresses are 10.77.0.1 upwards, the peer's is 10.77.0.254.
const GUESTS: usize = 253;

/// A station that takes part in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// The guest at this port.
    Guest(u8),
    /// The process at all of the crowd's ports.
    Crowd,
    /// The peer at the far end of the uplink.
    Peer,
}

impl Party {
    fn address(self) -> [u8; 4] {
        match self {
            Party::Guest(number) => [10, 77, 0, number + 1],
            Party::Crowd => [10, 77, 1, 1],
            Party::Peer => [10, 77, 0, 254],
        }
    }

    fn mac(self) -> [u8; 6] {
        let [.., net, host] = self.address();
        [0x52, 0x54, 0, 0x77, net, host]
    }
}

/// A port that the daemon serves.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its adapter.
    pub adapter: String,
    /// The doorbell mode; none: the adapter's default.
    pub doorbells: Option<Doorbells>,
    /// Its VLAN; none: that of all ports without one.
    pub vlan: Option<u16>,
}

impl Place {
    /// A port with this adapter and its default settings.
    pub fn new(adapter: &str) -> Place {
        Place { adapter: adapter.to_owned(), doorbells: None, vlan: None }
    }
}

/// Guests, crowd and uplink of a rig.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// Ports with one guest each.
    pub guests: Vec<Place>,
    /// Ports that share one process.
    pub crowd: Vec<Place>,
    /// Whether there is an uplink, with a peer at its end.
    pub uplink: bool,
    /// The uplink's rate, if it has one.
    pub rate: Option<Rate>,
    /// Further lines of the uplink's section in the host file, and sections behind it. The uplink is `pair`, the guests `p0` upwards.
    pub uplink_more: String,
    /// Further tables of the host file: ports without a guest of the rig's.
    pub more: String,
    /// One worker serves all ports, and polls all the time.
    pub always_polls: bool,
}

/// Bulk transfers of one station.
#[derive(Clone, Debug)]
pub struct Flow {
    /// The sender.
    pub from: Party,
    /// The receivers. One that is there several times gets so many times the streams.
    pub to: Vec<Party>,
    /// Streams to each, writes and buffers.
    pub shape: Shape,
    /// Most bytes a second, of all streams together.
    pub bytes_a_second: Option<u64>,
}

impl Layout {
    /// The ports in the order of their names, `p0` upwards: guests first.
    fn places(&self) -> impl Iterator<Item = (String, &Place)> {
        self.guests.iter().chain(&self.crowd).enumerate().map(|(number, place)| (format!("p{number}"), place))
    }
}

/// A daemon with its guests (see the module's page). Fields are dropped in their order: guests, then the daemon, then its folder.
pub struct Rig {
    guests: Vec<GuestProcess>,
    crowd: Option<GuestProcess>,
    peer: Option<GuestProcess>,
    /// Stands for all of them, without a daemon.
    native: Option<GuestProcess>,
    daemon: Option<Daemon>,
    folder: Folder,
}

impl std::fmt::Debug for Rig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rig").field("pids", &self.pids()).finish_non_exhaustive()
    }
}

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            // The daemon may have ended by itself.
            let _ended = kill_process(pid, Signal::TERM);
        }
        reap(&mut self.0);
    }
}

fn host_file(folder: &Folder, layout: &Layout) -> String {
    let quoted = |name: &str| format!("{:?}", folder.join(name));
    let mut text = format!("[switch]\nname = \"lab\"\n\n[daemon]\ncontrol = {}\nlisted = false\n", quoted(CONTROL));
    if layout.always_polls {
        text += "workers = 1\nbusy_poll = \"always\"\n";
    }
    text += "\n";
    if layout.uplink {
        text += &format!("[uplink]\nkind = \"pair\"\nsocket = {}\n", quoted(UPLINK));
        text.extend(layout.rate.map(|rate| format!("rate = \"{rate}\"\n")));
        text = text + &layout.uplink_more + "\n";
    }
    for (number, (name, place)) in layout.places().enumerate() {
        // The last byte distinguishes guests' addresses; the crowd's differ in the byte before as well.
        let [low, high] = (number as u16 + 1).to_le_bytes();
        let high = if number < layout.guests.len() { 0 } else { high + 1 };
        let socket = quoted(&format!("{name}.sock"));
        text += &format!("[[port]]\nname = \"{name}\"\nadapter = \"{}\"\nsocket = {socket}\n", place.adapter);
        text += &format!("mac = \"52:54:00:77:{high:02x}:{low:02x}\"\n");
        if let Some(doorbells) = place.doorbells {
            text += &format!("doorbells = \"{doorbells}\"\n");
        }
        text.extend(place.vlan.map(|vlan| format!("vlan = {vlan}\n")));
    }
    text + &layout.more
}

fn start_daemon(program: &Program, host_file: &Path, log: File) -> Result<Daemon, BenchError> {
    let fatal = |error: std::io::Error| BenchError::Fatal(format!("starting the daemon: {error}"));
    let mut command = program.hidden(EXEC);
    command.arg(std::process::id().to_string()).arg(&program.path).args(&program.serve).arg(host_file);
    let output = log.try_clone().map_err(fatal)?;
    let child = command.stdin(Stdio::null()).stdout(output).stderr(log).process_group(0).spawn();
    Ok(Daemon(child.map_err(fatal)?))
}

impl Rig {
    /// Starts daemon, peer and guests, and waits until all are attached.
    pub fn start(program: &Program, layout: &Layout, cancel: &AtomicBool) -> Result<Rig, BenchError> {
        if layout.guests.len() > GUESTS {
            return Err(BenchError::Fatal(format!(
                "there are addresses for {GUESTS} guests; let a crowd have the rest"
            )));
        }
        let fatal = |error: FolderError| BenchError::Fatal(error.to_string());
        let folder = Folder::new().map_err(fatal)?;
        let path = folder.write("host.toml", host_file(&folder, layout)).map_err(fatal)?;
        let daemon = start_daemon(program, &path, folder.create(LOG).map_err(fatal)?)?;
        let start = |name: &str| GuestProcess::start(name, program.hidden(GUEST));
        let guests = layout.guests.iter().enumerate();
        let guests = guests.map(|(number, place)| start(&format!("{}: guest {number}", place.adapter)));
        let mut rig = Rig {
            guests: guests.collect::<Result<_, _>>()?,
            crowd: (!layout.crowd.is_empty()).then(|| start("the crowd")).transpose()?,
            peer: layout.uplink.then(|| start("peer")).transpose()?,
            native: None,
            daemon: Some(daemon),
            folder,
        };
        let attached = rig.attach(layout, cancel);
        attached.map_err(|error| rig.explained(error))?;
        Ok(rig)
    }

    /// The same loads without a virtual machine: every station is one process, over a link of this rate (see the module `native`).
    /// Up to four stations may send at once.
    ///
    /// # Errors
    /// [`BenchError::Impossible`]: the system allows no network namespaces; the message names the remedy.
    pub fn natively(program: &Program, rate: Option<Rate>, cancel: &AtomicBool) -> Result<Rig, BenchError> {
        let folder = Folder::new().map_err(|error| BenchError::Fatal(error.to_string()))?;
        let mut process = GuestProcess::start("the native row", program.hidden(GUEST))?;
        process.send_order(&Order::Natively { mbit: rate.map(|rate| rate.mbit) })?;
        let ready = process.expect(TIMEOUT, cancel, |answer| matches!(answer, Answer::Ready).then_some(()));
        ready.map_err(|error| match error {
            BenchError::Failed(why) => BenchError::Impossible(why),
            other => other,
        })?;
        let (guests, native) = (Vec::new(), Some(process));
        Ok(Rig { guests, crowd: None, peer: None, native, daemon: None, folder })
    }

    fn attach(&mut self, layout: &Layout, cancel: &AtomicBool) -> Result<(), BenchError> {
        let uplink = Attach::Pair { socket: self.folder.path().join(UPLINK), mac: Party::Peer.mac() };
        let folder = &self.folder;
        let mut sockets =
            layout.places().map(|(name, place)| attach_to(&place.adapter, folder.path().join(format!("{name}.sock"))));
        for (guest, number) in self.guests.iter_mut().zip(0..) {
            let Some(attach) = sockets.next() else { break };
            guest.send_order(&Order::Configure { attach, address: Party::Guest(number).address() })?;
        }
        let crowd: Vec<Attach> = sockets.collect();
        let timeout = TIMEOUT + TIMEOUT_EACH * u32::try_from(crowd.len()).unwrap_or(u32::MAX);
        if let Some(process) = &mut self.crowd {
            process.send_order(&Order::Crowd { attach: crowd })?;
        }
        if let Some(peer) = &mut self.peer {
            peer.send_order(&Order::Configure { attach: uplink, address: Party::Peer.address() })?;
        }
        let processes = self.guests.iter_mut().chain(&mut self.crowd).chain(&mut self.peer);
        for process in processes {
            process.expect(timeout, cancel, |answer| matches!(answer, Answer::Ready).then_some(()))?;
        }
        Ok(())
    }

    /// Adds the daemon's last log lines to a failure, if there are any.
    fn explained(&self, error: BenchError) -> BenchError {
        let BenchError::Failed(why) = error else { return error };
        let log = self.log();
        let last: Vec<&str> = log.lines().rev().take(3).collect();
        let lines: Vec<&str> = last.into_iter().rev().collect();
        BenchError::Failed(if lines.is_empty() {
            why
        } else {
            format!("{why}; the daemon said: {}", lines.join(" / "))
        })
    }

    fn process(&mut self, party: Party) -> Result<&mut GuestProcess, BenchError> {
        let process = match party {
            _ if self.native.is_some() => self.native.as_mut(),
            Party::Guest(number) => self.guests.get_mut(usize::from(number)),
            Party::Crowd => self.crowd.as_mut(),
            Party::Peer => self.peer.as_mut(),
        };
        process.ok_or_else(|| BenchError::Fatal(format!("there is no {party:?} here")))
    }

    /// Sends an order that takes `duration`, and waits for its answer.
    fn order<T>(
        &mut self,
        party: Party,
        order: &Order,
        duration: Duration,
        cancel: &AtomicBool,
        wanted: impl Fn(Answer) -> Option<T>,
    ) -> Result<T, BenchError> {
        let process = self.process(party)?;
        process.send_order(order)?;
        process.expect(duration + TIMEOUT, cancel, wanted)
    }

    /// Lets a station's discard service take streams of this shape, and count them together.
    pub fn listen(&mut self, to: Party, shape: Shape, cancel: &AtomicBool) -> Result<(), BenchError> {
        self.order(to, &Order::Listen { shape }, Duration::ZERO, cancel, |answer| {
            matches!(answer, Answer::Ready).then_some(())
        })
    }

    /// A bulk TCP transfer of one stream. Returns the bytes received and the time over which they were.
    pub fn send(
        &mut self,
        from: Party,
        to: Party,
        duration: Duration,
        cancel: &AtomicBool,
    ) -> Result<(u64, Duration), BenchError> {
        self.send_shaped(from, to, Shape::default(), duration, cancel)
    }

    /// Like [`Rig::send`], of this shape. For more than one stream, [`Rig::listen`] must come first.
    pub fn send_shaped(
        &mut self,
        from: Party,
        to: Party,
        shape: Shape,
        duration: Duration,
        cancel: &AtomicBool,
    ) -> Result<(u64, Duration), BenchError> {
        let order = Order::Send { to: to.address(), seconds: duration.as_secs_f64(), shape };
        self.order(from, &order, duration, cancel, |answer| matches!(answer, Answer::Sent { .. }).then_some(()))?;
        let arrived = self.counts(to, cancel)?;
        Ok((arrived.discarded_bytes, Duration::from_nanos(arrived.discarded_ns)))
    }

    /// Bulk transfers of several stations at once. Each receiver must listen for its streams.
    pub fn send_all(&mut self, flows: &[Flow], duration: Duration, cancel: &AtomicBool) -> Result<(), BenchError> {
        for Flow { from, to, shape, bytes_a_second } in flows {
            let to = to.iter().map(|party| party.address()).collect();
            let (seconds, shape, bytes_a_second) = (duration.as_secs_f64(), *shape, *bytes_a_second);
            let number = if let Party::Guest(number) = from { *number } else { 0 };
            self.process(*from)?.send_order(&Order::SendEach { to, seconds, shape, bytes_a_second, from: number })?;
        }
        for flow in flows {
            let sent = |answer| matches!(answer, Answer::Sent { .. }).then_some(());
            self.process(flow.from)?.expect(duration + TIMEOUT, cancel, sent)?;
        }
        Ok(())
    }

    /// Bytes in windows of time that a station's discard service received from each of these since this was asked last.
    pub fn windows(&mut self, to: Party, from: &[Party], cancel: &AtomicBool) -> Result<Vec<Windows>, BenchError> {
        let all = self.order(to, &Order::Windows, Duration::ZERO, cancel, |answer| match answer {
            Answer::Windows(windows) => Some(windows),
            _ => None,
        })?;
        let of = |party: &Party| all.iter().find(|(address, _)| *address == party.address()).map(|(_, of)| of.clone());
        Ok(from.iter().map(|party| of(party).unwrap_or_default()).collect())
    }

    /// Exchanges single bytes over TCP. Returns the total time and the time of each exchange, in nanoseconds.
    pub fn transact(
        &mut self,
        from: Party,
        to: Party,
        duration: Duration,
        cancel: &AtomicBool,
    ) -> Result<(u64, Vec<u64>), BenchError> {
        let order = Order::Transact { to: to.address(), seconds: duration.as_secs_f64() };
        self.order(from, &order, duration, cancel, |answer| match answer {
            Answer::Transacted { elapsed_ns, each_ns } => Some((elapsed_ns, each_ns)),
            _ => None,
        })
    }

    /// Orders a guest to send a pattern to another one's echo service for `duration`, at most `bytes_a_second`, and to compare what comes
    /// back. Returns at once.
    pub fn compare(
        &mut self,
        from: Party,
        to: Party,
        bytes_a_second: Option<u64>,
        duration: Duration,
    ) -> Result<(), BenchError> {
        let (to, seconds) = (to.address(), duration.as_secs_f64());
        self.process(from)?.send_order(&Order::Compare { to, seconds, bytes_a_second })
    }

    /// Waits for the end of a comparison of `duration`.
    pub fn compared(&mut self, from: Party, duration: Duration, cancel: &AtomicBool) -> Result<Compared, BenchError> {
        self.process(from)?.expect(duration + COMPARED, cancel, |answer| match answer {
            Answer::Compared(compared) => Some(compared),
            _ => None,
        })
    }

    /// Orders a guest to send broadcast frames of `bytes` for `duration`. Returns at once.
    pub fn flood(&mut self, from: Party, bytes: u16, duration: Duration) -> Result<(), BenchError> {
        self.process(from)?.send_order(&Order::Flood { bytes, seconds: duration.as_secs_f64() })
    }

    /// Orders a guest to send `a_second` broadcast frames of `bytes` every second, one by one. Returns at once. It ends as a flood does.
    pub fn trickle(&mut self, from: Party, bytes: u16, a_second: u32, duration: Duration) -> Result<(), BenchError> {
        self.process(from)?.send_order(&Order::Trickle { bytes, a_second, seconds: duration.as_secs_f64() })
    }

    /// Waits for the end of a flood or trickle of `duration`. Returns the number of frames sent.
    pub fn flooded(&mut self, from: Party, duration: Duration, cancel: &AtomicBool) -> Result<u64, BenchError> {
        self.process(from)?.expect(duration + TIMEOUT, cancel, |answer| match answer {
            Answer::Flooded { frames } => Some(frames),
            _ => None,
        })
    }

    /// Lets a guest read and write registers that have no effect, so often. Returns when all were handled.
    pub fn touch(&mut self, guest: Party, reads: u32, writes: u32, cancel: &AtomicBool) -> Result<(), BenchError> {
        let order = Order::Touch { reads, writes };
        self.order(guest, &order, TIMEOUT, cancel, |answer| matches!(answer, Answer::Touched).then_some(()))
    }

    /// Lets the crowd send frames from its first port to its second, `a_second` every second.
    pub fn offer(
        &mut self,
        wire_bytes: u16,
        a_second: f64,
        duration: Duration,
        cancel: &AtomicBool,
    ) -> Result<Offered, BenchError> {
        self.process(Party::Crowd)?.offer(wire_bytes, a_second, duration, cancel)
    }

    /// The counts of a station.
    pub fn counts(&mut self, party: Party, cancel: &AtomicBool) -> Result<Counts, BenchError> {
        self.order(party, &Order::Report, Duration::ZERO, cancel, |answer| match answer {
            Answer::Counts(counts) => Some(counts),
            _ => None,
        })
    }

    /// Bytes over time that a station received in its latest discarded stream.
    pub fn sampled(&mut self, party: Party, cancel: &AtomicBool) -> Result<Sampler, BenchError> {
        self.order(party, &Order::Series, Duration::ZERO, cancel, |answer| match answer {
            Answer::Series(sampler) => Some(sampler),
            _ => None,
        })
    }

    /// CPU seconds of the daemon so far. None without one.
    pub fn daemon_cpu(&self) -> Option<f64> {
        cpu::seconds_of(self.daemon.as_ref()?.0.id())
    }

    /// Processor time of the daemon and of these parties so far.
    ///
    /// # Errors
    /// A party does not answer.
    pub fn spent(&mut self, parties: &[Party], cancel: &AtomicBool) -> Result<Spent, BenchError> {
        let mut seconds = 0.0;
        for party in parties {
            seconds += self.counts(*party, cancel)?.cpu_seconds;
        }
        let daemon = self.daemon_cpu().map(Duration::from_secs_f64);
        Ok(Spent { vmm: Duration::from_secs_f64(seconds), daemon })
    }

    /// The daemon's control socket.
    pub fn control(&self) -> PathBuf {
        self.folder.path().join(CONTROL)
    }

    /// The socket of a port, by its name.
    pub fn socket(&self, port: &str) -> PathBuf {
        self.folder.path().join(format!("{port}.sock"))
    }

    /// The daemon's log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join(LOG)).unwrap_or_default()
    }

    /// Process IDs of this rig: guests in order, then crowd and peer if there are any, the daemon last.
    pub fn pids(&self) -> Vec<u32> {
        let stations = self.guests.iter().chain(&self.crowd).chain(&self.peer).chain(&self.native);
        stations.map(GuestProcess::pid).chain(self.daemon.as_ref().map(|daemon| daemon.0.id())).collect()
    }
}

fn attach_to(adapter: &str, socket: PathBuf) -> Attach {
    let by_vhost = nicety_adapters::find(adapter).is_some_and(|entry| !entry.about.transports.contains(&"vfio-user"));
    if by_vhost {
        Attach::VhostUser { socket, memory: None }
    } else {
        Attach::VfioUser { driver: adapter.to_owned(), socket, memory: None }
    }
}
