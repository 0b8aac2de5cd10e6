//! Replaces a daemon again and again under the traffic of its guests, compares every byte, and kills it at the end:
//! `cargo run --release -p nicety-lab --example upgrades -- --ports 64 --upgrades 1000`
//!
//! Embedded guests of all adapters, in pairs, send each other a pattern over TCP and compare what comes back. Two pairs of user-mode
//! guests and a pair in QEMU send each other random bytes, whose checksums are compared at the end. Prints how long each port stood still,
//! and how long nothing moved at all: p50, p99, maximum; frames sent, received and dropped, which must add up (a dropped packet is counted once, and may be
//! of several frames); and after each kill the time
//! until the next daemon runs, and until it has answered. Ends with code 1 if a byte or an uncounted frame is lost.
//!
//! `--ports N` (64), `--guests N`: embedded guests (one at each port that is left, at most 58; an even number), `--upgrades N` (1000),
//! `--user-mode N` and `--qemu N`: real guests (4 and 2; even numbers), `--kills N` (9; more than 9 are made at most every 6.5 s),
//! `--rate N`: bytes a second that an embedded guest sends (1000000; 0: as many as it can), `--adapters NAME,…`: of the embedded guests
//! (all in turn), `--nicety PROGRAM` (else it is built first). A pair whose bytes stop to come back, for longer than TCP waits before it
//! sends a segment again, is a failure: both ports are printed as the daemon reports them.

#[path = "../daemon/mod.rs"]
mod daemon;
mod figures;
#[path = "../help/mod.rs"]
mod help;
mod machines;

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use figures::{Figures, Frames, frames, spread};
use machines::Machines;
use nicety_guests::Served;
use nicety_lab::embedded::{Compared, Layout, Party, Place, Program, Rig, driven};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

type Error = Box<dyn std::error::Error>;

/// Duration of an order to the embedded guests.
const ROUND: Duration = Duration::from_secs(10);
/// Duration of the first one.
const FIRST: Duration = Duration::from_millis(500);
/// Time limit for frames on their way, and for a daemon to answer.
const SOON: Duration = Duration::from_secs(30);
/// An upgrade that takes longer, from the request to the answer, is explained.
const LONG: Duration = Duration::from_secs(1);
/// Interval between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// A keeper starts ten killed daemons a minute, and no more.
const KILLS_AT_ONCE: usize = 9;
const PACE: Duration = Duration::from_millis(6_500);
/// Most embedded guests unless told otherwise: with the real ones they have 64 ports.
const GUESTS: usize = 58;

/// The options.
pub struct Plan {
    ports: usize,
    guests: Option<usize>,
    upgrades: usize,
    user_mode: usize,
    qemu: usize,
    kills: usize,
    rate: u64,
    adapters: Vec<String>,
    nicety: PathBuf,
}

impl Plan {
    fn guests(&self) -> usize {
        let left = self.ports.saturating_sub(self.user_mode + self.qemu);
        self.guests.unwrap_or(GUESTS).min(left) & !1
    }

    fn rate(&self) -> Option<u64> {
        (self.rate > 0).then_some(self.rate)
    }
}

fn main() -> ExitCode {
    help::on_request(include_str!("main.rs"));
    match plan(env::args().skip(1)).map_err(Error::from).and_then(|plan| run(&plan)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn plan(mut words: impl Iterator<Item = String>) -> Result<Plan, String> {
    let mut plan = Plan {
        ports: 64,
        guests: None,
        upgrades: 1000,
        user_mode: 4,
        qemu: 2,
        kills: KILLS_AT_ONCE,
        rate: 1_000_000,
        adapters: driven(false).into_iter().map(str::to_owned).collect(),
        nicety: PathBuf::new(),
    };
    let mut named = None;
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        let number = || value.parse::<usize>().map_err(|_| format!("{word}: `{value}` is no number"));
        match word.as_str() {
            "--ports" => plan.ports = number()?,
            "--guests" => plan.guests = Some(number()?),
            "--upgrades" => plan.upgrades = number()?,
            "--user-mode" => plan.user_mode = number()? & !1,
            "--qemu" => plan.qemu = number()? & !1,
            "--kills" => plan.kills = number()?,
            "--rate" => plan.rate = number()? as u64,
            "--adapters" => plan.adapters = value.split(',').map(str::to_owned).collect(),
            "--nicety" => named = Some(value.into()),
            _ => {
                return Err(format!(
                    "`{word}` is not known: --ports, --guests, --upgrades, --user-mode, --qemu, --kills, --rate, --adapters, \
                     --nicety"
                ));
            }
        }
    }
    plan.nicety = daemon::program(named)?;
    Ok(plan)
}

/// The VLAN of a pair.
fn vlan(pair: usize) -> Option<u16> {
    u16::try_from(pair + 1).ok()
}

/// A kept daemon, and an embedded guest at each of the first ports.
fn start(plan: &Plan) -> Result<Rig, Error> {
    let words = |words: &[&str]| words.iter().map(Into::into).collect();
    let program =
        Program { path: plan.nicety.clone(), hidden: words(&["guest"]), serve: words(&["serve", "--keeper"]) };
    let adapters = &plan.adapters;
    let guests = plan.guests();
    let place = |(number, adapter): (usize, &String)| Place { vlan: vlan(number / 2), ..Place::new(adapter) };
    let guests: Vec<Place> = adapters.iter().cycle().take(guests).enumerate().map(place).collect();
    let real = plan.user_mode + plan.qemu;
    let vacant = plan.ports.saturating_sub(guests.len() + real);
    let mut more = String::new();
    for (number, adapter) in machines::adapters(plan).into_iter().enumerate() {
        let vlan = vlan(guests.len() / 2 + number / 2).unwrap_or_default();
        more += &table(&machines::name(number), adapter, &machines::mac(number), &format!("vlan = {vlan}\n"));
    }
    for (number, adapter) in adapters.iter().cycle().take(vacant).enumerate() {
        let [high, low] = u16::try_from(number).unwrap_or_default().to_be_bytes();
        more += &table(&format!("vacant{number}"), adapter, &format!("52:54:00:79:{high:02x}:{low:02x}"), "");
    }
    Ok(Rig::start(&program, &Layout { guests, more, ..Layout::default() }, &AtomicBool::new(false))?)
}

/// A port's table in the host file. Its socket is beside it.
fn table(name: &str, adapter: &str, mac: &str, more: &str) -> String {
    format!("[[port]]\nname = \"{name}\"\nadapter = \"{adapter}\"\nmac = \"{mac}\"\nsocket = \"{name}.sock\"\n{more}")
}

/// True if nothing is lost.
fn run(plan: &Plan) -> Result<bool, Error> {
    let begin = Instant::now();
    let mut say = |line: &str| eprintln!("{:6.1} s  {line}", begin.elapsed().as_secs_f64());
    let mut rig = start(plan)?;
    let mut machines = Machines::start(plan, &rig, &mut say)?;
    println!(
        "{} ports: {} embedded guests, {} in user mode, {} in QEMU, the rest without a guest",
        plan.ports,
        plan.guests(),
        plan.user_mode,
        plan.qemu
    );
    meet(plan, &mut rig)?;
    let before = frames(&rig.control())?;
    machines.stream()?;
    let mut figures = Figures::default();
    let done = upgraded(plan, &mut rig, &mut figures, &mut say);
    let compared = done.map_err(|error| format!("{error}\n{}", tail(&rig.log())))?;
    let streams = machines.finish()?;
    let lost = settled(&rig.control(), &before)?;
    let pairs = plan.guests() / 2;
    figures.print();
    println!(
        "{pairs} pairs of embedded guests: {} bytes compared, {} of them different, {} of {} missing",
        compared.received,
        compared.different,
        compared.sent - compared.received,
        compared.sent
    );
    for (kind, counts) in [("embedded guests", &lost.embedded), ("real guests", &lost.real)] {
        println!("{kind}: {counts}");
    }
    streams.iter().for_each(|stream| println!("{stream}"));
    let [ran, answered] = kills(plan, &rig, &mut say)?;
    if let (Some(ran), Some(answered)) = (spread(&ran), spread(&answered)) {
        println!("{} kills: the next daemon ran after {ran}, and had answered after {answered}", plan.kills);
        machines.come_back(&mut say)?;
    }
    let is_whole = compared.different == 0 && compared.received == compared.sent;
    Ok(is_whole && lost.embedded.adds_up() && streams.iter().all(machines::Stream::is_same))
}

/// Pairs of embedded guests.
fn pairs(plan: &Plan) -> Vec<[Party; 2]> {
    let first = (0..plan.guests() / 2).filter_map(|pair| u8::try_from(2 * pair).ok());
    first.map(|first| [Party::Guest(first), Party::Guest(first + 1)]).collect()
}

/// Waits until each pair of embedded guests has compared something: switch and guests know the addresses then.
fn meet(plan: &Plan, rig: &mut Rig) -> Result<(), Error> {
    let end = Instant::now() + SOON;
    let mut strangers = pairs(plan);
    while !strangers.is_empty() {
        if Instant::now() >= end {
            return Err(format!("{strangers:?} do not reach each other\n{}", tail(&rig.log())).into());
        }
        let mut sum = Compared::default();
        strangers = compared(rig, &strangers, FIRST, plan.rate(), &mut sum, |_| Ok(()))?;
    }
    Ok(())
}

/// Has these pairs compare for a time, during which `act` is done. Returns the pairs that were not connected in time.
fn compared(
    rig: &mut Rig,
    pairs: &[[Party; 2]],
    time: Duration,
    rate: Option<u64>,
    sum: &mut Compared,
    act: impl FnOnce(&Rig) -> Result<(), Error>,
) -> Result<Vec<[Party; 2]>, Error> {
    for [from, to] in pairs {
        rig.compare(*from, *to, rate, time)?;
    }
    act(rig)?;
    let mut silent = Vec::new();
    for pair in pairs {
        let Compared { sent, received, different } = rig.compared(pair[0], time, &AtomicBool::new(false))?;
        if sent == 0 {
            silent.push(*pair);
        }
        if received < sent || different > 0 {
            eprintln!("{pair:?}: {sent} bytes sent, {received} came back, {different} of them different");
            pair.iter().for_each(|guest| eprintln!("{}", port_of(*guest, &rig.control())));
        }
        sum.sent += sent;
        sum.received += received;
        sum.different += different;
    }
    Ok(silent)
}

/// A guest's port as the daemon reports it: a stream that stands is explained by its counters, or by its adapter's stalls.
fn port_of(guest: Party, control: &Path) -> String {
    let Party::Guest(number) = guest else { return String::new() };
    let answer = Served::ask_at(control).and_then(|answer| serde_json::from_str::<Value>(&answer).ok());
    let ports = answer.as_ref().and_then(|answer| answer["ports"].as_array());
    let port = ports.into_iter().flatten().find(|port| port["name"] == format!("p{number}"));
    port.map_or_else(|| format!("p{number}: the daemon does not answer"), Value::to_string)
}

/// Upgrades under traffic of the embedded guests. Returns what these have compared.
fn upgraded(plan: &Plan, rig: &mut Rig, figures: &mut Figures, say: &mut dyn FnMut(&str)) -> Result<Compared, Error> {
    let (pairs, mut left, mut sum) = (pairs(plan), plan.upgrades, Compared::default());
    while left > 0 {
        let act = |rig: &Rig| {
            let end = Instant::now() + ROUND;
            while left > 0 && Instant::now() < end {
                let asked = Instant::now();
                left -= usize::from(upgrade(plan, &rig.control(), figures)?);
                let took = asked.elapsed();
                if took > LONG {
                    say(&format!("an upgrade took {took:.1?}; the daemons said:\n{}", tail(&rig.log())));
                }
            }
            Ok(())
        };
        // A client gives a connection up after four seconds, which a busy machine may need.
        let silent = compared(rig, &pairs, ROUND, plan.rate(), &mut sum, act)?.len();
        let silent = if silent == 0 { String::new() } else { format!("; {silent} pairs did not connect in time") };
        say(&format!("{} of {} upgrades{silent}", plan.upgrades - left, plan.upgrades));
    }
    Ok(sum)
}

/// Replaces the daemon by the same program. False if it refused because the machine was too busy.
fn upgrade(plan: &Plan, control: &Path, figures: &mut Figures) -> Result<bool, Error> {
    let mut command = Command::new(&plan.nicety);
    let begun = Instant::now();
    let output = command.args(["upgrade", "--json", "--control"]).arg(control).output()?;
    if output.status.success() {
        let answer: Value = serde_json::from_slice(&output.stdout)?;
        figures.add(&answer, begun.elapsed())?;
        return Ok(true);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let late = ["a worker did not stop in time", "has stopped in the middle of a message", "no answer within"];
    if late.iter().any(|why| said.contains(why)) && said.contains("this daemon goes on") {
        figures.late += 1;
        return Ok(false);
    }
    Err(said.trim().to_owned().into())
}

/// The frames since `before`, when none is on its way any more.
fn settled(control: &Path, before: &Frames) -> Result<Frames, Error> {
    let (end, mut last) = (Instant::now() + SOON, Frames::default());
    loop {
        let now = frames(control)?.since(before);
        if (now.embedded.adds_up() && now == last) || Instant::now() >= end {
            return Ok(now);
        }
        last = now;
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The process that serves: the keeper's last child (proc(5)). `None` between a daemon's end and the next one's start.
fn serving(keeper: u32) -> Option<Pid> {
    let children = std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).ok()?;
    Pid::from_raw(children.split_whitespace().last()?.parse().ok()?)
}

/// Kills the daemon. Returns the nanoseconds until the next one ran, and until it answered, of each kill.
fn kills(plan: &Plan, rig: &Rig, say: &mut dyn FnMut(&str)) -> Result<[Vec<u64>; 2], Error> {
    let keeper = *rig.pids().last().ok_or("there is no keeper")?;
    let mut times = <[Vec<u64>; 2]>::default();
    for _ in 0..plan.kills {
        let killed = serving(keeper).ok_or("there is no daemon")?;
        let begun = Instant::now();
        kill_process(killed, Signal::KILL)?;
        let until = |done: &dyn Fn() -> bool| {
            while !done() {
                if begun.elapsed() > SOON {
                    return Err(Error::from(format!("no daemon answers\n{}", tail(&rig.log()))));
                }
                std::thread::sleep(LOOK_AGAIN);
            }
            Ok(begun.elapsed())
        };
        let ran = until(&|| serving(keeper).is_some_and(|now| now != killed))?;
        let answered = until(&|| Served::ask_at(&rig.control()).is_some())?;
        say(&format!("killed: the next daemon ran after {ran:.1?}, and had answered after {answered:.1?}"));
        for (times, elapsed) in times.iter_mut().zip([ran, answered]) {
            times.push(u64::try_from(elapsed.as_nanos())?);
        }
        if plan.kills > KILLS_AT_ONCE {
            std::thread::sleep(PACE.saturating_sub(begun.elapsed()));
        }
    }
    Ok(times)
}

/// The last lines of a log.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
