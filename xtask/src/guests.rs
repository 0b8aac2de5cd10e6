//! Runs the tests with real guests side by side, because such a test mostly waits for a guest. Tests whose driver gives the chip only
//! milliseconds run [`ALONE`], at the end. Each result is shown with its measurements; a neighbour makes them less exact.

use std::{process::Command, sync::OnceLock, thread};

use anyhow::{Result, ensure};

use crate::{
    beside, fuzz,
    lanes::Lanes,
    programs::{self, Program, Test},
    tally::Tally,
};

/// Programs with such tests. The one with the longest tests comes first, so that no long test is left for the end.
pub const PROGRAMS: [&str; 9] = [
    "real_adapters",
    "installed",
    "real_fabric",
    "real_etcd",
    "real_guests",
    "real_pair",
    "try",
    "uml_guests",
    "replayed",
];
/// Maximum number at a time. A test has two guests of 256 MiB, and the host has other uses for its memory.
const AT_MAX: usize = 4;

/// Tests that run without any other beside them. An NE2000's driver gives a frame 200 ms (lib8390.c, TX_TIMEOUT). Some fifty accesses,
/// each a message between QEMU and the daemon, must fit into that. Beside guests that keep every processor busy, each may take 10 ms.
///
/// A protected VM gives its twin up after 0.3 s of silence, which three guests on two processors may cause. A kill at that moment ends
/// the VM, as it should.
const ALONE: [&str; 13] = [
    "drivers::both_kernels_ping_and_send_a_little_both_ways_over_an_ne2k_pci",
    "lab::a_vm_goes_on_at_its_twin_under_a_checked_connection_and_its_copies_and_outage_are_known",
    "survives::a_vm_of_libvirt_s_goes_on_at_its_twin_as_the_page_says_and_libvirt_sees_it_there",
    "twins::a_vm_goes_on_at_its_twin_when_its_qemu_is_killed_and_takes_a_new_twin_again_and_again",
    "twins::a_vm_goes_on_at_its_twin_when_its_whole_host_dies",
    "twins::a_vm_is_handed_over_stopped_and_protected_by_an_administrators_wish",
    "twins::cut::link_and_lease_that_are_cut_together_leave_one_owner_at_any_instant_and_no_wrong_byte",
    "twins::links::a_link_that_is_cut_both_ways_or_one_way_leaves_one_owner_and_no_wrong_byte",
    "twins::links::a_link_that_is_slower_than_the_vm_writes_its_memory_ends_the_protection_and_the_vm_goes_on",
    "twins::links::a_vm_with_two_ports_and_its_lease_in_etcd_goes_on_at_its_twin_with_both",
    "twins::links::an_upgrade_of_the_twins_daemon_costs_no_takeover_and_a_kill_of_the_owners_keeper_one",
    "twins::a_vm_stays_where_it_is_when_its_daemon_is_killed_or_replaced_and_is_protected_again",
    "twins::no_answered_request_is_forgotten_whatever_is_killed_and_a_host_that_stood_still_says_nothing_afterwards",
];

/// Each test that runs has one of these words in its name. Unset: all run.
static WORDS: OnceLock<Vec<String>> = OnceLock::new();

/// Restricts [`run`] to tests with one of these words in their names.
pub fn choose(words: &[&str]) {
    _ = WORDS.set(words.iter().map(|&word| word.to_owned()).collect());
}

/// The tests with one of the words in their names, also those that otherwise wait for `--full`. Without words all.
///
/// # Errors
/// A word is in no test's name.
fn chosen(tests: Vec<Test>, words: &[String]) -> Result<Vec<Test>> {
    let has = |test: &Test, word: &String| test.name.contains(word.as_str());
    for word in words {
        ensure!(tests.iter().any(|test| has(test, word)), "`{word}` is neither a step nor in the name of a test");
    }
    if words.is_empty() {
        return Ok(tests);
    }
    let named = tests.into_iter().filter(|test| words.iter().any(|word| has(test, word)));
    Ok(named.map(|test| Test { is_left: false, ..test }).collect())
}

/// Whether the tests of a program have real guests.
pub fn is_theirs(program: &Program) -> bool {
    PROGRAMS.contains(&program.target.as_str())
}

fn tests() -> Result<Vec<Test>> {
    let all = programs::all()?;
    let mut theirs = Vec::new();
    for name in PROGRAMS {
        ensure!(all.iter().any(|program| program.target == name), "cargo has not built {name}");
        theirs.extend(all.iter().filter(|program| program.target == name));
    }
    let tests = programs::tests(theirs)?;
    for alone in ALONE {
        ensure!(tests.iter().any(|test| test.name == alone), "`{alone}`, which is to run alone, is no test");
    }
    chosen(tests, WORDS.get().map_or(&[][..], Vec::as_slice))
}

/// Lays what takes minutes to build, so that no test waits for it: a test's time is limited.
///
/// # Errors
/// The program that lays it fails, and has said why.
fn lay() -> Result<()> {
    let program = fuzz::programs().join("debug/examples/guests");
    ensure!(Command::new(&program).arg("--tests").status()?.success(), "{} failed", program.display());
    Ok(())
}

/// Builds and runs the tests.
pub fn run() -> Tally {
    let tests = match tests() {
        Ok(tests) => tests,
        Err(error) => {
            println!("guests: {error:#}");
            return Tally::of_one("guests: the tests cannot be built", false);
        }
    };
    // One more than there are processors, because a test waits half of its time.
    let count = thread::available_parallelism().map_or(1, |count| count.get() + 1).min(AT_MAX);
    println!("guests: {} tests, {count} at a time", tests.len());
    let (alone, rest): (Vec<Test>, Vec<Test>) = tests.into_iter().partition(|test| ALONE.contains(&test.name.as_str()));
    let laid = lay();
    let mut sum = Tally::of_one("guests: laid", laid.is_ok());
    if let Err(error) = laid {
        // The tests that can do without the missing part still run.
        println!("guests: {error:#}");
    }
    sum += Lanes { count, shows_output: true }.run(rest);
    if !alone.is_empty() {
        beside::wait();
        sum += Lanes { count: 1, shows_output: true }.run(alone);
    }
    sum
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn tests_are_chosen_by_words_in_their_names_and_a_word_of_none_is_an_error() {
        let program = Program { name: "p/t".into(), target: "t".into(), path: "p".into(), folder: "f".into() };
        let program = Arc::new(program);
        let test =
            |name: &str| Test { program: program.clone(), name: name.to_owned(), is_left: name.starts_with("scp") };
        let tests = || ["scp::carries", "boot::uefi"].map(test).into();
        let names = |words: &[&str]| -> Result<Vec<String>> {
            let words: Vec<String> = words.iter().map(|&word| word.into()).collect();
            Ok(chosen(tests(), &words)?.into_iter().map(|test| test.name).collect())
        };
        assert_eq!(names(&[]).unwrap(), ["scp::carries", "boot::uefi"]);
        assert!(!chosen(tests(), &["scp".to_owned()]).unwrap()[0].is_left, "whoever names it gets it");
        assert_eq!(names(&["uefi"]).unwrap(), ["boot::uefi"]);
        let error = names(&["scp", "typo"]).unwrap_err().to_string();
        assert_eq!(error, "`typo` is neither a step nor in the name of a test");
    }
}
