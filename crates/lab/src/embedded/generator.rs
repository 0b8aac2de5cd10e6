//! A generator of frames at a fixed rate: one process at two ports. It sends into the first, and counts and times what comes out of the
//! second.

use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use nicety_adapter::Offload;
use nicety_drivers::BUDGET;
use nicety_frame::Mac;
use std::os::fd::OwnedFd;

use super::child::GuestProcess;
use super::crowd::{Member, wait};
use super::guest::GUEST;
use super::link::GuestError;
use super::orders::Orders;
use super::rig::{Program, expect};
use super::words::{Answer, Attach, Offered, Order};
use crate::bench::{BenchError, Percentile};
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
/// Time limit beyond the duration of an offer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Percentiles of the latency.
const PERCENTS: [f64; 6] = [0.0, 50.0, 90.0, 99.0, 99.9, 100.0];

/// A generator at two ports of another switch than ours. Dropping it ends it.
pub struct Generator(GuestProcess);

impl std::fmt::Debug for Generator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Generator").field(&self.0.pid()).finish()
    }
}

impl Generator {
    /// Starts `program`'s hidden generator, and waits until it is attached. `entrance`: words that start it in another network
    /// ([`nicety_guests::Namespace::entrance`]), or none.
    ///
    /// # Errors
    /// It cannot attach.
    pub fn start(
        program: &Program,
        entrance: &[String],
        attach: [Attach; 2],
        cancel: &AtomicBool,
    ) -> Result<Generator, BenchError> {
        let hidden = program.hidden(GUEST);
        let command = match entrance.split_first() {
            None => hidden,
            Some((first, rest)) => {
                let mut entering = Command::new(first);
                entering.args(rest).arg(hidden.get_program()).args(hidden.get_args());
                entering
            }
        };
        let mut process = GuestProcess::start("the generator", command)?;
        process.send_order(&Order::Crowd { attach: attach.into() })?;
        expect(&mut process, TIMEOUT, cancel, |answer| matches!(answer, Answer::Ready).then_some(()))?;
        Ok(Generator(process))
    }

    /// As [`super::Rig::offer`].
    ///
    /// # Errors
    /// The generator fails, or `cancel` became true.
    pub fn offer(
        &mut self,
        wire_bytes: u16,
        a_second: f64,
        duration: Duration,
        cancel: &AtomicBool,
    ) -> Result<Offered, BenchError> {
        offer_by(&mut self.0, wire_bytes, a_second, duration, cancel)
    }
}

/// Orders a process at two ports to offer frames.
pub(super) fn offer_by(
    process: &mut GuestProcess,
    wire_bytes: u16,
    a_second: f64,
    duration: Duration,
    cancel: &AtomicBool,
) -> Result<Offered, BenchError> {
    process.send_order(&Order::Offer { wire_bytes, a_second, seconds: duration.as_secs_f64() })?;
    expect(process, duration + TIMEOUT, cancel, |answer| match answer {
        Answer::Offered(offered) => Some(offered),
        _ => None,
    })
}

/// Sends frames of this size from the first member to the second, so many every second.
pub(super) fn offer(
    epoll: &OwnedFd,
    orders: &mut Orders,
    members: &mut [Member],
    (wire_bytes, a_second, seconds): (u16, f64, f64),
) -> Result<Offered, GuestError> {
    let [from, to, ..] = members else {
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
    loop {
        let now = begun.elapsed();
        if now < span {
            offered.due = (a_second * now.as_secs_f64()) as u64;
            let most = offered.due.min(offered.sent.saturating_add(BURST));
            send(members, &mut frame, begun, most, &mut offered)?;
        } else if offered.received >= offered.sent || now >= span.saturating_add(SETTLE) || orders.ended() {
            break;
        }
        for (index, member) in members.iter_mut().enumerate().filter(|(_, member)| member.polling) {
            let taken = member.link.receive(BUDGET, &mut |packet, _| {
                let sent_ns = (packet.get(12..14) == Some(&KIND)).then(|| packet.get(SENT_AT)).flatten();
                let sent_ns = sent_ns.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes);
                if index == 1 && sent_ns > 0 {
                    offered.received += 1;
                    latencies_ns.push((begun.elapsed().as_nanos() as u64).saturating_sub(sent_ns));
                }
            })?;
            if taken < BUDGET {
                member.polling = member.link.rest()?;
            }
            member.link.flush()?;
        }
        wait(epoll, true, orders, members)?;
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
    members: &mut [Member],
    frame: &mut [u8],
    begun: Instant,
    most: u64,
    offered: &mut Offered,
) -> Result<(), GuestError> {
    let Some(from) = members.first_mut() else { return Ok(()) };
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
