//! VMMs that send descriptors without end, some of them slow to close: they take nothing from the keeper, and nothing from other VMs.

use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use nicety_vfio_user::{DmaProtection, DmaRange};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::*;

#[path = "../../../peer/tests/lingering/mod.rs"]
mod lingering;

/// The index of MSI-X (vfio.h).
const MSIX: u32 = 2;
/// Descriptors that the keeper and the daemon may have.
const LIMIT: u32 = 1500;
/// More than the daemon has threads that close descriptors.
const SLOW: usize = 100;
const FILES: u64 = 150;
const CHANGES: u32 = 300;
/// The service manager's watchdog, of which the keeper feeds a sixth.
const WATCHDOG: Duration = Duration::from_secs(12);

/// A UNIX socket whose last close waits for a TCP socket in its queue (socket(7), SO_LINGER). Lingers as long as its peer is there.
fn slow() -> (UnixStream, [OwnedFd; 1], TcpStream) {
    let (socket, other) = UnixStream::pair().unwrap();
    let (tcp, peer) = lingering::lingering();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [tcp.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(&other, &[std::io::IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
    (socket, [other.into()], peer)
}

/// The listening socket at a path, out of a process: it stays open whatever that process does.
fn listener(pid: u64, path: &Path) -> OwnedFd {
    let process = pidfd_open(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), PidfdFlags::empty()).unwrap();
    let numbers = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let numbers = numbers.filter_map(|fd| fd.file_name().to_str()?.parse::<i32>().ok());
    let mut fds = numbers.filter_map(|fd| pidfd_getfd(&process, fd, PidfdGetfdFlags::empty()).ok());
    let listens = |fd: &OwnedFd| {
        let is_it = || {
            std::os::unix::net::UnixListener::from(fd.try_clone().unwrap())
                .local_addr()
                .ok()?
                .as_pathname()
                .map(|at| at == path)
        };
        sockopt::socket_acceptconn(fd).unwrap_or(false) && is_it() == Some(true)
    };
    fds.find(listens).unwrap()
}

fn not_kept(kept: &Kept, name: &str) -> Option<String> {
    let ports = kept.json(&["ports", "--json"]);
    let port = ports["ports"].as_array().unwrap().iter().find(|port| port["name"] == name).unwrap();
    port["not_kept"].as_str().map(str::to_owned)
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// A keeper with three e1000e, so many descriptors, and a service manager that waits for it.
fn start(limit: u32) -> (Kept, UnixDatagram) {
    let dir = tempfile::tempdir().unwrap();
    let port = |number: u32| {
        format!(
            "[[port]]\nname = \"vm{number}\"\nadapter = \"e1000e\"\nmac = \"52:54:00:12:34:{number:02x}\"\nsocket = \"vm{number}.sock\"\n"
        )
    };
    let ports: String = (1..=3).map(port).collect();
    let host = format!("[daemon]\ncontrol = \"control.sock\"\nworkers = 2\n{ports}");
    std::fs::write(dir.path().join("host.toml"), host).unwrap();
    let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(SOON)).unwrap();
    let mut serve = Command::new("prlimit");
    serve.arg(format!("--nofile={limit}:{limit}")).arg(env!("CARGO_BIN_EXE_nicety")).args(["serve", "--keeper"]);
    serve.current_dir(dir.path()).env_remove("XDG_RUNTIME_DIR").env("NOTIFY_SOCKET", dir.path().join("notify"));
    serve.env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
    serve.stderr(std::fs::File::create(dir.path().join("log")).unwrap());
    let keeper = Process(serve.spawn().unwrap());
    let kept = Kept { guests: Vec::new(), keeper, dir };
    let end = Instant::now() + SOON;
    while kept.asked(&["ports"]).status.code() != Some(0) {
        assert!(Instant::now() < end, "{}", kept.log());
        std::thread::sleep(Duration::from_millis(10));
    }
    (kept, manager)
}

/// Waits for so many signs of the keeper's life from now on.
fn is_fed(manager: &UnixDatagram, times: usize) {
    manager.set_nonblocking(true).unwrap();
    while manager.recv(&mut [0; 4096]).is_ok() {}
    manager.set_nonblocking(false).unwrap();
    let (end, mut fed, mut said) = (Instant::now() + SOON, 0, [0; 4096]);
    while fed < times {
        assert!(Instant::now() < end, "no sign of life");
        let count = manager.recv(&mut said).unwrap();
        fed += usize::from(said[..count].starts_with(b"WATCHDOG=1"));
    }
}

#[test]
fn vmms_that_storm_take_nothing_from_the_keeper_and_idle_ones_live_through_a_kill() {
    let (kept, manager) = start(LIMIT);
    let connect =
        |number: u32| Client::connect_with(kept.path(&format!("vm{number}.sock")), SOON, Box::new(NoMemory)).unwrap();
    let (mut slowly, mut often, mut idle) = (connect(1), connect(2), connect(3));
    let files: Vec<_> = (0..FILES).map(|_| nicety_memory::shared_file("ram", 4096).unwrap()).collect();
    for (number, file) in (0..).zip(&files) {
        let (range, rights) =
            (DmaRange { address: number << 20, size: 4096 }, DmaProtection { read: true, write: true });
        slowly.dma_map(range, rights, Some((file.as_fd(), 0))).unwrap();
        often.dma_map(range, rights, Some((file.as_fd(), 0))).unwrap();
    }
    let mut peers = Vec::new();
    for _ in 0..SLOW {
        let (socket, other, peer) = slow();
        slowly.connect_irqs(MSIX, 0, &[socket.as_fd()]).unwrap();
        peers.push((other, peer));
    }
    for number in 0..CHANGES {
        let fd = eventfd(0, EventfdFlags::empty()).unwrap();
        often.connect_irqs(MSIX, number % 5, &[fd.as_fd()]).unwrap();
    }
    let why = not_kept(&kept, "vm1").expect("an interrupt by a socket");
    assert!(why.contains("UNIX socket"), "{why}");
    assert_eq!((not_kept(&kept, "vm2"), not_kept(&kept, "vm3")), (None, None), "{}", kept.log());
    let end = Instant::now() + SOON;
    while descriptors(kept.keeper.0.id()) > FILES as usize + 100 {
        assert!(Instant::now() < end, "the keeper has {} descriptors", descriptors(kept.keeper.0.id()));
        std::thread::sleep(Duration::from_millis(10));
    }
    let add = ["port", "add", "vm4", "adapter=e1000", "mac=52:54:00:12:34:04", "socket=vm4.sock"];
    let added = kept.asked(&add);
    assert!(added.status.success(), "{added:?}\n{}", kept.log());
    is_fed(&manager, 2);
    // The killed daemon's socket stays open, as if a connection that nobody has accepted were slow to close.
    let stays = listener(kept.pid(), &kept.path("vm1.sock"));
    kept.kill();
    // Intel's vendor, in the same sessions as before.
    for vmm in [&mut often, &mut idle] {
        let mut vendor = [0; 2];
        vmm.region_read(7, 0, &mut vendor).unwrap_or_else(|error| panic!("{error}\n{}", kept.log()));
        assert_eq!(vendor, [0x86, 0x80]);
    }
    assert_eq!((not_kept(&kept, "vm2"), not_kept(&kept, "vm3")), (None, None), "{}", kept.log());
    let log = kept.log();
    assert!(log.contains("is not closed yet, and is replaced") && !log.contains("served by another"), "{log}");
    assert!(log.lines().filter(|line| line.starts_with("WARN keeper: ")).count() < 3, "{log}");
    drop((connect(1), connect(4)));
    is_fed(&manager, 1);
    drop((stays, peers));
}

/// Each VM's part of the descriptors is smaller when there are more ports.
#[test]
fn a_vm_that_shares_as_many_files_as_it_may_goes_on_after_an_upgrade_though_a_port_was_added() {
    let (kept, _manager) = start(600);
    let mut vmm = Client::connect_with(kept.path("vm1.sock"), SOON, Box::new(NoMemory)).unwrap();
    let mut share = |number: u64| {
        let (range, rights) =
            (DmaRange { address: number << 20, size: 4096 }, DmaProtection { read: true, write: true });
        let file = nicety_memory::shared_file("ram", 4096).unwrap();
        vmm.dma_map(range, rights, Some((file.as_fd(), 0)))
    };
    let shared = (0..256).find(|number| share(*number).is_err()).expect("a limit");
    let add = ["port", "add", "vm4", "adapter=e1000", "mac=52:54:00:12:34:04", "socket=vm4.sock"];
    assert!(kept.asked(&add).status.success(), "{}", kept.log());
    let upgraded = kept.asked(&["upgrade", env!("CARGO_BIN_EXE_nicety")]);
    assert!(upgraded.status.success(), "{shared} files: {}", String::from_utf8_lossy(&upgraded.stderr));
    share(256).expect_err("no more than before");
    let mut vendor = [0; 2];
    vmm.region_read(7, 0, &mut vendor).unwrap();
    assert_eq!(vendor, [0x86, 0x80]);
}
