//! The log grows only by a few lines, however often VMMs, guests and other clients do something that is logged. The first lines
//! are written, and all are counted. Each test runs with one worker and with two.

#[macro_use]
#[path = "../../plane/tests/workers/mod.rs"]
mod workers;
mod logged;
mod news;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use logged::{LINES, Stage, TIMEOUT, lines_of};
use nicety_daemon::report::Condition;
use nicety_memory::shared_file;
use nicety_vfio_user::{Client, DmaProtection, DmaRange};
use nicety_vhost_user::frontend::Frontend;

/// Number of times that everything is done.
const TIMES: u64 = 100;
/// More than a frame buffer or a ROM has. Memory at 0 without a file is the VM's own RAM, not shared.
const MEMORY: DmaRange = DmaRange { address: 0, size: 64 << 20 };

/// Connects while another VMM is attached, until that is refused. The next one is refused a second later while the same VMM is
/// attached.
fn come_second(stage: &Stage) {
    let mut second = UnixStream::connect(stage.socket()).unwrap();
    second.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert_eq!(second.read(&mut [0]).unwrap(), 0, "it is closed");
}

/// Checks the number of lines of each kind. A kind has a text of its lines, a text of its count of suppressed lines, and the
/// total.
fn check_lines(stage: &Stage, kinds: &[(&str, &str, u64)]) {
    // When the workers have ended, everything is logged.
    stage.daemon.stop();
    let most = stage.most_lines();
    let lines = lines_of(&stage.name);
    for (text, left, times) in kinds {
        let of: Vec<&String> = lines.iter().filter(|line| line.contains(text)).collect();
        assert!((LINES..=most).contains(&(of.len() as u64)), "{} lines of {text:?}, not {LINES} to {most}", of.len());
        // `(and 41 such lines …)`, `41 lines were left out: …`: the number before these words.
        let before = |line: &str, words: &str| {
            let text = line.split_once(words).map(|(text, _)| text).unwrap_or_default();
            text.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default().parse().unwrap_or(0)
        };
        let either = |line: &str, words: [&str; 2]| words.iter().map(|words| before(line, words)).sum::<u64>();
        let meanwhile = [" such lines that were left out)", " such line that was left out)"];
        let meanwhile: u64 = of.iter().map(|line| either(line, meanwhile)).sum();
        let left = ["lines were", "line was"].map(|lines| format!(" {lines} left out: {left}"));
        let last: u64 = lines.iter().map(|line| either(line, left.each_ref().map(String::as_str))).sum();
        assert_eq!(of.len() as u64 + meanwhile + last, *times, "{text:?}: {lines:#?}");
    }
    // A forgotten kind would have a line for each time.
    let bound = 2 * (LINES as usize + 2) * (kinds.len() + 2);
    assert!(lines.len() <= bound, "{} lines, not {bound}", lines.len());
}

fn what_a_vmm_does_over_and_over_is_a_few_lines_and_a_count(workers: usize) {
    let stage = Stage::new("busy", "e1000", workers);
    let mut client = Client::connect(stage.socket()).unwrap();
    let rights = DmaProtection { read: true, write: true };
    // A file that is shorter than the part to be mapped.
    let short = shared_file("short", 4096).unwrap();
    for _ in 0..TIMES {
        client.reset().unwrap();
        client.dma_map(MEMORY, rights, Some((short.as_fd(), 0))).unwrap_err();
    }
    check_lines(
        &stage,
        &[
            ("the VM resets its adapter", "of resets by the VM", TIMES),
            ("memory that the VM offers was not taken", "of memory that was not taken", TIMES),
        ],
    );
}

fn vmms_that_come_and_go_are_a_few_lines_and_a_count(workers: usize) {
    let stage = Stage::new("comers", "e1000", workers);
    for _ in 0..TIMES {
        let mut client = Client::connect(stage.socket()).unwrap();
        client.dma_map(MEMORY, DmaProtection { read: true, write: true }, None).unwrap();
        come_second(&stage);
        drop(client);
        stage.until_is(Condition::Waiting);
        // An invalid header: the message's length is shorter than the header.
        let mut stranger = UnixStream::connect(stage.socket()).unwrap();
        stranger.write_all(&[0; 16]).unwrap();
        stranger.set_read_timeout(Some(TIMEOUT)).unwrap();
        let _answer = stranger.read_to_end(&mut Vec::new());
        stage.until_is(Condition::Waiting);
    }
    check_lines(
        &stage,
        &[
            ("a VMM has connected", "of connections that came", 2 * TIMES),
            ("the VMM has disconnected", "of connections that went", TIMES),
            ("a second VMM was refused", "of connections that were refused", TIMES),
            ("the VMM is disconnected: ", "of connections that were ended", TIMES),
            ("the VM does not share its memory", "of memory that is not shared", TIMES),
        ],
    );
}

fn front_ends_that_come_and_go_are_a_few_lines_and_a_count(workers: usize) {
    let stage = Stage::new("fronts", "virtio-net", workers);
    for _ in 0..TIMES {
        let mut front = Frontend::connect(stage.socket()).unwrap();
        front.negotiate(1 << 32).unwrap();
        // There are not so many rings.
        front.error_bell(200).unwrap_err();
        come_second(&stage);
        drop(front);
        stage.until_is(Condition::Waiting);
    }
    check_lines(
        &stage,
        &[
            ("a front end has connected", "of connections that came", TIMES),
            ("a second front end was refused", "of connections that were refused", TIMES),
            ("a message was refused", "of messages that were refused", TIMES),
        ],
    );
}

with_one_worker_and_with_two!(
    what_a_vmm_does_over_and_over_is_a_few_lines_and_a_count,
    vmms_that_come_and_go_are_a_few_lines_and_a_count,
    front_ends_that_come_and_go_are_a_few_lines_and_a_count,
);
