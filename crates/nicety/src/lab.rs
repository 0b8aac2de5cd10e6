//! `nicety lab`: wires the lab's methods to the command line.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nicety_host::did_you_mean;
use nicety_lab::host::Host;
use nicety_lab::method;
use nicety_lab::methods::{self, Length, Method, NOT_YET, Opening};
use nicety_lab::number;
use nicety_lab::progress::Progress;
use nicety_lab::real::own::Own;
use nicety_lab::report;
use nicety_lab::statistics::Estimate;
use nicety_lab::study::diff::{self, Verdict};
use nicety_lab::study::{self, End, Head, Journal, Lock, Options, Plan, PlanError, Study, journal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::cli::{self, Lab, LabCommand, LabRun};
use crate::compare::{absolute, program, while_stoppable};
use crate::exit::{Exit, Failure};
use crate::output;

/// Runs it.
pub fn run(args: &Lab) -> Result<(), Failure> {
    match &args.what {
        LabCommand::List => output::print(&list()),
        LabCommand::Run(args) => measure(args),
        LabCommand::Diff { first, second } => compared(first, second),
        LabCommand::Report { folders } => again(folders),
    }
}

/// A method's time in one of its lengths.
fn time(method: &dyn Method, length: Length) -> String {
    let plan = Plan::new(method, &Options { length: Some(length), ..Options::default() });
    plan.map_or_else(|_| number::NONE.to_owned(), |plan| number::span(plan.estimate()))
}

fn list() -> String {
    let head = ["NAME", "DOCUMENT", "QUICK", "USUAL", "FULL", "WHAT", "NEEDS"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let document = |number: Option<u8>| number.map_or_else(|| number::NONE.to_owned(), |number| number.to_string());
    for method in methods::ALL {
        let about = method.about();
        let [quick, usual, full] = Length::ALL.map(|length| time(*method, length));
        let number = document(about.document.map(|(number, _)| number));
        rows.push(vec![about.name.into(), number, quick, usual, full, about.line.into(), about.needs.into()]);
    }
    for (name, number, line) in NOT_YET {
        let not_yet = "not yet".to_owned();
        rows.push(vec![
            (*name).to_owned(),
            document(*number),
            not_yet,
            String::new(),
            String::new(),
            (*line).to_owned(),
        ]);
    }
    let end = "`nicety lab run NAME --quick` for a first look; `--dry-run` says what would run. `nicety compare` is the short default.\n";
    output::columns(&rows) + "\n" + end
}

/// The method of this name.
fn known(name: &str) -> Result<&'static dyn Method, Failure> {
    if let Some(method) = methods::find(name) {
        return Ok(method);
    }
    if NOT_YET.iter().any(|(not_yet, ..)| *not_yet == name) {
        return Err(Failure::new(
            Exit::Missing,
            format!("{name}: not yet; `nicety lab list` names the methods that run"),
        ));
    }
    let names = || methods::ALL.iter().map(|method| method.about().name);
    let (meant, all) = (did_you_mean(name, names()), names().collect::<Vec<_>>().join(", "));
    Err(Failure::new(Exit::Usage, format!("there is no method {name:?}{meant} (there are: {all})")))
}

/// A person's own guest. Its files must be there before anything is laid.
fn own(args: &LabRun) -> Result<Option<Own>, Failure> {
    let Some((image, user)) = args.image.as_ref().zip(args.ssh.clone()) else { return Ok(None) };
    let found = |option: &str, path: &Path| match std::fs::File::open(path) {
        Ok(file) if file.metadata().is_ok_and(|data| data.is_dir()) => {
            Err(Failure::new(Exit::Usage, format!("{option} {}: it is a folder, not a file", path.display())))
        }
        Ok(_) => std::path::absolute(path).map_err(Failure::with(Exit::Usage)),
        Err(error) => Err(Failure::new(Exit::Usage, format!("{option} {}: {error}", path.display()))),
    };
    let key = args.key.as_deref().map(|key| found("--key", key)).transpose()?;
    Ok(Some(Own { image: found("--image", image)?, user, key }))
}

fn options(args: &LabRun) -> Result<Options, Failure> {
    let guests = args.guests.map(|guests| match guests {
        cli::Guests::Embedded => method::Guests::Embedded,
        cli::Guests::Qemu => method::Guests::Qemu,
        cli::Guests::Uml => method::Guests::Uml,
    });
    let length = if args.quick { Some(Length::Quick) } else { args.full.then_some(Length::Full) };
    let (adapters, seconds, repeat) = (args.adapters.clone(), args.seconds, args.repeat);
    let own = own(args)?;
    Ok(Options { guests, adapters, length, seconds, repeat, confidence: args.confidence, seed: args.seed, own })
}

fn unplanned(error: PlanError) -> Failure {
    Failure::new(Exit::Usage, error)
}

/// The command that measures a plan again.
fn command(plan: &Plan, options: &Options) -> String {
    let mut words = format!("nicety lab run {} --guests {}", plan.method, plan.guests);
    let mut add = |word: String| words.extend([" ", &word]);
    match plan.length {
        Length::Quick => add("--quick".to_owned()),
        Length::Usual => {}
        Length::Full => add("--full".to_owned()),
    }
    if !options.adapters.is_empty() {
        add(format!("--adapters {}", options.adapters.join(",")));
    }
    if let Some(seconds) = options.seconds {
        add(format!("--seconds {seconds}"));
    }
    if let Some(Own { image, user, key }) = &options.own {
        add(format!("--image {} --ssh {user}", image.display()));
        key.iter().for_each(|key| add(format!("--key {}", key.display())));
    }
    add(format!("--repeat {}", plan.repeat));
    if let Some(share) = plan.confidence {
        add(format!("--confidence {}%", share * 100.0));
    }
    add(format!("--seed {}", plan.seed));
    words
}

fn plan_text(method: &dyn Method, plan: &Plan) -> String {
    let about = method.about();
    let mut text = format!("{}: {}\n", about.name, about.line);
    let rows: Vec<String> = plan.subjects.iter().map(ToString::to_string).collect();
    let image =
        plan.own.as_ref().map_or_else(String::new, |own| format!(", {} as {} by ssh", own.image.display(), own.user));
    text += &format!("guests    {}{image}; {}\nrows      {}\n", plan.guests, about.needs, rows.join(", "));
    for load in &plan.loads {
        text += &format!("load      {}: {}, {} s\n", load.name, load.title, load.seconds);
        for command in &load.commands {
            text += &format!("            {command}\n");
        }
    }
    let disk = if about.disk_bytes == 0 { "no more".to_owned() } else { output::size(about.disk_bytes) };
    text += &format!("rounds    {} from seed {}\ntime      {}\n", plan.repeat, plan.seed, plan.announcement());
    text + &format!("disk      {disk} under the cache, once, beside the guests' own; results: about 1 kB a run\n")
}

fn measure(args: &LabRun) -> Result<(), Failure> {
    let method = known(&args.method)?;
    let options = options(args)?;
    let plan = Plan::new(method, &options).map_err(unplanned)?;
    if args.dry_run {
        return output::print(&plan_text(method, &plan));
    }
    let cancel = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&cancel)).map_err(Failure::with(Exit::Failed))?;
    }
    let command = command(&plan, &options);
    let _lock = Lock::take(&command).map_err(Failure::with(Exit::Failed))?;
    let parent = args.resume.as_ref().unwrap_or(&args.report);
    let folder = parent.join(method.about().name);
    let failed = Failure::with::<journal::JournalError>(Exit::Failed);
    let resumed = match args.resume {
        Some(_) => Some(Journal::resume(&folder, &options).map_err(|error| Failure::new(Exit::Usage, error))?),
        None => {
            let taken = || journal::JournalError::Taken(folder.clone(), parent.clone());
            if folder.join(journal::HEAD).exists() {
                return Err(failed(taken()));
            }
            None
        }
    };
    report::study::check(parent, method.about().name).map_err(Failure::with(Exit::Failed))?;
    let path = std::env::current_exe();
    let path =
        path.map_err(|error| Failure::new(Exit::Missing, format!("this program cannot find itself: {error}")))?;
    let program = program(path);
    let whole = resumed.as_ref().map_or(&plan, |journal| &journal.study.head.plan);
    let mut say = |line: &str| output::tell(line);
    let opened = while_stoppable(&cancel, || method.open(Opening { plan: whole, program: &program, say: &mut say }));
    let mut rig = opened.map_err(|error| {
        // After Ctrl-C an incomplete guest is an interruption, not a missing program.
        let stopped = cancel.load(Ordering::Relaxed);
        let (exit, why) =
            if stopped { (Exit::Interrupted, "stopped".to_owned()) } else { (Exit::Missing, error.to_string()) };
        Failure::new(exit, format!("{}: {why}", method.about().name))
    })?;
    let mut journal = match resumed {
        Some(journal) => journal,
        None => Journal::begin(&folder, parent, head(&command, &options, plan)).map_err(&failed)?,
    };
    journal.note(rig.notes()).map_err(&failed)?;
    let plan = &journal.study.head.plan;
    if (plan.repeat as usize) < nicety_lab::statistics::RUNS_FOR_INTERVAL {
        let rounds = output::count(plan.repeat.into(), "round");
        output::tell(format_args!("note: {rounds}: fewer than 7 give no 95 % interval"));
    }
    if !journal.study.head.optimised {
        output::tell("note: this nicety was built without optimisation: its figures say nothing about its speed");
    }
    let kept = journal.study.runs.len();
    if kept > 0 {
        output::tell(format_args!("there already: {}", output::count(kept as u64, "run")));
    }
    output::tell(format_args!("{}", plan.announcement()));
    let mut progress = Progress::stderr();
    let end = study::run(method, rig.as_mut(), &mut journal, &mut progress, &cancel);
    progress.finish();
    // Guests end before any further message, after success and failure.
    drop(rig);
    let written = write_pages(&journal.study, &folder, parent);
    let printed = output::print(&report::study::table(&journal.study));
    let end = end.map_err(Failure::with(Exit::Failed))?;
    written?;
    printed?;
    ended(&end, method, &journal.study, parent)
}

fn head(command: &str, options: &Options, plan: Plan) -> Head {
    Head {
        format: journal::FORMAT.to_owned(),
        version: journal::VERSION,
        command: command.to_owned(),
        options: options.clone(),
        plan,
        host: Host::here(),
        optimised: !cfg!(debug_assertions),
        notes: Vec::new(),
    }
}

fn write_pages(study: &Study, folder: &Path, parent: &Path) -> Result<(), Failure> {
    report::study::write(study, folder).map_err(Failure::with(Exit::Failed))?;
    report::study::write_front(parent, &studies_in(parent)).map_err(Failure::with(Exit::Failed))
}

/// The studies of a report's folder, each with its own folder.
fn studies_in(parent: &Path) -> Vec<(PathBuf, Study)> {
    let studies = report::study::studies(parent).into_iter();
    studies.map(|study| (parent.join(&study.head.plan.method), study)).collect()
}

/// Says how it ended, and where the report is.
fn ended(end: &End, method: &dyn Method, study: &Study, parent: &Path) -> Result<(), Failure> {
    let (name, index) = (method.about().name, parent.join(method.about().name).join("index.html"));
    output::print(&format!("\nReport: {}\n", absolute(&index)))?;
    let failed = match end {
        End::Stopped => {
            let runs = output::count(study.runs.len() as u64, "run");
            let go_on = format!("go on with: nicety lab run {name} --resume {}", parent.display());
            return Err(Failure::new(Exit::Interrupted, format!("stopped; kept: {runs}; {go_on}")));
        }
        End::Done { failed } => *failed,
        End::Confident { after, failed } => {
            output::tell(format_args!(
                "the intervals are as narrow as asked after {}",
                output::count((*after).into(), "round")
            ));
            *failed
        }
        End::NotConfident { wide, failed } => {
            output::tell(format_args!("--confidence is not reached: {} are wider: {}", wide.len(), wide.join("; ")));
            *failed
        }
    };
    match failed {
        0 => Ok(()),
        _ => Err(Failure::new(
            Exit::Failed,
            format!("{} failed; the report says why", output::count(failed as u64, "run")),
        )),
    }
}

/// Makes all pages of these folders again, and the page in front of them in the first.
fn again(folders: &[PathBuf]) -> Result<(), Failure> {
    let mut studies = Vec::new();
    for folder in folders {
        let of_method = folder.join(journal::HEAD).exists();
        let read = read(folder)?.into_iter();
        studies.extend(
            read.map(|study| (if of_method { folder.clone() } else { folder.join(&study.head.plan.method) }, study)),
        );
    }
    for (folder, study) in &studies {
        report::study::write(study, folder).map_err(Failure::with(Exit::Failed))?;
    }
    // A method's folder has a page of its own.
    let first = folders.first().map_or(Path::new("."), PathBuf::as_path);
    let is_method = first.join(journal::HEAD).exists();
    let place = if is_method {
        std::path::absolute(first).ok().and_then(|path| path.parent().map(Path::to_owned))
    } else {
        None
    };
    let place = place.unwrap_or_else(|| first.to_owned());
    report::study::write_front(&place, &studies).map_err(Failure::with(Exit::Failed))?;
    output::print(&format!("Report: {}\n", absolute(&place.join("index.html"))))
}

/// The studies of a report's folder, or the one of a method's folder.
pub fn read(folder: &Path) -> Result<Vec<Study>, Failure> {
    let failed = Failure::with::<journal::JournalError>(Exit::Failed);
    if folder.join(journal::HEAD).exists() {
        return Ok(vec![Study::read(folder).map_err(failed)?]);
    }
    let studies = report::study::studies(folder);
    if studies.is_empty() { Err(failed(journal::JournalError::Nothing(folder.to_owned()))) } else { Ok(studies) }
}

/// Two results side by side.
fn compared(first: &Path, second: &Path) -> Result<(), Failure> {
    let (firsts, seconds) = (read(first)?, read(second)?);
    let (mut rows, mut worse, mut methods) = (Vec::new(), 0, 0);
    let head = ["METHOD", "LOAD", "FIGURE", "ROW", "FIRST", "SECOND", "RATIO", "VERDICT"];
    rows.push(head.map(str::to_owned).to_vec());
    for one in &firsts {
        let Some(two) = seconds.iter().find(|two| two.head.plan.method == one.head.plan.method) else { continue };
        let Some(method) = methods::find(&one.head.plan.method) else { continue };
        methods += 1;
        for note in diff::conditions(one, two) {
            output::tell(format_args!("note: {}: {note}", method.about().name));
        }
        for line in diff::diff(method, one, two) {
            worse += u64::from(line.verdict == Verdict::Worse);
            let shown = |of: Option<Estimate>| {
                of.map_or(number::NONE.to_owned(), |of| number::estimate(of.median, of.interval.as_ref()))
            };
            let ratio = line.ratio.map_or(number::NONE.to_owned(), |ratio| {
                let range = number::ratio_range(&ratio).map_or(String::new(), |range| format!(" [{range}]"));
                number::ratio(&ratio) + &range
            });
            rows.push(vec![
                method.about().name.to_owned(),
                line.load,
                format!("{}, {}", line.figure.title, line.figure.unit),
                line.subject.to_string(),
                shown(line.medians.0),
                shown(line.medians.1),
                ratio,
                line.verdict.title().to_owned(),
            ]);
        }
    }
    if methods == 0 {
        let why = format!("{} and {} have no method in common", first.display(), second.display());
        return Err(Failure::new(Exit::Failed, why));
    }
    output::print(
        &(output::columns(&rows)
            + "\nRATIO is the second's median by the first's. Of twenty intervals one may miss.\n"),
    )?;
    match worse {
        0 => Ok(()),
        _ => Err(Failure::new(Exit::Worse, format!("{} worse", output::count(worse, "figure")))),
    }
}
