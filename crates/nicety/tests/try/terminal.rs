//! A person at a terminal: a shell, a window that is closed, a guest that powers itself off.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::{Killed, Scratch, TIMEOUT, gone, text};

/// A terminal with `nicety try` at its other end.
struct Terminal {
    child: Killed,
    /// The only descriptor of this end: closing it closes the terminal.
    keys: File,
    text: String,
}

impl Terminal {
    /// A terminal that controls no session: the kernel sends no signals when it closes.
    fn open(scratch: &Scratch, words: &[&str]) -> Terminal {
        Terminal::with(scratch.command(words))
    }

    /// A terminal that controls a session, as a window does.
    fn controlling(scratch: &Scratch, words: &[&str]) -> Terminal {
        let inner = scratch.command(words);
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(inner.get_program()).args(inner.get_args()).current_dir(&scratch.0);
        command.env("XDG_RUNTIME_DIR", scratch.runtime());
        Terminal::with(command)
    }

    fn with(mut command: Command) -> Terminal {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        tcsetwinsize(&ours, Winsize { ws_row: 33, ws_col: 101, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let path = ptsname(&ours, Vec::new()).unwrap();
        let theirs = || File::options().read(true).write(true).open(Path::new(path.to_str().unwrap())).unwrap();
        command.stdin(theirs()).stdout(theirs()).stderr(theirs()).env("TERM", "xterm");
        let child = Killed(command.spawn().unwrap());
        drop(command);
        let ours: OwnedFd = ours;
        Terminal { child, keys: File::from(ours), text: String::new() }
    }

    fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the terminal shows a text, and discards the text before it.
    #[track_caller]
    fn shows(&mut self, what: &str) {
        let timeout = Timespec::try_from(TIMEOUT).unwrap();
        while !self.text.contains(what) {
            let mut bytes = [0; 4096];
            let ready = poll(&mut [PollFd::new(&self.keys, PollFlags::IN)], Some(&timeout)).unwrap();
            // Reading a terminal fails when no process has its other end open.
            match if ready == 0 { Ok(0) } else { self.keys.read(&mut bytes) } {
                Ok(read @ 1..) => self.text.push_str(&text(&bytes[..read])),
                silent => panic!("{what:?} does not come ({silent:?}): {:?}", self.text),
            }
        }
        let end = self.text.find(what).unwrap() + what.len();
        self.text.drain(..end);
    }

    /// Closes the terminal, as one closes a window. Returns the exit code.
    fn close(self) -> Option<i32> {
        let Terminal { mut child, keys, .. } = self;
        drop(keys);
        child.0.wait().unwrap().code()
    }
}

#[test]
fn a_shell_has_the_terminal_as_any_shell_and_ctrl_c_is_the_guests() {
    let scratch = Scratch::new();
    let mut terminal = Terminal::open(&scratch, &["e1000"]);
    terminal.shows("eth0 is an e1000, 10.0.0.1");
    terminal.shows("ping peer");
    terminal.types("stty size; tty; echo $((6 * 7))\r");
    terminal.shows("33 101\r\n/dev/tty0\r\n42\r\n");
    // Wait for the program's own output before Ctrl-C: until bash's child becomes the program it has bash's handler, and an
    // interrupt in between is lost, on any terminal.
    terminal.types("sh -c 'echo sleeps; exec sleep 600'\r");
    terminal.shows("sleeps\r\n");
    terminal.types("\x03");
    terminal.shows("# ");
    terminal.types("echo still $((6 * 7))\r");
    terminal.shows("still 42\r\n");
    tcsetwinsize(&terminal.keys, Winsize { ws_row: 44, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    // The test's terminal controls no session, so the kernel sends no signal for its new size.
    let nicety = Pid::from_raw(only_child(terminal.child.0.id())).unwrap();
    kill_process(nicety, Signal::WINCH).unwrap();
    terminal.types("until stty size | grep '44 80'; do sleep 0.1; done\r");
    terminal.shows("44 80\r\n");
    terminal.types("exit 5\r");
    assert_eq!(terminal.child.0.wait().unwrap().code(), Some(5));
    scratch.empty();
}

/// The process that `timeout` has started.
fn only_child(process: u32) -> i32 {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap();
    children.trim().parse().unwrap()
}

#[test]
fn a_terminal_that_goes_away_ends_all_of_it() {
    let scratch = Scratch::new();
    let mut terminal = Terminal::open(&scratch, &["e1000"]);
    terminal.shows("try: ");
    let kernels = scratch.kernels();
    let nicety = Pid::from_raw(only_child(terminal.child.0.id())).unwrap();
    // The signal that the kernel sends to the processes of a closed terminal.
    kill_process(nicety, Signal::HUP).unwrap();
    assert_eq!(terminal.child.0.wait().unwrap().code(), Some(130));
    scratch.empty();
    gone(&kernels);
}

#[test]
fn a_terminal_that_is_closed_ends_all_of_it_with_130() {
    let shell: (&[&str], &str) = (&["e1000"], "try: ");
    let command: (&[&str], &str) = (&["e1000", "--", "sh", "-c", "echo up; exec sleep 600"], "up\r\n");
    for (words, sign) in [shell, command] {
        for open in [Terminal::controlling, Terminal::open] {
            let scratch = Scratch::new();
            let mut terminal = open(&scratch, words);
            terminal.shows(sign);
            let kernels = scratch.kernels();
            assert!(kernels.len() >= 2, "guest and peer: {kernels:?}");
            assert_eq!(terminal.close(), Some(130), "{words:?}");
            scratch.empty();
            gone(&kernels);
        }
    }
}

#[test]
fn a_guest_that_powers_itself_off_is_one_sentence() {
    let scratch = Scratch::new();
    for (command, sentence) in
        [("poweroff", "the guest has powered itself off"), ("halt", "the guest has halted itself")]
    {
        // The command's result is unknown.
        let output = scratch.run(&["e1000", "--peer", "none", "--", "sh", "-c", &format!("{command} -f 2>/dev/null")]);
        let expected = format!("nicety: {sentence}; what ran in it has no exit code\n");
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), expected), "{command}");
    }
    // For a shell it is a normal end.
    let mut terminal = Terminal::open(&scratch, &["e1000", "--peer", "none"]);
    terminal.shows("# ");
    terminal.types("echo bye; poweroff -f 2>/dev/null\r");
    terminal.shows("bye\r\nthe guest has powered itself off\r\n");
    assert_eq!(terminal.child.0.wait().unwrap().code(), Some(0));
    scratch.empty();
}
