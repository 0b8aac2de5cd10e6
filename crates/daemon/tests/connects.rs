//! A port that connects to its VMM's socket. The VMM starts late, leaves and returns, stays silent, sends rubbish, hangs up.

#[macro_use]
#[path = "../../plane/tests/workers/mod.rs"]
mod workers;
mod logged;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nicety_daemon::daemon::StartError;
use nicety_daemon::report::Condition;
use nicety_host::Role;
use nicety_vhost_user::frontend::Frontend;

use logged::{Stage, TIMEOUT, lines_of};

/// The words of a port whose VMM has been silent for 10 s, the longest that a step might wait for it.
const SILENT: &str = "who listens there has said nothing for 10s";
/// Number of tries on a machine that stands still.
const TRIES: usize = 3;
/// Number of times that a VMM leaves and returns.
const ROUNDS: usize = 3;

/// A stage with a port that connects, and another that listens.
fn stage(name: &str, workers: usize) -> Stage {
    let stage = Stage::new(name, "virtio-net", workers);
    let listens = stage.daemon.close(&stage.name).and_then(|view| view.spec).unwrap();
    let mut connects = listens.clone();
    connects.config.role = Role::Connect;
    stage.daemon.open(connects).unwrap();
    let mut beside = listens;
    beside.config.name = format!("{name}-beside");
    beside.config.socket = stage.socket().with_extension("2");
    beside.config.mac.0[5] = 2;
    stage.daemon.open(beside).unwrap();
    stage
}

/// Number of the log's lines about the stage's port that contain this text.
fn lines_with(stage: &Stage, what: &str) -> usize {
    lines_of(&stage.name).iter().filter(|line| line.contains(what)).count()
}

/// Accepts the next connection, which must come in time.
fn accepted(vmm: &UnixListener) -> UnixStream {
    vmm.set_nonblocking(true).unwrap();
    let end = Instant::now() + TIMEOUT;
    loop {
        match vmm.accept() {
            Ok((socket, _)) => {
                socket.set_nonblocking(false).unwrap();
                socket.set_read_timeout(Some(TIMEOUT)).unwrap();
                return socket;
            }
            Err(_) => assert!(Instant::now() < end, "nobody connects within {TIMEOUT:?}"),
        }
        std::thread::yield_now();
    }
}

/// Checks that a VMM's session works.
fn is_served(socket: UnixStream) -> Frontend {
    let mut front = Frontend::from_socket(socket.into());
    front.negotiate(1 << 32).unwrap();
    front.queue_pairs().unwrap();
    front
}

/// Waits until the VMM is attached. It shares no memory.
fn until_attached(stage: &Stage) {
    stage.until("a VMM is there", || stage.daemon.views()[0].state.attached);
}

/// Checks that the port that listens serves its VMM.
fn the_other_port_is_served(stage: &Stage) {
    let socket = UnixStream::connect(stage.socket().with_extension("2")).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    drop(is_served(socket));
}

/// Checks that a step waits for no silent VMM. It ends before another port, whose VMM was silent first, says so: an order, and no time.
/// On a machine that stands still meanwhile it is tried again.
fn waits_for_no_silent_vmm(workers: usize, mut step: impl FnMut(usize)) {
    for number in 0..TRIES {
        let clock = stage(&format!("clock{number}-"), workers);
        let vmm = UnixListener::bind(clock.socket()).unwrap();
        let _silent = accepted(&vmm);
        step(number);
        if lines_with(&clock, SILENT) == 0 {
            return;
        }
    }
    panic!("each of {TRIES} times it took as long as a silent VMM is waited for");
}

/// Most tries to connect in this time: at 0, 0.1, 0.3, 0.7, 1.5, 3.1 s, and from then on every 2 s.
fn most_tries(elapsed: Duration) -> usize {
    let rare = elapsed.saturating_sub(Duration::from_millis(3_100)).as_secs() as usize / 2;
    [0, 100, 300, 700, 1_500, 3_100].iter().filter(|ms| Duration::from_millis(**ms) <= elapsed).count() + rare
}

fn a_vmm_that_comes_late_goes_and_returns_is_found_each_time(workers: usize) {
    let stage = stage("late", workers);
    let path = stage.socket();
    for round in 1..=ROUNDS {
        let nobody = format!("connecting to {}: nobody listens there", path.display());
        stage.until("it is told", || stage.report().sentence.starts_with(&nobody));
        stage.until_is(Condition::Waiting);
        let how = format!("; `nicety attach {}` says how to start a VM that listens there", stage.name);
        assert_eq!(stage.report().sentence, format!("{nobody}{how}"));
        // The port tries again meanwhile, and logs only once.
        stage.until("it is logged", || lines_with(&stage, "nobody listens there") == round);
        let vmm = UnixListener::bind(&path).unwrap();
        let front = is_served(accepted(&vmm));
        until_attached(&stage);
        drop(front);
        // A VMM that continues to listen is found again, too.
        let front = is_served(accepted(&vmm));
        until_attached(&stage);
        drop((vmm, front));
        if round % 2 == 0 {
            // A VMM that was killed leaves its socket behind.
            stage.until("it is told", || stage.report().sentence.starts_with(&nobody));
        }
        std::fs::remove_file(&path).unwrap();
    }
    assert_eq!(lines_with(&stage, "connected to the front end at"), 2 * ROUNDS);
    // The daemon must not remove the VMM's socket.
    let vmm = UnixListener::bind(&path).unwrap();
    let _front = is_served(accepted(&vmm));
    stage.daemon.stop();
    assert!(path.exists());
}

fn a_vmm_that_hangs_up_at_once_is_tried_ever_more_rarely_and_disturbs_nobody(workers: usize) {
    let begun = Instant::now();
    let stage = stage("hangs-up", workers);
    let vmm = UnixListener::bind(stage.socket()).unwrap();
    for tries in 1..=5 {
        drop(accepted(&vmm));
        let most = most_tries(begun.elapsed());
        assert!(tries <= most, "{tries} connections, and {most} were due");
        the_other_port_is_served(&stage);
    }
    let _front = is_served(accepted(&vmm));
    until_attached(&stage);
    assert!(lines_of(&stage.name).len() as u64 <= 4 * stage.most_lines());
}

fn a_vmm_that_speaks_something_else_is_left_and_tried_again(workers: usize) {
    let stage = stage("rubbish", workers);
    let vmm = UnixListener::bind(stage.socket()).unwrap();
    for _ in 0..2 {
        let mut socket = accepted(&vmm);
        socket.write_all(&[0xff; 64]).unwrap();
        // The port hangs up. Data that it had not read resets the connection.
        let end = socket.read(&mut [0]);
        assert!(!end.is_ok_and(|count| count > 0));
        let sentence_start = format!("connecting to {};", stage.socket().display());
        stage.until("it is told", || {
            let sentence = stage.report().sentence;
            sentence.starts_with(&sentence_start)
                && sentence.contains("s ago: the front end is disconnected: header flags 0xffffffff")
        });
        the_other_port_is_served(&stage);
    }
    let _front = is_served(accepted(&vmm));
    until_attached(&stage);
}

/// The VMM may have another back end, or may not have looked yet. The port waits for it, unless another VMM listens there by
/// then.
#[test]
fn a_vmm_that_says_nothing_keeps_its_connection_until_another_listens() {
    let stage = stage("silent", 1);
    let path = stage.socket();
    let vmm = UnixListener::bind(&path).unwrap();
    let mut silent = accepted(&vmm);
    let what = format!("connected to {}: {SILENT}", path.display());
    stage.until("it is told", || stage.report().sentence.starts_with(&what));
    stage.until("it is logged", || lines_with(&stage, &what) == 1);
    assert_eq!(stage.report().condition, Condition::Waiting);
    waits_for_no_silent_vmm(1, |_| the_other_port_is_served(&stage));
    // It comes late, but on the same connection.
    let front = is_served(silent.try_clone().unwrap());
    until_attached(&stage);
    drop(front);
    silent.shutdown(std::net::Shutdown::Both).unwrap();
    silent = accepted(&vmm);
    std::fs::remove_file(&path).unwrap();
    let next = UnixListener::bind(&path).unwrap();
    let _front = is_served(accepted(&next));
    assert_eq!(silent.read(&mut [0]).unwrap(), 0, "the first one is left");
    until_attached(&stage);
}

fn what_is_no_socket_is_told_and_left_alone_and_no_end_of_the_daemon_waits(workers: usize) {
    let stage = stage("file", workers);
    std::fs::write(stage.socket(), "precious").unwrap();
    let sentence_start =
        format!("connecting to {}: that is no socket: remove it, or name another", stage.socket().display());
    stage.until("it is told", || stage.report().sentence.starts_with(&sentence_start));
    the_other_port_is_served(&stage);
    let mut function = stage.daemon.views().remove(0).spec.unwrap();
    function.config.name = "function".to_owned();
    function.config.entry = nicety_adapters::find("e1000").unwrap();
    let refused = stage.daemon.open(function).unwrap_err();
    assert!(matches!(refused, StartError::Connects { adapter: "e1000", .. }), "{refused}");
    // Stop between two tries, and while a VMM is silent.
    stage.daemon.close(&stage.name).unwrap();
    assert_eq!(std::fs::read_to_string(stage.socket()).unwrap(), "precious");
    waits_for_no_silent_vmm(workers, |number| {
        let stage = self::stage(&format!("silent-end{number}-"), workers);
        let vmm = UnixListener::bind(stage.socket()).unwrap();
        let _silent = accepted(&vmm);
        stage.daemon.stop();
    });
}

with_one_worker_and_with_two!(
    a_vmm_that_comes_late_goes_and_returns_is_found_each_time,
    a_vmm_that_hangs_up_at_once_is_tried_ever_more_rarely_and_disturbs_nobody,
    a_vmm_that_speaks_something_else_is_left_and_tried_again,
    what_is_no_socket_is_told_and_left_alone_and_no_end_of_the_daemon_waits,
);
