//! The run under user-mode guests: four of them behind one tap, and iperf in a namespace outside. Rates are those that the daemon counts.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nicety_guests::{Error, Layer};
use serde_json::Value;

use super::{FRAME_BYTES, PORTS, Rates, STORAGE_STREAMS, Shape, in_embedded, shape, taken};
use crate::bench::BenchError;
use crate::embedded::Program;
use crate::method::Guests;
use crate::methods::{Measurement, Opening, Run};
use crate::real::iperf::{self, IPERF, PACKAGES};
use crate::real::outside::{self, OUTSIDE, Outside, Several, UPLINK};
use crate::real::quoted;
use crate::record::Taken;
use crate::spent::Stopwatch;
use crate::windows::{Meter, StolenWatch, machine_time};

const RATES: Rates = Rates::under(Guests::Uml);
const MEMORY_MIB: u32 = 256;
const RECEIVE_BUFFER: &str = "2MiB";
/// Bytes of payload of a full frame: Linux sends TCP time stamps.
const PAYLOAD: f64 = 1448.0;
/// Bytes of the headers of a full frame.
const HEADERS: f64 = FRAME_BYTES - PAYLOAD;
/// Interval at which the daemon's counters are read. Windows' edges are between two readings.
const READING: Duration = Duration::from_millis(40);
/// Time limit of what takes no time itself.
const SLACK: Duration = Duration::from_secs(60);

/// Four guests and the network outside (see the module's page).
#[derive(Debug)]
pub(super) struct Four {
    program: Program,
    outside: Outside,
    layer: Layer,
}

impl Four {
    pub fn open(opening: Opening<'_>) -> Result<Four, Error> {
        let Opening { plan, program, say, .. } = opening;
        let layer = Layer::lay("iperf", PACKAGES, say)?;
        let programs = Some((layer.clone(), &[IPERF][..]));
        let opening = outside::Opening { programs, ..outside::Opening::of(plan, program, MEMORY_MIB) };
        let mut outside = Outside::open(opening, say)?;
        outside.serve(&iperf::program(&layer, "iperf -s"))?;
        // Senders outside know ECN, so that what waits too long is marked and not dropped.
        outside.tell_congestion()?;
        Ok(Four { program: program.clone(), outside, layer })
    }

    /// One line of shell that runs iperf outside to all guests at once.
    fn clients(&self, seconds: u32) -> Command {
        let words = quoted(&self.layer.program(IPERF));
        let each = (0..PORTS.len()).map(|guest| {
            let streams = if guest == 0 { STORAGE_STREAMS } else { 1 };
            format!("{words} -c {} -P {streams} -t {seconds} >/dev/null 2>&1 &", outside::address(guest))
        });
        let mut shell = Command::new(self.outside.root().busybox());
        shell.args(["sh", "-c", &format!("{} wait", each.collect::<String>())]);
        shell
    }
}

impl Measurement for Four {
    type Layout = Shape;
    type Guests = Several;

    fn layout(load: &str) -> Option<Shape> {
        shape(load)
    }

    fn serves(standing: Shape, wanted: Shape) -> bool {
        standing == wanted
    }

    fn boot(&mut self, run: &Run<'_, Shape>) -> Result<Several, BenchError> {
        let names = ["guest0", "guest1", "guest2", "guest3"];
        let classes = run.layout.host_file(RATES, UPLINK, names, RECEIVE_BUFFER);
        let link = format!("rate = \"{}Mbit/s\"\n{classes}", RATES.link);
        Ok(self.outside.boot_several(run.subject, PORTS.len(), &link, 1, run.stop)?)
    }

    fn warm(&mut self, several: &mut Several, run: &Run<'_, Shape>) -> Result<(), BenchError> {
        let listens = "echo 1 >/proc/sys/net/ipv4/tcp_ecn; (iperf -s >/dev/null 2>&1 &); \
                       until netstat -ltn | grep -q :5001; do rest; done";
        Ok(several.at_once(PORTS.len(), listens, SLACK, run.stop).map(drop)?)
    }

    fn measure(&mut self, several: &mut Several, run: &Run<'_, Shape>) -> Result<Taken, BenchError> {
        let (shape, seconds, stop) = (run.layout, run.load.seconds, run.stop);
        let clients = self.clients(seconds);
        let commands: Vec<String> = (0..PORTS.len())
            .map(|guest| {
                let streams = if guest == 0 && !shape.is_inward { STORAGE_STREAMS } else { 1 };
                let most = if shape.is_inward { format!(" -b {}m", RATES.beside()) } else { String::new() };
                format!("iperf -c {OUTSIDE} -P {streams} -t {}{most} >/dev/null 2>&1", seconds)
            })
            .collect();
        let limit = SLACK + run.duration();
        let (watch, ended) = (StolenWatch::start(), AtomicBool::new(false));
        let control = several.control();
        let stopwatch = Stopwatch::start(several.spent());
        let outside = &mut self.outside;
        let (meters, told) = thread::scope(|scope| -> Result<_, Error> {
            let reader = scope.spawn(|| read(&control, shape, &ended));
            let inside = scope.spawn(|| several.each(&commands, limit, stop).map(drop));
            let outside =
                if shape.is_inward { outside.run(&clients, limit, stop, &mut |_| Ok(())).map(drop) } else { Ok(()) };
            let inside = inside.join().unwrap_or(Err(Error::Stopped));
            ended.store(true, Ordering::Relaxed);
            let read = reader.join().unwrap_or_default();
            outside.and(inside).map(|()| read)
        })?;
        let (spent, steal_percent) = stopwatch.stop(several.spent());
        let windows = meters.map(Meter::windows);
        let gbit = windows.iter().flat_map(|port| &port.bytes).sum::<u64>() as f64 * 8e-9;
        let mut taken = taken((shape, RATES), &windows, &watch.stolen(), PAYLOAD, Some((spent, gbit)));
        let Told { frames, marked, dropped } = told;
        if shape.is_inward && frames > 0 {
            taken.figures.insert("inward".to_owned(), gbit * 1e9 / 8.0 / PAYLOAD / frames as f64);
        }
        if shape.is_inward && shape.has_control {
            taken.figures.extend([("marked".to_owned(), marked as f64), ("dropped".to_owned(), dropped as f64)]);
        }
        Ok(Taken { steal_percent, ..taken })
    }

    fn natively(&mut self, run: &Run<'_, Shape>) -> Result<Taken, BenchError> {
        let taken = in_embedded::natively(&self.program, RATES, run)?;
        let marks = taken.marks.into_iter().chain(["the lab's own program, not iperf".to_owned()]).collect();
        Ok(Taken { marks, ..taken })
    }

    fn end(&mut self, several: Several) -> Result<(), BenchError> {
        Ok(self.outside.end_several(several)?)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.outside.notes();
        notes.push(RATES.note());
        notes.push(in_embedded::NATIVE_ROW.to_owned());
        notes.push(
            "iperf 2 sends; rates are what the daemon counts every 40 ms: by class as frames leave the uplink or, inward and without I/O \
             control, at the guests' adapters. Both sides know ECN (tcp_ecn = 1)."
                .to_owned(),
        );
        notes
    }
}

/// Traffic of the uplink during a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Told {
    /// Frames, both ways.
    frames: u64,
    /// Packets that came in and were marked to tell their senders of congestion.
    marked: u64,
    /// Packets that came in and were dropped to tell them, or for lack of room.
    dropped: u64,
}

/// Reads the daemon's counters until the run has ended: each port's payload, and what the uplink carried.
fn read(control: &outside::Control, shape: Shape, ended: &AtomicBool) -> ([Meter; PORTS.len()], Told) {
    let mut meters: [Meter; PORTS.len()] = Default::default();
    let mut told: Option<[Told; 2]> = None;
    while !ended.load(Ordering::Relaxed) {
        let answer = control.ask().and_then(|text| serde_json::from_str::<Value>(&text).ok());
        if let Some(answer) = answer {
            let now = machine_time();
            for (meter, bytes) in meters.iter_mut().zip(payload(&answer, shape)) {
                meter.read(now, bytes);
            }
            let known = uplink(&answer);
            told = Some([told.map_or(known, |[first, _]| first), known]);
        }
        thread::sleep(READING);
    }
    let [first, last] = told.unwrap_or_default();
    let told = Told {
        frames: last.frames.saturating_sub(first.frames),
        marked: last.marked.saturating_sub(first.marked),
        dropped: last.dropped.saturating_sub(first.dropped),
    };
    (meters, told)
}

fn ports(answer: &Value) -> BTreeMap<&str, &Value> {
    let ports = answer["ports"].as_array().into_iter().flatten();
    ports.filter_map(|port| Some((port["name"].as_str()?, port))).collect()
}

/// Payload of each port so far: what has left by its class, or what its adapter has sent or received.
fn payload(answer: &Value, shape: Shape) -> [u64; PORTS.len()] {
    let ports = ports(answer);
    let number = |of: &Value, key: &str| of[key].as_f64().unwrap_or(0.0);
    std::array::from_fn(|at| {
        let class = if at + 1 == PORTS.len() { "vm" } else { PORTS[at].1 };
        if shape.has_control && !shape.is_inward {
            let classes = ports.get(UPLINK).and_then(|uplink| uplink["io_classes"].as_array());
            let class = classes.into_iter().flatten().find(|known| known["name"] == class);
            return class.map_or(0, |class| (number(class, "bytes") * PAYLOAD / FRAME_BYTES) as u64);
        }
        let way = if shape.is_inward { "receive" } else { "transmit" };
        let queues = ports.get(format!("guest{at}").as_str()).and_then(|port| port[way].as_array());
        // A segmented packet's bytes have its headers once.
        let of = |queue: &Value| (number(queue, "bytes") - number(queue, "packets") * HEADERS).max(0.0);
        queues.into_iter().flatten().map(of).sum::<f64>() as u64
    })
}

/// The traffic that the uplink has carried so far.
fn uplink(answer: &Value) -> Told {
    let ports = ports(answer);
    let Some(uplink) = ports.get(UPLINK) else { return Told::default() };
    let sum = |list: &str, key: &str| -> u64 {
        uplink[list].as_array().into_iter().flatten().filter_map(|each| each[key].as_u64()).sum()
    };
    Told {
        frames: sum("transmit", "frames") + sum("receive", "frames"),
        marked: sum("inward_classes", "marked"),
        dropped: sum("inward_classes", "dropped"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_is_what_left_by_class_or_what_an_adapter_carried_without_headers() {
        let answer = serde_json::json!({ "ports": [
            { "name": "n0", "transmit": [{ "frames": 5 }], "receive": [{ "frames": 4 }, { "frames": 3 }], "io_classes": [{ "name": "vm", "bytes": 15_140 }, { "name": "storage", "bytes": 30_280 }],
              "inward_classes": [{ "name": "vm", "marked": 3, "dropped": 1 }, { "name": "storage", "marked": 4, "dropped": 0 }] },
            { "name": "guest1", "receive": [{ "queue": 0, "packets": 2, "frames": 3, "bytes": 4_500 }], "transmit": [] },
        ] });
        let of = |name| payload(&answer, shape(name).unwrap());
        assert_eq!(of("outward"), [28_960, 0, 0, 14_480]);
        assert_eq!(of("inward"), [0, 4_500 - 2 * 66, 0, 0]);
        assert_eq!(of("outward-without"), [0; 4]);
        assert_eq!(uplink(&answer), Told { frames: 12, marked: 7, dropped: 1 });
        assert_eq!(uplink(&serde_json::json!({})), Told::default());
    }
}
