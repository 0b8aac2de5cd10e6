use clap::{CommandFactory, Parser};
use nicety_host::{List, kind_of};

use crate::cli::Cli;

/// The commands of the lists, with the list that each one changes.
const LISTS: [(&str, List); 7] = [
    ("group", List::Groups),
    ("uplink", List::Uplinks),
    ("card", List::Cards),
    ("team", List::Teams),
    ("mirror", List::Mirrors),
    ("flow-export", List::FlowExports),
    ("class", List::Classes),
];

/// All commands with their words, such as `nicety fabric group add`.
fn commands() -> Vec<(String, clap::Command)> {
    fn walk(words: &str, command: &clap::Command, into: &mut Vec<(String, clap::Command)>) {
        let words = format!("{words} {}", command.get_name()).trim().to_owned();
        command.get_subcommands().filter(|one| !one.is_hide_set()).for_each(|one| walk(&words, one, into));
        into.push((words, command.clone()));
    }
    let mut all = Vec::new();
    walk("", &Cli::command(), &mut all);
    all
}

#[test]
fn no_two_commands_say_the_same() {
    let mut seen = std::collections::BTreeMap::new();
    for (words, command) in commands() {
        let about = command.get_about().unwrap_or_else(|| panic!("{words} says nothing")).to_string();
        // `ports restart` is the older word for `port restart`.
        if let Some(other) = seen.insert(about.clone(), words.clone()) {
            assert_eq!([other.as_str(), words.as_str()], ["nicety ports restart", "nicety port restart"], "{about}");
        }
    }
    assert!(seen.len() > 60, "{}", seen.len());
}

#[test]
fn each_change_of_a_list_names_what_it_changes() {
    let all = commands();
    for (list, _) in LISTS {
        let noun = match list {
            "class" => "class of I/O control",
            "flow-export" => "export of flows",
            other => other,
        };
        for change in ["add", "remove", "set"] {
            let words = format!("nicety {list} {change}");
            let (_, command) = all.iter().find(|(known, _)| *known == words).unwrap();
            let about = command.get_about().unwrap().to_string();
            assert!(about.contains(noun), "{words}: {about}");
            let name = command.get_arguments().find(|arg| arg.get_id() == "name").unwrap();
            let help = name.get_help().unwrap().to_string();
            assert!(help.contains(list.rsplit('-').next().unwrap()), "{words}: {help}");
        }
    }
}

/// The example that ends the words of a command.
fn example(about: &str) -> Option<Vec<String>> {
    let (_, line) = about.split_once(": nicety ")?;
    Some(std::iter::once("nicety").chain(line.split(' ')).map(str::to_owned).collect())
}

#[test]
fn the_example_of_each_command_is_one_of_that_command_and_has_keys_that_there_are() {
    let mut tried = 0;
    for (words, command) in commands() {
        let Some(line) = command.get_about().and_then(|about| example(&about.to_string())) else { continue };
        assert!(line.join(" ").starts_with(&words), "{words}: {line:?}");
        Cli::try_parse_from(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"));
        tried += 1;
        let list = LISTS
            .iter()
            .find(|(list, _)| words == format!("nicety {list} add") || words == format!("nicety {list} set"));
        let Some((_, list)) = list else { continue };
        let keys = kind_of(*list).keys;
        for (key, value) in line[4..].iter().map(|word| word.split_once('=').unwrap()) {
            let key = keys.iter().find(|known| known.name == key).unwrap_or_else(|| panic!("{line:?}: {key}"));
            if let Some(words) = key.form.words() {
                assert!(words.contains(&value), "{line:?}: {value}");
            }
        }
    }
    assert!(tried >= 2 * LISTS.len(), "{tried}");
}
