//! The run under embedded guests: four of them at one switch, and one station outside, at the far end of the uplink.

use std::time::Duration;

use super::{PORTS, Rates, STORAGE_STREAMS, Shape, shape, taken};
use crate::bench::BenchError;
use crate::embedded::{self, Flow, Layout, Party, Place, Program};
use crate::method::Guests;
use crate::methods::{Measurement, Run};
use crate::rate::Rate;
use crate::record::Taken;
use crate::windows::StolenWatch;

const RATES: Rates = Rates::under(Guests::Embedded);
const GUESTS: [Party; PORTS.len()] = [Party::Guest(0), Party::Guest(1), Party::Guest(2), Party::Guest(3)];
/// Bytes of payload of a full frame: smoltcp sends no time stamps.
const PAYLOAD: f64 = 1460.0;
/// The same of the host's kernel, which sends them.
const LINUX_PAYLOAD: f64 = 1448.0;
/// Duration of a first exchange, which teaches addresses.
const FIRST_EXCHANGE: Duration = Duration::from_millis(20);

/// The report's note on the native row.
pub(super) const NATIVE_ROW: &str = "native: the same streams by the kernel's TCP between two network namespaces, over a veth pair of the link's rate (a token bucket), with a \
     thread for each stream. A plain link has no I/O control, and is the same both ways: nothing is sent against the streams.";

/// The streams of all ports over a plain link of the link's rate, without virtual machines.
pub(super) fn natively(program: &Program, rates: Rates, run: &Run<'_, Shape>) -> Result<Taken, BenchError> {
    let (shape, stop) = (run.layout, run.stop);
    if shape.has_control {
        return Ok(Taken::marked("a plain link has no I/O control"));
    }
    let mut rig = embedded::Rig::natively(program, Some(Rate { mbit: rates.link as u32 }), stop)?;
    let streams = |guest: Party| if guest == GUESTS[0] { STORAGE_STREAMS } else { 1 };
    let flow = |from| Flow { from, to: vec![Party::Peer; streams(from)], shape: OUTWARD, bytes_a_second: None };
    let flows: Vec<Flow> = GUESTS.map(flow).into();
    rig.listen(Party::Peer, OUTWARD, stop)?;
    let watch = StolenWatch::start();
    rig.send_all(&flows, run.duration(), stop)?;
    let windows = rig.windows(Party::Peer, &GUESTS, stop)?;
    let windows: [_; PORTS.len()] =
        windows.try_into().map_err(|_| BenchError::Failed("a port has no windows".to_owned()))?;
    Ok(taken((shape, rates), &windows, &watch.stolen(), LINUX_PAYLOAD, None))
}

/// Streams' sockets outward.
const OUTWARD: embedded::Shape = embedded::Shape { streams: 1, write_bytes: 64 << 10, buffer_bytes: 512 << 10 };
/// Inward a port has never more on the way than 5 ms of its rate. CoDel would tell it of congestion, and smoltcp has no answer but to send
/// again: marks and drops under TCP as it is are the user-mode guests' part.
const INWARD: embedded::Shape = embedded::Shape { streams: 1, write_bytes: 64 << 10, buffer_bytes: 40 << 10 };
const RECEIVE_BUFFER: &str = "1MiB";

/// Four guests and a peer (see the module's page).
#[derive(Debug)]
pub(super) struct Four(pub(super) Program);

impl Measurement for Four {
    type Layout = Shape;
    type Guests = embedded::Rig;

    fn layout(load: &str) -> Option<Shape> {
        shape(load)
    }

    fn serves(standing: Shape, wanted: Shape) -> bool {
        standing == wanted
    }

    fn boot(&mut self, run: &Run<'_, Shape>) -> Result<embedded::Rig, BenchError> {
        let layout = Layout {
            guests: vec![Place::new(&run.subject.adapter); PORTS.len()],
            uplink: true,
            rate: Some(Rate { mbit: RATES.link as u32 }),
            uplink_more: run.layout.host_file(RATES, "pair", ["p0", "p1", "p2", "p3"], RECEIVE_BUFFER),
            ..Layout::default()
        };
        embedded::Rig::start(&self.0, &layout, run.stop)
    }

    fn warm(&mut self, rig: &mut embedded::Rig, run: &Run<'_, Shape>) -> Result<(), BenchError> {
        GUESTS.into_iter().try_for_each(|guest| rig.transact(guest, Party::Peer, FIRST_EXCHANGE, run.stop).map(drop))
    }

    fn measure(&mut self, rig: &mut embedded::Rig, run: &Run<'_, Shape>) -> Result<Taken, BenchError> {
        let (shape, stop) = (run.layout, run.stop);
        let few = if shape.is_inward { 2 } else { 1 };
        let streams = |guest: Party| if guest == GUESTS[0] { STORAGE_STREAMS } else { few };
        let of = if shape.is_inward { INWARD } else { OUTWARD };
        let listens = |streams: usize| embedded::Shape { streams: streams as u16, ..of };
        let outward = |guest: Party| Flow {
            from: guest,
            to: vec![Party::Peer; if shape.is_inward { 1 } else { streams(guest) }],
            shape: of,
            bytes_a_second: shape.is_inward.then_some((RATES.beside() * 1e6 / 8.0) as u64),
        };
        let mut flows: Vec<Flow> = GUESTS.map(outward).into();
        rig.listen(Party::Peer, listens(flows.iter().map(|flow| flow.to.len()).sum()), stop)?;
        if shape.is_inward {
            for guest in GUESTS {
                rig.listen(guest, listens(streams(guest)), stop)?;
            }
            let to = GUESTS.into_iter().flat_map(|guest| std::iter::repeat_n(guest, streams(guest))).collect();
            flows.push(Flow { from: Party::Peer, to, shape: of, bytes_a_second: None });
        }
        let watch = StolenWatch::start();
        let before = rig.spent(&GUESTS, stop)?;
        let frames = rig.counts(Party::Peer, stop)?.frames;
        rig.send_all(&flows, run.duration(), stop)?;
        let spent = before.until(&rig.spent(&GUESTS, stop)?);
        let frames = rig.counts(Party::Peer, stop)?.frames - frames;
        let at_peer = rig.windows(Party::Peer, &GUESTS, stop)?;
        let windows = if shape.is_inward {
            let mut windows = Vec::new();
            for guest in GUESTS {
                windows.extend(rig.windows(guest, &[Party::Peer], stop)?);
            }
            windows
        } else {
            at_peer
        };
        let windows: [_; PORTS.len()] =
            windows.try_into().map_err(|_| BenchError::Failed("a port has no windows".to_owned()))?;
        let gbit = windows.iter().flat_map(|port| &port.bytes).sum::<u64>() as f64 * 8e-9;
        let mut taken = taken((shape, RATES), &windows, &watch.stolen(), PAYLOAD, Some((spent, gbit)));
        if shape.is_inward && frames > 0 {
            taken.figures.insert("inward".to_owned(), gbit * 1e9 / 8.0 / PAYLOAD / frames as f64);
        }
        Ok(taken)
    }

    fn natively(&mut self, run: &Run<'_, Shape>) -> Result<Taken, BenchError> {
        natively(&self.0, RATES, run)
    }

    fn notes(&self) -> Vec<String> {
        vec![
            RATES.note(),
            "Embedded guests: this project's own drivers, written from the datasheets with Linux's habits, and smoltcp's TCP. The peer outside is \
             one station at the far end of the daemon's uplink (a pair), which is paced to the link's rate in both directions. Rates are counted \
             by the receivers, in windows of 100 ms of the machine's clock."
                .to_owned(),
            "CPU time is that of the four guests and the daemon, not of the peer.".to_owned(),
            NATIVE_ROW.to_owned(),
        ]
    }
}
