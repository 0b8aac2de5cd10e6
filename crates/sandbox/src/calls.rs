//! The system calls of each kind of thread.

use std::collections::{BTreeMap, BTreeSet};

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use crate::{Kind, makes_sockets};

type Named = (i64, &'static str);

macro_rules! calls {
    ($($name:ident)*) => { [$((libc::$name, stringify!($name))),*] };
}

/// Calls of every thread: its own memory, locks, time, its end, its open descriptors; and those that report a panic.
const BASE: &[Named] = &calls! {
    SYS_read SYS_write SYS_readv SYS_writev SYS_close SYS_lseek SYS_fstat SYS_ppoll
    SYS_munmap SYS_mremap SYS_madvise SYS_brk SYS_mincore
    SYS_futex SYS_membarrier SYS_sched_yield SYS_sched_getaffinity SYS_set_robust_list SYS_rseq SYS_set_tid_address
    SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep SYS_nanosleep SYS_gettimeofday SYS_getcpu SYS_getrandom SYS_getrusage
    SYS_rt_sigreturn SYS_rt_sigprocmask SYS_rt_sigaction SYS_sigaltstack SYS_restart_syscall
    SYS_getpid SYS_gettid SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_exit SYS_exit_group
};
/// Messages and readiness on sockets and descriptors that the thread has.
const TALK: &[Named] = &calls! {
    SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_timerfd_settime
    SYS_recvfrom SYS_recvmsg SYS_recvmmsg SYS_sendto SYS_sendmsg SYS_sendmmsg SYS_accept SYS_accept4 SYS_shutdown
    SYS_getsockopt SYS_setsockopt SYS_getsockname SYS_getpeername
};
/// Descriptors that a VMM sends: what they are, and signals that cannot block.
const LENT: &[Named] = &calls! {
    SYS_preadv SYS_pwritev SYS_preadv2 SYS_pwritev2 SYS_pread64 SYS_pwrite64
    SYS_io_setup SYS_io_submit SYS_io_destroy SYS_io_getevents SYS_eventfd2 SYS_epoll_create1 SYS_memfd_create SYS_ftruncate
    SYS_fallocate SYS_fstatfs SYS_statx SYS_readlinkat SYS_dup
};
/// Tells the allocated pages of a VMM's memory. Since Linux 6.5; one number on all machines but Alpha.
const PRESENCE: &[Named] = &[(451, "SYS_cachestat")];
/// Files that the thread has open.
const FILE: &[Named] =
    &calls! { SYS_pwrite64 SYS_pread64 SYS_ftruncate SYS_fsync SYS_fdatasync SYS_fallocate SYS_statx };
/// Files, folders and sockets at paths. Landlock says which.
const PATHS: &[Named] = &calls! {
    SYS_openat SYS_openat2 SYS_newfstatat SYS_faccessat SYS_faccessat2 SYS_readlinkat SYS_unlinkat SYS_renameat SYS_renameat2
    SYS_mkdirat SYS_symlinkat SYS_linkat SYS_fchmod SYS_fchmodat SYS_fchown SYS_fchownat SYS_utimensat SYS_umask SYS_getcwd
    SYS_getdents64 SYS_statfs SYS_flock SYS_ioctl SYS_timerfd_create SYS_connect SYS_pipe2 SYS_dup3 SYS_socketpair
    SYS_capget SYS_getgroups SYS_getppid SYS_uname SYS_sysinfo SYS_prlimit64 SYS_fadvise64
};
/// Sockets at paths, if no other process makes them.
const SOCKETS: &[Named] = &calls! { SYS_bind SYS_listen };
/// Databases of accounts: files that are read, and services that are asked (by libnss-systemd with an event loop of its own).
const ACCOUNTS: &[Named] = &calls! {
    SYS_newfstatat SYS_statx SYS_readlinkat SYS_faccessat SYS_faccessat2 SYS_getdents64 SYS_connect SYS_ioctl SYS_getcwd SYS_pread64
    SYS_fstatfs SYS_statfs SYS_getppid SYS_getgroups SYS_uname SYS_dup SYS_prlimit64 SYS_sysinfo
    SYS_epoll_create1 SYS_timerfd_create
};
/// Names of hosts (getaddrinfo(3)): the kernel's list of this host's addresses.
const NAMES: &[Named] = &calls! { SYS_bind };
/// A small file that is locked, read, and replaced whole.
const LEASE: &[Named] = &calls! { SYS_openat SYS_newfstatat SYS_flock SYS_renameat };
/// New threads and processes.
const STARTS: &[Named] = &calls! { SYS_clone SYS_clone3 };
#[cfg(target_arch = "x86_64")]
const OLD_STARTS: &[Named] = &calls! { SYS_fork SYS_vfork };
#[cfg(not(target_arch = "x86_64"))]
const OLD_STARTS: &[Named] = &[];
/// The starter's own.
const START: &[Named] = &calls! {
    SYS_clone SYS_clone3 SYS_prctl SYS_seccomp SYS_landlock_create_ruleset SYS_landlock_add_rule SYS_landlock_restrict_self
};
#[cfg(target_arch = "x86_64")]
const OLD_BASE: &[Named] = &calls! { SYS_poll SYS_time };
#[cfg(target_arch = "x86_64")]
const OLD_TALK: &[Named] = &calls! { SYS_epoll_wait };
#[cfg(target_arch = "x86_64")]
const OLD_LENT: &[Named] = &calls! { SYS_readlink SYS_newfstatat };
#[cfg(target_arch = "x86_64")]
const OLD_PATHS: &[Named] = &calls! {
    SYS_open SYS_stat SYS_lstat SYS_access SYS_readlink SYS_unlink SYS_rename SYS_mkdir SYS_rmdir SYS_symlink SYS_link SYS_chmod
    SYS_chown SYS_lchown SYS_getdents SYS_dup2 SYS_pipe
};
#[cfg(not(target_arch = "x86_64"))]
const OLD_BASE: &[Named] = &[];
#[cfg(not(target_arch = "x86_64"))]
const OLD_TALK: &[Named] = &[];
#[cfg(not(target_arch = "x86_64"))]
const OLD_LENT: &[Named] = &calls! { SYS_newfstatat };
#[cfg(not(target_arch = "x86_64"))]
const OLD_PATHS: &[Named] = &[];

/// Calls that no thread makes, or only with certain arguments: names for the log.
const OTHERS: &[Named] = &calls! {
    SYS_execve SYS_execveat SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_pidfd_getfd SYS_pidfd_open
    SYS_pidfd_send_signal SYS_kill SYS_tgkill SYS_socket SYS_mmap SYS_mprotect SYS_pkey_mprotect SYS_fcntl SYS_bpf SYS_perf_event_open SYS_userfaultfd SYS_io_uring_setup
    SYS_io_uring_enter SYS_io_uring_register SYS_unshare SYS_setns SYS_mount SYS_umount2 SYS_chroot SYS_pivot_root SYS_setuid
    SYS_setgid SYS_setgroups SYS_setfsuid SYS_setfsgid SYS_setresuid SYS_setresgid SYS_capset SYS_keyctl SYS_personality SYS_memfd_secret SYS_mlock SYS_sched_setaffinity
    SYS_signalfd4 SYS_inotify_init1 SYS_wait4 SYS_waitid SYS_close_range SYS_sched_setscheduler SYS_name_to_handle_at
    SYS_open_by_handle_at SYS_copy_file_range SYS_splice SYS_sendfile SYS_sync_file_range SYS_getpgid SYS_getsid SYS_setpriority
};

/// A call's name. Allocates nothing: the handler of a signal asks.
pub(crate) fn known_name(number: i64) -> Option<&'static str> {
    let all = [
        BASE, TALK, LENT, PRESENCE, FILE, PATHS, SOCKETS, ACCOUNTS, LEASE, START, OLD_BASE, OLD_TALK, OLD_LENT,
        OLD_PATHS, OTHERS,
    ];
    let found = all.iter().copied().flatten().find(|(known, _)| *known == number);
    found.map(|(_, name)| name.trim_start_matches("SYS_"))
}

/// A call's name, or its number.
pub(crate) fn name(number: i64) -> String {
    known_name(number).map_or_else(|| format!("system call {number}"), str::to_owned)
}

/// Names of mappings (prctl(2)), by the C library's allocator.
const PR_SET_VMA: i32 = 0x5356_4d41;
/// The auxiliary vector (linux/prctl.h), from Linux 6.4 on: the size of a page.
const PR_GET_AUXV: i32 = 0x4155_5856;

/// Calls, each with the conditions of which one must hold: none means always.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The argument at `index` (its lower 32 bits, which are all that these calls look at) must compare so.
fn argument(index: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(index, SeccompCmpArgLen::Dword, op, value)?])
}

fn one_of(index: u8, values: &[u64]) -> Result<Vec<SeccompRule>, BackendError> {
    values.iter().map(|&value| argument(index, SeccompCmpOp::Eq, value)).collect()
}

fn always(rules: &mut Rules, lists: &[&[Named]]) {
    for (number, _) in lists.iter().copied().flatten() {
        rules.insert(*number, Vec::new());
    }
}

fn conditional(rules: &mut Rules, kind: Kind) -> Result<(), BackendError> {
    const EXEC: u64 = libc::PROT_EXEC as u64;
    if kind.opens() {
        // Modules of nsswitch.conf(5), which accounts are looked up with, are libraries.
        rules.insert(libc::SYS_mmap, Vec::new());
        rules.insert(libc::SYS_mprotect, Vec::new());
    } else {
        for call in [libc::SYS_mmap, libc::SYS_mprotect] {
            rules.insert(call, vec![argument(2, SeccompCmpOp::MaskedEq(EXEC), 0)?]);
        }
    }
    let (duplicate, seals) = (libc::F_DUPFD_CLOEXEC, libc::F_GET_SEALS);
    let fcntl = [
        libc::F_GETFD,
        libc::F_SETFD,
        libc::F_GETFL,
        libc::F_SETFL,
        duplicate,
        seals,
        libc::F_ADD_SEALS,
        libc::F_DUPFD,
    ];
    let locks = [libc::F_SETLK, libc::F_GETLK, libc::F_SETLKW, libc::F_OFD_SETLK, libc::F_OFD_GETLK];
    let fcntl = fcntl.iter().chain(locks.iter().filter(|_| kind.opens()));
    let fcntl: Vec<u64> = fcntl.map(|&command| command as u64).collect();
    rules.insert(libc::SYS_fcntl, one_of(1, &fcntl)?);
    // Whether a VMM's process is alive: the signal 0 is none.
    if kind.opens() || matches!(kind, Kind::Worker | Kind::Vhost | Kind::VhostConnect) {
        rules.insert(libc::SYS_kill, one_of(1, &[0])?);
    }
    // A panic that aborts.
    rules.insert(libc::SYS_tgkill, one_of(0, &[std::process::id().into()])?);
    if kind != Kind::Starter {
        let prctl = [
            libc::PR_SET_NAME,
            libc::PR_GET_NAME,
            libc::PR_SET_TIMERSLACK,
            libc::PR_GET_TIMERSLACK,
            PR_SET_VMA,
            PR_GET_AUXV,
        ];
        // Modules of nsswitch.conf(5) learn which capabilities the kernel knows.
        let prctl = prctl.iter().chain(kind.opens().then_some(&libc::PR_CAPBSET_READ));
        let prctl: Vec<u64> = prctl.map(|&option| option as u64).collect();
        rules.insert(libc::SYS_prctl, one_of(0, &prctl)?);
    }
    if kind.opens() {
        // The kernel describes interfaces by netlink(7).
        rules.insert(libc::SYS_socket, one_of(0, &[libc::AF_UNIX as u64, libc::AF_NETLINK as u64])?);
    } else if matches!(kind, Kind::VhostConnect | Kind::Supervision | Kind::Log) {
        rules.insert(libc::SYS_socket, one_of(0, &[libc::AF_UNIX as u64])?);
    }
    if kind == Kind::Tolerance {
        // A QEMU that does not end although it was told to. Its descriptor comes with the connection to it (SO_PEERPIDFD, unix(7)): this
        // thread cannot choose a process by its number.
        rules.insert(libc::SYS_pidfd_send_signal, one_of(1, &[libc::SIGKILL as u64])?);
        // Peers by TCP, and at UNIX sockets.
        let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
        rules.insert(libc::SYS_socket, one_of(0, &families.map(|family| family as u64))?);
    }
    if matches!(kind, Kind::LeaseEtcd | Kind::Fabric | Kind::Flows) {
        let families = [libc::AF_INET, libc::AF_INET6];
        rules.insert(libc::SYS_socket, one_of(0, &families.map(|family| family as u64))?);
    }
    if kind == Kind::Names {
        // Name servers by UDP, services of modules, and the kernel.
        let families = [libc::AF_UNIX, libc::AF_NETLINK, libc::AF_INET, libc::AF_INET6];
        rules.insert(libc::SYS_socket, one_of(0, &families.map(|family| family as u64))?);
    }
    if matches!(kind, Kind::Accounts | Kind::Names) {
        let written = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) as u64;
        rules.insert(libc::SYS_openat, vec![argument(2, SeccompCmpOp::MaskedEq(written), libc::O_RDONLY as u64)?]);
    }
    if !kind.opens() {
        // Bytes that wait; non-blocking mode; a test for a terminal.
        let requests = [libc::FIONREAD, libc::FIONBIO, libc::TCGETS];
        // Bytes that TCP has not brought to a collector: SIOCOUTQ.
        let requests = requests.iter().chain((kind == Kind::Flows).then_some(&libc::TIOCOUTQ));
        let requests: Vec<u64> = requests.copied().collect();
        rules.insert(libc::SYS_ioctl, one_of(1, &requests)?);
    }
    Ok(())
}

/// The rules of a kind.
fn rules(kind: Kind) -> Result<Rules, BackendError> {
    let mut rules = Rules::new();
    always(&mut rules, &[BASE, OLD_BASE]);
    let (connect, linger): (&[Named], &[Named]) = (&calls! { SYS_connect }, &calls! { SYS_setsockopt });
    // QEMU's end of a stream, and ours.
    let pair: &[Named] = &calls! { SYS_socketpair };
    let lists: &[&[Named]] = match kind {
        Kind::Worker | Kind::Vhost => &[TALK, OLD_TALK, LENT, PRESENCE, OLD_LENT],
        Kind::VhostConnect => &[TALK, OLD_TALK, LENT, PRESENCE, OLD_LENT, connect],
        Kind::Memory => &[LENT, PRESENCE, OLD_LENT],
        Kind::Control | Kind::Farewell => &[TALK, OLD_TALK],
        Kind::Closing => &[linger],
        Kind::Releasing => &[],
        Kind::Traces | Kind::Capture => &[FILE],
        Kind::Supervision => &[TALK, connect],
        Kind::Tolerance => &[TALK, connect, pair],
        Kind::Log => &[TALK, FILE, LENT],
        Kind::ControlChange | Kind::Main => &[TALK, OLD_TALK, LENT, PRESENCE, OLD_LENT, FILE, PATHS, OLD_PATHS],
        Kind::Accounts => &[TALK, OLD_TALK, ACCOUNTS],
        Kind::Names => &[TALK, OLD_TALK, ACCOUNTS, NAMES],
        Kind::LeaseFile => &[FILE, LEASE],
        Kind::LeaseEtcd | Kind::Fabric | Kind::Flows => &[TALK, OLD_TALK, connect],
        Kind::Starter => &[TALK, OLD_TALK, LENT, PRESENCE, OLD_LENT, FILE, PATHS, OLD_PATHS, START],
    };
    always(&mut rules, lists);
    if makes_sockets() && matches!(kind, Kind::ControlChange | Kind::Main | Kind::Starter) {
        always(&mut rules, &[SOCKETS]);
    }
    conditional(&mut rules, kind)?;
    Ok(rules)
}

/// The calls that threads of any kind may make, by name.
pub(crate) fn all() -> Result<BTreeSet<String>, BackendError> {
    let mut names = BTreeSet::new();
    for kind in Kind::ALL {
        names.extend(rules(kind)?.into_keys().map(name));
    }
    Ok(names)
}

/// The filters of a kind. Calls that are not in its list raise SIGSYS, by the last one. Threads and processes cannot be started, by
/// the first one, without a signal: the C library blocks all signals meanwhile, and the kernel would end the process instead.
pub(crate) fn compile(kind: Kind) -> Result<Vec<BpfProgram>, BackendError> {
    let machine = std::env::consts::ARCH.try_into()?;
    let mut rules = rules(kind)?;
    let mut programs = Vec::new();
    if kind != Kind::Starter {
        let mut starts = Rules::new();
        always(&mut starts, &[STARTS, OLD_STARTS]);
        let refuse = SeccompAction::Errno(libc::EPERM as u32);
        programs.push(SeccompFilter::new(starts, SeccompAction::Allow, refuse, machine)?.try_into()?);
        // Of two filters' answers, a signal would go before an error.
        always(&mut rules, &[STARTS, OLD_STARTS]);
    }
    programs.push(SeccompFilter::new(rules, SeccompAction::Trap, SeccompAction::Allow, machine)?.try_into()?);
    Ok(programs)
}
