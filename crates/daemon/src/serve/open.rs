//! Opens uplinks: each from its configuration, and from what it comes with.

use std::os::fd::OwnedFd;
use std::path::Path;

use nicety_adapter::snapshot::RestoreError;
use nicety_adapter::{PortId, Uplink};
use nicety_host::{Host, Role, UplinkConfig, UplinkKind};
use nicety_uplink::{
    Capture, CaptureError, CaptureOptions, Null, Paced, Pair, Stream, Tap, TapError, Tokens, Vxlan, VxlanError, Xdp,
    XdpError,
};
use tracing::warn;

use super::ahead::{open_tunnel, set_tunnel};
use super::{ServeError, agents, policy, queue_name, queues_spec, settings};
use crate::daemon::{ArrivingUplink, Daemon, JoiningUplink, UplinkMaker};
use crate::random::random;
use crate::run::image::PortImage;
use crate::run::kept_uplinks::{HeldUplinks, let_go_first, name};

/// The source of an uplink's link, or of the link of one of its queues.
enum Origin<'a> {
    /// There is none: the link is opened.
    New,
    /// The descriptor that the keeper has held for a daemon that was killed.
    Held(OwnedFd),
    /// The parts of another daemon's link, and its state.
    Parts(Vec<OwnedFd>, &'a [u8]),
}

/// Makes the link of an uplink, or of its queue at this place.
fn link(
    config: &UplinkConfig,
    place: usize,
    daemon: &Daemon,
    origin: Origin<'_>,
) -> Result<Box<dyn Uplink>, ServeError> {
    let impossible = |what: RestoreError| ServeError::HandOver(format!("uplink {}: {what}", config.name));
    let only = |mut descriptors: Vec<OwnedFd>| {
        descriptors.pop().ok_or_else(|| impossible(RestoreError::Impossible("its descriptors")))
    };
    // Images of version 1 have no state.
    let (tokens, state) = match &origin {
        Origin::Parts(_, state @ [_, ..]) => {
            let (tokens, state) = Tokens::split(state).map_err(impossible)?;
            (Some(tokens), state)
        }
        _ => (None, Vec::new()),
    };
    let paced = Pacing { config, tokens };
    match (&config.kind, origin) {
        (UplinkKind::Tap { name, queues }, origin) => {
            let tap = match origin {
                Origin::New if *queues == 1 => Tap::open_by(daemon.opener(), name)?,
                // One queue in place of another.
                Origin::New => Tap::open_queue_again(daemon.opener(), name, *queues)?,
                Origin::Held(fd) => Tap::go_on(daemon.opener(), name, fd, *queues)?,
                Origin::Parts(descriptors, _) => Tap::go_on(daemon.opener(), name, only(descriptors)?, *queues)?,
            };
            paced.tap(tap, place, daemon)
        }
        (UplinkKind::Xdp { interface, .. }, Origin::Parts(descriptors, _)) => {
            paced.queue(Xdp::go_on(interface, &state, descriptors)?, place, daemon)
        }
        (UplinkKind::Xdp { .. }, _) => Err(XdpError::Running(config.name.clone()).into()),
        (UplinkKind::Pair { socket, .. }, Origin::Parts(descriptors, _)) => {
            paced.alone(Pair::go_on(socket, &state, descriptors)?)
        }
        (UplinkKind::Pair { socket, role: Role::Listen }, _) => paced.alone(Pair::listen(socket)?),
        (UplinkKind::Pair { socket, role: Role::Connect }, _) => paced.alone(Pair::connect(socket)?),
        (UplinkKind::Stream { socket, .. }, Origin::Parts(descriptors, _)) => {
            paced.alone(Stream::go_on(socket, &state, descriptors)?)
        }
        (UplinkKind::Stream { socket, role: Role::Listen }, _) => paced.alone(Stream::listen(socket)?),
        (UplinkKind::Stream { socket, role: Role::Connect }, _) => paced.alone(Stream::connect(socket)?),
        (UplinkKind::Vxlan(tunnel), Origin::Parts(descriptors, _)) => {
            let hops = daemon.hops(&config.name);
            set_tunnel(tunnel, &hops);
            paced.alone(Vxlan::go_on(tunnel.settings.clone(), hops, random(), &state, descriptors)?)
        }
        (UplinkKind::Vxlan(_), _) if nicety_sandbox::is_on() => Err(VxlanError::Running(config.name.clone()).into()),
        (UplinkKind::Vxlan(tunnel), _) => paced.alone(open_tunnel(tunnel, daemon.hops(&config.name))?),
        (UplinkKind::Capture { .. }, Origin::Parts(descriptors, _)) => {
            paced.alone(Capture::go_on(only(descriptors)?, &state, &capture_options(daemon))?)
        }
        (UplinkKind::Capture { file }, Origin::Held(fd)) => paced.alone(resumed(config, file, daemon, fd)?),
        (UplinkKind::Capture { file }, Origin::New) => paced.alone(Capture::create(file, &capture_options(daemon))?),
        (UplinkKind::Null | UplinkKind::Querier, _) => paced.alone(Null),
    }
}

/// The capture of a daemon that was killed goes on, or begins anew.
fn resumed(config: &UplinkConfig, file: &Path, daemon: &Daemon, fd: OwnedFd) -> Result<Capture, CaptureError> {
    let options = capture_options(daemon);
    Capture::resume(fd, &options).or_else(|why| {
        warn!(uplink = config.name, "{} begins anew: {why}", file.display());
        // The keeper closes what it has held of it, a moment later.
        name(config, 0).into_iter().for_each(|name| daemon.forget_kept(&name));
        let_go_first(|| Capture::create(file, &options), |_| true)
    })
}

/// The rate of a link, which can change while it is open.
struct Pacing<'a> {
    config: &'a UplinkConfig,
    /// The tokens that were left to another process's link.
    tokens: Option<Tokens>,
}

impl<'a> Pacing<'a> {
    fn new(config: &'a UplinkConfig) -> Self {
        Self { config, tokens: None }
    }

    fn alone<U: Uplink + 'static>(self, link: U) -> Result<Box<dyn Uplink>, ServeError> {
        self.paced(Paced::unlimited(link))
    }

    /// A queue of an interface. If it has several, they share a limit for what comes in.
    fn queue<U: Uplink + 'static>(self, link: U, place: usize, daemon: &Daemon) -> Result<Box<dyn Uplink>, ServeError> {
        match self.config.queues() {
            1 => self.alone(link),
            _ => {
                let interface = daemon.interface(&self.config.name);
                self.paced(Paced::unlimited(link).queue_of(&interface, place))
            }
        }
    }

    fn tap(self, tap: Tap, place: usize, daemon: &Daemon) -> Result<Box<dyn Uplink>, ServeError> {
        match self.config.queues() {
            1 => self.alone(tap),
            _ => {
                let tap = tap.queue_of(&daemon.interface(&self.config.name), place);
                self.queue(tap, place, daemon)
            }
        }
    }

    fn paced<U: Uplink + 'static>(self, mut link: Paced<U>) -> Result<Box<dyn Uplink>, ServeError> {
        link.set(&settings(self.config)).map_err(ServeError::Settings)?;
        self.tokens.into_iter().for_each(|tokens| link.go_on(tokens));
        Ok(Box::new(link))
    }
}

fn capture_options(daemon: &Daemon) -> CaptureOptions {
    CaptureOptions { interface: "nicety".to_owned(), origin: daemon.epoch(), most_bytes: None }
}

/// The maker of an uplink that is restarted, or of a queue; `None` if it would overwrite its capture file.
pub(super) fn maker(config: &UplinkConfig, place: usize) -> Option<UplinkMaker> {
    if matches!(config.kind, UplinkKind::Capture { .. }) {
        return None;
    }
    let config = config.clone();
    Some(Box::new(move |daemon| link(&config, place, daemon, Origin::New).map_err(|error| error.to_string())))
}

/// Makes an uplink and adds it to the switch, or to its team. The keeper may still hold what was just closed.
pub(super) fn open_uplink(daemon: &Daemon, config: &UplinkConfig) -> Result<(), ServeError> {
    let may_pass = |error: &ServeError| {
        use ServeError::{Capture, Tap};
        let is_used = matches!(error, Tap(TapError::Busy { .. } | TapError::Keeper { .. }));
        let is_used = is_used || matches!(error, Capture(CaptureError::Busy(_) | CaptureError::Keeper { .. }));
        daemon.holder().is_some() && is_used
    };
    let_go_first(|| open_uplink_with(daemon, config, &mut HeldUplinks::default()), may_pass)
}

/// The same, with what the keeper has held of an uplink of a daemon that was killed.
pub(super) fn open_uplink_with(
    daemon: &Daemon,
    config: &UplinkConfig,
    held: &mut HeldUplinks,
) -> Result<(), ServeError> {
    if let UplinkKind::Tap { name, queues: queues @ 2.. } = &config.kind {
        let taps = open_tap_queues(daemon, config, name, *queues, held)?;
        return open_queues(daemon, config, taps, |tap, place| Pacing::new(config).tap(tap, place, daemon));
    }
    if let UplinkKind::Xdp { interface, queues } = &config.kind {
        return open_xdp(daemon, config, Xdp::open(interface, *queues)?);
    }
    let origin = held.remove(config, 0).map_or(Origin::New, Origin::Held);
    let made = link(config, 0, daemon, origin)?;
    add(daemon, config, made)
}

/// Adds the queues of an interface, which are open, to the switch.
pub(super) fn open_xdp(daemon: &Daemon, config: &UplinkConfig, mut queues: Vec<Xdp>) -> Result<(), ServeError> {
    if queues.len() > 1 {
        return open_queues(daemon, config, queues, |xdp, place| Pacing::new(config).queue(xdp, place, daemon));
    }
    let Some(only) = queues.pop() else { return Ok(()) };
    add(daemon, config, Pacing::new(config).alone(only)?)
}

/// Adds a tunnel, which is open, to the switch.
pub(super) fn add_tunnel(daemon: &Daemon, config: &UplinkConfig, tunnel: Vxlan) -> Result<(), ServeError> {
    daemon.feed_by(&config.name, tunnel.hops().clone());
    add(daemon, config, Pacing::new(config).alone(tunnel)?)
}

/// Adds an uplink with one link to the switch, or to its team.
fn add(daemon: &Daemon, config: &UplinkConfig, made: Box<dyn Uplink>) -> Result<(), ServeError> {
    daemon.open_uplink(joining(config, &config.name, 0, made))?;
    keep(daemon, config);
    daemon.set_uplink_agents(&config.name, agents(config, None));
    Ok(())
}

/// An uplink, or its queue at this place, with its link.
fn joining<'a>(config: &'a UplinkConfig, name: &'a str, place: usize, made: Box<dyn Uplink>) -> JoiningUplink<'a> {
    let team = if config.queues() > 1 { Some(config.name.as_str()) } else { config.team.as_deref() };
    JoiningUplink { policy: policy(config), maker: maker(config, place), team, ..JoiningUplink::new(name, made) }
}

/// Adds an interface with several queues to the switch: a team of its queues, each on a worker of its own as far as there are so many.
fn open_queues<U>(
    daemon: &Daemon,
    config: &UplinkConfig,
    queues: Vec<U>,
    made: impl Fn(U, usize) -> Result<Box<dyn Uplink>, ServeError>,
) -> Result<(), ServeError> {
    let spec = queues_spec(config, config.rate.is_some());
    daemon.open_team(&spec)?;
    for (place, (queue, name)) in queues.into_iter().zip(spec.members).enumerate() {
        let queue = made(queue, place)?;
        daemon.open_queue(joining(config, &name, place, queue), place)?;
    }
    keep(daemon, config);
    Ok(())
}

/// The queues of a tap: those that were held, and others in place of the rest.
fn open_tap_queues(
    daemon: &Daemon,
    config: &UplinkConfig,
    name: &str,
    queues: u16,
    held: &mut HeldUplinks,
) -> Result<Vec<Tap>, ServeError> {
    let found = (0..usize::from(queues)).filter_map(|place| held.remove(config, place));
    let found = found.map(|fd| Tap::go_on(daemon.opener(), name, fd, queues));
    let mut taps: Vec<Tap> = found.collect::<Result<_, _>>()?;
    // Of `tap%d` the kernel has chosen the number.
    let Some(actual) = taps.first().map(|tap| tap.name().to_owned()) else {
        return Ok(Tap::open_queues_by(daemon.opener(), name, queues)?);
    };
    while taps.len() < usize::from(queues) {
        taps.push(Tap::open_queue_again(daemon.opener(), &actual, queues)?);
    }
    Ok(taps)
}

/// An uplink that goes on where another process stopped: with its parts, if it has any. `None` if the host file does not name it.
pub(crate) fn uplink_again(
    host: &Host,
    daemon: &Daemon,
    image: &PortImage,
    parts: Option<(Vec<OwnedFd>, &[u8])>,
) -> Option<Result<ArrivingUplink, ServeError>> {
    let name = &image.name;
    let place_of = |config: &UplinkConfig| match config.queues() {
        1 => (config.name == *name).then_some(0),
        queues => (0..usize::from(queues)).find(|place| queue_name(&config.name, *place) == *name),
    };
    let (config, place) = host.uplinks.iter().find_map(|config| Some((config, place_of(config)?)))?;
    let team = if config.queues() > 1 { Some(config.name.clone()) } else { config.team.clone() };
    let origin = parts.map_or(Origin::New, |(descriptors, state)| Origin::Parts(descriptors, state));
    let made = link(config, place, daemon, origin);
    Some(made.map(|uplink| ArrivingUplink {
        id: PortId(image.id),
        name: name.clone(),
        uplink,
        policy: policy(config),
        maker: maker(config, place),
        team,
        numbers: image.numbers.clone(),
        waiting: image.waiting.clone(),
        agents: image.agents.clone(),
    }))
}

/// The keeper holds what an uplink has opened from now on.
fn keep(daemon: &Daemon, config: &UplinkConfig) {
    for place in 0..usize::from(config.queues()) {
        let own = if config.queues() > 1 { queue_name(&config.name, place) } else { config.name.clone() };
        name(config, place).into_iter().for_each(|kept| daemon.keep_uplink(&own, kept));
    }
}

/// The keeper holds what the uplinks have opened that go on here: after their workers serve them.
pub(crate) fn keep_uplinks(daemon: &Daemon, host: &Host) {
    host.uplinks.iter().for_each(|config| keep(daemon, config));
}
