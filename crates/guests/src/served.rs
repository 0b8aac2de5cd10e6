//! Nicety's daemon as a person starts it, `nicety serve FILE`, in a private network: host file, sockets, counters.

use std::{
    fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf, absolute},
    process::Command,
    time::{Duration, Instant},
};

use nicety_adapters::Entry;
use serde::Deserialize;

use super::{
    error::{Error, file, tail},
    guest::Machine,
    namespace::{Namespace, Process},
    processor::process_time,
    qemu::entered,
};
use crate::folder::Folder;

/// How long it may take until its sockets are there, and until it ends.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How often they are looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A port to be served.
#[derive(Debug, Clone)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its adapter.
    pub entry: &'static Entry,
    /// Its address.
    pub mac: String,
    /// More lines of its table in the host file (`rom = "..."`).
    pub more: String,
}

impl Port {
    /// A port of this adapter.
    pub fn new(name: &str, entry: &'static Entry, mac: &str) -> Port {
        Port { name: name.into(), entry, mac: mac.into(), more: String::new() }
    }
}

/// How the daemon's switch reaches further than its ports.
#[derive(Debug, Clone)]
pub enum Link {
    /// A tap of this name.
    Tap(String),
    /// A stream socket to another daemon, at this path; one end listens, the other connects.
    Stream {
        /// Where it is.
        socket: String,
        /// Whether this end listens.
        listens: bool,
    },
}

impl Link {
    fn section(&self) -> String {
        let lines = match self {
            Link::Tap(name) => format!("kind = \"tap\"\nname = \"{name}\""),
            Link::Stream { socket, listens } => {
                let role = if *listens { "listen" } else { "connect" };
                format!("kind = \"stream\"\nsocket = \"{socket}\"\nrole = \"{role}\"")
            }
        };
        format!("\n[uplink]\n{lines}\n")
    }
}

/// How a daemon is started, besides its ports.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// Its uplink, if it has one.
    pub link: Option<Link>,
    /// More words after `serve FILE`.
    pub options: Vec<String>,
    /// Words before the program, such as those that bind it to a processor.
    pub before: Vec<String>,
}

/// A running daemon, ended by [`Served::stop`] or with its namespace.
#[derive(Debug)]
pub struct Served {
    folder: Folder,
    program: PathBuf,
    setup: Setup,
    ports: Vec<Port>,
    process: Process,
}

/// What the daemon has counted at the guests' ports together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames on the wire, both directions.
    pub frames: u64,
    /// Register reads.
    pub reads: u64,
    /// Register writes.
    pub writes: u64,
    /// Interrupts.
    pub interrupts: u64,
}

impl Counts {
    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Counts) -> Counts {
        Counts {
            frames: self.frames.saturating_sub(earlier.frames),
            reads: self.reads.saturating_sub(earlier.reads),
            writes: self.writes.saturating_sub(earlier.writes),
            interrupts: self.interrupts.saturating_sub(earlier.interrupts),
        }
    }

    /// These and those of another daemon.
    #[must_use]
    pub fn and(self, other: Counts) -> Counts {
        Counts {
            frames: self.frames.saturating_add(other.frames),
            reads: self.reads.saturating_add(other.reads),
            writes: self.writes.saturating_add(other.writes),
            interrupts: self.interrupts.saturating_add(other.interrupts),
        }
    }
}

/// The host file of these ports, with sockets in its own folder.
fn host_file(ports: &[Port], link: Option<&Link>) -> String {
    let mut text = "[switch]\nname = \"lab\"\n\n[daemon]\ncontrol = \"control.sock\"\nlisted = false\n".to_owned();
    text.extend(link.map(Link::section));
    for Port { name, entry, mac, more } in ports {
        let adapter = entry.about.name;
        text.push_str(&format!(
            "\n[[port]]\nname = \"{name}\"\nadapter = \"{adapter}\"\nmac = \"{mac}\"\nsocket = \"{name}.sock\"\n{more}"
        ));
    }
    text
}

impl Served {
    /// Starts `program serve FILE` with these ports and, if named, this tap as the uplink; its sockets are there when this
    /// returns.
    ///
    /// # Errors
    /// [`Error::Daemon`] with what it said.
    pub fn start(
        program: &Path,
        namespace: &mut Namespace,
        ports: Vec<Port>,
        uplink: Option<&str>,
    ) -> Result<Served, Error> {
        Served::start_with(program, namespace, ports, uplink, &[])
    }

    /// Like [`Served::start`], with more words after `serve FILE`.
    ///
    /// # Errors
    /// Those of [`Served::start`].
    pub fn start_with(
        program: &Path,
        namespace: &mut Namespace,
        ports: Vec<Port>,
        uplink: Option<&str>,
        options: &[&str],
    ) -> Result<Served, Error> {
        let link = uplink.map(|tap| Link::Tap(tap.to_owned()));
        let options = options.iter().map(|&word| word.to_owned()).collect();
        Served::start_as(program, namespace, ports, Setup { link, options, before: Vec::new() })
    }

    /// Like [`Served::start`], as `setup` says.
    ///
    /// # Errors
    /// Those of [`Served::start`].
    pub fn start_as(
        program: &Path,
        namespace: &mut Namespace,
        ports: Vec<Port>,
        setup: Setup,
    ) -> Result<Served, Error> {
        // The namespace's working directory is another one.
        let program = absolute(program).map_err(file("find", program))?;
        let folder = Folder::new()?;
        folder.write("host.toml", host_file(&ports, setup.link.as_ref()))?;
        let process = launch(&program, namespace, &folder, &setup)?;
        let served = Served { folder, program, setup, ports, process };
        served.wait_ready()?;
        Ok(served)
    }

    fn wait_ready(&self) -> Result<(), Error> {
        let end = Instant::now() + TIMEOUT;
        while !self.serves() {
            let why = if !self.process.runs() {
                "it ended".to_owned()
            } else if Instant::now() > end {
                format!("its ports were not open within {TIMEOUT:?}")
            } else {
                std::thread::sleep(LOOK_AGAIN);
                continue;
            };
            return Err(Error::Daemon { why, said: self.log() });
        }
        Ok(())
    }

    /// Whether it tells of every port: it does when it has made the port's socket. A file alone may be of one that was killed, and the
    /// control socket answers before there are ports.
    fn serves(&self) -> bool {
        let answer = self.ask().and_then(|answer| serde_json::from_str::<Answer>(&answer).ok());
        answer
            .is_some_and(|answer| self.ports.iter().all(|port| answer.ports.iter().any(|told| told.name == port.name)))
    }

    /// Attaches a guest to the port of this name, by the transport that its adapter has.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn attach<M: Machine>(&self, machine: M, name: &str) -> M {
        let port = self.ports.iter().find(|port| port.name == name);
        let port = port.unwrap_or_else(|| panic!("the lab asks for a port {name} that it has not opened"));
        let socket = self.folder.join(&format!("{name}.sock"));
        if port.entry.about.transports.contains(&"vfio-user") {
            machine.vfio_user(&socket)
        } else {
            machine.vhost_user(&socket, &port.mac)
        }
    }

    /// A socket of its folder: `control.sock`, or a port's.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What it has counted, if it answers.
    pub fn counts(&self) -> Option<Counts> {
        Counts::of(&self.ask()?)
    }

    /// What its control socket says of the ports: JSON, by `GET /v1/ports`.
    pub fn ask(&self) -> Option<String> {
        let mut stream = UnixStream::connect(self.socket("control.sock")).ok()?;
        stream.set_read_timeout(Some(TIMEOUT)).ok()?;
        stream.write_all(b"GET /v1/ports HTTP/1.1\r\nHost: nicety\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.starts_with("HTTP/1.1 200 ").then(|| body.to_owned())
    }

    /// The end of what it has logged.
    pub fn log(&self) -> String {
        tail(&fs::read_to_string(self.folder.path().join("log")).unwrap_or_default(), 40)
    }

    /// The processor time that it has used.
    pub fn cpu_time(&self) -> Duration {
        process_time(self.process.host)
    }

    /// Its number as the host knows it.
    pub fn process(&self) -> u32 {
        self.process.host
    }

    /// Ends it as a person does, with SIGTERM.
    ///
    /// # Errors
    /// [`Error::Run`] if it does not end.
    pub fn stop(self, namespace: &mut Namespace) -> Result<(), Error> {
        namespace.signal(self.process, "TERM", TIMEOUT)
    }

    /// Kills it without a chance to clean up, and starts it again.
    ///
    /// # Errors
    /// Those of [`Served::start`].
    pub fn kill_and_restart(&mut self, namespace: &mut Namespace) -> Result<(), Error> {
        self.kill(namespace)?;
        self.restart(namespace)
    }

    /// Starts it again, after [`Served::kill`].
    ///
    /// # Errors
    /// Those of [`Served::start`].
    pub fn restart(&mut self, namespace: &mut Namespace) -> Result<(), Error> {
        self.process = launch(&self.program, namespace, &self.folder, &self.setup)?;
        self.wait_ready()
    }

    /// Has it stand still, as one whose host swaps or whose debugger holds it, until [`Served::go_on`].
    ///
    /// # Errors
    /// [`Error::Run`].
    pub fn stand_still(&mut self, namespace: &mut Namespace) -> Result<(), Error> {
        namespace.tell(self.process, "STOP")
    }

    /// Ends what [`Served::stand_still`] began.
    ///
    /// # Errors
    /// [`Error::Run`].
    pub fn go_on(&mut self, namespace: &mut Namespace) -> Result<(), Error> {
        namespace.tell(self.process, "CONT")
    }

    /// Kills it without a chance to clean up.
    ///
    /// # Errors
    /// [`Error::Run`].
    pub fn kill(&mut self, namespace: &mut Namespace) -> Result<(), Error> {
        namespace.signal(self.process, "KILL", TIMEOUT)
    }
}

fn launch(program: &Path, namespace: &mut Namespace, folder: &Folder, setup: &Setup) -> Result<Process, Error> {
    let mut command = Command::new(program);
    command.arg("serve").arg(folder.path().join("host.toml")).args(&setup.options);
    let mut command = entered(&setup.before, command);
    command.env("NO_COLOR", "1");
    namespace.start(&command, &folder.path().join("log"))
}

/// What is read of the daemon's answer; the rest is not our matter.
#[derive(Deserialize)]
struct Answer {
    ports: Vec<PortAnswer>,
}

#[derive(Deserialize)]
struct PortAnswer {
    name: String,
    adapter: Option<String>,
    transmit: Vec<QueueAnswer>,
    receive: Vec<QueueAnswer>,
    interrupts: u64,
    register_reads: u64,
    register_writes: u64,
}

#[derive(Deserialize)]
struct QueueAnswer {
    frames: u64,
}

impl Counts {
    fn of(answer: &str) -> Option<Counts> {
        let answer: Answer = serde_json::from_str(answer).ok()?;
        let mut counts = Counts::default();
        for port in answer.ports.iter().filter(|port| port.adapter.is_some()) {
            counts.frames += port.transmit.iter().chain(&port.receive).map(|queue| queue.frames).sum::<u64>();
            counts.reads += port.register_reads;
            counts.writes += port.register_writes;
            counts.interrupts += port.interrupts;
        }
        Some(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guests_ports_are_summed_and_the_uplink_is_left_out() {
        let answer = r#"{"host":"/h","ports":[
            {"name":"uplink","adapter":null,"transmit":[{"queue":0,"packets":9,"frames":900,"bytes":1}],"receive":[],
             "interrupts":0,"register_reads":0,"register_writes":0},
            {"name":"left","adapter":"e1000","transmit":[{"queue":0,"packets":1,"frames":44,"bytes":1}],
             "receive":[{"queue":0,"packets":1,"frames":2,"bytes":1}],"interrupts":3,"register_reads":4,"register_writes":5}]}"#;
        let counts = Counts::of(answer);
        assert_eq!(counts, Some(Counts { frames: 46, reads: 4, writes: 5, interrupts: 3 }));
    }

    #[test]
    fn an_answer_that_is_none_counts_nothing() {
        assert_eq!(Counts::of(r#"{"type":"about:blank","title":"Not Found","status":404}"#), None);
    }

    #[test]
    fn the_host_file_names_uplink_and_ports() {
        let entry = nicety_adapters::find("e1000").expect("it is registered");
        let mut port = Port::new("left", entry, "52:54:00:00:00:01");
        port.more = "rom = \"/rom\"\n".into();
        let stream = Link::Stream { socket: "/up.sock".into(), listens: false };
        let text = host_file(std::slice::from_ref(&port), Some(&stream));
        assert!(text.contains("[uplink]\nkind = \"stream\"\nsocket = \"/up.sock\"\nrole = \"connect\"\n"), "{text}");
        let text = host_file(&[port], Some(&Link::Tap("n0".into())));
        assert!(text.contains("[uplink]\nkind = \"tap\"\nname = \"n0\"\n"), "{text}");
        assert!(text.ends_with(
            "[[port]]\nname = \"left\"\nadapter = \"e1000\"\nmac = \"52:54:00:00:00:01\"\nsocket = \"left.sock\"\nrom = \"/rom\"\n"
        ));
    }
}
