//! A daemon with real sockets, and VMMs that behave, leave, cheat or stay silent. Each test runs with one worker and with two.

#[macro_use]
#[path = "../../plane/tests/workers/mod.rs"]
mod workers;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nicety_adapters::find;
use nicety_daemon::daemon::{Daemon, PortSpec, StartError};
use nicety_daemon::report::{Condition, PortReport};
use nicety_host::{Doorbells, PortConfig};
use nicety_memory::shared_file;
use nicety_switch::Limits;
use nicety_vfio_user::{Client, ClientError, DmaProtection, DmaRange, Errno};
use tempfile::TempDir;

/// A step that takes longer hangs.
const HANGS: Duration = Duration::from_secs(60);
const CONFIG: u32 = 7;
const BOTH: DmaProtection = DmaProtection { read: true, write: true };

/// A temporary folder, and the number of workers of the daemon in it.
struct Folder {
    place: TempDir,
    workers: usize,
}

impl Folder {
    fn new(workers: usize) -> Self {
        Self { place: TempDir::new().unwrap(), workers }
    }

    fn path(&self) -> &Path {
        self.place.path()
    }

    fn spec(&self, name: &str, adapter: &str, last: u8) -> PortSpec {
        PortSpec::plain(PortConfig::new(
            name,
            find(adapter).unwrap(),
            nicety_frame::Mac([0x52, 0x54, 0, 0, 0, last]),
            self.path().join(format!("{name}.sock")),
        ))
    }
}

fn daemon(folder: &Folder, ports: &[(&str, &str)]) -> Daemon {
    nicety_sandbox::begin_for_tests();
    let daemon = Daemon::start(Limits::default(), folder.workers).unwrap();
    for (i, (name, adapter)) in ports.iter().enumerate() {
        daemon.open(folder.spec(name, adapter, i as u8 + 1)).unwrap();
    }
    daemon
}

/// Waits for another thread to do something, with a timeout.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + HANGS;
    while !done() {
        assert!(Instant::now() < end, "{what}: not within {HANGS:?}");
        std::thread::yield_now();
    }
}

fn attached(daemon: &Daemon, port: &str) -> bool {
    daemon.views().iter().any(|view| view.name == port && view.state.attached)
}

fn identity(client: &mut Client) -> u32 {
    let mut id = [0; 4];
    client.region_read(CONFIG, 0, &mut id).unwrap();
    u32::from_le_bytes(id)
}

/// A client on a port that becomes free. The daemon notices the previous client's end a moment after it.
fn connect(path: &Path) -> Client {
    let mut client = None;
    until("a connection", || {
        client = Client::connect(path).ok();
        client.is_some()
    });
    client.unwrap()
}

fn a_vmm_finds_its_adapter_leaves_and_the_next_one_finds_it_as_new(workers: usize) {
    let folder = Folder::new(workers);
    let daemon = daemon(&folder, &[("vm1", "e1000"), ("vm2", "vmxnet3")]);
    for _ in 0..3 {
        let mut one = connect(&folder.path().join("vm1.sock"));
        let mut two = connect(&folder.path().join("vm2.sock"));
        assert_eq!((identity(&mut one), identity(&mut two)), (0x100e_8086, 0x07b0_15ad));
        let mut command = [0xff; 2];
        one.region_read(CONFIG, 4, &mut command).unwrap();
        assert_eq!(command, [0, 0], "as new");
        one.region_write(CONFIG, 4, &[7, 0]).unwrap();
        one.region_read(CONFIG, 4, &mut command).unwrap();
        assert_eq!(command, [7, 0]);
        drop((one, two));
        until("both ports free", || !attached(&daemon, "vm1") && !attached(&daemon, "vm2"));
    }
}

fn a_second_vmm_on_one_port_is_refused_and_hurts_nobody(workers: usize) {
    let folder = Folder::new(workers);
    let _daemon = daemon(&folder, &[("vm1", "e1000")]);
    let path = folder.path().join("vm1.sock");
    let mut first = connect(&path);
    let error = Client::connect(&path).unwrap_err();
    assert!(matches!(error, ClientError::Refused { errno: Errno::BUSY, .. }), "{error}");
    assert_eq!(identity(&mut first), 0x100e_8086);
}

/// Checks that the next read finds the end of the connection.
fn hung_up(mut stream: UnixStream) {
    stream.set_read_timeout(Some(HANGS)).unwrap();
    assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0, "the end of the stream");
}

fn a_second_front_end_on_one_port_is_refused_at_once_and_hurts_nobody(workers: usize) {
    let folder = Folder::new(workers);
    let daemon = daemon(&folder, &[("vm1", "virtio-net")]);
    let path = folder.path().join("vm1.sock");
    // It never sends anything: the session's timeout is longer than this test.
    let _first = UnixStream::connect(&path).unwrap();
    until("the first front end", || attached(&daemon, "vm1"));
    hung_up(UnixStream::connect(&path).unwrap());
    assert!(attached(&daemon, "vm1"), "it is not left to wait for the first one's end");
}

fn sockets_are_the_owners_alone_and_gone_at_the_end(workers: usize) {
    let folder = Folder::new(workers);
    let daemon = daemon(&folder, &[("vm1", "e1000"), ("vm2", "virtio-net")]);
    let paths = [folder.path().join("vm1.sock"), folder.path().join("vm2.sock")];
    for path in &paths {
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
    }
    daemon.stop();
    assert!(paths.iter().all(|path| !path.exists()));
}

fn a_path_that_is_taken_or_too_long_or_no_socket_is_named_and_left_alone(workers: usize) {
    let folder = Folder::new(workers);
    let daemon = daemon(&folder, &[("vm1", "e1000")]);
    let mut second = folder.spec("vm1", "e1000", 2);
    second.config.name = "vm2".to_owned();
    let taken = daemon.open(second).unwrap_err();
    assert!(taken.to_string().contains("vm2") && taken.to_string().contains("served by another process"), "{taken}");
    let mut spec = folder.spec("vm3", "e1000", 3);
    spec.config.socket = folder.path().join("x".repeat(120));
    assert!(daemon.open(spec).unwrap_err().to_string().contains("limit is 107"));
    let file = folder.path().join("vm4.sock");
    std::fs::write(&file, "mine").unwrap();
    let error = daemon.open(folder.spec("vm4", "e1000", 4)).unwrap_err();
    assert!(matches!(error, StartError::Socket { .. }), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    let mut spec = folder.spec("vm5", "e1000", 5);
    spec.config.doorbells = Some(Doorbells::Mapped);
    assert!(matches!(daemon.open(spec), Err(StartError::Doorbells { .. })));
}

/// Shares memory at address 0, and truncates it.
fn map_nothing(cheat: &mut Client) {
    let file = rustix::fs::memfd_create("cheat", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 1 << 20).unwrap();
    cheat.dma_map(DmaRange { address: 0, size: 1 << 20 }, BOTH, Some((file.as_fd(), 0))).unwrap();
    rustix::fs::ftruncate(&file, 0).unwrap();
}

fn a_vmm_that_truncates_its_memory_loses_its_adapter_and_nobody_else_does(workers: usize) {
    let folder = Folder::new(workers);
    let daemon = daemon(&folder, &[("vm1", "e1000"), ("vm2", "e1000")]);
    let mut cheat = connect(&folder.path().join("vm1.sock"));
    let mut honest = connect(&folder.path().join("vm2.sock"));
    map_nothing(&mut cheat);
    // One transmit descriptor at address 0, per the datasheet: 82540EM, sections 13.4.33 to 13.4.38. The first access to the
    // memory ends the connection, so the rest of the writes may fail.
    let gone = |result: Result<(), ClientError>| drop(result);
    gone(cheat.region_write(CONFIG, 4, &[7, 0]));
    for (register, value) in [(0x3800u64, 0u32), (0x3808, 128), (0x3810, 0), (0x0400, 2), (0x3818, 1)] {
        gone(cheat.region_write(0, register, &value.to_le_bytes()));
    }
    until("the cheat's end", || !attached(&daemon, "vm1"));
    assert_eq!(identity(&mut honest), 0x100e_8086);
    assert!(attached(&daemon, "vm2"));
    drop(cheat);
    let mut next = connect(&folder.path().join("vm1.sock"));
    assert_eq!(identity(&mut next), 0x100e_8086, "the port serves the next one");
}

/// An access to a register notices it; nothing gives the port a turn afterwards.
fn a_vmm_whose_memory_is_gone_when_a_command_needs_it_loses_its_adapter_at_once(workers: usize) {
    let folder = Folder::new(workers);
    let daemon = daemon(&folder, &[("vm1", "vmxnet3")]);
    let mut cheat = connect(&folder.path().join("vm1.sock"));
    cheat.region_write(CONFIG, 4, &[7, 0]).unwrap();
    map_nothing(&mut cheat);
    // VMXNET3_CMD_ACTIVATE_DEV, for a page at address 0.
    cheat.region_write(1, 0x20, &0xcafe_0000u32.to_le_bytes()).unwrap();
    // No timeout ends it: a VMM may rest between messages.
    until("the cheat's end", || !attached(&daemon, "vm1"));
}

fn memory_that_is_not_shared_is_told_and_not_touched(workers: usize) {
    let folder = Folder::new(workers);
    let daemon = daemon(&folder, &[("vm1", "e1000")]);
    let mut client = connect(&folder.path().join("vm1.sock"));
    client.dma_map(DmaRange { address: 0, size: 64 << 20 }, BOTH, None).unwrap();
    let view = || daemon.views().into_iter().find(|view| view.name == "vm1").unwrap();
    let state = view().state;
    assert_eq!((state.absent_bytes, state.shared_bytes), (64 << 20, 0));
    let report = PortReport::of(&view());
    assert!(report.condition == Condition::Broken && report.sentence.contains("share=on"), "{report:?}");
    // A driver that is up all the same, with a frame to send: the 82540EM's link, transmit ring and tail.
    client.region_write(CONFIG, 4, &[7, 0]).unwrap();
    let transmit = [(0x3800, 0x1000), (0x3804, 0), (0x3808, 128), (0x3810, 0), (0x400, 2), (0x3818, 1)];
    for (register, value) in [(0u64, 0x40u32)].into_iter().chain(transmit) {
        client.region_write(0, register, &value.to_le_bytes()).unwrap();
    }
    until("a look at its ring", || view().state.counters.guest_errors() > 0);
    assert_eq!(identity(&mut client), 0x100e_8086, "it has its adapter still");
    let state = view().state;
    assert_eq!(state.counters.transmitted().packets, 0);
    // The daemon could request the unmapped memory by messages. They would have come before the last answer.
    let requests: u64 = client.counters().commands_received.iter().sum();
    assert_eq!(requests, 0, "messages that ask for its memory");
}

/// Brings an adapter up as its driver does: turns on the 82540EM's receive checksums (datasheet, RXCSUM.TUOFLD), or activates
/// vmxnet3's page at address 0 (its header's VMXNET3_REG_DSAL, VMXNET3_REG_DSAH, VMXNET3_REG_CMD).
fn bring_up(client: &mut Client, adapter: &str) {
    let (bar, writes): (u32, &[(u64, u32)]) = match adapter {
        "e1000" => (0, &[(0x5000, 1 << 9), (0x100, 1 << 1)]),
        _ => (1, &[(0x10, 0), (0x18, 0), (0x20, 0xcafe_0000)]),
    };
    for &(register, value) in writes {
        client.region_write(bar, register, &value.to_le_bytes()).unwrap();
    }
}

fn memory_in_which_nothing_ever_appears_is_told_once_the_driver_is_up_and_not_before(workers: usize) {
    let adapters = [("vm1", "e1000"), ("vm2", "vmxnet3")];
    let folder = Folder::new(workers);
    let daemon = daemon(&folder, &adapters);
    let blank = |name: &str| daemon.views().iter().any(|view| view.name == name && view.blank);
    for (name, adapter) in adapters {
        for written in [false, true] {
            until("a free port", || !attached(&daemon, name));
            let mut client = connect(&folder.path().join(format!("{name}.sock")));
            let file = shared_file("memory", 1 << 20).unwrap();
            client.dma_map(DmaRange { address: 0, size: 1 << 20 }, BOTH, Some((file.as_fd(), 0))).unwrap();
            client.region_write(CONFIG, 4, &[7, 0]).unwrap();
            // A driver that only probes has nothing in memory yet: this is no mistake.
            client.region_read(0, 0, &mut [0; 4]).unwrap();
            client.region_write(0, 0, &[0; 4]).unwrap();
            assert!(!blank(name), "{adapter}: nothing had to be there yet");
            if written {
                rustix::io::pwrite(&file, &[1], (1 << 20) - 1).unwrap();
            }
            bring_up(&mut client, adapter);
            identity(&mut client);
            assert_eq!(blank(name), !written, "{adapter}");
        }
    }
}

fn one_memory_file_for_two_ports_is_taken_and_each_lets_it_go_alone(workers: usize) {
    let folder = Folder::new(workers);
    let daemon = daemon(&folder, &[("vm1", "e1000"), ("vm2", "vmxnet3")]);
    let file = shared_file("both", 1 << 20).unwrap();
    let mut clients = [connect(&folder.path().join("vm1.sock")), connect(&folder.path().join("vm2.sock"))];
    let range = DmaRange { address: 0x10_0000, size: 1 << 20 };
    for client in &mut clients {
        client.dma_map(range, BOTH, Some((file.as_fd(), 0))).unwrap();
        assert!(client.dma_map(range, BOTH, Some((file.as_fd(), 0))).is_err(), "an overlap is refused");
    }
    clients[0].dma_unmap(range).unwrap();
    let shared = |name: &str| daemon.views().iter().find(|v| v.name == name).map(|v| v.state.shared_bytes);
    assert_eq!((shared("vm1"), shared("vm2")), (Some(0), Some(1 << 20)));
}

fn a_vmm_that_says_nothing_is_sent_away_and_one_that_talks_nonsense_at_once(workers: usize) {
    let folder = Folder::new(workers);
    let daemon = daemon(&folder, &[("vm1", "e1000"), ("vm2", "e1000"), ("vm3", "virtio-net")]);
    let silent = UnixStream::connect(folder.path().join("vm1.sock")).unwrap();
    let silent_front_end = UnixStream::connect(folder.path().join("vm3.sock")).unwrap();
    let mut nonsense = UnixStream::connect(folder.path().join("vm2.sock")).unwrap();
    nonsense.write_all(&[0xff; 64]).unwrap();
    let mut rest = Vec::new();
    let _closed_or_reset = nonsense.read_to_end(&mut rest);
    until("the port is free", || !attached(&daemon, "vm2"));
    hung_up(silent);
    hung_up(silent_front_end);
    until("its port is free", || !attached(&daemon, "vm3"));
    let mut next = connect(&folder.path().join("vm1.sock"));
    assert_eq!(identity(&mut next), 0x100e_8086);
}

/// Sends VERSION 0.1 (vfio-user.rst): a header (id 0, command 1, size, no flags, no error), the version, JSON. Reads the answer.
fn negotiated(path: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(path).unwrap();
    let json = b"{\"capabilities\":{}}\0";
    let size = 20 + json.len() as u8;
    let head = [0, 0, 1, 0, size, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    stream.write_all(&[&head[..], json].concat()).unwrap();
    stream.set_read_timeout(Some(HANGS)).unwrap();
    let mut answer = [0; 16];
    stream.read_exact(&mut answer).unwrap();
    let size = u32::from_le_bytes([answer[4], answer[5], answer[6], answer[7]]);
    stream.read_exact(&mut vec![0; size as usize - answer.len()]).unwrap();
    stream
}

fn a_vmm_that_stops_within_a_message_or_takes_no_answer_is_sent_away_and_one_that_rests_between_messages_is_not(
    workers: usize,
) {
    let folder = Folder::new(workers);
    let daemon = daemon(&folder, &["vm1", "vm2", "vm3", "vm4", "vm5"].map(|name| (name, "e1000")));
    let path = |name: &str| folder.path().join(format!("{name}.sock"));
    // DEVICE_GET_INFO (command 4), with only its own size in it: 20 bytes.
    let question = [7, 0, 4, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let (mut in_header, mut in_body) = (negotiated(&path("vm1")), negotiated(&path("vm2")));
    let (mut resting, mut dripping, mut mute) =
        (negotiated(&path("vm3")), negotiated(&path("vm4")), negotiated(&path("vm5")));
    resting.write_all(&question[..4]).unwrap();
    let began = Instant::now();
    in_header.write_all(&question[..4]).unwrap();
    in_body.write_all(&[&question[..], &question[..20]].concat()).unwrap();
    in_body.read_exact(&mut [0; 32]).unwrap();
    resting.write_all(&question[4..]).unwrap();
    resting.read_exact(&mut [0; 32]).unwrap();
    // The client sends requests and leaves the answers unread, until the daemon reads no more or has disconnected it.
    let asking = std::thread::spawn(move || while mute.write_all(&question).is_ok() {});
    // Single bytes, so far apart that the eleventh would come too late.
    let drip = std::thread::spawn(move || {
        let sent = question.iter().take_while(|byte| {
            std::thread::sleep(Duration::from_secs(1));
            dripping.write_all(std::slice::from_ref(byte)).is_ok()
        });
        sent.count()
    });
    hung_up(in_header);
    assert!(began.elapsed() >= Duration::from_secs(9), "it has had its time: {:?}", began.elapsed());
    hung_up(in_body);
    until("their ports are free", || ["vm1", "vm2", "vm5"].iter().all(|name| !attached(&daemon, name)));
    asking.join().unwrap();
    let dripped = drip.join().unwrap();
    assert!(dripped < question.len(), "{dripped} bytes were waited for");
    assert!(attached(&daemon, "vm3"));
    resting.write_all(&question).unwrap();
    resting.read_exact(&mut [0; 32]).unwrap();
    assert_eq!(identity(&mut connect(&path("vm1"))), 0x100e_8086, "the port serves the next one");
}

/// A VM's file that only its private mapping is written to stays empty. vmxnet3's driver uses it once, and gives up.
fn a_vm_restarted_at_once_is_told_again_that_it_does_not_share_its_memory(workers: usize) {
    let folder = Folder::new(workers);
    let daemon = daemon(&folder, &[("vm1", "vmxnet3")]);
    for time in 0..3 {
        let mut client = connect(&folder.path().join("vm1.sock"));
        let file = shared_file("private", 1 << 20).unwrap();
        client.dma_map(DmaRange { address: 0, size: 1 << 20 }, BOTH, Some((file.as_fd(), 0))).unwrap();
        client.region_write(CONFIG, 4, &[7, 0]).unwrap();
        bring_up(&mut client, "vmxnet3");
        until(&format!("the advice, VM {time}"), || {
            let view = daemon.views().into_iter().find(|view| view.name == "vm1").unwrap();
            let report = PortReport::of(&view);
            report.condition == Condition::Broken && report.sentence.contains("share=on")
        });
        // No VM boots faster.
        std::thread::sleep(Duration::from_millis(150));
        drop(client);
        until("its end", || !attached(&daemon, "vm1"));
    }
}

/// QEMU 11's q35 with `memory-backend-memfd,hugetlb=on`: pieces of 4 KiB of a file of 2 MiB pages. Mapping allocates no page.
fn memory_of_huge_pages_is_taken_in_pieces_that_begin_within_a_page(workers: usize) {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let file = match memfd_create("huge", flags).and_then(|file| ftruncate(&file, 8 << 20).map(|()| file)) {
        Ok(file) => file,
        Err(errno) => {
            let test = "memory_of_huge_pages_is_taken_in_pieces_that_begin_within_a_page";
            // Write past the test harness, which swallows the output of tests that pass.
            let _stdout_closed =
                writeln!(std::io::stdout(), "\nSKIPPED {test} ({workers}): no memory file of huge pages: {errno}");
            return;
        }
    };
    let folder = Folder::new(workers);
    let daemon = daemon(&folder, &[("vm1", "e1000")]);
    let mut client = connect(&folder.path().join("vm1.sock"));
    let mapped = || daemon.views().iter().map(|view| view.state.shared_bytes).sum::<u64>();
    let mut bytes = 0;
    for (address, size) in [(0, 0xa_0000), (0xc_0000, 0x1000), (0x10_0000, 0x70_0000)] {
        client.dma_map(DmaRange { address, size }, BOTH, Some((file.as_fd(), address))).unwrap();
        bytes += size;
        assert_eq!(mapped(), bytes);
    }
    client.dma_unmap(DmaRange { address: 0xc_0000, size: 0x1000 }).unwrap();
    assert_eq!(mapped(), bytes - 0x1000);
}

fn a_port_is_closed_while_a_vmm_is_on_it_and_its_name_is_free_again(workers: usize) {
    let folder = Folder::new(workers);
    let daemon = daemon(&folder, &[("vm1", "e1000")]);
    let mut client = connect(&folder.path().join("vm1.sock"));
    assert_eq!(identity(&mut client), 0x100e_8086);
    assert!(daemon.close("vm1").is_some() && daemon.close("vm1").is_none());
    assert!(client.region_read(CONFIG, 0, &mut [0; 4]).is_err());
    daemon.open(folder.spec("vm1", "vmxnet3", 1)).unwrap();
    assert_eq!(identity(&mut connect(&folder.path().join("vm1.sock"))), 0x07b0_15ad);
}

with_one_worker_and_with_two!(
    a_vmm_finds_its_adapter_leaves_and_the_next_one_finds_it_as_new,
    a_second_vmm_on_one_port_is_refused_and_hurts_nobody,
    a_second_front_end_on_one_port_is_refused_at_once_and_hurts_nobody,
    sockets_are_the_owners_alone_and_gone_at_the_end,
    a_path_that_is_taken_or_too_long_or_no_socket_is_named_and_left_alone,
    a_vmm_that_truncates_its_memory_loses_its_adapter_and_nobody_else_does,
    a_vmm_whose_memory_is_gone_when_a_command_needs_it_loses_its_adapter_at_once,
    memory_that_is_not_shared_is_told_and_not_touched,
    a_vm_restarted_at_once_is_told_again_that_it_does_not_share_its_memory,
    memory_in_which_nothing_ever_appears_is_told_once_the_driver_is_up_and_not_before,
    one_memory_file_for_two_ports_is_taken_and_each_lets_it_go_alone,
    a_vmm_that_says_nothing_is_sent_away_and_one_that_talks_nonsense_at_once,
    a_vmm_that_stops_within_a_message_or_takes_no_answer_is_sent_away_and_one_that_rests_between_messages_is_not,
    memory_of_huge_pages_is_taken_in_pieces_that_begin_within_a_page,
    a_port_is_closed_while_a_vmm_is_on_it_and_its_name_is_free_again,
);
