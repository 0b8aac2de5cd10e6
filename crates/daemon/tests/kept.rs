//! A keeper's daemon writes nothing into a port's journal for frames, and sends the keeper nothing: what they cost is the noted batch of
//! the messages that ring doorbells, and nothing at all if these are mapped.

mod nic;
mod stage;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use nic::Nic;
use nicety_host::Doorbells;
use nicety_keeper::{Channel, ChannelError, Holder};
use stage::Stage;

/// Frames that a guest sends at once.
const SENT: u64 = 64;
/// A journal's head, in bytes; and the fields in it that say which record is valid, and how long it is. Between them lies the noted batch
/// (crates/daemon/src/run/journal.rs).
const HEAD: usize = 4096;
const VALID: [std::ops::Range<usize>; 2] = [0..12, 36..44];

/// The journals that the keeper holds, the last of each port. They lie first in their groups.
fn journals(keeper: &Channel) -> [File; 2] {
    let mut journals: [Option<OwnedFd>; 2] = [None, None];
    while let Ok(message) = keeper.receive(Duration::ZERO) {
        if let Some(fd) = message.fds.into_iter().next() {
            let (_number, name) = message.content.split_at(8);
            journals[usize::from(name == b"vm2")] = Some(fd);
        }
    }
    journals.map(|fd| File::from(fd.unwrap()))
}

fn bytes(journal: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(journal.metadata().unwrap().len()).unwrap()];
    journal.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Everything but the noted batch and its answers.
fn records(journal: &[u8]) -> [&[u8]; 3] {
    [&journal[VALID[0].clone()], &journal[VALID[1].clone()], &journal[HEAD..]]
}

/// A time that each worker notes twice a second, whether frames pass or not.
const LOOKED: std::ops::Range<usize> = 44..48;

fn carries(is_mapped: bool) {
    let stage = Stage::new(1, &[]);
    let (ours, keeper) = Channel::pair().unwrap();
    stage.daemon.keep_by(Arc::new(Holder::from(ours)));
    for number in [1, 2] {
        let mut spec = stage.spec(number, "e1000e");
        spec.config.doorbells = is_mapped.then_some(Doorbells::Mapped);
        stage.daemon.open(spec).unwrap();
    }
    let (mut sender, mut receiver) = (Nic::new(&stage, 1), Nic::new(&stage, 2));
    if is_mapped {
        sender.map_registers();
    }
    let mut traffic = |times: u64| {
        for _ in 0..times {
            let taken = stage.taken(2);
            sender.send().unwrap();
            receiver.repost().unwrap();
            stage.until("frames", || stage.taken(2) >= taken + SENT);
        }
    };
    traffic(10);
    let journals = journals(&keeper);
    let timeless = |journal: &File| {
        let mut bytes = bytes(journal);
        bytes[LOOKED].fill(0);
        bytes
    };
    let before = journals.each_ref().map(timeless);
    traffic(200);
    let after = journals.each_ref().map(timeless);
    for (before, after) in before.iter().zip(&after) {
        assert!(records(before)[2].iter().any(|byte| *byte != 0), "it has a record");
        assert!(records(before) == records(after), "a record was written, mapped: {is_mapped}");
    }
    assert_eq!(before[0] == after[0], is_mapped, "the sender's journal");
    assert_eq!(keeper.receive(Duration::ZERO).unwrap_err(), ChannelError::Late(Duration::ZERO));
    println!("12,800 frames, mapped: {is_mapped}: no record, no message to the keeper");
}

#[test]
fn frames_write_no_record_and_send_the_keeper_nothing_and_with_mapped_doorbells_not_even_a_note() {
    carries(false);
    carries(true);
}
