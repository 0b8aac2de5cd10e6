//! A mark that stays at one run of a QEMU: an object of it with a name of ours. QEMU itself does not say which run it is; a process's
//! number is used again, and another one in a container.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::{Answer, Command, Dialogue, Item};

const OWNER: &str = "nicety-run-";
const TWIN: &str = "nicety-twin-";

/// The marks of a QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marked {
    /// The number of its run.
    pub run: u64,
    /// It has begun as a twin, and has not taken over, as far as its marks say.
    pub is_twin: bool,
    /// It had a mark already: a daemon has had to do with this run before.
    pub is_known: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    List,
    Set,
    Done,
}

/// Reads the mark of a QEMU, or sets one: a [`Dialogue`].
#[derive(Debug)]
pub struct Mark {
    fresh: u64,
    as_twin: bool,
    limit: Duration,
    step: Step,
    given: bool,
    under_way: Option<u64>,
    deadline: Option<Instant>,
    result: Option<Result<Marked, String>>,
}

/// The command that marks a run as an owner's, or as a twin's.
pub fn mark(run: u64, as_twin: bool) -> Command {
    let name = if as_twin { TWIN } else { OWNER };
    Command::new("object-add", json!({"qom-type": "secret", "id": format!("{name}{run:016x}"), "data": "-"}))
}

impl Mark {
    /// `fresh` is the number of a run that has none. It is random.
    pub fn new(fresh: u64, as_twin: bool, limit: Duration) -> Self {
        let step = Step::List;
        Self { fresh, as_twin, limit, step, given: false, under_way: None, deadline: None, result: None }
    }

    /// The result, once.
    pub fn take(&mut self) -> Option<Result<Marked, String>> {
        self.result.take()
    }

    fn end(&mut self, result: Result<Marked, String>) {
        self.step = Step::Done;
        self.result.get_or_insert(result);
    }

    fn listed(&mut self, answer: &Answer) {
        let names: Vec<&str> = match answer {
            Ok(list) => list.as_array().into_iter().flatten().filter_map(|one| one["name"].as_str()).collect(),
            Err(failure) => return self.end(Err(format!("QEMU does not list its objects: {failure}"))),
        };
        let run = |prefix: &str| {
            let hex = names.iter().find_map(|name| name.strip_prefix(prefix))?;
            u64::from_str_radix(hex, 16).ok()
        };
        match (run(OWNER), run(TWIN)) {
            (Some(run), _) => self.end(Ok(Marked { run, is_twin: false, is_known: true })),
            (None, Some(run)) => self.end(Ok(Marked { run, is_twin: true, is_known: true })),
            (None, None) => (self.step, self.given) = (Step::Set, false),
        }
    }
}

impl Dialogue for Mark {
    fn command(&mut self, now: Instant) -> Option<Command> {
        let deadline = *self.deadline.get_or_insert(now + self.limit);
        if now >= deadline && self.step != Step::Done {
            self.end(Err(format!("QEMU has not answered within {:?}: its main loop is stuck", self.limit)));
        }
        if self.given || self.step == Step::Done {
            return None;
        }
        self.given = true;
        Some(match self.step {
            Step::List => Command::new("qom-list", json!({"path": "/objects"})),
            _ => mark(self.fresh, self.as_twin),
        })
    }

    fn sent(&mut self, id: u64) {
        self.under_way = Some(id);
    }

    fn hear(&mut self, item: &Item, _now: Instant) {
        let Item::Answer { id, result } = item else { return };
        if self.under_way.take_if(|under_way| under_way == id).is_none() {
            return;
        }
        match (self.step, result) {
            (Step::List, answer) => self.listed(answer),
            (Step::Set, Ok(_)) => self.end(Ok(Marked { run: self.fresh, is_twin: self.as_twin, is_known: false })),
            (Step::Set, Err(failure)) => self.end(Err(format!("QEMU does not take a mark of ours: {failure}"))),
            (Step::Done, _) => {}
        }
    }

    fn wake_at(&self) -> Option<Instant> {
        self.deadline.filter(|_| self.step != Step::Done)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::Failure;

    fn ask(answers: &[Answer]) -> (Vec<Command>, Option<Result<Marked, String>>) {
        let (mut mark, now) = (Mark::new(0xabc, true, Duration::from_secs(1)), Instant::now());
        let mut asked = Vec::new();
        for (id, answer) in (1..).zip(answers) {
            asked.extend(mark.command(now));
            mark.sent(id);
            mark.hear(&Item::Answer { id, result: answer.clone() }, now);
        }
        (asked, mark.take())
    }

    #[test]
    fn a_run_is_marked_once_and_known_again() {
        let none = Ok(json!([{"name": "mem0", "type": "child<memory-backend-memfd>"}]));
        let (asked, marked) = ask(&[none.clone(), Ok(Value::Null)]);
        assert_eq!(asked[1].arguments["id"], "nicety-twin-0000000000000abc");
        assert_eq!(marked, Some(Ok(Marked { run: 0xabc, is_twin: true, is_known: false })));
        let twin = Ok(json!([{"name": "nicety-twin-0000000000000007", "type": "child<secret>"}]));
        assert_eq!(ask(&[twin]).1, Some(Ok(Marked { run: 7, is_twin: true, is_known: true })));
        let both = Ok(json!([{"name": "nicety-twin-0000000000000007"}, {"name": "nicety-run-0000000000000007"}]));
        assert_eq!(ask(&[both]).1, Some(Ok(Marked { run: 7, is_twin: false, is_known: true })));
        let refusal = Err(Failure { class: "GenericError".into(), desc: "invalid object type: secret".into() });
        let why = ask(&[none, refusal]).1.unwrap().unwrap_err();
        assert_eq!(why, "QEMU does not take a mark of ours: invalid object type: secret");
    }

    #[test]
    fn a_qemu_that_does_not_answer_is_given_up() {
        let (mut mark, now) = (Mark::new(1, false, Duration::from_secs(1)), Instant::now());
        assert!(mark.command(now).is_some());
        mark.sent(1);
        assert!(mark.command(now + Duration::from_secs(1)).is_none());
        assert!(mark.take().unwrap().unwrap_err().contains("main loop is stuck"));
    }
}
