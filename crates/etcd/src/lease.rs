//! Leases of etcd: keys end with the lease that they were written with. And what a server says of itself.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use crate::client::{Client, Question};
use crate::error::{Error, ErrorKind};
use crate::wire::{Header, number};

/// A lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its identifier, not 0.
    pub id: i64,
    /// The time to live that etcd grants, in whole seconds. It may be longer than was asked for: at least 1.5 times the cluster's election
    /// timeout.
    pub time_to_live: Duration,
}

#[derive(Deserialize)]
struct LeaseJson {
    /// Every answer of etcd's has one.
    #[serde(rename = "header")]
    _header: Header,
    #[serde(rename = "ID", default, deserialize_with = "number")]
    id: i64,
    #[serde(rename = "TTL", default, deserialize_with = "number")]
    time_to_live: i64,
    #[serde(default)]
    error: String,
}

#[derive(Deserialize)]
struct Streamed {
    result: Option<LeaseJson>,
    error: Option<crate::wire::Failure>,
}

/// A server's status, as it reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its version: `3.5.16`.
    pub version: String,
    /// Whether it knows a leader: if not, it sees no majority.
    pub has_leader: bool,
    /// Whether it is the leader.
    pub is_leader: bool,
    /// The revision of all keys that it has.
    pub revision: i64,
    /// Bytes of its database.
    pub database_bytes: i64,
}

#[derive(Deserialize)]
struct StatusJson {
    header: StatusHeader,
    version: String,
    #[serde(default, deserialize_with = "number_u64")]
    leader: u64,
    #[serde(rename = "dbSize", default, deserialize_with = "number")]
    database_bytes: i64,
}

#[derive(Deserialize)]
struct StatusHeader {
    #[serde(default, deserialize_with = "number_u64")]
    member_id: u64,
    #[serde(default, deserialize_with = "number")]
    revision: i64,
}

fn number_u64<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|_| serde::de::Error::custom("a number that is none"))
}

impl Client {
    /// Makes a lease of at least this time to live, in whole seconds. It is sent once: a lease whose answer is lost ends by itself.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub async fn grant(&self, time_to_live: Duration) -> Result<Lease, Error> {
        let seconds = time_to_live.as_secs() + u64::from(time_to_live.subsec_nanos() > 0);
        let question =
            Question::new("/v3/lease/grant", json!({ "TTL": seconds.max(1).to_string() }), "make a lease".to_owned());
        let answer = self.ask::<LeaseJson>(Question { may_repeat: false, ..question }).await?;
        answer.lease()
    }

    /// Renews a lease. Its time to live begins anew: at the server, so count it from before this call.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseGone`], and others, which say nothing of the lease.
    pub async fn keep_alive(&self, id: i64) -> Result<Lease, Error> {
        let what = format!("renew the lease {id:x}");
        let question = Question::new("/v3/lease/keepalive", json!({ "ID": id.to_string() }), what.clone());
        let Streamed { result, error } = self.ask(Question { lease: id, ..question }).await?;
        match (result, error) {
            (Some(lease), None) if lease.time_to_live > 0 => lease.lease(),
            (Some(_), None) => Err(Error::new(ErrorKind::LeaseGone { id })),
            (_, Some(failure)) => Err(failure.error(&self.subject(what, id))),
            (None, None) => Err(Error::new(ErrorKind::NotEtcd("it answers a lease that is none".to_owned()))),
        }
    }

    /// Ends a lease, and its keys. One that has ended already is no error.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub async fn revoke(&self, id: i64) -> Result<(), Error> {
        #[derive(Deserialize)]
        struct Revoked {
            #[serde(rename = "header")]
            _header: Header,
        }
        let what = format!("end the lease {id:x} and its keys");
        let question = Question::new("/v3/lease/revoke", json!({ "ID": id.to_string() }), what);
        match self.ask::<Revoked>(Question { lease: id, ..question }).await {
            Err(error) if !matches!(error.kind, ErrorKind::LeaseGone { .. }) => Err(error),
            _ => Ok(()),
        }
    }

    /// The status of the server that is asked; of one without a majority, too.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub async fn status(&self) -> Result<Status, Error> {
        let question = Question::new("/v3/maintenance/status", json!({}), "read the server's status".to_owned());
        let StatusJson { header, version, leader, database_bytes } =
            self.ask(Question { needs_leader: false, ..question }).await?;
        let (has_leader, is_leader) = (leader != 0, leader != 0 && leader == header.member_id);
        Ok(Status { version, has_leader, is_leader, revision: header.revision, database_bytes })
    }
}

impl LeaseJson {
    fn lease(self) -> Result<Lease, Error> {
        match u64::try_from(self.time_to_live) {
            Ok(seconds) if self.id != 0 && self.error.is_empty() => {
                Ok(Lease { id: self.id, time_to_live: Duration::from_secs(seconds) })
            }
            _ => Err(Error::new(ErrorKind::Refused(crate::error::excerpt(self.error.as_bytes())))),
        }
    }
}
