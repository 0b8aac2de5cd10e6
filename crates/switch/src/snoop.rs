//! IGMP and MLD snooping (RFC 4541): the ports that want the frames of a multicast group, as reported by their hosts, per VLAN.
//!
//! A frame for a group without members goes to all ports. A port whose groups do not fit into the tables gets all groups: that is slower,
//! but never wrong. The tables are read without a lock and replaced as a whole; a report that changes nothing only writes a time. Times are
//! those of the frames: there is no clock here.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use arrayvec::ArrayVec;
use nicety_adapter::{Batch, Packet, PortId, Time};
use nicety_frame::group::{self, Kind, Message, Records};

use crate::PORTS;

const SECOND_NS: u64 = 1_000_000_000;
/// A silent member counts for this long: the Group Membership Interval of RFC 3376, section 8.4.
const MEMBER_NS: u64 = 260 * SECOND_NS;
/// A silent router counts for this long: the Other Querier Present Interval of RFC 3376, section 8.5.
const ROUTER_NS: u64 = 255 * SECOND_NS;
/// Members that do not answer a query for their group count for this long at least: the default Last Member Query Time of RFC 3376,
/// section 8.8. A query that asks for less would end members whose hosts have had no time to answer.
const LAST_MIN_NS: u64 = 2 * SECOND_NS;
/// Placeholder for an end that is set when the next multicast frame arrives.
const NEW: u64 = u64::MAX;
/// Most groups of all VLANs, and most groups that one port can add; the same limits hold for routers.
const GROUPS_MAX: usize = 1024;
const GROUPS_PER_PORT: usize = 64;
/// Most groups that are read from one report: one more than there is room for, so that its port then gets all groups.
const RECORDS_MAX: usize = GROUPS_PER_PORT + 1;

/// A set of ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ports([u64; PORTS / 64]);

impl Ports {
    fn insert(&mut self, port: PortId) {
        self.0[usize::from(port.0) / 64 % (PORTS / 64)] |= 1 << (port.0 % 64);
    }

    fn contains(&self, port: PortId) -> bool {
        self.0[usize::from(port.0) / 64 % (PORTS / 64)] >> (port.0 % 64) & 1 != 0
    }
}

/// The snooped ports that get a multicast or broadcast frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audience {
    All,
    /// Ports of members, and ports of routers.
    Members(Ports),
    /// Only ports of routers: the frame is a report.
    Routers(Ports),
    /// All: the frame asks for the members of a group.
    Asked(Asked),
}

/// A query for a group. Members that get it expire if they do not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    fid: u16,
    group: IpAddr,
    /// The time at which silent members expire.
    until: u64,
}

impl Audience {
    #[inline]
    pub fn has(&self, port: PortId) -> bool {
        match self {
            Self::All | Self::Asked(_) => true,
            Self::Members(ports) | Self::Routers(ports) => ports.contains(port),
        }
    }
}

/// Frames that a port gets in addition to those for all ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// A group that a host there has joined.
    Group(IpAddr),
    /// All groups of the VLAN: the port leads to a router.
    Router,
    /// All groups of all VLANs: there was no room for the port's groups.
    Everything,
}

/// A port's interest in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The VLAN, numbered as in [`Learned::fid`](crate::Learned::fid); 0 for [`Interest::Everything`].
    pub fid: u16,
    /// The port.
    pub port: PortId,
    /// The interest.
    pub interest: Interest,
    /// The time until it expires without a new report.
    pub left: Duration,
}

/// A port's interest, with its expiry.
#[derive(Debug)]
struct Wants {
    port: PortId,
    until: AtomicU64,
}

impl Wants {
    fn new(port: PortId, until: u64) -> Self {
        Self { port, until: until.into() }
    }

    /// The time until it expires.
    fn left(&self, now: Time) -> u64 {
        self.until.load(Ordering::Relaxed).saturating_sub(now.0)
    }

    fn is_fresh(&self, now: Time) -> bool {
        self.left(now) > 0
    }
}

impl Clone for Wants {
    fn clone(&self) -> Self {
        Self::new(self.port, self.until.load(Ordering::Relaxed))
    }
}

/// The members of a group in a VLAN.
#[derive(Clone, Debug)]
struct Members {
    fid: u16,
    group: IpAddr,
    wants: Vec<Wants>,
}

#[derive(Clone, Debug, Default)]
struct Table {
    /// The groups in the order of their VLANs and addresses.
    groups: Vec<Arc<Members>>,
    /// Ports of routers, by VLAN.
    routers: Vec<(u16, Wants)>,
    /// Ports whose groups did not fit: they get all groups.
    all: Vec<Wants>,
}

impl Table {
    fn place(&self, fid: u16, group: IpAddr) -> Result<usize, usize> {
        self.groups.binary_search_by(|known| (known.fid, known.group).cmp(&(fid, group)))
    }

    fn find(&self, fid: u16, group: IpAddr) -> Option<&Arc<Members>> {
        self.place(fid, group).ok().map(|at| &self.groups[at])
    }

    /// Ports that get all groups of a VLAN.
    fn routers(&self, fid: u16, now: Time) -> Ports {
        let mut ports = Ports::default();
        let own = self.routers.iter().filter(|(known, _)| *known == fid).map(|(_, router)| router);
        own.chain(&self.all).filter(|wants| wants.is_fresh(now)).for_each(|wants| ports.insert(wants.port));
        ports
    }

    /// Removes expired entries.
    fn sweep(&mut self, now: Time) {
        self.routers.retain(|(_, router)| router.is_fresh(now));
        self.all.retain(|wants| wants.is_fresh(now));
        self.groups.retain(|members| members.wants.iter().any(|wants| wants.is_fresh(now)));
    }

    fn join(&mut self, fid: u16, group: IpAddr, port: PortId, now: Time) {
        let until = now.0.saturating_add(MEMBER_NS);
        match self.place(fid, group) {
            Ok(at) => {
                let members = Arc::make_mut(&mut self.groups[at]);
                members.wants.retain(|wants| wants.is_fresh(now) && wants.port != port);
                members.wants.push(Wants::new(port, until));
            }
            Err(at) => {
                let own = self.groups.iter().filter(|members| members.wants.iter().any(|wants| wants.port == port));
                if self.groups.len() < GROUPS_MAX && own.count() < GROUPS_PER_PORT {
                    let wants = vec![Wants::new(port, until)];
                    self.groups.insert(at, Arc::new(Members { fid, group, wants }));
                } else {
                    self.take_all(port, until);
                }
            }
        }
    }

    fn take_all(&mut self, port: PortId, until: u64) {
        if !refresh(&self.all, port, until) {
            self.all.push(Wants::new(port, until));
        }
    }
}

/// Sets a new expiry for a listed port. False if the port is not listed.
fn refresh(wants: &[Wants], port: PortId, until: u64) -> bool {
    let known = wants.iter().find(|wants| wants.port == port);
    known.inspect(|wants| wants.until.store(until, Ordering::Relaxed)).is_some()
}

/// See the module's page.
#[derive(Debug, Default)]
pub(crate) struct Snoop {
    table: ArcSwap<Table>,
}

impl Snoop {
    /// The ports that get a multicast frame from this port. Learns from the frame, unless this is a dry run.
    pub fn audience(&self, batch: &Batch, packet: &Packet, fid: u16, now: Time, dry: bool) -> Audience {
        let (layout, head) = (batch.layout(packet), batch.head(packet));
        for new in self.table.load().all.iter().filter(|wants| wants.until.load(Ordering::Relaxed) == NEW) {
            new.until.store(now.0.saturating_add(MEMBER_NS), Ordering::Relaxed);
        }
        let kind = group::kind(layout, head);
        let asked = match (kind, dry) {
            (Some(kind), false) => self.learn(kind, batch, packet, fid, now),
            _ => None,
        };
        match kind {
            Some(Kind::Report) => return Audience::Routers(self.table.load().routers(fid, now)),
            // A host of version 2 stays silent if it hears another's report (RFC 2236, section 3), even one that the parser cannot find.
            None if layout.is_cut() => return Audience::Routers(self.table.load().routers(fid, now)),
            Some(Kind::Query) => return asked.map_or(Audience::All, Audience::Asked),
            _ => {}
        }
        let Some(group) = group::destination(layout, head).filter(|group| !group::is_local(*group)) else {
            return Audience::All;
        };
        let table = self.table.load();
        let Some(members) = table.find(fid, group) else { return Audience::All };
        let mut fresh = members.wants.iter().filter(|wants| wants.is_fresh(now)).peekable();
        if fresh.peek().is_none() {
            return Audience::All;
        }
        let mut ports = table.routers(fid, now);
        fresh.for_each(|wants| ports.insert(wants.port));
        Audience::Members(ports)
    }

    fn router(&self, fid: u16, port: PortId, now: Time) {
        let until = now.0.saturating_add(ROUTER_NS);
        let table = self.table.load();
        let known = table.routers.iter().find(|(known, router)| *known == fid && router.port == port);
        if let Some((_, router)) = known {
            router.until.store(until, Ordering::Relaxed);
        } else if !refresh(&table.all, port, until) {
            self.change(|table| {
                table.sweep(now);
                let own = table.routers.iter().filter(|(_, router)| router.port == port).count();
                if table.routers.len() < GROUPS_MAX && own < GROUPS_PER_PORT {
                    table.routers.push((fid, Wants::new(port, until)));
                } else {
                    table.take_all(port, until);
                }
            });
        }
    }

    /// A query for a group goes to a port. A member there that does not answer expires. Members at ports that the query does not reach
    /// stay, because they cannot answer.
    pub fn asks(&self, asked: &Asked, port: PortId) {
        let table = self.table.load();
        let members = table.find(asked.fid, asked.group).map(|members| members.wants.as_slice()).unwrap_or_default();
        for wants in members.iter().filter(|wants| wants.port == port) {
            wants.until.fetch_min(asked.until, Ordering::Relaxed);
        }
    }

    /// Learns from a message, if it is accepted. Returns its question, if it asks for a group's members.
    fn learn(&self, kind: Kind, batch: &Batch, packet: &Packet, fid: u16, now: Time) -> Option<Asked> {
        let mut frame = [0; group::MESSAGE_MAX];
        let len = batch.copy(packet, &mut frame);
        match group::message(batch.layout(packet), &frame[..len]) {
            Some(Message::Report(records)) => self.report(records, batch.origin, fid, now),
            Some(Message::Query { is_router, group }) => {
                if is_router {
                    self.router(fid, batch.origin, now);
                }
                let (group, last_ms) = group?;
                let last_ns = (u64::from(last_ms) * 1_000_000).max(LAST_MIN_NS);
                return Some(Asked { fid, group, until: now.0.saturating_add(last_ns) });
            }
            Some(Message::Router) => self.router(fid, batch.origin, now),
            // The report is too long to be read: it may name any group.
            None if kind == Kind::Report && packet.len() as usize > group::MESSAGE_MAX => {
                self.take_all(batch.origin, now.0.saturating_add(MEMBER_NS));
            }
            None => {}
        }
        None
    }

    fn report(&self, records: Records<'_>, port: PortId, fid: u16, now: Time) {
        // A host that leaves stays a member until a querier asks for other members behind the port, or until it expires.
        let joined = records.filter(|(group, joins)| *joins && !group::is_local(*group)).map(|(group, _)| group);
        let joined: ArrayVec<IpAddr, RECORDS_MAX> = joined.take(RECORDS_MAX).collect();
        let table = self.table.load();
        let until = now.0.saturating_add(MEMBER_NS);
        let mut is_news = false;
        for group in &joined {
            let members = table.find(fid, *group).map(|members| members.wants.as_slice()).unwrap_or_default();
            is_news |= !refresh(members, port, until) && !refresh(&table.all, port, until);
        }
        if is_news {
            self.change(|table| {
                table.sweep(now);
                joined.iter().for_each(|group| table.join(fid, *group, port, now));
            });
        }
    }

    fn take_all(&self, port: PortId, until: u64) {
        if !refresh(&self.table.load().all, port, until) {
            self.change(|table| table.take_all(port, until));
        }
    }

    /// A port may have joined groups before snooping began: it gets all groups until its hosts were queried and have answered.
    pub fn renew(&self, port: PortId) {
        self.take_all(port, NEW);
    }

    /// A port left, or changed its VLANs.
    pub fn forget(&self, port: PortId) {
        let table = self.table.load();
        let mut all = table.groups.iter().flat_map(|members| &members.wants).chain(&table.all);
        if !all.any(|wants| wants.port == port) && !table.routers.iter().any(|(_, router)| router.port == port) {
            return;
        }
        self.change(|table| {
            table.routers.retain(|(_, router)| router.port != port);
            table.all.retain(|wants| wants.port != port);
            for members in &mut table.groups {
                if members.wants.iter().any(|wants| wants.port == port) {
                    Arc::make_mut(members).wants.retain(|wants| wants.port != port);
                }
            }
            table.groups.retain(|members| !members.wants.is_empty());
        });
    }

    /// All current interests.
    pub fn list(&self, now: Time) -> Vec<Wanted> {
        let table = self.table.load();
        let groups = table
            .groups
            .iter()
            .flat_map(|members| members.wants.iter().map(|wants| (members.fid, wants, Interest::Group(members.group))));
        let routers = table.routers.iter().map(|(fid, wants)| (*fid, wants, Interest::Router));
        let all = table.all.iter().map(|wants| (0, wants, Interest::Everything));
        let found = groups.chain(routers).chain(all).filter(|(_, wants, _)| wants.is_fresh(now));
        found
            .map(|(fid, wants, interest)| Wanted {
                fid,
                port: wants.port,
                interest,
                left: Duration::from_nanos(wants.left(now)),
            })
            .collect()
    }

    /// Replaces all interests by those of another process, whose ports go on here.
    pub fn restore(&self, wanted: &[Wanted], now: Time) {
        let mut table = Table::default();
        for Wanted { fid, port, interest, left } in wanted {
            let left = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
            let wants = Wants::new(*port, now.0.saturating_add(left));
            match interest {
                Interest::Router => table.routers.push((*fid, wants)),
                Interest::Everything => table.all.push(wants),
                Interest::Group(group) => match table.place(*fid, *group) {
                    Ok(at) => Arc::make_mut(&mut table.groups[at]).wants.push(wants),
                    Err(at) => {
                        let members = Members { fid: *fid, group: *group, wants: vec![wants] };
                        table.groups.insert(at, Arc::new(members));
                    }
                },
            }
        }
        table.routers.truncate(GROUPS_MAX);
        table.groups.truncate(GROUPS_MAX);
        self.table.store(Arc::new(table));
    }

    fn change(&self, change: impl Fn(&mut Table)) {
        self.table.rcu(|old| {
            let mut new = Table::clone(old);
            change(&mut new);
            new
        });
    }
}
