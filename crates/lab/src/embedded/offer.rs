//! The work of a generator: it sends frames at a fixed rate into the first of its ports, and counts and times what comes out of the second.

use std::time::{Duration, Instant};

use nicety_adapter::Offload;
use nicety_drivers::BUDGET;
use nicety_frame::Mac;

use super::link::GuestError;
use super::members::{Member, Members};
use super::orders::Orders;
use super::words::Offered;
use crate::bench::Percentile;
use crate::statistics;

/// Frames sent before received ones are looked at.
const BURST: u64 = 32;
/// IEEE 802, "Local Experimental EtherType 1": no protocol uses it.
const KIND: [u8; 2] = [0x88, 0xb5];
/// Ethernet's check sequence, which no virtual adapter carries.
const FCS_BYTES: u16 = 4;
const FRAME_BYTES: std::ops::RangeInclusive<u16> = 60..=1514;
/// Place of the time of sending: after the header and a sequence number.
const SENT_AT: std::ops::Range<usize> = 22..30;
const NUMBER_AT: std::ops::Range<usize> = 14..22;
/// Time for which frames may be under way after the last one was sent.
const SETTLE: Duration = Duration::from_millis(100);
/// Interrupts begin the polling of a port, and orders end it: it looks for both this often.
const LOOK_EACH: Duration = Duration::from_micros(100);
/// Percentiles of the latency.
const PERCENTS: [f64; 6] = [0.0, 50.0, 90.0, 99.0, 99.9, 100.0];

/// Sends frames of this size from the first member to the second, so many every second.
pub fn offer(
    orders: &mut Orders,
    members: &mut Members,
    wire_bytes: u16,
    a_second: f64,
    seconds: f64,
) -> Result<Offered, GuestError> {
    let [from, to, ..] = members.all.as_mut_slice() else {
        return Err(GuestError::Peer("a generator needs two ports".to_owned()));
    };
    // A device that reports no address leaves the choice to its driver (virtio 1.2, 5.1.4): a switch must not take both for one.
    let chosen = |mac: Mac, number: u8| if mac == Mac([0; 6]) { Mac([2, 0, 0, 0, 0, number]) } else { mac };
    let [source, target] = [chosen(from.link.mac(), 1), chosen(to.link.mac(), 2)];
    let bytes = wire_bytes.saturating_sub(FCS_BYTES).clamp(*FRAME_BYTES.start(), *FRAME_BYTES.end());
    let frame = |to: [u8; 6], from: [u8; 6]| {
        let mut frame = [to, from].concat();
        frame.extend(KIND);
        frame.resize(bytes.into(), 0);
        frame
    };
    // A switch learns where the target is.
    let hello = frame([0xff; 6], target.0);
    // Without room it is known already: earlier offers filled the ring.
    let _taken = to.link.transmit(&hello, &Offload::default())?;
    to.link.flush()?;
    let mut frame = frame(target.0, source.0);
    let (begun, span) = (Instant::now(), Duration::from_secs_f64(seconds.clamp(0.0, 3600.0)));
    let mut offered = Offered::default();
    let mut latencies_ns: Vec<u64> = Vec::new();
    let mut looked = Duration::ZERO;
    loop {
        let now = begun.elapsed();
        if now < span {
            offered.due = (a_second * now.as_secs_f64()) as u64;
            let most = offered.due.min(offered.sent.saturating_add(BURST));
            let Some(from) = members.all.first_mut() else { break };
            send(from, &mut frame, begun, most, &mut offered)?;
        } else if offered.received >= offered.sent || now >= span.saturating_add(SETTLE) || orders.ended() {
            break;
        }
        for (index, member) in members.all.iter_mut().enumerate().filter(|(_, member)| member.polling) {
            // Like DPDK's drivers it polls on, without interrupts, and has no system call in its loop: else each burst's interrupt would be
            // part of the latency, and take the server's time.
            member.link.receive(BUDGET, &mut |packet, _| {
                let sent_ns = (packet.get(12..14) == Some(&KIND)).then(|| packet.get(SENT_AT)).flatten();
                let sent_ns = sent_ns.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes);
                if index == 1 && sent_ns > 0 {
                    offered.received += 1;
                    latencies_ns.push((begun.elapsed().as_nanos() as u64).saturating_sub(sent_ns));
                }
            })?;
            member.link.flush()?;
        }
        if now.saturating_sub(looked) >= LOOK_EACH {
            looked = now;
            members.wait(true, orders)?;
        }
    }
    offered.seconds = span.as_secs_f64();
    let known = |percent: &f64| {
        let ns = statistics::percentile(&mut latencies_ns, *percent)?;
        Some(Percentile { percent: *percent, us: ns as f64 / 1e3 })
    };
    offered.latency = PERCENTS.iter().filter_map(known).collect();
    Ok(offered)
}

/// Sends until `most` frames were sent, or the ring is full.
fn send(
    from: &mut Member,
    frame: &mut [u8],
    begun: Instant,
    most: u64,
    offered: &mut Offered,
) -> Result<(), GuestError> {
    while offered.sent < most {
        // A time of 0 would be no time.
        let now_ns = (begun.elapsed().as_nanos() as u64).max(1);
        for (place, value) in [(NUMBER_AT, offered.sent), (SENT_AT, now_ns)] {
            if let Some(place) = frame.get_mut(place) {
                place.copy_from_slice(&value.to_be_bytes());
            }
        }
        if !from.link.transmit(frame, &Offload::default())? {
            break;
        }
        offered.sent += 1;
    }
    from.link.flush()
}
