//! Images of a guest: what another host goes on from, in place of all calls since the guest's start.
//!
//! smoltcp's state cannot be saved. So an image has what the guest's network and its application know: of each connection its sequence
//! numbers, its options, and the bytes on their way. Everything else is dropped, on the host that makes the image too: [`Call::Renew`]
//! is a call like another, which **every** host of the guest makes, and after it all are equal, however they came there.
//!
//! | dropped | what follows |
//! |---|---|
//! | the adapter, its driver, their memory | both start again: what the adapter had received is read first, what the driver had not sent goes along |
//! | segments that came out of order | the other end sends them again (RFC 2018, section 8, lets a receiver do that) |
//! | round-trip times and timers of TCP | they begin again; an acknowledgement is sent once more |
//!
//! A connection is made again by playing the other end's part to smoltcp: its SYN, its acknowledgement, its bytes. smoltcp draws the guest's
//! initial sequence number from its generator, whose seed is chosen so that the number is the one that was used.
//!
//! [`Call::Renew`]: crate::Call::Renew

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use smoltcp::iface::{Config, Interface, PollResult, SocketSet};
use smoltcp::phy::Device;
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr, Ipv4Address, TcpControl, TcpRepr};

use super::device::Frames;
use super::flow::{Flow, Neighbor, Segment, arp_request, is_after, number, sequence};

/// The version of an image: its first byte.
pub const VERSION: u8 = 1;
/// Buffer bytes of each connection and direction.
const BUFFER: usize = 64 << 10;
/// Bytes of the largest segment that the guest receives.
const SEGMENT: usize = 1460;
/// Polls in a row that count as an endless loop.
const POLLS: usize = 10_000;

/// See the module's page.
#[derive(Debug, Serialize, Deserialize)]
pub struct Image {
    /// The digest of all calls and frames so far.
    pub history: u64,
    /// Other hosts' addresses.
    pub neighbors: Vec<Neighbor>,
    /// Frames that the driver had no room for.
    pub sending: Vec<Vec<u8>>,
    /// One for each socket.
    pub connections: Vec<Connection>,
    /// The store.
    pub values: BTreeMap<Vec<u8>, Vec<u8>>,
    pub changes: u64,
}

/// A socket that listens, or a connection.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Connection {
    /// The beginning of a line.
    pub line: Vec<u8>,
    pub open: Option<Open>,
}

/// A connection.
#[derive(Debug, Serialize, Deserialize)]
pub struct Open {
    pub flow: Flow,
    pub stage: Stage,
    /// Bytes that the other end has sent, and the application has read, before `received`; and those that it has not read.
    pub read: u32,
    pub received: Vec<u8>,
    /// Bytes that the application has sent, and the other end has acknowledged, before `unacknowledged`; and those that are not.
    pub acknowledged: u32,
    pub unacknowledged: Vec<u8>,
}

/// The stage of a connection (RFC 9293, section 3.3.2). The guest never closes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// SYN-RECEIVED.
    Asked,
    /// ESTABLISHED.
    Open,
    /// CLOSE-WAIT: the other end sends nothing more.
    Half,
    /// LAST-ACK: neither does the guest.
    Closed,
}

impl Stage {
    /// The stage of a socket that has a connection.
    pub fn of(state: State) -> Option<Self> {
        match state {
            State::SynReceived => Some(Self::Asked),
            State::Established => Some(Self::Open),
            State::CloseWait => Some(Self::Half),
            State::LastAck => Some(Self::Closed),
            State::Closed
            | State::Listen
            | State::SynSent
            | State::FinWait1
            | State::FinWait2
            | State::Closing
            | State::TimeWait => None,
        }
    }
}

impl Image {
    /// Its bytes.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        let body = postcard::to_allocvec(self).ok()?;
        Some([&[VERSION], body.as_slice()].concat())
    }

    /// An image of its bytes.
    ///
    /// # Errors
    /// The reason, for a person: another version, or no image.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        match bytes.split_first() {
            Some((&VERSION, body)) => postcard::from_bytes(body).map_err(|error| format!("it is malformed: {error}")),
            Some((version, _)) => Err(format!("it is of version {version}, and this build reads version {VERSION}")),
            None => Err("it is empty".to_owned()),
        }
    }
}

/// A guest's addresses on its network.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub mac: [u8; 6],
    pub address: [u8; 4],
    pub prefix: u8,
}

impl Place {
    /// An interface at this place.
    pub fn interface(&self, device: &mut (impl Device + ?Sized), seed: u64, now: Instant) -> Interface {
        let mut config = Config::new(HardwareAddress::Ethernet(EthernetAddress(self.mac)));
        config.random_seed = seed;
        let mut interface = Interface::new(config, device, now);
        interface.update_ip_addrs(|addresses| {
            // A new interface has room for one address.
            let _added = addresses.push(IpCidr::new(Ipv4Address::from(self.address).into(), self.prefix));
        });
        interface
    }
}

/// A new socket.
pub fn socket() -> Socket<'static> {
    let mut socket = Socket::new(SocketBuffer::new(vec![0; BUFFER]), SocketBuffer::new(vec![0; BUFFER]));
    socket.set_nagle_enabled(false);
    socket
}

/// Polls until nothing moves.
fn settle(interface: &mut Interface, network: &mut Frames, sockets: &mut SocketSet<'static>, now: Instant) {
    for _ in 0..POLLS {
        let before = network.sent.len();
        let changed = interface.poll(now, network, sockets) == PollResult::SocketStateChanged;
        if !changed && network.received.is_empty() && network.sent.len() == before {
            return;
        }
    }
}

/// Tells an interface of its neighbours.
pub fn introduce(interface: &mut Interface, neighbors: &[Neighbor], address: [u8; 4], now: Instant) {
    let mut network = Frames::default();
    network.received.extend(neighbors.iter().map(|neighbor| arp_request(*neighbor, address)));
    settle(interface, &mut network, &mut SocketSet::new(Vec::new()), now);
}

/// smoltcp's generator (rand.rs): a linear congruence modulo 2^64, of whose state 32 bits come out.
const FACTOR: u64 = 0xbb2e_fcec_3c39_611d;
const SUMMAND: u64 = 0x7590_ef39;

/// The inverse of the factor, by Newton's method: each round doubles the number of bits that are right.
const INVERSE: u64 = {
    let mut inverse = FACTOR;
    let mut round = 0;
    while round < 6 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(FACTOR.wrapping_mul(inverse)));
        round += 1;
    }
    inverse
};

/// Seeds with which the generator gives this number as its first, second and so on. Which of them is drawn for a connection depends on
/// what else the interface draws.
fn seeds(number: u32) -> impl Iterator<Item = u64> {
    (0..4_u64).flat_map(move |low| {
        // With the three highest bits 0, the bits from 29 on come out.
        let mut state = u64::from(number) << 29 | low;
        std::iter::repeat_with(move || {
            state = state.wrapping_sub(SUMMAND).wrapping_mul(INVERSE);
            state
        })
        .take(4)
    })
}

impl Open {
    fn segment<'a>(&self, place: &Place, control: TcpControl, at: u32, payload: &'a [u8]) -> Segment<'a> {
        let is_syn = control == TcpControl::Syn;
        let flow = &self.flow;
        let tcp = TcpRepr {
            src_port: flow.remote.1,
            dst_port: flow.port,
            control,
            seq_number: sequence(at),
            ack_number: (!is_syn).then(|| sequence(self.first().wrapping_add(1))),
            window_len: flow.window,
            window_scale: flow.scale.filter(|_| is_syn),
            max_seg_size: flow.mss.filter(|_| is_syn),
            sack_permitted: flow.selective && is_syn,
            sack_ranges: [None; 3],
            timestamp: None,
            payload,
        };
        Segment { from: flow.mac, source: flow.remote.0.into(), destination: place.address.into(), tcp }
    }

    /// The sequence number before the first unacknowledged byte: the guest's initial one, as if the connection had begun here.
    fn first(&self) -> u32 {
        self.flow.ours.wrapping_add(self.acknowledged)
    }

    /// A socket with this connection, and the frames that it sends and had not sent before.
    ///
    /// # Errors
    /// The reason, for a person.
    pub fn socket(&self, place: &Place, now: Instant) -> Result<(Socket<'static>, Vec<Vec<u8>>), String> {
        // To the socket the connection begins at the other end's first byte that was not read.
        let theirs = self.flow.theirs.wrapping_add(self.read);
        let frame = |control, at, payload: &[u8]| self.segment(place, control, at, payload).frame(place.mac);
        let mut network = Frames::default();
        let (mut interface, mut sockets, handle) =
            self.asked(place, &mut network, now, &frame(TcpControl::Syn, theirs, &[]))?;
        network.sent.clear();
        let mut at = theirs.wrapping_add(1);
        if self.stage != Stage::Asked {
            network.received.push_back(frame(TcpControl::None, at, &[]));
            settle(&mut interface, &mut network, &mut sockets, now);
        }
        for piece in self.received.chunks(SEGMENT) {
            network.received.push_back(frame(TcpControl::Psh, at, piece));
            at = at.wrapping_add(piece.len() as u32);
            settle(&mut interface, &mut network, &mut sockets, now);
        }
        if matches!(self.stage, Stage::Half | Stage::Closed) {
            network.received.push_back(frame(TcpControl::Fin, at, &[]));
            settle(&mut interface, &mut network, &mut sockets, now);
        }
        let socket = sockets.get_mut::<Socket<'_>>(handle);
        if !self.unacknowledged.is_empty() && socket.send_slice(&self.unacknowledged) != Ok(self.unacknowledged.len()) {
            return Err("it does not take the bytes on their way".to_owned());
        }
        if self.stage == Stage::Closed {
            socket.close();
        }
        settle(&mut interface, &mut network, &mut sockets, now);
        let smoltcp::socket::Socket::Tcp(socket) = sockets.remove(handle) else {
            return Err("it is no TCP socket".to_owned());
        };
        if Stage::of(socket.state()) != Some(self.stage) || socket.recv_queue() != self.received.len() {
            return Err(format!("it is in state {}, with {} bytes", socket.state(), socket.recv_queue()));
        }
        Ok((socket, self.unsent(network.sent)))
    }

    /// The generator's seed is right when the SYN is answered with the initial sequence number of this connection.
    fn asked(
        &self,
        place: &Place,
        network: &mut Frames,
        now: Instant,
        syn: &[u8],
    ) -> Result<(Interface, SocketSet<'static>, smoltcp::iface::SocketHandle), String> {
        for seed in seeds(self.first()) {
            *network = Frames::default();
            let mut interface = place.interface(network, seed, now);
            introduce(&mut interface, &[(self.flow.remote.0, self.flow.mac)], place.address, now);
            let mut sockets = SocketSet::new(Vec::new());
            let mut socket = socket();
            socket.listen(self.flow.port).map_err(|error| error.to_string())?;
            let handle = sockets.add(socket);
            network.received.push_back(syn.to_vec());
            settle(&mut interface, network, &mut sockets, now);
            let is_right = |frame: &Vec<u8>| {
                Segment::parse(frame).is_some_and(|segment| {
                    segment.tcp.control == TcpControl::Syn && number(segment.tcp.seq_number) == self.first()
                })
            };
            if network.sent.iter().any(is_right) {
                return Ok((interface, sockets, handle));
            }
        }
        Err("smoltcp's random numbers are others than this build expects".to_owned())
    }

    /// Of the frames that a new socket sends, those with bytes that the guest has not sent, and one acknowledgement: the last one before the
    /// image may have been due.
    fn unsent(&self, sent: VecDeque<Vec<u8>>) -> Vec<Vec<u8>> {
        let mut unsent = Vec::new();
        let mut last = None;
        for frame in sent {
            let Some(segment) = Segment::parse(&frame) else { continue };
            match segment.end() {
                Some(end) if is_after(end, self.flow.sent) => unsent.push(frame),
                None if segment.tcp.control != TcpControl::Syn => last = Some(frame),
                _ => {}
            }
        }
        unsent.extend(last);
        unsent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_the_wanted_number_with_each_seed() {
        for number in [0, 1, 0x8000_0000, u32::MAX, 0x1234_5678] {
            for (index, seed) in seeds(number).enumerate() {
                let mut state = seed;
                let mut out = 0;
                for _ in 0..=index % 4 {
                    state = state.wrapping_mul(FACTOR).wrapping_add(SUMMAND);
                    out = (state >> (29 - (state >> 61))) as u32;
                }
                assert_eq!(out, number);
            }
        }
    }

    #[test]
    fn an_image_of_another_version_is_refused_with_a_sentence() {
        let refused = |bytes: &[u8]| Image::parse(bytes).unwrap_err();
        assert_eq!(refused(&[9, 1, 2]), "it is of version 9, and this build reads version 1");
        assert_eq!(refused(&[]), "it is empty");
        assert!(refused(&[VERSION, 1, 2]).starts_with("it is malformed: "));
    }
}
