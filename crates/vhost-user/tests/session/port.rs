//! A port without a switch: an adapter behind a lock, and a record of the session's calls.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nicety_adapter::{Adapter, Batch, Budget, Context, Counters, Face, Frames, Outbox, Pick, PortId, RingFace, Time};
use nicety_adapters::{Settings, find};
use nicety_frame::Mac;
use nicety_memory::Map;
use nicety_vhost_user::{Bell, Closer, Ended, Kick, Port, Refusal, Session};

pub struct Inside {
    pub adapter: Box<dyn Adapter>,
    pub memory: Arc<Map>,
    pub out: Outbox,
    pub counters: Counters,
    pub batch: Batch,
    pub now: Time,
    pub kicks: HashMap<u16, Kick>,
    pub calls: HashMap<u16, Bell>,
    pub refused: Vec<String>,
    pub announced: Vec<[u8; 6]>,
    pub disconnected: bool,
    pub record: Option<Arc<Map>>,
    /// The state that it saves, and what it was given to load.
    pub state: Vec<u8>,
    pub loaded: Vec<Result<Vec<u8>, String>>,
}

impl Inside {
    fn split(&mut self) -> (&mut dyn Adapter, Context<'_>) {
        let Self { adapter, memory, out, counters, now, .. } = self;
        (&mut **adapter, Context::new(memory, out, counters, *now))
    }

    /// Runs the tick that the adapter has requested, if any.
    fn later(&mut self) {
        if let Some(at) = self.out.wake.take() {
            self.now = self.now.max(at);
            let (adapter, mut cx) = self.split();
            adapter.tick(&mut cx);
        }
    }
}

pub struct TestPort(Mutex<Inside>);

impl TestPort {
    pub fn new(mtu: Option<u16>) -> Arc<Self> {
        let settings = Settings { mtu, queues: Some(2), ..Settings::new(Mac([2, 0, 0, 0, 0, 1])) };
        let adapter = (find("virtio-net").expect("registered").create)(&settings).expect("made");
        Arc::new(Self(Mutex::new(Inside {
            adapter,
            memory: Map::empty(),
            out: Outbox::default(),
            counters: Counters::default(),
            batch: Batch::new(),
            now: Time::ZERO,
            kicks: HashMap::new(),
            calls: HashMap::new(),
            refused: Vec::new(),
            announced: Vec::new(),
            disconnected: false,
            record: None,
            state: Vec::new(),
            loaded: Vec::new(),
        })))
    }

    pub fn look<R>(&self, f: impl FnOnce(&mut Inside) -> R) -> R {
        let mut inside = self.0.lock().expect("nobody panicked");
        let result = f(&mut inside);
        inside.memory.publish_log();
        result
    }

    /// Handles a readable kick descriptor, as a worker does.
    pub fn kicked(&self, ring: u16) {
        self.look(|inside| {
            if let Some(Kick::Bell(bell)) = inside.kicks.get(&ring) {
                bell.clear();
            }
            let (adapter, mut cx) = inside.split();
            if let Face::Rings(face) = adapter.face() {
                face.kick(ring, &mut cx);
            }
        });
    }

    /// One turn: moves everything in queue 0 to `other`, and returns how much.
    pub fn forward(&self, other: &TestPort) -> usize {
        let sent = self.look(|inside| {
            let mut batch = std::mem::take(&mut inside.batch);
            batch.start(&inside.memory, PortId(0), 0);
            let (adapter, mut cx) = inside.split();
            adapter.fetch(0, Budget::TURN, &mut batch, &mut cx);
            batch
        });
        let picks: Vec<Pick> = (0..sent.len() as u16).map(Pick::whole).collect();
        other.look(|inside| {
            let (adapter, mut cx) = inside.split();
            adapter.deliver(&Frames::new(&sent, &picks), &mut cx);
        });
        let count = sent.len();
        self.look(|inside| {
            let (adapter, mut cx) = inside.split();
            adapter.complete(&sent, &mut cx);
            inside.batch = sent;
            inside.batch.release();
        });
        self.flush();
        other.flush();
        count
    }

    fn flush(&self) {
        self.look(|inside| {
            inside.later();
            while let Some(ring) = inside.out.messages.pop() {
                if let Some(bell) = inside.calls.get(&ring) {
                    bell.ring().expect("the guest is there");
                }
            }
        });
    }
}

impl Port for TestPort {
    fn with(&self, act: &mut dyn FnMut(&mut dyn RingFace, &mut Context<'_>)) {
        self.look(|inside| {
            let (adapter, mut cx) = inside.split();
            if let Face::Rings(face) = adapter.face() {
                act(face, &mut cx);
            }
        });
    }

    fn set_memory(&self, map: Arc<Map>) {
        self.look(|inside| inside.memory = map);
    }

    fn set_kick(&self, ring: u16, kick: Kick) {
        self.look(|inside| inside.kicks.insert(ring, kick));
    }

    fn set_call(&self, ring: u16, call: Option<Bell>) {
        self.look(|inside| match call {
            Some(call) => inside.calls.insert(ring, call),
            None => inside.calls.remove(&ring),
        });
    }

    fn set_err(&self, _ring: u16, _err: Option<Bell>) {}

    fn announce(&self, address: [u8; 6]) {
        self.look(|inside| inside.announced.push(address));
    }

    fn record(&self) -> Option<Arc<Map>> {
        self.look(|inside| inside.record.clone())
    }

    fn refused(&self, refusal: &Refusal) {
        self.look(|inside| inside.refused.push(refusal.to_string()));
    }

    fn offers_state(&self) -> bool {
        true
    }

    fn save_state(&self, _ran: bool) -> Vec<u8> {
        self.look(|inside| inside.state.clone())
    }

    fn load_state(&self, state: Result<Vec<u8>, String>) {
        self.look(|inside| inside.loaded.push(state));
    }

    fn disconnected(&self) {
        self.look(|inside| inside.disconnected = true);
    }
}

/// A session in its own thread, and the other end of its socket.
pub struct Served {
    pub port: Arc<TestPort>,
    pub closer: Closer,
    thread: JoinHandle<Ended>,
}

pub fn serve(port: &Arc<TestPort>) -> (Served, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    let session = Session::new(OwnedFd::from(ours), port.clone()).expect("a session");
    let closer = session.closer().expect("a closer");
    (Served { port: port.clone(), closer, thread: std::thread::spawn(|| session.run()) }, theirs)
}

impl Served {
    /// Returns how the session ended. The peer must have disconnected or made an error.
    pub fn ended(self) -> Ended {
        let ended = self.thread.join().expect("a session never panics");
        self.port.look(|inside| {
            assert!(inside.disconnected);
            assert_eq!(inside.memory.regions(), 0, "the memory is let go");
            assert!(inside.calls.is_empty());
            assert!(inside.kicks.values().all(|kick| matches!(kick, Kick::Stopped)));
            assert_eq!(inside.adapter.transmit_queues(), 0, "the rings are stopped");
        });
        ended
    }
}
