//! VMMs that were started with the arguments for an adapter of another kind. They are disconnected at once, the log gives advice,
//! and the port serves the next VMM. Each test runs with one worker and with two.

#[macro_use]
#[path = "../../plane/tests/workers/mod.rs"]
mod workers;
mod logged;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use logged::{Stage, TIMEOUT, lines_of};
use nicety_daemon::report::Condition;
use nicety_vfio_user::Client;
use nicety_vhost_user::frontend::Frontend;

/// QEMU's first message to a vhost-user back end: GET_FEATURES (1), version 1, no body (vhost-user.rst, "Header").
const VHOST_USER: [u8; 12] = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
/// QEMU's first message to a vfio-user server: number 0, VERSION (1), 214 bytes, a command, no error (vfio-user.rst, "Header");
/// then version 0.0, and the capabilities of QEMU 11 (hw/vfio-user/proxy.c, caps_json).
const VFIO_USER: &[u8; 214] = b"\0\0\x01\0\xd6\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0{\"capabilities\": {\"max_msg_fds\": 16, \
    \"migration\": {\"max_bitmap_size\": 268435456, \"pgsize\": 4096}, \"max_dma_maps\": 65535, \"max_data_xfer_size\": 1048576, \
    \"pgsizes\": 4096, \"write_multiple\": true}}\0";

/// The answer to it: number 0, VERSION, 16 bytes, a reply with the error EPROTONOSUPPORT.
const ANSWER: &[u8; 16] = b"\0\0\x01\0\x10\0\0\0\x21\0\0\0\x5d\0\0\0";

/// Sends this to the port. Checks that the port gives this answer, hangs up and logs this text.
fn is_sent_away(stage: &Stage, first: &[u8], answer: &[u8], reason: &str) {
    let mut vmm = UnixStream::connect(stage.socket()).unwrap();
    vmm.set_read_timeout(Some(TIMEOUT)).unwrap();
    vmm.write_all(first).unwrap();
    let mut received = Vec::new();
    if let Err(error) = vmm.read_to_end(&mut received) {
        // Unread data resets the connection.
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    assert_eq!(received, answer);
    let reason = format!("{reason}: `nicety attach {}` prints the words for it", stage.name);
    stage.until("a line of the log", || lines_of(&stage.name).iter().any(|line| line.contains(&reason)));
    stage.until_is(Condition::Waiting);
    let sentence = stage.report().sentence;
    assert!(sentence.contains(" s ago: ") && sentence.ends_with(&reason), "{sentence}");
}

/// Checks that the port drops the old report once a VMM has connected and disconnected.
fn is_forgotten(stage: &Stage) {
    let sentence = || stage.report().sentence;
    stage.until("a port that just waits", || sentence().ends_with("says how to start one"));
}

fn a_vmm_with_the_words_for_a_vhost_user_adapter_is_sent_away_with_the_reason(workers: usize) {
    for adapter in ["e1000", "vmxnet3"] {
        let stage = Stage::new(&format!("{adapter}-crossed"), adapter, workers);
        let reason = format!(
            "the VMM is disconnected: it speaks vhost-user, and this port is {adapter}, which is reached by vfio-user"
        );
        is_sent_away(&stage, &VHOST_USER, &[], &reason);
        let mut id = [0; 4];
        Client::connect(stage.socket()).unwrap().region_read(7, 0, &mut id).unwrap();
        assert_ne!(id, [0xff; 4], "the port serves the next one");
        is_forgotten(&stage);
    }
}

fn a_vmm_with_the_words_for_a_vfio_user_adapter_is_sent_away_with_the_reason(workers: usize) {
    let stage = Stage::new("virtio-crossed", "virtio-net", workers);
    let reason = "the front end is disconnected: it speaks vfio-user, and this port is virtio-net, which is reached by vhost-user";
    is_sent_away(&stage, VFIO_USER, ANSWER, reason);
    Frontend::connect(stage.socket()).unwrap().negotiate(1 << 32).unwrap();
    is_forgotten(&stage);
}

/// QEMU reconnects at once, thousands of times a second. The port serves it only a second later, and does nothing else for it.
fn a_vmm_that_comes_back_with_the_wrong_words_neither_keeps_its_worker_busy_nor_fills_the_log(workers: usize) {
    let stage = Stage::new("crossed-again", "e1000", workers);
    let begun = Instant::now();
    for _ in 0..3 {
        is_sent_away(&stage, &VHOST_USER, &[], "which is reached by vfio-user");
    }
    stage.daemon.stop();
    let most = stage.most_lines().min(begun.elapsed().as_secs() + 1);
    let count = lines_of(&stage.name).iter().filter(|line| line.contains("it speaks vhost-user")).count() as u64;
    assert!(count <= most, "{count} lines, and not {most}: one a second");
}

with_one_worker_and_with_two!(
    a_vmm_with_the_words_for_a_vhost_user_adapter_is_sent_away_with_the_reason,
    a_vmm_with_the_words_for_a_vfio_user_adapter_is_sent_away_with_the_reason,
    a_vmm_that_comes_back_with_the_wrong_words_neither_keeps_its_worker_busy_nor_fills_the_log,
);
