//! Written traces can be read again; other text is refused with its line.

use nicety_frame::Mac;

use super::*;

fn every_event() -> Vec<Event> {
    let access = |write, region, offset, data: &[u8]| Event::Access(Access::of(write, region, offset, data));
    vec![
        access(true, Region::Bar(0), 0x3818, &[0x11, 0, 0, 0]),
        access(false, Region::Bar(5), 0x1_2345, &[0xff; 8]),
        access(false, Region::Config, 4, &[7, 1]),
        access(false, Region::Rom, 0, &[0x55; 4096]),
        Event::Kick(2),
        Event::Interrupt(24),
        Event::Line(true),
        Event::Line(false),
        Event::Irqs { index: 2, change: IrqChange::Connect, start: 0, count: 3 },
        Event::Irqs { index: 0, change: IrqChange::Unmask, start: 0, count: 1 },
        Event::Irqs { index: 1, change: IrqChange::Mask, start: 1, count: 1 },
        Event::Reset,
        Event::Connect,
        Event::Disconnect,
        Event::Lost(70_000),
        Event::Mark("the link goes down".to_owned()),
    ]
}

#[test]
fn every_event_reads_back_as_it_was_written_with_and_without_its_time() {
    for event in every_event() {
        for at in [None, Some(Time(1_234_567_000))] {
            let record = TimedEvent { at, event: event.clone() };
            assert_eq!(record.to_string().parse(), Ok(record));
        }
    }
}

#[test]
fn an_access_is_a_line_that_a_person_can_read() {
    let event = Event::Access(Access::of(true, Region::Bar(0), 0x3818, &[0x11, 0, 0, 0]));
    let record = TimedEvent { at: Some(Time(1_200_345_999)), event };
    assert_eq!(record.to_string(), "W bar0 0x3818 4 0x00000011 @1200345");
    let event = Event::Access(Access::of(false, Region::Rom, 0, &[0; 9]));
    assert_eq!(TimedEvent { at: None, event }.to_string(), "R rom 0x0000 9");
}

#[test]
fn a_file_is_its_header_and_its_records_with_their_line_numbers() {
    let text = Trace::header("vm1", "e1000", Some(3), None)
        + "# a comment\n\nR bar0 0x0008 4 0x00000a83 @7  # STATUS\nreset\n";
    let trace = Trace::parse(&text).unwrap();
    assert_eq!((trace.port.as_str(), trace.adapter.as_str(), trace.part), ("vm1", "e1000", Some(3)));
    let lines: Vec<usize> = trace.records.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [7, 8]);
    assert_eq!(trace.records[0].1.at, Some(Time(7_000)));
}

#[test]
fn a_header_has_the_settings_that_the_adapter_was_made_with() {
    let mac = Mac([0x52, 0x54, 0, 0x12, 0x34, 1]);
    let least = Made { mac, mtu: None, queues: None, subsystem: None, standby: false };
    let all = Made { mtu: Some(9000), queues: Some(4), subsystem: Some((0x15ad, 0x7b0)), standby: true, ..least };
    for (made, line) in [
        (least, "made mac 52:54:00:12:34:01"),
        (all, "made mac 52:54:00:12:34:01 mtu 9000 queues 4 subsystem 0x15ad 0x07b0 standby"),
    ] {
        let text = Trace::header("vm1", "e1000", None, Some(made));
        assert_eq!(text.lines().last(), Some(line));
        assert_eq!(Trace::parse(&text).unwrap().made, Some(made));
    }
    for (line, why) in [
        ("made mtu 9000", "line 4: the address is missing"),
        ("made mac 52:54:00:12:34:01 speed 7", "line 4: `speed` is no setting: mac, mtu, queues, subsystem, standby"),
        ("made mac 52:54:00:12:34:01 mtu x", "line 4: mtu cannot be `x`"),
    ] {
        let text = Trace::header("vm1", "e1000", None, None) + line;
        assert_eq!(Trace::parse(&text).unwrap_err().to_string(), why);
    }
}

#[test]
fn what_is_no_trace_is_refused_with_its_line_and_what_should_be_there() {
    let head = Trace::header("vm1", "e1000", None, None);
    let cases = [
        (String::new(), "line 1: `` is not `nicety-trace 2`: no trace, or one of another version"),
        (
            "nicety-trace 1\n".to_owned(),
            "line 1: `nicety-trace 1` is not `nicety-trace 2`: no trace, or one of another version",
        ),
        (format!("{VERSION}\nport vm1\n"), "line 2: no line `adapter NAME` says what was recorded"),
        (format!("{head}part x\n"), "line 4: the part cannot be `x`"),
        (
            format!("{head}X bar0\n"),
            "line 4: `X` is no event: R, W, kick, interrupt, line, irqs, reset, connect, disconnect, lost, mark, call",
        ),
        (format!("{head}R\n"), "line 4: the region is missing"),
        (format!("{head}R bar6 0 4 0\n"), "line 4: `bar6` is no region: bar0 to bar5, rom, config"),
        (format!("{head}R bar0 0x\n"), "line 4: the offset cannot be `0x`"),
        (format!("{head}R bar0 0x8\n"), "line 4: the width is missing"),
        (format!("{head}R bar0 0x8 4\n"), "line 4: the value is missing"),
        (format!("{head}R bar0 0x8 1 0x100\n"), "line 4: the value 0x100 has more than 1 bytes"),
        (format!("{head}R bar0 0x8 4 0x1 0x2\n"), "line 4: `0x2` is one word too many"),
        (format!("{head}reset @soon\n"), "line 4: the time cannot be `soon`"),
        (format!("{head}kick 65536\n"), "line 4: the ring cannot be `65536`"),
        (format!("{head}interrupt\n"), "line 4: the vector is missing"),
        (format!("{head}line sideways\n"), "line 4: a line goes `up` or `down`"),
        (format!("{head}irqs 2 shake 0 1\n"), "line 4: a VMM's change is `mask`, `unmask` or `connect`"),
        (format!("{head}lost many\n"), "line 4: how many cannot be `many`"),
    ];
    for (text, error) in cases {
        assert_eq!(Trace::parse(&text).unwrap_err().to_string(), error);
    }
}
