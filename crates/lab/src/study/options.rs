//! A person's options, and the plan that a method makes of them.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::method::{Guests, Own, Server};
use crate::methods::Method;
use crate::plan::{Length, Plan};
use crate::statistics::RUNS_FOR_INTERVAL;
use crate::subject::{self, NATIVE, Subject};

/// Rounds of a study that stops early (`--confidence`), if nothing says otherwise.
const ROUNDS_WITH_CONFIDENCE: u32 = 30;

/// A person's options. None means that nothing was said.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// `--guests`.
    pub guests: Option<Guests>,
    /// `--adapters a,b`; empty means the method's own choice.
    #[serde(default)]
    pub adapters: Vec<String>,
    /// `--loads a,b`; empty means all of the method.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loads: Vec<String>,
    /// `--quick` or `--full`.
    pub length: Option<Length>,
    /// `--seconds N`: duration of the main load's runs.
    pub seconds: Option<u32>,
    /// `--repeat N`: rounds, at most as many with `--confidence`.
    pub repeat: Option<u32>,
    /// `--confidence 5%`: stop when each interval reaches at most this far from its median to either side, as a fraction.
    pub confidence: Option<f64>,
    /// `--seed N`.
    pub seed: Option<u64>,
    /// `--image FILE --ssh USER --key FILE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<Own>,
}

/// The reason why the options give no plan.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlanError {
    /// `--guests` names a kind that this method does not run under.
    #[error("--guests {given}: {method} runs under {known}")]
    Guests {
        /// The given kind.
        given: Guests,
        /// The method.
        method: &'static str,
        /// The possible kinds.
        known: String,
    },
    /// `--image` with a method that has none.
    #[error("--image: {method} has no guests of one's own; kvm-scp has")]
    Image {
        /// The method.
        method: &'static str,
    },
    /// `--image` with another kind of guests.
    #[error("--image: an image runs in QEMU, not under --guests {given}")]
    ImageIn {
        /// The given kind.
        given: Guests,
    },
    /// `--adapters` names something else.
    #[error("--adapters: {method} has no \"{given}\"{suggestion}; there are {known}")]
    Adapter {
        /// The given name.
        given: String,
        /// The method.
        method: &'static str,
        /// `; did you mean "e1000"?`, or nothing.
        suggestion: String,
        /// The possible names.
        known: String,
    },
    /// `--loads` names something else.
    #[error("--loads: {method} has no load \"{given}\" with these options{suggestion}; there are {known}")]
    Load {
        /// The given name.
        given: String,
        /// The method.
        method: &'static str,
        /// `; did you mean "ping"?`, or nothing.
        suggestion: String,
        /// The possible names.
        known: String,
    },
    /// `--seconds` out of range.
    #[error("--seconds: a run may last from 1 to 3600 whole seconds")]
    Seconds,
    /// `--repeat` out of range.
    #[error("--repeat: from 1 to 1000 rounds are possible")]
    Repeat,
    /// `--confidence` out of range.
    #[error("--confidence: from 0.1% to 50% are possible")]
    Confidence,
    /// `--confidence` with too few rounds for an interval.
    #[error(
        "--confidence needs intervals, and these need at least {RUNS_FOR_INTERVAL} rounds: leave --quick and --repeat out"
    )]
    NoInterval,
}

impl Options {
    /// The plan of these options for `method`. The same options give the same plan.
    ///
    /// # Errors
    /// The options do not fit the method or each other.
    pub fn plan(&self, method: &dyn Method) -> Result<Plan, PlanError> {
        let about = method.about();
        let own = self.own.as_ref().map(|_| Guests::Qemu);
        if self.own.as_ref().is_some_and(|own| method.in_image(Vec::new(), own).is_none()) {
            return Err(PlanError::Image { method: about.name });
        }
        if let (Some(_), Some(given)) = (own, self.guests.filter(|given| *given != Guests::Qemu)) {
            return Err(PlanError::ImageIn { given });
        }
        let guests = self.guests.or(own).or(about.guests.first().copied()).unwrap_or(Guests::Embedded);
        if !about.guests.contains(&guests) {
            let known = about.guests.iter().map(Guests::to_string).collect::<Vec<_>>().join(", ");
            return Err(PlanError::Guests { given: guests, method: about.name, known });
        }
        if self.seconds.is_some_and(|seconds| !(1..=3600).contains(&seconds)) {
            return Err(PlanError::Seconds);
        }
        if self.repeat.is_some_and(|repeat| !(1..=1000).contains(&repeat)) {
            return Err(PlanError::Repeat);
        }
        if self.confidence.is_some_and(|share| !(0.001..=0.5).contains(&share)) {
            return Err(PlanError::Confidence);
        }
        let length = self.length.unwrap_or_default();
        let repeat = self.repeat.unwrap_or(match (length, self.confidence) {
            (Length::Quick, _) => 3,
            (_, Some(_)) => ROUNDS_WITH_CONFIDENCE,
            (Length::Usual, None) => RUNS_FOR_INTERVAL as u32,
            (Length::Full, None) => 10,
        });
        if self.confidence.is_some() && (repeat as usize) < RUNS_FOR_INTERVAL {
            return Err(PlanError::NoInterval);
        }
        let mut subjects = chosen(method, guests, length, &self.adapters)?;
        let mut loads = method.loads(guests, length, self.seconds);
        loads.retain(|load| method.keeps(load, &subject::adapters(&subjects)));
        let known: Vec<&str> = loads.iter().map(|load| load.name.as_str()).collect();
        if let Some(given) = self.loads.iter().find(|given| !known.contains(&given.as_str())) {
            let suggestion = suggestion(given, &known);
            return Err(PlanError::Load {
                given: given.clone(),
                method: about.name,
                suggestion,
                known: known.join(", "),
            });
        }
        loads.retain(|load| self.loads.is_empty() || self.loads.contains(&load.name));
        if let Some(own) = &self.own {
            loads = method.in_image(loads, own).unwrap_or_default();
            // Its system has the vendor's driver, or none.
            subjects.iter_mut().for_each(|subject| subject.driver = None);
        }
        Ok(Plan {
            method: about.name.to_owned(),
            guests,
            length,
            subjects,
            loads,
            repeat,
            confidence: self.confidence,
            seed: self.seed.unwrap_or(1),
            overhead_seconds: about.overhead_seconds,
            own: self.own.clone(),
        })
    }
}

/// `; did you mean "e1000"?`, or nothing if none of the names is near.
fn suggestion(given: &str, known: &[&str]) -> String {
    let nearest = known.iter().map(|name| (strsim::damerau_levenshtein(given, name), name)).min();
    nearest
        .filter(|(distance, _)| *distance <= 3 && *distance < given.len())
        .map_or_else(String::new, |(_, name)| format!("; did you mean \"{name}\"?"))
}

/// The subjects that `adapters` name; all of this length if it is empty. A named adapter need not be one of a shorter length's.
fn chosen(method: &dyn Method, guests: Guests, length: Length, adapters: &[String]) -> Result<Vec<Subject>, PlanError> {
    if adapters.is_empty() {
        return Ok(method.field(guests, length));
    }
    let all = method.field(guests, Length::Full);
    let known = subject::adapters(&all);
    for given in adapters.iter().filter(|given| *given != "all") {
        if !known.contains(&given.as_str()) {
            let (suggestion, method) = (suggestion(given, &known), method.about().name);
            return Err(PlanError::Adapter { given: given.clone(), method, suggestion, known: known.join(", ") });
        }
    }
    let every = adapters.iter().any(|given| given == "all");
    let quick = length == Length::Quick;
    let wanted = |subject: &Subject| {
        // A quick look is at our own server.
        let served = !quick || subject.server.is_none_or(|server| server == Server::Nicety);
        served && (every || subject.adapter == NATIVE || adapters.contains(&subject.adapter))
    };
    Ok(all.into_iter().filter(wanted).collect())
}
