//! Output commit of a port (`nicety_adapter::tape::Gate`), with each adapter and its driver.

use std::sync::{Arc, Mutex, MutexGuard};

use nicety_adapter::tape::{Commit, Entry, Gate, Log, Player};
use nicety_adapter::{Offload, Reset};
use nicety_adapters::REGISTRY;
use nicety_memory::Map;
use nicety_trials::bus::PortBus;
use nicety_trials::guest::{Guest, MEMORY, Net};
use nicety_trials::rig::{MAC, Rig, adapter};
use nicety_trials::scope::families;

/// Longer than every moderation timer.
const A_WHILE_NS: u64 = 2_000_000;
/// Bytes of a frame: the longest of an Ethernet without tags.
const FRAME: usize = 1514;
/// Packets that wait in a gate at most, beside those of one more batch, and their bytes.
const WAITING_MAX: (u64, u64) = (4096 + 64, (1 << 20) + (64 << 10) + FRAME as u64);

/// A log as the other host has it: the calls since it began.
#[derive(Default)]
struct Tape {
    calls: Mutex<(u64, Vec<Vec<u8>>)>,
    /// The guest's memory, in which a frame changes as soon as it is logged.
    spoils: Mutex<Option<Arc<Map>>>,
}

impl Tape {
    fn lock(&self) -> MutexGuard<'_, (u64, Vec<Vec<u8>>)> {
        self.calls.lock().unwrap()
    }
}

/// In a frame that changes.
const LOGGED: [u8; 16] = *b"this was logged!";

/// Writes something else over it wherever it is. Returns how often.
fn spoil(memory: &Map) -> usize {
    let mut all = vec![0; MEMORY];
    memory.read(0, &mut all).unwrap();
    let places: Vec<usize> = (0..=all.len() - LOGGED.len()).filter(|at| all[*at..].starts_with(&LOGGED)).collect();
    for at in &places {
        memory.write(*at as u64, b"this was not log").unwrap();
    }
    places.len()
}

impl Log for Tape {
    fn begin(&self, calls: u64) {
        *self.lock() = (calls, Vec::new());
    }

    fn call(&self, entry: Entry) {
        if entry.read.windows(LOGGED.len()).any(|window| window == LOGGED)
            && let Some(memory) = self.spoils.lock().unwrap().take()
        {
            assert!(spoil(&memory) > 0);
        }
        self.lock().1.push(entry.to_bytes());
    }
}

struct Host {
    kind: &'static nicety_adapters::Entry,
    rig: Rig,
    guest: Guest,
    commit: Arc<Commit>,
    tape: Arc<Tape>,
    received: usize,
    /// Numbers in the frames that have left.
    left: Vec<u32>,
    sent: u32,
}

impl Host {
    fn new(kind: &'static nicety_adapters::Entry) -> Self {
        let (commit, tape) = (Arc::new(Commit::new(false)), Arc::new(Tape::default()));
        let memory = Arc::new(Map::private(MEMORY).unwrap());
        let rig = Rig::gated(kind, memory, &commit, Arc::clone(&tape) as Arc<dyn Log>);
        let mut guest = Guest::new(PortBus::of(&rig), Net::named(kind.about.name));
        guest.open().unwrap();
        Self { kind, rig, guest, commit, tape, received: 0, left: Vec::new(), sent: 0 }
    }

    fn pass(&mut self) {
        self.rig.settle();
        self.rig.pass(A_WHILE_NS);
        self.guest.bus.now = self.rig.now;
        let Self { guest, received, .. } = self;
        guest.attend(&mut |_, _| *received += 1).unwrap();
        self.rig.settle();
        let frames = self.rig.far.ends().incoming.drain(..).collect::<Vec<_>>();
        self.left.extend(frames.iter().map(|(frame, _)| u32::from_be_bytes(frame[14..18].try_into().unwrap())));
    }

    /// Sends a frame. False if the guest's ring stays full.
    fn send(&mut self) -> bool {
        let mut frame = vec![0; FRAME];
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        frame[6..12].copy_from_slice(&MAC.0);
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        frame[14..18].copy_from_slice(&self.sent.to_be_bytes());
        for _ in 0..4 {
            if self.guest.queue(&frame, &Offload::default()).unwrap() {
                self.guest.flush().unwrap();
                self.sent += 1;
                return true;
            }
            self.guest.flush().unwrap();
            self.pass();
        }
        false
    }

    fn hear(&mut self, count: usize) {
        let mut frame = vec![7; 600];
        frame[..6].copy_from_slice(&MAC.0);
        for _ in 0..count {
            self.rig.far.ends().outgoing.push_back((frame.clone(), Offload::default()));
        }
        self.pass();
    }

    /// The other host has all calls so far.
    fn acknowledge(&mut self) {
        self.pass();
        self.commit.know(self.commit.made());
        self.rig.port.may_go(Gate::RELEASED);
        self.pass();
    }

    fn is_whole_and_in_order(&self) -> bool {
        self.left.iter().copied().eq(0..self.sent)
    }

    /// The other host's adapter does the same as this one, to its state.
    fn is_played(&self) {
        let name = self.kind.about.name;
        let mut player = Player::new(adapter(self.kind));
        for bytes in &self.tape.lock().1 {
            let entry = Entry::from_bytes(bytes).unwrap();
            player.play(&entry).unwrap_or_else(|divergence| panic!("{name}: {divergence}"));
        }
        let state = self.rig.port.save(self.rig.now).unwrap().state;
        assert!(player.adapter().save() == state, "{name}: state");
    }
}

/// A guest may write to a frame that its adapter has fetched. Whoever plays the log sends the frame that was logged.
#[test]
fn a_frame_that_changes_once_it_is_logged_leaves_as_it_was_logged() {
    for kind in REGISTRY {
        let (mut host, name) = (Host::new(kind), kind.about.name);
        host.commit.want();
        host.pass();
        let mut frame = vec![0; FRAME];
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        frame[6..14].copy_from_slice(&[MAC.0.as_slice(), &[0x88, 0xb5]].concat());
        frame[100..116].copy_from_slice(&LOGGED);
        *host.tape.spoils.lock().unwrap() = Some(Arc::clone(&host.rig.memory));
        assert!(host.guest.queue(&frame, &Offload::default()).unwrap(), "{name}");
        host.guest.flush().unwrap();
        host.rig.settle();
        host.rig.pass(A_WHILE_NS);
        host.commit.know(host.commit.made());
        host.rig.port.may_go(Gate::RELEASED);
        host.rig.settle();
        // An adapter with a memory of its own has the frame since the guest wrote it there.
        let was_read = host.tape.spoils.lock().unwrap().is_none();
        println!("{name}: its frame lies in the guest's memory: {was_read}");
        let left: Vec<Vec<u8>> = host.rig.far.ends().incoming.drain(..).map(|(left, _)| left).collect();
        assert_eq!(left, [frame], "{name}");
    }
}

#[test]
fn nothing_leaves_before_the_log_is_known_and_all_of_it_does_in_order_afterwards() {
    for kind in REGISTRY {
        let (mut host, name) = (Host::new(kind), kind.about.name);
        for _ in 0..10 {
            assert!(host.send());
        }
        host.pass();
        assert!(host.left.len() == 10, "{name}: a gate without a log is open");
        host.commit.want();
        host.pass();
        host.hear(3);
        for _ in 0..10 {
            assert!(host.send());
            host.pass();
        }
        assert_eq!(host.left.len(), 10, "{name}");
        assert_eq!(host.commit.waiting().packets, 10, "{name}");
        host.acknowledge();
        assert!(host.left.len() == 20 && host.is_whole_and_in_order(), "{name}: {:?}", host.left);
        assert!(host.received >= 3, "{name}");
        host.is_played();
        assert_eq!(host.rig.port.state().counters.transmit_drops.iter().sum::<u64>(), 0, "{name}");
    }
}

#[test]
fn a_log_that_begins_again_at_any_time_plays_to_the_same_state() {
    for kind in REGISTRY {
        let (mut host, name) = (Host::new(kind), kind.about.name);
        for round in 0..4 {
            host.send();
            host.hear(5);
            // The link has ended: what waits does so until another log has begun, or until nobody waits for one.
            if round % 2 == 0 {
                host.commit.close();
            } else {
                host.commit.open();
            }
            host.send();
            host.commit.want();
            host.hear(2);
            host.send();
            host.hear(2);
            if round == 2 {
                host.guest.close().unwrap();
                host.rig.port.reset(Reset::Function, host.rig.now);
                host.guest.open().unwrap();
            }
            host.is_played();
            host.acknowledge();
        }
        assert!(host.is_whole_and_in_order(), "{name}: {:?} of {}", host.left, host.sent);
    }
}

/// A digest of the state goes along once in so many calls, wherever a log begins.
#[test]
fn a_log_that_begins_when_a_digest_is_due_plays_as_any_other() {
    let mut host = Host::new(nicety_adapters::find("e1000").unwrap());
    for _ in 0..256 {
        host.send();
        host.commit.open();
        host.commit.want();
        host.hear(1);
        host.is_played();
    }
}

#[test]
fn a_closed_gate_lets_nothing_go_before_the_state_is_known_from_which_it_follows() {
    for kind in families() {
        let (mut host, name) = (Host::new(kind), kind.about.name);
        host.commit.want();
        host.hear(1);
        host.acknowledge();
        host.send();
        host.pass();
        assert!(host.commit.close(), "{name}");
        let begun = host.tape.lock().0;
        host.hear(1);
        assert_eq!(host.tape.lock().0, begun, "{name}: nobody has asked for another log");
        let before = host.commit.made();
        host.commit.want();
        host.hear(1);
        host.commit.know(before + 1);
        host.rig.port.may_go(Gate::RELEASED);
        host.pass();
        assert!(host.left.is_empty(), "{name}: the state is not known yet");
        host.acknowledge();
        assert!(host.is_whole_and_in_order() && host.sent == 1, "{name}");
        host.is_played();
    }
}

#[test]
fn a_full_gate_stops_the_guest_and_loses_nothing() {
    for kind in families() {
        let (mut host, name) = (Host::new(kind), kind.about.name);
        host.commit.want();
        host.pass();
        host.hear(1);
        let mut queued = 0;
        while host.send() {
            queued += 1;
            assert!(queued < 4 * WAITING_MAX.0, "{name}: nothing stops it");
        }
        let waiting = host.commit.waiting();
        assert!(
            waiting.is_full && waiting.packets <= WAITING_MAX.0 && waiting.bytes <= WAITING_MAX.1,
            "{name}: {waiting:?}"
        );
        assert!(host.left.is_empty(), "{name}");
        for _ in 0..100 {
            host.acknowledge();
        }
        assert!(host.is_whole_and_in_order(), "{name}: {} of {}", host.left.len(), host.sent);
        assert!(host.send(), "{name}: it goes on");
        host.acknowledge();
        assert!(host.is_whole_and_in_order(), "{name}");
    }
}

#[test]
fn what_waits_when_the_vm_goes_is_dropped_and_counted() {
    let mut host = Host::new(nicety_adapters::find("e1000").unwrap());
    host.commit.want();
    host.hear(1);
    host.send();
    host.pass();
    host.rig.port.detach(host.rig.now);
    assert_eq!(host.commit.waiting().packets, 0);
    assert_eq!(host.rig.port.state().counters.transmit_drops.iter().sum::<u64>(), 1);
    host.commit.open();
    host.rig.port.attach();
    host.pass();
    assert!(host.left.is_empty());
}
