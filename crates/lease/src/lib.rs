//! The lease of a VM: a third party, which both hosts can ask, says which of them owns it (docs/fault-tolerance.md).
//!
//! [`Lease`] has the rules. It lies in a [file](LeaseFile) that both hosts can lock, or in [etcd](LeaseInEtcd). Each VM has an [`Asker`]: a
//! thread that asks for its host, so that nothing else waits for a file system or a network.
#![forbid(unsafe_code)]

mod asker;
mod etcd;
mod file;
mod keeper;
mod lease;
mod storage;

pub use asker::{Answered, Asker, ThirdParty};
pub use etcd::LeaseInEtcd;
pub use file::LeaseFile;
pub use keeper::Keeper;
pub use lease::{Answer, Lease, NoLease, NodeId, Request};
pub use storage::Storage;
