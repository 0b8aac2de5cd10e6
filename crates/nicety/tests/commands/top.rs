//! `nicety top`: printed once, and on a terminal.

use std::io::{Read, Write};
use std::process::Stdio;

use rustix::process::Signal;

use crate::scratch::{HOST, Scratch, Served};

#[test]
fn one_page_is_printed_for_a_pipe_and_a_page_that_stays_needs_a_terminal() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let once = scratch.run(&["top", "--once"]);
    let lines: Vec<&str> = once.out.lines().collect();
    assert_eq!((once.code, lines.len()), (Some(0), 5), "{once:?}");
    assert!(
        lines[0].starts_with(&format!("nicety top  process {}  2 ports, most traffic first  ", served.pid())),
        "{once:?}"
    );
    assert!(lines[1].starts_with("CPU  worker0 "), "{once:?}");
    assert_eq!(lines[2], "PORT             STATE     TX bit/s   TX f/s  RX bit/s   RX f/s   DROP/s   WAIT");
    assert_eq!(lines[3], "vm1              waiting          0        0         0        0        0      0");
    let piped = scratch.run(&["top"]);
    let expected = "nicety: stdout is no terminal: `nicety top --once` prints one page\n";
    assert_eq!((piped.code, piped.err.as_str()), (Some(2), expected));
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn on_a_terminal_it_stays_shows_a_port_and_leaves_the_terminal_as_it_was() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let mut script = std::process::Command::new("timeout");
    script.args(["-k", "5", "60", "script"]);
    let inside = format!("stty cols 80 rows 24; {} top; echo code $?; stty -a", env!("CARGO_BIN_EXE_nicety"));
    script.args(["-q", "-c", &inside, "/dev/null"]).current_dir(scratch.path()).env("TERM", "xterm");
    script.env_remove("XDG_RUNTIME_DIR").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut script = script.spawn().unwrap();
    let (mut keys, mut screen) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
    let mut seen = String::new();
    // Text that overwrites other text arrives in pieces; text in an empty place arrives whole.
    let mut until = |words: &str| {
        let mut piece = [0; 4096];
        while !seen.contains(words) {
            let len = screen.read(&mut piece).unwrap();
            assert!(len > 0, "{words:?} did not come: {seen}");
            seen.push_str(&String::from_utf8_lossy(&piece[..len]));
        }
        let behind = seen.find(words).unwrap() + words.len();
        seen.drain(..behind);
    };
    until("TX bit/s");
    keys.write_all(b"j\r").unwrap();
    until("frames/s");
    keys.write_all(b"q").unwrap();
    until("code 0");
    // The terminal echoes and buffers lines again.
    until(" echo ");
    drop(keys);
    assert!(script.wait().unwrap().success());
    assert_eq!(served.end(Signal::TERM), Some(0));
}
