//! A recording of a running daemon has the actions of VMMs and guests, in order, each port's in its own file.

use nicety_adapter::trace::{Access, Event, Region, Trace};
use nicety_adapters::{Settings, find};
use nicety_daemon::daemon::{Daemon, PortSpec};
use nicety_frame::Mac;
use nicety_switch::Limits;
use nicety_vfio_user::Client;
use tempfile::TempDir;

/// STATUS and ICS of the 82540EM (8254x manual, 13.4.2 and 13.4.19), IMS (13.4.20).
const STATUS: u64 = 0x08;
const ICS: u64 = 0xc8;
const IMS: u64 = 0xd0;

fn spec(folder: &TempDir, name: &str, last: u8) -> PortSpec {
    PortSpec {
        name: name.to_owned(),
        entry: find("e1000").unwrap(),
        settings: Settings::new(Mac([0x52, 0x54, 0, 0, 0, last])),
        socket: folder.path().join(format!("{name}.sock")),
        role: Default::default(),
        mapped: false,
        buffer_bytes: 1 << 20,
        access: nicety_socket::Access::default(),
        group: None,
        policy: nicety_switch::Policy::default(),
    }
}

#[test]
fn what_a_vmm_and_its_guest_did_is_in_the_port_s_trace_when_the_daemon_has_ended() {
    let folder = TempDir::new().unwrap();
    let traces = folder.path().join("traces");
    nicety_sandbox::begin_for_tests();
    let daemon = Daemon::start(Limits::default(), 1).unwrap();
    daemon.record(&traces).unwrap();
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
