//! One real guest at a daemon whose uplink is a team of links in 802.3ad, or one link; and a partner: another guest, which bonds its
//! adapters with Linux's driver.
//!
//! ```text
//! guest ── adapter ── daemon's switch ── team ─┬ pair, paced ── wire ── eth0 ┬ bond0 ── partner: iperf, netserver
//!                                              └ pair, paced ── wire ── eth3 ┘
//! ```
//! A wire is a switch in this process with two ports that passes LACP's frames on, which no switch of a host does.

use std::{
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use nicety_adapters::Entry;
use nicety_daemon::daemon::{Daemon, JoiningUplink, PortSpec};
use nicety_frame::Mac;
use nicety_guests::{
    Error, Folder, Guest, Layer, Machine, Namespace, Port, Root, Served, Setup,
    uml::{UmlConfig, UmlKernel},
};
use nicety_host::{Bytes, PortConfig};
use nicety_switch::Limits;
use nicety_uplink::Pair;
use serde::Deserialize;

use super::bench::take;
use crate::rate::Rate;
use crate::spent::Spent;
use crate::subject::Subject;

/// The partner's address.
pub const PARTNER: &str = "10.9.6.2";
const GUEST: &str = "10.9.6.1";
const MAC: &str = "52:54:00:4e:06:ff";
/// The name of the guest's port, and the partner's adapter.
const PORT: &str = "guest";
const PARTNERS_ADAPTER: &str = "e1000e";
const TEAM: &str = "up";
/// LACP waits 2 s, and a new bond of Linux selects nothing for 8 s.
const AGREES: Duration = Duration::from_secs(60);
const SLACK: Duration = Duration::from_secs(30);
/// Bytes that wait for a link of a wire.
const WIRE_BUFFER: u32 = 1 << 20;

/// The guests' kernel and programs.
#[derive(Debug)]
pub struct Bonded {
    root: Root,
    kernel: UmlKernel,
    namespace: Namespace,
    program: PathBuf,
    layer: Layer,
    programs: &'static [&'static str],
    memory_mib: u32,
}

/// The running guests. Ends by [`Bonded::end`].
#[derive(Debug)]
pub struct Joined {
    /// The guest at the adapter that is measured.
    pub guest: Guest,
    partner: Guest,
    wires: Vec<Daemon>,
    _sockets: Folder,
    served: Served,
}

impl Joined {
    /// Processor time of the guest and its daemon so far. Wires and partner are outside.
    pub fn spent(&self) -> Spent {
        Spent { vmm: self.guest.cpu_time(), daemon: Some(self.served.cpu_time()) }
    }
}

fn find(adapter: &str) -> Result<&'static Entry, Error> {
    let missing = || Error::Daemon { why: format!("there is no adapter {adapter}"), said: String::new() };
    nicety_adapters::find(adapter).ok_or_else(missing)
}

/// The daemon's section with its links behind it: a team, or one alone.
fn sections(links: usize, rate: Rate) -> String {
    let names: Vec<String> = (0..links).map(|number| format!("link{number}")).collect();
    let link = |name: &String| {
        format!("\n[[uplink]]\nkind = \"pair\"\nname = \"{name}\"\nsocket = \"{name}\"\nrate = \"{rate}\"\n")
    };
    let mut text = format!("workers = 1\n{}", names.iter().map(link).collect::<String>());
    if links > 1 {
        let members = names.join(",");
        text += &format!(
            "\n[[team]]\nname = \"{TEAM}\"\nmembers = \"{members}\"\nmode = \"802.3ad\"\nlacp_rate = \"fast\"\nhash = \"layer3+4\"\n"
        );
    }
    text
}

/// A wire between a link's socket and an adapter of the partner.
fn wire(link: PathBuf, number: u8, socket: PathBuf) -> Result<Daemon, Error> {
    let failed = |why: String| Error::Run { doing: "joining a link to the partner".to_owned(), said: why };
    let daemon = Daemon::start(Limits { relays: true, ..Limits::default() }, 1);
    let daemon = daemon.map_err(|error| failed(error.to_string()))?;
    let pair = Pair::connect(link).map_err(|error| failed(error.to_string()))?;
    let opened =
        daemon.open_uplink(JoiningUplink { buffer_bytes: WIRE_BUFFER, ..JoiningUplink::new("wire", Box::new(pair)) });
    opened.map_err(|error| failed(error.to_string()))?;
    let port = PortSpec::plain(PortConfig {
        buffer: Bytes(WIRE_BUFFER.into()),
        ..PortConfig::new("partner", find(PARTNERS_ADAPTER)?, Mac([0x52, 0x54, 0, 0x4e, 6, number]), socket)
    });
    daemon.open(port).map_err(|error| failed(error.to_string()))?;
    Ok(daemon)
}

impl Bonded {
    /// Lays guests.
    ///
    /// # Errors
    /// Those of [`Root::lay`], [`UmlKernel::lay`] and [`Namespace::open`]; each names its remedy.
    pub fn open(
        program: &Path,
        (layer, programs): (Layer, &'static [&'static str]),
        memory_mib: u32,
        say: &mut dyn FnMut(&str),
    ) -> Result<Bonded, Error> {
        let root = Root::lay(say)?;
        let kernel = UmlKernel::lay(say)?;
        let namespace = Namespace::open(&root)?;
        Ok(Bonded { root, kernel, namespace, program: program.to_owned(), layer, programs, memory_mib })
    }

    /// Boots a subject's guest and its partner, joined by so many links of this rate each. `serve`: what the partner runs.
    ///
    /// # Errors
    /// Those of [`Guest::start`] and of the daemon, with the last lines of console or log; links that do not come to be used.
    pub fn start(
        &mut self,
        subject: &Subject,
        (links, rate): (usize, Rate),
        serve: &str,
        stop: &AtomicBool,
    ) -> Result<Joined, Error> {
        let entry = find(&subject.adapter)?;
        let mut port = Port::new(PORT, entry, MAC);
        if entry.about.transports.contains(&"vhost-user") {
            // A user-mode kernel sets up all pairs that the device offers, and uses as many as it has processors.
            port.more += "queues = 1\n";
        }
        let setup = Setup { daemon_more: sections(links, rate), ..Setup::default() };
        let sockets = Folder::new()?;
        let served = Served::start_as(&self.program, &mut self.namespace, vec![port], setup)?;
        match self.boot(&served, &sockets, links, serve, stop) {
            Ok((guest, partner, wires)) => Ok(Joined { guest, partner, wires, _sockets: sockets, served }),
            Err(error) => {
                // An error of stopping it has the same cause.
                let _ = served.stop(&mut self.namespace);
                Err(error)
            }
        }
    }

    fn boot(
        &self,
        served: &Served,
        sockets: &Folder,
        links: usize,
        serve: &str,
        stop: &AtomicBool,
    ) -> Result<(Guest, Guest, Vec<Daemon>), Error> {
        let machine = || UmlConfig { memory_mib: self.memory_mib, ..UmlConfig::new(&self.kernel) };
        let (mut wires, mut bonded) = (Vec::new(), machine());
        for number in 0..u8::try_from(links).unwrap_or(u8::MAX) {
            let socket = sockets.path().join(format!("wire{number}.sock"));
            bonded = bonded.vfio_user(&socket.display().to_string());
            wires.push(wire(served.socket(&format!("link{number}")), number, socket)?);
        }
        if links == 1 {
            bonded = bonded.address("eth0", &format!("{PARTNER}/24"));
        }
        let alone = served.attach(machine(), PORT).address("eth0", &format!("{GUEST}/24"));
        let mut guest = Guest::start(&self.root, alone)?;
        let mut partner = Guest::start(&self.root, bonded)?;
        for each in [&mut guest, &mut partner] {
            each.wait_ready_unless(stop)?;
            take(each, &self.layer, self.programs, stop)?;
        }
        if links > 1 {
            partner.succeed_unless(&bond(links), SLACK, stop)?;
            agree(served, links, stop)?;
        }
        partner.succeed_unless(serve, SLACK, stop)?;
        // A first answer may take as long as an address is looked for.
        let ping = format!("/usr/bin/ping -n -q -c 1 -W 5 {PARTNER}");
        guest.succeed_unless(&format!("{ping} || {ping}"), SLACK, stop)?;
        Ok((guest, partner, wires))
    }

    /// Ends the guests, the wires and the daemon.
    ///
    /// # Errors
    /// The daemon does not end.
    pub fn end(&mut self, joined: Joined) -> Result<(), Error> {
        let Joined { guest, partner, wires, _sockets, served } = joined;
        drop((guest, partner));
        wires.iter().for_each(Daemon::stop);
        served.stop(&mut self.namespace)
    }

    /// Facts for the report.
    pub fn notes(&self) -> Vec<String> {
        vec![format!(
            "Guests: kernel {} built as a user-mode program (UML) from Debian's {}, unmodified drivers, one processor, {} MiB, booted afresh \
             for each row of each round. The partner is such a guest too, with {PARTNERS_ADAPTER} and Linux's bonding driver (802.3ad, \
             layer3+4, fast). Its processor time and the wires' are not counted.",
            self.kernel.release(),
            self.kernel.source(),
            self.memory_mib
        )]
    }
}

/// Bonds the partner's adapters.
fn bond(links: usize) -> String {
    let slaves: Vec<String> = (0..links).map(|number| number.to_string()).collect();
    format!(
        "cd /sys/class/net; [ -e bond0 ] || echo +bond0 >bonding_masters; ip link set bond0 down; cd bond0/bonding; \
         echo 802.3ad >mode; echo fast >lacp_rate; echo 100 >miimon; echo layer3+4 >xmit_hash_policy; \
         for i in {}; do ip link set eth$i down; echo +eth$i >slaves; done; \
         ip address add {PARTNER}/24 dev bond0; ip link set bond0 up",
        slaves.join(" ")
    )
}

/// Waits until the team takes and sends frames by all its links.
fn agree(served: &Served, links: usize, stop: &AtomicBool) -> Result<(), Error> {
    let end = Instant::now() + AGREES;
    loop {
        let used = served.ask().and_then(|answer| used(&answer)).unwrap_or(0);
        if used == links {
            return Ok(());
        }
        if stop.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        if Instant::now() > end {
            let said = format!("{used} of {links} links are used after {AGREES:?}");
            return Err(Error::Run { doing: "waiting for LACP".to_owned(), said });
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Number of links that the team uses, by the daemon's answer.
fn used(answer: &str) -> Option<usize> {
    #[derive(Deserialize)]
    struct Ports {
        ports: Vec<Reported>,
    }
    #[derive(Deserialize)]
    struct Reported {
        name: String,
        members: Option<Vec<Member>>,
    }
    #[derive(Deserialize)]
    struct Member {
        collects: bool,
        distributes: bool,
    }
    let all: Ports = serde_json::from_str(answer).ok()?;
    let team = all.ports.into_iter().find(|port| port.name == TEAM)?;
    Some(team.members?.iter().filter(|member| member.collects && member.distributes).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_team_is_used_by_the_links_that_take_and_send() {
        let answer = r#"{"ports":[{"name":"link0","members":null},{"name":"up","members":[
            {"uplink":"link0","collects":true,"distributes":true,"state":""},
            {"uplink":"link1","collects":true,"distributes":false,"state":""}]}]}"#;
        assert_eq!((used(answer), used("{}")), (Some(1), None));
    }

    #[test]
    fn one_link_is_no_team() {
        let rate = Rate { mbit: 100 };
        assert!(!sections(1, rate).contains("[[team]]"));
        let four = sections(4, rate);
        assert_eq!(four.matches("rate = \"100Mbit/s\"").count(), 4, "{four}");
        assert!(four.contains("members = \"link0,link1,link2,link3\"\nmode = \"802.3ad\""), "{four}");
    }
}
