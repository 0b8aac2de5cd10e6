//! Effect of live changes on other ports: bulk TCP between two guests, while a third port is changed continuously through the
//! control API, as fast as it answers: a shape and a VLAN are set, a port is added and removed. Reports the two ports' dropped
//! frames, the time of a change from request to answer (it is in force then), the throughput with and without changes, and how long
//! locks were held.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nicety_control::api::PortValues;
use nicety_control::{Ask, AskError, ask};
use nicety_host::List;
use nicety_lab::embedded::{Layout, Party, Place, Rig};
use nicety_lab::number::{ratio, ratio_range, sampled};
use nicety_lab::statistics::{paired_ratio, percentile};
use serde_json::json;

use crate::Error;
use crate::flood::ports;

const NAMED: &str = "p2";
const ADDED: &str = "p3";
const OTHERS: [&str; 2] = ["p0", "p1"];

fn values(keys: serde_json::Value) -> PortValues {
    PortValues(keys.as_object().cloned().unwrap_or_default().into_iter().collect())
}

fn set(keys: serde_json::Value) -> Ask {
    Ask::Set { list: List::Ports, name: NAMED.to_owned(), values: values(keys), cut_off: false }
}

/// Makes changes one after another, until `over` is set. Returns the time of each in ns.
fn change(control: &Path, folder: &Path, over: &AtomicBool) -> Result<Vec<u64>, AskError> {
    let mut each_ns = Vec::new();
    let socket = folder.join("added.sock");
    while !over.load(Ordering::Relaxed) {
        let added = json!({"name": ADDED, "adapter": "e1000", "mac": "52:54:00:77:09:09", "socket": socket});
        let changes = [
            set(json!({"send_average": "100Mbit/s", "send_peak": "200Mbit/s", "send_burst": "64KiB"})),
            set(json!({"vlan": 7})),
            Ask::Add { list: List::Ports, values: values(added), cut_off: false },
            set(json!({"send_average": null, "send_peak": null, "send_burst": null, "vlan": null})),
            Ask::Remove { list: List::Ports, name: ADDED.to_owned(), cut_off: false },
        ];
        for change in changes {
            let begun = Instant::now();
            ask(control, change)?;
            each_ns.push(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
    }
    Ok(each_ns)
}

fn dropped(rig: &Rig) -> Result<u64, Error> {
    let ports = ports(rig)?;
    let others = ports.iter().filter(|port| OTHERS.contains(&&*port.name));
    Ok(others.flat_map(|port| port.transmit_drops.values().chain(port.receive_drops.values())).sum())
}

/// `[SECONDS] [ROUNDS]`: 2 seconds for each load, and 7 rounds by default.
pub fn run(words: &[String]) -> Result<(), Error> {
    let duration = Duration::from_secs_f64(crate::number(words.first(), 2.0)?);
    let rounds: usize = crate::number(words.get(1), crate::ROUNDS)?;
    let holds = std::env::temp_dir().join(format!("nicety-holds-{}", std::process::id()));
    let name = holds.to_str().ok_or("the temporary folder's name is not UTF-8")?;
    let timed = cfg!(feature = "measure");
    let words: &[&str] = if timed { &[name] } else { &[] };
    let program = crate::program(words)?;
    let cancel = AtomicBool::new(false);
    let (mut alone, mut beside, mut each_ns, mut drops) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let mut locks = Vec::new();
    for _ in 0..rounds {
        let places = ["virtio-net", "e1000"].map(Place::new).to_vec();
        let layout = Layout { guests: places, crowd: vec![Place::new("vmxnet3")], ..Layout::default() };
        let mut rig = Rig::start(&program, &layout, &cancel)?;
        let bulk = |rig: &mut Rig| -> Result<f64, Error> {
            let (bytes, elapsed) = rig.send(Party::Guest(0), Party::Guest(1), duration, &cancel)?;
            Ok(bytes as f64 * 8.0 / elapsed.as_secs_f64() / 1e6)
        };
        alone.push(bulk(&mut rig)?);
        let before = dropped(&rig)?;
        let (control, over) = (rig.control(), AtomicBool::new(false));
        let folder = control.parent().ok_or("the control socket lies in no folder")?;
        let (rate, changed) = std::thread::scope(|scope| {
            let changes = scope.spawn(|| change(&control, folder, &over));
            let rate = bulk(&mut rig);
            over.store(true, Ordering::Relaxed);
            (rate, changes.join())
        });
        beside.push(rate?);
        each_ns.extend(changed.map_err(|_| "the changes panicked")??);
        drops += dropped(&rig)? - before;
        drop(rig);
        if timed {
            locks.push(std::fs::read_to_string(&holds)?);
            std::fs::remove_file(&holds)?;
        }
    }
    let count = each_ns.len();
    let ms = |each: &mut Vec<u64>, percent| percentile(each, percent).map_or(0.0, |ns| ns as f64 / 1e6);
    let (p50, p99) = (ms(&mut each_ns, 50.0), ms(&mut each_ns, 99.0));
    println!("{rounds} rounds of {duration:?}: {count} changes, {drops} frames dropped at ports that were not named");
    println!("a change, from request to answer: p50 {p50:.2} ms, p99 {p99:.2} ms");
    println!("Mbit/s without changes {}, with {}", sampled(&alone), sampled(&beside));
    if let Some(paired) = paired_ratio(&beside, &alone) {
        let range = ratio_range(&paired).map_or_else(String::new, |range| format!(" [{range}]"));
        println!("with ÷ without: {}{range}", ratio(&paired));
    }
    for written in locks {
        println!("holds of locks in ns, in one round (count, p50, p99, longest): {written}");
    }
    Ok(())
}
