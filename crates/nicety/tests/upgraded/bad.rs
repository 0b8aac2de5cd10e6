//! Upgrades in the middle of something else.

use pcap_file::pcapng::{Block, PcapNgReader};

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
fn a_daemon_without_a_free_descriptor_goes_on_and_says_so() {
    let mut kept = Kept::start(&["e1000", "e1000"]);
    let pid = kept.pid();
    let limit = |soft: &str| {
        let limits = Command::new("prlimit").args(["--pid", &pid.to_string(), &format!("--nofile={soft}:")]).output();
        assert!(limits.unwrap().status.success());
    };
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    limit(&(open + 6).to_string());
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
