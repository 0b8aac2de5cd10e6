//! Completions: a shell's script asks this program on each Tab, so that they know the ports, groups and adapters that there are.
//!
//! The scripts are clap_complete's. Their interface is versioned with that crate, so a package brings the scripts of its own program.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::builder::ArgExt;
use clap::{Command, CommandFactory};
use clap_complete::engine::{ArgValueCandidates, ArgValueCompleter, CompletionCandidate, complete};
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};
use nicety_adapters::REGISTRY;
use nicety_control::api::Exported;
use nicety_control::{self as control, Ask, Reply};
use nicety_daemon::attach::is_same;
use nicety_host::{FABRIC_CLASS, FABRIC_GROUP, Form, Host, Kind, List, kind_of};

use crate::cli::{Cli, HOST_FILE};
use crate::exit::{Exit, Failure};
use crate::find::{Running, Search, TIMEOUT};
use crate::output;

/// The variable by which a script asks. Its value is the shell's name.
const ASKED: &str = "NICETY_COMPLETE";
/// Variables of clap_complete's scripts: the place of the word at the cursor, and what parts the answers.
const INDEX: &str = "_CLAP_COMPLETE_INDEX";
const SEPARATOR: &str = "_CLAP_IFS";

/// Writes a shell's script.
pub fn script(shell: clap_complete::Shell) -> Result<(), Failure> {
    let known: &dyn EnvCompleter = match shell {
        clap_complete::Shell::Bash => &Bash,
        clap_complete::Shell::Zsh => &Zsh,
        clap_complete::Shell::Fish => &Fish,
        other => return Err(Failure::new(Exit::Usage, format!("there are none for {other}: bash, zsh or fish"))),
    };
    let mut text = Vec::new();
    known.write_registration(ASKED, "nicety", "nicety", "nicety", &mut text).map_err(Failure::with(Exit::Failed))?;
    let mut text = String::from_utf8_lossy(&text).into_owned();
    if shell == clap_complete::Shell::Zsh {
        // zsh reads the file at the first Tab, and calls it for the answer.
        text.push_str("[ \"$funcstack[1]\" = _nicety ] && _clap_dynamic_completer_nicety \"$@\"\n");
    }
    output::print(&text)
}

/// Whether a script has started this program.
pub fn is_asked() -> bool {
    std::env::var_os(ASKED).is_some()
}

/// Answers a script: one candidate a line. Whatever fails, nothing but candidates is printed: the person is typing.
pub fn answer(words: &[OsString]) -> Result<(), Failure> {
    let begin = words.iter().position(|word| word == "--").map_or(words.len(), |at| at + 1);
    let mut words = words[begin..].to_vec();
    let number = std::env::var(INDEX).ok().and_then(|text| text.parse().ok());
    let mut index = number.unwrap_or(words.len().saturating_sub(1));
    let is_bash = std::env::var_os(ASKED).is_some_and(|shell| shell == "bash");
    let cut = if is_bash { join(&mut words, &mut index) } else { 0 };
    let here = std::env::current_dir().ok();
    let found = complete(&mut command(), words, index, here.as_deref()).unwrap_or_default();
    let values = found.iter().filter_map(|candidate| candidate.get_value().to_str()?.get(cut..));
    let separator = std::env::var(SEPARATOR).unwrap_or_else(|_| "\n".to_owned());
    output::print(&values.collect::<Vec<_>>().join(&separator))
}

/// bash makes three words of `adapter=e1000`. Joins them again. Returns the length of what bash already has of the word at the cursor.
fn join(words: &mut Vec<OsString>, index: &mut usize) -> usize {
    let mut cut = 0;
    let mut at = 1;
    while at < words.len() {
        if words[at] != "=" {
            at += 1;
            continue;
        }
        let value = if at + 1 < words.len() { words.remove(at + 1) } else { OsString::new() };
        words.remove(at);
        words[at - 1].push("=");
        if *index == at || *index == at + 1 {
            cut = words[at - 1].len();
        }
        words[at - 1].push(value);
        *index -= if *index > at { 2 } else { usize::from(*index == at) };
    }
    cut
}

/// The hosts that the person may mean, as the command will find them: that of the file in this folder, in the file and as it runs;
/// without a file all that run.
fn hosts() -> Vec<Host> {
    let here = Path::new(HOST_FILE);
    let file = Host::read(here).ok();
    let is_meant = |running: &Running| !here.exists() || is_same(&running.host, here);
    let running = Search::new().running.into_iter().filter(is_meant).filter_map(|running| {
        match control::ask_within(&running.control, Ask::Export, TIMEOUT).ok()? {
            Reply::Exported(Exported { text }) => Host::parse(&text, &running.host).ok(),
            _ => None,
        }
    });
    file.into_iter().chain(running).collect()
}

fn names(lists: &[List]) -> Vec<String> {
    let hosts = hosts();
    let mut names: Vec<String> =
        lists.iter().flat_map(|list| hosts.iter().flat_map(|host| host.document.names_in(*list))).collect();
    names.sort();
    names.dedup();
    names
}

/// `nic0/3` for each function of a card that a port has.
fn functions() -> Vec<String> {
    let hosts = hosts();
    let ports = hosts.iter().flat_map(|host| &host.ports);
    let all: BTreeSet<String> =
        ports.filter_map(|port| port.function.as_ref()).map(|own| format!("{}/{}", own.card, own.number)).collect();
    all.into_iter().collect()
}

fn candidates(names: impl IntoIterator<Item = impl Into<OsString>>) -> Vec<CompletionCandidate> {
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// Names of entries of these lists.
fn of(lists: &'static [List]) -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(names(lists)))
}

/// `KEY=VALUE` of a table of this kind: the keys, and behind a `=` the words that the key may have.
fn values(kind: &'static Kind) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| {
        let keys = kind.keys;
        let text = current.to_string_lossy();
        let Some((key, begun)) = text.split_once('=') else {
            let begun = keys.iter().filter(|key| key.name.starts_with(&*text));
            return candidates(begun.map(|key| format!("{}=", key.name)));
        };
        let words = match keys.iter().find(|known| known.name == key).map(|known| known.form) {
            Some(Form::Flag) => vec!["true".to_owned(), "false".to_owned()],
            Some(Form::UplinkName) => names(named_by(key)),
            Some(Form::UplinkNames(_)) => {
                // The last of a list, each once.
                let (before, _) = begun.rsplit_once(',').unwrap_or(("", begun));
                let listed: Vec<&str> = before.split(',').filter(|name| !name.is_empty()).collect();
                let more = names(named_by(key)).into_iter().filter(|name| !listed.contains(&name.as_str()));
                more.map(|name| listed.iter().copied().chain([name.as_str()]).collect::<Vec<_>>().join(",")).collect()
            }
            Some(Form::Name) if key == "port_group" => names(&[List::Groups]),
            Some(Form::Name) if key == "card" => names(&[List::Cards]),
            form => form.and_then(Form::words).unwrap_or_default().into_iter().map(str::to_owned).collect(),
        };
        candidates(words.iter().filter(|word| word.starts_with(begun)).map(|word| format!("{key}={word}")))
    })
}

/// The lists whose entries a key names.
fn named_by(key: &str) -> &'static [List] {
    match key {
        "groups" => &[List::Groups],
        "ports" => &[List::Ports],
        "uplink" | "uplinks" => &[List::Uplinks, List::Teams],
        "members" | "primary" => &[List::Uplinks],
        // A new one.
        "name" => &[],
        _ => LINKS,
    }
}

/// Lists of the ports of the switch.
const LINKS: &[List] = &[List::Ports, List::Uplinks, List::Teams];

/// The command line, whose arguments know what there is.
fn command() -> Command {
    let adapters = || ArgValueCandidates::new(|| candidates(REGISTRY.iter().map(|entry| entry.about.name)));
    let captured: &[List] = &[List::Ports, List::Uplinks, List::Teams, List::Groups];
    let mut all = Cli::command();
    for (name, argument, lists) in [
        ("attach", "port", &[List::Ports][..]),
        ("upgrade", "without", &[List::Ports]),
        ("ports", "port", LINKS),
        ("trace", "port", LINKS),
        ("capture", "of", captured),
    ] {
        all = all.mut_subcommand(name, |one| with(one, argument, of(lists)));
    }
    for (name, argument) in [("adapters", "name"), ("compare", "adapters")] {
        all = all.mut_subcommand(name, |one| with(one, argument, adapters()));
    }
    all = all.mut_subcommand("ports", |one| with(one, "group", of(&[List::Groups])));
    all = all.mut_subcommand("port", |mut port| {
        for (name, lists) in [
            ("remove", &[List::Ports][..]),
            ("set", &[List::Ports]),
            ("restart", LINKS),
            ("save", &[List::Ports]),
            ("restore", &[List::Ports]),
        ] {
            port = port.mut_subcommand(name, |one| with(one, "port", of(lists)));
        }
        with_values(port, kind_of(List::Ports))
    });
    all = all.mut_subcommand("vf", |mut vf| {
        for name in ["show", "set"] {
            let known = ArgValueCandidates::new(|| candidates(functions()));
            vf = vf.mut_subcommand(name, |one| with(one, "function", known));
        }
        vf
    });
    all = all.mut_subcommand("card", |one| one.mut_subcommand("reset", |one| with(one, "name", of(&[List::Cards]))));
    all = all.mut_subcommand("class", |one| {
        one.mut_subcommand("port", |one| with(with(one, "name", of(&[List::Classes])), "port", of(&[List::Ports])))
    });
    let lists: [(&str, &'static [List]); 7] = [
        ("group", &[List::Groups]),
        ("uplink", &[List::Uplinks]),
        ("card", &[List::Cards]),
        ("team", &[List::Teams]),
        ("mirror", &[List::Mirrors]),
        ("flow-export", &[List::FlowExports]),
        ("class", &[List::Classes]),
    ];
    for (name, list) in lists {
        all = all.mut_subcommand(name, |mut one| {
            for change in ["remove", "set"] {
                one = one.mut_subcommand(change, |change| with(change, "name", of(list)));
            }
            with_values(one, kind_of(list[0]))
        });
    }
    all.mut_subcommand("fabric", |one| {
        let one = one.mut_subcommand("group", |group| with_values(group, &FABRIC_GROUP));
        one.mut_subcommand("class", |class| with_values(class, &FABRIC_CLASS))
    })
}

/// The same, one of whose arguments has this extension. In place: `Command::mut_arg` moves an argument behind the others.
fn with(command: Command, argument: &str, extension: impl ArgExt + 'static) -> Command {
    let mut extension = Some(extension);
    command.mut_args(|arg| match extension.take_if(|_| arg.get_id() == argument) {
        Some(extension) => arg.add(extension),
        None => arg,
    })
}

/// The same, whose `add` and `set` know the keys of this kind of table.
fn with_values(mut command: Command, kind: &'static Kind) -> Command {
    for change in ["add", "set"] {
        command = command.mut_subcommand(change, |one| with(one, "values", values(kind)));
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_bash_has_parted_at_an_equals_sign_are_one_again() {
        let joined = |line: &[&str], mut index: usize| {
            let mut words: Vec<OsString> = line.iter().map(OsString::from).collect();
            let cut = join(&mut words, &mut index);
            (words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" "), index, cut)
        };
        let line = ["nicety", "port", "add", "vm3", "adapter", "=", "e1"];
        assert_eq!(joined(&line, 6), ("nicety port add vm3 adapter=e1".into(), 4, 8));
        assert_eq!(joined(&line[..6], 5), ("nicety port add vm3 adapter=".into(), 4, 8));
        let two = ["nicety", "port", "add", "vm3", "adapter", "=", "e1000", "port_group", "=", "w"];
        assert_eq!(joined(&two, 9), ("nicety port add vm3 adapter=e1000 port_group=w".into(), 5, 11));
        assert_eq!(joined(&two[..8], 7), ("nicety port add vm3 adapter=e1000 port_group".into(), 5, 0));
    }
}
