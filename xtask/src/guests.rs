//! Runs the tests with real guests side by side, because such a test mostly waits for a guest. Tests whose driver gives the chip only
//! milliseconds run [`ALONE`], at the end, and those that only wait run in a lane of their own ([`WAITING`]). Each result is shown with
//! its measurements; a neighbour makes them less exact.

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
const ALONE: [&str; 14] = [
    "drivers::both_kernels_ping_and_send_a_little_both_ways_over_an_ne2k_pci",
    "lab::a_vm_goes_on_at_its_twin_under_a_checked_connection_and_its_copies_and_outage_are_known",
    "survives::a_vm_of_libvirt_s_goes_on_at_its_twin_as_the_page_says_and_libvirt_sees_it_there",
    "twins::a_vm_goes_on_at_its_twin_when_its_qemu_is_killed_and_takes_a_new_twin_again_and_again",
    "twins::a_vm_goes_on_at_its_twin_when_its_whole_host_dies",
    "twins::a_vm_is_handed_over_stopped_and_protected_by_an_administrators_wish",
    "twins::cut::link_and_lease_that_are_cut_together_leave_one_owner_at_any_instant_and_no_wrong_byte",
    "twins::fabric::a_vm_of_a_fabric_whose_daemon_is_killed_is_reached_at_its_twin_and_stays_there_when_the_daemon_is_back",
    "twins::links::a_link_that_is_cut_both_ways_or_one_way_leaves_one_owner_and_no_wrong_byte",
    "twins::links::a_link_that_is_slower_than_the_vm_writes_its_memory_ends_the_protection_and_the_vm_goes_on",
    "twins::links::a_vm_with_two_ports_and_its_lease_in_etcd_goes_on_at_its_twin_with_both",
    "twins::links::an_upgrade_of_the_twins_daemon_costs_no_takeover_and_a_kill_of_the_owners_keeper_one",
    "twins::a_vm_stays_where_it_is_when_its_daemon_is_killed_or_replaced_and_stays_or_is_protected_again",
    "twins::no_answered_request_is_forgotten_whatever_is_killed_and_a_host_that_stood_still_says_nothing_afterwards",
];

/// Tests that need less than a quarter of a processor, and at least ten seconds: they wait for timers, time limits or rates. They run one
/// after the other beside all others, so that they do not take the place of a test that works.
const WAITING: [&str; 21] = [
    "bonding::linux_bonds_four_links_with_a_team_and_goes_on_while_they_go",
    "drivers::the_e1000_passes_every_self_test_of_its_driver",
    "fabric::moved::a_guest_with_a_function_and_a_standby_of_one_address_moves_by_the_standby_and_is_reached_at_each_port",
    "functions::linux_sees_what_its_host_sets_of_a_card_s_function_as_by_ip_link",
    "hook::the_ports_of_a_libvirtd_s_vms_come_and_go_with_them_and_move_with_them_to_another_libvirtd",
    "inward::what_comes_in_keeps_a_reservation_and_tells_linux_s_tcp_by_marks_or_by_drops",
    "libvirt::debian_13_s_libvirtd_runs_domains_of_what_attach_prints_and_their_qemu_reaches_the_sockets",
    "messages::an_intel_chips_tails_are_no_messages_where_its_ring_pages_are_mapped",
    "multicast::a_group_reaches_the_guests_that_have_joined_it_until_they_leave",
    "refused::what_a_policy_refuses_of_linux_is_counted_and_logged_by_its_reason",
    "shaped::tcp_between_guests_gets_what_a_shape_gives_and_no_more",
    "standby::a_virtio_net_stands_in_for_a_function_that_its_guest_lets_go_and_takes_back",
    "stood_still::all_adapters_of_a_guest_in_qemu_come_back_when_the_daemon_stood_still_for_seven_seconds",
    "tools::the_igb_passes_every_self_test_of_its_driver",
    "user_mode::a_frame_for_another_address_reaches_the_guest_only_while_its_interface_is_promiscuous",
    "user_mode::a_user_mode_guest_outlives_a_daemon_that_is_killed_under_traffic",
    "user_mode::every_e1000_and_the_e1000e_pass_every_self_test_of_their_drivers",
    "a_cluster_of_three_goes_on_without_its_leader_and_one_without_a_majority_says_so",
    "clocks::hosts_whose_clocks_differ_by_decades_are_one_fabric_and_forget_one_that_dies_in_time",
    "outside::of_two_hosts_with_uplinks_into_one_bridge_one_loses_its_uplink_and_its_tunnel_goes_on",
    "three::servers::servers_that_stand_still_take_nothing_away_and_nothing_flaps_when_they_go_on",
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
    for named in ALONE.into_iter().chain(WAITING) {
        ensure!(
            tests.iter().any(|test| test.name == named),
            "`{named}`, which is to run apart from the others, is no test"
        );
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
    let (waiting, rest): (Vec<Test>, Vec<Test>) =
        rest.into_iter().partition(|test| WAITING.contains(&test.name.as_str()));
    let (lanes, one) = (Lanes { count, shows_output: true }, Lanes { count: 1, shows_output: true });
    sum += thread::scope(|scope| {
        let beside = scope.spawn(|| one.run(waiting));
        let mut sum = lanes.run(rest);
        sum += beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        sum
    });
    if !alone.is_empty() {
        beside::wait();
        sum += one.run(alone);
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
