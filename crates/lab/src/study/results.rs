//! A study's folder: `lab.json`, its head, written at the beginning; and `runs.jsonl`, a line for each run, written when the run ends
//! (docs/results-format.md). An interruption loses at most the run in progress.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use nicety_guests::Accel;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::here::{self, Here};
use super::options::Options;
use crate::folder::{self, ReportError};
use crate::host::{Difference, Host};
use crate::number;
use crate::plan::{Item, Length, Plan};
use crate::record::RunRecord;
use crate::subject::NATIVE;

/// The name of the format, the first member of `lab.json`.
pub const FORMAT: &str = folder::STUDY;
/// The version that this program writes and reads.
pub const VERSION: u32 = 1;
/// The head's file.
pub const HEAD: &str = "lab.json";
/// The runs' file.
pub const RUNS: &str = "runs.jsonl";

/// Digits of a digest in a message.
const SHOWN_DIGITS: usize = 12;

/// The head of a study: how it is measured, and where.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// The command that measures it again.
    pub command: String,
    /// The person's options.
    pub options: Options,
    /// The plan.
    pub plan: Plan,
    /// The host at the beginning.
    pub host: Host,
    /// Whether Nicety was built with optimisation. Figures without it say little.
    pub optimised: bool,
    /// The accelerator of guests in QEMU: `kvm` or `tcg`. None: there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<String>,
    /// SHA-256 of the programs at the beginning, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub programs: BTreeMap<String, String>,
    /// Facts about guests and measuring, a sentence each.
    pub notes: Vec<String>,
}

impl Head {
    /// The first fact that is another here than at the beginning. Heads of an earlier Nicety lack some facts: the others decide.
    pub fn differs_from(&self, here: &Here) -> Option<Difference> {
        let fact = |what: &str, here: String, there: String| Difference { what: what.to_owned(), here, there };
        let has_user_space = self.plan.subjects.iter().any(|subject| subject.driver.is_some());
        let programs = self.programs.iter().filter(|(name, _)| has_user_space || *name != "nicety-uio");
        let mut known = programs.filter_map(|(name, there)| Some((name, here.programs.get(name)?, there)));
        if let Some((name, here, there)) = known.find(|(_, here, there)| here != there) {
            let shown = |digest: &str| digest.chars().take(SHOWN_DIGITS).collect();
            return Some(fact(&format!("program {name} (its SHA-256)"), shown(here), shown(there)));
        }
        if here.optimised != self.optimised {
            let built =
                |optimised: bool| if optimised { "with optimisation" } else { "without optimisation" }.to_owned();
            return Some(fact("build", built(here.optimised), built(self.optimised)));
        }
        if let Some(difference) = here.host.differs_from(&self.host) {
            return Some(difference);
        }
        let (here, there) = (here.host.cores, self.host.cores);
        let what = "number of processors that this program may use";
        (here != there).then(|| fact(what, here.to_string(), there.to_string()))
    }
}

/// A study as it is on disk.
#[derive(Debug, Clone, PartialEq)]
pub struct Study {
    /// Its head.
    pub head: Head,
    /// Its runs so far, in their order.
    pub runs: Vec<RunRecord>,
}

/// The reason why a study cannot be kept, read or resumed.
#[derive(Debug, Error)]
pub enum ResultsError {
    /// The folder has a study already.
    #[error("{0} has results already: go on with --resume {1}, or name another folder with --report DIR")]
    Taken(PathBuf, PathBuf),
    /// There is nothing to resume or read.
    #[error("{0} has no results of a lab; `nicety lab run METHOD --report DIR` writes some into DIR")]
    Nothing(PathBuf),
    /// A file is not of this format, or of another version.
    #[error("{path}: {why}")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The fault and its remedy.
        why: String,
    },
    /// The results of another program version.
    #[error(
        "--resume: these results are of nicety {theirs}, and this is {ours}: figures of two versions do not mix; begin again in another folder with --report DIR"
    )]
    Version {
        /// The version in the head.
        theirs: String,
        /// This program's.
        ours: String,
    },
    /// Other options than those of the beginning.
    #[error(
        "--resume: {option} {given} differs from the beginning, which had {begun}: leave the option out, or begin again in another folder with --report DIR"
    )]
    Options {
        /// The option.
        option: &'static str,
        /// The given value.
        given: String,
        /// The value at the beginning.
        begun: String,
    },
    /// Another machine, program or accelerator than at the beginning.
    #[error(
        "--resume: the {what} was {begun} at the beginning, and is {now} here: figures of both do not mix; go on as it was, or begin again in another folder with --report DIR"
    )]
    Elsewhere {
        /// The fact that differs.
        what: String,
        /// The fact at the beginning.
        begun: String,
        /// The fact here.
        now: String,
    },
    /// No room on the disk.
    #[error(
        "there is no disk space left for {0}; what was measured before is kept: free some, then go on with --resume"
    )]
    NoSpace(PathBuf),
    /// Any other error.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

impl From<Difference> for ResultsError {
    fn from(difference: Difference) -> ResultsError {
        let Difference { what, here: now, there: begun } = difference;
        ResultsError::Elsewhere { what, begun, now }
    }
}

impl ResultsError {
    fn of(path: &Path, error: io::Error) -> ResultsError {
        let path = path.to_owned();
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => ResultsError::NoSpace(path),
            _ => ResultsError::File { path, error },
        }
    }
}

impl Study {
    /// Reads the study in `folder`. A last line that an interruption left incomplete counts as not there.
    ///
    /// # Errors
    /// There is none, or it is of another format or version.
    pub fn read(folder: &Path) -> Result<Study, ResultsError> {
        let path = folder.join(HEAD);
        let text = fs::read_to_string(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => ResultsError::Nothing(folder.to_owned()),
            _ => ResultsError::of(&path, error),
        })?;
        let head = parse_head(&text).map_err(|why| ResultsError::Foreign { path, why })?;
        let path = folder.join(RUNS);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            read => read.map_err(|error| ResultsError::of(&path, error))?,
        };
        let mut runs = Vec::new();
        for (number, line) in (1..).zip(whole_lines(&text).lines()) {
            let wrong = |error: serde_json::Error| ResultsError::Foreign {
                path: path.clone(),
                why: format!("line {number} is no run ({error}): remove the line, and the others count"),
            };
            runs.push(serde_json::from_str(line).map_err(wrong)?);
        }
        Ok(Study { head, runs })
    }

    /// Runs of the plan that are not there yet, in their order.
    pub fn left(&self) -> Vec<Item> {
        let done: HashSet<Item> = self.runs.iter().filter(|run| !run.discarded).map(RunRecord::item).collect();
        self.head.plan.items().into_iter().filter(|item| !done.contains(item)).collect()
    }

    /// The runs that are left and their time, for the person who waits: a sentence.
    pub fn announcement(&self) -> String {
        let (all, left) = (self.head.plan.items().len(), self.left().len());
        match left {
            0 => format!("all {all} runs are there"),
            _ if left == all => self.head.plan.announcement(),
            _ => {
                let most = if self.head.plan.confidence.is_some() { "at most " } else { "" };
                let time = number::span(self.head.plan.estimate_of(left));
                format!("{most}{left} of {all} runs are left, which take about {time} once the guests have started")
            }
        }
    }

    /// Reads the study in `folder`, to go on with it.
    ///
    /// # Errors
    /// There is none, it is of another version, machine or program, or `options` say something else than those of the beginning.
    pub fn resumable(folder: &Path, options: &Options, here: &Here) -> Result<Study, ResultsError> {
        let study = Study::read(folder)?;
        let ours = nicety_version::BUILD;
        if study.head.host.nicety_version != ours {
            let theirs = study.head.host.nicety_version;
            return Err(ResultsError::Version { theirs, ours: ours.to_owned() });
        }
        same(options, &study.head)?;
        study.head.differs_from(here).map_or(Ok(study), |difference| Err(difference.into()))
    }

    /// Rounds that were begun.
    pub fn rounds(&self) -> u32 {
        self.runs.iter().map(|run| run.round.saturating_add(1)).max().unwrap_or(0)
    }

    /// Runs that count: neither repeated nor failed.
    pub fn counted(&self) -> impl Iterator<Item = &RunRecord> {
        self.runs.iter().filter(|run| !run.discarded && run.failure.is_none())
    }

    /// Runs that failed.
    pub fn failed(&self) -> impl Iterator<Item = &RunRecord> {
        self.runs.iter().filter(|run| !run.discarded && run.failure.is_some())
    }
}

/// The text up to its last newline.
fn whole_lines(text: &str) -> &str {
    text.rfind('\n').and_then(|end| text.get(..=end)).unwrap_or_default()
}

fn parse_head(text: &str) -> Result<Head, String> {
    #[derive(Deserialize)]
    struct Begin {
        format: String,
        version: u32,
    }
    let foreign = "this is no lab.json of nicety".to_owned();
    let begin: Begin = serde_json::from_str(text).map_err(|_| foreign.clone())?;
    if begin.format != FORMAT {
        return Err(foreign);
    }
    if begin.version != VERSION {
        let Begin { version, .. } = begin;
        return Err(format!(
            "results of version {version}, and this program reads version {VERSION}: the nicety that wrote them reads them"
        ));
    }
    serde_json::from_str(text).map_err(|error| format!("the head cannot be read: {error}"))
}

/// A study that is being made: its file is open for the next run.
#[derive(Debug)]
pub struct Results {
    folder: PathBuf,
    file: File,
    /// The study so far.
    pub study: Study,
}

impl Results {
    /// Begins a study in `folder`, which is made if it does not exist.
    ///
    /// # Errors
    /// The folder has one already, or cannot be written.
    pub fn begin(folder: &Path, parent: &Path, head: Head) -> Result<Results, ResultsError> {
        if folder.join(HEAD).exists() || folder.join(RUNS).exists() {
            return Err(ResultsError::Taken(folder.to_owned(), parent.to_owned()));
        }
        fs::create_dir_all(folder).map_err(|error| ResultsError::of(folder, error))?;
        let path = folder.join(RUNS);
        let file = File::options().create_new(true).append(true).open(&path);
        let file = file.map_err(|error| ResultsError::of(&path, error))?;
        let results = Results { folder: folder.to_owned(), file, study: Study { head, runs: Vec::new() } };
        results.write_head()?;
        Ok(results)
    }

    /// Goes on with the study in `folder`.
    ///
    /// # Errors
    /// Those of [`Study::resumable`], or the folder cannot be written.
    pub fn resume(folder: &Path, options: &Options, here: &Here) -> Result<Results, ResultsError> {
        let study = Study::resumable(folder, options, here)?;
        let path = folder.join(RUNS);
        let open = || {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let file = File::options().create(true).append(true).open(&path)?;
            // The next line must not continue a torn one.
            file.set_len(whole_lines(&text).len() as u64)?;
            Ok(file)
        };
        let file = open().map_err(|error| ResultsError::of(&path, error))?;
        Ok(Results { folder: folder.to_owned(), file, study })
    }

    /// Checks that guests run as at the beginning, when the method's rig knows how they do.
    ///
    /// # Errors
    /// They do not.
    pub fn same_accelerator(&self, now: Option<Accel>) -> Result<(), ResultsError> {
        let now = now.map(here::accelerator);
        match self.study.head.accelerator.as_deref().zip(now) {
            Some((begun, now)) if begun != now => Err(ResultsError::Elsewhere {
                what: "accelerator of QEMU's guests".to_owned(),
                begun: begun.to_owned(),
                now: now.to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Keeps a run: when this returns, it is on the disk.
    ///
    /// # Errors
    /// It cannot be written; the runs before it are.
    pub fn keep(&mut self, record: RunRecord) -> Result<(), ResultsError> {
        let path = self.folder.join(RUNS);
        let line = serde_json::to_string(&record).map_err(|error| ResultsError::of(&path, error.into()))? + "\n";
        let begin = self.file.metadata().map(|data| data.len());
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // Half a line may be there. Reading leaves it out too, if it cannot be cut off.
            let _ = begin.and_then(|length| self.file.set_len(length));
            return Err(ResultsError::of(&path, error));
        }
        self.study.runs.push(record);
        Ok(())
    }

    /// Adds facts that the head does not have yet. Those of the beginning stay: the runs before are of them.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn note(&mut self, notes: Vec<String>) -> Result<(), ResultsError> {
        let known = &mut self.study.head.notes;
        let before = known.len();
        for note in notes {
            if !known.contains(&note) {
                known.push(note);
            }
        }
        if known.len() == before { Ok(()) } else { self.write_head() }
    }

    fn write_head(&self) -> Result<(), ResultsError> {
        let path = self.folder.join(HEAD);
        let text = serde_json::to_string_pretty(&self.study.head);
        let text = text.map_err(|error| ResultsError::of(&path, error.into()))? + "\n";
        folder::write(&self.folder, &[(HEAD, &text)]).map_err(|error| match error {
            ReportError::NoSpace(path) => ResultsError::NoSpace(path),
            other => ResultsError::Foreign { path, why: other.to_string() },
        })
    }
}

/// Checks that given options are those of the beginning.
fn same(given: &Options, head: &Head) -> Result<(), ResultsError> {
    let Options { guests, adapters, loads, length, seconds, repeat, confidence, seed, own } = given;
    let (begun, plan) = (&head.options, &head.plan);
    let word = |length: Length| format!("{length:?}").to_lowercase();
    let said = |value: Option<String>| value.unwrap_or_else(|| "none".to_owned());
    let list = |names: &[String]| if names.is_empty() { "none".to_owned() } else { names.join(",") };
    // The order of names plans nothing, and the row `native` is always there.
    let set = |names: &[String]| {
        let mut names: Vec<String> = names.to_vec();
        names.sort();
        names.dedup();
        if names.len() > 1 {
            names.retain(|name| name != NATIVE);
        }
        names
    };
    let is_same = set(adapters) == set(&begun.adapters);
    let percent = |share: f64| format!("{}%", share * 100.0);
    let image = |own: &crate::method::Own| {
        let key = own.key.as_ref().map_or("without --key".to_owned(), |key| format!("with --key {}", key.display()));
        format!("{} --ssh {} {key}", own.image.display(), own.user)
    };
    let differences = [
        ("--guests", guests.map(|guests| guests.to_string()), plan.guests.to_string()),
        ("--adapters", (!adapters.is_empty() && !is_same).then(|| list(adapters)), list(&begun.adapters)),
        ("--loads", (!loads.is_empty() && set(loads) != set(&begun.loads)).then(|| list(loads)), list(&begun.loads)),
        ("--quick or --full:", length.map(word), word(plan.length)),
        ("--seconds", seconds.map(|n| n.to_string()), said(begun.seconds.map(|n| n.to_string()))),
        ("--repeat", repeat.map(|n| n.to_string()), plan.repeat.to_string()),
        ("--confidence", confidence.map(percent), said(begun.confidence.map(percent))),
        ("--image", own.as_ref().map(image), said(begun.own.as_ref().map(image))),
        ("--seed", seed.map(|n| n.to_string()), plan.seed.to_string()),
    ];
    for (option, given, begun) in differences {
        if let Some(given) = given.filter(|given| *given != begun) {
            return Err(ResultsError::Options { option, given, begun });
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "results_test.rs"]
pub(crate) mod tests;
