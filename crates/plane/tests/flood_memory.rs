//! Memory use of an unfinished flood. A separate binary, because the allocator is the whole process's.

mod silent;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nicety_adapter::{Batch, Budget, Counters, Delivery, Frames, PortId, Progress, Time, Uplink};
use nicety_memory::Map;
use nicety_plane::{End, Plane, Port, Turn};
use nicety_switch::Limits;
use silent::Silent;

static LIVE: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes to the system's allocator with unchanged arguments; the only addition is a counter that never
// allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's guarantees are those that the system's allocator needs.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Always has broadcasts to send.
struct Source(Arc<Map>);

impl Uplink for Source {
    fn fetch(&mut self, port: PortId, budget: Budget, batch: &mut Batch, _: &mut Counters, _: Time) -> Progress {
        batch.start(&self.0, port, 0);
        while budget.allows(batch) {
            let mut draft = batch.draft(0).unwrap();
            draft.push(0, 1514).unwrap();
            draft.finish_plain(0);
        }
        Progress { more: true, armed: true }
    }

    fn complete(&mut self, _: &Batch) {}

    fn deliver(&mut self, _: &Frames<'_>, _: &mut Counters, _: Time) -> Delivery {
        Delivery::default()
    }

    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

/// A batch may name 64 KiB of private heads and spans. Its plan adds a few bytes per port, not a list of frames per port.
#[test]
fn an_unfinished_flood_to_1023_ports_keeps_less_than_128_kib() {
    const PORTS: u16 = 1024;
    const FLOODS: usize = 16;
    let plane = Plane::new(Limits::default());
    let map = Arc::new(Map::private(1 << 12).unwrap());
    let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &[0x88, 0xb5], &[0; 1500]].concat();
    map.write(0, &frame).unwrap();
    let ports: Vec<_> = (0..PORTS)
        .map(|id| {
            let end = End::link(Box::new(Source(Arc::clone(&map))));
            let port = Arc::new(Port::new(PortId(id), end, Box::new(Silent), 512).unwrap());
            plane.join(Arc::clone(&port)).unwrap();
            port.ready();
            port
        })
        .collect();
    let before = LIVE.load(Ordering::Relaxed);
    let turns: Vec<Turn> = ports[..FLOODS]
        .iter()
        .map(|port| {
            let mut turn = Turn::new();
            assert!(plane.turn(port, &mut turn, Time::ZERO).unfinished);
            turn
        })
        .collect();
    let each = (LIVE.load(Ordering::Relaxed) - before) / turns.len();
    assert!(each < 128 << 10, "{each} bytes each");
}
