//! Recordings are whole and bounded, and report their losses.

use nicety_adapters::find;
use nicety_frame::Mac;
use tempfile::{NamedTempFile, TempDir};

use super::*;

fn read(folder: &TempDir, file: &str) -> String {
    std::fs::read_to_string(folder.path().join(file)).unwrap()
}

fn settings() -> Settings {
    Settings::new(Mac([2, 0, 0, 0, 0, 7]))
}

fn in_folder(folder: impl AsRef<Path>) -> Target {
    Target::Folder(folder.as_ref().to_owned())
}

fn output(folder: &TempDir) -> Output {
    let recorder = Recorder { clock: Clock::start(), calls: false, waiting: Mutex::default(), bell: Arc::default() };
    let files = trace_files(folder.path(), "vm1");
    let mut output = Output::open(files, "vm1", find("e1000").unwrap(), &Arc::new(recorder)).unwrap();
    output.begin().unwrap();
    output
}

/// The adapter's state has none of its settings.
#[test]
fn a_recording_with_calls_says_what_its_adapter_was_made_with_and_another_one_does_not() {
    let folder = TempDir::new().unwrap();
    for (target, made) in
        [(Target::Calls(folder.path().to_owned()), Some(Made::from(&settings()))), (in_folder(folder.path()), None)]
    {
        let mut recording = Recording::start(target, Clock::start()).unwrap();
        recording.port("vm1", find("vmxnet3").unwrap(), &settings()).unwrap().unwrap();
        recording.begin().unwrap();
        drop(recording);
        assert_eq!(Trace::parse(&read(&folder, "vm1.trace")).unwrap().made, made);
    }
}

#[test]
fn a_recording_that_has_ended_has_every_event_in_order_with_the_register_s_name() {
    let folder = TempDir::new().unwrap();
    let mut recording = Recording::start(in_folder(folder.path().join("deep")), Clock::start()).unwrap();
    let recorder = recording.port("vm1", find("e1000").unwrap(), &settings()).unwrap().unwrap();
    recorder.note(Event::Connect);
    recording.begin().unwrap();
    recorder.access(true, 0, 0x3818, &[0x11, 0, 0, 0]);
    recorder.access(false, 7, 4, &[7, 0]);
    recorder.note(Event::Line(true));
    drop(recording);
    let text = read(&folder, "deep/vm1.trace");
    assert!(text.contains("W bar0 0x3818 4 0x00000011 @"), "{text}");
    assert!(text.contains("  # TDT\n"), "{text}");
    let trace = Trace::parse(&text).unwrap();
    let events: Vec<Event> = trace.records.into_iter().map(|(_, record)| record.event).collect();
    let expected = [
        Event::Connect,
        Event::Access(Access::of(true, Region::Bar(0), 0x3818, &[0x11, 0, 0, 0])),
        Event::Access(Access::of(false, Region::Config, 4, &[7, 0])),
        Event::Line(true),
    ];
    assert_eq!(events, expected);
    let file = folder.path().join("deep/vm1.trace");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_link_in_place_of_a_trace_is_not_followed() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("precious"), "text").unwrap();
    for name in ["vm1.trace", "vm1.trace.1"] {
        std::os::unix::fs::symlink(at("precious"), at(name)).unwrap();
    }
    let message = check(&in_folder(folder.path()), ["vm1"].into_iter()).unwrap_err().to_string();
    assert!(message.contains("it is a link, and must be a file"), "{message}");
    let mut recording = Recording::start(in_folder(folder.path()), Clock::start()).unwrap();
    assert_eq!(recording.port("vm1", find("e1000").unwrap(), &settings()).unwrap_err().to_string(), message);
    drop(recording);
    std::fs::remove_file(at("vm1.trace")).unwrap();
    let mut output = output(&folder);
    assert_eq!(output.begin().unwrap_err().to_string(), "it is a link, and must be a file", "its next part");
    assert_eq!(read(&folder, "precious"), "text");
}

#[test]
fn a_recording_takes_the_place_of_all_of_an_older_one_for_its_owner_only() {
    let folder = TempDir::new().unwrap();
    let older = ["vm1.trace", "vm1.trace.1", "vm1.trace.2", "vm2.trace.1"].map(|name| folder.path().join(name));
    for file in &older {
        std::fs::write(file, "older").unwrap();
        std::fs::set_permissions(file, Permissions::from_mode(0o644)).unwrap();
    }
    let mut recording = Recording::start(in_folder(folder.path()), Clock::start()).unwrap();
    recording.port("vm1", find("e1000").unwrap(), &settings()).unwrap().unwrap().note(Event::Connect);
    assert!(older.iter().all(|file| std::fs::read_to_string(file).unwrap() == "older"), "not before it begins");
    recording.begin().unwrap();
    drop(recording);
    assert!(read(&folder, "vm1.trace").contains("connect"));
    assert_eq!(older.each_ref().map(|file| file.exists()), [true, false, false, true], "vm2 is not recorded");
    assert_eq!(older[0].metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_recording_that_did_not_begin_leaves_older_traces_and_no_new_ones() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("vm1.trace"), "older").unwrap();
    let mut recording = Recording::start(in_folder(folder.path()), Clock::start()).unwrap();
    for name in ["vm1", "vm2"] {
        recording.port(name, find("e1000").unwrap(), &settings()).unwrap().unwrap().note(Event::Connect);
    }
    drop(recording);
    assert_eq!(read(&folder, "vm1.trace"), "older");
    assert!(!folder.path().join("vm2.trace").exists());
}

#[test]
fn a_port_that_comes_to_a_recording_that_has_begun_is_recorded_at_once() {
    let folder = TempDir::new().unwrap();
    let mut recording = Recording::start(in_folder(folder.path()), Clock::start()).unwrap();
    recording.begin().unwrap();
    recording.port("vm1", find("e1000").unwrap(), &settings()).unwrap().unwrap().note(Event::Connect);
    drop(recording);
    assert!(read(&folder, "vm1.trace").contains("connect"));
}

#[test]
fn what_comes_faster_than_it_is_written_is_counted_as_lost() {
    let folder = TempDir::new().unwrap();
    let mut output = output(&folder);
    for _ in 0..WAITING_MAX + 3 {
        output.recorder.note(Event::Reset);
    }
    output.drain();
    output.recorder.note(Event::Connect);
    output.drain();
    let trace = Trace::parse(&read(&folder, "vm1.trace")).unwrap();
    assert_eq!(trace.records.len(), WAITING_MAX + 2);
    let last: Vec<&Event> = trace.records[WAITING_MAX..].iter().map(|(_, record)| &record.event).collect();
    assert_eq!(last, [&Event::Lost(3), &Event::Connect]);
}

#[test]
fn a_long_trace_keeps_its_beginning_and_its_end_in_files_that_take_turns() {
    let folder = TempDir::new().unwrap();
    let mut output = output(&folder);
    output.most = 100_000;
    let mut kicks = 0u64;
    // Continue until the fourth part begins: it overwrites the second part's file.
    while output.part < 4 {
        for _ in 0..777 {
            output.recorder.note(Event::Interrupt((kicks % 1_000) as u16));
            kicks += 1;
        }
        output.drain();
    }
    let parts = ["vm1.trace", "vm1.trace.1", "vm1.trace.2"].map(|file| {
        let text = read(&folder, file);
        assert!(text.len() as u64 <= output.most, "{file} has {} bytes", text.len());
        Trace::parse(&text).unwrap()
    });
    assert_eq!(parts.each_ref().map(|trace| trace.part), [None, Some(4), Some(3)]);
    let vector = |record: &(usize, TimedEvent)| match record.1.event {
        Event::Interrupt(vector) => u64::from(vector),
        _ => panic!("{record:?}"),
    };
    assert_eq!(vector(&parts[0].records[0]), 0);
    assert_eq!(vector(parts[1].records.last().unwrap()), (kicks - 1) % 1_000);
    // Nothing is missing between two parts.
    let (before, after) = (parts[2].records.last().unwrap(), &parts[1].records[0]);
    assert_eq!((vector(before) + 1) % 1_000, vector(after));
}

#[test]
fn a_folder_that_cannot_be_made_is_named_with_what_is_in_its_way_and_what_to_do() {
    let file = NamedTempFile::new().unwrap();
    for folder in [file.path().to_owned(), file.path().join("below")] {
        let error = Recording::start(in_folder(&folder), Clock::start()).unwrap_err().to_string();
        let (folder, file) = (folder.display(), file.path().display());
        let message = "is not a folder; name a folder with --record DIR, which is made if it is not there";
        assert_eq!(error, format!("recording to {folder}: {file} {message}"));
    }
    // In sysfs not even root can make a folder.
    let error = Recording::start(in_folder(Path::new("/sys/nicety-traces")), Clock::start()).unwrap_err().to_string();
    assert!(error.starts_with("recording to /sys/nicety-traces: "), "{error}");
}

#[test]
fn one_port_is_recorded_in_a_file_of_ones_own_and_no_other() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("a trace");
    let target = Target::Port { name: "vm1".into(), file: file.clone() };
    check(&target, ["vm1", "vm2"].into_iter()).unwrap();
    let mut recording = Recording::start(target, Clock::start()).unwrap();
    let recorder = recording.port("vm1", find("e1000").unwrap(), &settings()).unwrap().unwrap();
    assert!(recording.port("vm2", find("e1000").unwrap(), &settings()).unwrap().is_none());
    recording.begin().unwrap();
    recorder.note(Event::Connect);
    drop(recording);
    let trace = Trace::parse(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!((trace.port.as_str(), trace.records.len()), ("vm1", 1));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_guest_error_is_a_mark_behind_the_access_that_caused_it() {
    let folder = TempDir::new().unwrap();
    let mut recording = Recording::start(in_folder(folder.path()), Clock::start()).unwrap();
    let recorder = recording.port("vm1", find("e1000").unwrap(), &settings()).unwrap().unwrap();
    recording.begin().unwrap();
    recorder.access(true, 0, 0x3818, &[0, 2, 0, 0]);
    let place = nicety_adapter::ErrorPlace::transmit(0, 5);
    let error = nicety_adapter::GuestError { place, value: 0xdead_0000, expected: "a buffer in memory" };
    recorder.guest_error(&NotedError { number: 3, at: Time(5), times: 1, error });
    drop(recording);
    let trace = Trace::parse(&read(&folder, "vm1.trace")).unwrap();
    let said = "guest error 3: transmit queue 0, descriptor 5: 0xdead0000; expected a buffer in memory";
    assert_eq!(trace.records[1].1.event, Event::Mark(said.to_owned()));
}
