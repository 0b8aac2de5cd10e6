//! The sandbox of a real daemon.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::Command;
use std::time::Instant;

use nicety_vfio_user::{Client, DmaProtection, DmaRange};
use rustix::process::Signal;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use crate::scratch::{HOST, Scratch, Served, TIMEOUT};

/// The lines of /proc/PID/task/*/status that say how each thread is confined: its name, `NoNewPrivs` and `Seccomp` (proc(5): 2 is
/// a filter).
fn threads(served: &Served) -> Vec<(String, String, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", served.pid())).unwrap();
    let status = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).unwrap());
    let of = |status: &str, key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap_or_else(|| panic!("{key} in {status}")).trim().to_owned()
    };
    status.map(|text| (of(&text, "Name:"), of(&text, "NoNewPrivs:"), of(&text, "Seccomp:"))).collect()
}

/// A guest's memory.
const SHARED: DmaRange = DmaRange { address: 0, size: 1 << 20 };

fn shares(vmm: &mut Client) -> Result<(), nicety_vfio_user::ClientError> {
    let file = nicety_memory::shared_file("guest", SHARED.size).unwrap();
    vmm.dma_map(SHARED, DmaProtection { read: true, write: true }, Some((file.as_fd(), 0)))
}

#[test]
fn every_thread_of_a_daemon_is_confined_and_with_sandbox_off_none_is() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let mut vmm = Client::connect(scratch.path().join("vm1.sock")).unwrap();
    let (begun, is_memory) = (Instant::now(), |(name, ..): &(String, String, String)| name == "memory vm1");
    let all = loop {
        // The thread that maps it ends when it has had nothing to do for a while.
        shares(&mut vmm).unwrap();
        let all = threads(&served);
        if all.iter().any(is_memory) || begun.elapsed() > TIMEOUT {
            break all;
        }
        vmm.dma_unmap(SHARED).unwrap();
    };
    for name in ["worker0", "memory vm1", "vhost vm2", "control", "log", "starter", "accounts", "nicety"] {
        assert!(all.iter().any(|(thread, ..)| thread == name), "no {name} in {all:?}");
    }
    assert!(all.iter().all(|(_, privileges, filter)| privileges == "1" && filter == "2"), "{all:?}");
    assert_eq!(served.end(Signal::TERM), Some(0));
    let scratch = Scratch::with(&format!("{HOST}\n[daemon]\nsandbox = \"off\"\n"));
    let served = Served::start(&scratch);
    let all = threads(&served);
    assert!(all.iter().all(|(_, privileges, filter)| privileges == "0" && filter == "0"), "{all:?}");
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn a_live_change_to_a_folder_that_was_not_granted_is_refused_with_the_key_to_set() {
    let (scratch, elsewhere) = (Scratch::with(HOST), Scratch::new());
    let served = Served::start(&scratch);
    let folder = elsewhere.path().display();
    let socket = format!("socket={folder}/vm3.sock");
    let add = ["port", "add", "vm3", "adapter=e1000", "mac=52:54:00:12:34:03", socket.as_str()];
    let refused = scratch.run(&add);
    let why = format!(
        "port vm3: the sandbox keeps this daemon out of {folder}: name it in [daemon] folders in the host file, and restart the daemon"
    );
    assert!(refused.code != Some(0) && refused.err.contains(&why), "{refused:?}");
    assert!(elsewhere.sockets().is_empty());
    assert_eq!(served.end(Signal::TERM), Some(0));
    let granted = Scratch::with(&format!("{HOST}\n[daemon]\nfolders = \"{folder}\"\n"));
    let served = Served::start(&granted);
    let added = granted.run(&add);
    assert_eq!((added.code, added.out.as_str()), (Some(0), "+ port vm3\n"), "{added:?}");
    assert_eq!(elsewhere.sockets(), ["vm3.sock"]);
    let removed = granted.run(&["port", "remove", "vm3"]);
    assert_eq!(removed.code, Some(0), "{removed:?}");
    assert!(elsewhere.sockets().is_empty(), "a worker has its socket removed");
    assert_eq!(served.end(Signal::TERM), Some(0));
    assert!(granted.sockets().is_empty() && scratch.sockets().is_empty());
}

/// What no key of the host file would mend is not said to be the sandbox's.
#[test]
fn a_live_change_to_what_is_missing_or_read_only_is_refused_with_that_reason() {
    let scratch = Scratch::with(HOST);
    let read_only = scratch.path().join("unit");
    std::fs::create_dir(&read_only).unwrap();
    let words = format!("mount -t tmpfs -o ro none {} && exec \"$0\" serve", read_only.display());
    let has_mounts = Command::new("unshare").args(["-rm", "true"]).status().is_ok_and(|done| done.success());
    let served = if has_mounts {
        Served::by(&scratch, &format!("exec unshare -rm sh -c '{words}' \"$0\""))
    } else {
        println!("SKIPPED: a read-only folder: unshare(1) makes no user namespace here");
        Served::start(&scratch)
    };
    let refused = |keys: &[&str]| {
        let add = ["port", "add", "vm3", "adapter=e1000", "mac=52:54:00:12:34:03"];
        let refused = scratch.run(&[&add, keys].concat());
        assert_eq!(refused.code, Some(1), "{refused:?}");
        refused.err
    };
    let rom = refused(&["socket=vm3.sock", "rom=/absent.rom"]);
    let missing = "port vm3: the option ROM /absent.rom cannot be used: No such file or directory";
    assert!(rom.contains(missing) && !rom.contains("sandbox"), "{rom}");
    let absent = refused(&["socket=/absent/vm3.sock"]);
    let no_folder = "port vm3: the socket /absent/vm3.sock has no folder: make /absent or choose another path";
    assert!(absent.contains(no_folder), "{absent}");
    let root = refused(&["socket=/vm3.sock"]);
    if has_mounts || rustix::process::geteuid().is_root() {
        let apart = "port vm3: the sandbox keeps this daemon out of the root folder: choose a path in another folder";
        assert!(root.contains(apart) && !root.contains("[daemon] folders"), "{root}");
    }
    if has_mounts {
        let socket = format!("socket={}/vm3.sock", read_only.display());
        let why = refused(&[&socket]);
        assert!(why.contains("Read-only file system") && !why.contains("sandbox"), "{why}");
    }
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn a_live_change_to_a_folder_that_was_replaced_after_the_start_is_refused_before_anything_is_changed() {
    let elsewhere = Scratch::new();
    let folder = elsewhere.path().join("vms");
    std::fs::create_dir(&folder).unwrap();
    let scratch = Scratch::with(&format!("{HOST}\n[daemon]\nfolders = \"{}\"\n", folder.display()));
    let served = Served::start(&scratch);
    std::fs::rename(&folder, elsewhere.path().join("moved")).unwrap();
    std::fs::create_dir(&folder).unwrap();
    let socket = format!("socket={}/vm1.sock", folder.display());
    let refused = scratch.run(&["port", "set", "vm1", &socket]);
    let why = format!(
        "port vm1: the sandbox keeps this daemon out of {}, which was made, replaced or mounted after the daemon's start: restart the daemon",
        folder.display()
    );
    assert!(refused.code != Some(0) && refused.err.contains(&why), "{refused:?}");
    assert!(scratch.sockets().contains(&"vm1.sock".to_owned()), "the port stays where it was");
    assert_eq!(served.end(Signal::TERM), Some(0));
    let served = Served::start(&scratch);
    assert_eq!(scratch.run(&["port", "set", "vm1", &socket]).code, Some(0));
    assert!(folder.join("vm1.sock").exists());
    assert_eq!(served.end(Signal::TERM), Some(0));
}

/// Runs this on a thread, and in processes that it starts, where system calls meet this filter.
fn under<T: Send>(filter: SeccompFilter, act: impl FnOnce() -> T + Send) -> T {
    let filter = BpfProgram::try_from(filter).unwrap();
    let thread = || {
        seccompiler::apply_filter(&filter).unwrap();
        act()
    };
    std::thread::scope(|scope| scope.spawn(thread).join().unwrap())
}

/// A filter that answers these calls so, each if one of its rules holds or it has none.
fn filter(calls: impl IntoIterator<Item = (i64, Vec<SeccompRule>)>, answer: SeccompAction) -> SeccompFilter {
    let machine = std::env::consts::ARCH.try_into().unwrap();
    SeccompFilter::new(calls.into_iter().collect(), SeccompAction::Allow, answer, machine).unwrap()
}

/// The argument has this value.
fn argument(index: u8, value: u64) -> SeccompRule {
    let is = SeccompCondition::new(index, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value);
    SeccompRule::new(vec![is.unwrap()]).unwrap()
}

#[test]
fn a_daemon_that_cannot_be_confined_does_not_serve_unless_it_is_told_to() {
    let off = format!("{HOST}\n[daemon]\nsandbox = \"off\"\n");
    let refuse = SeccompAction::Errno(libc::EINVAL.cast_unsigned());
    for (operation, why) in [
        (libc::SECCOMP_GET_ACTION_AVAIL, "this kernel cannot confine the daemon's threads (seccomp): "),
        (libc::SECCOMP_SET_MODE_FILTER, "the thread log cannot be confined to its system calls (seccomp): "),
    ] {
        let refused = || filter([(libc::SYS_seccomp, vec![argument(0, operation.into())])], refuse.clone());
        let scratch = Scratch::with(HOST);
        let ended = under(refused(), || scratch.run(&["serve"]));
        let words = format!("nicety: {why}");
        assert!(ended.code == Some(1) && ended.err.starts_with(&words), "{ended:?}");
        assert!(ended.err.ends_with("; sandbox = \"off\" in [daemon] serves without\n"), "{ended:?}");
        assert!(scratch.sockets().is_empty());
        let scratch = Scratch::with(&off);
        let served = under(refused(), || Served::start(&scratch));
        assert_eq!(served.end(Signal::TERM), Some(0));
    }
}

/// A systemd unit may forbid it (RestrictAddressFamilies=).
#[test]
fn a_page_whose_sockets_are_forbidden_is_not_served_and_the_daemon_is() {
    let scratch = Scratch::with(&format!("{HOST}\n[daemon]\npage = \"127.0.0.1:8642\"\n"));
    let inet = argument(0, u64::try_from(libc::AF_INET).unwrap());
    let forbid =
        || filter([(libc::SYS_socket, vec![inet.clone()])], SeccompAction::Errno(libc::EAFNOSUPPORT.cast_unsigned()));
    let why = "the page is not served: the page at http://127.0.0.1:8642/: Address family not supported by protocol";
    let check = under(forbid(), || scratch.run(&["serve", "--check"]));
    assert!(check.code == Some(0) && check.err.contains(&format!("warning: {why}")), "{check:?}");
    let served = under(forbid(), || Served::start(&scratch));
    assert!(served.before.iter().any(|line| line.contains("WARN") && line.contains(why)), "{:?}", served.before);
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn a_folder_of_the_host_file_that_is_missing_at_the_start_is_a_warning_with_what_to_do() {
    let scratch = Scratch::with(&format!("{HOST}\n[daemon]\nfolders = \"vms\"\n"));
    let served = Served::start(&scratch);
    let folder = scratch.path().join("vms");
    let folder = folder.display();
    let warning = format!(
        "{folder} does not exist, and stays out of the daemon's reach: make that folder, and restart the daemon"
    );
    assert!(served.before.iter().any(|line| line.contains("WARN") && line.ends_with(&warning)), "{:?}", served.before);
    assert_eq!(served.end(Signal::TERM), Some(0));
    std::fs::create_dir(scratch.path().join("vms")).unwrap();
    let served = Served::start(&scratch);
    assert!(!served.before.iter().any(|line| line.contains("does not exist")), "{:?}", served.before);
    assert_eq!(served.end(Signal::TERM), Some(0));
}

/// A daemon for which the kernel traps these calls, as the sandbox's own filters do with a call that a list lacks.
fn trapped(scratch: &Scratch, calls: impl IntoIterator<Item = (i64, Vec<SeccompRule>)> + Send) -> Served {
    under(filter(calls, SeccompAction::Trap), || Served::start(scratch))
}

/// Waits until the log has a line with all words of each entry: another thread writes it. Then ends the daemon, which has lived until now.
#[track_caller]
fn lived(served: Served, expected: &[&[&str]]) {
    let mut log = served.before.clone();
    let has = |log: &[String], words: &[&str]| log.iter().any(|line| words.iter().all(|words| line.contains(words)));
    while !expected.iter().all(|words| has(&log, words)) {
        log.push(served.line(""));
    }
    assert_eq!(served.end(Signal::TERM), Some(0), "{log:#?}");
}

#[test]
fn a_refused_call_of_a_thread_that_hears_a_vmm_ends_that_connection_alone_and_is_named() {
    let scratch = Scratch::with(HOST);
    let served = trapped(&scratch, [(libc::SYS_recvmsg, Vec::new())]);
    for name in ["vm1.sock", "vm2.sock"] {
        let mut vmm = UnixStream::connect(scratch.path().join(name)).unwrap();
        vmm.set_read_timeout(Some(TIMEOUT)).unwrap();
        vmm.write_all(&[0; 64]).unwrap();
        // A reset, or the end.
        let ended =
            vmm.read(&mut [0; 64]).map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |count| count == 0);
        assert!(ended, "{name}");
    }
    // The connection ends before the port has the reason.
    let reasons = ["receiving from the peer failed: ", "the socket: "]
        .map(|why| format!("{why}Operation not permitted (os error 1) (the sandbox refused recvmsg)\n"));
    let begun = Instant::now();
    loop {
        let ports = scratch.run(&["ports", "--long"]);
        if reasons.iter().all(|why| ports.out.contains(why)) {
            break;
        }
        assert!(begun.elapsed() < TIMEOUT, "{ports:?}");
    }
    let expected: [&[&str]; 4] = [
        &["WARN worker0: the sandbox refused recvmsg"],
        &["WARN vhost vm2: the sandbox refused recvmsg"],
        &["WARN the VMM is disconnected: receiving from the peer failed: Operation not permitted", "port=\"vm1\""],
        &["WARN the front end is disconnected: the socket: Operation not permitted", "port=\"vm2\""],
    ];
    lived(served, &expected);
}

#[test]
fn a_refused_call_while_memory_is_mapped_refuses_that_memory_and_is_named() {
    let scratch = Scratch::with(HOST);
    // Memory of our own is private.
    let shared = argument(3, libc::MAP_SHARED as u64);
    let more = argument(3, (libc::MAP_SHARED | libc::MAP_NORESERVE) as u64);
    let served = trapped(&scratch, [(libc::SYS_mmap, vec![shared, more])]);
    let mut vmm = Client::connect(scratch.path().join("vm1.sock")).unwrap();
    let refused = shares(&mut vmm);
    assert!(refused.is_err(), "{refused:?}");
    lived(served, &[&["WARN memory vm1: the sandbox refused mmap"]]);
}

#[test]
fn a_refused_call_of_a_thread_that_connects_to_a_front_end_is_the_reason_that_the_port_gives() {
    let scratch = Scratch::with(&format!("{HOST}role = \"connect\"\n"));
    let served = trapped(&scratch, [(libc::SYS_connect, Vec::new())]);
    let ports = scratch.run(&["ports", "vm2"]);
    assert!(
        ports.out.contains("vm2: connecting to ") && ports.out.contains(" (the sandbox refused connect)"),
        "{ports:?}"
    );
    lived(served, &[&["WARN vhost vm2: the sandbox refused connect"]]);
}

#[test]
fn a_refused_call_of_the_control_thread_or_of_a_change_ends_that_request_alone_and_is_named() {
    let scratch = Scratch::with(HOST);
    let served = trapped(&scratch, [(libc::SYS_writev, Vec::new())]);
    let refused = scratch.run(&["ports"]);
    assert!(refused.code == Some(1) && refused.err.contains("its answer is cut"), "{refused:?}");
    lived(served, &[&["WARN control: the sandbox refused writev"]]);
    let scratch = Scratch::with(HOST);
    let served = trapped(&scratch, [(libc::SYS_renameat, Vec::new())]);
    let changed = scratch.run(&["port", "set", "vm1", "mtu_limit=1400"]);
    let why = "was not kept: after a restart of the daemon it is gone (";
    assert!(changed.err.contains(why) && changed.err.contains(" (the sandbox refused renameat)"), "{changed:?}");
    lived(served, &[&["WARN control-change: the sandbox refused renameat"]]);
    // No port of the host file has a group.
    let scratch = Scratch::with(HOST);
    let served =
        trapped(&scratch, [libc::SYS_fchownat, libc::SYS_lchown, libc::SYS_chown].map(|call| (call, Vec::new())));
    let words = ["adapter=e1000", "mac=52:54:00:12:34:03", "socket=vm3.sock", "group=0"];
    let refused = scratch.run(&[&["port", "add", "vm3"][..], &words].concat());
    let named =
        refused.err.contains("(the sandbox refused fchownat)") || refused.err.contains("(the sandbox refused lchown)");
    assert!(refused.code == Some(1) && named, "{refused:?}");
    assert_eq!(scratch.sockets(), ["nicety-lan.sock", "vm1.sock", "vm2.sock"]);
    lived(served, &[&["WARN control-change: the sandbox refused "]]);
}

#[test]
fn a_refused_call_of_the_thread_that_reports_to_the_manager_is_named_and_the_daemon_serves() {
    let scratch = Scratch::with(HOST);
    let manager = UnixDatagram::bind(scratch.path().join("notify")).unwrap();
    manager.set_nonblocking(true).unwrap();
    let words = "NOTIFY_SOCKET=$PWD/notify WATCHDOG_USEC=300000 WATCHDOG_PID=$$ exec \"$0\" serve";
    let connect = filter([(libc::SYS_connect, Vec::new())], SeccompAction::Trap);
    let served = under(connect, || Served::by(&scratch, words));
    served.line("supervision: the sandbox refused connect");
    assert!(scratch.run(&["ports"]).out.contains("vm1"));
    assert_eq!(served.end(Signal::TERM), Some(0));
}

/// As configuration management lays it: the host file and an option ROM are links to files elsewhere.
#[test]
fn a_host_file_that_is_a_link_is_read_again_and_so_is_the_rom_that_it_names() {
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    let there = |name: &str| elsewhere.path().join(name);
    std::fs::create_dir(there("roms")).unwrap();
    // PCI Firmware Specification 3.0, 5.1: the signature, a length in units of 512 bytes, and where the data structure is.
    let mut rom = vec![0; 512];
    rom[..3].copy_from_slice(&[0x55, 0xaa, 1]);
    rom[0x18] = 0x1c;
    rom[0x1c..0x20].copy_from_slice(b"PCIR");
    rom[0x1c + 0x0a] = 0x18;
    rom[0x1c + 0x10] = 1;
    rom[0x1c + 0x15] = 0x80;
    std::fs::write(there("roms/boot.rom"), rom).unwrap();
    let with = |text: &str| std::fs::write(there("real.toml"), text).unwrap();
    with(HOST);
    for (link, to) in [("host.toml", there("real.toml")), ("boot.rom", there("roms/boot.rom"))] {
        std::os::unix::fs::symlink(to, scratch.path().join(link)).unwrap();
    }
    let text = HOST.replacen("socket = \"vm1.sock\"", "socket = \"vm1.sock\"\nrom = \"boot.rom\"", 1);
    with(&text);
    let served = Served::start(&scratch);
    with(&text.replacen("[[port]]", "[[port]]\nmtu_limit = 1400", 1));
    served.signal(Signal::HUP);
    served.line("was applied: ~ port vm1: mtu_limit");
    // A port that is made again reads its ROM again.
    let restarted = scratch.run(&["port", "set", "vm1", "mac=52:54:00:12:34:09"]);
    assert_eq!(restarted.code, Some(0), "{restarted:?}");
    assert_eq!(served.end(Signal::TERM), Some(0));
}
