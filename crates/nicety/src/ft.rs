//! `nicety ft`: one of the two hosts of an embedded guest that survives either of them (docs/fault-tolerance.md). One thread has the tap, the
//! link to the other host and the guest; another one asks the third party.

mod control;
mod figures;
mod network;
mod pace;

use std::collections::{BTreeSet, VecDeque};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nicety_adapter::Time;
use nicety_etcd::{Endpoint, Identity, Pem, Scheme, User};
use nicety_host::{ListenAddress, PeerAddress};
use nicety_lease::{Asker, LeaseFile, LeaseInEtcd, NodeId, Request, Storage, ThirdParty};
use nicety_names::{Addresses, Names};
use nicety_sealed::{Listener, Place, Stream};
use nicety_tolerance::channel::PROTOCOL;
use nicety_tolerance::node::End;
use nicety_tolerance::{Action, Key, Message, Node, Replica, Role, Settings, Terms};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

use serde_json::json;

use crate::cli::{Ft, FtCommand, FtPart, FtStart, LeasePlace};
use crate::exit::{Exit, Failure};
use crate::output;
use control::{Control, Word};
use figures::Figures;
use network::Network;
use pace::Pace;

/// Shortest key, in bytes.
const KEY_MIN: usize = 16;
/// Longest wait. After it the lease's file is looked at, and the secondary tries to connect again.
const LOOK: Duration = Duration::from_millis(50);
/// Longest wait for the last answer of the third party.
const RELEASE: Duration = Duration::from_millis(500);
/// Most connections of which nothing authentic has come, and the time that each has for it.
const PENDING: usize = 64;
const PATIENCE: Duration = Duration::from_secs(1);
/// Most complaints between two states.
const COMPLAINTS: usize = 64;
/// Time limit to connect. The secondary has nothing else to do meanwhile.
const CONNECT: Duration = Duration::from_millis(200);

/// Runs the command.
pub fn run(Ft { command }: &Ft) -> Result<(), Failure> {
    match command {
        FtCommand::Start(args) => Host::new(args)?.run(),
        FtCommand::Status { control, json } => control::status(control, *json),
        FtCommand::Failover { control } => control::ask(control, "failover").map(drop),
        FtCommand::Stop { control } => control::ask(control, "stop").map(drop),
    }
}

/// The connection to the other host. What is lost with it is sent again on the next one.
type Link = nicety_sealed::Link<Message>;

struct Host {
    begun: Timespec,
    key: Key,
    /// Digests of what must be equal on both hosts: the program, and all that the guest follows from.
    build: u64,
    settings: u64,
    listener: Listener,
    link: Option<Link>,
    /// Those who have connected, when, and have sent nothing authentic yet.
    pending: VecDeque<(Link, Instant)>,
    /// Where the other host listens.
    peer: Option<Addresses<Place>>,
    names: Names,
    lease: Asker,
    /// The number of the request that gives the lease back.
    release: Option<u32>,
    network: Network,
    node: Node<Replica>,
    control: Option<Control>,
    figures: Figures,
    pace: Pace,
    /// The last line printed.
    said: String,
    /// Complaints since then.
    complaints: BTreeSet<String>,
}

/// Random bytes of the kernel.
fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map(|()| bytes).map_err(|error| Failure::new(Exit::Missing, format!("/dev/urandom: {error}")))
}

fn key(path: &Path) -> Result<Key, Failure> {
    let usage = |why: String| Failure::new(Exit::Usage, format!("{}: {why}", path.display()));
    let bytes = std::fs::read(path).map_err(|error| usage(error.to_string()))?;
    if let Some(warning) = nicety_host::open_key(path) {
        output::tell(format_args!("warning: {warning}"));
    }
    if bytes.len() < KEY_MIN {
        return Err(usage(format!("a key has at least {KEY_MIN} bytes: head -c 32 /dev/urandom > {}", path.display())));
    }
    Ok(Key::new(&bytes))
}

/// Whether both hosts are on one machine, as far as their addresses say so.
fn is_on_this_machine(args: &FtStart) -> bool {
    let listens_here = match &args.listen {
        ListenAddress::Address(address) => address.ip().is_loopback(),
        ListenAddress::Unix(_) => true,
    };
    let peer_is_here = match &args.peer {
        Some(PeerAddress::Address(address)) => address.ip().is_loopback(),
        Some(PeerAddress::Name { host, .. }) => host == "localhost",
        Some(PeerAddress::Unix(_)) | None => true,
    };
    listens_here && peer_is_here
}

/// The user of etcd. Its password's file may end with a line feed.
fn user(args: &FtStart) -> Result<Option<User>, Failure> {
    let (Some(name), Some(path)) = (&args.etcd_user, &args.etcd_password) else { return Ok(None) };
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| Failure::new(Exit::Usage, format!("{}: {error}", path.display())))?;
    let password = text.strip_suffix('\n').unwrap_or(&text).to_owned();
    Ok(Some(User { name: name.clone(), password }))
}

/// How etcd is asked, by all that the command line says.
fn etcd(args: &FtStart, servers: &[Endpoint]) -> Result<nicety_etcd::Settings, Failure> {
    let read = |path: &Path| Pem::read(path).map_err(Failure::with(Exit::Usage));
    let mut settings = nicety_etcd::Settings::new(servers.to_vec());
    if let Some(path) = &args.etcd_ca {
        settings.ca = Some(read(path)?);
        settings.endpoints.iter_mut().for_each(|endpoint| endpoint.scheme = Scheme::Https);
    }
    if let (Some(certificates), Some(key)) = (&args.etcd_certificate, &args.etcd_key) {
        settings.identity = Some(Identity { certificates: read(certificates)?, key: read(key)? });
    }
    settings.user = user(args)?;
    Ok(settings)
}

impl Host {
    fn new(args: &FtStart) -> Result<Self, Failure> {
        let key = key(&args.key)?;
        let settings = Settings {
            adapter: args.adapter.clone(),
            mac: args.mac,
            address: args.address,
            gateway: args.gateway.map(|gateway| gateway.octets()),
            application: args.application.into(),
            port: args.port,
            seed: key.number("the seed of the guest"),
        };
        let all = format!("{settings:?}");
        let failed = Failure::with::<nicety_tolerance::ReplicaError>(Exit::Usage);
        let replica = Replica::new(&settings).map_err(failed)?;
        let listener = Listener::alone(&match &args.listen {
            ListenAddress::Address(address) => Place::Tcp(*address),
            ListenAddress::Unix(path) => Place::Unix(path.clone()),
        });
        let listener = listener.map_err(|error| Failure::new(Exit::Failed, format!("{}: {error}", args.listen)))?;
        let terms = Terms::default();
        let begun = clock_gettime(ClockId::Boottime);
        let id = NodeId(u64::from_le_bytes(random()?));
        let term = Duration::from_nanos(terms.lease_ns);
        let names = Names::start().map_err(Failure::with(Exit::Failed))?;
        let party: Box<dyn ThirdParty> = match &args.lease {
            LeasePlace::File(path) => Box::new(LeaseFile::new(path, term, id)),
            LeasePlace::Etcd { servers, key } => {
                let etcd = LeaseInEtcd::new(etcd(args, servers)?, names.clone(), key, term, id);
                Box::new(etcd.map_err(Failure::with(Exit::Usage))?)
            }
        };
        if let LeasePlace::File(path) = &args.lease {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let is_alone = is_on_this_machine(args);
            let warning = Storage::of(folder).and_then(|storage| storage.warning(is_alone));
            if let Some(warning) = warning {
                output::tell(format_args!("nicety: ft: the lease {}: {warning}", path.display()));
            }
        }
        let lease = Asker::start(party, LOOK).map_err(Failure::with(Exit::Failed))?;
        let network = Network::open(&args.tap).map_err(Failure::with(Exit::Missing))?;
        let node = match args.role {
            FtPart::Primary => Node::primary(id, replica, terms, Time::ZERO),
            FtPart::Secondary => Node::secondary(id, replica, terms, Time::ZERO),
        };
        // Another build may behave differently.
        let build = key.number(&format!("build {}", nicety_version::BUILD));
        let (settings, link, pending) = (key.number(&all), None, VecDeque::new());
        let peer = args.peer.as_ref().map(|peer| Addresses::of(peer.at()));
        let (said, complaints) = (String::new(), BTreeSet::new());
        let listens = |path: &Path| {
            Control::listen(path).map_err(|error| Failure::new(Exit::Failed, format!("{}: {error}", path.display())))
        };
        let (control, figures) = (args.control.as_deref().map(listens).transpose()?, Figures::new(Instant::now()));
        Ok(Self {
            begun,
            key,
            build,
            settings,
            listener,
            link,
            pending,
            peer,
            names,
            lease,
            release: None,
            network,
            node,
            control,
            figures,
            pace: Pace::of(&terms),
            said,
            complaints,
        })
    }

    /// Tells what is wrong with the other host, once in each state.
    fn complain(&mut self, error: &impl std::fmt::Display) {
        self.complain_of("the other host", error);
    }

    fn complain_of(&mut self, whom: &str, error: &impl std::fmt::Display) {
        let line = format!("nicety: ft: {whom}: {error}");
        if self.complaints.len() < COMPLAINTS && self.complaints.insert(line.clone()) {
            output::tell(&line);
        }
    }

    /// Time since the start, with that in which the machine was suspended: a lease runs out meanwhile.
    fn now(&self) -> Time {
        let elapsed = clock_gettime(ClockId::Boottime) - self.begun;
        let elapsed = Duration::try_from(elapsed).unwrap_or_default();
        Time(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    fn run(&mut self) -> Result<(), Failure> {
        loop {
            self.wait()?;
            let mut actions = Vec::new();
            self.connect()?;
            self.hear(&mut actions);
            self.obey(&mut actions);
            self.take_frames();
            self.hear_third_party();
            self.node.step(self.now(), &mut actions);
            self.carry_out(actions)?;
            self.measure();
            self.say()?;
            match self.node.role() {
                Role::Out(End::HandedOver | End::Stopped) => {
                    // Answers to what it asked before come first.
                    while self.release.is_some()
                        && let Some((number, answer)) = self.lease.wait(RELEASE)
                    {
                        if self.release == Some(number) {
                            self.release = None;
                            if let Err(error) = answer {
                                self.complain_of("the lease, which was not given back", &error);
                            }
                        }
                    }
                    return Ok(());
                }
                Role::Out(end) => return Err(Failure::new(Exit::Failed, format!("ft: {end}"))),
                _ => {}
            }
        }
    }

    /// Does what somebody asks for at the control socket.
    fn obey(&mut self, actions: &mut Vec<Action>) {
        while let Some((client, word)) = self.control.as_mut().and_then(Control::take) {
            let answer = word.and_then(|word| match word {
                Word::Status => {
                    let now = Instant::now();
                    let lease = self.node.lease_until().map(|until| until.since(self.now()));
                    Ok(self.figures.json(&self.node.status(), lease, now))
                }
                Word::Failover if self.node.hand_over(self.now(), actions) => Ok(json!({})),
                Word::Failover => Err("this is no primary with a secondary that can take over".to_owned()),
                Word::Stop => {
                    self.node.stop();
                    Ok(json!({}))
                }
            });
            control::answer(client, answer);
        }
    }

    fn measure(&mut self) {
        let now = Instant::now();
        if let Some(change) = self.pace.look(&self.node.status(), now) {
            output::tell(format_args!("nicety: ft: the secondary: {change}"));
        }
        let traffic = self.link.as_mut().map(Link::take_traffic).unwrap_or_default();
        self.figures.add_traffic(traffic, now);
        self.figures.look(&self.node.status(), now);
    }

    /// Waits until something is due.
    fn wait(&mut self) -> Result<(), Failure> {
        let due = self.node.due().map_or(LOOK, |due| due.since(self.now())).min(LOOK);
        let due = if self.network.has_frames() && self.wants_frames() { Duration::ZERO } else { due };
        let mut fds = vec![PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN)];
        fds.push(PollFd::from_borrowed_fd(self.lease.as_fd(), PollFlags::IN));
        for link in self.link.iter().chain(self.pending.iter().map(|(link, _)| link)) {
            fds.push(PollFd::from_borrowed_fd(link.as_fd(), link.events()));
        }
        fds.extend(self.control.iter().flat_map(Control::fds).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        if self.wants_frames() {
            let tap: BorrowedFd<'_> = self.network.as_fd();
            fds.push(PollFd::from_borrowed_fd(tap, PollFlags::IN));
        }
        let timeout = Timespec { tv_sec: due.as_secs().cast_signed(), tv_nsec: due.subsec_nanos().into() };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(Failure::new(Exit::Failed, format!("waiting: {errno}"))),
        }
    }

    /// A primary without room leaves frames in the tap. Any other host throws them away.
    fn wants_frames(&self) -> bool {
        *self.node.role() != Role::Primary || self.node.has_room()
    }

    fn connect(&mut self) -> Result<(), Failure> {
        for _ in 0..PENDING {
            let Ok((stream, _)) = self.listener.accept() else { break };
            // The oldest has had the most time to say something.
            if self.pending.len() == PENDING {
                self.pending.pop_front();
            }
            let link = self.begin(stream)?;
            self.pending.extend(link.map(|link| (link, Instant::now())));
        }
        let (None, Role::Secondary, Some(peer)) = (&self.link, self.node.role(), &mut self.peer) else { return Ok(()) };
        let connected = match peer.next(&self.names, Instant::now()) {
            Ok(None) => return Ok(()),
            Ok(Some(address)) => {
                Stream::connect_within(&address, CONNECT).map_err(|error| format!("{}: {error}", peer.at(&address)))
            }
            Err(why) => Err(why),
        };
        match connected {
            Ok(stream) => {
                self.link = self.begin(stream)?;
                self.node.relinked();
            }
            Err(why) => self.complain(&why),
        }
        Ok(())
    }

    fn begin(&mut self, stream: Stream) -> Result<Option<Link>, Failure> {
        let hello = self.key.hello(PROTOCOL, self.build, self.settings, random()?);
        let link = Link::new(stream, hello);
        Ok(link.inspect_err(|error| self.complain(error)).ok())
    }

    fn hear(&mut self, actions: &mut Vec<Action>) {
        let mut messages = Vec::new();
        for (mut pending, since) in std::mem::take(&mut self.pending) {
            let mut first = Vec::new();
            let heard = pending.read(&self.key, &mut first).and_then(|()| pending.flush());
            match heard {
                Err(error) => self.complain(&error),
                Ok(()) if first.is_empty() && since.elapsed() < PATIENCE => self.pending.push_back((pending, since)),
                Ok(()) if first.is_empty() => self.complain(&"somebody has connected and says nothing"),
                // Only who has the key takes the place of the peer: an older connection is dead, or will be made again.
                Ok(()) => {
                    self.link = Some(pending);
                    self.node.relinked();
                    messages = first;
                }
            }
        }
        if let Some(link) = &mut self.link
            && let Err(error) = link.read(&self.key, &mut messages)
        {
            self.complain(&error);
            self.link = None;
        }
        for message in messages {
            self.node.receive(message, self.now(), actions);
        }
    }

    fn hear_third_party(&mut self) {
        while let Some((number, answer)) = self.lease.answer() {
            match answer {
                Ok(answer) => self.node.answered(number, answer, self.now()),
                // As if it had not answered: the lease runs out.
                Err(error) => self.complain_of("the lease", &error),
            }
        }
    }

    fn take_frames(&mut self) {
        if self.wants_frames() {
            self.network.turn();
        }
        while self.wants_frames()
            && let Some(frame) = self.network.receive()
        {
            // All that have come are logged in one message, and acknowledged together.
            let _taken = self.node.offer(frame, self.now());
        }
    }

    fn carry_out(&mut self, actions: Vec<Action>) -> Result<(), Failure> {
        let mut emits = false;
        for action in actions {
            match action {
                Action::Send(message) => {
                    if let Some(link) = &mut self.link {
                        link.send(&message);
                    }
                }
                Action::Emit(frame) => {
                    // The clock again, right before the frame leaves: this process may have stood still.
                    if self.node.owns(self.now()) {
                        self.network.send(frame);
                        emits = true;
                    }
                }
                Action::Ask(number, request) => {
                    if request == Request::Release {
                        self.release = Some(number);
                    }
                    self.lease.ask(number, request);
                }
            }
        }
        if emits {
            self.network.turn();
        }
        if let Some(link) = &mut self.link
            && let Err(error) = link.flush()
        {
            self.complain(&error);
            self.link = None;
        }
        Ok(())
    }

    /// Tells each change of the host's part, a line each.
    fn say(&mut self) -> Result<(), Failure> {
        let status = self.node.status();
        let line = match status.role {
            Role::Founding => "waits for the lease".to_owned(),
            Role::Primary if status.is_protected => format!("primary, protected, epoch {}", status.epoch),
            Role::Primary => format!("primary, not protected, epoch {}", status.epoch),
            Role::Secondary if status.epoch == 0 => "secondary, has not heard the primary".to_owned(),
            Role::Secondary => format!("secondary, epoch {}", status.epoch),
            Role::Out(_) => return Ok(()),
        };
        if line != self.said {
            output::print(&format!("{line}\n"))?;
            self.said = line;
            self.complaints.clear();
        }
        Ok(())
    }
}
