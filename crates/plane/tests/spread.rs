//! TCP over a team that spreads a guest's flows, by the test's own clock: nobody is held there, so each flow must learn from losses how much
//! its link carries. A model of Linux's TCP (RFC 5681 with selective acknowledgements and RACK, RFC 8985) sends by TSO.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use nicety_adapter::{Batch, Budget, Checksum, Context, Delivery, Frames, Offload, PortId, Progress, Segment, Time};
use nicety_frame::SegmentKind;
use nicety_memory::Map;
use nicety_plane::doubles::{Linked, Ringed, Silent, Traffic};
use nicety_plane::{End, Group, Hash, Plane, Port, Spread, Steering, Turn};
use nicety_switch::{Limits, Policy};

const MS: u64 = 1_000_000;
const LINKS: usize = 4;
/// 50 Mbit/s, as the lab's method `aggregation` has them.
const LINK_BYTES_PER_MS: i64 = 6_250;
const HEADERS: u16 = 54;
const MSS: u16 = 1448;
/// Most segments of a TSO packet of 64 KiB.
const TSO_MAX: u64 = 44;
/// From a link to the receiver and back.
const RETURN_NS: u64 = MS / 2;
/// Linux's least (`TCP_RTO_MIN`).
const RTO_NS: u64 = 200 * MS;
const FIRST_PORT: u16 = 50_000;

/// A flow's sender. Numbers are of segments.
struct Flow {
    next: u64,
    acknowledged: BTreeSet<u64>,
    una: u64,
    /// Segments on their way, with the order in which they were sent.
    outstanding: BTreeMap<u64, u64>,
    sent: u64,
    lost: BTreeSet<u64>,
    window: f64,
    threshold: f64,
    /// Losses below it belong to one event.
    recovered_at: u64,
    last_news: Time,
}

impl Flow {
    fn new() -> Self {
        Self {
            next: 0,
            acknowledged: BTreeSet::new(),
            una: 0,
            outstanding: BTreeMap::new(),
            sent: 0,
            lost: BTreeSet::new(),
            window: 10.0,
            threshold: f64::MAX,
            recovered_at: 0,
            last_news: Time::ZERO,
        }
    }

    /// The next packet: its first segment, and how many.
    fn packet(&mut self, now: Time) -> Option<(u64, u64)> {
        let room = (self.window as u64).saturating_sub(self.outstanding.len() as u64);
        let (first, count) = if let Some(&first) = self.lost.first() {
            let count = (first..first + TSO_MAX).take_while(|segment| self.lost.contains(segment)).count() as u64;
            (first, count.min(room))
        } else {
            // Linux waits until a third of the window may go at once (`tcp_tso_should_defer`).
            let worth = TSO_MAX.min(self.window as u64 / 3);
            (self.next, if room >= worth || self.outstanding.is_empty() { room.min(TSO_MAX) } else { 0 })
        };
        if count == 0 {
            return None;
        }
        if self.outstanding.is_empty() {
            self.last_news = now;
        }
        for segment in first..first + count {
            self.lost.remove(&segment);
            self.outstanding.insert(segment, self.sent);
            self.sent += 1;
        }
        self.next = self.next.max(first + count);
        Some((first, count))
    }

    fn acknowledge(&mut self, segment: u64, now: Time) {
        self.last_news = now;
        let Some(order) = self.outstanding.remove(&segment) else { return };
        self.acknowledged.insert(segment);
        while self.acknowledged.remove(&self.una) {
            self.una += 1;
        }
        // A link keeps the order: what was sent before it and has not come is lost.
        let lost: Vec<u64> = self.outstanding.iter().filter(|(_, sent)| **sent < order).map(|(at, _)| *at).collect();
        if lost.iter().any(|segment| *segment >= self.recovered_at) {
            self.window = (self.window * 0.7).max(2.0);
            self.threshold = self.window;
            self.recovered_at = self.next;
        } else if self.window < self.threshold {
            self.window += 1.0;
        } else {
            self.window += 1.0 / self.window;
        }
        for segment in lost {
            self.outstanding.remove(&segment);
            self.lost.insert(segment);
        }
    }

    fn look_at_the_clock(&mut self, now: Time) {
        if !self.outstanding.is_empty() && now >= self.last_news.after_ns(RTO_NS) {
            self.threshold = (self.window / 2.0).max(2.0);
            self.window = 1.0;
            self.lost.extend(std::mem::take(&mut self.outstanding).into_keys());
            (self.recovered_at, self.last_news) = (self.next, now);
        }
    }
}

/// Segments that came, for whom, and when their sender hears of it.
type News = Arc<Mutex<VecDeque<(Time, usize, u64)>>>;

/// The next acknowledgement, if it has arrived by now.
fn heard(news: &News, now: Time) -> Option<(Time, usize, u64)> {
    let mut news = news.lock().unwrap();
    news.front().filter(|(at, ..)| *at <= now)?;
    news.pop_front()
}

/// The guest's adapter: its flows in turn.
struct Guest {
    flows: Vec<Flow>,
    news: News,
    turn: usize,
    map: Arc<Map>,
    place: u64,
}

/// Headers lie in front, payload that all share behind.
const PLACES: u64 = 1 << 16;
const PAYLOAD_AT: u64 = PLACES;
const MEMORY: usize = 1 << 18;

impl Guest {
    fn draft(&mut self, batch: &mut Batch, flow: usize, first: u64, count: u64) {
        let mut head = [0; HEADERS as usize];
        head[..14].copy_from_slice(&[2, 0, 0, 0, 0, 0xee, 2, 0, 0, 0, 0, 1, 8, 0]);
        let len = 40 + count as u16 * MSS;
        head[14..24].copy_from_slice(&[0x45, 0, (len >> 8) as u8, len as u8, 0, 0, 0x40, 0, 64, 6]);
        head[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        // Linux gives connections to one address every other port.
        head[34..36].copy_from_slice(&(FIRST_PORT + 2 * flow as u16).to_be_bytes());
        head[36..38].copy_from_slice(&5001u16.to_be_bytes());
        head[38..42].copy_from_slice(&(first as u32).to_be_bytes());
        (head[46], head[47]) = (0x50, 0x10);
        self.place = (self.place + 64) % PLACES;
        self.map.write(self.place, &head).unwrap();
        let mut draft = batch.draft(HEADERS.into()).unwrap();
        draft.push(self.place, HEADERS.into()).unwrap();
        draft.push(PAYLOAD_AT, count as u32 * u32::from(MSS)).unwrap();
        let segment = (count > 1).then_some(Segment { kind: SegmentKind::Tcp, mss: MSS, headers: HEADERS });
        draft.finish(Offload { checksum: Checksum::Partial { start: 34, field: 50 }, segment }, 0).unwrap();
    }
}

impl Traffic for Guest {
    fn fetch(&mut self, _: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        while let Some((_, flow, segment)) = heard(&self.news, cx.now) {
            self.flows[flow].acknowledge(segment, cx.now);
        }
        let mut idle = 0;
        while budget.allows(batch) && idle < self.flows.len() {
            self.turn = (self.turn + 1) % self.flows.len();
            let turn = self.turn;
            self.flows[turn].look_at_the_clock(cx.now);
            match self.flows[turn].packet(cx.now) {
                Some((first, count)) => {
                    self.draft(batch, turn, first, count);
                    idle = 0;
                }
                None => idle += 1,
            }
        }
        Progress { more: idle < self.flows.len(), armed: true }
    }
}

/// A link, and the receiver at its end.
struct Link {
    news: News,
    /// Segments that came by this link.
    carried: Arc<Mutex<u64>>,
    until: Time,
    left: i64,
    is_full: bool,
}

impl Traffic for Link {
    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        if cx.now >= self.until {
            (self.until, self.left) = (cx.now.after_ns(MS), (self.left + LINK_BYTES_PER_MS).min(LINK_BYTES_PER_MS));
        }
        self.is_full = false;
        let mut delivery = Delivery::default();
        for (index, pick, packet) in frames.iter() {
            let head = frames.batch.head(packet);
            if head[12..14] != [8, 0] {
                // An announcement of the guest's address.
                continue;
            }
            let flow = usize::from(u16::from_be_bytes([head[34], head[35]]) - FIRST_PORT) / 2;
            let first = u32::from_be_bytes([head[38], head[39], head[40], head[41]]);
            for frame in u32::from(pick.from)..packet.frames() {
                if self.left <= 0 || self.is_full {
                    delivery.refuse(index, 0, frame);
                    self.is_full = true;
                    break;
                }
                self.left -= i64::from(HEADERS + MSS);
                cx.counters.received(0, 1, (HEADERS + MSS).into());
                *self.carried.lock().unwrap() += 1;
                self.news.lock().unwrap().push_back((cx.now.after_ns(RETURN_NS), flow, u64::from(first + frame)));
            }
        }
        delivery
    }

    fn wake(&self) -> Option<Time> {
        self.is_full.then_some(self.until)
    }
}

/// Parts of its rate that each link carries in two seconds by so many flows.
fn carried(flows: usize) -> Vec<f64> {
    const SECONDS: u64 = 2;
    let plane = Plane::new(Limits::default());
    let steering = Arc::new(Steering::new(Box::new(Spread::new()), Hash::Layer34));
    let (news, mut counts, mut ports) = (News::default(), Vec::new(), Vec::new());
    for index in 0..LINKS {
        let carried = Arc::<Mutex<u64>>::default();
        let (news, count) = (Arc::clone(&news), Arc::clone(&carried));
        let link = Linked::new(Link { news, carried: count, until: Time::ZERO, left: 0, is_full: false });
        let (id, end) = (PortId(11 + index as u16), End::link(Box::new(link)));
        let port = Port::new(id, end, Box::new(Silent), 256 << 10).unwrap();
        ports.push(Arc::new(port.in_team(PortId(10), &steering, index)));
        counts.push(carried);
    }
    let team = Group::team(PortId(10), Arc::clone(&steering), ports.iter().cloned().map(Some));
    plane.join_team(Arc::new(team), &Policy::default()).unwrap();
    for port in &ports {
        plane.join(Arc::clone(port)).unwrap();
        port.ready();
    }
    let map = Arc::new(Map::private(MEMORY).unwrap());
    let flows = (0..flows).map(|_| Flow::new()).collect();
    let guest = Guest { flows, news, turn: 0, map: Arc::clone(&map), place: 0 };
    let guest =
        Arc::new(Port::new(PortId(1), End::guest(Box::new(Ringed(guest))), Box::new(Silent), 256 << 10).unwrap());
    guest.attach();
    guest.set_memory(map, Time::ZERO);
    plane.join(Arc::clone(&guest)).unwrap();
    ports.push(Arc::clone(&guest));
    let (mut turn, mut now) = (Turn::new(), Time(1));
    while now.0 < SECONDS * 1000 * MS {
        now = now.after_ns(MS / 4);
        guest.with_rings(now, |rings, cx| rings.kick(0, cx)).unwrap();
        let mut is_busy = true;
        while std::mem::take(&mut is_busy) {
            for port in ports.iter().filter(|port| port.busy(now)) {
                while plane.turn(port, &mut turn, now).unfinished {}
                is_busy = true;
            }
        }
    }
    let all = (LINK_BYTES_PER_MS as u64 * 1000 * SECONDS / u64::from(HEADERS + MSS)) as f64;
    assert!(!guest.state().held);
    let dropped = |port: &Arc<Port>| port.state().counters.receive_drops.iter().sum::<u64>();
    assert!(ports.iter().any(|port| dropped(port) > 0), "the links are full");
    counts.iter().map(|count| *count.lock().unwrap() as f64 / all).collect()
}

/// A lane that is full drops TSO packets whole. A TCP with selective acknowledgements fills the links all the same.
#[test]
fn flows_of_long_packets_fill_each_link_of_a_team_that_spreads_them() {
    let parts = carried(16);
    assert!(parts.iter().all(|part| *part >= 0.95), "{parts:.3?}");
}
