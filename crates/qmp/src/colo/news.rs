//! Settings, phases and news of one end of a protection.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// An end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Its VM is the one that the world sees.
    Primary,
    /// Its VM is the copy.
    Secondary,
}

/// Time limits of the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// A command's answer, but for a failover's.
    pub answer: Duration,
    /// The time from `migrate` to the first RESUME after MIGRATION colo.
    pub synchronize: Duration,
    /// From `x-colo-lost-heartbeat` to the VM that runs alone; after it comes `yank`, and the same time again. Also the time of ending a
    /// first synchronization.
    pub failover: Duration,
}

impl Default for StepLimits {
    /// 5 s, 120 s and 1 s.
    fn default() -> StepLimits {
        StepLimits {
            answer: Duration::from_secs(5),
            synchronize: Duration::from_secs(120),
            failover: Duration::from_secs(1),
        }
    }
}

/// Settings of an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The address to which QEMU connects (primary) or at which it listens (secondary): `unix:/run/nicety/vm1.colo`. Over plain TCP a
    /// checkpoint costs 44 to 88 ms more: the sender waits for an acknowledgement that the receiver delays.
    pub uri: String,
    /// Milliseconds from one checkpoint to the next, at least 1; for a primary. The time that the VM stands still counts too.
    pub delay_ms: u32,
    /// Limits.
    pub limits: StepLimits,
}

/// The phase of an end; see the module's picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Capabilities and parameters are set.
    Preparing,
    /// The secondary's QEMU listens at its `uri`.
    Listening,
    /// The VM's memory goes over for the first time.
    Synchronizing,
    /// Checkpoints go over.
    Running,
    /// The stream has ended. No checkpoint will come; the VM runs or stands still as it did.
    Broken,
    /// QEMU was told to go on alone.
    FailingOver,
    /// A first synchronization is ended by its primary.
    Cancelling,
    /// The VM runs here without a copy.
    Alone,
    /// This end does not work: [`News::Failed`] has said why. A primary's VM runs if that sentence does not say otherwise.
    Failed,
    /// QEMU was told to end.
    Quitting,
}

/// News for the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The secondary's QEMU listens at its `uri`: the streams may be joined, and the primary may begin.
    Listening,
    /// The first copy is complete, and both VMs run.
    Synchronized {
        /// Since `migrate` at the primary, or since the first byte at the secondary.
        took: Duration,
        /// The time for which this end's VM stood still at its end, by QEMU's clock; zero at a secondary, which ran for the first time.
        stood_still: Duration,
    },
    /// A checkpoint is complete at this end. By events: an administrator's `stop` and `cont` look the same.
    Checkpoint {
        /// The number of the checkpoint, from 1.
        number: u64,
        /// The time for which this end's VM stood still, by QEMU's clock.
        stood_still: Duration,
    },
    /// The stream to the other end has ended by itself. A secondary notices at once. A primary reads from its stream only while it makes a
    /// checkpoint: with a long delay, and a peer that may be gone, ask for one. Ask the lease, then [`Colo::fail_over`](super::Colo::fail_over).
    Broken,
    /// An adopted end runs COLO, and was asked for a checkpoint.
    Adopted,
    /// The VM runs here, and is not protected.
    Alone,
    /// QEMU ends, soon: its guest has switched off, or somebody has ended it. A secondary must then not take over.
    Shutdown {
        /// Whether its guest asked.
        is_guests: bool,
        /// QEMU's word: `guest-shutdown`, `host-qmp-quit`, `host-signal`…
        reason: String,
    },
    /// Something was refused that does not matter to the protection: a sentence.
    Complaint(String),
    /// This end has failed: a sentence with QEMU's own words.
    Failed(String),
}
