//! Upgrades in the middle of something else.

use std::collections::BTreeSet;
use std::os::unix::net::UnixListener;

use pcap_file::pcapng::{Block, PcapNgReader};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

/// Sends a signal by its name.
pub(super) fn signal(pid: u64, name: &str) {
    assert!(Command::new("kill").args([format!("-{name}"), pid.to_string()]).status().unwrap().success());
}

#[test]
fn a_host_file_that_was_changed_meanwhile_is_neither_read_nor_in_the_way() {
    let mut kept = Kept::start(&["e1000", "e1000"]);
    let good = std::fs::read_to_string(kept.path("host.toml")).unwrap();
    std::fs::write(kept.path("host.toml"), "this is no host file").unwrap();
    kept.upgrade();
    kept.answers("a wrong file");
    std::fs::remove_file(kept.path("host.toml")).unwrap();
    kept.upgrade();
    kept.answers("no file");
    std::fs::write(kept.path("host.toml"), good.replace("12:34:02", "12:34:05")).unwrap();
    kept.upgrade();
    kept.answers("another file");
    // What differs is still to be applied.
    let host = kept.path("host.toml");
    let plan = Command::new(env!("CARGO_BIN_EXE_nicety")).arg("apply").arg(host).arg("--dry-run").output().unwrap();
    let plan = String::from_utf8(plan.stdout).unwrap();
    assert!(plan.contains("52:54:00:12:34:02") && plan.contains("52:54:00:12:34:05"), "{plan}");
}

#[test]
fn an_upgrade_of_a_daemon_that_is_told_to_end_says_that_it_ends() {
    // The second one does not end by itself.
    for script in ["exec sleep 600", "trap '' TERM\nsleep 20 &\nwait; wait"] {
        let kept = Kept::start_empty();
        let (program, begun) = (kept.path("hangs"), kept.path("begun"));
        std::fs::write(&program, format!("#!/bin/sh\n: >'{}'\n{script}\n", begun.display())).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let keeper = kept.keeper.0.id().into();
        let output = std::thread::scope(|scope| {
            let asked = scope.spawn(|| kept.asked(&["upgrade", program.to_str().unwrap()]));
            let end = Instant::now() + SOON;
            while !begun.exists() {
                assert!(Instant::now() < end, "{}", kept.log());
                std::thread::sleep(Duration::from_millis(5));
            }
            signal(keeper, "TERM");
            asked.join().unwrap()
        });
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{script}: {said}\n{}", kept.log());
        assert!(said.contains("was told to end meanwhile") && !said.contains("goes on"), "{script}: {said}");
        let mut keeper = kept.keeper;
        assert_eq!(keeper.0.wait().unwrap().code(), Some(0), "{script}");
    }
}

#[test]
fn a_daemon_without_a_free_descriptor_goes_on_and_says_so() {
    let mut kept = Kept::start(&["e1000", "e1000"]);
    let pid = kept.pid();
    let limit = |soft: &str| {
        let limits = Command::new("prlimit").args(["--pid", &pid.to_string(), &format!("--nofile={soft}:")]).output();
        assert!(limits.unwrap().status.success());
    };
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    // One for the request, one for the channel: the rest is less than the descriptors of one port.
    limit(&(open + 4).to_string());
    let refused = in_time(|| kept.asked(&["upgrade"]));
    assert_eq!(refused.status.code(), Some(1), "{refused:?}\n{}", kept.log());
    let refused = String::from_utf8(refused.stderr).unwrap();
    println!("{refused}");
    assert!(refused.contains("open files") || refused.contains("ulimit -n"), "{refused}");
    assert!(refused.contains("this daemon goes on"), "{refused}");
    kept.answers("refused");
    limit("4096");
    kept.upgrade();
    kept.answers("upgraded");
}

/// Only adapters that a killed daemon's guest goes on with although its driver does nothing (docs/adr/0022).
const LIVES_ON: &str = "virtio-net-pci";

#[test]
fn a_keeper_without_a_free_descriptor_starts_the_next_daemon_all_the_same() {
    let mut kept = Kept::start(&[LIVES_ON; 2]);
    kept.answers("before");
    let keeper = kept.keeper.0.id();
    let limit = |soft: &str| {
        let limits =
            Command::new("prlimit").args(["--pid", &keeper.to_string(), &format!("--nofile={soft}:")]).output();
        assert!(limits.unwrap().status.success());
    };
    // The lowest number that is free is the one that the next descriptor would have.
    let open = std::fs::read_dir(format!("/proc/{keeper}/fd")).unwrap();
    let open: Vec<u32> = open.map(|fd| fd.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    let free = (0..).find(|fd| !open.contains(fd)).unwrap();
    limit(&u32::to_string(&free));
    // Its program begins with the keeper's limit, and raises it.
    kept.kill();
    kept.answers("killed");
    limit("4096");
    kept.upgrade();
    kept.answers("upgraded");
    let log = kept.log();
    println!("{log}");
    assert!(log.contains("would not survive a kill of the daemon: descriptors were lost: raise the limit"), "{log}");
    assert_eq!(log.matches(" has connected").count(), 2, "no connection was closed: {log}");
    kept.kill();
    kept.answers("killed again, with the upgraded daemon's descriptors");
}

/// The new program's address space is limited: with little of it the loader fails, with more the mapping of the VMs' memory.
#[test]
fn a_new_program_that_runs_out_of_memory_at_any_step_leaves_a_daemon_that_serves() {
    const MIN_MIB: usize = 20;
    const STEP_MIB: usize = 20;
    let mut kept = Kept::start(&[LIVES_ON; 2]);
    kept.answers("before");
    let (program, mut mib, mut ends) = (kept.path("small"), MIN_MIB, BTreeSet::new());
    loop {
        let (limit, nicety) = (mib << 10, env!("CARGO_BIN_EXE_nicety"));
        std::fs::write(&program, format!("#!/bin/sh\nulimit -v {limit}\nexec '{nicety}' \"$@\"\n")).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let answer = in_time(|| kept.asked(&["upgrade", program.to_str().unwrap()]));
        let said = String::from_utf8(answer.stderr).unwrap();
        println!("{mib} MiB: {}", said.trim());
        if answer.status.success() {
            // It has as little left as it gets, and may end at any moment.
            break;
        }
        kept.answers(&format!("{mib} MiB: {said}"));
        let lives = ["this daemon goes on", "begins again under its VMs"].iter().any(|words| said.contains(words));
        assert!(lives, "{mib} MiB: {said}");
        ends.insert(said);
        mib += STEP_MIB;
    }
    // The loader says that it has no room, or the kernel ends what it cannot map: that depends on the program's size.
    for whys in [&["exit code 127", "signal 11"][..], &["Cannot allocate memory"]] {
        assert!(ends.iter().any(|said| whys.iter().any(|why| said.contains(why))), "{whys:?} is missing: {ends:?}");
    }
}

/// Two guests, and a daemon that was killed and whose successors lack something: another program listens at the uplink's socket. Uplinks
/// are opened last, behind the ports.
fn lacking() -> (Kept, UnixListener) {
    let mut host = "[daemon]\ncontrol = \"control.sock\"\nworkers = 2\n\
                    [[uplink]]\nname = \"lan\"\nkind = \"pair\"\nsocket = \"lan.sock\"\nrole = \"listen\"\n"
        .to_owned();
    for number in [1, 2] {
        host += &format!(
            "[[port]]\nname = \"vm{number}\"\nadapter = \"{LIVES_ON}\"\nmac = \"52:54:00:12:34:0{number}\"\n\
             socket = \"vm{number}.sock\"\n"
        );
    }
    let mut kept = Kept::start_on(tempfile::tempdir().unwrap(), &host);
    kept.attach(&[LIVES_ON; 2]);
    kept.answers("before");
    std::fs::remove_file(kept.path("lan.sock")).unwrap();
    let taken = UnixListener::bind(kept.path("lan.sock")).unwrap();
    signal(kept.pid(), "KILL");
    let end = Instant::now() + SOON;
    while !kept.log().contains("it ended with exit code 1: it is started again") {
        assert!(Instant::now() < end, "{}", kept.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    (kept, taken)
}

#[test]
fn what_a_killed_daemons_successor_lacks_may_come_back_and_no_vmm_is_disconnected_meanwhile() {
    let (mut kept, taken) = lacking();
    drop(taken);
    kept.answers("it is free again");
    let log = kept.log();
    println!("{log}");
    assert!(log.contains("lan.sock is served by another process") && !log.contains("disconnected"), "{log}");
    assert_eq!(log.matches(" has connected").count(), 2, "{log}");
}

#[test]
fn a_keeper_that_is_to_end_starts_no_daemon_again_that_lacks_something() {
    let (mut kept, _taken) = lacking();
    // Between two tries, or in one.
    signal(u64::from(kept.keeper.0.id()), "TERM");
    let ended = kept.keeper.0.wait().unwrap();
    assert_ne!(ended.code(), Some(0), "{}", kept.log());
    let log = kept.log();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(kept.log(), log, "nobody is left who writes");
}

#[test]
fn a_vmm_that_reads_nothing_meanwhile_is_not_waited_for_and_goes_on_later() {
    let mut kept = Kept::start(&["e1000", "virtio-net"]);
    kept.answers("before");
    let pids = [0, 1].map(|guest: usize| u64::from(kept.guests[guest].process()));
    for stopped in pids {
        signal(stopped, "STOP");
        (0..3).for_each(|_| _ = kept.upgrade());
        signal(stopped, "CONT");
        kept.answers("continued");
    }
    let log = kept.log();
    assert_eq!(log.matches(" has connected").count(), 2, "{log}");
}

/// A read of a function's identity: vfio-user.rst, "Message format" and VFIO_USER_REGION_READ.
fn read_identity(number: u16) -> Vec<u8> {
    const REGION_READ: u16 = 9;
    let (region, len) = (7u32, 4u32);
    let header = [&number.to_le_bytes()[..], &REGION_READ.to_le_bytes(), &32u32.to_le_bytes(), &[0; 8]].concat();
    [&header[..], &[0; 8], &region.to_le_bytes(), &len.to_le_bytes()].concat()
}

/// Whether the other end takes something within a second.
fn is_writable(socket: &UnixStream) -> bool {
    let second = Timespec { tv_sec: 1, tv_nsec: 0 };
    poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&second)).unwrap() > 0
}

/// Bytes of the answer.
const ANSWER: usize = 36;
/// More requests than sockets and daemon take.
const REQUESTS: u16 = 60_000;

#[test]
fn a_vmm_that_takes_no_answers_refuses_no_upgrade_and_gets_each_of_them_once() {
    let mut kept = Kept::start_empty_with(&["e1000"; 3]);
    kept.attach(&["e1000"; 2]);
    let mut vmm = Vmm::connect(&kept.path("vm3.sock")).unwrap();
    vmm.socket.set_nonblocking(true).unwrap();
    let requests: Vec<u8> = (0..REQUESTS).flat_map(read_identity).collect();
    let mut sent = 0;
    while is_writable(&vmm.socket) {
        sent += vmm.socket.write(&requests[sent..]).unwrap_or(0);
        assert!(sent < requests.len(), "the daemon takes all of them");
    }
    (0..2).for_each(|_| _ = kept.upgrade());
    kept.answers("upgraded");
    let (mut answers, end) = (Vec::new(), Instant::now() + SOON);
    let mut part = vec![0; 1 << 16];
    // The last request that was begun.
    let whole = sent.next_multiple_of(32);
    while answers.len() < whole / 32 * ANSWER {
        assert!(Instant::now() < end, "{} of {}\n{}", answers.len(), whole / 32 * ANSWER, kept.log());
        if sent < whole {
            sent += vmm.socket.write(&requests[sent..whole]).unwrap_or(0);
        }
        match vmm.socket.read(&mut part) {
            Ok(0) => panic!("{}", kept.log()),
            Ok(count) => answers.extend_from_slice(&part[..count]),
            Err(_nothing_yet) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    for (number, answer) in (0u16..).zip(answers.chunks(ANSWER)) {
        assert_eq!((&answer[..2], &answer[32..]), (&number.to_le_bytes()[..], &[0x86, 0x80, 0x0e, 0x10][..]));
    }
    vmm.socket.set_nonblocking(false).unwrap();
    let mut identity = [0; 4];
    vmm.client.region_read(7, 0, &mut identity).unwrap();
    assert_eq!(identity, [0x86, 0x80, 0x0e, 0x10]);
    println!("{} requests were not read when the daemon was replaced", whole / 32);
}

/// A front end that is in the middle of a message, or takes no answers, would refuse every upgrade.
#[test]
fn a_front_end_for_which_its_thread_waits_is_sent_away_by_an_upgrade() {
    /// docs/interop/vhost-user.rst: VHOST_USER_GET_FEATURES, version 1 of the protocol, no body.
    const GET_FEATURES: [u32; 3] = [1, 1, 0];
    let question = GET_FEATURES.map(u32::to_ne_bytes).concat();
    let mut kept = Kept::start_empty_with(&["e1000", "e1000", "virtio-net"]);
    kept.attach(&["e1000", "e1000"]);
    for in_the_middle in [true, false] {
        let mut front_end = UnixStream::connect(kept.path("vm3.sock")).unwrap();
        front_end.set_read_timeout(Some(SOON)).unwrap();
        if in_the_middle {
            // The first message is whole: a connection is greeted by it.
            front_end.write_all(&question).unwrap();
            front_end.read_exact(&mut [0; 20]).unwrap();
            front_end.write_all(&question[..6]).unwrap();
        } else {
            front_end.set_nonblocking(true).unwrap();
            while is_writable(&front_end) {
                let _full = front_end.write(&question);
            }
            front_end.set_nonblocking(false).unwrap();
        }
        kept.upgrade();
        kept.answers("upgraded");
        let ended = std::io::copy(&mut front_end, &mut std::io::sink());
        let is_reset = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(ended.as_ref().map_or_else(is_reset, |_| true), "{ended:?}\n{}", kept.log());
    }
    let log = kept.log();
    assert_eq!(log.matches("an upgrade does not wait for it").count(), 2, "{log}");
    // The next one is served.
    let mut front_end = UnixStream::connect(kept.path("vm3.sock")).unwrap();
    front_end.set_read_timeout(Some(SOON)).unwrap();
    front_end.write_all(&question).unwrap();
    front_end.read_exact(&mut [0; 20]).unwrap();
}

#[test]
fn vmms_that_die_and_connect_during_upgrades_leave_their_ports_to_the_next() {
    let adapters = ["e1000", "virtio-net"];
    let mut kept = Kept::start(&adapters);
    for round in 0..6u64 {
        let guests = std::mem::take(&mut kept.guests);
        let pids: Vec<u64> = guests.iter().map(|guest| u64::from(guest.process())).collect();
        std::thread::scope(|scope| {
            let upgrade = scope.spawn(|| kept.upgrade());
            // At another time of the upgrade in each round.
            std::thread::sleep(Duration::from_millis(25 * round));
            pids.iter().for_each(|pid| signal(*pid, "KILL"));
            println!("killed after {} ms, {:.1} ms", 25 * round, upgrade.join().unwrap());
        });
        drop(guests);
        let sockets: Vec<(String, PathBuf)> = (1..)
            .zip(adapters)
            .map(|(number, adapter)| (adapter.to_owned(), kept.path(&format!("vm{number}.sock"))))
            .collect();
        let guests = std::thread::scope(|scope| {
            let start = scope.spawn(|| {
                let attach = |(adapter, socket): &(String, PathBuf)| match adapter.as_str() {
                    "virtio-net" => json!({ "vhost-user": { "socket": socket } }),
                    driver => json!({ "vfio-user": { "driver": driver, "socket": socket } }),
                };
                (1..).zip(&sockets).map(|(number, one)| Station::start(&attach(one), number)).collect::<Vec<_>>()
            });
            std::thread::sleep(Duration::from_millis(15 * round));
            println!("connected after {} ms, {:.1} ms", 15 * round, kept.upgrade());
            start.join().unwrap()
        });
        kept.guests = guests;
        kept.answers("connected again");
    }
}

/// Frames in a file of packet captures, by another library than the one that wrote it.
fn captured(path: &Path) -> usize {
    let mut reader = PcapNgReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut frames = 0;
    // The last block may be half written.
    while let Some(Ok(block)) = reader.next_block() {
        frames += usize::from(matches!(block, Block::EnhancedPacket(_)));
    }
    frames
}

#[test]
fn a_capture_goes_on_in_the_next_daemon_when_its_own_is_replaced_or_killed() {
    let mut kept = Kept::start(&["e1000", "e1000"]);
    let file = kept.path("frames.pcapng");
    let mut capture = Command::new(env!("CARGO_BIN_EXE_nicety"));
    capture.args(["capture", "vm2", "--control"]).arg(kept.path("control.sock")).arg("-w").arg(&file);
    let log = kept.path("capture.log");
    let mut capture = Process(capture.stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap());
    let said = |what: &str, times: usize| {
        let end = Instant::now() + SOON;
        while std::fs::read_to_string(&log).unwrap().matches(what).count() < times {
            assert!(Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    said("capturing vm2", 1);
    kept.upgrade();
    said("the capture goes on", 1);
    let (before, end) = (captured(&file), Instant::now() + SOON);
    while captured(&file) < before + 10 {
        assert!(Instant::now() < end, "{}", kept.log());
        kept.answers("captured");
    }
    signal(kept.pid(), "KILL");
    said("the capture goes on", 2);
    signal(capture.0.id().into(), "TERM");
    assert_eq!(capture.0.wait().unwrap().code(), Some(0));
}

/// A save that comes first stops the upgrade; one that comes during it waits, and is made by the daemon that serves then.
#[test]
fn a_save_comes_before_an_upgrade_or_after_it() {
    let mut kept = Kept::start(&["e1000", "e1000"]);
    let control = kept.path("control.sock");
    let port = |what: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nicety"));
        command.args(["port", what, "vm1"]).arg(kept.path("vm1.state")).arg("--control").arg(&control).output().unwrap()
    };
    let saved = port("save");
    assert!(saved.status.success(), "{saved:?}");
    let refused = in_time(|| kept.asked(&["upgrade"]));
    let refused = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.contains("vm1") && refused.contains("restore it first"), "{refused}");
    let restored = port("restore");
    assert!(restored.status.success(), "{restored:?}");
    std::thread::scope(|scope| {
        let upgrade = scope.spawn(|| kept.asked(&["upgrade"]));
        let saved = port("save");
        let upgraded = upgrade.join().unwrap();
        let said = String::from_utf8_lossy(&upgraded.stderr);
        // In either order one of them may be refused, with the reason; and a busy machine's worker may be late.
        let is_right = upgraded.status.success() || said.contains("restore it first") || is_late(&said);
        assert!(is_right, "{said}\n{}", kept.log());
        if saved.status.success() {
            let restored = port("restore");
            assert!(restored.status.success(), "{restored:?}\n{}", kept.log());
        }
    });
    kept.answers("restored");
    kept.upgrade();
    kept.answers("upgraded");
}
