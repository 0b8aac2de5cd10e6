use nicety_adapter::{Counters, PortId, Queue, Stall, Time};
use nicety_frame::Mac;
use nicety_host::PortConfig;
use nicety_plane::Neighbour;

use super::*;
use crate::daemon::PortSpec;

fn state() -> State {
    State {
        attached: true,
        driven: false,
        sent: 0,
        received: 0,
        misplaced: 0,
        counters: Counters::default(),
        features: Vec::new(),
        stalls: Vec::new(),
        receive_block: None,
        backlog_frames: 0,
        starved_since: None,
        backlog_bytes: 0,
        held: false,
        stopped: false,
        shared_bytes: 512 << 20,
        absent_bytes: 16 << 20,
        allocated_bytes: 0,
        refused: nicety_memory::Refused::default(),
        memory_changes: 0,
        damaged: false,
        classes: Vec::new(),
        inward_classes: Vec::new(),
        vacant: None,
        remark: None,
        failed: None,
    }
}

#[test]
fn a_port_says_how_it_is_and_what_to_do() {
    let shown = |state: &State| condition("vm1", state, false, Memory::SharedAlone, false);
    let failed = State { attached: false, failed: Some("attempt to add with overflow".to_owned()), ..state() };
    for is_uplink in [false, true] {
        let (word, sentence) = condition("vm1", &failed, false, Memory::SharedAlone, is_uplink);
        assert_eq!(word, Condition::Failed);
        assert!(sentence.contains("attempt to add with overflow"), "{sentence}");
    }
    let (word, sentence) = shown(&State { attached: false, ..state() });
    assert_eq!((word, sentence.contains("nicety attach vm1")), (Condition::Waiting, true));
    assert_eq!(shown(&state()).0, Condition::Attached, "a frame buffer that has no file is no mistake");
    assert_eq!(shown(&State { driven: true, ..state() }).0, Condition::Up, "a driver may want no feature at all");
    let mut counters = Counters::default();
    counters.sent(0, 1, 60);
    counters.received(0, 1, 60);
    let used = State { counters, features: vec!["virtio-1"], ..state() };
    assert_eq!(shown(&used).0, Condition::Attached, "frames of VMs before it tell nothing of its driver");
    let (word, sentence) = shown(&State { shared_bytes: 0, absent_bytes: 512 << 20, ..state() });
    assert_eq!((word, sentence.contains("memory-backend-memfd")), (Condition::Broken, true), "{sentence}");
    assert!(sentence.contains("share=on"));
    let (word, sentence) = shown(&State { damaged: true, ..state() });
    assert_eq!((word, sentence.contains("restart the VM")), (Condition::Broken, true));
    assert_eq!(condition("uplink", &state(), false, Memory::Unused, true).0, Condition::Up);
    let narrow = State { remark: Some("an MTU of 1500 leaves guests one of 1450".to_owned()), ..state() };
    assert_eq!(
        condition("uplink", &narrow, false, Memory::Unused, true).1,
        "the way out of the switch; an MTU of 1500 leaves guests one of 1450"
    );
    let alone = State { vacant: Some("cannot join /run/up.sock".to_owned()), ..state() };
    assert_eq!(
        condition("uplink", &alone, false, Memory::Unused, true),
        (Condition::Waiting, "cannot join /run/up.sock".to_owned())
    );
}

#[test]
fn a_queue_that_stands_still_is_told_with_what_to_do_unless_there_is_a_deeper_reason() {
    let stall = |queue| Stall { queue, why: "a chain loops", cure: "restart the guest" };
    let up = State { features: vec!["tso4"], driven: true, ..state() };
    let one = State { stalls: vec![stall(Queue::Transmit(0))], ..up.clone() };
    let sentence = "transmit queue 0 stands still: a chain loops; restart the guest";
    assert_eq!(condition("vm1", &one, false, Memory::SharedAlone, false), (Condition::Broken, sentence.to_owned()));
    let three = State { stalls: [0, 1, 2].map(|queue| stall(Queue::Transmit(queue))).to_vec(), ..up };
    let sentence = format!("{sentence}; 3 queues stand still in all");
    assert_eq!(condition("vm1", &three, false, Memory::SharedAlone, false), (Condition::Broken, sentence));
    let unshared = State { shared_bytes: 0, ..one };
    assert!(
        condition("vm1", &unshared, false, Memory::SharedAlone, false).1.contains("share=on"),
        "no ring can be read there"
    );
}

#[test]
fn a_port_whose_driver_is_up_and_that_receives_nothing_says_why() {
    let shown = |state: &State| condition("vm1", state, false, Memory::SharedAlone, false);
    let up = State { driven: true, ..state() };
    let off = State { receive_block: Some("its receiver is off (RCTL.EN)"), ..up.clone() };
    let sentence = "its driver is up, but the adapter receives nothing: its receiver is off (RCTL.EN)";
    assert_eq!(shown(&off), (Condition::Up, sentence.to_owned()));
    let waits = State { backlog_frames: 3, ..up };
    assert!(shown(&waits).1.contains("has posted no receive buffers"), "{}", shown(&waits).1);
    assert_eq!(
        shown(&State { misplaced: 2, ..waits.clone() }).1,
        "its driver is up and has received nothing: 2 frames for it were dropped, because its receive buffers lie where no memory is or \
         have no length; its guest errors have the addresses"
    );
    assert_eq!(
        shown(&State { received: 1, misplaced: 2, ..waits }).1,
        "a VM is attached, and its driver is up",
        "only a little late"
    );
}

#[test]
fn memory_that_is_shared_in_name_only_is_told_until_a_frame_proves_otherwise() {
    let up = State { features: vec!["tso4"], driven: true, ..state() };
    let (word, sentence) = condition("vm1", &up, true, Memory::SharedAlone, false);
    assert_eq!((word, sentence.contains("share=on")), (Condition::Broken, true), "{sentence}");
    let mut received = up.clone();
    received.counters.received(0, 1, 60);
    assert_eq!(
        condition("vm1", &received, true, Memory::SharedAlone, false).0,
        Condition::Broken,
        "we write where it does not read"
    );
    let mut before = up.clone();
    before.counters.sent(0, 1, 60);
    assert_eq!(
        condition("vm1", &before, true, Memory::SharedAlone, false).0,
        Condition::Broken,
        "that was another VM's"
    );
    assert_eq!(condition("vm1", &State { sent: 1, ..up.clone() }, true, Memory::SharedAlone, false).0, Condition::Up);
    // QEMU's vhost-user front end does not announce unshared memory. So there is no memory at all, neither shared nor absent.
    let none = State { shared_bytes: 0, absent_bytes: 0, ..up };
    let (word, sentence) = condition("vm1", &none, false, Memory::SharedAlone, false);
    assert_eq!((word, sentence.contains("share=on")), (Condition::Broken, true), "{sentence}");
    let waits = State { features: Vec::new(), driven: false, ..none };
    assert_eq!(
        condition("vm1", &waits, false, Memory::SharedAlone, false).0,
        Condition::Attached,
        "no driver, no memory yet"
    );
}

/// QEMU's intel-iommu: a device can access only the memory that its driver has mapped, at first none. Firmware may have left the
/// adapter running.
#[test]
fn a_vm_whose_iommu_maps_nothing_yet_is_not_told_to_share_its_memory() {
    let empty = State { shared_bytes: 0, absent_bytes: 0, features: vec!["rx-checksum"], ..state() };
    let shown = |state: &State| condition("vm1", state, false, Memory::Announced, false);
    let (word, sentence) = shown(&empty);
    assert_eq!((word, sentence.contains("share")), (Condition::Attached, false), "{sentence}");
    let driven = State { driven: true, ..empty };
    let (word, sentence) = shown(&driven);
    assert_eq!((word, sentence.contains("IOMMU"), sentence.contains("share")), (Condition::Attached, true, false));
    let stall = Stall { queue: Queue::Receive(0), why: "the ring lies where no memory is", cure: "restart it" };
    let (word, sentence) = shown(&State { stalls: vec![stall], ..driven.clone() });
    assert_eq!((word, sentence.contains("no memory is")), (Condition::Broken, true), "{sentence}");
    let mapped = State { shared_bytes: 4096, ..driven };
    assert_eq!(shown(&mapped).0, Condition::Up, "one page of a ring is enough");
    assert!(shown(&State { absent_bytes: 8192, ..mapped }).1.contains("share=on"), "announced, and not shared");
}

#[test]
fn a_report_holds_what_was_counted_and_leaves_zeros_out() {
    let mut state =
        State { features: vec!["tso4", "rx-checksum"], driven: true, backlog_frames: 3, backlog_bytes: 900, ..state() };
    state.counters.sent(1, 45, 65_226);
    state.counters.received(0, 1, 60);
    state.received = 1;
    state.counters.transmit_drop(Reason::SamePort);
    state.counters.receive_drop(Reason::BufferFull);
    state.counters.receive_drop(Reason::BufferFull);
    (state.counters.reads, state.counters.writes, state.counters.interrupts) = (5, 6, 7);
    let entry = nicety_adapters::find("e1000").unwrap();
    let config = PortConfig::new("vm1", entry, Mac([0x52, 0x54, 0, 0x12, 0x34, 1]), "/run/vm1.sock".into());
    let spec = PortSpec::plain(PortConfig { group: Some("web".into()), ..config });
    let last_end = Some((Duration::from_secs(7199), "the VMM is disconnected: it said nothing".to_owned()));
    let policy = nicety_switch::Policy { forged_transmits: false, ..nicety_switch::Policy::default() };
    let mut view = PortView {
        spec: Some(spec),
        wanted: [(0, Interest::Router), (10, Interest::Group([239, 1, 2, 3].into())), (0, Interest::Everything)]
            .map(|(fid, interest)| Wanted { fid, port: PortId(1), interest, left: Duration::from_secs(9) })
            .to_vec(),
        neighbour: Some(Neighbour { system: "core1".into(), port: "1/1".into(), until: Time(5) }),
        signals: 4,
        last_end,
        ..PortView::new("vm1", PortId(1), &policy, state, Duration::from_secs(1_700_000_000))
    };
    let report = PortReport::of(&view);
    assert_eq!(report.sentence, "a VM is attached, and its driver is up", "of the last one nothing any more");
    view.state.held = true;
    assert!(PortReport::of(&view).sentence.ends_with("waits in the guest, for the uplink is full"));
    view.state.held = false;
    // Its firmware has received frames, and its driver posts no buffer.
    view.starved = Duration::from_secs(35);
    let sentence = PortReport::of(&view).sentence;
    assert!(
        sentence.starts_with("its driver is up, but frames have waited for 35 s: it posts no receive buf"),
        "{sentence}"
    );
    view.starved = Duration::from_secs(2);
    assert_eq!(PortReport::of(&view).sentence, report.sentence, "a busy guest");
    assert_eq!(report.mac.as_deref(), Some("52:54:00:12:34:01"));
    assert_eq!(report.transmit, [QueueReport { queue: 1, packets: 1, frames: 45, bytes: 65_226 }]);
    assert_eq!(report.receive, [QueueReport { queue: 0, packets: 1, frames: 1, bytes: 60 }]);
    assert_eq!(report.transmit_drops, BTreeMap::from([("same-port".to_owned(), 1)]));
    assert_eq!(report.receive_drops, BTreeMap::from([("buffer-full".to_owned(), 2)]));
    assert_eq!((report.register_reads, report.register_writes, report.interrupts, report.signals), (5, 6, 7, 4));
    assert_eq!((report.backlog_frames, report.backlog_bytes), (3, 900));
    assert_eq!(report.port_group.as_deref(), Some("web"));
    assert_eq!(report.policy, BTreeMap::from([("forged_transmits".to_owned(), "reject".to_owned())]));
    let shown = ["all of the flat network (a router is there)", "239.1.2.3 (VLAN 10)", "all"];
    assert_eq!(report.multicasts, shown);
    assert_eq!(report.neighbour.as_deref(), Some("core1, port 1/1"));
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<PortReport>(&json).unwrap(), report);
    view.state.attached = false;
    let sentence = PortReport::of(&view).sentence;
    assert!(sentence.ends_with("start one; 119 min ago: the VMM is disconnected: it said nothing"), "{sentence}");
    view.spec.as_mut().unwrap().config.role = Role::Connect;
    for (absence, says) in
        [(None, "connecting to /run/vm1.sock"), (Some("connecting to it: nobody"), "connecting to it: nobody")]
    {
        view.absence = absence.map(str::to_owned);
        let report = PortReport::of(&view);
        let how = "; `nicety attach vm1` says how to start a VM that listens there; 119 min ago: the VMM is disconnected: it said nothing";
        assert_eq!(report.sentence, format!("{says}{how}"));
        let made_of = report.made_of.unwrap();
        assert_eq!((made_of.role, made_of.access.as_str()), (Role::Connect, ""));
    }
}
