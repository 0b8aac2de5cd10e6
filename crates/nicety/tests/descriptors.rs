//! A daemon that is out of file descriptors: it reports that, does not busy-loop, and continues when there are some again.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nicety_memory::shared_file;
use nicety_vfio_user::{Client, DmaProtection, DmaRange};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tempfile::TempDir;

/// Enough for three ports and the descriptors that use up the rest.
const LIMIT: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(20);
const BOTH: DmaProtection = DmaProtection { read: true, write: true };

struct Daemon {
    dir: TempDir,
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
}

impl Daemon {
    /// Starts a daemon with this limit of open files, soft and hard.
    fn start(limit: usize) -> Daemon {
        let dir = TempDir::new().unwrap();
        let ports = [("vm1", "e1000"), ("vm2", "vmxnet3"), ("vm3", "virtio-net")];
        let ports: Vec<String> = (1..)
            .zip(ports)
            .map(|(n, (name, adapter))| {
                format!("[[port]]\nname = \"{name}\"\nadapter = \"{adapter}\"\nmac = \"52:54:00:12:34:0{n}\"\nsocket = \"{name}.sock\"\n")
            })
            .collect();
        // Unlisted: otherwise another test's daemon would connect to see whether this one runs.
        let uplink = "[daemon]\nlisted = false\n[uplink]\nkind = \"pair\"\nsocket = \"uplink.sock\"\n";
        std::fs::write(dir.path().join("host.toml"), uplink.to_owned() + &ports.concat()).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {limit}; exec \"$0\" serve"), env!("CARGO_BIN_EXE_nicety")]);
        command.current_dir(&dir).env_remove("XDG_RUNTIME_DIR").env_remove("NICETY_LOG");
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (stderr, lines) = (BufReader::new(child.stderr.take().unwrap()), Arc::clone(&log));
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).for_each(|line| lines.lock().unwrap().push(line))
        });
        Daemon { dir, child, log }
    }

    /// Sets the daemon's soft limit of open files.
    fn limit(&self, files: usize) {
        let limit = Rlimit { current: Some(files as u64), maximum: Some(LIMIT as u64) };
        prlimit(Pid::from_raw(self.child.id() as i32), Resource::Nofile, limit).unwrap();
    }

    fn log_count(&self, words: &str) -> usize {
        self.log.lock().unwrap().iter().filter(|line| line.contains(words)).count()
    }

    fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let end = Instant::now() + TIMEOUT;
        while !done() {
            assert!(Instant::now() < end, "{what}: {:?}", self.log.lock().unwrap());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Open descriptors below the limit: the process that runs this test may have left one beyond.
    fn open_files(&self) -> usize {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        let numbers = open.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse::<usize>().unwrap());
        numbers.filter(|number| *number < LIMIT).count()
    }

    /// The same once it stays: threads of the daemon may still open or close some after a VM has its answer.
    fn settled_files(&self) -> usize {
        let (mut last, mut same) = (self.open_files(), 0);
        self.until("a number of descriptors that stays", || {
            let now = self.open_files();
            same = if now == last { same + 1 } else { 0 };
            last = now;
            same == SETTLED
        });
        last
    }
}

/// Readings of the same number, one after another, by which it counts as settled.
const SETTLED: usize = 20;

/// Hundredths of a second of processor time (proc(5), /proc/PID/stat, fields 14 and 15).
fn ticks(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = text.rsplit_once(") ").unwrap();
    fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}

/// A peer at the uplink's socket, which carries whole messages.
fn peer(daemon: &Daemon) -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let path = daemon.dir.path().join("uplink.sock");
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn connections_that_cannot_be_accepted_cost_a_line_a_second_and_are_served_when_they_can() {
    let daemon = Daemon::start(LIMIT);
    daemon.until("its sockets", || daemon.log_count("all sockets are ready") == 1);
    // VMs leave descriptors for each other: so lower the limit, instead of using them up.
    let first = Client::connect(daemon.dir.path().join("vm1.sock")).unwrap();
    let begun = std::time::Instant::now();
    daemon.limit(3);
    let waiting = ["vm2.sock", "vm3.sock"].map(|socket| UnixStream::connect(daemon.dir.path().join(socket)).unwrap());
    let uplink = peer(&daemon);
    daemon.until("both are told", || daemon.log_count("was not accepted") >= 2);
    let before = ticks(daemon.child.id());
    // A daemon that busy-loops would log thousands of lines in this time, or use a whole processor.
    std::thread::sleep(Duration::from_millis(1500));
    let spent = ticks(daemon.child.id()) - before;
    assert!(spent < 10, "{spent} hundredths of a second");
    let lines = daemon.log_count("was not accepted");
    // A line per second for each of three sockets, however long a busy machine took.
    let most = 3 * (begun.elapsed().as_secs() + 1) + 2;
    assert!(lines as u64 <= most, "{lines} lines, at most {most}: {:#?}", daemon.log.lock().unwrap());
    daemon.limit(LIMIT);
    daemon.until("both are served", || {
        daemon.log_count("a VMM has connected") == 2 && daemon.log_count("a front end has") == 1
    });
    // A pair begins with a hello.
    let mut hello = [0; 64];
    daemon.until("the uplink's peer is served", || {
        rustix::net::recv(&uplink, &mut hello[..], RecvFlags::DONTWAIT).is_ok_and(|(count, _)| count > 0)
    });
    drop((waiting, first));
}

#[test]
fn a_vm_that_maps_a_thousand_regions_and_a_thousand_files_leaves_descriptors_for_the_others() {
    let daemon = Daemon::start(LIMIT);
    daemon.until("its sockets", || daemon.log_count("all sockets are ready") == 1);
    let mut greedy = Client::connect(daemon.dir.path().join("vm1.sock")).unwrap();
    let one = shared_file("greedy", 4096).unwrap();
    let before = daemon.settled_files();
    let mut map = |number: u64, file: &OwnedFd| {
        greedy.dma_map(DmaRange { address: number << 12, size: 4096 }, BOTH, Some((file.as_fd(), 0)))
    };
    (0..1000).for_each(|number| map(number, &one).unwrap());
    assert_eq!(daemon.open_files(), before + 1, "one for each file, not for each region");
    // The eight files that any VM may share are more than a third of the limit, each port's part.
    let taken = (1000..2000).filter(|number| map(*number, &shared_file("greedy", 4096).unwrap()).is_ok()).count();
    assert_eq!((taken, daemon.open_files()), (7, before + 8));
    daemon.until("its reason", || daemon.log_count("a VM may share 8 memory files at most") >= 1);
    let mut other = Client::connect(daemon.dir.path().join("vm2.sock")).unwrap();
    let file = shared_file("other", 4096).unwrap();
    other.dma_map(DmaRange { address: 0, size: 4096 }, BOTH, Some((file.as_fd(), 0))).unwrap();
    drop(greedy);
    daemon.until("all is closed", || daemon.open_files() <= before + 1);
}

#[test]
fn fewer_files_than_the_ports_need_are_told_with_what_to_do() {
    let mut daemon = Daemon::start(20);
    daemon.until("its end", || daemon.log_count("LimitNOFILE=") == 1);
    assert_eq!(daemon.child.wait().unwrap().code(), Some(1));
    assert_eq!(daemon.log_count("3 ports need 33 open files, 129 with a VM at each, and this process may have 20"), 1);
}
