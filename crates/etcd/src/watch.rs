//! Watches: the changes of some keys, from a revision on, each once and in order, across servers and connections that end.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::client::{Client, Question};
use crate::error::{Error, ErrorKind, excerpt};
use crate::exchange::Lines;
use crate::keys::{KeyValue, Keys};
use crate::wire::{self, Failure, Subject, number};

/// Messages that wait for the owner. While so many wait nothing is read, and etcd waits, too.
const WAITING_MAX: usize = 2;
/// The pause after a failure, which doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was written.
    Put(KeyValue),
    /// It was deleted, or its lease has ended.
    Delete {
        /// The key.
        key: Vec<u8>,
        /// The revision at which it was deleted.
        revision: i64,
    },
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// etcd answers, and all changes from the revision that is due will come. Told at the beginning, and again each time that the stream was
    /// opened anew: after a failure, or after silence ([`Settings::silence`](crate::Settings::silence)).
    InTouch {
        /// The revision of all keys then. Its changes may be still to come.
        revision: i64,
    },
    /// Changes, in order. Those of one revision may come in two updates if they are more than etcd sends at once.
    Changes(Vec<Change>),
    /// All changes up to this revision were told.
    Progress {
        /// The revision.
        revision: i64,
    },
    /// The revision that is due is compacted away, or the servers are another cluster's now, restored from a snapshot: changes are lost, and
    /// the watch has ended. Read the keys anew, and watch from the next revision after that.
    Compacted {
        /// The oldest revision that is left; of another cluster, that of all keys.
        revision: i64,
    },
}

/// A watch. Its task ends with it.
pub struct Watch {
    updates: Receiver<Result<Update, Error>>,
    task: JoinHandle<()>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watch {
    /// The next update. An error is told once and loses nothing: the watch goes on where it was, as soon as etcd lets it. This may be given
    /// up and called again.
    ///
    /// # Errors
    /// The stream has ended or could not be opened; [`ErrorKind::Compacted`] after [`Update::Compacted`].
    pub async fn next(&mut self) -> Result<Update, Error> {
        self.updates.recv().await.unwrap_or_else(|| Err(Error::new(ErrorKind::Compacted)))
    }
}

#[derive(Deserialize)]
struct Streamed {
    result: Option<Message>,
    error: Option<Failure>,
}

#[derive(Deserialize)]
struct Message {
    header: StreamHeader,
    #[serde(default)]
    created: bool,
    #[serde(default)]
    canceled: bool,
    #[serde(default, deserialize_with = "number")]
    compact_revision: i64,
    #[serde(default)]
    cancel_reason: String,
    #[serde(default)]
    fragment: bool,
    #[serde(default)]
    events: Vec<Event>,
}

#[derive(Deserialize)]
struct StreamHeader {
    #[serde(default, deserialize_with = "number")]
    revision: i64,
    #[serde(default)]
    cluster_id: Value,
}

#[derive(Deserialize)]
struct Event {
    /// Left out for PUT.
    #[serde(rename = "type", default)]
    kind: String,
    kv: KeyValue,
}

/// The progress of a watch.
struct Course {
    client: Client,
    keys: Keys,
    /// The first revision whose changes are still to be told; 0: the one after the next answer's.
    due: i64,
    /// The number of changes of that revision that were told already.
    told: usize,
    /// The number of these that the present stream has not repeated yet.
    to_skip: usize,
    /// The cluster that was watched so far. One that was restored from a snapshot, with a token of its own, is another one: its revisions
    /// say nothing about those of before.
    cluster: Option<Value>,
}

/// The stream of a course, or its end.
enum Opened {
    Stream(Lines, i64),
    Compacted(i64),
}

impl Client {
    /// Watches keys from a revision on (0: from now on). Call it within a tokio runtime: a task of it reads.
    pub fn watch(&self, keys: &Keys, from_revision: i64) -> Watch {
        let (sender, updates) = channel(WAITING_MAX);
        let (client, keys) = (self.clone(), keys.clone());
        let course = Course { client, keys, due: from_revision, told: 0, to_skip: 0, cluster: None };
        Watch { updates, task: tokio::spawn(course.run(sender)) }
    }
}

impl Course {
    async fn run(mut self, sender: Sender<Result<Update, Error>>) {
        let mut pause = PAUSE_MIN;
        loop {
            let error = match self.open().await {
                Ok(Opened::Compacted(revision)) => {
                    let _gone = sender.send(Ok(Update::Compacted { revision })).await;
                    return;
                }
                Ok(Opened::Stream(lines, revision)) => {
                    if sender.send(Ok(Update::InTouch { revision })).await.is_err() {
                        return;
                    }
                    match self.follow(lines, &sender, &mut pause).await {
                        Ok(true) => continue,
                        Ok(false) => return,
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            if sender.send(Err(error)).await.is_err() {
                return;
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn question(&self) -> Question {
        let mut create = self.keys.fields();
        create["start_revision"] = json!(self.due.to_string());
        create["progress_notify"] = json!(true);
        // Without it one message may have all changes of a thousand revisions.
        create["fragment"] = Value::Bool(true);
        Question::new("/v3/watch", json!({ "create_request": create }), self.what())
    }

    fn what(&self) -> String {
        format!("watch {}", self.keys.text())
    }

    async fn open(&mut self) -> Result<Opened, Error> {
        let (token, is_new) = self.client.token().await?;
        match self.open_once().await {
            // etcd 3.4 says so of a token that it has forgotten, too.
            Err(error)
                if !is_new && error.any(|kind| matches!(kind, ErrorKind::Token(_) | ErrorKind::Denied { .. })) =>
            {
                if token.is_none() {
                    return Err(error);
                }
                self.client.forget(token.as_ref());
                self.open_once().await
            }
            done => done,
        }
    }

    async fn open_once(&mut self) -> Result<Opened, Error> {
        let (lines, first) = self.client.open(self.question()).await?;
        let at = lines.connection.target.text();
        let message = self.read(&first).map_err(|error| error.at(&at))?;
        if message.compact_revision > 0 {
            return Ok(Opened::Compacted(message.compact_revision));
        }
        if !message.created {
            return Err(Error::new(ErrorKind::NotEtcd("its watch begins without a beginning".to_owned())).at(&at));
        }
        let StreamHeader { revision, cluster_id } = message.header;
        if self.cluster.get_or_insert_with(|| cluster_id.clone()) != &cluster_id {
            return Ok(Opened::Compacted(revision));
        }
        if self.due <= 0 {
            self.due = revision + 1;
        }
        self.to_skip = self.told;
        Ok(Opened::Stream(lines, revision))
    }

    fn read(&self, line: &[u8]) -> Result<Message, Error> {
        let subject = || self.client.subject(self.what(), 0);
        let message = match wire::parse::<Streamed>(line)? {
            Streamed { error: Some(failure), .. } => return Err(failure.error(&subject())),
            Streamed { result: Some(message), .. } => message,
            _ => return Err(Error::new(ErrorKind::NotEtcd(format!("its watch says `{}`", excerpt(line))))),
        };
        if message.canceled && message.compact_revision == 0 {
            return Err(Error::new(cancelled(&message.cancel_reason, &subject())));
        }
        Ok(message)
    }

    /// Tells what comes. `true`: it was silent for long, `false`: the owner is gone, or changes are.
    async fn follow(
        &mut self,
        mut lines: Lines,
        sender: &Sender<Result<Update, Error>>,
        pause: &mut Duration,
    ) -> Result<bool, Error> {
        let at = lines.connection.target.text();
        while let Ok(line) = timeout(self.client.silence(), lines.next()).await {
            let message = line.and_then(|line| self.read(&line)).map_err(|error| error.at(&at))?;
            *pause = PAUSE_MIN;
            let update = if message.compact_revision > 0 {
                Update::Compacted { revision: message.compact_revision }
            } else if message.events.is_empty() {
                self.pass(message.header.revision);
                Update::Progress { revision: message.header.revision }
            } else {
                let changes = self.take(message.events, message.fragment);
                if changes.is_empty() {
                    continue;
                }
                Update::Changes(changes)
            };
            let is_end = matches!(update, Update::Compacted { .. });
            if sender.send(Ok(update)).await.is_err() || is_end {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// All up to this revision is told.
    fn pass(&mut self, revision: i64) {
        if revision >= self.due {
            (self.due, self.told, self.to_skip) = (revision + 1, 0, 0);
        }
    }

    /// Changes of a message that were not told yet. A fragment is followed by more, perhaps of the same revision.
    fn take(&mut self, events: Vec<Event>, is_fragment: bool) -> Vec<Change> {
        let mut changes = Vec::with_capacity(events.len());
        let last = events.last().map_or(0, |event| event.kv.mod_revision);
        for Event { kind, kv } in events {
            let revision = kv.mod_revision;
            if revision > self.due {
                (self.due, self.told, self.to_skip) = (revision, 0, 0);
            }
            if revision < self.due {
                continue;
            }
            if self.to_skip > 0 {
                self.to_skip -= 1;
                continue;
            }
            self.told += 1;
            changes.push(if kind == "DELETE" { Change::Delete { key: kv.key, revision } } else { Change::Put(kv) });
        }
        if !is_fragment {
            self.pass(last);
        }
        changes
    }
}

/// Why etcd has ended a watch: a text with gRPC's name of the code in 3.5, and without in 3.4.
fn cancelled(reason: &str, subject: &Subject) -> ErrorKind {
    let words = reason.rsplit_once("desc = ").map_or(reason, |(_, words)| words);
    let words = words.strip_prefix("etcdserver: ").unwrap_or(words);
    let words = excerpt(words.as_bytes());
    let has = |part: &str| words.contains(part);
    let code = if has("auth token") {
        16
    } else if has("permission denied") {
        7
    } else if has("no leader") {
        14
    } else if has("user name is empty") || has("auth store is old") {
        3
    } else {
        0
    };
    wire::kind(code, words, subject)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course() -> Course {
        let settings = crate::Settings::new(vec!["http://127.0.0.1:1".parse().unwrap()]);
        let client = Client::new(settings, |_: &str, _, _| {}).unwrap();
        Course { client, keys: Keys::prefix("a"), due: 5, told: 0, to_skip: 0, cluster: None }
    }

    fn events(of: &[(i64, &str)]) -> Vec<Event> {
        let kv = |(revision, key): &(i64, &str)| KeyValue {
            key: key.as_bytes().to_vec(),
            mod_revision: *revision,
            ..KeyValue::default()
        };
        of.iter().map(|event| Event { kind: String::new(), kv: kv(event) }).collect()
    }

    fn names(changes: &[Change]) -> String {
        let name = |change: &Change| match change {
            Change::Put(kv) => String::from_utf8_lossy(&kv.key).into_owned(),
            Change::Delete { .. } => "-".to_owned(),
        };
        changes.iter().map(name).collect()
    }

    /// A transaction writes many keys at one revision, and etcd cuts their message where it likes.
    #[test]
    fn a_revision_whose_fragments_are_cut_off_is_told_once_and_whole() {
        let mut course = course();
        assert_eq!(names(&course.take(events(&[(5, "a"), (6, "b"), (6, "c")]), true)), "abc");
        assert_eq!((course.due, course.told), (6, 2), "the rest of 6 is still to come");
        // The connection ends, and the next stream begins at 6.
        course.to_skip = course.told;
        assert_eq!(names(&course.take(events(&[(6, "b")]), true)), "");
        assert_eq!(names(&course.take(events(&[(6, "c"), (6, "d"), (7, "e")]), false)), "de");
        assert_eq!((course.due, course.told), (8, 0));
        // Whole messages leave nothing to skip.
        course.to_skip = course.told;
        assert_eq!(names(&course.take(events(&[(8, "f")]), false)), "f");
        course.pass(20);
        assert_eq!(names(&course.take(events(&[(20, "old")]), false)), "");
        assert_eq!(course.due, 21);
    }
}
