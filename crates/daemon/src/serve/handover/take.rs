//! The new daemon's side.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use nicety_adapter::{PortId, Time};
use nicety_host::{Host, HostErrors};
use nicety_keeper::{Channel, ChannelError};
use nicety_peer::Table;
use tracing::{info, warn};

use super::give::{GOING_KIND, Going};
use super::{
    FRONT_KIND, OFFER_KIND, Offer, PREPARES, REST_KIND, Rest, TAKES, bytes_of, from_bytes, kind, path_of, send_state,
    table_of, to_bytes, wanted,
};
use crate::daemon::{Arriving, ArrivingPart, ArrivingUplink, Daemon, Expected, TeamSpec, part_name};
use crate::run::image::{FrontImage, Image, LinkImage, PortImage, UplinkImage};
use crate::run::rings::Front;
use crate::run::service::Service;
use crate::serve::live::state::{Begin, Found, StateFile};
use crate::serve::live::texts::both;
use crate::serve::{self, HandedOver, Reconciled, Steps, reconcile};

/// The old daemon's ports, which this one is about to take.
#[derive(Debug)]
pub struct Taking {
    channel: Channel,
    offer: Offer,
    control: OwnedFd,
    page: Option<OwnedFd>,
}

/// The ports go on here. The old daemon waits to hear how long they stood still.
#[derive(Debug)]
pub struct Taken {
    channel: Channel,
    going: Going,
    /// The socket of the control server.
    pub control: OwnedFd,
}

impl Taking {
    /// Introduces this program to the old daemon, and learns what is to be served. The error is a sentence for a person.
    ///
    /// # Errors
    /// The old daemon speaks another version, or has gone.
    pub fn begin(channel: Channel) -> Result<Self, String> {
        let words = |error: ChannelError| error.to_string();
        channel.send(kind::HELLO, nicety_version::BUILD.as_bytes(), &[], PREPARES).map_err(words)?;
        let mut fds = wanted(&channel, kind::OFFER, PREPARES)?.fds.into_iter();
        let offer = from_bytes(OFFER_KIND, &bytes_of(fds.next())?);
        let control = fds.next().ok_or("the control socket is missing")?;
        let page = fds.next();
        match offer {
            Ok(offer) => Ok(Self { channel, offer, control, page }),
            Err(why) => {
                refuse(&channel, &why);
                Err(why)
            }
        }
    }

    /// The host to serve, as the old daemon runs it: neither the host file nor the state file is read again.
    ///
    /// # Errors
    /// This program does not understand the host file.
    pub fn host(&self) -> Result<Begin, HostErrors> {
        let Offer { path, file, running, origin_ns: _, ids: _ } = &self.offer;
        let (host, file) = both(path, file, running)?;
        let state = StateFile::of(&file);
        Ok(Begin { host, file, state, found: Found::Nothing })
    }

    /// Tells the old daemon that this one does not take its ports.
    pub fn refuse(&self, why: &str) {
        refuse(&self.channel, why);
    }

    /// The page's listening socket, if the old daemon serves the page. `None` the second time.
    pub fn page(&mut self) -> Option<OwnedFd> {
        self.page.take()
    }

    /// The path of the control socket, which stays where the old daemon has it. `None`: the socket has none.
    pub fn control_path(&self) -> Option<PathBuf> {
        path_of(&self.control)
    }

    /// A daemon without ports, with the old one's clock.
    ///
    /// # Errors
    /// The system's.
    pub fn start(&self, host: &Host) -> Result<Daemon, String> {
        let limits = serve::limits(host);
        let daemon = Daemon::start_again(self.offer.origin_ns, limits, host.daemon.workers);
        let daemon = daemon.map_err(|error| error.to_string())?;
        if let Some(config) = &host.tolerance {
            daemon.tolerate(config).map_err(|error| error.to_string())?;
        }
        daemon.takes_over();
        Ok(daemon)
    }

    /// Takes all ports. On an error the old daemon goes on, and this one must end.
    ///
    /// # Errors
    /// A sentence for a person, which the old daemon has heard too.
    pub fn take(self, daemon: &Daemon, host: &Host) -> Result<Taken, String> {
        let Self { channel, offer, control, page: _ } = self;
        match receive(&channel, daemon, host, &offer.ids) {
            Ok(going) => Ok(Taken { channel, going, control }),
            Err(why) => {
                refuse(&channel, &why);
                Err(why)
            }
        }
    }
}

impl Taken {
    /// This daemon serves: the old one answers whoever has asked for the upgrade, and ends.
    pub fn tell(&self) {
        let bytes = to_bytes(GOING_KIND, &self.going);
        // It may have ended.
        let _ = send_state(&self.channel, kind::GOING, &bytes, &Table::default(), &[]);
    }
}

fn refuse(channel: &Channel, why: &str) {
    let why = why.get(..4096).unwrap_or(why);
    // It may have ended.
    let _ = channel.send(kind::REFUSED, why.as_bytes(), &[], TAKES);
}

/// All that is about to go on here.
#[derive(Default)]
struct Arrivals {
    ports: Vec<(String, Arriving)>,
    /// Other parts of ports, by their names.
    parts: BTreeMap<String, ArrivingPart>,
    uplinks: Vec<ArrivingUplink>,
    /// Ports that speak vhost-user, until their worker's image comes.
    fronts: BTreeMap<String, Front>,
}

fn receive(channel: &Channel, daemon: &Daemon, host: &Host, ids: &BTreeMap<String, u16>) -> Result<Going, String> {
    let words = |error: ChannelError| error.to_string();
    // ROMs are read, accounts looked up, buffers and threads made before the ports stand still.
    let mut expected = BTreeMap::new();
    for config in &host.ports {
        let spec = serve::spec(config).map_err(|error| error.to_string())?;
        let id = ids.get(&config.name).ok_or_else(|| format!("port {} is not open: restart it first", config.name))?;
        let others =
            (1..usize::from(config.workers)).map_while(|part| ids.get(&part_name(&config.name, part)).copied());
        let others: Vec<u16> = others.collect();
        expected.insert(config.name.clone(), daemon.prepare(spec, *id, &others)?);
    }
    let ports = expected.len();
    channel.send(kind::PREPARED, b"", &[], PREPARES).map_err(words)?;
    let mut arrivals = Arrivals::default();
    let rest: Rest = loop {
        let message = channel.receive(PREPARES).map_err(words)?;
        let mut table = match message.kind {
            kind::IMAGE | kind::FRONT | kind::END => table_of(channel, &message)?,
            kind::REFUSED => return Err(message.text()),
            other => return Err(format!("message {other} was not expected")),
        };
        let kind = message.kind;
        let bytes = bytes_of(message.fds.into_iter().next())?;
        if kind == kind::END {
            break from_bytes(REST_KIND, &bytes)?;
        }
        if kind == kind::FRONT {
            let front: FrontImage = from_bytes(FRONT_KIND, &bytes)?;
            arrivals.fronts.insert(front.name.clone(), (front, table));
            continue;
        }
        for image in Image::from_bytes(&bytes).map_err(|error| error.to_string())?.ports {
            expect(daemon, host, &mut expected, image, &mut table, &mut arrivals)?;
        }
    };
    for (name, arriving) in &mut arrivals.ports {
        let others: Vec<ArrivingPart> = (1..).map_while(|part| arrivals.parts.remove(&part_name(name, part))).collect();
        daemon.expect_parts(arriving, others)?;
    }
    if arrivals.ports.len() != ports || arrivals.uplinks.len() != serve::links(host) {
        return Err("a port is missing".to_owned());
    }
    let missing = serve::teams(host).find(|team| rest.teams.iter().all(|image| image.name != team.name));
    if let Some(team) = missing {
        return Err(format!("team {}: the other daemon's version does not hand teams over", team.name));
    }
    channel.send(kind::TAKEN, b"", &[], TAKES).map_err(words)?;
    // Not for a certain time only: the old daemon may have let go although its word is late, and one that gives up says so.
    let go = loop {
        match channel.receive(TAKES) {
            Err(ChannelError::Late(_)) => {}
            word => break word,
        }
    };
    match go {
        Ok(message) if message.kind == kind::GO => {}
        // The old daemon stood still, and has ended: nobody else serves its ports.
        Err(ChannelError::Closed) => info!("the old daemon has ended before it said so"),
        Ok(message) if message.kind == kind::REFUSED => return Err(message.text()),
        Ok(message) => return Err(format!("message {} was not expected", message.kind)),
        Err(error) => return Err(error.to_string()),
    }
    Ok(arrive(daemon, host, arrivals, &rest))
}

fn expect(
    daemon: &Daemon,
    host: &Host,
    expected: &mut BTreeMap<String, Expected>,
    image: PortImage,
    table: &mut Table,
    arrivals: &mut Arrivals,
) -> Result<(), String> {
    let name = image.name.clone();
    let unknown = || format!("{name}: the host file does not name it");
    if let LinkImage::Uplink(parts) = &image.link {
        let mut take = |index: &u32| table.take(*index).map(OwnedFd::from);
        let parts = parts.as_ref().map(|UplinkImage { descriptors, state }| {
            let descriptors = descriptors.iter().map(&mut take).collect::<Option<_>>();
            let descriptors = descriptors.ok_or_else(|| format!("uplink {name}: a descriptor is missing"))?;
            Ok::<_, String>((descriptors, &state[..]))
        });
        let arriving = serve::uplink_again(host, daemon, &image, parts.transpose()?).ok_or_else(unknown)?;
        arrivals.uplinks.push(arriving.map_err(|error| format!("uplink {name}: {error}"))?);
        return Ok(());
    }
    // No port has such a name.
    if name.contains('/') {
        let part = ArrivingPart::take(image, table).map_err(|why| format!("port {name}: {why}"))?;
        arrivals.parts.insert(name, part);
        return Ok(());
    }
    let expected = expected.remove(&name).ok_or_else(unknown)?;
    let front = arrivals.fronts.remove(&name);
    arrivals.ports.push((name, daemon.expect(expected, image, table, front)?));
    Ok(())
}

fn arrive(daemon: &Daemon, host: &Host, arrivals: Arrivals, rest: &Rest) -> Going {
    let Arrivals { ports, parts: _, uplinks, fronts: _ } = arrivals;
    let since = || daemon.now_ns().saturating_sub(rest.stopped_ns);
    let mut going = Going::default();
    let images = |spec: TeamSpec| {
        let image = rest.teams.iter().find(|image| image.name == spec.name)?;
        Some((spec, image))
    };
    let handed_over = HandedOver {
        teams: serve::teams(host).filter_map(images).collect(),
        uplinks,
        ports,
        since: Time(rest.stopped_ns),
        learned: &rest.learned,
        announced: &rest.announcements,
    };
    let steps = Steps { handed_over, ..Steps::default() };
    let Ok::<_, Infallible>(Reconciled { uplinks, ports, .. }) =
        reconcile(daemon, Cow::Borrowed(host), steps, |error| {
            warn!("{error}");
            Ok(())
        });
    daemon.count_again(&rest.counts);
    daemon.know_again(rest.interests.as_deref(), &rest.neighbours);
    for (name, service) in uplinks {
        if let Some((service, waiting, agents)) = service {
            daemon.serve_uplink_again(service, &waiting, &agents);
        }
        going.0.push((name, since()));
    }
    serve::keep_uplinks(daemon, host);
    let mut fronts_to_hear = Vec::new();
    let ids = |services: &[Service]| services.iter().map(|service| service.port.id()).collect();
    let mut waiting: Vec<(String, Vec<PortId>)> = Vec::new();
    for (name, (services, front)) in ports {
        let first = services.first().map(|service| (service.port.id(), Arc::clone(&service.log)));
        waiting.push((name, ids(&services)));
        services.into_iter().for_each(|service| daemon.queue(service));
        fronts_to_hear.extend(first.zip(front));
    }
    for (name, parts) in waiting {
        parts.into_iter().for_each(|id| daemon.wake_for(id));
        going.0.push((name, since()));
    }
    for ((id, log), front) in fronts_to_hear {
        daemon.hear_again(id, &log, front);
    }
    going
}
