//! Counts instructions per frame between two ports with callgrind. A rise above the bounds below fails.
//!
//! A count says little about time, but shows every change: it is the same on a loaded machine. Another compiler lays the same source out
//! differently, with slightly more or fewer instructions, so a bound is about 5 % above the measurement (docs/measured.md).

use std::{
    collections::HashMap,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::{command::cargo, tally::Tally};

/// Each measurement: an example of `nicety-plane`, its arguments, and the maximum of instructions per frame. Lower these
/// when frames get cheaper.
const BOUNDS: [(&str, &[&str], f64); 29] = [
    ("instructions", &["64", "1", "10000"], 505.0),
    ("instructions", &["64", "1000", "20000"], 505.0),
    // One frame a turn: two turns of its port, one of which finds nothing, and all locks, areas and look-ups for it alone.
    ("instructions", &["64", "1", "10000", "alone"], 10170.0),
    // More addresses than the switch's cache of pairs has room for, and pairs that it has not seen.
    ("instructions", &["64", "100000", "20000"], 715.0),
    ("instructions", &["64", "1000", "20000", "pairs"], 710.0),
    ("instructions", &["1518", "1", "10000"], 1100.0),
    ("instructions", &["64", "1", "10000", "packed"], 580.0),
    ("instructions", &["64", "1000", "20000", "packed"], 585.0),
    ("instructions", &["1518", "1", "10000", "packed"], 1210.0),
    // A VLAN, all guards, storm control and shapes: 51, 68 and 64 instructions above the flat switch, or 11, 14 and 6 %. With frames of 64
    // bytes the bounds are 15 % above it, which is the aim.
    ("instructions", &["64", "1", "10000", "policed"], 555.0),
    ("instructions", &["64", "1000", "20000", "policed"], 577.0),
    ("instructions", &["1518", "1", "10000", "policed"], 1190.0),
    // An export of both ports' flows: at most 100 instructions above the same without.
    ("instructions", &["64", "1", "10000", "flows"], 580.0),
    ("instructions", &["64", "1000", "20000", "flows"], 605.0),
    // An uplink with three classes, beside guests that cost next to nothing: 32 instructions above one without where nothing waits (of
    // 457 between two virtio-nets), and 15 % where all waits. 256 ports: 2 % above 16; 10 % is the aim.
    ("io_control", &["64", "16", "plain", "waiting", "32768"], 1390.0),
    ("io_control", &["64", "16", "classes", "direct", "32768"], 455.0),
    ("io_control", &["64", "16", "classes", "waiting", "32768"], 1595.0),
    ("io_control", &["64", "256", "classes", "waiting", "32768"], 1630.0),
    ("driven", &["e1000", "64", "10000"], 1900.0),
    ("driven", &["e1000e", "64", "10000"], 2275.0),
    ("driven", &["igb", "64", "10000"], 2540.0),
    ("driven", &["vmxnet3", "64", "10000"], 1915.0),
    ("driven", &["virtio-net", "64", "10000"], 2090.0),
    ("driven", &["e1000", "1518", "10000"], 4620.0),
    ("driven", &["vmxnet3", "1518", "10000"], 4960.0),
    ("driven", &["e1000e", "1518", "10000"], 5030.0),
    ("driven", &["igb", "1518", "10000"], 5310.0),
    // Functions of cards: 256 cost as much as 16; 15 % more is the aim.
    ("driven", &["ixgbevf", "64", "8192", "16"], 2355.0),
    ("driven", &["ixgbevf", "64", "131072", "256"], 2355.0),
];

/// Builds the examples, and counts.
pub fn run() -> Tally {
    let valgrind = match valgrind() {
        Ok(words) => words,
        Err(error) => {
            return Tally::of_skipped(&format!("instructions: valgrind: {error:#}"));
        }
    };
    let programs = match build() {
        Ok(programs) => programs,
        Err(error) => {
            println!("instructions: {error:#}");
            return Tally::of_one("instructions: the examples do not build", false);
        }
    };
    BOUNDS.iter().fold(Tally::default(), |mut tally, (example, arguments, most)| {
        let what = format!("{example} {}", arguments.join(" "));
        let counted = programs.get(*example).context("cargo has not built it").and_then(|program| {
            let count = count(&valgrind, program, arguments)?;
            println!("{what}: {count:.1} instructions per frame, {most:.0} at most");
            Ok(count <= *most)
        });
        tally += Tally::of_one(
            &format!("instructions: {what}"),
            counted.unwrap_or_else(|error| {
                println!("{what}: {error:#}");
                false
            }),
        );
        tally
    })
}

/// The command that starts valgrind: the machine's own, or the one that `nicety-guests` installs.
fn valgrind() -> Result<Vec<String>> {
    if Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return Ok(vec!["valgrind".to_owned()]);
    }
    let mut lay = cargo();
    lay.args(["run", "--quiet", "--package", "nicety-guests", "--example", "valgrind"]).stderr(Stdio::inherit());
    let output = lay.output()?;
    ensure!(output.status.success(), "the machine has none, and it could not be laid");
    Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
}

/// The examples' programs, by name.
fn build() -> Result<HashMap<String, PathBuf>> {
    let mut command = cargo();
    command.args(["build", "--release", "--package", "nicety-plane", "--message-format=json-render-diagnostics"]);
    BOUNDS.iter().for_each(|(example, _, _)| {
        command.args(["--example", example]);
    });
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().context("no output")?;
    let lines: Vec<String> = BufReader::new(output).lines().collect::<Result<_, _>>()?;
    ensure!(child.wait()?.success(), "cargo build failed");
    Ok(lines.iter().filter_map(|line| program(line)).collect())
}

/// The example in a line of cargo's output (the Cargo book, External tools, JSON messages).
fn program(line: &str) -> Option<(String, PathBuf)> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let target = &message["target"];
    let is_example = target["kind"].as_array()?.iter().any(|kind| kind == "example");
    is_example.then_some((target["name"].as_str()?.to_owned(), message["executable"].as_str()?.into()))
}

/// Instructions per frame.
fn count(valgrind: &[String], program: &PathBuf, arguments: &[&str]) -> Result<f64> {
    let [first, rest @ ..] = valgrind else { return Err(anyhow::anyhow!("valgrind has no words")) };
    let output = Command::new(first)
        .args(rest)
        .args([
            "--tool=callgrind",
            "--collect-atstart=no",
            "--toggle-collect=*counted*",
            "--callgrind-out-file=/dev/null",
        ])
        .arg(program)
        .args(arguments)
        .output()?;
    let (report, printed) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    ensure!(output.status.success(), "it failed: {report}{printed}");
    per_frame(&report, &printed).with_context(|| format!("nothing was counted: {report}{printed}"))
}

/// Callgrind's count, divided by the number of frames that the example reports.
fn per_frame(report: &str, printed: &str) -> Option<f64> {
    let collected = report.lines().find_map(|line| line.split_once("Collected : "))?.1.split_whitespace().next()?;
    let frames = printed.split_once(" frames of ")?.0.split_whitespace().last()?;
    let (collected, frames) = (collected.parse::<f64>().ok()?, frames.parse::<f64>().ok()?);
    (frames > 0.0).then(|| collected / frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of valgrind 3.19.
    #[test]
    fn what_was_collected_is_divided_by_the_frames() {
        let report = "==1== Events    : Ir\n==1== Collected : 19947762\n==1== \n==1== I   refs:      19,947,762\n";
        assert_eq!(per_frame(report, "20000 frames of 64 bytes, 1 addresses per port\n"), Some(997.3881));
        assert_eq!(per_frame(report, "Error: nothing\n"), None);
        assert_eq!(per_frame("valgrind: no such tool\n", "20000 frames of 64 bytes\n"), None);
    }

    #[test]
    fn an_example_s_program_is_found_in_what_cargo_says() {
        let line =
            r#"{"reason":"compiler-artifact","target":{"kind":["example"],"name":"driven"},"executable":"/t/driven"}"#;
        assert_eq!(program(line), Some(("driven".to_owned(), PathBuf::from("/t/driven"))));
        assert_eq!(program(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
