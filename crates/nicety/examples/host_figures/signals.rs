//! Eventfd writes per frame in bulk TCP: interrupts that the daemon writes, and for virtio the guest's kicks. A frame is one on the
//! wire after segmentation, at a port; between guests both ports count their frames.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nicety_control::api::PortList;
use nicety_control::{Ask, Reply, ask};
use nicety_lab::embedded::{Layout, Party, Place, Rig};
use nicety_lab::number::sampled;

use crate::Error;

const A: Party = Party::Guest(0);
const B: Party = Party::Guest(1);

/// Counts of both ports and guests.
#[derive(Clone, Copy, Default)]
struct Counted {
    frames: u64,
    interrupts: u64,
    kicks: u64,
}

fn counted(rig: &mut Rig, adapter: &str, cancel: &AtomicBool) -> Result<Counted, Error> {
    let mut sum = Counted::default();
    let Reply::Ports(PortList { ports, .. }) = ask(&rig.control(), Ask::Ports)? else {
        return Err("an odd reply".into());
    };
    for port in ports.iter().filter(|port| port.adapter.is_some()) {
        sum.frames += port.transmit.iter().chain(&port.receive).map(|queue| queue.frames).sum::<u64>();
        sum.interrupts += port.signals;
    }
    // Doorbells of the other adapters are messages on their socket.
    if adapter == "virtio-net" {
        for guest in [A, B] {
            sum.kicks += rig.counts(guest, cancel)?.writes;
        }
    }
    Ok(sum)
}

/// `[SECONDS] [ROUNDS]`: 3 seconds for each load, and 7 rounds by default.
pub fn run(words: &[String]) -> Result<(), Error> {
    let duration = Duration::from_secs_f64(crate::number(words.first(), 3.0)?);
    let rounds: usize = crate::number(words.get(1), crate::ROUNDS)?;
    let loads = [("transmit", A, Party::Peer), ("receive", Party::Peer, A), ("guest to guest", A, B)];
    let rows = || crate::ADAPTERS.into_iter().flat_map(|adapter| loads.map(|(load, ..)| (adapter, load)));
    // Interrupts per frame, kicks per frame, and both.
    let mut samples: Vec<[Vec<f64>; 3]> = rows().map(|_| Default::default()).collect();
    for _ in 0..rounds {
        let mut row = samples.iter_mut();
        for adapter in crate::ADAPTERS {
            let cancel = AtomicBool::new(false);
            let layout = Layout { guests: vec![Place::new(adapter); 2], uplink: true, ..Layout::default() };
            let mut rig = Rig::start(&crate::program(&[])?, &layout, &cancel)?;
            for ((_, from, to), row) in loads.into_iter().zip(&mut row) {
                let before = counted(&mut rig, adapter, &cancel)?;
                rig.send(from, to, duration, &cancel)?;
                let after = counted(&mut rig, adapter, &cancel)?;
                let frames = (after.frames - before.frames).max(1) as f64;
                let (interrupts, kicks) = (after.interrupts - before.interrupts, after.kicks - before.kicks);
                for (samples, count) in row.iter_mut().zip([interrupts, kicks, interrupts + kicks]) {
                    samples.push(count as f64 / frames);
                }
            }
        }
    }
    println!("bulk TCP, {rounds} alternated rounds of {duration:?}; eventfd writes per frame:");
    println!("| adapter | load | interrupts | kicks | together |\n|---|---|---|---|---|");
    for ((adapter, load), [interrupts, kicks, both]) in rows().zip(&samples) {
        println!("| {adapter} | {load} | {} | {} | {} |", sampled(interrupts), sampled(kicks), sampled(both));
    }
    Ok(())
}
