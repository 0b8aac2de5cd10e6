//! What a storage port keeps of a link beside a guest that writes what it likes into its frames: by the test's own clock, from a host
//! file's text to the bytes that leave (docs/io-control.md, *Whose word counts*).

#[path = "../../../plane/tests/ringed/mod.rs"]
mod ringed;
#[path = "../../../plane/tests/silent/mod.rs"]
mod silent;

use std::path::Path;
use std::sync::{Arc, Mutex};

use nicety_adapter::{Batch, Budget, Context, Counters, Delivery, Frames, PortId, Progress, Time, Uplink};
use nicety_host::Host;
use nicety_memory::Map;
use nicety_plane::{End, Plane, Port, Turn};
use nicety_switch::Limits;
use nicety_uplink::Paced;

use super::io_control;
use ringed::{Ringed, Traffic};
use silent::Silent;

const LEN: usize = 1514;
const MS: u64 = 1_000_000;
const STEP_NS: u64 = 200_000;
/// Time of a measurement: 100 Mbit/s are 12.5 bytes a microsecond.
const MEASURED_MS: u64 = 400;
/// The link's bucket is empty by then.
const BEFORE_MS: u64 = 200;
const STORAGE: u8 = 1;
const GUEST: u8 = 2;
/// A station beyond another uplink of the host.
const OTHER: u8 = 3;

/// The longest TCP frame of a station, to this port. `tag`: priority and VLAN. `dscp`: as in IPv4's second byte.
fn frame(from: u8, tag: Option<u16>, dscp: u8, port: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, from];
    frame.extend(tag.iter().flat_map(|tag| [0x81, 0, (tag >> 8) as u8, *tag as u8]));
    let ip_len = (LEN - frame.len() - 2) as u16;
    frame.extend([8, 0, 0x45, dscp << 2]);
    frame.extend(ip_len.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, from, 10, 0, 0, 9]);
    frame.extend([40_000u16, port].iter().flat_map(|port| port.to_be_bytes()));
    frame.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 255, 255, 0, 0, 0, 0]);
    frame.resize(LEN, 0);
    frame
}

/// Always has another frame: each of these in turn.
struct Greedy {
    frames: Vec<Vec<u8>>,
    next: usize,
    map: Arc<Map>,
}

impl Greedy {
    fn new(frames: Vec<Vec<u8>>) -> Self {
        let map = Arc::new(Map::private(1 << 20).unwrap());
        for (place, frame) in frames.iter().enumerate() {
            map.write(place as u64 * 2048, frame).unwrap();
        }
        Self { frames, next: 0, map }
    }

    fn send(&mut self, budget: Budget, batch: &mut Batch) -> Progress {
        while budget.allows(batch) {
            self.next = (self.next + 1) % self.frames.len();
            let mut draft = batch.draft(0).unwrap();
            draft.push(self.next as u64 * 2048, LEN as u32).unwrap();
            draft.finish_plain(0);
        }
        Progress { more: true, armed: true }
    }
}

impl Traffic for Greedy {
    fn fetch(&mut self, _: u16, budget: Budget, batch: &mut Batch, _: &mut Context<'_>) -> Progress {
        self.send(budget, batch)
    }
}

impl Uplink for Greedy {
    fn fetch(&mut self, port: PortId, budget: Budget, batch: &mut Batch, _: &mut Counters, _: Time) -> Progress {
        batch.start(&self.map, port, 0);
        self.send(budget, batch)
    }

    fn complete(&mut self, _: &Batch) {}

    fn deliver(&mut self, _: &Frames<'_>, _: &mut Counters, _: Time) -> Delivery {
        Delivery::default()
    }

    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

/// Counts what leaves, by sender.
struct Link(Arc<Mutex<[u64; 4]>>);

impl Uplink for Link {
    fn fetch(&mut self, _: PortId, _: Budget, _: &mut Batch, _: &mut Counters, _: Time) -> Progress {
        Progress { more: false, armed: true }
    }

    fn complete(&mut self, _: &Batch) {}

    fn deliver(&mut self, frames: &Frames<'_>, _: &mut Counters, _: Time) -> Delivery {
        let mut left = self.0.lock().unwrap();
        for (_, _, packet) in frames.iter() {
            left[usize::from(frames.batch.head(packet)[11])] += u64::from(packet.len());
        }
        Delivery::default()
    }

    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

/// A host with a link of 100 Mbit/s. `classes`: the rest of the file; `storage`, `guest`: more keys of these ports.
fn host(classes: &str, storage: &str, guest: &str) -> Host {
    let port = |number: u8, name: &str, more: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\nadapter = \"e1000\"\nmac = \"02:00:00:00:00:0{number}\"\nsocket = \"{name}\"\n{more}\n"
        )
    };
    let text = format!(
        "[[port_group]]\nname = \"disks\"\n[[uplink]]\nname = \"up\"\nkind = \"null\"\nrate = \"100Mbit/s\"\n\
         [[uplink]]\nname = \"other\"\nkind = \"pair\"\nsocket = \"other\"\n{}{}{classes}",
        port(STORAGE, "storage", storage),
        port(GUEST, "guest", guest)
    );
    Host::parse(&text, Path::new("/h")).unwrap_or_else(|errors| panic!("{errors}"))
}

/// Mbit/s of each sender by a full link.
fn shares(host: &Host, senders: Vec<(u8, Vec<Vec<u8>>)>) -> [f64; 4] {
    let names = [("up".to_owned(), 0), ("storage".to_owned(), 1), ("guest".to_owned(), 2), ("other".to_owned(), 3)];
    let uplink = &host.uplinks[0];
    let outward = io_control::control(host, uplink, &names).outward;
    let (plane, left, mut now) = (Plane::new(Limits::default()), Arc::new(Mutex::new([0; 4])), Time(1));
    let link = Paced::new(Link(Arc::clone(&left)), uplink.rate.unwrap()).unwrap();
    let new = |id: u8, end| Arc::new(Port::new(PortId(id.into()), end, Box::new(Silent), 256 << 10).unwrap());
    let mut ports = vec![new(0, End::link(Box::new(link)))];
    plane.join(Arc::clone(&ports[0])).unwrap();
    for (id, frames) in senders {
        let source = Greedy::new(frames);
        let map = Arc::clone(&source.map);
        let port = match id {
            OTHER => new(id, End::link(Box::new(source))),
            _ => new(id, End::guest(Box::new(Ringed(source)))),
        };
        let config = match id {
            STORAGE => host.port("storage"),
            GUEST => host.port("guest"),
            _ => None,
        };
        plane.join_with(Arc::clone(&port), &config.map(|port| port.policy.clone()).unwrap_or_default()).unwrap();
        if id != OTHER {
            port.attach();
            port.set_memory(map, now);
        }
        ports.push(port);
    }
    ports[0].set_io_control(&outward, now);
    let mut turn = Turn::new();
    let mut run = |ms: u64| {
        for _ in 0..ms * MS / STEP_NS {
            now = now.after_ns(STEP_NS);
            for port in &ports[1..] {
                if port.id() == PortId(OTHER.into()) {
                    port.ready();
                } else {
                    port.with_rings(now, |rings, cx| rings.kick(0, cx)).unwrap();
                }
            }
            // Several rounds: a port is charged with what it sends.
            for _ in 0..8 {
                for port in ports.iter().filter(|port| port.busy(now)) {
                    plane.turn(port, &mut turn, now);
                }
            }
        }
        std::mem::take(&mut *left.lock().unwrap())
    };
    run(BEFORE_MS);
    run(MEASURED_MS).map(|bytes| bytes as f64 * 8.0 / (MEASURED_MS as f64 * 1e3))
}

/// The port numbers of the classes with usual ones, and what a guest can write besides.
fn lies() -> Vec<Vec<u8>> {
    let ports = [3260, 2049, 49_152, 9].map(|port| frame(GUEST, None, 46, port));
    let tags = [0xa000, 0xa00a].map(|tag| frame(GUEST, Some(tag), 46, 3260));
    ports.into_iter().chain(tags).collect()
}

fn class(name: &str, keys: &str) -> String {
    format!("[[io_class]]\nuplink = \"up\"\nname = \"{name}\"\n{keys}\n")
}

/// A sender, and what it keeps of 100 Mbit/s beside the guest that lies.
fn keeps(classes: &str, storage: &str, sender: u8, own: Vec<u8>) -> f64 {
    let got = shares(&host(classes, storage, ""), vec![(sender, vec![own]), (GUEST, lies())]);
    let all: f64 = got.iter().sum();
    println!("{got:.1?}: {classes:?} {storage:?}");
    assert!((98.0..=101.0).contains(&all), "the link is full: {got:?}");
    got[usize::from(sender)]
}

#[test]
fn a_storage_port_with_sixty_of_a_hundred_keeps_sixty_beside_a_guest_that_writes_its_port_numbers_and_marks() {
    const RESERVED: &str = "reservation = \"60Mbit/s\"";
    let iscsi = || frame(STORAGE, None, 0, 3260);
    let group = "port_group = \"disks\"";
    let of = |more: &str| class("iscsi", &format!("{RESERVED}\n{more}"));
    let urgent = |name: &str, more: &str| class(name, &format!("{RESERVED}\n{more}\nports = \"storage\""));
    for (classes, storage, own) in [
        (of("ports = \"storage\"\ntransport_ports = \"3260\""), "", iscsi()),
        (of("groups = \"disks\"\ntransport_ports = \"3260\""), group, iscsi()),
        (class("nfs", &format!("{RESERVED}\ngroups = \"disks\"")), group, frame(STORAGE, None, 0, 2049)),
        // `--check` warns of these: any guest can write them. They count for a port that is trusted, or in the class's VLAN.
        (of(""), "trust_marks = true", iscsi()),
        (of("vlan = 10\ntransport_ports = \"3260\""), "vlan = 10", iscsi()),
        (of("network = \"10.0.0.0/8\""), "trust_marks = true", iscsi()),
        (class("gold", &format!("{RESERVED}\ndscp = 46")), "trust_marks = true", frame(STORAGE, None, 46, 9)),
        (class("gold", &format!("{RESERVED}\npcp = 5")), "trust_marks = true", frame(STORAGE, Some(0xa000), 0, 9)),
        (urgent("ft", "dscp = 46"), "", frame(STORAGE, None, 46, 9)),
        (urgent("management", "transport_ports = \"9\""), "", frame(STORAGE, None, 0, 9)),
        // Shares alone, and classes that the guest may choose beside.
        (class("own", "shares = 60\nports = \"storage\"") + &class("vm", "shares = 40"), "", iscsi()),
        (of("ports = \"storage\"") + &class("nfs", "shares = 50") + &class("migration", "shares = 50"), "", iscsi()),
        (of("ports = \"storage\"") + &class("nfs", "shares = 100\nlimit = \"50Mbit/s\""), "", iscsi()),
    ] {
        let kept = keeps(&classes, storage, STORAGE, own);
        assert!(kept >= 0.98 * 60.0, "{kept:.1} of 60: {classes}");
    }
    // Frames that come in by another uplink are no guest's.
    let kept = keeps(&of(""), "", OTHER, frame(OTHER, None, 0, 3260));
    assert!(kept >= 0.98 * 60.0, "{kept:.1} of 60");
    // A file that names nobody: the storage port has as much as the guest, and neither has the reservation.
    let kept = keeps(&of(""), "", STORAGE, iscsi());
    assert!((45.0..=55.0).contains(&kept), "{kept:.1}");
}
