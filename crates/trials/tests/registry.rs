//! Every adapter of the registry faces every trial.

use nicety_adapters::REGISTRY;
use nicety_trials::scope::{entries, is_full};
use nicety_trials::tapes::Session;
use nicety_trials::{conformance, hostile, messages};

#[test]
fn a_reset_gives_an_adapter_as_new() {
    REGISTRY.iter().for_each(conformance::reset_equals_new);
}

#[test]
fn saving_restoring_and_saving_again_gives_the_same_bytes() {
    REGISTRY.iter().for_each(conformance::save_restore_save_is_identical);
}

#[test]
fn saved_state_that_is_cut_or_foreign_is_refused_and_changes_nothing() {
    REGISTRY.iter().for_each(conformance::foreign_state_is_refused);
}

#[test]
fn without_bus_mastering_no_adapter_touches_memory() {
    REGISTRY.iter().for_each(conformance::no_dma_without_bus_mastering);
}

#[test]
fn in_d3hot_no_adapter_touches_memory() {
    REGISTRY.iter().for_each(conformance::no_dma_in_d3hot);
}

#[test]
fn in_d3hot_no_register_answers() {
    REGISTRY.iter().for_each(conformance::registers_sleep_in_d3hot);
}

#[test]
fn without_bus_mastering_no_adapter_sends_a_message_and_with_it_again_none_is_lost() {
    let ways: usize = REGISTRY.iter().map(messages::no_message_without_bus_mastering).sum();
    assert!(ways >= 2, "vmxnet3 alone has MSI and MSI-X");
}

#[test]
fn in_d3hot_no_adapter_interrupts_and_in_d0_again_it_tells_what_it_kept() {
    let ways: usize = REGISTRY.iter().map(messages::no_interrupt_in_d3hot).sum();
    assert!(ways >= 3, "vmxnet3 has MSI and MSI-X, e1000 the line");
}

#[test]
fn every_register_answers_at_every_width_and_offset() {
    REGISTRY.iter().for_each(conformance::every_register_answers);
}

#[test]
fn reads_of_every_width_and_block_copies_agree() {
    REGISTRY.iter().for_each(conformance::wide_and_narrow_reads_agree);
}

#[test]
fn every_register_in_a_mapped_page_is_looked_at() {
    REGISTRY.iter().for_each(conformance::no_mapped_doorbell_is_overlooked);
}

#[test]
fn a_link_that_is_down_passes_no_frame_and_counts_each() {
    REGISTRY.iter().for_each(conformance::a_link_that_is_down_passes_no_frame);
}

#[test]
fn a_hostile_guest_gets_bounded_work_no_panic_and_no_frame_lost_uncounted() {
    for entry in REGISTRY {
        // Chips of a family share their code.
        let seeds = if entries().iter().any(|one| one.about.name == entry.about.name) { 8 } else { 2 };
        let mut frames = [0; 2];
        for seed in 0..seeds {
            let outcome = hostile::run(entry, seed, 4_000);
            println!("{} seed {seed}: {outcome:?}", entry.about.name);
            frames[0] += outcome.sent;
            frames[1] += outcome.received;
        }
        let least = frames.iter().min();
        assert!(
            least > Some(&(seeds * 25)),
            "{}: too few frames got through to try much: {frames:?}",
            entry.about.name
        );
    }
}

/// A longer run reached this state after as many steps: the driver took back more buffers than it had given.
#[test]
fn a_driver_of_virtio_net_does_not_read_a_damaged_ring_without_end() {
    let entry = nicety_adapters::find("virtio-net-pci").expect("it is registered");
    hostile::run(entry, 1_882_813_118_808_191, 4_683);
}

#[test]
fn a_tape_of_a_session_plays_to_the_same_frames_interrupts_and_state() {
    for entry in REGISTRY {
        let session = Session::of_a_driver(entry, if is_full() { 400 } else { 16 });
        let (calls, sent, received) = (session.entries.len(), session.sent.len(), session.received);
        println!("{}: {calls} calls, {sent} packets out, {received} in", entry.about.name);
        assert!(sent > 50 && received > 50, "{}", entry.about.name);
        session.plays();
    }
}

#[test]
fn a_tape_of_a_hostile_guest_plays_to_the_same_state() {
    for entry in REGISTRY {
        for seed in 0..if is_full() { 40 } else { 4 } {
            Session::of_a_hostile_guest(entry, seed, 200).plays();
        }
    }
}

#[test]
fn a_tape_that_was_changed_is_noticed() {
    for entry in entries() {
        Session::of_a_driver(entry, 6).notices_changes(6);
    }
}
