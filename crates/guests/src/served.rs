//! Nicety's daemon, started as a person would (`nicety serve FILE`) in a private network: host file, sockets, counters.

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
    command::entered,
    error::{Error, file, tail},
    guest::Machine,
    namespace::{Namespace, Process},
    processor::process_time,
};
use crate::folder::Folder;

/// Time limit for the daemon's sockets to appear, and for its end.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two checks for the sockets.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A port that the daemon serves.
#[derive(Debug, Clone)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its adapter.
    pub entry: &'static Entry,
    /// Its MAC address.
    pub mac: String,
    /// Additional lines of its table in the host file (`rom = "..."`).
    pub more: String,
}

impl Port {
    /// A port of this adapter.
    pub fn new(name: &str, entry: &'static Entry, mac: &str) -> Port {
        Port { name: name.into(), entry, mac: mac.into(), more: String::new() }
    }
}

/// Uplink of the daemon's switch.
#[derive(Debug, Clone)]
pub enum Link {
    /// A tap of this name.
    Tap(String),
    /// A stream socket to another daemon, at this path; one end listens, the other connects.
    Stream {
        /// Path of the socket.
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

/// Settings of a daemon besides its ports.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// The uplink, if it has one.
    pub link: Option<Link>,
    /// Additional lines of the uplink's section (`rate = "100Mbit/s"`).
    pub link_more: String,
    /// Additional lines of the daemon's section (`workers = 2`).
    pub daemon_more: String,
    /// Additional arguments after `serve FILE`.
    pub options: Vec<String>,
    /// Command prefix, for example one that binds the daemon to a processor.
    pub before: Vec<String>,
}

/// A running daemon. [`Served::stop`] or the end of its namespace ends it.
#[derive(Debug)]
pub struct Served {
    folder: Folder,
    program: PathBuf,
    setup: Setup,
    ports: Vec<Port>,
    process: Process,
}

/// The daemon's counts, summed over the guests' ports.
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
    /// The counts since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Counts) -> Counts {
        Counts {
            frames: self.frames.saturating_sub(earlier.frames),
            reads: self.reads.saturating_sub(earlier.reads),
            writes: self.writes.saturating_sub(earlier.writes),
            interrupts: self.interrupts.saturating_sub(earlier.interrupts),
        }
    }

    /// The sum of these counts and another daemon's.
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

/// The host file of these ports. Sockets are in its own folder.
fn host_file(ports: &[Port], setup: &Setup) -> String {
    let mut text = "[switch]\nname = \"lab\"\n\n[daemon]\ncontrol = \"control.sock\"\nlisted = false\n".to_owned();
    text += &setup.daemon_more;
    text.extend(setup.link.as_ref().map(|link| link.section() + &setup.link_more));
    for Port { name, entry, mac, more } in ports {
        let adapter = entry.about.name;
        text.push_str(&format!(
            "\n[[port]]\nname = \"{name}\"\nadapter = \"{adapter}\"\nmac = \"{mac}\"\nsocket = \"{name}.sock\"\n{more}"
        ));
    }
    text
}

impl Served {
    /// Starts `program serve FILE` with these ports, and with this tap as the uplink, if one is named. Its sockets exist when this
    /// returns.
    ///
    /// # Errors
    /// [`Error::Daemon`] with the end of its log.
    pub fn start(
        program: &Path,
        namespace: &mut Namespace,
        ports: Vec<Port>,
        uplink: Option<&str>,
    ) -> Result<Served, Error> {
        Served::start_with(program, namespace, ports, uplink, &[])
    }

    /// Like [`Served::start`], with additional arguments after `serve FILE`.
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
        Served::start_as(program, namespace, ports, Setup { link, options, ..Setup::default() })
    }

    /// Like [`Served::start`], with the settings of `setup`.
    ///
    /// # Errors
    /// Those of [`Served::start`].
    pub fn start_as(
        program: &Path,
        namespace: &mut Namespace,
        ports: Vec<Port>,
        setup: Setup,
    ) -> Result<Served, Error> {
        // The namespace has another working directory.
        let program = absolute(program).map_err(file("find", program))?;
        let folder = Folder::new()?;
        folder.write("host.toml", host_file(&ports, &setup))?;
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
                std::thread::sleep(POLL_INTERVAL);
                continue;
            };
            return Err(Error::Daemon { why, said: self.log() });
        }
        Ok(())
    }

    /// Whether the daemon lists every port, which means that it has made the port's socket. A socket file alone may belong to a killed
    /// daemon, and the control socket answers before there are ports.
    fn serves(&self) -> bool {
        let answer = self.ask().and_then(|answer| serde_json::from_str::<Answer>(&answer).ok());
        answer
            .is_some_and(|answer| self.ports.iter().all(|port| answer.ports.iter().any(|have| have.name == port.name)))
    }

    /// Attaches a guest to the port of this name, by the transport of its adapter.
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

    /// The counts, if the daemon answers.
    pub fn counts(&self) -> Option<Counts> {
        Counts::of(&self.ask()?)
    }

    /// The control socket's answer to `GET /v1/ports`: JSON.
    pub fn ask(&self) -> Option<String> {
        Served::ask_at(&self.socket("control.sock"))
    }

    /// The same, of the daemon with this control socket.
    pub fn ask_at(socket: &Path) -> Option<String> {
        Served::get_at(socket, "/v1/ports")
    }

    fn get_at(socket: &Path, path: &str) -> Option<String> {
        let mut stream = UnixStream::connect(socket).ok()?;
        stream.set_read_timeout(Some(TIMEOUT)).ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: nicety\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.starts_with("HTTP/1.1 200 ").then(|| body.to_owned())
    }

    /// The control socket's answer to a `GET` of this path: JSON.
    pub fn get(&self, path: &str) -> Option<String> {
        Served::get_at(&self.socket("control.sock"), path)
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        tail(&fs::read_to_string(self.folder.path().join("log")).unwrap_or_default(), 40)
    }

    /// Processor time that it has used.
    pub fn cpu_time(&self) -> Duration {
        process_time(self.process.host)
    }

    /// Its process ID on the host.
    pub fn process(&self) -> u32 {
        self.process.host
    }

    /// Stops the daemon with SIGTERM, as a person would.
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

    /// Starts the daemon again after [`Served::kill`].
    ///
    /// # Errors
    /// Those of [`Served::start`].
    pub fn restart(&mut self, namespace: &mut Namespace) -> Result<(), Error> {
        self.process = launch(&self.program, namespace, &self.folder, &self.setup)?;
        self.wait_ready()
    }

    /// Stops the daemon's execution until [`Served::go_on`], as a swapping host or a debugger would.
    ///
    /// # Errors
    /// [`Error::Run`].
    pub fn stand_still(&mut self, namespace: &mut Namespace) -> Result<(), Error> {
        namespace.tell(self.process, "STOP")
    }

    /// Resumes the daemon after [`Served::stand_still`].
    ///
    /// # Errors
    /// [`Error::Run`].
    pub fn go_on(&mut self, namespace: &mut Namespace) -> Result<(), Error> {
        namespace.tell(self.process, "CONT")
    }

    /// Kills the daemon without a chance to clean up.
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

/// The fields of the daemon's answer that are used here.
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
        let setup = |link: Link, more: &str| Setup { link: Some(link), link_more: more.to_owned(), ..Setup::default() };
        let text = host_file(std::slice::from_ref(&port), &setup(stream, ""));
        assert!(text.contains("[uplink]\nkind = \"stream\"\nsocket = \"/up.sock\"\nrole = \"connect\"\n"), "{text}");
        let text = host_file(&[port], &setup(Link::Tap("n0".into()), "rate = \"100Mbit/s\"\n"));
        assert!(text.contains("[uplink]\nkind = \"tap\"\nname = \"n0\"\nrate = \"100Mbit/s\"\n"), "{text}");
        assert!(text.ends_with(
            "[[port]]\nname = \"left\"\nadapter = \"e1000\"\nmac = \"52:54:00:00:00:01\"\nsocket = \"left.sock\"\nrom = \"/rom\"\n"
        ));
    }
}
