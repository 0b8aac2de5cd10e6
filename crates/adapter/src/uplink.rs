//! A port without a guest: a tap, a pair, a capture file.

use crate::batch::{Batch, PortId};
use crate::counters::Counters;
use crate::frames::{Delivery, Frames};
use crate::progress::{Budget, Progress};
use crate::rate::Rate;
use crate::time::Time;

/// The state of an uplink's peer, as a sentence for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Nothing can pass from now on, and the reason.
    Vacant(String),
    /// The uplink works again.
    Back(String),
    /// Two uplinks lead into one network, and one of them is blocked.
    Looped(String),
    /// A port's frames leave by another uplink of a team from now on, and why.
    Moved(String),
}

/// The settings of an uplink that change while it is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UplinkSettings {
    /// The highest rate each way; `None` for no limit.
    pub rate: Option<Rate>,
}

/// The way in which another process goes on with an uplink.
#[derive(Debug)]
pub enum HandOver<'a> {
    /// The next process makes the uplink again. Nothing is lost by that.
    Again,
    /// The next process takes these descriptors and this state, which the same kind of uplink reads.
    Parts {
        /// The descriptors, in an order that the kind of uplink defines.
        descriptors: Vec<std::os::fd::BorrowedFd<'a>>,
        /// The state in [its envelope](crate::snapshot). Empty: there is none.
        state: Vec<u8>,
    },
    /// No process can go on with the uplink, for this reason.
    Never(&'static str),
}

/// A link through which frames leave and enter the switch. It owns its buffers and file descriptors, and never blocks.
///
/// Its owner, `nicety_plane::Port`, calls it so:
/// 1. When its [descriptor](Uplink::descriptor) is readable, [`fetch`](Uplink::fetch) fills a batch. The switch decides, each receiver takes
///    its frames, and [`complete`](Uplink::complete) frees the buffers. While `fetch` says that there is more, it gets another turn.
/// 2. Frames for the link are given to [`deliver`](Uplink::deliver). Those that it refuses wait at the owner.
/// 3. After each `fetch` and `deliver` the owner asks for the next [wake](Uplink::wake). At that time, or when the descriptor is readable, it
///    offers the refused frames again.
pub trait Uplink: Send {
    /// Takes received frames into `batch`. The uplink [starts](Batch::start) the batch, with its own memory as the source.
    fn fetch(
        &mut self,
        port: PortId,
        budget: Budget,
        batch: &mut Batch,
        counters: &mut Counters,
        now: Time,
    ) -> Progress;

    /// The packets of `batch` are done: their buffers may be reused.
    fn complete(&mut self, batch: &Batch);

    /// Sends frames. Frames that cannot be sent now are refused; frames that can never be sent are dropped and counted.
    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, now: Time) -> Delivery;

    /// The descriptor that becomes readable when [`fetch`](Uplink::fetch) has work: frames have arrived, or refused ones may be
    /// offered again, which [`wake`](Uplink::wake) then reports.
    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>>;

    /// The time at which refused frames are offered again, even if the descriptor is silent; a past time means at once. Call it after each
    /// `fetch` and `deliver`. The result is valid until the next such call.
    fn wake(&self) -> Option<Time> {
        None
    }

    /// A turn ends because the worker has other ports to serve. Frames for the uplink still wait, although it has refused none. Its rate
    /// limit must lose no tokens until the next turn.
    fn pause(&mut self, _now: Time) {}

    /// Whether a limit made the last fetch leave frames behind.
    fn withholds(&self) -> bool {
        false
    }

    /// The way in which another process goes on with this uplink.
    fn hand_over(&self) -> HandOver<'_> {
        HandOver::Never("an uplink of this kind cannot be handed over yet")
    }

    /// The process that handed the uplink over uses it no more: now only this process has it.
    fn own(&mut self) {}

    /// Whether frames can pass: there is a peer, or the link is up. Asked in each turn of a port with agents, so it must be quick.
    fn carrier(&self) -> bool {
        true
    }

    /// Words for a person about how this uplink works on this machine, such as whether the kernel copies each frame. They do not change.
    fn features(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// The reason why the uplink has no peer, as a sentence for a person. `None` if there is a peer, or if that is unknown.
    fn vacant(&self) -> Option<String> {
        None
    }

    /// A remark for a person about frames that pass, such as the longest ones: a part of a sentence. `None`: there is none.
    fn remark(&self) -> Option<String> {
        None
    }

    /// Takes over new settings. The link stays open. Settings that this kind of uplink does not know are ignored. Afterwards
    /// [`descriptor`](Uplink::descriptor) may return another one. On an error the old settings remain.
    fn set(&mut self, _settings: &UplinkSettings) -> std::io::Result<()> {
        Ok(())
    }

    /// News of the peer for the log. Call it after each `fetch` and `deliver`. [`vacant`](Uplink::vacant) may know more, because it checks.
    fn news(&mut self) -> Option<News> {
        None
    }
}
