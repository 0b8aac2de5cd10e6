//! Readers that come late, slowly, or never.

use std::fs::File;
use std::io::Read;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use tracing::error;

use super::*;

const LEFT_OUT: &str = " left out: standard error took no more";
const LINE_BYTES: usize = 100;

/// A line with a number.
fn line(number: usize) -> String {
    format!("{number:0width$}\n", width = LINE_BYTES - 1)
}

fn say(log: &Log, line: &str) {
    (&*log.0).write_all(line.as_bytes()).unwrap();
}

/// A log, and its reader, part by part: nothing is written until it is received.
fn unread() -> (Log, Receiver<Vec<u8>>) {
    let (send, reader) = sync_channel(0);
    let write = move |bytes: &[u8]| {
        let _reader_gone = send.send(bytes.to_vec());
        bytes.len()
    };
    let log = Log::start(write, Form::default()).unwrap();
    (log, reader)
}

/// Ends the log while a reader takes everything.
fn rest(log: Log, reader: &Receiver<Vec<u8>>) -> String {
    let ends = std::thread::spawn(|| drop(log));
    let rest = reader.iter().flatten().collect();
    ends.join().unwrap();
    String::from_utf8(rest).unwrap()
}

#[test]
fn whoever_logs_does_not_wait_for_a_reader_and_what_has_no_room_is_left_out_whole_and_counted_in_its_place() {
    let (log, reader) = unread();
    let many = 3 * ROOM_BYTES / LINE_BYTES;
    (0..many).for_each(|number| say(&log, &line(number)));
    // Twice at least: the reader has taken a little, so there is a little room, at once or bit by bit as the log's thread writes.
    let mut read: Vec<u8> = reader.iter().take(20).flatten().collect();
    (many..2 * many).for_each(|number| say(&log, &line(number)));
    read.extend(rest(log, &reader).into_bytes());
    let (mut next, mut left_out) = (0, Vec::new());
    for line in String::from_utf8(read).unwrap().lines() {
        if let Some(report) = line.strip_suffix(LEFT_OUT) {
            let count: usize =
                report.split_once("  WARN ").unwrap().1.strip_suffix(" lines were").unwrap().parse().unwrap();
            left_out.push((next, count));
            next += count;
        } else {
            assert_eq!((line.len() + 1, line.parse()), (LINE_BYTES, Ok(next)));
            next += 1;
        }
    }
    assert_eq!(next, 2 * many, "{left_out:?}");
    assert_eq!(left_out[0].0, ROOM_BYTES / LINE_BYTES);
    assert!(left_out.len() >= 2, "{left_out:?}");
}

#[test]
fn what_was_left_out_is_told_whatever_else_is_not() {
    let errors = tracing_subscriber::fmt().with_max_level(LevelFilter::ERROR).with_writer(io::sink).finish();
    let report =
        tracing::subscriber::with_default(errors, || [left_out(1, Form::default()), left_out(2, Form::default())]);
    let [one, two] = report.map(|report| String::from_utf8(report).unwrap());
    assert!(one.ends_with(&format!("Z  WARN 1 line was{LEFT_OUT}\n")), "{one}");
    assert!(two.ends_with(&format!("Z  WARN 2 lines were{LEFT_OUT}\n")), "{two}");
    // The format of a log line on a terminal.
    let line = Arc::new(Lines::default());
    tracing::subscriber::with_default(format(Arc::clone(&line), true).finish(), || error!("it"));
    let Some(Part::Lines(error)) = line.state().parts.pop_front() else { panic!("a line") };
    let (error, report) =
        (String::from_utf8(error).unwrap(), String::from_utf8(left_out(2, Form::Text { colours: true })).unwrap());
    let head = |line: &str| line.replace(|c: char| c.is_ascii_digit(), "0").split_once('Z').unwrap().0.to_owned();
    assert!(error.starts_with('\x1b') && head(&error) == head(&report), "{error}{report}");
}

#[test]
fn the_end_waits_until_all_is_written_and_half_a_second_for_who_does_not_read() {
    let (log, reader) = unread();
    say(&log, "a line\n");
    let begun = Instant::now();
    log.end("words");
    let waited = begun.elapsed();
    assert!(waited >= TIMEOUT && waited < 40 * TIMEOUT, "{waited:?}");
    assert_eq!(reader.iter().flatten().collect::<Vec<_>>(), b"a line\nwords\n");

    let written = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&written);
    let write = move |bytes: &[u8]| {
        all.lock().unwrap().extend_from_slice(bytes);
        bytes.len()
    };
    let log = Log::start(write, Form::default()).unwrap();
    (0..1000).for_each(|number| say(&log, &line(number)));
    log.end("and why it ends");
    let expected = (0..1000).map(line).chain(["and why it ends\n".to_owned()]).collect::<String>();
    assert_eq!(String::from_utf8(written.lock().unwrap().clone()).unwrap(), expected);
}

#[test]
fn words_that_cannot_be_left_out_come_behind_what_was() {
    let (log, reader) = unread();
    let many = 2 * ROOM_BYTES / LINE_BYTES;
    (0..many).for_each(|number| say(&log, &line(number)));
    log.0.push_always("a panic");
    let read = rest(log, &reader);
    assert!(read.ends_with(&format!(" lines were{LEFT_OUT}\na panic\n")), "{}", &read[read.len() - 300..]);
}

#[test]
fn a_pipe_that_takes_less_and_that_nobody_may_wait_for_gets_all_of_it() {
    for flags in [PipeFlags::CLOEXEC, PipeFlags::CLOEXEC | PipeFlags::NONBLOCK] {
        let (reader, writer) = pipe_with(flags).unwrap();
        fcntl_setpipe_size(&writer, 4096).unwrap();
        let log = Log::start(move |bytes| write_all(&writer, bytes), Form::default()).unwrap();
        let long = "x".repeat(10_000) + "\n";
        let expected: String = (0..1000).map(line).chain([long]).collect();
        expected.split_inclusive('\n').for_each(|line| say(&log, line));
        let ends = std::thread::spawn(|| drop(log));
        let mut read = String::new();
        rustix::io::ioctl_fionbio(&reader, false).unwrap();
        File::from(reader).read_to_string(&mut read).unwrap();
        ends.join().unwrap();
        assert_eq!(read, expected);
    }
}

#[test]
fn what_cannot_be_written_is_gone_and_the_thread_goes_on() {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    drop(reader);
    for out in [File::from(writer), File::options().write(true).open("/dev/full").unwrap(), File::open("/").unwrap()] {
        let log = Log::start(move |bytes| write_all(&out, bytes), Form::default()).unwrap();
        (0..1000).for_each(|number| say(&log, &line(number)));
        log.0.wait();
        assert!(!log.0.state().busy && log.0.state().bytes == 0);
    }
}

#[test]
fn lines_that_a_full_disk_does_not_take_are_counted_and_no_line_is_glued_to_a_half() {
    let disk = Arc::new(Mutex::new((Vec::new(), 0)));
    let write = |bytes: &[u8]| {
        let mut disk = disk.lock().unwrap();
        let room = disk.1 - disk.0.len();
        let done = bytes.len().min(room);
        disk.0.extend_from_slice(&bytes[..done]);
        done
    };
    let mut out = Out { write, form: Form::default(), left_out: 0, torn: false };
    // Bytes of room on the disk before each part.
    let rooms = [250, 0, 30, 30, 5, 1000, 1000];
    for (part, room) in rooms.into_iter().enumerate() {
        let mut disk = disk.lock().unwrap();
        disk.1 = disk.0.len() + room;
        drop(disk);
        out.lines((0..2).map(|number| line(2 * part + number)).collect::<String>().as_bytes());
    }
    let text = String::from_utf8(disk.lock().unwrap().0.clone()).unwrap();
    let whole: Vec<usize> =
        text.lines().filter(|line| line.len() + 1 == LINE_BYTES).filter_map(|line| line.parse().ok()).collect();
    assert_eq!(whole, [0, 1, 10, 11, 12, 13], "{text}");
    assert!(text.contains(&format!("Z  WARN 8 lines were{LEFT_OUT}\n{}", line(10))), "{text}");
    // Report lines may be cut, but each is a line of its own.
    assert!(text.lines().all(|line| line.len() < LINE_BYTES || line.contains(LEFT_OUT)), "{text}");
}
