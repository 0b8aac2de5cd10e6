//! `nicety apply`, `port`, `group`, `uplink`, `class`, `export` and `save`: changes to a running daemon.

use std::collections::BTreeMap;
use std::io::{BufRead, IsTerminal};
use std::path::Path;

use nicety_control::api::{CardReset, HostText, PortValues, Problem};
use nicety_control::{self as control, Ask, AskError, Reply};
use nicety_daemon::live::Changed;
use nicety_daemon::live::plan::{Change, Kind as ChangeKind, Plan};
use nicety_daemon::whole::Whole;
use nicety_host::{Document, Form, Host, Kind, List, kind_of};
use serde_json::Value;

use crate::answer::{failure, odd};
use crate::cli::{Apply, CardChange, ChangeOptions, ClassChange, Export, ListChange, PortChange, Which};
use crate::confirm::{Answer, Guarded};
use crate::exit::{Exit, Failure};
use crate::find::{served, socket};
use crate::opens;
use crate::output;
use crate::ports::restart;
use crate::unit::{self, Lacks, Running};
use crate::warnings::pairs_of;
use crate::{save, write_back};

/// `nicety apply`.
pub fn apply(args: &Apply) -> Result<(), Failure> {
    let file = args.host.as_ref().unwrap_or(&args.file);
    // Prints all mistakes as `serve` prints them.
    let host = Host::read(file)?;
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::new(Exit::Failed, format!("{}: {error}", file.display())))?;
    let socket = match &args.control {
        Some(control) => control.clone(),
        None => served(&host)?,
    };
    let daemon = Running::at(&socket);
    let lacks = daemon.as_ref().and_then(|daemon| daemon.lacks_of_change(&before(&socket, daemon)?, &host));
    if !args.dry_run {
        opens::name_all(&socket, &host)?;
    }
    let mut text = HostText { text, path: Some(host.path.clone()), agreed: Vec::new(), cut_off: args.yes };
    let plan = match control::ask(&socket, Ask::Plan(text.clone())).map_err(failure)? {
        Reply::Plan(plan) => plan,
        other => return Err(odd(&other)),
    };
    if plan.is_empty() {
        let lacks = daemon.and_then(|daemon| daemon.lacks(&host));
        lacks.into_iter().for_each(|lacks| output::tell(format_args!("note: {}", lacks.line())));
        return output::print("nothing to change\n");
    }
    output::print(&plan.to_string())?;
    if args.dry_run {
        return lacks.map_or(Ok(()), |lacks| lacks.print());
    }
    if !args.yes {
        agree_to_loops(&loops_of(&host, &touched(&plan)))?;
    }
    let cut_off: Vec<String> = plan.cuts_off().map(ToString::to_string).collect();
    if !cut_off.is_empty() && !args.yes {
        agree(CUTS_OFF)?;
        text.agreed = cut_off;
    }
    let guarded = Guarded::begin(&args.guard)?;
    let told = tell(control::ask(&socket, guarded.ask(Ask::Apply(text))), &plan.to_string());
    end(lacks, told, guarded, &socket).map(drop)
}

/// Ends a change: reports what the daemon's unit does not allow, and takes the change back if it is to. Returns what was done.
fn end(lacks: Option<Lacks>, told: Told, guarded: Guarded, socket: &Path) -> Result<Plan, Failure> {
    let Told { answer, done } = told;
    let plan = done.as_ref().cloned().unwrap_or_default();
    let told = unit::told(lacks, done.map(|plan| waits(&plan)));
    // The address is asked in any case: the change may be in force, and the terminal may be gone.
    match (told, guarded.end(socket, answer)) {
        (Ok(()), Ok(())) => Ok(plan),
        (Err(failure), Ok(())) | (Ok(()), Err(failure)) => Err(failure),
        (Err(failure), Err(Failure { message, .. })) => {
            Err(Failure::new(failure.exit, format!("{}\n{message}", failure.message)))
        }
    }
}

/// The host that a daemon runs.
fn before(socket: &Path, daemon: &Running) -> Option<Host> {
    let Ok(Reply::Exported(exported)) = control::ask(socket, Ask::Export) else { return None };
    Host::parse_change(&exported.text, &daemon.host).ok()
}

/// The things that a change of one entry asks for and the daemon's unit does not allow.
fn lacks_of(list: List, name: &str, values: &BTreeMap<String, Value>, socket: &Path) -> Option<Lacks> {
    let daemon =
        matches!(list, List::Ports | List::Uplinks | List::FlowExports).then(|| Running::at(socket)).flatten()?;
    let before = before(socket, &daemon)?;
    let after = with_entry(&before, list, name, values, daemon.host.parent()?);
    // What is no host file, the daemon says.
    daemon.lacks_of_change(&before, &Host::parse_change(&after.text(), &daemon.host).ok()?)
}

/// A host's document with another entry, or with other values of one. Relative paths start at `dir`.
fn with_entry(before: &Host, list: List, name: &str, values: &BTreeMap<String, Value>, dir: &Path) -> Document {
    let value = |value: &Value| toml::Value::try_from(value).ok();
    let values: Vec<(String, Option<toml::Value>)> =
        values.iter().map(|(key, one)| (key.clone(), value(one))).collect();
    if before.document.has(list, name) {
        before.document.with_values(list, name, &values, dir)
    } else {
        let entry = values.iter().filter_map(|(key, value)| Some((key.clone(), value.clone()?))).collect();
        before.document.with(list, entry, dir)
    }
}

/// The uplinks and teams that a plan opens or changes, but for those that it blocks.
fn touched(plan: &Plan) -> Vec<String> {
    let is_blocked =
        |change: &Change| change.keys.iter().any(|key| key.key == BLOCKED && key.to.as_deref() == Some("true"));
    let changes = plan.changes.iter().filter(|change| matches!(change.object.as_str(), "uplink" | "team"));
    let stays = changes.filter(|change| change.kind != ChangeKind::Remove && !is_blocked(change));
    stays.filter_map(|change| change.port.clone()).collect()
}

/// The known loops that uplinks or teams of these names would close in a host.
fn loops_of(host: &Host, names: &[String]) -> Vec<String> {
    let pairs = pairs_of(host).into_iter();
    let pairs = pairs.filter(|pair| pair.is_known && pair.names.iter().any(|name| names.contains(name)));
    pairs.map(|pair| pair.sentence).collect()
}

/// Asks before a change of an uplink or of a team closes a loop. One that is told to carry frames again was blocked for a reason: it may
/// close one with each other one of its network.
fn ask_about_loops(list: List, name: &str, values: &BTreeMap<String, Value>, socket: &Path) -> Result<(), Failure> {
    if !matches!(list, List::Uplinks | List::Teams) {
        return Ok(());
    }
    let before = match control::ask(socket, Ask::Export).map_err(failure)? {
        Reply::Exported(exported) => exported.text,
        other => return Err(odd(&other)),
    };
    // What is no host file, the daemon says.
    let Ok(before) = Host::parse_change(&before, Path::new("/")) else { return Ok(()) };
    let document = with_entry(&before, list, name, values, Path::new("/"));
    let Ok(after) = Host::parse_change(&document.text(), Path::new("/")) else { return Ok(()) };
    let was_blocked = |host: &Host, name: &str| {
        let uplink = host.uplink(name).is_some_and(|uplink| uplink.blocked);
        uplink || host.team(name).is_some_and(|team| team.blocked)
    };
    // The daemon blocks what leaves a team.
    let leaves = |name: &String| {
        let [was, is] = [&before, &after].map(|host| host.uplink(name).map(|uplink| uplink.team.is_some()));
        (was, is) == (Some(true), Some(false))
    };
    let is_new = |name: &String| was_blocked(&before, name) && !was_blocked(&after, name);
    let pairs = pairs_of(&after).into_iter().filter(|pair| !pair.names.iter().any(leaves));
    let loops = pairs.filter(|pair| {
        pair.names.iter().any(is_new) || (pair.is_known && pair.names.iter().any(|changed| changed == name))
    });
    agree_to_loops(&loops.map(|pair| pair.sentence).collect::<Vec<_>>())
}

fn agree_to_loops(loops: &[String]) -> Result<(), Failure> {
    if loops.is_empty() {
        return Ok(());
    }
    output::print(&(loops.join("\n") + "\n"))?;
    agree("may make a loop")
}

/// `nicety port`.
pub fn port(change: &PortChange) -> Result<(), Failure> {
    let list = List::Ports;
    let its = |port: &str, which: &Which| socket(which, Some(port));
    match change {
        PortChange::Add { port, values, options } => add(list, port, values, options, &socket(&options.which, None)?),
        PortChange::Remove { port, origin, options } => {
            let Some(origin) = origin else { return remove(list, port, options, &its(port, &options.which)?) };
            let socket = socket(&options.which, None)?;
            if !is_made_by(port, origin, &socket)? {
                return output::print(&format!("nothing to remove: no port {port} was made by {origin}\n"));
            }
            remove(list, port, options, &socket)
        }
        PortChange::Set { port, values, options } => set(list, port, values, options, &its(port, &options.which)?),
        PortChange::Restart { port, which } => restart(port, which.host.as_deref(), which.control.as_deref()),
        PortChange::Save { port, file, which } => save::save(port, file, &its(port, which)?),
        PortChange::Restore { port, file, which } => save::restore(port, file, &its(port, which)?),
    }
}

/// Whether a daemon has this port, and it has this origin.
fn is_made_by(port: &str, origin: &str, socket: &Path) -> Result<bool, Failure> {
    match control::ask(socket, Ask::Port { name: port.to_owned() }) {
        Ok(Reply::Port(port)) => Ok(port.origin.as_deref() == Some(origin)),
        Err(AskError::Refused(problem)) if problem.status == 404 => Ok(false),
        Ok(other) => Err(odd(&other)),
        Err(error) => Err(failure(error)),
    }
}

/// `nicety group`, `nicety uplink`, `nicety team`, `nicety mirror` and the changes of `nicety flow-export`.
pub fn list(list: List, change: &ListChange) -> Result<(), Failure> {
    match change {
        ListChange::Add { name, values, options } => add(list, name, values, options, &socket(&options.which, None)?),
        ListChange::Remove { name, options } => remove(list, name, options, &socket(&options.which, None)?),
        ListChange::Set { name, values, options } => set(list, name, values, options, &socket(&options.which, None)?),
    }
}

/// `nicety class`.
pub fn class(change: &ClassChange) -> Result<(), Failure> {
    let name = match change {
        ClassChange::List(
            ListChange::Add { name, .. } | ListChange::Remove { name, .. } | ListChange::Set { name, .. },
        )
        | ClassChange::Port { name, .. } => name,
    };
    if !name.contains('/') {
        let what = format!("a class has its uplink or team before its name, such as tap0/{name}");
        return Err(Failure::new(Exit::Usage, what));
    }
    match change {
        ClassChange::List(change) => list(List::Classes, change),
        ClassChange::Port { name, port, values, options } => {
            let values = PortValues(parsed(List::Classes, values));
            made(options, &socket(&options.which, Some(port))?, (List::Classes, name), None, |cut_off| {
                Ask::SetPortTerms { class: name.clone(), port: port.clone(), values: values.clone(), cut_off }
            })
        }
    }
}

/// `nicety card`.
pub fn card(change: &CardChange) -> Result<(), Failure> {
    match change {
        CardChange::List(change) => list(List::Cards, change),
        CardChange::Reset { name, which } => {
            let name = name.clone();
            match control::ask(&socket(which, None)?, Ask::ResetCard { name }).map_err(failure)? {
                Reply::CardReset(CardReset { name }) => output::print(&format!("{name} was reset\n")),
                other => Err(odd(&other)),
            }
        }
    }
}

/// Makes a change of one entry, and writes it into the host file if requested, with what it did to other uplinks.
pub(crate) fn made(
    options: &ChangeOptions,
    socket: &Path,
    one: (List, &str),
    lacks: Option<Lacks>,
    ask: impl Fn(bool) -> Ask,
) -> Result<(), Failure> {
    let guarded = Guarded::begin(&options.guard)?;
    let told = agreed(options.yes, |cut_off| control::ask(socket, guarded.ask(ask(cut_off))))?;
    let plan = end(lacks, told, guarded, socket)?;
    if options.save { write_back::save(socket, Some((one, &plan))) } else { Ok(()) }
}

/// `nicety save`.
pub fn save_all(which: &Which) -> Result<(), Failure> {
    write_back::save(&socket(which, None)?, None)
}

fn add(
    list: List,
    name: &str,
    values: &[(String, String)],
    options: &ChangeOptions,
    socket: &Path,
) -> Result<(), Failure> {
    let mut values = parsed(list, values);
    // The uplink of a class comes first.
    for (key, part) in list.names().iter().zip(name.splitn(list.names().len(), '/')) {
        let other = values.insert((*key).to_owned(), Value::from(part));
        if let Some(other) = other.filter(|other| other != part) {
            let what = format!("it is called {name} here, and {key}={} says otherwise: leave one out", other);
            return Err(Failure::new(Exit::Usage, what));
        }
    }
    if !options.yes {
        ask_about_loops(list, name, &values, socket)?;
    }
    opens::name_entry(socket, list, name, &values)?;
    let values = PortValues(values);
    let lacks = lacks_of(list, name, &values.0, socket);
    made(options, socket, (list, name), lacks, |cut_off| Ask::Add { list, values: values.clone(), cut_off })
}

fn remove(list: List, name: &str, options: &ChangeOptions, socket: &Path) -> Result<(), Failure> {
    made(options, socket, (list, name), None, |cut_off| Ask::Remove { list, name: name.to_owned(), cut_off })
}

fn set(
    list: List,
    name: &str,
    values: &[(String, String)],
    options: &ChangeOptions,
    socket: &Path,
) -> Result<(), Failure> {
    let values = parsed(list, values);
    if !options.yes {
        ask_about_loops(list, name, &values, socket)?;
    }
    opens::name_entry(socket, list, name, &values)?;
    let values = PortValues(values);
    let lacks = lacks_of(list, name, &values.0, socket);
    made(options, socket, (list, name), lacks, |cut_off| Ask::Set {
        list,
        name: name.to_owned(),
        values: values.clone(),
        cut_off,
    })
}

/// `nicety export`.
pub fn export(Export { into, which }: &Export) -> Result<(), Failure> {
    let text = match control::ask(&socket(which, None)?, Ask::Export).map_err(failure)? {
        Reply::Exported(exported) => exported.text,
        other => return Err(odd(&other)),
    };
    let Some(file) = into else { return output::print(&text) };
    let written = Whole::begin_like(file).and_then(|whole| whole.finish(text.as_bytes()));
    written.map_err(|error| Failure::new(Exit::Failed, format!("{}: {error}", file.display())))
}

/// Values by the forms of their keys in the host file: numbers and flags as such, all others as text, quoted or not; an empty value as
/// none. The daemon answers for a key that is not known.
pub(crate) fn parsed(list: List, values: &[(String, String)]) -> BTreeMap<String, Value> {
    parsed_as(kind_of(list), values)
}

/// The same for any kind of table.
pub(crate) fn parsed_as(Kind { keys, .. }: &Kind, values: &[(String, String)]) -> BTreeMap<String, Value> {
    let one = |key: &str, text: &str| {
        let form = keys.iter().find(|known| known.name == key).map(|known| known.form);
        let plain = match form {
            _ if text.is_empty() => Some(Value::Null),
            Some(Form::Number(..)) => text.parse().ok().map(|number: u32| Value::from(number)),
            Some(Form::Flag) => text.parse().ok().map(Value::Bool),
            _ => None,
        };
        plain.unwrap_or_else(|| Value::from(text.trim_matches('"')))
    };
    values.iter().map(|(key, value)| (key.clone(), one(key, value))).collect()
}

/// Sends the request. If the daemon reports that VMs would be cut off, asks the person and sends it again. An error: nothing was done.
fn agreed(yes: bool, ask: impl Fn(bool) -> Result<Reply, AskError>) -> Result<Told, Failure> {
    match ask(yes) {
        Err(AskError::Refused(problem)) if !problem.cuts_off.is_empty() => {
            let Problem { cuts_off, .. } = *problem;
            let lines = cuts_off.join("\n") + "\n";
            output::print(&lines)?;
            agree(CUTS_OFF)?;
            Ok(tell(ask(true), &lines))
        }
        answer => Ok(tell(answer, "")),
    }
}

const CUTS_OFF: &str = "cuts VMs off";
/// The key of uplinks and teams that carry nothing.
const BLOCKED: &str = "blocked";

/// Asks the person for a yes on a terminal to a change that does this.
pub(crate) fn agree(does: &str) -> Result<(), Failure> {
    let mut input = std::io::stdin().lock();
    if !std::io::stdin().is_terminal() {
        let why =
            format!("this {does}, and there is no terminal to ask: nothing was done; --yes does it without asking");
        return Err(Failure::new(Exit::Failed, why));
    }
    output::print(&format!("This {does}. Go on? [y/N] "))?;
    let mut answer = String::new();
    input.read_line(&mut answer).map_err(Failure::with(Exit::Failed))?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new(Exit::Interrupted, "nothing was done")),
    }
}

/// Whether a restart puts a part of the changes in force.
fn waits(plan: &Plan) -> bool {
    plan.after_restart().next().is_some()
}

/// The outcome of a change.
struct Told {
    answer: Answer,
    /// The changes that were made. An error: it was not wholly made, or could not be printed.
    done: Result<Plan, Failure>,
}

/// Reports the changes. `shown` is the part of the report that the person has already seen.
fn tell(answer: Result<Reply, AskError>, shown: &str) -> Told {
    let (answer, done) = match answer {
        Ok(Reply::Changed(changed)) => {
            let (waiting, is_change) = (changed.waiting.clone(), !changed.plan.is_empty());
            (Answer::Made { waiting, is_change }, print(*changed, shown))
        }
        Ok(other) => (Answer::Lost, Err(odd(&other))),
        Err(AskError::Refused(problem)) if problem.changed.is_some() => halfway(*problem),
        Err(error) if error.is_lost() => (Answer::Lost, Err(failure(error))),
        Err(error) => (Answer::Refused, Err(failure(error))),
    };
    Told { answer, done }
}

/// A change of which only a part was made. Its sentence about what waits is left out: that may be undone at once.
fn halfway(problem: Problem) -> (Answer, Result<Plan, Failure>) {
    let waiting = problem.changed.and_then(|changed| changed.waiting);
    let detail = problem.detail;
    let without = waiting.as_ref().and_then(|waiting| detail.strip_suffix(&format!("; {waiting}")));
    let failure = Failure::new(Exit::Failed, without.unwrap_or(&detail));
    (Answer::Halfway(waiting), Err(failure))
}

fn print(changed: Changed, shown: &str) -> Result<Plan, Failure> {
    let Changed { plan, after_restart, not_kept, closed, waiting: _ } = changed;
    let done = plan.to_string();
    if done.is_empty() {
        output::print("nothing to change\n")?;
    } else if done != shown {
        output::print(&done)?;
    }
    for port in &closed {
        let dropped: u64 = port.receive_drops.get("removed").copied().unwrap_or(0);
        if dropped > 0 {
            output::tell(format_args!(
                "note: {} that waited for {} were dropped",
                output::count(dropped, "frame"),
                port.name
            ));
        }
    }
    if !after_restart.is_empty() {
        output::tell(format_args!("note: a restart of the daemon puts in force: {}", after_restart.join(", ")));
    }
    if let Some(why) = not_kept {
        output::tell(format_args!(
            "note: it is in force, and was not kept: after a restart of the daemon it is gone ({why})"
        ));
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::confirm::tests::{Fake, guarded, waiting};

    #[test]
    fn a_change_of_which_a_part_was_made_or_whose_answer_is_cut_takes_itself_back_and_says_both() {
        let fake = Fake::new();
        let waits = waiting("user 7");
        let changed = Changed {
            plan: Plan::default(),
            after_restart: Vec::new(),
            not_kept: None,
            closed: Vec::new(),
            waiting: Some(waits.clone()),
        };
        let half = Problem {
            r#type: "/v1/problems/halfway".to_owned(),
            title: "not all was done".to_owned(),
            status: 500,
            detail: format!("not all was done: tap0 is in use; {waits}"),
            mistakes: Vec::new(),
            cuts_off: Vec::new(),
            changed: Some(Box::new(changed)),
        };
        let cut = AskError::Foreign { path: fake.socket(), why: "its answer is cut".to_owned() };
        for (error, message) in [
            (
                AskError::Refused(Box::new(half)),
                "not all was done: tap0 is in use\nonly a part of the change was made: the change was undone",
            ),
            (cut, "its answer is cut\nit is not known whether the whole change was made: the change was undone"),
        ] {
            let ended = end(None, tell(Err(error), ""), guarded(None), &fake.socket()).unwrap_err();
            assert!(ended.exit == Exit::Failed && ended.message.ends_with(message), "{ended}");
            assert_eq!(fake.asked().last().unwrap(), "POST /v1/undo");
        }
    }
}
