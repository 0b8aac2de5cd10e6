//! Cost of light traffic: a guest sends small frames one by one, at a steady rate. It is alone at its switch, so its broadcast
//! frames go nowhere. It sleeps between them.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use nicety_lab::embedded::{Layout, Party, Place, Rig};
use nicety_lab::method::Doorbells;
use nicety_lab::number::sampled;

use crate::{Error, ROUNDS, number, program};

/// Time for which the guest sends before the measurement, and after it.
const SETTLE: Duration = Duration::from_secs(1);
const AFTER: Duration = Duration::from_millis(100);
/// Length of each frame, without its frame check sequence.
const BYTES: u16 = 60;
const EVERY_SECOND: [u32; 5] = [10, 100, 470, 1000, 3000];
const CONTESTANTS: [(&str, Option<Doorbells>); 4] = [
    ("e1000", Some(Doorbells::Trapped)),
    ("vmxnet3", Some(Doorbells::Trapped)),
    ("vmxnet3", Some(Doorbells::Mapped)),
    ("virtio-net", None),
];
const GUEST: Party = Party::Guest(0);

/// Measurements of an adapter at one rate.
#[derive(Default)]
struct Samples {
    /// CPU time in percent of a core.
    shares: Vec<f64>,
    /// Frames per second that the adapter took.
    frames: Vec<f64>,
}

fn start(adapter: &str, doorbells: Option<Doorbells>) -> Result<Rig, Error> {
    let guests = vec![Place { doorbells, ..Place::new(adapter) }];
    Ok(Rig::start(&program(&[])?, &Layout { guests, ..Layout::default() }, &AtomicBool::new(false))?)
}

/// The daemon's share of a core while the guest sends, and the frames per second.
fn measure(rig: &mut Rig, a_second: u32, span: Duration) -> Result<(f64, f64), Error> {
    let whole = SETTLE + span + AFTER;
    rig.trickle(GUEST, BYTES, a_second, whole)?;
    std::thread::sleep(SETTLE);
    let used = |rig: &Rig| rig.daemon_cpu().ok_or("the daemon has gone");
    let (before, began) = (used(rig)?, Instant::now());
    std::thread::sleep(span);
    let share = 100.0 * (used(rig)? - before) / began.elapsed().as_secs_f64();
    let frames = rig.flooded(GUEST, whole, &AtomicBool::new(false))?;
    Ok((share, frames as f64 / whole.as_secs_f64()))
}

/// `[SECONDS] [ROUNDS]`.
pub fn run(words: &[String]) -> Result<(), Error> {
    let (seconds, rounds) = (number(words.first(), 1)?, number(words.get(1), ROUNDS)?);
    let mut samples: [[Samples; EVERY_SECOND.len()]; CONTESTANTS.len()] = Default::default();
    for _ in 0..rounds {
        for ((adapter, doorbells), samples) in CONTESTANTS.iter().zip(&mut samples) {
            let mut rig = start(adapter, *doorbells)?;
            for (a_second, samples) in EVERY_SECOND.iter().zip(samples) {
                let (share, frames) = measure(&mut rig, *a_second, Duration::from_secs(seconds))?;
                samples.shares.push(share);
                samples.frames.push(frames);
            }
        }
    }
    println!("{rounds} alternated rounds of {seconds} s; a guest sends frames of {BYTES} bytes one by one:");
    for ((adapter, doorbells), samples) in CONTESTANTS.iter().zip(&samples) {
        let name = format!("{adapter} {}", doorbells.map(|doorbells| doorbells.to_string()).unwrap_or_default());
        for (a_second, Samples { shares, frames }) in EVERY_SECOND.iter().zip(samples) {
            println!("  {name:15} {a_second:4}/s  {} % of a core, {} frames/s", sampled(shares), sampled(frames));
        }
    }
    Ok(())
}
