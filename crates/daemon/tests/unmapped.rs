//! A VMM unmaps pages of its guest while other ports' frames are written there, as QEMU does for a guest behind an IOMMU. Once the
//! unmap is answered, nothing writes to the page; and accesses that are refused are reported.

mod nic;
mod stage;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use nic::{BUFFERS, MIB, Nic};
use nicety_daemon::report::PortReport;
use nicety_vfio_user::{DmaProtection, DmaRange};
use stage::Stage;

const PAGE: u64 = 4096;
const BOTH: DmaProtection = DmaProtection { read: true, write: true };
/// Receive buffers begin in the middle of the buffers' file; the first half has the frames to send.
const RECEIVE_PAGES: std::ops::Range<u64> = MIB / 2 / PAGE..MIB / PAGE;
/// Rounds in which a page is unmapped, observed, and mapped again.
const ROUNDS: u64 = 200;
/// The adapter first reads this much of a frame (docs/adr/0004).
const HEAD: u32 = 128;

fn page_of(number: u64) -> DmaRange {
    DmaRange { address: MIB + number * PAGE, size: PAGE }
}

fn raced(workers: usize) {
    let stage = Stage::new(workers, &["e1000", "e1000"]);
    let (mut sender, mut receiver) = (Nic::new(&stage, 1), Nic::new(&stage, 2));
    // One region for each page, as behind an IOMMU.
    receiver.client.dma_unmap(BUFFERS).unwrap();
    for number in 0..MIB / PAGE {
        let file = &receiver.files[1];
        receiver.client.dma_map(page_of(number), BOTH, Some((file.as_fd(), number * PAGE))).unwrap();
    }
    let (going, sent) = (AtomicBool::new(true), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while going.load(Ordering::Relaxed) {
                // Waits for the frames: a read is answered behind them.
                if sender.send().and_then(|()| sender.read(0x3810)).is_err() {
                    return;
                }
                sent.fetch_add(64, Ordering::Relaxed);
            }
        });
        for round in 0..ROUNDS {
            let number = RECEIVE_PAGES.start + round * 7 % (RECEIVE_PAGES.end - RECEIVE_PAGES.start);
            receiver.client.dma_unmap(page_of(number)).unwrap();
            let pattern = [round as u8 ^ 0xa5; PAGE as usize];
            receiver.buffers.write(number * PAGE, &pattern).unwrap();
            receiver.repost().unwrap();
            if round % 8 == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            let mut seen = [0; PAGE as usize];
            receiver.buffers.read(number * PAGE, &mut seen).unwrap();
            assert!(seen == pattern, "round {round}: the page was unmapped, and is written to");
            let file = &receiver.files[1];
            receiver.client.dma_map(page_of(number), BOTH, Some((file.as_fd(), number * PAGE))).unwrap();
        }
        going.store(false, Ordering::Relaxed);
    });
    assert!(sent.load(Ordering::Relaxed) > 0 && stage.taken(2) > 0, "frames came meanwhile");
}

#[test]
fn a_page_that_is_unmapped_under_a_flood_is_not_written_to_any_more() {
    raced(1);
    raced(2);
}

#[test]
fn an_access_that_is_refused_is_reported_with_its_direction_address_and_length() {
    let stage = Stage::new(1, &["e1000", "e1000"]);
    let (mut sender, receiver) = (Nic::new(&stage, 1), Nic::new(&stage, 2));
    let clean = PortReport::of(&stage.view(1));
    assert_eq!((clean.refused_dma_reads, clean.refused_dma_writes, clean.last_refused_dma), (0, 0, None));
    // The frames to send are in the buffers.
    sender.client.dma_unmap(BUFFERS).unwrap();
    sender.send().unwrap();
    stage.until("the frames are refused", || PortReport::of(&stage.view(1)).refused_dma_reads >= 64);
    let report = PortReport::of(&stage.view(1));
    let last = report.last_refused_dma.unwrap();
    assert_eq!((last.direction.as_str(), last.bytes, report.refused_dma_writes), ("read", HEAD, 0));
    let address = u64::from_str_radix(last.address.strip_prefix("0x").unwrap(), 16).unwrap();
    assert!((MIB..2 * MIB).contains(&address), "{address:#x}");
    drop(receiver);
}
