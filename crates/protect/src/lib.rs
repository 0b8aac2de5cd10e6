//! A VM that is copied to a twin on another host again and again (docs/fault-tolerance.md): pure state machines.
//!
//! ```text
//!   the owner's daemon                                the twin's daemon
//!   Owner: its VM is the one that the world sees      Twin: its VM is the copy, mute and deaf
//!     │  ▲                                              │  ▲
//!     │  └── closed epochs, QEMU's news                 │  └── loaded epochs, QEMU's news
//!     ├───── Begin, Heir, HandOver, Alone ─────────────►│
//!     │◄──── Ready, Loaded ─────────────────────────────┤
//!     └──────────────► the lease: whose VM it is ◄──────┘
//! ```
//! What holds, whatever is cut, killed or late (`tests/vm.rs` plays it):
//! - **Output commit.** A frame leaves when the twin has the state that it was sent from. Without a twin it leaves at once.
//! - **One owner.** With a twin that has a whole copy, frames leave only during the lease. An owner that has lost its twin first has the
//!   lease say that nobody may take over, and then goes on alone.
//! - **A stale copy never runs.** Only a twin that the lease names may take over, and the owner has it named once it has a whole copy.
//!
//! - **One protection, one number.** A daemon that is replaced gives its part of a protection to the next one ([`Kept`]), and the other host
//!   waits for that one. A daemon that was killed begins anew: what of the stream of copies was in it is lost. An acknowledgement of another
//!   protection releases nothing.
//!
//! Time is a parameter; the machines give [`Action`]s, which a daemon carries out. The lease's rules are `nicety_lease`'s.
#![forbid(unsafe_code)]

mod call;
mod kept;
mod loads;
mod owner;
mod twin;

use std::time::Duration;

use nicety_adapter::Time;
use nicety_lease::{NodeId, Request};
use serde::{Deserialize, Serialize};

pub use kept::Kept;
pub use loads::Loads;
pub use owner::{Ended, Leave, Owner, Stage};
pub use twin::{Twin, TwinStage};

/// The number of a protection of a VM. Each new one has another number, also after a restart of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pairing(pub u64);

/// Time limits.
#[derive(Clone, Copy, Debug, Hash)]
pub struct Terms {
    /// The lease.
    pub lease: Duration,
    /// The lease ends this much earlier for its owner. Covers clocks of different speed, and the time from looking at the clock to the end
    /// of sending a frame.
    pub margin: Duration,
    /// Longest time between two messages to the other host.
    pub heartbeat: Duration,
    /// A host, or a stream of copies, that is silent for so long is lost.
    pub silence: Duration,
    /// The same while a twin gets its first copy: nothing is protected yet, and both hosts are busy. And while one of the daemons is being
    /// replaced.
    pub patience: Duration,
    /// Between two requests to a third party that did not answer, or refused.
    pub again: Duration,
    /// A copy that takes longer ends the protection although its bytes flow: the link is slower than the VM writes its memory.
    pub copy: Duration,
}

impl Default for Terms {
    /// 1 s, 0.1 s, 50 ms, 0.3 s, 3 s, 20 ms and 10 s.
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(1),
            margin: Duration::from_millis(100),
            heartbeat: Duration::from_millis(50),
            silence: Duration::from_millis(300),
            patience: Duration::from_secs(3),
            again: Duration::from_millis(20),
            copy: Duration::from_secs(10),
        }
    }
}

/// Messages between the two hosts of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Message {
    /// To the twin: a protection begins. Have QEMU listen.
    Begin(Pairing),
    /// To the owner: QEMU listens.
    Ready(Pairing),
    /// To the owner: the twin has the copy that closed this epoch, and all before.
    Loaded(Pairing, u64),
    /// To the twin: the lease names you.
    Heir(Pairing),
    /// To the twin: the lease says that the VM is yours. Go on with it now.
    HandOver(Pairing),
    /// To the twin: the VM goes on, or has ended, without you. What you have is of no use.
    Alone(Pairing),
    /// To the twin: can you reach the lease?
    Probe(Pairing),
    /// To the owner: yes.
    Reaches(Pairing),
    /// Nothing is new.
    Alive,
}

/// Something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Ask the third party. Its answer comes back with this number, or nothing does.
    Ask(u32, Request),
    /// Tell the other host.
    Send(Message),
    /// Ports: frames leave at once until the first copy, and from then on by epochs of this protection.
    Arm(Pairing),
    /// Ports: nothing leaves, until [`Action::Open`]. What was released and has not left stays, too.
    Shut,
    /// Ports: epochs up to this one leave, until the lease ends at this time.
    Release(u64, Time),
    /// Ports: everything leaves, now and from now on. The network learns where the VM is if it came here.
    Open,
    /// Ports: the VM is a twin's.
    Mute(Pairing),
    /// QEMU copies its VM to the other host.
    Copy(Pairing),
    /// QEMU listens for copies.
    Listen(Pairing),
    /// QEMU goes on alone, whatever it did before. Then call [`Owner::went_alone`].
    GoAlone,
    /// QEMU ends: its VM is of no use.
    End,
    /// The protection's streams are of no use any more.
    Hang(Pairing),
}

/// The end of a QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Its guest or its administrator has ended it.
    Ordered,
    /// It was killed, or it has failed.
    Sudden,
}

/// The earlier of two times, if there are any.
fn earlier(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    [one, other].into_iter().flatten().min()
}

/// The run of a QEMU, as the lease names it.
pub type Run = NodeId;
