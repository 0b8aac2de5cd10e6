//! An adapter on a switch with a wire, in one thread and virtual time.

use std::sync::{Arc, Mutex};

use nicety_adapter::tape::{Entry as Call, Recorder};
use nicety_adapter::{Adapter, PortId, Time};
use nicety_adapters::{Entry, Settings};
use nicety_frame::Mac;
use nicety_memory::Map;
use nicety_plane::doubles::Memo;
use nicety_plane::wire::{Far, Wire};
use nicety_plane::{End, Plane, Port, Turn};
use nicety_switch::Limits;

/// Most turns until all ports are idle. More mean an endless loop.
const TURNS: usize = 100_000;

/// Bytes of a port's receive buffer.
const BUFFER: u32 = 1 << 20;

/// Capacity of the switch's address table. A table of the usual size would take longer to create than most trials run.
const ADDRESSES: usize = 1 << 10;

/// An adapter with guest memory, a switch, and a wire as the other port.
pub struct Rig {
    /// The switch and its ports.
    pub plane: Arc<Plane>,
    /// The adapter's port, number 1.
    pub port: Arc<Port>,
    /// The wire's port, number 0.
    pub uplink: Arc<Port>,
    /// The far end of the wire.
    pub far: Far,
    /// The recorded requests of the adapter's port.
    pub memo: Memo,
    /// The guest's memory, at bus address 0.
    pub memory: Arc<Map>,
    /// Virtual time.
    pub now: Time,
    /// Packets that have entered the switch, by port number.
    pub entered: [u64; 2],
    turn: Turn,
}

/// All that an adapter has heard.
pub type Tape = Arc<Mutex<Vec<Call>>>;

/// The address of the adapter under trial.
pub const MAC: Mac = Mac([0x52, 0x54, 0, 0x12, 0x34, 0x56]);

/// Creates a new adapter. The registry's own adapters need only an address.
pub fn adapter(entry: &Entry) -> Box<dyn Adapter> {
    (entry.create)(&Settings::new(MAC)).unwrap_or_else(|error| panic!("{}: {error}", entry.about.name))
}

impl Rig {
    /// A new adapter with this much guest memory. `whole`: the wire takes TSO packets uncut.
    pub fn new(entry: &Entry, memory_bytes: usize, whole: bool) -> Self {
        Self::around(entry, Arc::new(Map::private(memory_bytes).expect("private memory")), whole)
    }

    /// The same, with a receive buffer of this many bytes.
    pub fn with_buffer(entry: &Entry, memory_bytes: usize, whole: bool, buffer: u32) -> Self {
        Self::build(adapter(entry), Arc::new(Map::private(memory_bytes).expect("private memory")), whole, buffer)
    }

    /// The same for an existing guest, with its memory.
    pub fn around(entry: &Entry, memory: Arc<Map>, whole: bool) -> Self {
        Self::build(adapter(entry), memory, whole, BUFFER)
    }

    /// The same, with a tape of all that the adapter hears.
    pub fn recorded(entry: &Entry, memory: Arc<Map>, whole: bool) -> (Self, Tape) {
        let tape = Tape::default();
        let sink = Arc::clone(&tape);
        let sink = Box::new(move |call| sink.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(call));
        (Self::build(Box::new(Recorder::new(adapter(entry), sink)), memory, whole, BUFFER), tape)
    }

    fn build(adapter: Box<dyn Adapter>, memory: Arc<Map>, whole: bool, buffer: u32) -> Self {
        let plane = Arc::new(Plane::new(Limits { addresses: ADDRESSES, ..Limits::default() }));
        let (wire, far) = Wire::new(whole).expect("private memory");
        let memo = Memo::default();
        let end = End::guest(adapter);
        let port = Arc::new(Port::new(PortId(1), end, Box::new(memo.clone()), buffer).expect("private memory"));
        let end = End::link(Box::new(wire));
        let uplink = Arc::new(Port::new(PortId(0), end, Box::new(Memo::default()), BUFFER).expect("private memory"));
        plane.join(Arc::clone(&uplink)).expect("a new switch has room");
        plane.join(Arc::clone(&port)).expect("a new switch has room");
        port.attach();
        port.set_memory(Arc::clone(&memory), Time::ZERO);
        Self { plane, port, uplink, far, memo, memory, now: Time::ZERO, entered: [0; 2], turn: Turn::new() }
    }

    /// Runs one turn of the adapter's port, and one of the wire's. True if either has more work.
    pub fn step(&mut self) -> bool {
        self.memo.asked().scheduled = false;
        let mut more = false;
        for port in [&self.port, &self.uplink] {
            loop {
                let outcome = self.plane.turn(port, &mut self.turn, self.now);
                self.entered[usize::from(port.id().0)] += outcome.packets as u64;
                if !outcome.unfinished {
                    more |= outcome.more;
                    break;
                }
            }
        }
        more || self.memo.asked().scheduled
    }

    /// Runs turns until no port has work at this time.
    pub fn settle(&mut self) {
        self.uplink.ready();
        let mut turns = 0;
        while self.step() {
            turns += 1;
            assert!(turns < TURNS, "somebody never stops");
        }
    }

    /// Advances time; ports get the wake-ups that they requested.
    pub fn pass(&mut self, ns: u64) {
        let end = self.now.after_ns(ns);
        loop {
            let wake = self.memo.asked().wake.filter(|at| *at <= end);
            let Some(at) = wake else { break };
            self.memo.asked().wake = None;
            self.now = self.now.max(at);
            self.settle();
        }
        self.now = end;
        self.settle();
    }
}
