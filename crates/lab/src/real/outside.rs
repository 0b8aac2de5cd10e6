//! One real guest, and a peer outside: programs in a network namespace, behind a link that may be paced.
//!
//! ```text
//! Nicety:  guest ── adapter ── daemon's switch ── uplink, paced ── tap ── namespace: scp, netperf
//! QEMU:    guest ── QEMU's model ── tap ── bridge ── veth, paced by tc ── another namespace: scp, netperf
//! ```

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::AtomicBool,
    time::Duration,
};

use nicety_guests::{
    Accel, DiskConfig, Error, Folder, Guest, GuestConfig, Image, Kernel, Layer, Link, Machine, Namespace, Port, Root,
    Served, Setup, Tap, Uio,
    uml::{Model, UmlConfig, UmlKernel},
};

mod several;

pub use several::{Control, Several, address};

use super::bench::take;
use super::own::{OF_ANY_AGE, Reached, Ssh};
use super::veth::{self, Tc, Veth};
use super::wait::{Outputs, Watch};
use crate::embedded::Program;
use crate::method::{Driver, Guests, Own, Server};
use crate::plan::Plan;
use crate::rate::Rate;
use crate::spent::Spent;
use crate::subject::Subject;

/// The guest's address.
pub const GUEST: &str = "10.9.5.1";
/// The address outside.
pub const OUTSIDE: &str = "10.9.5.254";
const MAC: &str = "52:54:00:4e:05:01";
/// The daemon's uplink.
pub const UPLINK: &str = "n0";
/// The guest's interface under a user-space driver.
const TAP: &str = "v0";
/// The bridge of QEMU's rows, and their tap.
const BRIDGE: &str = "b0";
const BRIDGED: &str = "q0";
/// Time limit of what takes no time itself, in a guest without KVM.
const SLACK: Duration = Duration::from_secs(30);
/// Memory of a guest in QEMU beside what its programs ask for: its kernel and initramfs.
const QEMU_MIB: u32 = 96;
/// Least memory of a person's own guest, in MiB.
const OWN_MIB: u32 = 1024;

/// The processor of a guest.
#[derive(Debug)]
enum Processor {
    UserMode(UmlKernel),
    Qemu(Accel),
    /// A person's own image, in QEMU.
    Own(Accel, Own),
}

/// The kernel of guests in QEMU.
const KERNEL: Kernel = Kernel::V6_12;

/// The kind of guest, and the network outside.
#[derive(Debug)]
pub struct Outside {
    root: Root,
    processor: Processor,
    namespace: Namespace,
    program: PathBuf,
    programs: Option<(Layer, &'static [&'static str])>,
    memory_mib: u32,
    uio: Result<Uio, String>,
    /// The network outside of QEMU's rows.
    bridged: Option<(Veth, Tc)>,
    /// Whether the guest that runs is of such a row.
    is_bridged: bool,
    outputs: Outputs,
}

/// A running guest with its daemon, if one serves it. Ends by [`Outside::end`].
#[derive(Debug)]
pub struct Lone {
    /// The guest.
    pub guest: Reached,
    /// Its interface.
    pub interface: String,
    served: Option<Served>,
}

impl Lone {
    /// Processor time so far.
    pub fn spent(&self) -> Spent {
        Spent { vmm: self.guest.cpu_time(), daemon: self.served.as_ref().map(Served::cpu_time) }
    }
}

/// The rows that can be measured so: an adapter at our own switch, and QEMU's model of it.
pub fn subjects(guests: Guests, adapter: &str) -> Vec<Subject> {
    super::subjects_outside(guests, adapter)
}

/// Settings for guests and the network outside.
#[derive(Debug)]
pub struct Opening<'a> {
    /// The kind of guests.
    pub guests: Guests,
    /// The daemon's program.
    pub program: &'a Path,
    /// Memory of a guest in MiB.
    pub memory_mib: u32,
    /// Files of a layer, at their own paths in each guest.
    pub programs: Option<(Layer, &'static [&'static str])>,
    /// Whether QEMU has rows.
    pub has_peers: bool,
    /// A person's own image in their place. ssh is that of `programs`.
    pub own: Option<Own>,
}

impl<'a> Opening<'a> {
    /// The settings for a plan, without programs.
    pub fn of(plan: &Plan, program: &'a Program, memory_mib: u32) -> Opening<'a> {
        let has_peers = plan.subjects.iter().any(|subject| subject.server == Some(Server::Qemu));
        Opening {
            guests: plan.guests,
            program: &program.path,
            memory_mib,
            programs: None,
            has_peers,
            own: plan.own.clone(),
        }
    }
}

impl Outside {
    /// Lays guests, and makes the network outside.
    ///
    /// # Errors
    /// Those of [`Root::lay`], [`UmlKernel::lay`] and [`Namespace::open`]; each names its remedy.
    pub fn open(opening: Opening<'_>, say: &mut dyn FnMut(&str)) -> Result<Outside, Error> {
        let Opening { guests, program, memory_mib, programs, has_peers, own } = opening;
        let root = Root::lay(say)?;
        let processor = match (guests, own) {
            (_, Some(own)) => Processor::Own(Accel::Auto.resolve(&root)?, own),
            (Guests::Uml, None) => Processor::UserMode(UmlKernel::lay(say)?),
            (Guests::Qemu | Guests::Embedded, None) => {
                Image::of(&root, KERNEL)?;
                Processor::Qemu(Accel::Auto.resolve(&root)?)
            }
        };
        let mut namespace = Namespace::open(&root)?;
        namespace.tap(UPLINK, Some(&format!("{OUTSIDE}/24")))?;
        let bridged = if has_peers {
            let tc = Tc::lay(say)?;
            let veth = Veth::open(&mut namespace, &root, &format!("{OUTSIDE}/24"))?;
            namespace.tap(BRIDGED, None)?;
            let ports = [BRIDGED, veth::NEAR].map(|port| format!("ip link set {port} master {BRIDGE}"));
            // The address outside is also that of the daemon's tap: the bridge must not answer for it.
            let made = format!(
                "ip link add {BRIDGE} type bridge && {} && ip link set {BRIDGE} arp off && ip link set {BRIDGE} up",
                ports.join(" && ")
            );
            namespace.run(&made, SLACK)?;
            Some((veth, tc))
        } else {
            None
        };
        let uio = Uio::beside(program).map_err(|error| error.to_string());
        let (program, outputs) = (program.to_owned(), Outputs::new()?);
        let mut outside = Outside {
            root,
            processor,
            namespace,
            program,
            programs,
            memory_mib,
            uio,
            bridged,
            is_bridged: false,
            outputs,
        };
        if let Processor::Own(..) = outside.processor {
            outside.give_addresses()?;
        }
        Ok(outside)
    }

    /// Gives a person's own guest the address of the lab's guests, by DHCP, on each of the links.
    fn give_addresses(&mut self) -> Result<(), Error> {
        let far = self.bridged.as_ref().map(|_| veth::FAR);
        for interface in [Some(UPLINK), far].into_iter().flatten() {
            let file = |name: &str| self.folder().join(&format!("{interface}-{name}"));
            let (leases, process) = (file("leases"), file("pid"));
            let text = format!(
                "start {GUEST}\nend {GUEST}\nmax_leases 1\ninterface {interface}\nlease_file {leases}\npidfile {process}\n\
                 option subnet 255.255.255.0\noption lease 864000\n"
            );
            self.folder().write(&format!("{interface}-leases"), "")?;
            let path = self.folder().write(&format!("{interface}-dhcp"), text)?;
            let mut server = Command::new(self.root.busybox());
            server.args(["udhcpd", "-f"]).arg(path);
            self.is_bridged = interface != UPLINK;
            let far = self.at_far_end(&server);
            self.namespace.start(far.as_ref().unwrap_or(&server), Path::new("/dev/null"))?;
        }
        Ok(())
    }

    /// ssh into a person's own guest, run where its peer is.
    fn ssh(&self, own: &Own) -> Result<Vec<String>, Error> {
        let lacks = || Error::Run { doing: "reaching the guest by ssh".to_owned(), said: "there is no ssh".to_owned() };
        let (layer, _) = self.programs.as_ref().ok_or_else(lacks)?;
        let mut ssh = layer.program("usr/bin/ssh");
        ssh.args(["-F", "/dev/null", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "LogLevel=ERROR"]);
        ssh.args(["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]).args(OF_ANY_AGE);
        if let Some(key) = &own.key {
            ssh.arg("-i").arg(key);
        }
        ssh.arg(format!("{}@{GUEST}", own.user));
        let far = self.at_far_end(&ssh);
        let ssh = far.as_ref().unwrap_or(&ssh);
        let words =
            [ssh.get_program()].into_iter().chain(ssh.get_args()).map(|word| word.to_string_lossy().into_owned());
        Ok(self.namespace.entrance().into_iter().chain(words).collect())
    }

    /// Boots a person's own image.
    fn boot_own(
        &self,
        (accel, own): (Accel, &Own),
        model: Option<&str>,
        served: Option<&Served>,
        stop: &AtomicBool,
    ) -> Result<(Reached, String), Error> {
        let memory_mib = self.memory_mib.max(OWN_MIB);
        let (image, entrance) = (own.image.clone(), self.namespace.entrance());
        let mut machine = DiskConfig { image, memory_mib, accel, entrance, devices: Vec::new() };
        if let Some(model) = model {
            machine = machine
                .adapter(&format!("{model},mac={MAC}"), &format!("tap,ifname={BRIDGED},script=no,downscript=no"));
        }
        let guest = self.start(machine, served, None)?;
        let mut reached = Reached::Ssh(Ssh::wait(guest, self.ssh(own)?, &own.image, stop)?);
        let find = "ls /sys/class/net 2>/dev/null | grep -v '^lo$' | head -n 1";
        let interface = reached.succeed_unless(find, SLACK, stop)?;
        Ok((reached, interface.trim().to_owned()))
    }

    /// The private root.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// A folder for files of the programs outside.
    pub fn folder(&self) -> &Folder {
        self.outputs.folder()
    }

    /// Boots a subject's guest behind a link of this rate.
    ///
    /// # Errors
    /// Those of [`Guest::boot`] and of the daemon, with the last lines of console or log.
    pub fn boot(&mut self, subject: &Subject, rate: Rate, stop: &AtomicBool) -> Result<Lone, Error> {
        let adapter = &subject.adapter;
        let missing = || Error::Daemon { why: format!("there is no adapter {adapter}"), said: String::new() };
        let entry = nicety_adapters::find(adapter).ok_or_else(missing)?;
        self.is_bridged = subject.server == Some(Server::Qemu);
        if self.is_bridged {
            let (veth, tc) = self.bridged.as_ref().ok_or_else(missing)?;
            veth.pace(&mut self.namespace, tc, rate)?;
            let (guest, interface) = self.boot_guest(entry.about.qemu, None, None, stop)?;
            return Ok(Lone { guest, interface, served: None });
        }
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
        match self.boot_guest(None, Some(&served), subject.driver, stop) {
            Ok((guest, interface)) => Ok(Lone { guest, interface, served: Some(served) }),
            Err(error) => {
                // A running daemon would keep the tap from the next one. An error of stopping it has the same cause.
                let _ = served.stop(&mut self.namespace);
                Err(error)
            }
        }
    }

    /// Boots a guest with QEMU's `model`, or the adapter of `served`.
    fn boot_guest(
        &self,
        model: Option<&str>,
        served: Option<&Served>,
        driver: Option<Driver>,
        stop: &AtomicBool,
    ) -> Result<(Reached, String), Error> {
        if let Processor::Own(accel, own) = &self.processor {
            return self.boot_own((*accel, own), model, served, stop);
        }
        let (address, interface) = (format!("{GUEST}/24"), if driver.is_some() { TAP } else { "eth0" });
        let uio = driver.map(|_| {
            let missing = |said| Error::Run { doing: "driving an adapter from user space".to_owned(), said };
            self.uio.clone().map_err(missing)
        });
        let uio = uio.transpose()?;
        let netdev = format!("tap,ifname={BRIDGED},script=no,downscript=no");
        let device = model.map(|model| format!("{model},mac={MAC}"));
        let mut guest = match &self.processor {
            Processor::UserMode(kernel) => {
                let mut machine = UmlConfig { memory_mib: self.memory_mib, ..UmlConfig::new(kernel) };
                let entrance = self.namespace.entrance();
                machine.model = device.map(|device| Model { device, netdev, entrance });
                self.start(machine, served, driver.is_none().then_some(&*address))?
            }
            Processor::Qemu(accel) | Processor::Own(accel, _) => {
                let entrance = self.namespace.entrance();
                let memory_mib = self.memory_mib.saturating_add(QEMU_MIB);
                let mut machine = GuestConfig { accel: *accel, entrance, memory_mib, ..GuestConfig::new(KERNEL) };
                if let Some(device) = device {
                    machine = machine.adapter(&device, &netdev);
                }
                // QEMU has read the archive when the guest answers, so the folder may go then.
                let folder = Folder::new()?;
                let archive = match &self.programs {
                    Some((layer, files)) => layer.archive(files)?,
                    None => Vec::new(),
                };
                if let Some(uio) = &uio {
                    machine = uio.in_qemu(machine, &folder, &archive)?;
                } else if !archive.is_empty() {
                    machine.archive = Some(folder.write("programs.cpio", &archive)?);
                }
                let mut guest = self.start(machine, served, driver.is_none().then_some(&*address))?;
                guest.wait_ready_unless(stop)?;
                guest
            }
        };
        if let Processor::UserMode(_) = self.processor {
            guest.wait_ready_unless(stop)?;
            if let Some((layer, files)) = &self.programs {
                take(&mut guest, layer, files, stop)?;
            }
            if let Some(uio) = &uio {
                uio.in_user_mode(&mut guest, stop)?;
            }
        }
        if driver.is_some() {
            let function = Uio::hand_over(&mut guest, 1, stop)?;
            Uio::start(&mut guest, &function, Tap { name: TAP, mac: MAC, address: &address }, stop)?;
        }
        let ping = format!("/usr/bin/ping -n -q -c 1 -W 5 {OUTSIDE}");
        guest.succeed_unless(&ping, SLACK, stop)?;
        Ok((Reached::Line(guest), interface.to_owned()))
    }

    fn start<M: Machine>(&self, machine: M, served: Option<&Served>, address: Option<&str>) -> Result<Guest, Error> {
        let machine = address.into_iter().fold(machine, |machine, address| machine.address("eth0", address));
        let machine = served.into_iter().fold(machine, |machine, served| served.attach(machine, "guest"));
        Guest::start(&self.root, machine)
    }

    /// Ends the guest, then its daemon.
    ///
    /// # Errors
    /// The daemon does not end.
    pub fn end(&mut self, lone: Lone) -> Result<(), Error> {
        let Lone { guest, served, .. } = lone;
        drop(guest);
        served.map_or(Ok(()), |served| served.stop(&mut self.namespace))
    }

    /// Starts a server outside, for all rows. It ends with this.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn serve(&mut self, command: &Command) -> Result<(), Error> {
        if let Some((veth, _)) = &self.bridged {
            self.namespace.start(&veth.at_far_end(command), Path::new("/dev/null"))?;
        }
        self.namespace.start(command, Path::new("/dev/null")).map(drop)
    }

    /// `command` at the far end of the veth pair, if the guest that runs has its peer there.
    fn at_far_end(&self, command: &Command) -> Option<Command> {
        self.bridged.as_ref().filter(|_| self.is_bridged).map(|(veth, _)| veth.at_far_end(command))
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
        watch: Watch<'_>,
    ) -> Result<(String, Duration), Error> {
        let doing = format!("`{}` outside", command.get_program().display());
        let far = self.at_far_end(command);
        let command = far.as_ref().unwrap_or(command);
        let running = self.outputs.start(&mut self.namespace, command, doing)?;
        running.wait(&mut self.namespace, limit, stop, watch)
    }

    /// The accelerator of guests in QEMU. None: they run in user mode.
    pub fn accelerator(&self) -> Option<Accel> {
        match &self.processor {
            Processor::UserMode(_) => None,
            Processor::Qemu(accel) | Processor::Own(accel, _) => Some(*accel),
        }
    }

    /// Facts for the report.
    pub fn notes(&self) -> Vec<String> {
        let booted = format!("one processor, {} MiB, booted afresh for each row of each round", self.memory_mib);
        let guests = match &self.processor {
            Processor::UserMode(kernel) => format!(
                "Guests: kernel {} built as a user-mode program (UML) from Debian's {}, unmodified drivers, {booted}. Their instructions \
                 run at the host's own speed; a system call in them takes 7 to 50 µs: compare adapters with each other.",
                kernel.release(),
                kernel.source(),
            ),
            Processor::Own(accel, own) => format!(
                "Guests: the image {}, as {} by ssh over the adapter that is measured, in QEMU {} (machine pc), run by {}; what it writes is \
                 dropped. Booted afresh for each row of each round.",
                own.image.display(),
                own.user,
                self.root.version("qemu-system-x86").unwrap_or("of unknown version"),
                if *accel == Accel::Kvm { "KVM" } else { "QEMU's translator (TCG): compare adapters with each other" },
            ),
            Processor::Qemu(accel) => format!(
                "Guests: Debian's kernel {KERNEL}, unmodified drivers, {booted}, in QEMU {}, run by {}.",
                self.root.version("qemu-system-x86").unwrap_or("of unknown version"),
                if *accel == Accel::Kvm { "KVM" } else { "QEMU's translator (TCG): compare adapters with each other" },
            ),
        };
        let mut notes = vec![
            guests,
            "Nicety's rows: the peer outside is a network namespace of the host, behind the daemon's uplink (a tap), which is paced to the \
             link's rate in both directions."
                .to_owned(),
        ];
        if self.bridged.is_some() {
            let interrupts = match self.processor {
                Processor::UserMode(_) => " Their interrupts are INTx, all that QEMU's machine x-remote has.",
                Processor::Qemu(_) | Processor::Own(..) => "",
            };
            notes.push(format!(
                "QEMU's rows: its own model with a tap on the kernel's bridge, options as they come, vhost off; the peer is a second namespace \
                 behind a veth pair, which tc paces (token bucket of the same size as Nicety's uplink's) in both directions.{interrupts}"
            ));
        }
        notes.push(
            "CPU time is that of the guest's processes and of what serves it: Nicety's daemon, or QEMU.".to_owned(),
        );
        notes
    }
}
