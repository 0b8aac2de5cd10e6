//! `nicety choose`: which adapter for a guest, from the registry's facts and the lab's results on this machine.

use std::fs;
use std::io::{self, BufRead, IsTerminal};
use std::path::Path;

use nicety_adapters::REGISTRY;
use nicety_lab::choose::{self, Table, Wishes};
use nicety_lab::host::Host;
use nicety_lab::report;
use nicety_lab::results::Results;
use nicety_lab::study::Study;

use crate::cli::{self, COMPARE_FOLDER, Choose, LAB_FOLDER};
use crate::exit::{Exit, Failure};
use crate::lab;
use crate::output;

/// The file of `nicety compare` in its report's folder.
const RESULTS: &str = "results.json";

/// Asks for what no option says: a line each, where nothing means the first word. None at the end of input.
fn ask(input: &mut dyn BufRead, say: &mut dyn FnMut(&str)) -> Option<Wishes> {
    let mut answer = |question: &str, words: &[&str]| -> Option<String> {
        loop {
            say(&format!("{question} [{}]", words.join(", ")));
            let mut line = String::new();
            if input.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let given = line.trim().to_lowercase();
            if given.is_empty() {
                return Some(words.first().copied().unwrap_or_default().to_owned());
            }
            // Without words any answer is one.
            let meant = words.iter().find(|word| word.starts_with(&given));
            match meant {
                Some(word) => return Some((*word).to_owned()),
                None if words == [""] => return Some(line.trim().to_owned()),
                None => say(&format!("Answer with one of: {}.", words.join(", "))),
            }
        }
    };
    let windows = answer("The guest's system?", &["linux", "windows"])? == "windows";
    let system = if windows { choose::System::Windows } else { choose::System::Linux };
    let example = if windows { "such as 7, XP or Server 2008 R2" } else { "its kernel's, such as 2.6.18" };
    let version = answer(&format!("Its version ({example}; nothing: a current one)?"), &[""])?;
    Some(Wishes {
        system,
        version: Some(version).filter(|version| !version.is_empty()),
        in_box: answer("May a driver be installed in it?", &["yes", "no"])? == "no",
        network_boot: answer("Does it boot from the network?", &["no", "yes"])? == "yes",
        migrates: answer("Does it migrate live under QEMU?", &["no", "yes"])? == "yes",
        segmentation: answer("Must the adapter segment what TCP sends (TSO)?", &["no", "yes"])? == "yes",
        prefer: match answer("What matters most? (cpu: many VMs)", &["throughput", "latency", "cpu"])?.as_str() {
            "latency" => choose::Prefer::Latency,
            "cpu" => choose::Prefer::Processor,
            _ => choose::Prefer::Throughput,
        },
    })
}

fn given(args: &Choose, system: cli::System) -> Wishes {
    Wishes {
        system: match system {
            cli::System::Linux => choose::System::Linux,
            cli::System::Windows => choose::System::Windows,
        },
        version: args.version.clone(),
        in_box: args.in_box,
        network_boot: args.network_boot,
        migrates: args.migrates,
        segmentation: args.segmentation,
        prefer: match args.prefer {
            cli::Prefer::Throughput => choose::Prefer::Throughput,
            cli::Prefer::Latency => choose::Prefer::Latency,
            cli::Prefer::Cpu => choose::Prefer::Processor,
        },
    }
}

/// Whether no option says anything about the guest.
fn says_nothing(args: &Choose) -> bool {
    let Choose { system, version, in_box, network_boot, migrates, segmentation, prefer, results: _, markdown: _ } =
        args;
    let flags = *in_box || *network_boot || *migrates || *segmentation;
    system.is_none() && version.is_none() && !flags && *prefer == cli::Prefer::Throughput
}

/// Runs it.
/// The results of `nicety compare` in this folder, or in this file. None if there are none.
fn compared(place: &Path) -> Result<Option<Study>, Failure> {
    let file = if place.is_dir() { place.join(RESULTS) } else { place.to_owned() };
    let Ok(text) = fs::read_to_string(&file) else { return Ok(None) };
    let unread = |why: String| Failure::new(Exit::Usage, format!("{}: {why}", file.display()));
    let results = Results::from_json(&text).map_err(|error| unread(error.to_string()))?;
    choose::of_comparison(&results).map(Some).ok_or_else(|| unread("it has no figures".to_owned()))
}

pub fn run(args: &Choose) -> Result<(), Failure> {
    let wishes = match args.system {
        Some(system) => given(args, system),
        None if says_nothing(args) && io::stdin().is_terminal() && io::stderr().is_terminal() => {
            let asked = ask(&mut io::stdin().lock(), &mut |line| output::tell(line));
            asked.ok_or_else(|| Failure::new(Exit::Interrupted, "no answer"))?
        }
        None => given(args, cli::System::Linux),
    };
    let studies: Vec<Study> = match &args.results {
        // A typo in a folder's name must not read as "nothing was measured".
        Some(folder) => {
            let compared = compared(folder)?;
            match lab::read(folder) {
                Ok((studies, errors)) => {
                    lab::left_out(&errors);
                    studies.into_iter().chain(compared).collect()
                }
                Err(_) if compared.is_some() => compared.into_iter().collect(),
                Err(Failure { message, .. }) => return Err(Failure::new(Exit::Usage, format!("--results: {message}"))),
            }
        }
        None => {
            let of_lab = report::study::studies(Path::new(LAB_FOLDER)).into_iter();
            of_lab.chain(compared(Path::new(COMPARE_FOLDER))?).collect()
        }
    };
    let choice = choose::choose(&wishes, REGISTRY, &studies, &Host::here());
    let choice = choice.map_err(|error| Failure::new(Exit::Usage, format!("--version: {error}")))?;
    let mut text = choice.adapter.as_ref().map_or("No adapter fits.\n".to_owned(), |name| format!("Take {name}.\n"));
    if args.markdown {
        text = format!("{text}\n{}\n{}\n", choice.measured.join(" "), choice.table.markdown());
    } else {
        for sentence in choice.why.iter().chain(&choice.measured) {
            text += &format!("  {sentence}\n");
        }
        text += &format!("\n{}", shown(&choice.table, output::terminal_columns()));
    }
    output::print(&text)?;
    if choice.adapter.is_some() { Ok(()) } else { Err(Failure::new(Exit::Failed, "no adapter fits these wishes")) }
}

/// The table for a terminal: on one that is too narrow for its lines, what an adapter needs, and why, stand below its line.
fn shown(table: &Table, columns: Option<usize>) -> String {
    // A unit stays as it is written.
    let head = |head: &String| match head.rsplit_once(", ") {
        Some((title, unit)) => format!("{}, {unit}", title.to_uppercase()),
        None => head.to_uppercase(),
    };
    let heads = table.heads.iter().map(head).collect();
    let rows: Vec<Vec<String>> = [heads].into_iter().chain(table.rows.iter().cloned()).collect();
    let text = output::columns(&rows);
    let Some(columns) = columns.filter(|columns| text.lines().any(|line| line.chars().count() > *columns)) else {
        return text;
    };
    let shown = 1 + table.figures();
    let short: Vec<Vec<String>> = rows.iter().map(|row| row.iter().take(shown).cloned().collect()).collect();
    let mut text = String::new();
    for (at, (line, row)) in output::columns(&short).lines().zip(&rows).enumerate() {
        text += &format!("{line}\n");
        for cell in row.iter().skip(shown).filter(|_| at > 0) {
            text += &output::wrapped(cell, columns, "    ");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(answers: &str) -> (Option<Wishes>, Vec<String>) {
        let mut said = Vec::new();
        let wishes = ask(&mut answers.as_bytes(), &mut |line| said.push(line.to_owned()));
        (wishes, said)
    }

    #[test]
    fn a_handful_of_questions_makes_the_wishes_and_nothing_is_the_first_word() {
        let (wishes, said) = asked("windows\nServer 2012\nno\ny\n\n\nlat\n");
        let wishes = wishes.unwrap();
        assert_eq!((wishes.system, wishes.version.as_deref()), (choose::System::Windows, Some("Server 2012")));
        assert!(wishes.in_box && wishes.network_boot && !wishes.migrates && !wishes.segmentation);
        assert_eq!((wishes.prefer, said.len()), (choose::Prefer::Latency, 7));
        let (wishes, _) = asked(&"\n".repeat(7));
        let wishes = wishes.unwrap();
        assert_eq!((wishes.system, wishes.version, wishes.in_box), (choose::System::Linux, None, false));
    }

    #[test]
    fn a_narrow_terminal_has_what_an_adapter_needs_and_why_below_its_line() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let table = Table {
            heads: words(&["Adapter", "Throughput, Mbit/s", "Needs", "Why"]),
            rows: vec![words(&[
                "vmxnet3",
                "4000",
                "vmxnet3, in Linux since 2.6.32",
                "Chosen. It needs few messages per frame.",
            ])],
        };
        let wide = shown(&table, None);
        assert_eq!(wide.lines().count(), 2, "{wide}");
        assert!(wide.starts_with("ADAPTER  THROUGHPUT, Mbit/s  NEEDS "), "{wide}");
        assert_eq!(
            shown(&table, Some(40)),
            "ADAPTER  THROUGHPUT, Mbit/s\nvmxnet3  4000\n    vmxnet3, in Linux since 2.6.32\n    Chosen. It needs few messages per\n    frame.\n"
        );
    }

    #[test]
    fn an_answer_that_is_none_is_asked_again_and_the_end_of_input_is_no_answer() {
        let (wishes, said) = asked("beos\nlinux\n");
        assert_eq!((wishes, said[1].as_str()), (None, "Answer with one of: linux, windows."));
    }
}
