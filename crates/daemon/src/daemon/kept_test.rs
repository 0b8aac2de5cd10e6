//! Ports that a keeper holds which has little room: all are kept in the end, and those that are closed are forgotten.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nicety_keeper::{Channel, Group, kind};
use nicety_switch::Limits;
use nicety_vfio_user::{Client, DmaProtection, DmaRange, NoMemory};
use tempfile::TempDir;

use super::*;
use crate::descriptors;
use crate::run::journal;

const SOON: Duration = Duration::from_secs(60);
const PORTS: usize = 256;

/// A VMM's first message (vfio-user.rst, VFIO_USER_VERSION): one that says nothing is sent away.
const GREETING: &[u8] = b"\x01\0\x01\0\x17\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0{}\0";

fn spec(number: usize, folder: &TempDir) -> PortSpec {
    super::closing_test::spec(&format!("vm{number}"), "e1000", number as u16, folder.path())
}

/// The keeper's end, what it holds, and the number of descriptors that it has been sent.
struct Keeper(Channel, BTreeMap<String, Vec<Group>>, usize);

impl Keeper {
    /// Reads all messages that have come.
    fn read(&mut self) {
        while let Ok(message) = self.0.receive(Duration::ZERO) {
            let (number, name) = message.content.split_first_chunk().unwrap();
            let (number, name) = (u64::from_le_bytes(*number), String::from_utf8_lossy(name).into_owned());
            self.2 += message.fds.len();
            let groups = self.1.entry(name.clone()).or_default();
            match message.kind {
                kind::HOLD => groups.push(Group { name, number, fds: message.fds }),
                kind::RENEW => {
                    let (from, rest) = message.content[8..].split_first_chunk().unwrap();
                    let (count, rest) = rest.split_first_chunk().unwrap();
                    let (places, name) = rest.split_at(2 * usize::from(u16::from_le_bytes(*count)));
                    let name = String::from_utf8(name.to_vec()).unwrap();
                    let groups = self.1.entry(name.clone()).or_default();
                    let older = groups.iter().find(|group| group.number == u64::from_le_bytes(*from)).unwrap();
                    let mut new = message.fds.into_iter();
                    let mut fds = Vec::new();
                    for place in places.as_chunks().0 {
                        let older = older.fds.get(usize::from(u16::from_le_bytes(*place)));
                        fds.push(older.map_or_else(|| new.next().unwrap(), |fd| fd.try_clone().unwrap()));
                    }
                    groups.push(Group { name, number, fds });
                }
                kind::FORGET => groups.retain(|group| group.number >= number),
                other => panic!("message {other}"),
            }
        }
        self.1.retain(|_, groups| !groups.is_empty());
    }

    /// Reads until `done`.
    fn read_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let end = Instant::now() + SOON;
        while !done(self) {
            assert!(Instant::now() < end, "{what}: {:?}", self.1.keys());
            self.read();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn unkept(daemon: &Daemon) -> Vec<String> {
    daemon.views().into_iter().filter_map(|view| view.not_kept).collect()
}

#[test]
fn ports_that_connect_all_at_once_are_all_kept_once_the_keeper_has_read_and_closed_ones_are_forgotten() {
    descriptors::provide(PORTS, 2).unwrap();
    let folder = TempDir::new().unwrap();
    let daemon = Daemon::start(Limits::default(), 2).unwrap();
    let (ours, keeper) = Channel::pair().unwrap();
    let holder = Arc::new(Holder::from(ours));
    daemon.keep_by(Arc::clone(&holder));
    let mut keeper = Keeper(keeper, BTreeMap::new(), 0);
    let specs: Vec<PortSpec> = (0..PORTS).map(|number| spec(number, &folder)).collect();
    specs.iter().for_each(|spec| _ = daemon.open(spec.clone()).unwrap());
    let mut vmms: Vec<UnixStream> =
        specs.iter().map(|spec| UnixStream::connect(&spec.config.socket).unwrap()).collect();
    vmms.iter_mut().for_each(|vmm| vmm.write_all(GREETING).unwrap());
    let end = Instant::now() + SOON;
    while daemon.views().iter().filter(|view| view.state.attached).count() < PORTS {
        assert!(Instant::now() < end, "not all are attached");
        std::thread::sleep(Duration::from_millis(1));
    }
    let lacking = unkept(&daemon);
    println!("{} of {PORTS} ports found the keeper full", lacking.len());
    assert!(!lacking.is_empty() && lacking.iter().all(|why| why.starts_with("the keeper: ")), "{lacking:?}");
    keeper.read_until("kept", |keeper| keeper.1.len() == PORTS && unkept(&daemon).is_empty() && !holder.owes());
    keeper.read();
    for (name, groups) in &mut keeper.1 {
        let kept = journal::read(std::mem::take(groups)).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert!(kept.function.vmm.is_some(), "{name}");
        groups.push(Group { name: name.clone(), number: 0, fds: Vec::new() });
    }
    // Full again, by what the ports have not sent.
    let filling = || holder.hold("other", u64::MAX, &[keeper.0.as_fd()]).is_ok();
    std::iter::repeat_with(filling).take_while(|is_sent| *is_sent).for_each(drop);
    for spec in &specs[1..] {
        daemon.close(&spec.config.name).unwrap();
    }
    assert!(holder.owes());
    keeper.read_until("forgotten", |keeper| keeper.1.keys().eq(["other", "vm0"]) && !holder.owes());
    assert!(unkept(&daemon).is_empty());
}

/// A vIOMMU maps and unmaps thousands of times a second.
#[test]
fn a_vmm_that_maps_and_unmaps_again_and_again_costs_some_bytes_each_time_and_the_next_daemon_knows_its_memory() {
    const REGIONS: u64 = 1000;
    const PAGE: u64 = 4096;
    let folder = TempDir::new().unwrap();
    let daemon = Daemon::start(Limits::default(), 1).unwrap();
    let (ours, keeper) = Channel::pair().unwrap();
    daemon.keep_by(Arc::new(Holder::from(ours)));
    let mut keeper = Keeper(keeper, BTreeMap::new(), 0);
    let spec = spec(0, &folder);
    daemon.open(spec.clone()).unwrap();
    let ram = nicety_memory::shared_file("ram", (REGIONS + 1) * PAGE).unwrap();
    let mut vmm = Client::connect_with(&spec.config.socket, SOON, Box::new(NoMemory)).unwrap();
    let map = |vmm: &mut Client, address: u64, offset: u64| {
        let (range, protection) = (DmaRange { address, size: PAGE }, DmaProtection { read: true, write: true });
        vmm.dma_map(range, protection, Some((ram.as_fd(), offset))).unwrap();
    };
    (0..REGIONS).for_each(|number| map(&mut vmm, number * 2 * PAGE, number * PAGE));
    keeper.read();
    let journal = keeper.1["vm0"][0].fds[0].try_clone().unwrap();
    let before = journal::lengths(&journal);
    let high = 1 << 40;
    for _ in 0..100 {
        map(&mut vmm, high, REGIONS * PAGE);
        vmm.dma_unmap(DmaRange { address: high, size: PAGE }).unwrap();
    }
    let after = journal::lengths(&journal);
    println!("{REGIONS} regions, a record and its changes: {before:?} bytes; after 200 changes more {after:?}");
    assert_eq!(before.0, after.0, "no record was written");
    assert!(after.1 > before.1 && after.1 - before.1 <= 200 * 64, "{before:?}, {after:?}");
    map(&mut vmm, high, REGIONS * PAGE);
    vmm.dma_unmap(DmaRange { address: 0, size: PAGE }).unwrap();
    keeper.read();
    let kept = journal::read(keeper.1.remove("vm0").unwrap()).unwrap();
    let vmm = kept.function.vmm.unwrap();
    let regions: Vec<(u64, Option<u64>)> =
        vmm.regions.iter().map(|region| (region.base, region.file.map(|(_, offset)| offset))).collect();
    let first = (1..REGIONS).map(|number| (number * 2 * PAGE, Some(number * PAGE)));
    assert_eq!(regions, Vec::from_iter(first.chain([(high, Some(REGIONS * PAGE))])));
}

/// A daemon with this many e1000e, whose keeper renews groups, and where that keeper says what it does not hold.
fn renewing(folder: &TempDir, ports: usize) -> (Daemon, Keeper, Channel, Vec<PortSpec>) {
    let daemon = Daemon::start(Limits::default(), 1).unwrap();
    let (ours, keeper) = Channel::pair().unwrap();
    daemon.keep_by(Arc::new(Holder::hearing(ours).unwrap()));
    let says = Channel::from(keeper.receive(SOON).unwrap().fds.remove(0));
    let spec = |number| super::closing_test::spec(&format!("vm{number}"), "e1000e", number as u16, folder.path());
    let specs: Vec<PortSpec> = (0..ports).map(spec).collect();
    specs.iter().for_each(|spec| _ = daemon.open(spec.clone()).unwrap());
    (daemon, Keeper(keeper, BTreeMap::new(), 0), says, specs)
}

fn eventfd() -> std::os::fd::OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap()
}

/// The index of MSI-X (vfio.h).
const MSIX: u32 = 2;

#[test]
fn a_vmm_that_changes_its_interrupts_has_only_the_new_ones_sent_and_one_that_never_ends_is_not_kept() {
    const FILES: usize = 150;
    let folder = TempDir::new().unwrap();
    let (daemon, mut keeper, _says, specs) = renewing(&folder, 2);
    let mut vmm = Client::connect_with(&specs[0].config.socket, SOON, Box::new(NoMemory)).unwrap();
    let _idle = Client::connect_with(&specs[1].config.socket, SOON, Box::new(NoMemory)).unwrap();
    let files: Vec<_> = (0..FILES).map(|_| nicety_memory::shared_file("ram", 4096).unwrap()).collect();
    for (address, file) in (0..).map(|number| number << 20).zip(&files) {
        let (range, protection) = (DmaRange { address, size: 4096 }, DmaProtection { read: true, write: true });
        vmm.dma_map(range, protection, Some((file.as_fd(), 0))).unwrap();
        keeper.read();
    }
    let before = keeper.2;
    assert!(before < FILES + 40, "{before} descriptors were sent for {FILES} files");
    for number in 0..100 {
        vmm.connect_irqs(MSIX, number % 5, &[eventfd().as_fd()]).unwrap();
        keeper.read();
    }
    assert_eq!((keeper.2 - before, unkept(&daemon)), (100, vec![]));
    let kept = journal::read(keeper.1.remove("vm0").unwrap()).unwrap();
    let connections = kept.function.vmm.unwrap().connections;
    assert_eq!((connections.msix.len(), kept.table.iter().count() > FILES), (5, true));
    let (sent, mut number) = (keeper.2, 0);
    while unkept(&daemon).is_empty() && number < 10_000 {
        vmm.connect_irqs(MSIX, number % 5, &[eventfd().as_fd()]).unwrap();
        number += 1;
        while let Ok(message) = keeper.0.receive(Duration::ZERO) {
            keeper.2 += message.fds.len();
        }
    }
    let sent = keeper.2 - sent;
    let why = unkept(&daemon);
    println!("{number} changes: {sent} descriptors were sent, {why:?}");
    assert!(why.len() == 1 && why[0].starts_with("its VMM changes its interrupts or its memory too often"), "{why:?}");
    // After ten seconds without a change it is kept again.
    keeper.1.clear();
    keeper.read_until("kept again", |keeper| keeper.1.contains_key("vm0") && unkept(&daemon).is_empty());
    let kept = journal::read(keeper.1.remove("vm0").unwrap()).unwrap();
    assert_eq!(kept.function.vmm.unwrap().connections.msix.len(), 5);
}

/// Such a socket may have others in flight, so that its last close waits for whoever has sent them.
#[test]
fn a_port_with_an_interrupt_that_is_neither_an_eventfd_nor_a_pipe_works_and_is_not_kept_and_says_so() {
    let folder = TempDir::new().unwrap();
    let (daemon, mut keeper, _says, specs) = renewing(&folder, 2);
    let mut vmm = Client::connect_with(&specs[0].config.socket, SOON, Box::new(NoMemory)).unwrap();
    let (pipe, _read) = rustix::pipe::pipe().map(|(read, write)| (write, read)).unwrap();
    vmm.connect_irqs(MSIX, 0, &[eventfd().as_fd(), pipe.as_fd()]).unwrap();
    keeper.read();
    assert!(unkept(&daemon).is_empty() && keeper.1.contains_key("vm0"));
    let sent = keeper.2;
    for _ in 0..300 {
        let (socket, mut peer) = UnixStream::pair().unwrap();
        vmm.connect_irqs(MSIX, 2, &[socket.as_fd()]).unwrap();
        // A trigger by the client itself (vfio.h, VFIO_IRQ_SET_DATA_NONE).
        let set = nicety_vfio_user::IrqSet {
            index: MSIX,
            start: 2,
            count: 1,
            action: nicety_vfio_user::IrqAction::Trigger,
            data: nicety_vfio_user::IrqData::All,
        };
        vmm.set_irqs(set).unwrap();
        std::io::Read::read_exact(&mut peer, &mut [0; 8]).unwrap();
    }
    let why = unkept(&daemon);
    assert!(why.len() == 1 && why[0].contains("UNIX socket") && why[0].contains("only eventfds and pipes"), "{why:?}");
    keeper.read();
    assert_eq!((keeper.2, keeper.1.contains_key("vm0")), (sent, false), "and nothing is held of it");
    // Without it the port is kept again.
    vmm.connect_irqs(MSIX, 2, &[eventfd().as_fd()]).unwrap();
    keeper.read();
    assert!(unkept(&daemon).is_empty() && keeper.1.contains_key("vm0"));
}

#[test]
fn what_the_keeper_refuses_is_in_the_reports_at_once_and_kept_again_when_it_may_come() {
    let folder = TempDir::new().unwrap();
    let (daemon, mut keeper, says, specs) = renewing(&folder, 2);
    let _vmms =
        [0, 1].map(|number| Client::connect_with(&specs[number].config.socket, SOON, Box::new(NoMemory)).unwrap());
    keeper.read();
    let say = |kind, number: u64| says.send(kind, &[&number.to_le_bytes()[..], b"vm0"].concat(), &[], SOON).unwrap();
    // The number of `Why::Slow`.
    say(kind::LOST, 1);
    let why = unkept(&daemon);
    assert_eq!(why, ["the keeper: too many of its earlier descriptors still wait to be closed"]);
    say(kind::FREE, 0);
    keeper.1.clear();
    keeper.read_until("kept again", |keeper| keeper.1.contains_key("vm0") && unkept(&daemon).is_empty());
    assert!(journal::read(keeper.1.remove("vm0").unwrap()).is_ok() && !keeper.1.contains_key("vm1"));
}
