//! A daemon's log on a pipe that is full.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::scratch::{HOST, Scratch, TIMEOUT};

/// Connections: with `NICETY_LOG=debug` each one logs a line of its own, and none is left out.
const TIMES: usize = 300;
/// Longest time for an answer.
const ANSWER: Duration = Duration::from_secs(20);
/// Longest time for the end.
const END: Duration = Duration::from_secs(10);

const LEFT_OUT: &str = " lines were left out: standard error took no more";

/// A daemon with two vfio-user ports that logs to a pipe of 4 KiB. It is killed if a test fails before its end.
struct Daemon {
    scratch: Scratch,
    child: Child,
    log: File,
}

impl Daemon {
    fn start() -> Daemon {
        let scratch = Scratch::with(&HOST.replace("virtio-net", "vmxnet3"));
        let (log, stderr) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        fcntl_setpipe_size(&stderr, 4096).unwrap();
        let mut command = scratch.command(&["serve"]);
        command.env("NICETY_LOG", "debug").stderr(stderr).stdout(Stdio::null());
        let child = command.spawn().unwrap();
        Daemon { scratch, child, log: File::from(log) }
    }

    /// A VMM connects to a port, gets its version, and disconnects.
    fn meet(&self, socket: &str) {
        let (socket, end) = (self.scratch.path().join(socket), Instant::now() + TIMEOUT);
        while !hears(&socket) {
            assert!(Instant::now() < end, "nobody answers at {}", socket.display());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn end(&mut self) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let end = Instant::now() + END;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a daemon answers there for a new VMM. The previous VMM may still be connected.
fn hears(socket: &Path) -> bool {
    let vmm = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    // The timeout also covers connecting: a daemon that hangs accepts no connection.
    for timeout in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&vmm, timeout, Some(ANSWER)).unwrap();
    }
    if rustix::net::connect(&vmm, &SocketAddrUnix::new(socket).unwrap()).is_err() {
        return false;
    }
    let mut vmm = UnixStream::from(vmm);
    // VFIO_USER_VERSION (vfio-user.rst, "Header", "VFIO_USER_VERSION"), without capabilities.
    let version = [&[1, 0, 1, 0, 23, 0, 0, 0][..], &[0; 8], b"\0\0\0\0{}\0"].concat();
    let mut reply = [0; 4096];
    let answer = vmm.write_all(&version).and_then(|()| vmm.read(&mut reply));
    // A refused VMM gets an error (vfio-user.rst, "Header": flags, bit 5). The previous VMM stays connected while a process that
    // another test is starting still has its socket.
    answer.is_ok_and(|bytes| bytes > 0) && reply[8] & 0x20 == 0
}

/// The lines of a log. Each one must begin and end like a log line.
fn whole(log: &str) -> Vec<&str> {
    assert!(log.ends_with('\n'), "{:?}", log.lines().last());
    for line in log.lines() {
        let (time, rest) = line.split_at_checked(27).unwrap_or_else(|| panic!("half a line: {line:?}"));
        let level = rest.split_whitespace().next().unwrap_or_default();
        let begins = time.starts_with("20") && time.ends_with('Z') && ["DEBUG", "INFO", "WARN"].contains(&level);
        assert!(begins && line.matches("Z ").count() == 1, "{line:?}");
    }
    log.lines().collect()
}

#[test]
fn a_log_that_nobody_reads_holds_up_no_port_no_question_and_no_end() {
    let mut daemon = Daemon::start();
    (0..TIMES).for_each(|_| daemon.meet("vm1.sock"));
    daemon.meet("vm2.sock");
    assert_eq!(daemon.scratch.run(&["ports"]).code, Some(0));
    assert_eq!(daemon.end().code(), Some(0));
    assert_eq!(daemon.scratch.sockets(), [""; 0]);
    let mut log = String::new();
    daemon.log.read_to_string(&mut log).unwrap();
    assert!(!whole(&log).is_empty() && log.len() <= 4096, "{} bytes", log.len());
}

#[test]
fn who_reads_a_log_late_reads_whole_lines_and_all_of_them_or_how_many_were_left_out() {
    // More than the pipe holds; then more than the daemon keeps.
    for (times, all) in [(TIMES, true), (16 * TIMES, false)] {
        let mut daemon = Daemon::start();
        (0..times).for_each(|_| daemon.meet("vm1.sock"));
        let mut late = BufReader::new(daemon.log.try_clone().unwrap());
        let (reports, reported) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            let mut log = String::new();
            let mut before = 0;
            while late.read_line(&mut log).unwrap() > 0 {
                if log[before..].contains(LEFT_OUT) {
                    let _test_failed = reports.send(());
                }
                before = log.len();
            }
            log
        });
        if !all {
            reported.recv_timeout(TIMEOUT).unwrap();
        }
        assert_eq!(daemon.end().code(), Some(0));
        let log = reader.join().unwrap();
        let sessions = whole(&log).iter().filter(|line| line.contains("its session")).count();
        assert!(log.contains("all sockets are ready") && log.contains("ending signal="), "{} bytes", log.len());
        assert_eq!(
            (sessions == times, log.contains(LEFT_OUT)),
            (all, !all),
            "{sessions} of {times}, {} bytes",
            log.len()
        );
    }
}

#[test]
fn the_log_on_a_terminal_has_colours_unless_no_color_is_set() {
    for (no_color, coloured) in [(None, true), (Some(""), true), (Some("1"), false)] {
        let scratch = Scratch::with(HOST);
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let path = ptsname(&ours, Vec::new()).unwrap();
        let theirs = File::options().write(true).open(Path::new(path.to_str().unwrap())).unwrap();
        let mut command = scratch.command(&["serve"]);
        command.env_remove("NO_COLOR").envs(no_color.map(|value| ("NO_COLOR", value)));
        let mut child = command.stderr(theirs).stdout(Stdio::null()).spawn().unwrap();
        drop(command);
        let ready = BufReader::new(File::from(ours)).lines().map_while(Result::ok);
        let ready = ready.into_iter().find(|line| line.contains("all sockets are ready"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(ready.unwrap().contains("\x1b["), coloured, "NO_COLOR={no_color:?}");
    }
}
