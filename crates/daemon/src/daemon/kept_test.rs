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
use crate::{descriptors, journal};

const SOON: Duration = Duration::from_secs(60);
const PORTS: usize = 256;

/// A VMM's first message (vfio-user.rst, VFIO_USER_VERSION): one that says nothing is sent away.
const GREETING: &[u8] = b"\x01\0\x01\0\x17\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0{}\0";

fn spec(number: usize, folder: &TempDir) -> PortSpec {
    super::closing_test::spec(&format!("vm{number}"), "e1000", number as u16, folder.path())
}

/// The keeper's end, and what it holds.
struct Keeper(Channel, BTreeMap<String, Vec<Group>>);

impl Keeper {
    /// Reads all messages that have come.
    fn read(&mut self) {
        while let Ok(message) = self.0.receive(Duration::ZERO) {
            let (number, name) = message.content.split_first_chunk().unwrap();
            let (number, name) = (u64::from_le_bytes(*number), String::from_utf8(name.to_vec()).unwrap());
            let groups = self.1.entry(name.clone()).or_default();
            match message.kind {
                kind::HOLD => groups.push(Group { name, number, fds: message.fds }),
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
    let mut keeper = Keeper(keeper, BTreeMap::new());
    let specs: Vec<PortSpec> = (0..PORTS).map(|number| spec(number, &folder)).collect();
    specs.iter().for_each(|spec| _ = daemon.open(spec.clone()).unwrap());
    let mut vmms: Vec<UnixStream> = specs.iter().map(|spec| UnixStream::connect(&spec.socket).unwrap()).collect();
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
        daemon.close(&spec.name).unwrap();
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
    let mut keeper = Keeper(keeper, BTreeMap::new());
    let spec = spec(0, &folder);
    daemon.open(spec.clone()).unwrap();
    let ram = nicety_memory::shared_file("ram", (REGIONS + 1) * PAGE).unwrap();
    let mut vmm = Client::connect_with(&spec.socket, SOON, Box::new(NoMemory)).unwrap();
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
