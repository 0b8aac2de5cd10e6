//! Instructions that a frame costs at an uplink, with and without I/O control, counted as in `instructions.rs`.
//!
//! ```sh
//! target/release/examples/io_control 64 16 classes waiting 20000
//! ```
//! The arguments are bytes of a frame (its check sequence counted), ports, `plain` or `classes` (three, with reservations, by port),
//! `direct` (the uplink takes all) or `waiting` (all wait first), frames. The guests and the wire are the least that pass for some, so
//! the share of I/O control is larger here than with a real adapter.
#![forbid(unsafe_code)]

mod help;
#[path = "../tests/ringed/mod.rs"]
mod ringed;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nicety_adapter::{Batch, Budget, Context, Counters, Delivery, Frames, PortId, Progress, Rate, Set, Time, Uplink};
use nicety_ioc::{Class, ClassTerms, Match, Terms};
use nicety_memory::Map;
use nicety_plane::{End, Plane, Port, Shell, Turn};
use nicety_switch::Limits;
use ringed::{Ringed, Traffic};

type Error = Box<dyn std::error::Error>;

/// Frames that each port sends at once.
const BURST: u64 = 64;

/// A guest that sends frames, and takes none.
struct Guest {
    len: u32,
    left: Arc<AtomicU64>,
}

impl Traffic for Guest {
    fn fetch(&mut self, _: u16, budget: Budget, batch: &mut Batch, _: &mut Context<'_>) -> Progress {
        while self.left.load(Ordering::Relaxed) > 0 && budget.allows(batch) {
            if let Some(mut draft) = batch.draft(0) {
                let _whole = draft.push(0, self.len);
                draft.finish_plain(0);
            }
            self.left.fetch_sub(1, Ordering::Relaxed);
        }
        Progress { more: self.left.load(Ordering::Relaxed) > 0, armed: true }
    }
}

/// A wire that takes all frames while it is open. It copies each, as a message would.
struct Wire {
    is_open: Arc<AtomicU64>,
    message: Vec<u8>,
}

impl Uplink for Wire {
    fn fetch(&mut self, port: PortId, _: Budget, batch: &mut Batch, _: &mut Counters, _: Time) -> Progress {
        batch.release();
        batch.origin = port;
        Progress { more: false, armed: true }
    }

    fn complete(&mut self, _: &Batch) {}

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, _: Time) -> Delivery {
        if self.is_open.load(Ordering::Relaxed) == 0 {
            return Delivery::all_refused(frames);
        }
        for (_, _, packet) in frames.iter() {
            let len = frames.batch.copy(packet, &mut self.message);
            counters.received(0, 1, len as u64);
        }
        Delivery::default()
    }

    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

struct Silent;

impl Shell for Silent {
    fn messages(&self, _: Set) {}
    fn line(&self, _: bool) {}
    fn schedule(&self) {}
    fn wake_at(&self, _: Time) {}
}

/// The counted part: turns of each port until it has no work.
#[inline(never)]
fn counted(plane: &Plane, ports: &[Arc<Port>], turn: &mut Turn, now: Time) {
    for port in ports {
        while plane.turn(port, turn, now).more {}
    }
}

/// Two classes with reservations, and the rest: a third of the ports each.
fn classes(ports: u16) -> Vec<Class> {
    let class = |rest: u16| {
        let reservation = Rate::new(if rest > 0 { 1_000_000_000 } else { 0 });
        let terms = ClassTerms { class: Terms { reservation, ..Terms::default() }, ..ClassTerms::default() };
        let of = (1..=ports).filter(|port| port % 3 == rest).collect();
        let matches = if rest > 0 { vec![Match { ports: Some(of), ..Match::default() }] } else { Vec::new() };
        Class { name: format!("class {rest}"), terms, matches, mark_pcp: None, mark_dscp: None }
    };
    (0..3).map(class).collect()
}

fn main() -> Result<(), Error> {
    help::on_request(include_str!("io_control.rs"));
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [bytes, count, control, way, frames] = &words[..] else {
        return Err("arguments: bytes ports plain|classes direct|waiting frames".into());
    };
    let (bytes, count, frames): (u32, u16, u64) = (bytes.parse()?, count.parse()?, frames.parse()?);
    let plane = Plane::new(Limits::default());
    let is_open = Arc::new(AtomicU64::new(1));
    let wire = Wire { is_open: Arc::clone(&is_open), message: vec![0; 2048] };
    let uplink = Port::new(PortId(0), End::link(Box::new(wire)), Box::new(Silent), 256 << 10)?;
    if control == "classes" {
        uplink.set_io_control(&classes(count), Time::ZERO);
    }
    let uplink = Arc::new(uplink);
    plane.join(Arc::clone(&uplink))?;
    let (mut ports, mut lefts) = (Vec::new(), Vec::new());
    for id in 1..=count {
        let left = Arc::new(AtomicU64::new(0));
        let guest = Guest { len: bytes.saturating_sub(4).max(60), left: Arc::clone(&left) };
        let port = Arc::new(Port::new(PortId(id), End::guest(Box::new(Ringed(guest))), Box::new(Silent), 64 << 10)?);
        plane.join(Arc::clone(&port))?;
        port.attach();
        let map = Map::private(1 << 12)?;
        let [high, low] = id.to_be_bytes();
        // To an address that the wire sent from.
        map.write(0, &[2, 0, 0, 0, 0, 0, 2, 0, 0, 1, high, low, 0x88, 0xb5])?;
        port.set_memory(Arc::new(map), Time::ZERO);
        ports.push(port);
        lefts.push(left);
    }
    // The switch learns where the address is: else all frames would be flooded.
    let far = nicety_frame::Mac([2, 0, 0, 0, 0, 0]);
    let addresses = plane.switch().addresses();
    addresses.learn(far, 0, PortId(0), Time::ZERO);
    let (mut turn, mut now, mut sent) = (Turn::new(), Time(1), 0);
    while sent < frames {
        now = now.after_ns(1_000_000);
        is_open.store((way == "direct").into(), Ordering::Relaxed);
        for (port, left) in ports.iter().zip(&lefts) {
            left.store(BURST, Ordering::Relaxed);
            port.with_rings(now, |rings, cx| rings.kick(0, cx));
            sent += BURST;
        }
        counted(&plane, &ports, &mut turn, now);
        is_open.store(1, Ordering::Relaxed);
        uplink.ready();
        counted(&plane, std::slice::from_ref(&uplink), &mut turn, now);
    }
    let taken = uplink.state().counters.taken().packets;
    if taken != sent {
        return Err(format!("{taken} of {sent} frames went out").into());
    }
    println!("{sent} frames of {bytes} bytes, {count} ports");
    Ok(())
}
