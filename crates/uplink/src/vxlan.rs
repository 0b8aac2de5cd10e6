//! A tunnel to other hosts by VXLAN (RFC 7348), as Linux's `vxlan` device speaks it. The tunnel is one port of the switch.
//!
//! ```text
//!   switch ──► VLAN 10 ─► network 5010 ─┐  (network, address) ─► hop    UDP 4789 of hop 1
//!              VLAN 20 ─► network 5020 ─┴─────► hops ──────────────────► UDP 4789 of hop 2
//! ```
//!
//! - Which VLAN of the switch is which network stands in `networks.rs`. A frame of another VLAN does not leave, one of another network does
//!   not come in, and neither does one with a tag of its own (section 6.1).
//! - `hops.rs` says behind which host an address is. A frame for an address that is nowhere goes to all hosts that have its network, as
//!   broadcasts do. Nothing goes from hop to hop: the switch returns no frame to its own port.
//! - A packet that is to be cut is cut once, and leaves by one call (UDP_SEGMENT); datagrams of one flow come in by one call (UDP_GRO), and
//!   TCP segments are joined again (`joining.rs`). On the wire there are plain datagrams, each in one IP packet: none is cut into fragments
//!   (section 4.3). A frame that is too long for that is dropped, and its sender is told which MTU fits (`answers.rs`).
//! - A datagram of a host that is not among the hops is dropped. Source addresses can be forged: the network between hosts must be theirs.

mod answers;
mod arriving;
mod error;
mod guide;
mod hops;
mod leaving;
mod networks;
mod saved;
mod sockets;
mod wire;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nicety_adapter::snapshot::RestoreError;
use nicety_adapter::{
    Batch, Budget, Counters, Delivery, Frames, HandOver, News, PACKETS, PortId, Progress, Time, Uplink,
};
use nicety_memory::Map;

pub use error::VxlanError;
pub use hops::{HOPS_MAX, Hop, Hops, Passed, Place, TOLD_MAX, TellError, Traffic, Way};
pub use networks::Network;
pub use nicety_frame::vxlan::PORT as VXLAN_PORT;
pub use sockets::is_tunnel_end;
pub use wire::inner_mtu;

use self::arriving::{Arriving, Judge};
use self::guide::Guide;
use self::hops::Table;
use self::leaving::{Leaving, Trouble};
use self::saved::SavedTunnel;
use self::sockets::Sockets;
use crate::joining::Joining;
use crate::watch::Watch;

/// The settings of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VxlanSettings {
    /// This host's address on the network between hosts.
    pub address: IpAddr,
    /// The UDP port at which this host and all others listen.
    pub port: u16,
    /// Longest IP packet of the network between hosts.
    pub mtu: u16,
    /// The VLANs that go through it at first: [`Hops::set_networks`] changes them.
    pub networks: Vec<Network>,
}

/// Most peers that a sentence names.
const NAMED_MAX: usize = 3;

/// Whether frames leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// There is no peer.
    Alone,
    /// Nothing leaves to any peer.
    Nobody,
    /// They do: to all peers, or to all but those of [`Trouble::unreached`].
    Peers,
}

impl Reach {
    /// Forgets the trouble with peers that are none any more, and judges by the rest.
    fn new(table: &Table, trouble: &mut Trouble) -> Self {
        trouble.forget_others(|peer| table.number(peer).is_some());
        match table.count() {
            0 => Self::Alone,
            count if trouble.unreached.len() >= count => Self::Nobody,
            _ => Self::Peers,
        }
    }
}

/// The tunnel's state, as the log reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Said {
    trouble: Trouble,
    reach: Reach,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Vxlan {
    settings: VxlanSettings,
    hops: Hops,
    seed: u64,
    sockets: Sockets,
    watch: Watch,
    arriving: Arriving,
    joining: Joining,
    leaving: Leaving,
    /// Sockets whose room the watch reports, a bit each.
    watched: u32,
    room: bool,
    /// The value of the last turn.
    reach: Reach,
    /// The state that the log has already reported. `None`: nothing.
    logged: Option<Said>,
}

impl Vxlan {
    /// Opens a tunnel's sockets. The seed is secret.
    ///
    /// # Errors
    /// The address is not this host's, or the port is in use.
    pub fn open(settings: VxlanSettings, hops: Hops, seed: u64) -> Result<Self, VxlanError> {
        Self::fits(&settings)?;
        let reach = Reach::new(&hops.lock(), &mut Trouble::default());
        let sockets = Sockets::open(SocketAddr::new(settings.address, settings.port), seed)?;
        let narrow = sockets::narrowest(settings.address, hops.addresses().into_iter());
        let narrow = narrow.filter(|(_, mtu)| *mtu < settings.mtu.into());
        let mut this = Self { reach, ..Self::with(settings, hops, seed, sockets)? };
        this.leaving.trouble.narrow = narrow;
        Ok(this)
    }

    /// Goes on with the parts of another process's tunnel, which has the same settings, and with its hops if these are none. It sends nothing
    /// before its first turn.
    ///
    /// # Errors
    /// The state is damaged or another version's.
    pub fn go_on(
        settings: VxlanSettings,
        hops: Hops,
        seed: u64,
        state: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<Self, VxlanError> {
        let saved = SavedTunnel::from_bytes(state).map_err(VxlanError::State)?;
        let wrong = VxlanError::State(RestoreError::Impossible("descriptors"));
        let sockets = Sockets::go_on(descriptors).ok_or(wrong)?;
        let mut this = Self::with(settings, hops, seed, sockets)?;
        this.hops.lock().restore(&saved.hops, &saved.places);
        this.arriving.restore(&saved.arrived);
        this.leaving.restore(&saved, this.sockets.sending.len()).map_err(VxlanError::State)?;
        this.watch_room();
        this.logged = Some(this.said());
        Ok(this)
    }

    /// Finds out whether [`Vxlan::open`] would open these now.
    pub fn check(settings: &VxlanSettings) -> Result<(), VxlanError> {
        Self::fits(settings)?;
        sockets::check(SocketAddr::new(settings.address, settings.port))
    }

    fn fits(settings: &VxlanSettings) -> Result<(), VxlanError> {
        if is_tunnel_end(settings.address) { Ok(()) } else { Err(VxlanError::Address(settings.address)) }
    }

    fn with(settings: VxlanSettings, hops: Hops, seed: u64, sockets: Sockets) -> Result<Self, VxlanError> {
        let address = SocketAddr::new(settings.address, settings.port);
        let os = |source| VxlanError::Os { doing: "watching a UDP socket at", address, source };
        let watch = Watch::new().map_err(os)?;
        watch.add(&sockets.receiving).map_err(os)?;
        hops.set_networks(&settings.networks);
        Ok(Self {
            settings,
            hops,
            seed,
            sockets,
            watch,
            arriving: Arriving::new()?,
            joining: Joining::new(),
            leaving: Leaving::new()?,
            watched: 0,
            room: false,
            reach: Reach::Peers,
            logged: None,
        })
    }

    /// The hops, for whoever feeds them.
    pub fn hops(&self) -> &Hops {
        &self.hops
    }

    fn frame_max(&self) -> u32 {
        wire::frame_max(self.settings.mtu, self.settings.address)
    }

    /// The watch reports room in the sockets that have none, and in no other.
    fn watch_room(&mut self) {
        let blocked = self.leaving.blocked();
        for (number, socket) in self.sockets.sending.iter().enumerate() {
            let bit = 1 << number;
            match (self.watched & bit != 0, blocked & bit != 0) {
                (false, true) if self.watch.add_for_room(socket).is_ok() => self.watched |= bit,
                (true, false) => {
                    self.watch.remove(socket);
                    self.watched &= !bit;
                }
                _ => {}
            }
        }
    }

    fn said(&self) -> Said {
        Said { trouble: self.leaving.trouble.clone(), reach: self.reach }
    }

    /// The reason why nothing passes.
    fn why(&self) -> Option<String> {
        match self.reach {
            Reach::Alone => Some("it has no peers yet: name them (`peers`), or wait for the fabric's".to_owned()),
            Reach::Nobody => self.unreached(),
            Reach::Peers => None,
        }
    }

    /// A sentence about the peers to which nothing leaves, if there are any.
    fn unreached(&self) -> Option<String> {
        let unreached = &self.leaving.trouble.unreached;
        let (first, _) = unreached.first()?;
        let named = unreached.iter().take(NAMED_MAX).map(|(peer, error)| format!("to {peer}: {error}"));
        let named = named.collect::<Vec<_>>().join(", ");
        let more = match unreached.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(", and to {more} more"),
        };
        let address = self.settings.address;
        Some(format!(
            "nothing leaves from {address} {named}{more} (for the route: ip route get {first} from {address})"
        ))
    }

    /// A sentence about the MTU that the tunnel leaves guests, and about what does not fit.
    fn lengths(&self) -> String {
        let (VxlanSettings { address, mtu, .. }, trouble) = (&self.settings, &self.leaving.trouble);
        let (address, mtu) = (*address, *mtu);
        let fits = |mtu: u32| inner_mtu(mtu.try_into().unwrap_or(u16::MAX), address);
        let of = format!("an MTU of {mtu} leaves guests one of {}", fits(mtu.into()));
        match (trouble.narrow, trouble.too_long) {
            (Some((peer, mtu)), _) => {
                format!(
                    "{of}, but the way to {peer} has one of {mtu}: give the tunnel this `mtu`, and guests {}",
                    fits(mtu)
                )
            }
            (None, Some(bytes)) => {
                format!(
                    "{of}, but the way to a peer does not carry datagrams of {bytes} bytes, which are dropped: lower both"
                )
            }
            (None, None) => of,
        }
    }

    /// Has frames sent, with the table locked.
    fn guided<R>(&mut self, now: Time, act: impl FnOnce(&mut Leaving, &mut Guide<'_>) -> R) -> R {
        let frame_max = self.frame_max();
        let mut table = self.hops.lock();
        let networks = table.networks();
        let mut guide = Guide {
            own: self.settings.address,
            table: &mut table,
            networks: &networks,
            port: self.settings.port,
            frame_max,
            sockets: &self.sockets.sending,
            seed: self.seed,
            now,
        };
        let done = act(&mut self.leaving, &mut guide);
        self.reach = Reach::new(&table, &mut self.leaving.trouble);
        drop(table);
        self.watch_room();
        done
    }

    /// Sends what waits for room.
    fn send_waiting(&mut self, counters: &mut Counters, now: Time) {
        if self.leaving.is_waiting() {
            self.guided(now, |leaving, guide| leaving.send_waiting(guide, counters));
            self.room = !self.leaving.is_waiting();
        }
    }
}

impl Uplink for Vxlan {
    fn fetch(
        &mut self,
        port: PortId,
        budget: Budget,
        batch: &mut Batch,
        counters: &mut Counters,
        now: Time,
    ) -> Progress {
        self.room = false;
        self.send_waiting(counters, now);
        if self.arriving.is_lent() {
            batch.start(&Map::empty(), port, 0);
            return Progress { more: true, armed: false };
        }
        self.arriving.give_back();
        batch.start(self.arriving.map(), port, 0);
        let frame_max = self.frame_max();
        let mut table = self.hops.lock();
        self.reach = Reach::new(&table, &mut self.leaving.trouble);
        let networks = table.networks();
        let mut judge = Judge { table: &mut table, networks: &networks, frame_max, now };
        let (mut frames, mut drained, mut armed) = (0, false, false);
        for answer in self.leaving.answers.take() {
            let span = self.arriving.place(&answer);
            self.joining.take(self.arriving.map(), span, batch, counters);
        }
        // A frame may end the open packet and be a packet of its own: two packets must fit.
        let enough = |batch: &Batch, joining: &Joining| {
            let bytes = batch.bytes() + joining.bytes();
            batch.len() + 2 > PACKETS || (bytes > 0 && bytes >= budget.bytes)
        };
        // What the kernel has joined is mostly one packet of the sender. It waits for the next turn rather than become two packets.
        let divides = |(datagrams, bytes): (u32, u32), frames: usize, batch: &Batch, joining: &Joining| {
            let bytes = batch.bytes() + joining.bytes() + u64::from(bytes);
            frames > 0 && (frames + datagrams as usize > budget.packets || bytes > budget.bytes)
        };
        while frames < budget.packets.max(1) && !enough(batch, &self.joining) {
            if self.arriving.message().is_some_and(|next| divides(next, frames, batch, &self.joining)) {
                break;
            }
            match self.arriving.next(&mut judge) {
                Some(Ok(span)) => {
                    frames += 1;
                    self.joining.take(self.arriving.map(), span, batch, counters);
                }
                Some(Err(reason)) => {
                    frames += 1;
                    counters.transmit_drop(reason);
                }
                None if drained => {
                    armed = true;
                    break;
                }
                None => {
                    drained = self.arriving.receive(&self.sockets.receiving);
                    if !drained && self.arriving.is_empty() {
                        break;
                    }
                }
            }
        }
        self.joining.close(batch, counters);
        Progress { more: !armed, armed }
    }

    fn complete(&mut self, _batch: &Batch) {
        self.arriving.give_back();
    }

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, now: Time) -> Delivery {
        self.room = false;
        self.guided(now, |leaving, guide| leaving.deliver(frames, guide, counters))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watch.descriptor())
    }

    fn wake(&self) -> Option<Time> {
        (self.room || !self.leaving.answers.is_empty()).then_some(Time::ZERO)
    }

    fn features(&self) -> Vec<&'static str> {
        vec!["VXLAN"]
    }

    fn vacant(&self) -> Option<String> {
        self.why()
    }

    fn remark(&self) -> Option<String> {
        let partly = self.unreached().filter(|_| self.reach == Reach::Peers);
        Some(partly.map_or_else(|| self.lengths(), |partly| format!("{}; {partly}", self.lengths())))
    }

    fn news(&mut self) -> Option<News> {
        let is_known = |said: &Said| said.reach == self.reach && said.trouble == self.leaving.trouble;
        if self.logged.as_ref().is_some_and(is_known) {
            return None;
        }
        self.logged = Some(self.said());
        // One peer that is not reached is worth a warning, too.
        let why = self.why().or_else(|| self.unreached());
        Some(why.map_or_else(|| News::Back(self.lengths()), News::Vacant))
    }

    fn hand_over(&self) -> HandOver<'_> {
        let (hops, places) = self.hops.lock().save();
        let mut saved = SavedTunnel { arrived: self.arriving.save(), hops, places, ..SavedTunnel::default() };
        self.leaving.save(&mut saved);
        let descriptors = std::iter::once(&self.sockets.receiving).chain(&self.sockets.sending).map(AsFd::as_fd);
        HandOver::Parts { descriptors: descriptors.collect(), state: saved.to_bytes() }
    }
}
