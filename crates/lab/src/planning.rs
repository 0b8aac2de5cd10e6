//! Derives the order of runs from a person's options.
//!
//! Runs of different contestants alternate, so that a temporary disturbance of the host affects all of them
//! (A. Georges, D. Buytaert, L. Eeckhout, *Statistically Rigorous Java Performance Evaluation*, 2007, and R. Jain, *The Art
//! of Computer Systems Performance Analysis*, part IV).

use std::time::Duration;

use crate::bench::Bench;
use crate::findings::and;
use crate::method::{Contestant, Guests, Item, Load, Options, Order, Plan, PlanError, Server};
use crate::number;
use crate::statistics::RUNS_FOR_INTERVAL;

impl Options {
    /// Finds mistakes that do not depend on the guests, before guests are prepared. `adapters` are all known ones.
    pub fn check(&self, adapters: &[&str]) -> Result<(), PlanError> {
        known(&self.adapters, adapters)?;
        if self.repeat.is_some_and(|repeat| !(1..=1000).contains(&repeat)) {
            return Err(PlanError::Repeat);
        }
        if self.seconds.is_some_and(|seconds| !(0.1..=3600.0).contains(&seconds)) {
            return Err(PlanError::Seconds);
        }
        Ok(())
    }
}

impl Plan {
    /// The plan of `options` for `bench`. The same options and bench give the same plan.
    pub fn new(options: &Options, bench: &dyn Bench) -> Result<Plan, PlanError> {
        let (all, absent) = (bench.contestants(), bench.absent());
        let mut adapters = adapters_of(all.iter());
        let missing = adapters_of(absent.iter().map(|(contestant, _)| contestant));
        adapters.extend(missing.into_iter().filter(|name| !all.iter().any(|one| one.adapter == *name)));
        options.check(&adapters)?;
        let left_out = left_out(&options.adapters, &all, &absent);
        let contestants = chosen(&options.adapters, all);
        let loads = bench.loads();
        match left_out.first() {
            Some(why) if contestants.is_empty() => return Err(PlanError::LeftOut(why.clone())),
            _ if contestants.is_empty() || loads.is_empty() => return Err(PlanError::Nothing),
            _ => {}
        }
        let repeat = options.repeat.unwrap_or(if options.quick { 3 } else { RUNS_FOR_INTERVAL as u32 });
        let runs = contestants.len().saturating_mul(loads.len()).saturating_mul(repeat as usize);
        let duration = match options.seconds {
            Some(seconds) => Duration::from_secs_f64(seconds),
            // netperf counts whole seconds.
            None if options.quick && bench.guests() != Guests::Embedded => Duration::from_secs(1),
            None => fitting_duration(bench.guests(), options.quick, runs, bench.overhead()),
        };
        let (order, seed, doorbells) = (bench.order(), options.seed, options.doorbells);
        let items = alternate(&contestants, &loads, repeat, order, seed);
        let (guests, overhead) = (bench.guests(), bench.overhead());
        let without = without(&contestants, &absent);
        Ok(Plan {
            guests,
            contestants,
            left_out,
            without,
            loads,
            items,
            duration,
            overhead,
            repeat,
            seed,
            order,
            doorbells,
        })
    }

    /// Duration of all runs, without the guests' preparation.
    pub fn estimate(&self) -> Duration {
        let runs = u32::try_from(self.items.len()).unwrap_or(u32::MAX);
        self.duration.saturating_add(self.overhead).saturating_mul(runs)
    }

    /// The number of runs and the time that they take, for the person who waits: a sentence.
    pub fn announcement(&self) -> String {
        let runs = if self.items.len() == 1 { "1 run".to_owned() } else { format!("{} runs", self.items.len()) };
        let (seconds, all) = (self.duration.as_secs_f64(), number::span(self.estimate()));
        format!("{runs} of {seconds} s, which take about {all} once the guests have started")
    }

    /// Warnings for the person before the runs begin, a sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = [self.left_out.as_slice(), &self.without].concat();
        if (self.repeat as usize) < RUNS_FOR_INTERVAL {
            let rounds = if self.repeat == 1 { "1 round".to_owned() } else { format!("{} rounds", self.repeat) };
            warnings.push(format!("{rounds}: fewer than {RUNS_FOR_INTERVAL} runs give no 95 % interval"));
        }
        warnings
    }
}

fn adapters_of<'a>(contestants: impl Iterator<Item = &'a Contestant>) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for contestant in contestants {
        if !names.contains(&contestant.adapter.as_str()) {
            names.push(&contestant.adapter);
        }
    }
    names
}

/// Checks that each of `adapters` is one of these names, or `all`.
fn known(adapters: &[String], names: &[&str]) -> Result<(), PlanError> {
    for given in adapters {
        if given == "all" || names.contains(&given.as_str()) {
            continue;
        }
        if given == crate::subject::NATIVE {
            let suggestion = "; `nicety lab run compare` has that row".to_owned();
            return Err(PlanError::UnknownAdapter { given: given.clone(), allowed: names.join(", "), suggestion });
        }
        let nearest = names.iter().map(|name| (strsim::damerau_levenshtein(given, name), name)).min();
        let suggestion = match nearest {
            Some((distance, name)) if distance <= 3 && distance < given.len() => format!("; did you mean \"{name}\"?"),
            _ => String::new(),
        };
        return Err(PlanError::UnknownAdapter { given: given.clone(), allowed: names.join(", "), suggestion });
    }
    Ok(())
}

/// Whether `adapters` select this contestant.
fn is_chosen(adapters: &[String], contestant: &Contestant) -> bool {
    adapters.is_empty() || adapters.iter().any(|name| name == "all" || *name == contestant.adapter)
}

/// The contestants whose adapter is in `adapters`, in the bench's order.
fn chosen(adapters: &[String], all: Vec<Contestant>) -> Vec<Contestant> {
    all.into_iter().filter(|contestant| is_chosen(adapters, contestant)).collect()
}

/// Sentences about chosen adapters that no server has: `vmxnet and vmxnet2 are left out: `, and the reason.
fn left_out(adapters: &[String], all: &[Contestant], absent: &[(Contestant, String)]) -> Vec<String> {
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for (contestant, why) in absent {
        let name = &contestant.adapter;
        if !is_chosen(adapters, contestant) || all.iter().any(|one| one.adapter == *name) {
            continue;
        }
        // An adapter has the reason of its first server. The other servers cannot serve what cannot be driven.
        if reasons.iter().any(|(_, names)| names.contains(name)) {
            continue;
        }
        match reasons.iter_mut().find(|(known, _)| known == why) {
            Some((_, names)) => names.push(name.clone()),
            None => reasons.push((why, vec![name.clone()])),
        }
    }
    let sentence = |(why, names): (&str, Vec<String>)| {
        format!("{} {} left out: {why}", and(&names), if names.len() == 1 { "is" } else { "are" })
    };
    reasons.into_iter().map(sentence).collect()
}

/// Sentences about chosen adapters that one of the servers cannot serve: `igb without qemu: `, and the reason. Each is one note; no run is
/// planned that could only fail.
fn without(contestants: &[Contestant], absent: &[(Contestant, String)]) -> Vec<String> {
    let mut reasons: Vec<((Server, &str), Vec<String>)> = Vec::new();
    let is_measured = |contestant: &Contestant| contestants.iter().any(|one| one.adapter == contestant.adapter);
    for (contestant, why) in absent.iter().filter(|(contestant, _)| is_measured(contestant)) {
        let (key, name) = ((contestant.server, why.as_str()), contestant.adapter.clone());
        match reasons.iter_mut().find(|(known, _)| *known == key) {
            Some((_, names)) => names.push(name),
            None => reasons.push((key, vec![name])),
        }
    }
    let sentence =
        |((server, why), names): ((Server, &str), Vec<String>)| format!("{} without {server}: {why}", and(&names));
    reasons.into_iter().map(sentence).collect()
}

/// The duration of a run that fits all runs into the time that `compare` promises: 2 minutes with embedded guests (the quick look 45
/// seconds), 5 with user-mode ones, 20 with those in QEMU, the latter two less a reserve for preparing guests. A minimum keeps a run
/// meaningful, even if all then take longer; a maximum ends where longer runs gain nothing. netperf, in real guests, counts whole seconds.
fn fitting_duration(guests: Guests, quick: bool, runs: usize, overhead: Duration) -> Duration {
    let (total_s, least_s, most_s) = match guests {
        Guests::Embedded if quick => (45.0, 0.2, 0.5),
        Guests::Embedded => (120.0, 0.2, 1.5),
        Guests::Uml => (270.0, 1.0, 3.0),
        Guests::Qemu => (1_020.0, 2.0, 5.0),
    };
    let each_s: f64 = total_s / runs.max(1) as f64 - overhead.as_secs_f64();
    let each_s = each_s.clamp(least_s, most_s);
    // Tenths, so that the printed command that repeats the run can state the duration.
    let fits = if guests == Guests::Embedded { (each_s * 10.0 + 1e-9).floor() / 10.0 } else { each_s.floor() };
    Duration::from_secs_f64(fits)
}

/// Round-robin with seeded rotation. A block has as many rounds as there are contestants and begins with a fresh shuffle. Each round of
/// the block starts one contestant later, so that each contestant has each place equally often.
fn alternate(contestants: &[Contestant], loads: &[Load], repeat: u32, order: Order, seed: u64) -> Vec<Item> {
    let mut random = SplitMix::new(seed);
    let mut turn: Vec<&Contestant> = contestants.iter().collect();
    let mut items = Vec::new();
    for round in 0..repeat {
        if (round as usize).is_multiple_of(contestants.len()) {
            random.shuffle(&mut turn);
        } else {
            turn.rotate_left(1);
        }
        let item = |contestant: &Contestant, load| Item { round, contestant: contestant.clone(), load };
        match order {
            Order::EveryRun => items.extend(loads.iter().flat_map(|&load| turn.iter().map(move |c| item(c, load)))),
            Order::EveryContestant => {
                items.extend(turn.iter().flat_map(|c| loads.iter().map(move |&load| item(c, load))))
            }
        }
    }
    items
}

/// A small seeded generator (SplitMix64: G. Steele, D. Lea, C. Flood, *Fast Splittable Pseudorandom Number Generators*,
/// 2014). The same seed gives the same order of runs on any machine.
#[derive(Debug, Clone)]
pub struct SplitMix {
    state: u64,
}

impl SplitMix {
    /// The generator with this seed.
    pub fn new(seed: u64) -> SplitMix {
        SplitMix { state: seed }
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 up to, but not including, 1.
    pub fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Shuffles `list` (Fisher and Yates).
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, (self.draw() % (last as u64 + 1)) as usize);
        }
    }
}

#[cfg(test)]
#[path = "planning_test.rs"]
mod tests;
