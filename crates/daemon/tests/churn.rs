//! Ports are opened and closed under traffic. No other port loses a frame, and frames that wait for a closed port are counted.
//! Each test runs with one worker and with two.

#[macro_use]
#[path = "../../plane/tests/workers/mod.rs"]
mod workers;
#[allow(dead_code, reason = "other tests use more of it")]
mod nic;
mod stage;

use nic::Nic;
use nicety_adapter::Reason;
use nicety_adapters::find;
use nicety_daemon::daemon::PortSpec;
use nicety_host::{Bytes, LinkState, PortConfig};
use stage::Stage;

/// Number of times that a port is opened and closed: two changes each.
const ROUNDS: u32 = 500;
/// A change that takes longer hangs.
const HANGS: std::time::Duration = std::time::Duration::from_secs(60);
/// Most waits of half of the changes, for their workers and for locks. A change that polls its workers waits far more often.
const WAITS_MAX: u64 = 4;

/// How often this thread has waited (proc(5), `voluntary_ctxt_switches`).
fn waits() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

fn third(stage: &Stage) -> PortSpec {
    PortSpec::plain(PortConfig::new(
        "vm3",
        find("e1000").unwrap(),
        nicety_frame::Mac([0x52, 0x54, 0, 0, 0, 3]),
        stage.socket(3),
    ))
}

fn a_thousand_changes_under_traffic_lose_no_frame_of_ports_that_are_not_named(workers: usize) {
    let stage = Stage::new(workers, &["e1000", "e1000"]);
    let (mut sender, mut receiver) = (Nic::new(&stage, 1), Nic::new(&stage, 2));
    let (mut sent, mut waited) = (0, Vec::new());
    for _ in 0..ROUNDS {
        // Broadcasts in flight while a port is opened or closed.
        sender.send().unwrap();
        sent += 64;
        let before = waits();
        stage.daemon.open(third(&stage)).unwrap();
        let between = waits();
        assert!(stage.daemon.close("vm3").is_some());
        waited.extend([between - before, waits() - between]);
        stage.until("the frames are there", || {
            receiver.repost().unwrap();
            stage.taken(2) == sent
        });
    }
    let (sends, takes) = (stage.view(1).state.counters, stage.view(2).state.counters);
    assert_eq!(sends.transmitted().packets, sent);
    assert_eq!(sends.transmit_drops.iter().sum::<u64>(), 0, "{:?}", sends.transmit_drops);
    assert_eq!(takes.receive_drops.iter().sum::<u64>(), 0, "{:?}", takes.receive_drops);
    waited.sort_unstable();
    let median = waited[waited.len() / 2];
    println!("half of the changes waited {median} times at most, the others up to {:?}", waited.last());
    assert!(median <= WAITS_MAX, "half of the changes waited {median} times or more");
}

/// No frame and no VMM wakes a worker here: only the change itself does. A change that nobody is woken for hangs.
fn a_change_is_in_force_although_its_worker_sleeps(workers: usize) {
    let (say, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let stage = Stage::new(workers, &[]);
        for round in 0..ROUNDS {
            stage.daemon.open(third(&stage)).unwrap();
            assert!(stage.daemon.close("vm3").is_some());
            say.send(round).unwrap();
        }
    });
    for round in 0..ROUNDS {
        let ended = said.recv_timeout(HANGS).unwrap_or_else(|error| panic!("change {round} hangs: {error}"));
        assert_eq!(ended, round);
    }
}

fn what_waits_for_a_port_that_is_removed_in_a_flood_is_counted(workers: usize) {
    let stage = Stage::new(workers, &["e1000", "e1000", "e1000"]);
    let (mut sender, _idle, mut other) = (Nic::new(&stage, 1), Nic::new(&stage, 2), Nic::new(&stage, 3));
    let mut sent = 0;
    // Send until the ring is full and frames wait in the receive buffer.
    while stage.view(2).state.backlog_frames < 64 {
        sender.send().unwrap();
        sent += 64;
        stage.until("the other one has them", || {
            other.repost().unwrap();
            stage.taken(3) == sent
        });
    }
    sender.send().unwrap();
    sent += 64;
    let end = stage.daemon.close("vm2").unwrap();
    let counters = end.state.counters;
    let removed = counters.receive_drops[Reason::Removed as usize];
    assert!(removed >= 64, "{removed} were counted");
    assert_eq!(end.state.backlog_frames, 0);
    stage.until("the flood ends", || {
        other.repost().unwrap();
        stage.taken(3) == sent
    });
    // A flood in flight may have found the port closed. Frames that reached it are in its counters.
    let came = counters.taken().packets + counters.receive_drops.iter().sum::<u64>();
    assert!(came <= sent && came >= sent - 64, "{came} of {sent}");
    assert_eq!(stage.view(1).state.counters.transmit_drops.iter().sum::<u64>(), 0);
    assert_eq!(stage.view(3).state.counters.receive_drops.iter().sum::<u64>(), 0);
}

fn a_buffer_of_another_size_takes_nothing_from_what_waits(workers: usize) {
    let stage = Stage::new(workers, &["e1000", "e1000"]);
    let (mut sender, mut receiver) = (Nic::new(&stage, 1), Nic::new(&stage, 2));
    let mut sent = 0;
    while stage.view(2).state.backlog_frames < 64 {
        sender.send().unwrap();
        sent += 64;
        stage.until("they are sent", || stage.view(1).state.counters.transmitted().packets == sent);
    }
    let mut spec = stage.view(2).spec.unwrap();
    spec.config.buffer = Bytes(64 << 10);
    stage.daemon.set(&spec).unwrap();
    spec.config.buffer = Bytes(128 << 10);
    stage.daemon.set(&spec).unwrap();
    stage.until("what waited is there", || {
        receiver.repost().unwrap();
        stage.taken(2) == sent
    });
    assert_eq!(stage.view(2).state.counters.receive_drops.iter().sum::<u64>(), 0);
    // From here on the new size is in force: 128 KiB of frames that take 1,024 bytes each.
    while stage.view(2).state.counters.receive_drops[Reason::BufferFull as usize] == 0 {
        sender.send().unwrap();
        sent += 64;
        stage.until("they are sent", || stage.view(1).state.counters.transmitted().packets == sent);
    }
    assert_eq!(stage.view(2).state.backlog_bytes, 128 << 10);
}

fn a_link_that_is_taken_down_passes_no_frame_in_either_direction_and_up_again_it_does(workers: usize) {
    let stage = Stage::new(workers, &["e1000", "e1000"]);
    let mut nics = [1, 2].map(|number| Nic::new(&stage, number));
    let drops = |number| {
        let counters = stage.view(number).state.counters;
        (counters.transmit_drops[Reason::LinkDown as usize], counters.receive_drops[Reason::ReceiverOff as usize])
    };
    let set = |link| {
        let mut spec = stage.view(2).spec.unwrap();
        spec.config.link = link;
        stage.daemon.set(&spec).unwrap();
    };
    let mut exchange = |taken: [u64; 2], dropped: (u64, u64)| {
        for nic in &mut nics {
            nic.send().unwrap();
            stage.until("its frames left their ring", || nic.is_fetched());
        }
        let end = || (taken, dropped) == ([stage.taken(1), stage.taken(2)], drops(2));
        stage.until(&format!("{taken:?} are taken, and {dropped:?} dropped"), end);
        nics.iter_mut().for_each(|nic| nic.repost().unwrap());
    };
    exchange([64, 64], (0, 0));
    set(LinkState::Disable);
    exchange([64, 64], (64, 64));
    set(LinkState::Auto);
    exchange([128, 128], (64, 64));
    assert_eq!(drops(1), (0, 0));
}

with_one_worker_and_with_two!(
    a_link_that_is_taken_down_passes_no_frame_in_either_direction_and_up_again_it_does,
    a_thousand_changes_under_traffic_lose_no_frame_of_ports_that_are_not_named,
    a_change_is_in_force_although_its_worker_sleeps,
    what_waits_for_a_port_that_is_removed_in_a_flood_is_counted,
    a_buffer_of_another_size_takes_nothing_from_what_waits,
);
