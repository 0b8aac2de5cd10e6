//! The old daemon's side.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nicety_keeper::{Channel, ChannelError, KeptBy, Message, is_end_of_service};
use nicety_peer::Table;
use tracing::{info, warn};

use super::{
    FRONT_KIND, Loss, OFFER_KIND, Offering, PREPARES, PortPause, REST_KIND, Rest, Steps, TAKES, Upgraded, from_bytes,
    kind, send_state, to_bytes, understood, wanted,
};
use crate::daemon::{Daemon, Frozen, Stopped};
use crate::protection::Left;
use crate::run::image::VmImage;
use crate::run::order::Without;

/// The keeper reports the end of a process at once, on a machine that keeps up. The ports are served meanwhile.
const SOON: Duration = Duration::from_secs(5);

/// Reasons why the daemon was not replaced.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// There is no keeper.
    #[error("this daemon has no keeper, which would start the next one: start it with `nicety serve --keeper`")]
    NotKept,
    /// Another upgrade is being made.
    #[error("another upgrade is under way")]
    UnderWay,
    /// The new program, or this one, refused. This daemon goes on.
    #[error("{0}; nothing was changed, and this daemon goes on")]
    Refused(String),
    /// The new program took the ports and then failed. Both end, and the keeper starts this daemon's program, which goes on with the VMs
    /// as after a kill.
    #[error(
        "the new daemon took all ports, and then: {0}; both end, and this daemon's program begins again under its VMs"
    )]
    Lost(String),
    /// It was not replaced, and ends, for it was told to.
    #[error("{0}; this daemon was told to end meanwhile (SIGTERM or SIGINT), and ends")]
    Ending(String),
    /// The new program took the ports and then failed, and this process was told to end.
    #[error("the new daemon took all ports, and then: {0}; both were told to end (SIGTERM or SIGINT), and end")]
    LostAtEnd(String),
}

impl UpgradeError {
    /// Whether this daemon stands still for ever.
    pub fn stands_still(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::LostAtEnd(_))
    }
}

/// Time between two looks whether this process is told to end, while the next one prepares.
const LOOKS: Duration = Duration::from_millis(50);
/// The keeper's signal comes to this process as soon as to the next one, whose end is known first.
const TOLD_WITHIN: Duration = Duration::from_secs(2);

/// Hands all ports to a new daemon, which the keeper starts from this program. `stops` is called when the workers are about to stop, and
/// again with false if they go on. On success the workers stand still for ever. VMs of the ports `without` are not asked, and lose their
/// connections.
///
/// # Errors
/// See [`UpgradeError`].
pub fn upgrade(
    kept: &KeptBy,
    program: &Path,
    daemon: &Daemon,
    offering: Offering<'_>,
    without: &[String],
    stops: &dyn Fn(bool),
) -> Result<Upgraded, UpgradeError> {
    let losses = losses(daemon, without).map_err(UpgradeError::Refused)?;
    let channel = kept.upgrade(program).map_err(|why| refused(daemon, why))?;
    let prepared = prepare(&channel, daemon, offering);
    let taken = prepared.and_then(|build| {
        stops(true);
        kept.stops();
        // Their streams stand still before anything else does: the workers serve meanwhile.
        let left = daemon.leave_vms();
        let taken = hand_over(&channel, daemon, &Arc::new(without.iter().cloned().collect()), &left);
        if taken.is_err() {
            daemon.go_on_with_vms();
            stops(false);
        }
        taken.map(|steps| (build, steps))
    });
    match taken {
        Ok((build, steps)) => going(&channel, build, steps, losses).map_err(|why| {
            kept.abandon();
            kept.is_stuck();
            if daemon.is_ending() { UpgradeError::LostAtEnd(why) } else { UpgradeError::Lost(why) }
        }),
        Err(why) => {
            let is_closed = why == ChannelError::Closed.to_string();
            let said = if is_closed { last_words(&channel) } else { None };
            // A process that was killed cannot say why.
            let ended = if is_closed && said.is_none() { kept.ended(SOON) } else { None };
            kept.abandon();
            let mut why = said.or(ended).unwrap_or(why);
            if let Some(advice) = advice(daemon, &why) {
                why += &advice;
            }
            warn!(program = %program.display(), "not upgraded: {why}");
            Err(refused(daemon, format!("{}: {why}", program.display())))
        }
    }
}

/// The losses of the VMs of these ports. The error is a sentence.
fn losses(daemon: &Daemon, without: &[String]) -> Result<Vec<Loss>, String> {
    let loss = |name: &String| {
        let loses = daemon.loss_without_vm(name).ok_or_else(|| format!("no port is named {name}"))?;
        Ok(Loss { name: name.clone(), loses: loses.to_owned() })
    };
    without.iter().map(loss).collect()
}

/// Advice how to go on although a VM is in the way. A sentence about a VM begins "port NAME: ".
fn advice(daemon: &Daemon, why: &str) -> Option<String> {
    let (name, _) = why.strip_prefix("port ")?.split_once(": ")?;
    let loses = daemon.loss_without_vm(name)?;
    Some(format!(" (`nicety upgrade --without {name}` goes on without this VM: {loses})"))
}

/// Nothing was changed. This daemon goes on, unless it was told to end.
fn refused(daemon: &Daemon, why: String) -> UpgradeError {
    let end = Instant::now() + TOLD_WITHIN;
    while is_end_of_service(&why) && !daemon.is_ending() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    if daemon.is_ending() { UpgradeError::Ending(why) } else { UpgradeError::Refused(why) }
}

/// The reason that the new daemon has sent before it ended: it may have done so while this one was still sending.
fn last_words(channel: &Channel) -> Option<String> {
    let messages = std::iter::from_fn(|| channel.receive(Duration::ZERO).ok());
    messages.filter(|message| message.kind == kind::REFUSED).map(|message| message.text()).next()
}

/// Waits until the new daemon is ready for the ports. Returns its build.
fn prepare(
    channel: &Channel,
    daemon: &Daemon,
    Offering { offer, control, page }: Offering<'_>,
) -> Result<String, String> {
    let build = wanted_of(daemon, channel, kind::HELLO)?.text();
    let sockets: Vec<_> = [control].into_iter().chain(page).collect();
    let sent = send_state(channel, kind::OFFER, &to_bytes(OFFER_KIND, offer), &Table::default(), &sockets);
    sent.map_err(|error| error.to_string())?;
    wanted_of(daemon, channel, kind::PREPARED)?;
    Ok(build)
}

/// A message of this kind while this daemon serves. It may be told to end meanwhile.
fn wanted_of(daemon: &Daemon, channel: &Channel, kind: u8) -> Result<Message, String> {
    let end = Instant::now() + PREPARES;
    loop {
        goes_on(daemon)?;
        let received = channel.receive(LOOKS);
        if !matches!(received, Err(ChannelError::Late(_))) {
            return understood(received, kind);
        }
        if Instant::now() >= end {
            return understood(Err(ChannelError::Late(PREPARES)), kind);
        }
    }
}

/// An upgrade is given up when this daemon is told to end.
fn goes_on(daemon: &Daemon) -> Result<(), String> {
    if daemon.is_ending() { Err("the upgrade was given up".to_owned()) } else { Ok(()) }
}

/// Stops the workers and sends all state. On an error the workers go on.
fn hand_over(channel: &Channel, daemon: &Daemon, without: &Arc<Without>, left: &[Left]) -> Result<Steps, String> {
    let (frozen, stopped) = daemon.freeze(without)?;
    match give(channel, daemon, &frozen, stopped, left) {
        Ok(steps) => {
            // QEMU serves one client of its control socket at a time.
            daemon.end_protection();
            frozen.for_ever();
            daemon.end_flows();
            Ok(steps)
        }
        Err(why) => {
            // Before they go on: if this process were killed right after that, the other one would find it gone, and go on as well.
            let words = why.get(..4096).unwrap_or(&why);
            let _it_may_be_gone = channel.send(kind::REFUSED, words.as_bytes(), &[], TAKES);
            drop(frozen);
            Err(why)
        }
    }
}

/// Sends all state, and has the other process go on with it. Returns the steps so far.
fn give(channel: &Channel, daemon: &Daemon, frozen: &Frozen, stopped: Stopped, left: &[Left]) -> Result<Steps, String> {
    let words = |error: ChannelError| error.to_string();
    let Stopped { stopped_ns, still_ns, fronts } = stopped;
    let images = frozen.images();
    let (mut bytes, mut descriptors) = (0, 0);
    let mut send = |kind, state: &[u8], table: &Table| {
        bytes += state.len() as u64;
        descriptors += table.len() as u64;
        send_state(channel, kind, state, table, &[]).map_err(words)
    };
    for (front, table) in &fronts {
        send(kind::FRONT, &to_bytes(FRONT_KIND, front), table)?;
    }
    for image in images {
        let (image, table) = image.map_err(|why| why.to_string())?;
        send(kind::IMAGE, &image, &table)?;
    }
    let (teams, announcements) = (daemon.team_images(), daemon.announcements());
    let (learned, interests, neighbours) = (daemon.learned(), Some(daemon.interests()), daemon.neighbours());
    let (counts, fabric) = (daemon.counts(), daemon.fabric_for_next());
    let mut table = Table::default();
    let vms = left.iter().map(|left| VmImage::of(left, &mut table)).collect::<Result<_, _>>();
    let vms = vms.map_err(|errno| format!("the stream of a protected VM: {errno}"))?;
    let rest = Rest { stopped_ns, learned, teams, announcements, interests, neighbours, counts, vms, fabric };
    send(kind::END, &to_bytes(REST_KIND, &rest), &table)?;
    let sent_ns = daemon.now_ns();
    wanted(channel, kind::TAKEN, TAKES)?;
    goes_on(daemon)?;
    // The other process has all state now: it goes on if it hears this, or finds this process gone.
    channel.send(kind::GO, b"", &[], TAKES).map_err(words)?;
    Ok(Steps {
        stop_ns: still_ns.saturating_sub(stopped_ns),
        image_ns: sent_ns.saturating_sub(still_ns),
        check_ns: daemon.now_ns().saturating_sub(sent_ns),
        go_ns: 0,
        bytes,
        descriptors,
    })
}

fn going(channel: &Channel, build: String, steps: Steps, without: Vec<Loss>) -> Result<Upgraded, String> {
    let answer = wanted(channel, kind::GOING, PREPARES)?;
    let ports: Going =
        super::bytes_of(answer.fds.into_iter().next()).and_then(|bytes| from_bytes(GOING_KIND, &bytes))?;
    let ports: Vec<PortPause> = ports.0.into_iter().map(|(name, stopped_ns)| PortPause { name, stopped_ns }).collect();
    let stopped_ns = ports.iter().map(|port| port.stopped_ns).max().unwrap_or(0);
    info!(build, stopped_us = stopped_ns / 1000, ports = ports.len(), "another daemon serves now, and this one ends");
    let Steps { stop_ns, image_ns, check_ns, .. } = steps;
    let go_ns = stopped_ns.saturating_sub(stop_ns + image_ns + check_ns);
    for Loss { name, loses } in &without {
        warn!(port = name, "it was handed over without its VM, as the operator asked: {loses}");
    }
    Ok(Upgraded { build, stopped_ns, ports, steps: Steps { go_ns, ..steps }, without })
}

/// Ports by name, with the nanoseconds for which they stood still.
#[derive(Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Going(pub Vec<(String, u64)>);

/// The name in its envelope.
pub(super) const GOING_KIND: &str = "nicety-going";

impl nicety_adapter::snapshot::Version for Going {
    const NUMBER: u16 = 1;
    type Before = nicety_adapter::snapshot::Nothing;

    fn from_before(before: Self::Before) -> Result<Self, nicety_adapter::snapshot::RestoreError> {
        match before {}
    }
}

#[cfg(test)]
#[path = "give_test.rs"]
mod tests;
