//! The new daemon's side.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use nicety_host::{FabricGroups, Host, HostErrors};
use nicety_keeper::{Channel, ChannelError};
use nicety_peer::Table;
use tracing::info;

use super::arrivals::Arrivals;
use super::give::{GOING_KIND, Going};
use super::{
    FRONT_KIND, OFFER_KIND, Offer, PREPARES, REST_KIND, Rest, TAKES, bytes_of, from_bytes, kind, path_of, send_state,
    table_of, to_bytes, wanted,
};
use crate::daemon::Daemon;
use crate::protection::Terms;
use crate::run::image::{FrontImage, Image};
use crate::serve;
use crate::serve::live::state::{Begin, Found, StateFile};
use crate::serve::live::texts::both;

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

    /// The host to serve, as the old daemon runs it: the host file is not read again, and the state file only for what nobody has confirmed.
    /// The groups of the fabric are those that are in force there.
    ///
    /// # Errors
    /// This program does not understand the host file, or the groups.
    pub fn host(&self) -> Result<Begin, HostErrors> {
        let Offer { path, file, running, origin_ns: _, ids: _, groups } = &self.offer;
        let (mut host, file) = both(path, file, running)?;
        if let Some(groups) = groups {
            host = host.with_fabric(Some(&FabricGroups::parse(groups)?))?;
        }
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
        daemon.ready_to_protect(host).map_err(|error| error.to_string())?;
        daemon.prepare_to_protect(Terms::default()).map_err(|error| error.to_string())?;
        daemon.join_fabric(host).map_err(|error| error.to_string())?;
        daemon.ready_to_export();
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

fn receive(channel: &Channel, daemon: &Daemon, host: &Host, ids: &BTreeMap<String, u16>) -> Result<Going, String> {
    let words = |error: ChannelError| error.to_string();
    let mut arrivals = Arrivals::prepare(daemon, host, ids)?;
    channel.send(kind::PREPARED, b"", &[], PREPARES).map_err(words)?;
    let (mut rest, mut streams): (Rest, Table) = loop {
        let message = channel.receive(PREPARES).map_err(words)?;
        let mut table = match message.kind {
            kind::IMAGE | kind::FRONT | kind::END => table_of(channel, &message)?,
            kind::REFUSED => return Err(message.text()),
            other => return Err(format!("message {other} was not expected")),
        };
        let kind = message.kind;
        let bytes = bytes_of(message.fds.into_iter().next())?;
        if kind == kind::END {
            break (from_bytes(REST_KIND, &bytes)?, table);
        }
        if kind == kind::FRONT {
            let front: FrontImage = from_bytes(FRONT_KIND, &bytes)?;
            arrivals.front(front, table);
            continue;
        }
        for image in Image::from_bytes(&bytes).map_err(|error| error.to_string())?.ports {
            arrivals.image(image, &mut table)?;
        }
    };
    arrivals.complete(&rest)?;
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
    daemon.expect_vms(&rest.vms, &mut streams);
    rest.fabric.take().into_iter().for_each(|known| daemon.resume_fabric(known));
    Ok(Going(arrivals.go_on(&rest)))
}
