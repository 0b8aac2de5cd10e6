//! Ends of a protection whose QEMU does not what it should. Answers and events are QEMU 11.1.3's words; real QEMUs are in
//! `crates/nicety/tests/real_adapters/colo.rs`.

use std::time::{Duration, Instant};

use nicety_qmp::{Answer, Colo, Command, Dialogue, Failure, Item, News, Phase, Role, Settings, StepLimits};
use serde_json::{Value, json};

const LIMITS: StepLimits = StepLimits {
    answer: Duration::from_secs(5),
    synchronize: Duration::from_secs(60),
    failover: Duration::from_millis(400),
};

/// An end, a clock, and QEMU's part, played by the test.
struct Play {
    colo: Colo,
    now: Instant,
    id: u64,
}

impl Play {
    fn primary() -> Play {
        let now = Instant::now();
        Play { colo: Colo::primary(settings(), now), now, id: 0 }
    }

    fn secondary() -> Play {
        let now = Instant::now();
        Play { colo: Colo::secondary(settings(), now), now, id: 0 }
    }

    fn command(&mut self) -> Option<Command> {
        let command = self.colo.command(self.now)?;
        self.id += 1;
        self.colo.sent(self.id);
        Some(command)
    }

    /// The next command, which must be this one.
    #[track_caller]
    fn asks(&mut self, name: &str) -> Value {
        let command = self.command().unwrap_or_else(|| panic!("no {name}: {:?}", self.colo));
        assert_eq!(command.name, name);
        command.arguments
    }

    fn answer(&mut self, result: Answer) {
        self.colo.hear(&Item::Answer { id: self.id, result }, self.now);
    }

    #[track_caller]
    fn done(&mut self, name: &str) {
        self.asks(name);
        self.answer(Ok(json!({})));
    }

    fn event(&mut self, name: &str, data: Value) {
        let at = Duration::from_secs(1_796_080_000);
        self.colo.hear(&Item::Event { name: name.to_owned(), data, at }, self.now);
    }

    fn status(&mut self, status: &str) {
        self.event("MIGRATION", json!({"status": status}));
    }

    fn later(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
    }

    fn news(&mut self) -> Vec<News> {
        std::iter::from_fn(|| self.colo.news()).collect()
    }

    /// A primary whose VM is protected.
    fn protected() -> Play {
        let mut play = Play::primary();
        play.done("migrate-set-capabilities");
        play.done("migrate-set-parameters");
        play.done("migrate");
        ["setup", "active", "device"].iter().for_each(|status| play.status(status));
        play.event("STOP", Value::Null);
        play.status("colo");
        play.event("RESUME", Value::Null);
        assert!(matches!(play.news()[..], [News::Synchronized { .. }]));
        play
    }

    /// What follows an accepted `x-colo-lost-heartbeat`.
    #[track_caller]
    fn goes_on(&mut self) {
        self.asks("query-migrate");
        self.answer(Ok(json!({"status": "completed"})));
        self.asks("query-status");
        self.answer(Ok(json!({"status": "running", "running": true})));
        assert_eq!((self.colo.phase(), self.news()), (Phase::Alone, vec![News::Alone]));
        assert_eq!(
            self.asks("migrate-set-capabilities")["capabilities"][0],
            json!({"capability": "x-colo", "state": false})
        );
    }
}

fn settings() -> Settings {
    Settings { uri: "unix:/run/vm1.colo".into(), delay_ms: 50, limits: LIMITS }
}

fn refused(desc: &str) -> Answer {
    Err(Failure { class: "GenericError".into(), desc: desc.into() })
}

#[track_caller]
fn failure(play: &mut Play, words: &[&str]) {
    let news = play.news();
    let [News::Failed(why)] = &news[..] else { panic!("{news:?}") };
    assert!(words.iter().all(|words| why.contains(words)), "{why}");
    assert_eq!(play.colo.phase(), Phase::Failed);
}

#[test]
fn a_failover_that_does_not_return_is_helped_by_yank_once_and_then_given_up() {
    let mut play = Play::protected();
    play.colo.fail_over(play.now);
    play.asks("x-colo-lost-heartbeat");
    let heartbeat = play.id;
    assert_eq!(play.command(), None);
    play.later(400);
    assert!(play.colo.wake_at().is_some_and(|at| at <= play.now), "its owner wakes it");
    let yank = play.command().expect("yank");
    assert_eq!((yank.name, yank.is_out_of_band), ("yank", true));
    assert_eq!(yank.arguments, json!({"instances": [{"type": "migration"}]}));
    assert_eq!(play.command(), None, "only once");
    play.answer(Ok(json!({})));
    play.event("COLO_EXIT", json!({"mode": "primary", "reason": "error"}));
    play.colo.hear(&Item::Answer { id: heartbeat, result: Ok(json!({})) }, play.now);
    play.goes_on();

    let mut play = Play::protected();
    play.colo.fail_over(play.now);
    play.asks("x-colo-lost-heartbeat");
    play.later(400);
    play.asks("yank");
    play.later(400);
    assert_eq!(play.command(), None);
    failure(&mut play, &["not gone on alone within 800ms", "end it"]);
}

#[test]
fn a_failover_waits_for_a_load_that_is_under_way() {
    let mut play = Play::protected();
    play.colo.fail_over(play.now);
    play.done("x-colo-lost-heartbeat");
    play.asks("query-migrate");
    play.answer(Ok(json!({"status": "colo"})));
    assert_eq!(play.command(), None, "it does not ask without a pause");
    play.later(10);
    play.goes_on();
}

#[test]
fn a_stream_that_breaks_is_told_and_only_the_owner_has_the_vm_go_on() {
    let mut play = Play::protected();
    play.event("STOP", Value::Null);
    play.event("COLO_EXIT", json!({"mode": "primary", "reason": "error"}));
    play.later(100_000);
    assert_eq!((play.command(), play.news()), (None, vec![News::Broken]));
    assert!(play.colo.standing_since().is_some(), "its VM stands still until then");
    play.colo.fail_over(play.now);
    play.done("x-colo-lost-heartbeat");
    play.goes_on();
    // Somebody else's failover is noticed too.
    let mut play = Play::protected();
    play.event("COLO_EXIT", json!({"mode": "primary", "reason": "request"}));
    assert_eq!(play.news(), [News::Alone]);
}

#[test]
fn a_secondary_without_a_whole_copy_cannot_take_over() {
    let mut play = Play::secondary();
    play.done("migrate-set-capabilities");
    assert_eq!(play.asks("migrate-incoming"), json!({"uri": "unix:/run/vm1.colo", "exit-on-error": false}));
    play.answer(Ok(json!({})));
    assert_eq!((play.colo.phase(), play.news()), (Phase::Listening, vec![News::Listening]));
    play.status("active");
    play.colo.fail_over(play.now);
    failure(&mut play, &["no whole copy", "end it"]);
    play.colo.quit();
    play.asks("quit");
}

#[test]
fn a_secondary_that_a_plain_live_migration_reaches_says_that_nothing_protects_it() {
    let mut play = Play::secondary();
    play.done("migrate-set-capabilities");
    play.done("migrate-incoming");
    play.news();
    play.status("active");
    play.event("RESUME", Value::Null);
    play.status("completed");
    failure(&mut play, &["plain live migration", "nothing protects it"]);
}

#[test]
fn each_refusal_names_what_was_asked_and_qemus_own_words() {
    let steps = ["migrate-set-capabilities", "migrate-set-parameters", "migrate"];
    for (refuses, words) in [
        (0, ["the capabilities x-colo, return-path", "Capability 'x-colo' requires"]),
        (1, ["a delay of 50 ms", "Capability 'x-colo' requires"]),
        (2, ["to unix:/run/vm1.colo", "Capability 'x-colo' requires"]),
    ] {
        let mut play = Play::primary();
        steps[..refuses].iter().for_each(|step| play.done(step));
        play.asks(steps[refuses]);
        play.answer(refused("Capability 'x-colo' requires capability 'return-path'"));
        failure(&mut play, &words);
    }
    let mut play = Play::secondary();
    play.done("migrate-set-capabilities");
    play.asks("migrate-incoming");
    play.answer(refused("'-incoming' was not specified on the command line"));
    failure(&mut play, &["does not listen at unix:/run/vm1.colo", "was not specified", "-incoming defer"]);
}

#[test]
fn a_first_synchronization_beyond_its_limit_is_ended_and_one_in_its_last_step_is_told() {
    let mut play = Play::primary();
    ["migrate-set-capabilities", "migrate-set-parameters", "migrate"].iter().for_each(|step| play.done(step));
    play.status("active");
    play.later(60_000);
    play.asks("yank");
    play.answer(Ok(json!({})));
    play.status("failing");
    play.status("failed");
    play.asks("query-migrate");
    play.answer(Ok(json!({"status": "failed", "error-desc": "Unable to write to socket: Broken pipe"})));
    play.asks("query-status");
    play.answer(Ok(json!({"status": "running", "running": true})));
    failure(&mut play, &["not ended within 60s", "slower"]);
    // The secondary has no x-colo: the primary's VM stands still after MIGRATION colo.
    let mut play = Play::primary();
    ["migrate-set-capabilities", "migrate-set-parameters", "migrate"].iter().for_each(|step| play.done(step));
    play.event("STOP", Value::Null);
    play.status("colo");
    play.later(60_000);
    assert_eq!((play.command(), play.news()), (None, vec![News::Broken]));
    play.colo.fail_over(play.now);
    play.done("x-colo-lost-heartbeat");
    play.goes_on();
}

#[test]
fn a_qemu_whose_main_loop_is_stuck_is_given_up_at_each_step() {
    for steps in [&["migrate-set-capabilities"][..], &["migrate-set-capabilities", "migrate-set-parameters"]] {
        let mut play = Play::primary();
        let (last, before) = steps.split_last().expect("a step");
        before.iter().for_each(|step| play.done(step));
        play.asks(last);
        play.later(5_000);
        assert!(play.command().is_none());
        failure(&mut play, &[last, "within 5s", "stuck"]);
    }
}

#[test]
fn an_owner_that_is_started_again_finds_what_runs() {
    let now = Instant::now();
    let mut play = Play { colo: Colo::adopted(Role::Primary, settings(), now), now, id: 0 };
    play.asks("query-colo-status");
    play.answer(Ok(json!({"last-mode": "none", "mode": "primary", "reason": "none"})));
    assert_eq!((play.colo.phase(), play.news()), (Phase::Running, vec![News::Adopted]));
    assert_eq!(
        play.asks("migrate-set-parameters"),
        json!({"x-checkpoint-delay": 50}),
        "a checkpoint shows that its peer lives"
    );
    // Nothing runs any more, or a first synchronization is in the middle.
    let mut play = Play { colo: Colo::adopted(Role::Primary, settings(), now), now, id: 0 };
    play.asks("query-colo-status");
    play.answer(Ok(json!({"last-mode": "none", "mode": "none", "reason": "none"})));
    play.asks("yank");
    play.answer(Err(Failure { class: "DeviceNotFound".into(), desc: "Instance not found".into() }));
    play.goes_on();
    // A secondary that waits still, or one of another VM's protection.
    let mut play = Play { colo: Colo::adopted(Role::Secondary, settings(), now), now, id: 0 };
    play.asks("query-colo-status");
    play.answer(Ok(json!({"last-mode": "none", "mode": "none", "reason": "none"})));
    failure(&mut play, &["no secondary of COLO", "none"]);
}

#[test]
fn checkpoints_that_are_asked_for_while_one_request_is_under_way_become_one() {
    let mut play = Play::protected();
    (0..9).for_each(|_| play.colo.checkpoint());
    play.asks("migrate-set-parameters");
    play.colo.set_delay(20);
    play.colo.checkpoint();
    play.answer(Ok(json!({})));
    assert_eq!(play.asks("migrate-set-parameters"), json!({"x-checkpoint-delay": 20}));
    play.answer(refused("out of range"));
    assert!(matches!(&play.news()[..], [News::Complaint(why)] if why.contains("out of range")));
    assert_eq!((play.command(), play.colo.phase()), (None, Phase::Running));
}

#[test]
fn news_that_nobody_takes_and_strange_items_do_not_pile_up() {
    let mut play = Play::protected();
    for _ in 0..5_000 {
        play.event("STOP", Value::Null);
        play.event("RESUME", json!([1]));
        play.event("MIGRATION", json!({"status": 7}));
        play.event("NOT_KNOWN", Value::Null);
        play.colo.hear(&Item::Answer { id: 999, result: Ok(Value::Null) }, play.now);
    }
    play.event("SHUTDOWN", json!({"guest": true, "reason": "guest-shutdown"}));
    let news = play.news();
    assert_eq!((play.colo.checkpoints(), news.len()), (5_000, 1_025));
    assert_eq!(news.last(), Some(&News::Shutdown { is_guests: true, reason: "guest-shutdown".into() }));
}
