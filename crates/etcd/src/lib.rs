//! A client of etcd 3.4 and later, by its JSON gateway ("Why gRPC gateway", <https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/>): keys,
//! transactions, leases and watches of one cluster, with TLS and users. It knows nothing of what is kept there.
//!
//! - Every call has a time limit and a bounded answer, whatever the server does. A server that is silent costs a part of that time: then
//!   the next one is asked ([`Client`]).
//! - What is not idempotent is sent once. An [`Error`] with `unknown_outcome` says that etcd may have carried it out all the same.
//! - A call asks for a server with a leader, so one without a majority says so at once.
//! - Names are looked up by the caller's [`Resolver`]; connections run on the caller's runtime. [`Blocking`] has a runtime of its own.
//!
//! etcd's gateway takes users by name and password, and not by the name in a client's certificate.
#![forbid(unsafe_code)]

mod auth;
mod blocking;
mod client;
mod endpoint;
mod error;
mod exchange;
mod keys;
mod lease;
mod places;
mod settings;
mod tls;
mod watch;
mod wire;

pub use auth::{Access, Permission};
pub use blocking::Blocking;
pub use client::{Client, LOGIN_MAX};
pub use endpoint::{Endpoint, NoEndpoint, Scheme};
pub use error::{Error, ErrorKind};
pub use keys::{Compare, Found, KeyValue, Keys, Op, OpAnswer, Order, Test, Txn, TxnAnswer};
pub use lease::{Lease, Status};
pub use places::{Answer, Found as Addresses, Resolver};
pub use settings::{ANSWER_MAX, ENDPOINTS_MAX, Identity, LIMIT, Pem, SILENCE, Settings, User};
pub use watch::{Change, Update, Watch};
