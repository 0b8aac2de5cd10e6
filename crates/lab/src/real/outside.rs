//! One user-mode guest, and a peer outside the switch: programs in a network namespace, behind the daemon's tap uplink, which may be paced.
//!
//! ```text
//!  guest ── adapter ── daemon's switch ── uplink, paced ── tap ── namespace: scp, netperf
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use nicety_guests::{
    Error, Folder, Guest, Layer, Link, Machine, Namespace, Port, Process, Root, Served, Setup, Tap, Uio,
    uml::{UmlConfig, UmlKernel},
};

mod several;

pub use several::Several;

use super::bench::take;
use crate::method::Driver;
use crate::methods::Subject;

/// The guest's address.
pub const GUEST: &str = "10.9.5.1";
/// The address outside.
pub const OUTSIDE: &str = "10.9.5.254";
const MAC: &str = "52:54:00:4e:05:01";
/// The daemon's uplink, and the guest's interface under a user-space driver.
const UPLINK: &str = "n0";
const TAP: &str = "v0";
/// Time limit of what takes no time itself.
const SLACK: Duration = Duration::from_secs(30);
/// Interval between two looks at a running program.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The kind of guest, and the network outside.
#[derive(Debug)]
pub struct Outside {
    root: Root,
    kernel: UmlKernel,
    namespace: Namespace,
    program: PathBuf,
    programs: Option<(Layer, &'static [&'static str])>,
    memory_mib: u32,
    uio: Result<Uio, String>,
    folder: Folder,
    logs: u32,
}

/// A running guest with its daemon. Ends by [`Outside::end`].
#[derive(Debug)]
pub struct Lone {
    /// The guest.
    pub guest: Guest,
    /// Its interface.
    pub interface: &'static str,
    served: Served,
}

impl Lone {
    /// Processor time of the guest and its daemon.
    pub fn cpu_time(&self) -> Duration {
        self.guest.cpu_time() + self.served.cpu_time()
    }
}

impl Outside {
    /// Lays user-mode guests of this memory, with `programs` (files of a layer) at their own paths in each, and makes the network
    /// outside.
    ///
    /// # Errors
    /// Those of [`Root::lay`], [`UmlKernel::lay`] and [`Namespace::open`]; each names its remedy.
    pub fn open(
        program: &Path,
        memory_mib: u32,
        programs: Option<(Layer, &'static [&'static str])>,
        say: &mut dyn FnMut(&str),
    ) -> Result<Outside, Error> {
        let root = Root::lay(say)?;
        let kernel = UmlKernel::lay(say)?;
        let mut namespace = Namespace::open(&root)?;
        namespace.tap(UPLINK, Some(&format!("{OUTSIDE}/24")))?;
        let uio = Uio::beside(program).map_err(|error| error.to_string());
        let (program, folder) = (program.to_owned(), Folder::new()?);
        Ok(Outside { root, kernel, namespace, program, programs, memory_mib, uio, folder, logs: 0 })
    }

    /// The private root.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// A folder for files of the programs outside.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Boots a subject's guest behind an uplink of this rate (`100Mbit/s`).
    ///
    /// # Errors
    /// Those of [`Guest::boot`] and of the daemon, with the last lines of console or log.
    pub fn boot(&mut self, subject: &Subject, rate: &str, stop: &AtomicBool) -> Result<Lone, Error> {
        let adapter = &subject.adapter;
        let missing = || Error::Daemon { why: format!("there is no adapter {adapter}"), said: String::new() };
        let entry = nicety_adapters::find(adapter).ok_or_else(missing)?;
        let mut port = Port::new("guest", entry, MAC);
        if entry.about.transports.contains(&"vhost-user") {
            // A user-mode kernel sets up all pairs that the device offers, and uses as many as it has processors.
            port.more += "queues = 1\n";
        }
        let setup = Setup {
            link: Some(Link::Tap(UPLINK.to_owned())),
            link_more: format!("rate = \"{rate}\"\n"),
            ..Setup::default()
        };
        let served = Served::start_as(&self.program, &mut self.namespace, vec![port], setup)?;
        match self.boot_guest(&served, subject.driver, stop) {
            Ok((guest, interface)) => Ok(Lone { guest, interface, served }),
            Err(error) => {
                // A running daemon would keep the tap from the next one. An error of stopping it has the same cause.
                let _ = served.stop(&mut self.namespace);
                Err(error)
            }
        }
    }

    fn boot_guest(
        &self,
        served: &Served,
        driver: Option<Driver>,
        stop: &AtomicBool,
    ) -> Result<(Guest, &'static str), Error> {
        let (address, interface) = (format!("{GUEST}/24"), if driver.is_some() { TAP } else { "eth0" });
        let mut machine = UmlConfig { memory_mib: self.memory_mib, ..UmlConfig::new(&self.kernel) };
        if driver.is_none() {
            machine = machine.address(interface, &address);
        }
        let mut guest = Guest::start(&self.root, served.attach(machine, "guest"))?;
        guest.wait_ready_unless(stop)?;
        if let Some((layer, files)) = &self.programs {
            take(&mut guest, layer, files, stop)?;
        }
        if driver.is_some() {
            let missing = |said| Error::Run { doing: "driving an adapter from user space".to_owned(), said };
            let uio = self.uio.clone().map_err(missing)?;
            uio.in_user_mode(&mut guest, stop)?;
            let function = Uio::hand_over(&mut guest, 1, stop)?;
            Uio::start(&mut guest, &function, Tap { name: TAP, mac: MAC, address: &address }, stop)?;
        }
        let ping = format!("/usr/bin/ping -n -q -c 1 -W 5 {OUTSIDE}");
        guest.succeed_unless(&ping, SLACK, stop)?;
        Ok((guest, interface))
    }

    /// Ends the guest, then its daemon.
    ///
    /// # Errors
    /// The daemon does not end.
    pub fn end(&mut self, lone: Lone) -> Result<(), Error> {
        let Lone { guest, served, .. } = lone;
        drop(guest);
        served.stop(&mut self.namespace)
    }

    /// Starts a server outside. It ends with this.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn serve(&mut self, command: &Command) -> Result<Process, Error> {
        self.namespace.start(command, Path::new("/dev/null"))
    }

    /// Runs a program outside, and returns its output and duration. `watch` is called at short intervals; its error ends the program.
    ///
    /// # Errors
    /// It does not end within `limit`, `watch` objects, or `stop` became true.
    pub fn run(
        &mut self,
        command: &Command,
        limit: Duration,
        stop: &AtomicBool,
        watch: &mut dyn FnMut(Duration) -> Result<(), String>,
    ) -> Result<(String, Duration), Error> {
        self.logs += 1;
        let log = self.folder.path().join(format!("log{}", self.logs));
        let begin = Instant::now();
        let process = self.namespace.start(command, &log)?;
        let failed = |why: String| {
            let doing = format!("`{}` outside", command.get_program().display());
            Error::Run { doing, said: format!("{why}\n{}", fs::read_to_string(&log).unwrap_or_default()) }
        };
        let mut objection = None;
        while process.runs() {
            objection = if stop.load(Ordering::Relaxed) {
                Some(Error::Stopped)
            } else if begin.elapsed() > limit {
                Some(failed(format!("no end within {limit:?}")))
            } else {
                watch(begin.elapsed()).err().map(failed)
            };
            if objection.is_some() {
                break;
            }
            thread::sleep(POLL_INTERVAL);
        }
        let elapsed = begin.elapsed();
        if let Some(error) = objection {
            self.namespace.signal(process, "KILL", SLACK)?;
            return Err(error);
        }
        let said = fs::read_to_string(&log).unwrap_or_default();
        // A file that cannot be removed goes with the folder.
        let _ = fs::remove_file(&log);
        Ok((said, elapsed))
    }

    /// Facts for the report.
    pub fn notes(&self) -> Vec<String> {
        vec![
            format!(
                "Guests: kernel {} built as a user-mode program (UML) from Debian's {}, unmodified drivers, one processor, {} MiB, booted \
                 afresh for each row of each round. Their instructions run at the host's own speed; a system call in them takes 7 to 50 µs: \
                 compare adapters with each other.",
                self.kernel.release(),
                self.kernel.source(),
                self.memory_mib
            ),
            "The peer outside is a network namespace of the host, behind the daemon's uplink (a tap), which is paced to the link's rate \
             in both directions."
                .to_owned(),
            "CPU time is that of the guest's processes and of the daemon.".to_owned(),
        ]
    }
}
