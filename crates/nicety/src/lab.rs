//! `nicety lab`: wires the lab's methods to the command line.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nicety_guests::Accel;
use nicety_host::did_you_mean;
use nicety_lab::folder::ReportError;
use nicety_lab::method::{self, Own};
use nicety_lab::methods::{self, Method, Opening};
use nicety_lab::number;
use nicety_lab::plan::{Length, Plan};
use nicety_lab::progress::Progress;
use nicety_lab::report;
use nicety_lab::study::diff;
use nicety_lab::study::figures;
use nicety_lab::study::here::{self, Here};
use nicety_lab::study::parts;
use nicety_lab::study::{self, End, Head, Lock, Options, PlanError, Results, ResultsError, Study, results};
use nicety_lab::subject::Subject;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::cli::{self, Lab, LabCommand, LabRun};
use crate::compare::{absolute, program, while_stoppable};
use crate::exit::{Exit, Failure};
use crate::output;

/// Intervals that are named which are wider than asked.
const NAMED_WIDE: usize = 8;

/// Runs it.
pub fn run(args: &Lab) -> Result<(), Failure> {
    match &args.what {
        LabCommand::List => output::print(&list(output::terminal_columns())),
        LabCommand::Run(args) => measure(args),
        LabCommand::Diff { first, second } => compared(first, second),
        LabCommand::Report { folders } => again(folders),
    }
}

/// A method's time in one of its lengths.
fn time(method: &dyn Method, length: Length) -> String {
    let plan = Options { length: Some(length), ..Options::default() }.plan(method);
    plan.map_or_else(|_| number::NONE.to_owned(), |plan| number::span(plan.estimate()))
}

/// The methods, a line each. On a terminal that is too narrow for these lines, what a method measures and needs stands below its line.
fn list(columns: Option<usize>) -> String {
    let head = ["NAME", "DOCUMENT", "QUICK", "USUAL", "FULL", "WHAT", "NEEDS"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let document = |number: Option<u8>| number.map_or_else(|| number::NONE.to_owned(), |number| number.to_string());
    for method in methods::ALL {
        let about = method.about();
        let [quick, usual, full] = Length::ALL.map(|length| time(*method, length));
        let number = document(about.document.map(|(number, _)| number));
        rows.push(vec![about.name.into(), number, quick, usual, full, about.line.into(), about.needs.into()]);
    }
    let end = "`nicety lab run NAME --quick` for a first look; `--dry-run` says what would run. `nicety compare` is the short default.\n";
    let table = output::columns(&rows);
    match columns.filter(|columns| table.lines().any(|line| line.chars().count() > *columns)) {
        None => table + "\n" + end,
        Some(columns) => folded(&rows, columns) + "\n" + &output::wrapped(end, columns, ""),
    }
}

/// The rows of the list with their last two cells below them.
fn folded(rows: &[Vec<String>], columns: usize) -> String {
    const SHORT: usize = 5;
    let short: Vec<Vec<String>> = rows.iter().map(|row| row.iter().take(SHORT).cloned().collect()).collect();
    let mut text = String::new();
    for (at, (line, row)) in output::columns(&short).lines().zip(rows).enumerate() {
        text += &format!("{line}\n");
        // The first row is the head.
        for (label, cell) in ["", "needs: "].iter().zip(row.iter().skip(SHORT)).filter(|_| at > 0) {
            text += &output::wrapped(&format!("{label}{cell}"), columns, "    ");
        }
    }
    text
}

/// The method of this name.
fn known(name: &str) -> Result<&'static dyn Method, Failure> {
    if let Some(method) = methods::find(name) {
        return Ok(method);
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
    let image = found("--image", image)?;
    match nicety_guests::disk_format(&image) {
        Ok(Some(_)) => Ok(Some(Own { image, user, key })),
        Ok(None) => {
            let why = "neither a qcow2 image nor a raw disk with a boot sector";
            let remedy = "`qemu-img convert -O qcow2 IMAGE NEW` makes a qcow2 image of a VMDK, VDI or VHDX";
            Err(Failure::new(Exit::Usage, format!("--image {}: {why}; {remedy}", image.display())))
        }
        Err(error) => Err(Failure::new(Exit::Usage, format!("--image {}: {error}", image.display()))),
    }
}

fn options(args: &LabRun) -> Result<Options, Failure> {
    let guests = args.guests.map(|guests| match guests {
        cli::Guests::Embedded => method::Guests::Embedded,
        cli::Guests::Qemu => method::Guests::Qemu,
        cli::Guests::Uml => method::Guests::Uml,
    });
    let length = if args.quick { Some(Length::Quick) } else { args.full.then_some(Length::Full) };
    let (adapters, seconds, repeat) = (args.adapters.clone(), args.seconds, args.repeat);
    let (own, loads) = (own(args)?, args.loads.clone());
    Ok(Options { guests, adapters, loads, length, seconds, repeat, confidence: args.confidence, seed: args.seed, own })
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
    if !options.loads.is_empty() {
        add(format!("--loads {}", options.loads.join(",")));
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

/// The plan. `announcement` says how long the runs take that are to be made, `missing` why rows of a driver in user space are left out.
fn plan_text(method: &dyn Method, plan: &Plan, announcement: &str, missing: Option<&str>) -> String {
    let about = method.about();
    let mut text = format!("{}: {}\n", about.name, about.line);
    let left_out = |subject: &Subject| missing.is_some() && subject.driver.is_some();
    let row = |subject: &Subject| format!("{subject}{}", if left_out(subject) { " (left out)" } else { "" });
    let rows: Vec<String> = plan.subjects.iter().map(row).collect();
    let image =
        plan.own.as_ref().map_or_else(String::new, |own| format!(", {} as {} by ssh", own.image.display(), own.user));
    let kernel = match plan.guests {
        _ if plan.own.is_some() => "",
        method::Guests::Embedded => "",
        method::Guests::Qemu => ", Debian's kernel 6.12",
        method::Guests::Uml => ", Debian's kernel built as a program",
    };
    let memory = about.memory_mib.filter(|_| !kernel.is_empty());
    let memory = memory.map_or_else(String::new, |mib| format!(", {mib} MiB each"));
    text +=
        &format!("guests    {}{image}{kernel}{memory}; {}\nrows      {}\n", plan.guests, about.needs, rows.join(", "));
    if let Some(why) = missing {
        text += &format!("left out  {why}\n");
    }
    for load in &plan.loads {
        text += &format!("load      {}: {}, {} s\n", load.name, load.title, load.seconds);
        for command in &load.commands {
            text += &format!("            {command}\n");
        }
    }
    let disk = match method.disk_bytes(plan) {
        0 => "nothing is laid".to_owned(),
        bytes => format!("{} with guests and programs, which are laid once", output::size(bytes)),
    };
    let results = output::size(plan.items().len() as u64 * 1_000);
    text += &format!("rounds    {} from seed {}\ntime      {}\n", plan.repeat, plan.seed, announcement);
    text + &format!("disk      {disk}; results: about {results}\n")
}

/// The folders of a study.
struct Place {
    /// The report's, with the page in front.
    parent: PathBuf,
    /// The method's.
    folder: PathBuf,
}

impl Place {
    /// `--report` and `--resume` name the report's folder. `--resume` may also name the method's own, as `lab diff` and `lab report` may.
    fn of(args: &LabRun, method: &dyn Method) -> Result<Place, Failure> {
        let name = method.about().name;
        let Some(given) = args.resume.as_ref().filter(|given| given.join(results::HEAD).exists()) else {
            let parent = args.resume.as_ref().unwrap_or(&args.report).clone();
            return Ok(Place { folder: parent.join(name), parent });
        };
        let unusable = |why: String| Failure::new(Exit::Usage, format!("--resume {}: {why}", given.display()));
        let of = Study::read(given).map_err(Failure::with(Exit::Usage))?.head.plan.method;
        if of != name {
            return Err(unusable(format!("these are results of {of}, not of {name}")));
        }
        let folder = std::path::absolute(given).map_err(|error| unusable(error.to_string()))?;
        // Pages in front find a method's folder by its name.
        match folder.parent().filter(|_| folder.file_name().is_some_and(|last| last == name)) {
            Some(parent) => Ok(Place { parent: parent.to_owned(), folder: folder.clone() }),
            None => Err(unusable(format!("the folder of a method has its name: call it {name}"))),
        }
    }
}

fn measure(args: &LabRun) -> Result<(), Failure> {
    let method = known(&args.method)?;
    let options = options(args)?;
    let mut plan = options.plan(method).map_err(unplanned)?;
    if args.dry_run {
        return print_plan(args, method, &options, plan);
    }
    let cancel = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&cancel)).map_err(Failure::with(Exit::Failed))?;
    }
    let command = command(&plan, &options);
    let _lock = Lock::take(&command).map_err(Failure::with(Exit::Failed))?;
    let Place { parent, folder } = &Place::of(args, method)?;
    let failed = Failure::with::<ResultsError>(Exit::Failed);
    let path = own_path()?;
    let here = this_machine(&path);
    let resumed = match args.resume {
        Some(_) => Some(Results::resume(folder, &options, &here).map_err(Failure::with(Exit::Usage))?),
        None if folder.join(results::HEAD).exists() => {
            return Err(failed(ResultsError::Taken(folder.clone(), parent.clone())));
        }
        None => None,
    };
    report::study::check(parent, folder).map_err(Failure::with(Exit::Failed))?;
    let missing = Failure::with::<nicety_guests::Error>(Exit::Missing);
    let without = match &resumed {
        Some(results) => parts::needed(&results.study.head.plan, &path).map(|()| None).map_err(missing)?,
        None => parts::leave_out(&mut plan, &path).map_err(missing)?,
    };
    if let Some(note) = &without {
        output::tell(format_args!("note: {note}"));
    }
    let program = program(path);
    let whole = resumed.as_ref().map_or(&plan, |results| &results.study.head.plan);
    let before = resumed.as_ref().map_or(&[][..], |results| results.study.runs.as_slice());
    let mut say = |line: &str| output::tell(line);
    let opened =
        while_stoppable(&cancel, || method.open(Opening { plan: whole, program: &program, before, say: &mut say }));
    let mut rig = opened.map_err(|error| {
        // After Ctrl-C an incomplete guest is an interruption, not a missing program.
        let stopped = cancel.load(Ordering::Relaxed);
        let (exit, why) =
            if stopped { (Exit::Interrupted, "stopped".to_owned()) } else { (Exit::Missing, error.to_string()) };
        Failure::new(exit, format!("{}: {why}", method.about().name))
    })?;
    let accelerator = rig.accelerator();
    let mut results = match resumed {
        Some(results) => results,
        None => Results::begin(folder, parent, head(&command, &options, plan, here, accelerator)).map_err(&failed)?,
    };
    results.same_accelerator(accelerator).map_err(Failure::with(Exit::Usage))?;
    results.note(rig.notes().into_iter().chain(without).collect()).map_err(&failed)?;
    announce(&results.study);
    let mut progress = Progress::stderr();
    let end = study::run(method, rig.as_mut(), &mut results, &mut progress, &cancel);
    progress.finish();
    // Guests end before any further message, after success and failure.
    drop(rig);
    let written = write_pages(&results.study, folder, parent);
    let printed = output::print(&report::study::table(&results.study));
    let end = end.map_err(Failure::with(Exit::Failed))?;
    written?;
    printed?;
    ended(&end, method, &results.study, folder)
}

/// Prints the runs of a plan, and what keeps it from being carried out here.
fn print_plan(args: &LabRun, method: &dyn Method, options: &Options, mut plan: Plan) -> Result<(), Failure> {
    let path = own_path()?;
    let missing = |plan: &Plan| parts::needed(plan, &path).err().map(|error| error.to_string());
    let text = match args.resume {
        Some(_) => {
            let folder = Place::of(args, method)?.folder;
            let study = Study::resumable(&folder, options, &this_machine(&path)).map_err(Failure::with(Exit::Usage))?;
            let plan = &study.head.plan;
            plan_text(method, plan, &study.announcement(), missing(plan).as_deref())
        }
        None => {
            let whole = plan.clone();
            let nothing_remains = parts::leave_out(&mut plan, &path).err().map(|error| error.to_string());
            plan_text(method, &whole, &plan.announcement(), nothing_remains.or(missing(&whole)).as_deref())
        }
    };
    output::print(&text)
}

/// Prints notes for a person before the runs begin.
fn announce(study: &Study) {
    let plan = &study.head.plan;
    if (plan.repeat as usize) < nicety_lab::statistics::RUNS_FOR_INTERVAL {
        let rounds = output::count(plan.repeat.into(), "round");
        output::tell(format_args!("note: {rounds}: fewer than 7 give no 95 % interval"));
    }
    if !study.head.optimised {
        output::tell("note: this nicety was built without optimisation: its figures say nothing about its speed");
    }
    let kept = study.runs.len();
    if kept > 0 {
        output::tell(format_args!("there already: {}", output::count(kept as u64, "run")));
    }
    output::tell(study.announcement());
}

/// This program's file.
fn own_path() -> Result<PathBuf, Failure> {
    let path = std::env::current_exe();
    path.map_err(|error| Failure::new(Exit::Missing, format!("this program cannot find itself: {error}")))
}

/// This machine and this program.
fn this_machine(path: &Path) -> Here {
    Here::now(path, !cfg!(debug_assertions))
}

fn head(command: &str, options: &Options, plan: Plan, here: Here, accelerator: Option<Accel>) -> Head {
    let Here { host, optimised, programs } = here;
    Head {
        format: results::FORMAT.to_owned(),
        version: results::VERSION,
        command: command.to_owned(),
        options: options.clone(),
        plan,
        host,
        optimised,
        accelerator: accelerator.map(here::accelerator).map(str::to_owned),
        programs,
        notes: Vec::new(),
    }
}

fn write_pages(study: &Study, folder: &Path, parent: &Path) -> Result<(), Failure> {
    let kept = |error: ReportError| {
        let again = format!("`nicety lab report {}` then makes the pages", parent.display());
        Failure::new(Exit::Failed, format!("{error}; the runs are kept: {again}"))
    };
    report::study::write(study, folder).map_err(kept)?;
    report::study::write_front(parent, &studies_in(parent)).map_err(kept)
}

/// The studies of a report's folder, each with its own folder. A line says of each that cannot be read why it is left out.
fn studies_in(parent: &Path) -> Vec<(PathBuf, Study)> {
    let (studies, errors) = sorted(report::study::all_studies(parent));
    left_out(&errors);
    studies.into_iter().map(|study| (parent.join(&study.head.plan.method), study)).collect()
}

fn sorted(read: Vec<Result<Study, ResultsError>>) -> (Vec<Study>, Vec<ResultsError>) {
    let (mut studies, mut errors) = (Vec::new(), Vec::new());
    for read in read {
        match read {
            Ok(study) => studies.push(study),
            Err(error) => errors.push(error),
        }
    }
    (studies, errors)
}

/// Names results that cannot be read.
pub fn left_out(errors: &[ResultsError]) {
    errors.iter().for_each(|error| output::tell(format_args!("left out: {error}")));
}

/// Fails if results were left out. The lines before name them.
fn complete(left_out: usize) -> Result<(), Failure> {
    match left_out {
        0 => Ok(()),
        n => Err(Failure::new(Exit::Failed, format!("{} cannot be read", output::count(n as u64, "method's result")))),
    }
}

/// Says how it ended, and where the report is.
fn ended(end: &End, method: &dyn Method, study: &Study, folder: &Path) -> Result<(), Failure> {
    let (name, index) = (method.about().name, folder.join("index.html"));
    let parent = folder.parent().unwrap_or(folder);
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
            let named = wide.iter().take(NAMED_WIDE).map(String::as_str).collect::<Vec<_>>().join("; ");
            let more = wide.len().saturating_sub(NAMED_WIDE);
            let more = if more > 0 { format!("; and {more} more") } else { String::new() };
            output::tell(format_args!("--confidence is not reached: {} are wider: {named}{more}", wide.len()));
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
    let (mut studies, mut lost) = (Vec::new(), 0);
    for folder in folders {
        let of_method = folder.join(results::HEAD).exists();
        let (read, errors) = read(folder)?;
        left_out(&errors);
        lost += errors.len();
        studies.extend(
            read.into_iter()
                .map(|study| (if of_method { folder.clone() } else { folder.join(&study.head.plan.method) }, study)),
        );
    }
    for (folder, study) in &studies {
        report::study::write(study, folder).map_err(Failure::with(Exit::Failed))?;
    }
    // A method's folder has a page of its own.
    let first = folders.first().map_or(Path::new("."), PathBuf::as_path);
    let is_method = first.join(results::HEAD).exists();
    let place = if is_method {
        std::path::absolute(first).ok().and_then(|path| path.parent().map(Path::to_owned))
    } else {
        None
    };
    let place = place.unwrap_or_else(|| first.to_owned());
    report::study::write_front(&place, &studies).map_err(Failure::with(Exit::Failed))?;
    output::print(&format!("Report: {}\n", absolute(&place.join("index.html"))))?;
    complete(lost)
}

/// The studies of a report's folder, or the one of a method's folder; and why others in it cannot be read. A folder of which nothing can
/// be read is an error.
pub fn read(folder: &Path) -> Result<(Vec<Study>, Vec<ResultsError>), Failure> {
    let failed = Failure::with::<results::ResultsError>(Exit::Failed);
    if folder.join(results::HEAD).exists() {
        return Ok((vec![Study::read(folder).map_err(failed)?], Vec::new()));
    }
    let (studies, mut errors) = sorted(report::study::all_studies(folder));
    if studies.is_empty() {
        let last = errors.pop();
        left_out(&errors);
        return Err(failed(last.unwrap_or_else(|| ResultsError::Nothing(folder.to_owned()))));
    }
    Ok((studies, errors))
}

/// Two results side by side.
fn compared(first: &Path, second: &Path) -> Result<(), Failure> {
    let ((firsts, errors), (seconds, more)) = (read(first)?, read(second)?);
    left_out(&errors);
    left_out(&more);
    for (here, there, place) in [(&firsts, &seconds, "first"), (&seconds, &firsts, "second")] {
        let alone = here.iter().filter(|one| there.iter().all(|two| two.head.plan.method != one.head.plan.method));
        alone.for_each(|one| output::tell(format_args!("note: {} is in the {place} only", one.head.plan.method)));
    }
    let (mut rows, mut worse, mut methods, mut too_few) = (Vec::new(), 0, 0, false);
    let (mut judged, mut gone) = (0, 0);
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
            worse += u64::from(line.verdict.is_worse());
            judged += u64::from(line.verdict.is_judged());
            gone += u64::from(line.is_gone());
            too_few |= line.verdict == diff::Verdict::TooFewRuns;
            let [one, two] = line.cells.each_ref().map(|cell| figures::value(cell, &line.figure));
            let ratio = line.ratio.map_or(number::NONE.to_owned(), |ratio| {
                let range = number::ratio_range(&ratio).map_or(String::new(), |range| format!(" [{range}]"));
                number::ratio(&ratio) + &range
            });
            rows.push(vec![
                method.about().name.to_owned(),
                line.load,
                format!("{}, {}", line.figure.title, line.figure.unit),
                line.subject.to_string(),
                one,
                two,
                ratio,
                line.verdict.title().to_owned(),
            ]);
        }
    }
    if methods == 0 {
        let why = format!("{} and {} have no method in common", first.display(), second.display());
        return Err(Failure::new(Exit::Failed, why));
    }
    let mut text =
        output::columns(&rows) + "\nRATIO is the second's median by the first's. Of twenty intervals one may miss.\n";
    if too_few {
        let rounds = nicety_lab::statistics::RUNS_FOR_INTERVAL;
        text += &format!("Too few runs to say: {rounds} rounds give intervals (--repeat {rounds}).\n");
    }
    output::print(&text)?;
    if worse > 0 {
        return Err(Failure::new(Exit::Worse, format!("{} worse", output::count(worse, "figure"))));
    }
    complete(errors.len() + more.len())?;
    let alone = firsts.iter().filter(|one| seconds.iter().all(|two| two.head.plan.method != one.head.plan.method));
    let missing = [(gone, "figure"), (alone.count() as u64, "method")].into_iter().find(|(count, _)| *count > 0);
    let why = match missing {
        Some((count, what)) => format!("the second result lacks {} of the first", output::count(count, what)),
        None if judged == 0 && too_few => "no figure could be judged: there are too few runs".to_owned(),
        None if judged == 0 => "no figure could be judged: neither result has one".to_owned(),
        None => return Ok(()),
    };
    Err(Failure::new(Exit::Unjudged, why))
}
