//! Pairs of real guests for the lab's methods: the same kinds, servers and daemons as in `nicety compare`, with further programs in the
//! guests, from a [`Layer`].

use std::{path::Path, sync::atomic::AtomicBool};

use nicety_guests::{Accel, Error, Guest, Layer, Namespace, Root, Served};

use super::{
    super::{netperf, pair::Pair},
    Ground, Kind, SLACK, Up, address, driver, qemu, user_mode, version,
};
use crate::{
    method::{Contestant, Guests, Server},
    spent::Spent,
    subject::Subject,
};

/// The kind of guests, and what all pairs share.
#[derive(Debug)]
pub struct Pairs {
    kind: Box<dyn Kind>,
    ground: Ground,
    layer: Layer,
    files: &'static [&'static str],
}

/// Two running guests with their server. Ends by [`Pairs::end`].
#[derive(Debug)]
pub struct Standing {
    /// The guests: the left one sends, the right one serves.
    pub pair: Pair,
    served: Vec<Served>,
    server: Server,
}

/// Servers of an adapter under these guests, with the driver that Linux lacks.
pub fn subjects(guests: Guests, adapter: &str) -> Vec<Subject> {
    rows(guests, adapter, |adapter| user_mode::model(adapter).is_ok())
}

/// The same for a guest whose peer is outside.
pub fn subjects_outside(guests: Guests, adapter: &str) -> Vec<Subject> {
    let mut rows = rows(guests, adapter, |adapter| user_mode::served_model(adapter).is_ok());
    // Between two guests the stream compares the servers alone. The peer outside has none.
    rows.retain(|subject| subject.server != Some(Server::NicetyStream));
    rows
}

/// `is_served`: whether QEMU serves this adapter to user-mode guests.
fn rows(guests: Guests, adapter: &str, is_served: fn(&str) -> bool) -> Vec<Subject> {
    let Some(entry) = nicety_adapters::find(adapter) else { return Vec::new() };
    // Embedded guests have drivers of their own.
    let is_embedded = guests == Guests::Embedded;
    if is_embedded && nicety_drivers::find(entry.about.pci).is_none() {
        return Vec::new();
    }
    let driver = driver(entry).filter(|_| !is_embedded);
    let of = |server| Subject { adapter: adapter.to_owned(), server: Some(server), driver };
    let about = entry.about;
    let servers: &[Server] = match (driver, guests) {
        (Some(_), _) | (None, Guests::Embedded) => &[Server::Nicety],
        (None, Guests::Qemu) => &[Server::Nicety, Server::Qemu],
        (None, Guests::Uml) => &Server::ALL,
    };
    let modelled = match guests {
        Guests::Uml => is_served(adapter),
        _ => about.qemu.is_some(),
    };
    servers.iter().copied().filter(|server| *server != Server::Qemu || modelled).map(of).collect()
}

impl Pairs {
    /// Lays guests of this kind, with `files` of `layer` (`usr/bin/iperf`) at their own paths in each guest.
    ///
    /// # Errors
    /// Those of [`Root::lay`], of the user-mode kernel and of [`Namespace::open`]; each names its remedy.
    pub fn open(
        guests: Guests,
        program: &Path,
        layer: Layer,
        files: &'static [&'static str],
        say: &mut dyn FnMut(&str),
    ) -> Result<Pairs, Error> {
        let root = Root::lay(say)?;
        let kind: Box<dyn Kind> = match guests {
            Guests::Uml => Box::new(user_mode::UserMode::lay(say)?),
            Guests::Qemu | Guests::Embedded => Box::new(qemu::Qemu::new()),
        };
        let mut ground = Ground::new(Namespace::open(&root)?, root, program);
        let mut kind = kind;
        if guests == Guests::Qemu {
            ground.archive = layer.archive(files)?;
            ground.outside()?;
        }
        kind.prepare(&mut ground)?;
        Ok(Pairs { kind, ground, layer, files })
    }

    /// Boots both guests of a contestant.
    ///
    /// # Errors
    /// Those of [`Guest::boot`] and of the daemon, with the last lines of console or log.
    pub fn boot(&mut self, contestant: &Contestant, stop: &AtomicBool) -> Result<Standing, Error> {
        let Up { pair, served } = self.kind.boot(&mut self.ground, contestant, stop)?;
        let mut standing = Standing { pair, served, server: contestant.server };
        if self.kind.guests() == Guests::Uml {
            let Pair { left, right, .. } = &mut standing.pair;
            let taken = [left, right].into_iter().try_for_each(|guest| take(guest, &self.layer, self.files, stop));
            if let Err(error) = taken {
                // An error of ending them has the same cause, so it is dropped.
                let _ = self.end(standing);
                return Err(error);
            }
        }
        Ok(standing)
    }

    /// Ends the guests, then their daemons.
    ///
    /// # Errors
    /// A daemon does not end.
    pub fn end(&mut self, standing: Standing) -> Result<(), Error> {
        let Standing { pair, served, .. } = standing;
        drop(pair);
        self.ground.stop(served)
    }

    /// The private root.
    pub fn root(&self) -> &Root {
        &self.ground.root
    }

    /// The programs' layer.
    pub fn layer(&self) -> &Layer {
        &self.layer
    }

    /// The accelerator of guests in QEMU. None: there are none.
    pub fn accelerator(&self) -> Option<Accel> {
        self.kind.accelerator()
    }

    /// Facts for the report.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.kind.notes(&self.ground.root);
        notes.push(format!("netperf {} for latencies.", version(&self.ground.root, "netperf")));
        notes
    }
}

impl Standing {
    /// The right guest's address.
    pub fn address(&self) -> String {
        address(self.server, 2)
    }

    /// Resolves addresses, and lets the drivers do once what is slow only the first time.
    ///
    /// # Errors
    /// No answer.
    pub fn warm(&mut self, stop: &AtomicBool) -> Result<(), Error> {
        let ping = format!("/usr/bin/ping -n -q -c 1 -W 5 {}", self.address());
        self.pair.left.succeed_unless(&ping, SLACK, stop).map(drop)
    }

    /// Processor time so far.
    pub fn spent(&self) -> Spent {
        let daemon = (!self.served.is_empty()).then(|| self.served.iter().map(Served::cpu_time).sum());
        Spent { vmm: self.pair.cpu_time(), daemon }
    }

    /// netperf's TCP_RR of one byte from the left guest to the right one.
    ///
    /// # Errors
    /// Those of [`Guest::succeed_unless`].
    pub fn request_response(&mut self, seconds: u32, stop: &AtomicBool) -> Result<netperf::Measured, Error> {
        let address = self.address();
        netperf::run(&mut self.pair.left, &address, netperf::Test::RequestResponse, seconds, stop)
    }
}

/// Puts files of the layer at their paths in a user-mode guest, with the libraries that the guest lacks.
pub(crate) fn take(guest: &mut Guest, layer: &Layer, files: &[&str], stop: &AtomicBool) -> Result<(), Error> {
    let mount = format!("mkdir -p /layer; mount -t hostfs -o {} none /layer", layer.path("").display());
    let lacking = "cd /layer/usr/lib/x86_64-linux-gnu; for f in *.so.*; do [ -e /usr/lib/x86_64-linux-gnu/$f ] || ln -s $PWD/$f \
                   /usr/lib/x86_64-linux-gnu/; done";
    let link = |path: &&str| {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("mkdir -p /{folder}; ln -sf /layer/{path} /{path}")
    };
    let links: Vec<String> = files.iter().map(link).collect();
    guest.succeed_unless(&format!("{mount} && {lacking}; {}", links.join("; ")), SLACK, stop).map(drop)
}
