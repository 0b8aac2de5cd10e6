//! Both ends of a port's log in one thread and in a time of their own: a replica that differs, one without memory, and a log that is full.

use std::path::PathBuf;

use nicety_adapter::tape::{Call, Entry};
use nicety_adapter::{Context, Counters, Face, Outbox, Set, Time};
use nicety_adapters::{Settings, find};
use nicety_frame::Mac;
use nicety_host::{Bytes, PortConfig};
use nicety_memory::{Map, Place, Rights};
use nicety_plane::{End, Shell};
use nicety_uplink::Null;

use super::*;

struct Silent;

impl Shell for Silent {
    fn messages(&self, _: Set) {}
    fn line(&self, _: bool) {}
    fn schedule(&self) {}
    fn wake_at(&self, _: Time) {}
}

struct Session {
    key: Key,
    names: Names,
    gate: Gate,
    tape: Arc<PortTape>,
    _port: Arc<Port>,
    sender: Sender,
    listener: Listener,
    replica: Option<Replica>,
    complaints: Complaints,
    memory: Arc<Map>,
    now: Instant,
}

fn settings(last: u8) -> Settings {
    Settings::new(Mac([2, 0, 0, 0, 0, last]))
}

impl Session {
    /// A vmxnet3 with these settings, whose replica is made with others.
    fn new(recorded: &Settings, told: Settings) -> Self {
        let listener = at(&"127.0.0.1:0".parse().unwrap(), Listener::beside).unwrap();
        let Ok(nicety_sealed::Place::Tcp(address)) = listener.place() else { panic!("TCP") };
        let peer = PeerAddress::Address(address);
        let entry = find("vmxnet3").unwrap();
        let spec = PortSpec::plain(PortConfig {
            ft_peer: Some(peer.clone()),
            buffer: Bytes(64 << 10),
            ..PortConfig::new("vm1", entry, told.mac, PathBuf::new())
        });
        let tape = Arc::new(PortTape::new(&spec, &peer, false, Arc::new(Bell::new().unwrap())));
        let adapter = (entry.create)(recorded).unwrap();
        let gate = Gate::new(adapter, Arc::clone(&tape.commit), Arc::clone(&tape) as Arc<dyn Log>).unwrap();
        let port = Port::new(PortId(1), End::link(Box::new(Null)), Box::new(Silent), 64 << 10);
        let (port, now) = (Arc::new(port.unwrap()), Instant::now());
        let sender = Sender::new(Arc::clone(&tape), &port, now);
        let (key, names, memory) = (Key::new(&[7; 32]), Names::start().unwrap(), Map::empty());
        let (replica, complaints) = (None, Complaints::default());
        Self { key, names, gate, tape, _port: port, sender, listener, replica, complaints, memory, now }
    }

    /// Both sides do what is due. A step is a millisecond.
    fn step(&mut self) {
        self.now += Duration::from_millis(1);
        assert!(self.sender.step(&self.key, &self.names, self.now));
        if let Ok((stream, from)) = self.listener.accept() {
            let link = Link::new(stream, hello(&self.key)).unwrap();
            self.replica = Some(Replica::new(link, from, self.now));
        }
        let Self { replica, key, now, complaints, .. } = self;
        if replica.as_mut().is_some_and(|replica| !replica.step(key, *now, complaints)) {
            *replica = None;
        }
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let begun = Instant::now();
        while !done(self) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}: {:?}", self.tape.report());
            self.step();
            std::thread::yield_now();
        }
    }

    /// The guest writes a command to the register CMD, and reads its answer (BAR 1, 0x20).
    fn command(&mut self, command: u32) {
        let (mut out, mut counters) = (Outbox::default(), Counters::default());
        let (memory, now) = (&self.memory, Time::ZERO);
        let mut cx = Context { memory, page: None, out: &mut out, counters: &mut counters, now };
        let Face::Pci(pci) = self.gate.face() else { panic!("a PCI function") };
        pci.write(1, 0x20, &command.to_le_bytes(), &mut cx);
        pci.read(1, 0x20, &mut [0; 4], &mut cx);
    }

    fn until_protected(&mut self) {
        self.until("protection", |session| {
            session.command(GET_LINK);
            session.tape.report().protected && session.tape.commit.is_logging()
        });
    }

    fn until_unprotected(&mut self) -> String {
        self.until("the end of its protection", |session| !session.tape.report().protected);
        assert!(!self.tape.commit.is_logging());
        self.tape.report().why_not.unwrap()
    }
}

const GET_LINK: u32 = 0xf00d_0002;
const GET_PERM_MAC_HI: u32 = 0xf00d_0004;

fn entry(call: Call, read: usize) -> Entry {
    Entry { at: Time::ZERO, call, read: vec![0; read], sum: 0, state: None }
}

#[test]
fn a_replica_that_differs_names_the_first_such_call_and_the_port_goes_on_unprotected() {
    let mut session = Session::new(&settings(1), settings(2));
    session.until_protected();
    // Until one is changed, both adapters have the same state, over several digests.
    for _ in 0..300 {
        session.command(GET_LINK);
        session.step();
    }
    session.until("acknowledgements", |session| session.tape.report().lag_calls == 0);
    assert!(session.tape.report().protected);
    let made = session.tape.commit.made();
    session.command(GET_PERM_MAC_HI);
    session.command(GET_LINK);
    let why = session.until_unprotected();
    assert!(why.contains(&format!("at call {} of the port: ", made + 1)) && why.contains("it answers"), "{why}");
    let calls = session.tape.take().calls.len();
    session.command(GET_LINK);
    assert_eq!((calls, session.tape.take().calls.len()), (0, 0), "nobody has a log of it");
}

/// A port without a VM, for example.
#[test]
fn a_port_whose_guest_does_nothing_says_that_its_peer_is_there() {
    let mut session = Session::new(&settings(1), settings(1));
    session.until("the peer", |session| {
        session.tape.report().why_not.is_some_and(|why| why.contains("the log begins with the guest's next call"))
    });
    session.until_protected();
    assert_eq!(session.tape.report().why_not, None);
}

#[test]
fn a_peer_whose_memory_is_short_says_so_and_the_port_goes_on_unprotected() {
    let mut session = Session::new(&settings(1), settings(1));
    session.until_protected();
    let too_large = Place { base: 0, len: 1 << 60, rights: Rights::BOTH, is_shared: true };
    session.tape.call(entry(Call::Memory(vec![too_large]), 0));
    let why = session.until_unprotected();
    assert!(why.contains("this host has no memory for the guest's"), "{why}");
}

#[test]
fn a_log_of_64_mib_that_waits_ends_says_so_and_begins_anew() {
    let mut session = Session::new(&settings(1), settings(1));
    session.until_protected();
    let piece = entry(Call::Tick, 1 << 20);
    (0..64).for_each(|_| session.tape.call(piece.clone()));
    session.command(GET_LINK);
    session.step();
    let figures = session.tape.figures().why_not.clone();
    assert_eq!(figures.as_deref(), Some("it is too slow: the log is full"));
    assert!(!session.tape.commit.is_logging(), "frames wait");
    assert_eq!(session.tape.take().calls.len(), 0, "what waited is no log any more");
    session.until_protected();
    assert_eq!(session.tape.report().why_not, None);
}
