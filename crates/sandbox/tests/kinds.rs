//! A hostile guest's code execution is assumed: a thread of each kind tries what it must not be able to do.

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::mpsc::{SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use nicety_sandbox::{
    Folders, Grant, Kind, aside, begin, confine, enter, forget_refused_here, granted, look_up, look_up_later, refusals,
    refused_here, spawn, spawn_in,
};
use nix::unistd::{Gid, Group, User, getgrouplist};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// Runs this on a thread of this kind.
fn on<T: Send + 'static>(kind: Kind, act: impl FnOnce() -> T + Send + 'static) -> T {
    begin().unwrap();
    let (send, receive) = channel();
    // From a thread that is not confined, as the test's own.
    let thread = std::thread::Builder::new().name(format!("a {kind:?}"));
    let thread = thread.spawn(move || {
        enter(kind).unwrap();
        let _ = send.send(act());
    });
    let result = receive.recv_timeout(Duration::from_secs(20)).unwrap();
    thread.unwrap().join().unwrap();
    result
}

fn errno(result: libc::c_long) -> i32 {
    assert_eq!(result, -1, "it succeeded");
    io::Error::last_os_error().raw_os_error().unwrap()
}

/// The kinds whose threads may not open files.
fn strict() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(|kind| !kind.opens())
}

#[test]
fn no_thread_that_hears_a_vmm_can_open_a_file_and_the_refusal_is_named() {
    // The folder of a lease is told to its thread, and the kernel keeps it there (`a_thread_of_one_folder_reaches_no_other`).
    for kind in strict().filter(|kind| *kind != Kind::LeaseFile) {
        let error = on(kind, || std::fs::File::open("/etc/shadow").unwrap_err());
        assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{kind:?}: {error}");
        assert!(refusals().iter().any(|refusal| refusal.kind == kind && refusal.call == "openat"), "{kind:?}");
        // Other ways to open.
        for call in [libc::SYS_openat2, libc::SYS_open_by_handle_at, libc::SYS_io_uring_setup, libc::SYS_memfd_secret] {
            // SAFETY: the arguments are zeros, which no such call takes for memory to write to.
            let refused = on(kind, move || errno(unsafe { libc::syscall(call, 0, 0, 0, 0) }));
            assert_eq!(refused, libc::EPERM, "{kind:?}: system call {call}");
        }
    }
}

/// Whatever started first: a thread of one folder is confined to it before the process is to its own.
#[test]
fn a_thread_of_one_folder_reaches_no_other() {
    begin().unwrap();
    let folder = tempfile::TempDir::new().unwrap();
    let (own, other) = (folder.path().join("own"), folder.path().join("other"));
    std::fs::create_dir(&own).unwrap();
    std::fs::write(&other, "text").unwrap();
    let (send, receive) = channel();
    let (file, link) = (own.join("file"), own.join("link"));
    std::os::unix::fs::symlink(&other, &link).unwrap();
    let thread = spawn_in(Kind::LeaseFile, "lease", &own, move || {
        std::fs::write(&file, "text").unwrap();
        let denied = [other.as_path(), link.as_path(), Path::new("/etc/passwd")]
            .map(|path| std::fs::read(path).map_err(|error| error.kind()));
        send.send((std::fs::read(&file).unwrap(), denied)).unwrap();
    });
    let (text, denied) = receive.recv_timeout(Duration::from_secs(20)).unwrap();
    thread.unwrap().join().unwrap();
    assert_eq!(text, b"text");
    if lacks_landlock() {
        println!("SKIPPED: other folders: this kernel has no Landlock");
    } else {
        assert_eq!(denied, [const { Err(io::ErrorKind::PermissionDenied) }; 3]);
    }
    let missing = folder.path().join("missing");
    let error = spawn_in(Kind::LeaseFile, "lease", &missing, || ()).map(drop).unwrap_err();
    assert_eq!(error.to_string(), format!("the folder {} cannot be used: it is not there", missing.display()));
}

/// landlock(7): the version, by its flag.
fn lacks_landlock() -> bool {
    // SAFETY: without attributes there is no memory to read.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, 1) < 1 }
}

#[test]
fn an_error_names_the_call_that_was_refused_for_it_and_none_of_before() {
    on(Kind::Worker, || {
        let refused = || assert!(std::fs::File::open("/etc/shadow").is_err());
        refused();
        assert_eq!(refused_here(), " (the sandbox refused openat)");
        assert_eq!(refused_here(), "");
        refused();
        forget_refused_here();
        assert_eq!(refused_here(), "");
    });
}

#[test]
fn no_thread_can_execute_a_program() {
    for kind in Kind::ALL {
        let refused = on(kind, || {
            let path = CString::new("/bin/true").unwrap();
            let arguments = [path.as_ptr(), std::ptr::null()];
            // SAFETY: path and arguments are terminated and live for the call.
            errno(unsafe { libc::execve(path.as_ptr(), arguments.as_ptr(), std::ptr::null()) }.into())
        });
        assert_eq!(refused, libc::EPERM, "{kind:?}");
        if kind != Kind::Starter {
            let error = on(kind, || std::process::Command::new("/bin/true").status().unwrap_err());
            assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{kind:?}: {error}");
        }
    }
}

#[test]
fn no_thread_can_look_into_another_process() {
    let parent = std::os::unix::process::parent_id();
    for kind in Kind::ALL {
        // SAFETY: PTRACE_ATTACH takes no memory.
        let refused = on(kind, move || errno(unsafe { libc::ptrace(libc::PTRACE_ATTACH, parent, 0, 0) }));
        assert_eq!(refused, libc::EPERM, "{kind:?}");
        for call in [libc::SYS_process_vm_readv, libc::SYS_process_vm_writev, libc::SYS_pidfd_open] {
            // SAFETY: without vectors there is no memory to touch; the signal 0 is none.
            let refused = on(kind, move || errno(unsafe { libc::syscall(call, parent, 0, 0, 0, 0, 0) }));
            assert_eq!(refused, libc::EPERM, "{kind:?}: system call {call}");
        }
        // A signal that does not exist would be EINVAL if the call were allowed.
        // SAFETY: kill(2) takes no memory.
        let refused = on(kind, move || errno(unsafe { libc::syscall(libc::SYS_kill, parent, 99) }));
        assert_eq!(refused, libc::EPERM, "{kind:?}: a signal to another process");
        // SAFETY: the signal 0 is none.
        let refused = on(kind, move || errno(unsafe { libc::syscall(libc::SYS_tgkill, parent, parent, 0) }));
        assert_eq!(refused, libc::EPERM, "{kind:?}: a signal to another process");
        // By a descriptor of a process, a VM's thread kills a QEMU that does not end. No other thread, and no other signal. A call that
        // the filter allows finds no descriptor -1.
        for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGSTOP, 0] {
            // SAFETY: without a siginfo_t there is no memory to read.
            let refused =
                on(kind, move || errno(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, -1, signal, 0, 0) }));
            let is_allowed = kind == Kind::Tolerance && signal == libc::SIGKILL;
            assert_eq!(refused, if is_allowed { libc::EBADF } else { libc::EPERM }, "{kind:?}: signal {signal}");
        }
    }
}

#[test]
fn threads_connect_to_nothing_or_to_unix_sockets_only() {
    let connects =
        [Kind::VhostConnect, Kind::Supervision, Kind::Log, Kind::Tolerance, Kind::LeaseEtcd, Kind::Fabric, Kind::Flows];
    for kind in Kind::ALL {
        for family in [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET, libc::AF_VSOCK] {
            // An interface's kind is asked for by netlink(7).
            if kind.opens() && family == libc::AF_NETLINK {
                continue;
            }
            // Other daemons and etcd are reached by TCP, name servers by UDP, and collectors by both.
            if matches!(kind, Kind::Tolerance | Kind::Names | Kind::LeaseEtcd | Kind::Fabric | Kind::Flows)
                && matches!(family, libc::AF_INET | libc::AF_INET6)
            {
                continue;
            }
            // SAFETY: socket(2) takes no memory.
            let refused = on(kind, move || errno(unsafe { libc::socket(family, libc::SOCK_DGRAM, 0) }.into()));
            assert_eq!(refused, libc::EPERM, "{kind:?}: family {family}");
        }
        if kind.opens() || connects.contains(&kind) {
            continue;
        }
        let error = on(kind, || std::os::unix::net::UnixStream::connect("/run/nothing").unwrap_err());
        assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{kind:?}: {error}");
        // Not by a socket that the thread has either.
        let (ours, _peer) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let error = on(kind, move || ours.connect("/run/nothing").unwrap_err());
        assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{kind:?}: {error}");
    }
}

#[test]
fn no_thread_that_hears_a_vmm_can_make_memory_executable_or_start_a_thread() {
    for kind in strict() {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping touches no other memory.
        let refused = on(kind, move || unsafe {
            errno(libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) as libc::c_long)
        });
        assert_eq!(refused, libc::EPERM, "{kind:?}");
        // SAFETY: the new mapping is this thread's own, and only its protection changes.
        let refused = on(kind, move || unsafe {
            let page = libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, flags, -1, 0);
            assert_ne!(page, libc::MAP_FAILED, "memory of its own it has");
            errno(libc::mprotect(page, 4096, protection).into())
        });
        assert_eq!(refused, libc::EPERM, "{kind:?}");
        let error = on(kind, || std::thread::Builder::new().spawn(|| ()).unwrap_err());
        assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{kind:?}: {error}");
    }
}

#[test]
fn only_the_thread_that_exports_flows_may_ask_which_bytes_tcp_has_not_brought_to_the_other_end() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    for kind in strict() {
        let near = near.try_clone().unwrap();
        let asked = on(kind, move || {
            let mut bytes: libc::c_int = 0;
            // SAFETY: the kernel writes one number, which outlives the call.
            unsafe { libc::ioctl(near.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) }
        });
        assert_eq!(asked == 0, kind == Kind::Flows, "{kind:?}");
    }
}

#[test]
fn what_a_thread_may_not_another_does_for_it_and_is_confined_itself() {
    for kind in strict() {
        assert!(on(kind, || aside(|| std::fs::read("/etc/passwd").is_ok())).unwrap(), "{kind:?}");
        let started = on(kind, || {
            let (send, receive) = channel();
            let thread = spawn(Kind::Worker, "worker9", 0, move || {
                let _ = send.send(std::fs::File::open("/etc/passwd").map(drop).map_err(|error| error.raw_os_error()));
            });
            let result = receive.recv().unwrap();
            thread.unwrap().join().unwrap();
            result
        });
        assert_eq!(started, Err(Some(libc::EPERM)), "{kind:?}: its thread is a worker");
    }
}

#[test]
fn a_thread_of_each_kind_allocates_locks_sleeps_panics_and_ends() {
    for kind in Kind::ALL {
        let slept = on(kind, || {
            let begun = Instant::now();
            let large: Vec<u8> = vec![1; 64 << 20];
            let mut grown = Vec::new();
            (0..1 << 20).for_each(|number: u64| grown.push(number));
            std::thread::sleep(Duration::from_millis(2));
            let caught = std::panic::catch_unwind(|| panic!("as a port's defect"));
            assert!(caught.is_err() && large.len() + grown.len() > 1 << 20);
            begun.elapsed()
        });
        assert!(slept >= Duration::from_millis(2), "{kind:?}");
    }
}

/// glibc reads /proc/sys/vm/overcommit_memory when a thread's heap shrinks for the first time in a process.
#[test]
fn a_worker_s_heap_shrinks_without_a_refused_call() {
    let refused = || refusals().into_iter().filter(|refusal| refusal.kind == Kind::Worker).collect::<Vec<_>>();
    let before = refused();
    on(Kind::Worker, || {
        for _ in 0..4 {
            let blocks: Vec<Vec<u8>> = (0..64).map(|_| vec![1; 100 << 10]).collect();
            drop(std::hint::black_box(blocks));
        }
    });
    assert_eq!(refused(), before);
}

/// Filters of the test's own: seccomp(2) refuses this operation with EINVAL, as a kernel that lacks it does.
fn refuse(operation: libc::c_uint) {
    let operation = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, operation.into()).unwrap();
    let rules = [(libc::SYS_seccomp, vec![SeccompRule::new(vec![operation]).unwrap()])];
    let machine = std::env::consts::ARCH.try_into().unwrap();
    let refuse = SeccompAction::Errno(libc::EINVAL.cast_unsigned());
    let filter = SeccompFilter::new(rules.into(), SeccompAction::Allow, refuse, machine).unwrap();
    seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

/// The starter inherits the test thread's filter: a process of its own does this.
#[test]
fn a_thread_that_cannot_be_confined_does_nothing_and_whoever_starts_it_is_told() {
    if std::env::var_os("NICETY_TEST_REFUSES").is_none() {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "--nocapture", "--test-threads=1"]);
        again.arg("a_thread_that_cannot_be_confined_does_nothing_and_whoever_starts_it_is_told");
        let output = again.env("NICETY_TEST_REFUSES", "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        return;
    }
    refuse(libc::SECCOMP_SET_MODE_FILTER);
    begin().unwrap();
    for kind in Kind::ALL {
        let (send, receive) = channel::<()>();
        let error = spawn(kind, "worker0", 0, move || send.send(()).unwrap()).unwrap_err().to_string();
        let words = "the thread worker0 cannot be confined to its system calls (seccomp): ";
        assert!(error.starts_with(words) && error.contains("Invalid argument"), "{error}");
        assert!(error.ends_with("; sandbox = \"off\" in [daemon] serves without"), "{error}");
        assert!(receive.recv().is_err(), "{kind:?}: it acted");
    }
    let error = confine(&Folders::new(), 0).unwrap_err().to_string();
    assert!(error.starts_with("the thread accounts cannot be confined"), "{error}");
}

/// A process of its own loses its starter. The name of a thread cannot have a NUL (`std::thread::Builder::name`): the starter panics.
#[test]
fn once_the_thread_that_starts_others_has_ended_whoever_asks_it_is_told() {
    if std::env::var_os("NICETY_TEST_ENDS").is_none() {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "--nocapture", "--test-threads=1"]);
        again.arg("once_the_thread_that_starts_others_has_ended_whoever_asks_it_is_told");
        let mut again = again.env("NICETY_TEST_ENDS", "1").spawn().unwrap();
        let begun = Instant::now();
        while again.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(10));
        }
        // It may hang.
        let _ended = again.kill();
        assert!(again.wait().unwrap().success());
        return;
    }
    begin().unwrap();
    let asked = || spawn(Kind::Worker, "worker0", 0, || ()).map(drop).map_err(|error| error.to_string());
    assert_eq!(asked(), Ok(()));
    let words = Err("the thread that starts others has ended".to_owned());
    assert_eq!(spawn(Kind::Worker, "worker\0", 0, || ()).map(drop).map_err(|error| error.to_string()), words);
    assert_eq!([asked(), asked()], [words.clone(), words]);
    assert_eq!(on(Kind::Worker, || aside(|| ())), None);
    assert!(confine(&Folders::new(), 0).is_err());
}

/// Landlock and the filter of the process's first thread cannot be taken back: a process of its own does this.
#[test]
fn the_first_thread_and_those_that_make_changes_reach_the_folders_that_were_granted_and_no_others() {
    if let Ok(abi) = std::env::var("NICETY_TEST_ABI") {
        return confined(abi.parse().unwrap());
    }
    for abi in 0..=6 {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "--nocapture", "--test-threads=1"]);
        again.arg("the_first_thread_and_those_that_make_changes_reach_the_folders_that_were_granted_and_no_others");
        let folder = tempfile::TempDir::new().unwrap();
        again.env("NICETY_TEST_ABI", abi.to_string()).env("NICETY_TEST_FOLDER", folder.path());
        let output = again.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "version {abi}: {said}");
    }
}

/// The package's unit refuses all privileged calls (SystemCallFilter in xtask/deb/nicety.service).
fn refuse_capset() {
    let machine = std::env::consts::ARCH.try_into().unwrap();
    let refuse = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let calls = [(libc::SYS_capset, Vec::new())];
    let filter = SeccompFilter::new(calls.into(), SeccompAction::Allow, refuse, machine).unwrap();
    seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

fn confined(abi: u8) {
    if abi % 2 == 1 {
        refuse_capset();
    }
    let folder = std::path::PathBuf::from(std::env::var_os("NICETY_TEST_FOLDER").unwrap());
    let mut folders = Folders::new();
    folders.grant(&folder, Grant::Write);
    begin().unwrap();
    let lacks = confine(&folders, abi).unwrap();
    println!("with version {abi}: {lacks:?}");
    let file = folder.join("file");
    std::fs::write(&file, "text").unwrap();
    let (other, own) = (folder.clone(), file.clone());
    let may = aside_of_a_worker(move || {
        (std::fs::read(own).is_ok(), std::fs::read("/etc/passwd").is_ok(), std::fs::read_dir(other).is_ok())
    });
    assert_eq!(may, (true, true, true));
    let refused = aside_of_a_worker(|| std::fs::read("/etc/shadow").err().map(|error| error.kind()));
    if lacks.as_ref().is_some_and(|lacks| lacks.contains("no Landlock")) {
        println!("SKIPPED: a change's thread and /etc/shadow: {lacks:?}");
    } else {
        assert_eq!(refused, Some(io::ErrorKind::PermissionDenied));
        assert_eq!(std::fs::read("/etc/shadow").unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(std::fs::write("/tmp/nicety-elsewhere", "text").is_err());
    }
    // The test may run as root, to which the file belongs.
    let shadow = || std::fs::File::open("/etc/shadow").err().map(|error| error.kind());
    assert_eq!(look_up(shadow), Some(Some(io::ErrorKind::PermissionDenied)));
    if lacks.as_ref().is_none_or(|lacks| !lacks.contains("no Landlock")) {
        for kind in Kind::ALL {
            let (send, receive) = channel();
            let thread = spawn(kind, "hostile", 0, move || send.send(shadow()).unwrap()).unwrap();
            let refused = receive.recv_timeout(Duration::from_secs(20)).unwrap();
            assert_eq!(refused, Some(io::ErrorKind::PermissionDenied), "{kind:?}");
            thread.join().unwrap();
        }
    }
    // Debian's own nsswitch.conf(5) asks libnss-systemd for names that no file has, once it is installed.
    let unknown = look_up(|| {
        let name = "nicety-has-no-such-name";
        let known =
            (User::from_name(name).map(|user| user.is_some()), Group::from_name(name).map(|group| group.is_some()));
        (known, getgrouplist(c"root", Gid::from_raw(0)).map(|groups| groups.is_empty()))
    });
    assert_eq!(unknown, Some(((Ok(false), Ok(false)), Ok(false))));
    let refused: Vec<_> = refusals().into_iter().filter(|refusal| refusal.kind == Kind::Accounts).collect();
    assert_eq!(refused, [], "of looking accounts up");
    // A database that does not answer keeps nobody who does not wait for it.
    let (answer, late) = channel::<()>();
    look_up_later(move || panic!("a module's defect: {:?}", late.recv())).unwrap();
    answer.send(()).unwrap();
    assert_eq!(look_up(|| 1), Some(1));
    // A replaced /etc/group is a file that no rule names, like this one.
    let looked_up = || std::fs::read("/etc/hosts").map(drop).map_err(|error| error.kind());
    assert_eq!(look_up(looked_up), Some(Ok(())));
    let written = look_up(|| std::fs::write("/etc/nicety-test", "").map_err(|error| error.kind()));
    assert_eq!(written, Some(Err(io::ErrorKind::PermissionDenied)));
    if lacks.is_none_or(|lacks| !lacks.contains("no Landlock")) {
        assert_eq!(aside_of_a_worker(looked_up), Err(io::ErrorKind::PermissionDenied));
        let elsewhere = look_up(move || std::fs::read(file).map_err(|error| error.kind()));
        assert_eq!(elsewhere, Some(Err(io::ErrorKind::PermissionDenied)));
    }
    // A panic's report names functions: their names are in the program's own file.
    let trace = backtrace_of_a_worker();
    assert!(trace.contains("backtrace_of_a_worker"), "{trace}");
    // The rest holds on every kernel.
    let error = std::process::Command::new("/bin/true").status().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    assert!(std::fs::read_to_string("/proc/thread-self/status").unwrap().contains("NoNewPrivs:\t1"));
}

/// A worker's backtrace, in words as a panic's report has it: another thread looks the names up.
fn backtrace_of_a_worker() -> String {
    let (send, receive) = channel();
    let worker = spawn(Kind::Worker, "worker0", 0, move || {
        let trace = std::backtrace::Backtrace::force_capture();
        let _ = send.send(aside(move || trace.to_string()));
    });
    let trace = receive.recv_timeout(Duration::from_secs(20)).unwrap().unwrap();
    worker.unwrap().join().unwrap();
    trace
}

/// Runs this on a thread for changes, on behalf of a worker.
fn aside_of_a_worker<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = channel();
    let worker = spawn(Kind::Worker, "worker0", 0, move || {
        let _ = send.send(aside(act));
    });
    let result = receive.recv_timeout(Duration::from_secs(20)).unwrap().unwrap();
    worker.unwrap().join().unwrap();
    result
}

#[test]
fn what_a_kernel_lacks_is_said_in_one_line() {
    let said: Vec<Option<String>> = (0..=6).map(nicety_sandbox::kernel_lacks).collect();
    assert!(said[0].as_ref().unwrap().starts_with("this kernel has no Landlock: "));
    assert_eq!(
        said[3].as_deref(),
        Some("this kernel's Landlock, version 3, cannot refuse TCP, and cannot refuse ioctl(2) on devices")
    );
    assert_eq!(said[5], None);
    assert!(said.iter().flatten().all(|line| !line.contains('\n')));
}

/// Does these one after another on a thread that nothing confines, as somebody else on this machine.
struct Elsewhere(SyncSender<Box<dyn FnOnce() + Send>>);

impl Elsewhere {
    fn new() -> Self {
        let (send, acts) = sync_channel::<Box<dyn FnOnce() + Send>>(0);
        std::thread::spawn(move || acts.into_iter().for_each(|act| act()));
        Self(send)
    }

    fn act<T: Send + 'static>(&self, act: impl FnOnce() -> T + Send + 'static) -> T {
        let (send, done) = channel();
        self.0.send(Box::new(move || send.send(act()).unwrap())).unwrap();
        done.recv_timeout(Duration::from_secs(20)).unwrap()
    }

    /// Runs this, which succeeds, with a folder as `$0`.
    fn run(&self, words: &'static str, folder: &Path) {
        let folder = folder.to_owned();
        let status = move || std::process::Command::new("sh").args(["-ec", words]).arg(folder).status().unwrap();
        assert!(self.act(status).success(), "{words}");
    }
}

/// The sentence agrees with the kernel. A process of its own is confined, and a user namespace lets it mount.
#[test]
fn a_folder_is_granted_as_long_as_the_kernel_lets_the_daemon_use_it_and_else_what_to_do_is_said() {
    if let Some(folder) = std::env::var_os("NICETY_TEST_GRANTED") {
        return granted_folders(folder.as_ref());
    }
    let own = ["--user", "--map-root-user", "--mount"];
    let mounts = std::process::Command::new("unshare").args(own).arg("true").status().is_ok_and(|done| done.success());
    let exe = std::env::current_exe().unwrap();
    let mut again = std::process::Command::new(if mounts { "unshare".as_ref() } else { exe.as_os_str() });
    if mounts {
        again.args(own).arg(&exe).env("NICETY_TEST_MOUNTS", "1");
    } else {
        println!("SKIPPED: folders that are mounted later: unshare(1) makes no user namespace here");
    }
    again.args(["--exact", "--nocapture", "--test-threads=1"]);
    again.arg("a_folder_is_granted_as_long_as_the_kernel_lets_the_daemon_use_it_and_else_what_to_do_is_said");
    let folder = tempfile::TempDir::new().unwrap();
    let output = again.env("NICETY_TEST_GRANTED", folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

fn granted_folders(base: &Path) {
    let mounts = std::env::var_os("NICETY_TEST_MOUNTS").is_some();
    let elsewhere = Elsewhere::new();
    let words = "cd $0; mkdir -p plain replaced gone covered parent/inside again other read";
    elsewhere.run(words, base);
    if mounts {
        elsewhere.run("mount -t tmpfs first $0/again", base);
    }
    let mut folders = Folders::new();
    for name in ["plain", "replaced", "gone", "covered", "parent", "again", "late"] {
        folders.grant(base.join(name), Grant::Write);
    }
    folders.grant(base.join("read"), Grant::Read);
    begin().unwrap();
    let lacks = confine(&folders, u8::MAX).unwrap();
    let has_landlock = lacks.is_none_or(|lacks| !lacks.contains("no Landlock"));
    let granted = granted().unwrap();
    let allows = |name: &str| {
        let (folder, allowed) = (base.join(name), granted.allows(&base.join(name)));
        if has_landlock && folder.exists() {
            let written = std::fs::write(folder.join("file"), "text");
            assert_eq!(allowed.is_ok(), written.is_ok(), "{name}: {allowed:?}, {written:?}");
        }
        allowed.map_err(|why| why.to_string())
    };
    let keeps = |name: &str, why: &str| {
        let folder = base.join(name);
        Err(format!("the sandbox keeps this daemon out of {}{why}", folder.display()))
    };
    let name_it = ": name it in [daemon] folders in the host file, and restart the daemon";
    let restart = ", which was made, replaced or mounted after the daemon's start: restart the daemon";
    let all = ["plain", "replaced", "gone", "covered", "parent", "parent/inside", "again"];
    all.into_iter().for_each(|name| assert_eq!(allows(name), Ok(()), "{name}"));
    assert_eq!(allows("other"), keeps("other", name_it));
    assert_eq!(allows("plain-too"), keeps("plain-too", name_it));
    assert_eq!(allows("read"), keeps("read", name_it));
    assert_eq!(granted.allows_reading(&base.join("read")), Ok(()));
    assert!(granted.allows_reading(&base.join("other")).is_err());
    let words = "cd $0; mkdir plain/new late; ln -s plain/new link; mv replaced moved; mkdir replaced; rm -r gone";
    elsewhere.run(words, base);
    ["plain/new", "plain/not-yet", "link", "moved"]
        .into_iter()
        .for_each(|name| assert_eq!(allows(name), Ok(()), "{name}"));
    ["replaced", "gone", "late"].into_iter().for_each(|name| assert_eq!(allows(name), keeps(name, restart)));
    if mounts {
        let words = "cd $0; mount -t tmpfs over covered; mount -t tmpfs over parent/inside; umount again; mount -t tmpfs second again";
        elsewhere.run(words, base);
        assert_eq!(allows("parent/inside"), Ok(()));
        ["covered", "again"].into_iter().for_each(|name| assert_eq!(allows(name), keeps(name, restart)));
    }
}
