//! Ports, uplinks and teams that another daemon hands over become arrivals, by which they are opened here.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nicety_adapter::{PortId, Time};
use nicety_host::Host;
use nicety_peer::Table;
use tracing::warn;

use super::Rest;
use crate::daemon::{Arriving, ArrivingPart, ArrivingUplink, Daemon, Expected, TeamSpec, part_name};
use crate::run::image::{FrontImage, LinkImage, PortImage, UplinkImage};
use crate::run::rings::Front;
use crate::run::service::Service;
use crate::serve::{self, HandedOver, Reconciled, Steps, reconcile};

/// All that is about to go on here. Errors are sentences for a person.
pub(super) struct Arrivals<'a> {
    daemon: &'a Daemon,
    host: &'a Host,
    /// Ports without their states, until their images come.
    expected: BTreeMap<String, Expected>,
    ports: Vec<(String, Arriving)>,
    /// Other parts of ports, by their names.
    parts: BTreeMap<String, ArrivingPart>,
    uplinks: Vec<ArrivingUplink>,
    /// Ports that speak vhost-user, until their worker's image comes.
    fronts: BTreeMap<String, Front>,
}

impl<'a> Arrivals<'a> {
    /// Makes what ports need without their states: ROMs are read, accounts looked up, buffers and threads made before the ports stand still.
    /// `ids` are the ports' numbers.
    pub fn prepare(daemon: &'a Daemon, host: &'a Host, ids: &BTreeMap<String, u16>) -> Result<Self, String> {
        let mut expected = BTreeMap::new();
        for config in &host.ports {
            let name = &config.name;
            let spec = serve::spec(config).map_err(|error| error.to_string())?;
            let id = ids.get(name).ok_or_else(|| format!("port {name} is not open: restart it first"))?;
            let others = (1..usize::from(config.workers)).map_while(|part| ids.get(&part_name(name, part)).copied());
            let others: Vec<u16> = others.collect();
            expected.insert(name.clone(), daemon.prepare(spec, *id, &others)?);
        }
        let (ports, parts, uplinks, fronts) = Default::default();
        Ok(Self { daemon, host, expected, ports, parts, uplinks, fronts })
    }

    /// The front end of a vhost-user port, which comes before the port's image.
    pub fn front(&mut self, front: FrontImage, table: Table) {
        self.fronts.insert(front.name.clone(), (front, table));
    }

    /// A port, a part of one, or an uplink.
    pub fn image(&mut self, image: PortImage, table: &mut Table) -> Result<(), String> {
        let name = image.name.clone();
        let unknown = || format!("{name}: the host file does not name it");
        if let LinkImage::Uplink(parts) = &image.link {
            let mut take = |index: &u32| table.take(*index).map(OwnedFd::from);
            let parts = parts.as_ref().map(|UplinkImage { descriptors, state }| {
                let descriptors = descriptors.iter().map(&mut take).collect::<Option<_>>();
                let descriptors = descriptors.ok_or_else(|| format!("uplink {name}: a descriptor is missing"))?;
                Ok::<_, String>((descriptors, &state[..]))
            });
            let arriving =
                serve::uplink_again(self.host, self.daemon, &image, parts.transpose()?).ok_or_else(unknown)?;
            self.uplinks.push(arriving.map_err(|error| format!("uplink {name}: {error}"))?);
            return Ok(());
        }
        // No port has such a name.
        if name.contains('/') {
            let part = ArrivingPart::take(image, table).map_err(|why| format!("port {name}: {why}"))?;
            self.parts.insert(name, part);
            return Ok(());
        }
        let expected = self.expected.remove(&name).ok_or_else(unknown)?;
        let front = self.fronts.remove(&name);
        self.ports.push((name, self.daemon.expect(expected, image, table, front)?));
        Ok(())
    }

    /// All images have come: nothing may be missing.
    pub fn complete(&mut self, rest: &Rest) -> Result<(), String> {
        for (name, arriving) in &mut self.ports {
            let others = (1..).map_while(|part| self.parts.remove(&part_name(name, part))).collect();
            self.daemon.expect_parts(arriving, others)?;
        }
        if !self.expected.is_empty() || self.uplinks.len() != serve::links(self.host) {
            return Err("a port is missing".to_owned());
        }
        match serve::teams(self.host).find(|team| rest.teams.iter().all(|image| image.name != team.name)) {
            Some(team) => Err(format!("team {}: the other daemon's version does not hand teams over", team.name)),
            None => Ok(()),
        }
    }

    /// They go on: opened, and given to their workers. Returns for how long each has stood still, in nanoseconds.
    pub fn go_on(self, rest: &Rest) -> Vec<(String, u64)> {
        let Self { daemon, host, ports, uplinks, .. } = self;
        let since = || daemon.now_ns().saturating_sub(rest.stopped_ns);
        let mut going = Vec::new();
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
            going.push((name, since()));
        }
        serve::keep_uplinks(daemon, host);
        let mut fronts_to_hear = Vec::new();
        let ids = |services: &[Service]| services.iter().map(|service| service.port.id()).collect();
        let mut waiting: Vec<(String, Vec<PortId>)> = Vec::new();
        for (name, (services, front)) in ports {
            let first = services.first().map(|service| (service.port.id(), Arc::clone(&service.log)));
            let vm = host.vms.iter().find(|vm| vm.ports.contains(&name));
            let vm = vm.and_then(|vm| rest.vms.iter().find(|image| image.name == vm.name));
            if let (Some(vm), Some(service), Some(front)) = (vm, services.first(), &front) {
                daemon.protect_again(&service.port, front, vm);
            }
            waiting.push((name, ids(&services)));
            services.into_iter().for_each(|service| daemon.queue(service));
            fronts_to_hear.extend(first.zip(front));
        }
        for (name, parts) in waiting {
            parts.into_iter().for_each(|id| daemon.wake_for(id));
            going.push((name, since()));
        }
        for ((id, log), front) in fronts_to_hear {
            daemon.hear_again(id, &log, front);
        }
        daemon.note_pauses(going.clone());
        going
    }
}
