//! A recording of a running daemon has the actions of VMMs and guests, in order, each port's in its own file.

use nicety_adapter::trace::{Access, Event, Region, Trace};
use nicety_adapters::find;
use nicety_daemon::daemon::{Daemon, PortSpec};
use nicety_daemon::recorder::Target;
use nicety_daemon::report::PortReport;
use nicety_frame::Mac;
use nicety_host::PortConfig;
use nicety_switch::Limits;
use nicety_vfio_user::Client;
use tempfile::TempDir;

/// STATUS and ICS of the 82540EM (8254x manual, 13.4.2 and 13.4.19), IMS (13.4.20).
const STATUS: u64 = 0x08;
const ICS: u64 = 0xc8;
const IMS: u64 = 0xd0;
/// The region of configuration space (vfio.h, VFIO_PCI_CONFIG_REGION_INDEX).
const CONFIG: u32 = 7;

fn spec(folder: &TempDir, name: &str, last: u8) -> PortSpec {
    PortSpec::plain(PortConfig::new(
        name,
        find("e1000").unwrap(),
        Mac([0x52, 0x54, 0, 0, 0, last]),
        folder.path().join(format!("{name}.sock")),
    ))
}

#[test]
fn what_a_vmm_and_its_guest_did_is_in_the_port_s_trace_when_the_daemon_has_ended() {
    let folder = TempDir::new().unwrap();
    let traces = folder.path().join("traces");
    nicety_sandbox::begin_for_tests();
    let daemon = Daemon::start(Limits::default(), 1).unwrap();
    daemon.record(Target::Folder(traces.clone())).unwrap();
    daemon.open(spec(&folder, "vm1", 1)).unwrap();
    daemon.begin_traces().unwrap();
    daemon.open(spec(&folder, "vm2", 2)).unwrap();

    let mut client = Client::connect(folder.path().join("vm1.sock")).unwrap();
    let mut status = [0; 4];
    client.region_read(0, STATUS, &mut status).unwrap();
    // An interrupt that the driver itself raises.
    client.region_write(0, IMS, &4u32.to_le_bytes()).unwrap();
    client.region_write(0, ICS, &4u32.to_le_bytes()).unwrap();
    client.region_read(0, STATUS, &mut status).unwrap();
    drop(client);
    daemon.stop();

    let read = |name: &str| Trace::parse(&std::fs::read_to_string(traces.join(name)).unwrap()).unwrap();
    let trace = read("vm1.trace");
    assert_eq!((trace.port.as_str(), trace.adapter.as_str()), ("vm1", "e1000"));
    assert!(trace.records.iter().map(|(_, record)| record.at).is_sorted());
    let access = |write, offset, data: &[u8]| Event::Access(Access::of(write, Region::Bar(0), offset, data));
    let events: Vec<Event> = trace.records.into_iter().map(|(_, record)| record.event).collect();
    let expected = [
        Event::Connect,
        access(false, STATUS, &status),
        access(true, IMS, &4u32.to_le_bytes()),
        access(true, ICS, &4u32.to_le_bytes()),
        Event::Line(true),
        access(false, STATUS, &status),
    ];
    assert_eq!(events[..expected.len()], expected);
    assert!(events.contains(&Event::Disconnect), "{events:?}");
    assert_eq!(read("vm2.trace").records, []);
}

/// 317453, 13.4.20 and 13.4.41: registers are dwords, and TDT lies within the ring that TDLEN names.
#[test]
fn a_drivers_mistake_is_a_mark_in_the_trace_and_a_line_of_the_report() {
    const IMC: u64 = 0xd8;
    const TDT: u64 = 0x3818;
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("mine.trace");
    let daemon = Daemon::start(Limits::default(), 1).unwrap();
    daemon.record(Target::Port { name: "vm1".into(), file: file.clone() }).unwrap();
    daemon.open(spec(&folder, "vm1", 1)).unwrap();
    daemon.begin_traces().unwrap();
    let mut client = Client::connect(folder.path().join("vm1.sock")).unwrap();
    client.region_write(0, IMC, &7u16.to_le_bytes()).unwrap();
    client.region_write(CONFIG, 4, &[7, 0]).unwrap();
    for (register, value) in [(0u64, 0x40u32), (0x3808, 128), (0x400, 2), (TDT, 300)] {
        client.region_write(0, register, &value.to_le_bytes()).unwrap();
    }
    let report = || PortReport::of(&daemon.views()[0]);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while report().guest_errors == 0 && std::time::Instant::now() < end {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let errors = report().last_guest_errors;
    let shown: Vec<(&str, Option<&str>)> =
        errors.iter().map(|error| (error.place.as_str(), error.value.as_deref())).collect();
    assert_eq!(shown[0], ("write of 2 bytes at bar0 0x00d8 (IMC)", Some("0x7")));
    assert_eq!(errors[0].expected, "a register there, and this width");
    // Nothing is mapped, so that the ring itself is nowhere.
    assert_eq!(shown[1], ("TDBAL (bar0 0x3800)", Some("0x0")));
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    assert!(since_1970.abs_diff(errors[1].unix_milliseconds.into()) < 20_000, "{errors:?}");
    assert!(errors[0].microseconds <= errors[1].microseconds);
    drop(client);
    daemon.stop();
    let trace = Trace::parse(&std::fs::read_to_string(file).unwrap()).unwrap();
    let events: Vec<Event> = trace.records.into_iter().map(|(_, record)| record.event).collect();
    let written = Event::Access(Access::of(true, Region::Bar(0), IMC, &7u16.to_le_bytes()));
    let at = events.iter().position(|event| *event == written).unwrap();
    let said = "guest error 1: write of 2 bytes at bar0 0x00d8: 0x7; expected a register there, and this width";
    assert_eq!(events[at + 1], Event::Mark(said.to_owned()));
}
