//! Keys and values: etcd's KV service (`api/etcdserverpb/rpc.proto`).

use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::{Client, Question};
use crate::error::{Error, excerpt};
use crate::wire::{Header, bytes, number, text};

/// A choice of keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Keys {
    /// One.
    One(Vec<u8>),
    /// All that begin so; all keys if this is empty.
    Prefix(Vec<u8>),
    /// Keys from the first one, and less than the second.
    Between(Vec<u8>, Vec<u8>),
}

impl Keys {
    /// One key.
    pub fn one(key: impl AsRef<[u8]>) -> Self {
        Self::One(key.as_ref().to_vec())
    }

    /// All keys that begin so.
    pub fn prefix(prefix: impl AsRef<[u8]>) -> Self {
        Self::Prefix(prefix.as_ref().to_vec())
    }

    /// The same keys without those before this one.
    #[must_use]
    pub fn starting_at(&self, key: Vec<u8>) -> Self {
        match self {
            Self::One(own) => Self::One(own.clone()),
            Self::Prefix(_) | Self::Between(..) => Self::Between(key, self.bounds().1),
        }
    }

    /// `key` and `range_end` of a request. The end of a prefix is the prefix plus one; `\0` as the end means all keys from `key` on.
    fn bounds(&self) -> (Vec<u8>, Vec<u8>) {
        match self {
            Self::One(key) => (key.clone(), Vec::new()),
            Self::Between(from, to) => (from.clone(), to.clone()),
            Self::Prefix(prefix) => {
                let mut end = prefix.clone();
                while end.last() == Some(&0xff) {
                    end.pop();
                }
                match end.last_mut() {
                    Some(last) => *last += 1,
                    None => end = vec![0],
                }
                (if prefix.is_empty() { vec![0] } else { prefix.clone() }, end)
            }
        }
    }

    /// The keys of these bounds.
    pub(crate) fn of(key: Vec<u8>, end: Vec<u8>) -> Self {
        if end.is_empty() {
            return Self::One(key);
        }
        let prefix = Self::Prefix(if key == [0] { Vec::new() } else { key.clone() });
        if prefix.bounds() == (key.clone(), end.clone()) { prefix } else { Self::Between(key, end) }
    }

    pub(crate) fn fields(&self) -> Value {
        let (key, end) = self.bounds();
        if end.is_empty() {
            json!({ "key": text(&key) })
        } else {
            json!({ "key": text(&key), "range_end": text(&end) })
        }
    }

    /// A text for a person.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::One(key) => format!("the key `{}`", excerpt(key)),
            Self::Prefix(prefix) if prefix.is_empty() => "all keys".to_owned(),
            Self::Prefix(prefix) => format!("the keys that begin with `{}`", excerpt(prefix)),
            Self::Between(from, to) => format!("the keys from `{}` to `{}`", excerpt(from), excerpt(to)),
        }
    }
}

/// A key with its value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct KeyValue {
    /// The key.
    #[serde(deserialize_with = "bytes")]
    pub key: Vec<u8>,
    /// The value. Empty for a deleted key.
    #[serde(deserialize_with = "bytes")]
    pub value: Vec<u8>,
    /// The revision at which the key was made, last.
    #[serde(deserialize_with = "number")]
    pub create_revision: i64,
    /// The revision at which it was written, or deleted, last.
    #[serde(deserialize_with = "number")]
    pub mod_revision: i64,
    /// Writes since it was made, with that one; 0 for a deleted key.
    #[serde(deserialize_with = "number")]
    pub version: i64,
    /// The lease that the key ends with, or 0.
    #[serde(deserialize_with = "number")]
    pub lease: i64,
}

/// The answer to a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The revision of all keys at which this was read. A watch from the next one misses nothing.
    pub revision: i64,
    /// The keys, in order.
    pub values: Vec<KeyValue>,
    /// Whether there are more keys than the limit.
    pub more: bool,
    /// Keys that there are, whatever the limit.
    pub count: i64,
}

#[derive(Deserialize)]
pub(crate) struct RangeAnswer {
    header: Header,
    #[serde(default)]
    kvs: Vec<KeyValue>,
    #[serde(default)]
    more: bool,
    #[serde(default, deserialize_with = "number")]
    count: i64,
}

impl From<RangeAnswer> for Found {
    fn from(answer: RangeAnswer) -> Self {
        let RangeAnswer { header, kvs, more, count } = answer;
        Self { revision: header.revision, values: kvs, more, count }
    }
}

#[derive(Deserialize)]
struct PutAnswer {
    header: Header,
}

#[derive(Deserialize)]
pub(crate) struct DeleteAnswer {
    header: Header,
    #[serde(default, deserialize_with = "number")]
    deleted: i64,
}

/// The property that a comparison looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// The key's last write; 0: there is no such key.
    ModRevision(i64),
    /// Its making; 0: there is no such key.
    CreateRevision(i64),
    /// Its writes; 0: there is no such key.
    Version(i64),
    /// Its lease.
    Lease(i64),
    /// Its value. A key that is not there fails.
    Value(Vec<u8>),
}

/// The order that a comparison asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The same.
    Equal,
    /// More.
    Greater,
    /// Less.
    Less,
    /// Another.
    NotEqual,
}

/// A comparison of a transaction: the key's part `order` than, or to, that of the test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// The key.
    pub key: Vec<u8>,
    /// The order that is asked for.
    pub order: Order,
    /// The value to compare with.
    pub test: Test,
}

impl Compare {
    /// The key was not written since this revision; with 0, it is not there.
    pub fn unchanged(key: impl AsRef<[u8]>, mod_revision: i64) -> Self {
        Self { key: key.as_ref().to_vec(), order: Order::Equal, test: Test::ModRevision(mod_revision) }
    }

    fn json(&self) -> Value {
        let order = match self.order {
            Order::Equal => "EQUAL",
            Order::Greater => "GREATER",
            Order::Less => "LESS",
            Order::NotEqual => "NOT_EQUAL",
        };
        let (target, field, value) = match &self.test {
            Test::ModRevision(number) => ("MOD", "mod_revision", number.to_string()),
            Test::CreateRevision(number) => ("CREATE", "create_revision", number.to_string()),
            Test::Version(number) => ("VERSION", "version", number.to_string()),
            Test::Lease(number) => ("LEASE", "lease", number.to_string()),
            Test::Value(value) => ("VALUE", "value", text(value)),
        };
        json!({ "key": text(&self.key), "result": order, "target": target, field: value })
    }
}

/// A step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Writes a key.
    Put {
        /// The key.
        key: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
        /// The lease that it ends with, or 0.
        lease: i64,
    },
    /// Deletes keys.
    Delete(Keys),
    /// Reads keys.
    Range(Keys),
}

fn put_json(key: &[u8], value: &[u8], lease: i64) -> Value {
    json!({ "key": text(key), "value": text(value), "lease": lease.to_string() })
}

impl Op {
    /// Writes a key.
    pub fn put(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        Self::Put { key: key.as_ref().to_vec(), value: value.as_ref().to_vec(), lease: 0 }
    }

    fn json(&self) -> Value {
        match self {
            Self::Put { key, value, lease } => json!({ "request_put": put_json(key, value, *lease) }),
            Self::Delete(keys) => json!({ "request_delete_range": keys.fields() }),
            Self::Range(keys) => json!({ "request_range": keys.fields() }),
        }
    }

    fn keys(&self) -> String {
        match self {
            Self::Put { key, .. } => Keys::One(key.clone()).text(),
            Self::Delete(keys) | Self::Range(keys) => keys.text(),
        }
    }
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpAnswer {
    /// The key is written.
    Put,
    /// The number of deleted keys.
    Delete(i64),
    /// These keys were read.
    Range(Found),
}

/// A transaction: if all comparisons hold `then` is carried out, and `otherwise` if not, at one revision. etcd takes 128 of each at most
/// (`--max-txn-ops`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// The comparisons.
    pub compare: Vec<Compare>,
    /// If all hold.
    pub then: Vec<Op>,
    /// If one does not.
    pub otherwise: Vec<Op>,
    /// Whether it may be sent twice: to the next server when one is silent. Set this only if what it changes makes one of its comparisons
    /// fail, and know that `succeeded: false` may then mean that its own first copy came through: read the key to see whose value is there.
    pub may_repeat: bool,
}

/// The answer to a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnAnswer {
    /// The revision of all keys afterwards.
    pub revision: i64,
    /// Whether all comparisons held.
    pub succeeded: bool,
    /// The results of the steps.
    pub answers: Vec<OpAnswer>,
}

#[derive(Deserialize)]
struct TxnJson {
    header: Header,
    #[serde(default)]
    succeeded: bool,
    #[serde(default)]
    responses: Vec<OpJson>,
}

#[derive(Deserialize)]
struct OpJson {
    response_range: Option<RangeAnswer>,
    response_delete_range: Option<DeleteAnswer>,
}

impl Client {
    /// Reads keys, at most `limit` of them (0: all, as far as an answer may be long), as a majority has them.
    ///
    /// # Errors
    /// See [`ErrorKind`](crate::ErrorKind).
    pub async fn range(&self, keys: &Keys, limit: u32) -> Result<Found, Error> {
        self.range_at(keys, limit, 0).await
    }

    /// The same at an older revision, so that one list can be read in pieces.
    ///
    /// # Errors
    /// As above, and [`ErrorKind::Compacted`](crate::ErrorKind::Compacted).
    pub async fn range_at(&self, keys: &Keys, limit: u32, revision: i64) -> Result<Found, Error> {
        let mut body = keys.fields();
        body["limit"] = json!(limit.to_string());
        body["revision"] = json!(revision.to_string());
        let question = Question::new("/v3/kv/range", body, format!("read {}", keys.text()));
        self.ask::<RangeAnswer>(Question { only_reads: true, ..question }).await.map(Found::from)
    }

    /// Writes a key, which ends with this lease unless that is 0. Returns the revision. It is sent once.
    ///
    /// # Errors
    /// With `unknown_outcome`, the key may have been written.
    pub async fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, lease: i64) -> Result<i64, Error> {
        let what = format!("write {}", Keys::one(&key).text());
        let question = Question::new("/v3/kv/put", put_json(key.as_ref(), value.as_ref(), lease), what);
        let answer = self.ask::<PutAnswer>(Question { may_repeat: false, lease, ..question }).await?;
        Ok(answer.header.revision)
    }

    /// Deletes keys. Returns the revision, and how many there were. It is sent once.
    ///
    /// # Errors
    /// With `unknown_outcome`, they may have been deleted.
    pub async fn delete(&self, keys: &Keys) -> Result<(i64, i64), Error> {
        let question = Question::new("/v3/kv/deleterange", keys.fields(), format!("delete {}", keys.text()));
        let answer = self.ask::<DeleteAnswer>(Question { may_repeat: false, ..question }).await?;
        Ok((answer.header.revision, answer.deleted))
    }

    /// Carries out a transaction. It is sent once unless [`Txn::may_repeat`] says otherwise.
    ///
    /// # Errors
    /// With `unknown_outcome`, it may have been carried out.
    pub async fn txn(&self, txn: &Txn) -> Result<TxnAnswer, Error> {
        let ops = |ops: &[Op]| ops.iter().map(Op::json).collect::<Vec<_>>();
        let compare: Vec<Value> = txn.compare.iter().map(Compare::json).collect();
        let body = json!({ "compare": compare, "success": ops(&txn.then), "failure": ops(&txn.otherwise) });
        let keys = txn.compare.iter().map(|compare| Keys::One(compare.key.clone()).text());
        let keys = keys.chain(txn.then.iter().chain(&txn.otherwise).map(Op::keys));
        let mut names: Vec<String> = Vec::new();
        for key in keys {
            if !names.contains(&key) && names.len() < 4 {
                names.push(key);
            }
        }
        let what = format!("read and write {}", names.join(", "));
        let lease = txn.then.iter().find_map(|op| match op {
            Op::Put { lease, .. } if *lease != 0 => Some(*lease),
            _ => None,
        });
        let question = Question::new("/v3/kv/txn", body, what);
        let only_reads = txn.then.iter().chain(&txn.otherwise).all(|op| matches!(op, Op::Range(_)));
        let (may_repeat, lease) = (txn.may_repeat, lease.unwrap_or(0));
        let question = Question { may_repeat, only_reads, lease, ..question };
        let TxnJson { header, succeeded, responses } = self.ask(question).await?;
        let answer = |op: OpJson| match op {
            OpJson { response_range: Some(mut range), .. } => {
                range.header.revision = header.revision;
                OpAnswer::Range(range.into())
            }
            OpJson { response_delete_range: Some(delete), .. } => OpAnswer::Delete(delete.deleted),
            _ => OpAnswer::Put,
        };
        Ok(TxnAnswer { revision: header.revision, succeeded, answers: responses.into_iter().map(answer).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// etcd's API reference, "Range": "If range_end is key plus one …, then the range request gets all keys prefixed with key."
    #[test]
    fn a_prefix_ends_before_the_next_key_that_does_not_begin_so() {
        let bounds = |prefix: &[u8]| Keys::prefix(prefix).bounds();
        assert_eq!(bounds(b"ab"), (b"ab".to_vec(), b"ac".to_vec()));
        assert_eq!(bounds(b"a\xff"), (b"a\xff".to_vec(), b"b".to_vec()));
        assert_eq!(bounds(b"\xff"), (b"\xff".to_vec(), b"\0".to_vec()));
        assert_eq!(bounds(b""), (b"\0".to_vec(), b"\0".to_vec()));
    }

    #[test]
    fn bounds_that_etcd_tells_are_the_keys_that_were_named() {
        let between = Keys::Between(b"a".to_vec(), b"c".to_vec());
        for keys in [Keys::one("a"), Keys::prefix("a/"), Keys::prefix(""), Keys::prefix("a\u{ff}"), between] {
            let (key, end) = keys.bounds();
            assert_eq!(Keys::of(key, end), keys);
        }
    }
}
