//! Orders to a worker that stands still while another process takes over the ports.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use nicety_peer::Table;
use rustix::io::Errno;

/// Nothing is changed by these.
#[derive(Debug)]
pub enum Order {
    /// Answer whether each of its ports can be handed over now.
    Check(Arc<Without>, Sender<Result<(), NotFrozen>>),
    /// Answer with the images of its ports, some at a time: the other process reads the first ones while the next ones are made.
    Image(Arc<Without>, Sender<Result<Part, NotFrozen>>),
    /// The other process serves. Close the connections of VMs that were not handed over, and answer when that is done.
    Leave(Arc<Without>, Sender<()>),
    /// The other process counts. Report all flows, and answer when that is done.
    EndFlows(Sender<()>),
}

/// Ports that are handed over without their VMs, by their names.
pub type Without = BTreeSet<String>;

/// The image of some ports in its envelope, and their descriptors.
pub type Part = (Vec<u8>, Table);

/// Reasons why a port cannot be handed over now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotFrozen {
    /// A change of its memory is in progress: soon it is done.
    #[error("port {0}: a change of its VM's memory is in progress")]
    Busy(String),
    /// It cannot be handed over at all.
    #[error("{name}: {why}")]
    Never {
        /// The port, or the uplink, with the word for what it is.
        name: String,
        /// The reason.
        why: &'static str,
    },
    /// A descriptor cannot be duplicated.
    #[error("duplicating descriptors: {0} (ulimit -n)")]
    Descriptors(Errno),
}

impl From<Errno> for NotFrozen {
    fn from(errno: Errno) -> Self {
        Self::Descriptors(errno)
    }
}
