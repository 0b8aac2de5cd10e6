//! The control queue (virtio 1.2, section 5.1.6.5): receive modes, addresses, VLANs, queue pairs, receive offloads.

use arrayvec::ArrayVec;
use nicety_adapter::{Context, ErrorPlace, Outbox, Queue};
use nicety_frame::Tag;
use nicety_frame::ethernet::ethertype;
use nicety_memory::Map;
use serde::{Deserialize, Serialize};

use super::addresses::{self, Table};
use super::broken::Broken;
use super::chain::Token;
use super::coalescing::{self, Coalescing};
use super::hashing::Hashing;
use super::kept::Kept;
use super::registers::{command, feature};
use super::ring::Ring;
use super::ring::areas::Areas;
use super::{RINGS_MAX, VirtioNet, role, statistics};

/// Bytes of a command that are read, address tables apart: enough for a query about each ring, and for RSS_CONFIG.
const COMMAND_MAX: usize = 1024;
/// Maximum commands in one call; a driver waits for each.
const COMMANDS_PER_CALL: usize = 64;
/// Fixed cost of a command, in descriptors, in addition to its buffers.
const COMMAND_COST: u32 = 32;
/// 64-bit words of the VLAN table.
const VLAN_WORDS: usize = 64;

/// State that the driver has set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Control {
    /// Queue pairs in use.
    pub pairs: u16,
    /// Negotiated receive offloads that are switched off.
    pub off: u128,
    mac: [u8; 6],
    modes: [bool; 6],
    unicast: Table,
    multicast: Table,
    vlans: ArrayVec<u64, VLAN_WORDS>,
    /// Notification limits that the driver has set.
    pub coalescing: Coalescing,
    /// The driver is asked to announce itself (5.1.6.5.4).
    pub announce: bool,
}

/// Indices in `modes`: the commands of class RX, in order (5.1.6.5.1).
const PROMISCUOUS: usize = 0;
const ALL_MULTICAST: usize = 1;
const ALL_UNICAST: usize = 2;
const NO_MULTICAST: usize = 3;
const NO_UNICAST: usize = 4;
const NO_BROADCAST: usize = 5;

impl Control {
    /// State after a reset: all frames are received, on one queue, until the driver changes it.
    pub fn new(mac: [u8; 6]) -> Self {
        let mut modes = [false; 6];
        modes[PROMISCUOUS] = true;
        let vlans = std::iter::repeat_n(0, VLAN_WORDS).collect();
        let (unicast, multicast) = (Table::default(), Table::default());
        let (coalescing, announce) = (coalescing::none(), false);
        Self { pairs: 1, off: 0, mac, modes, unicast, multicast, vlans, coalescing, announce }
    }

    /// Whether saved state is valid.
    pub fn possible(&self, pairs: u16) -> bool {
        let counted = self.vlans.len() == VLAN_WORDS && self.coalescing.len() == RINGS_MAX;
        (1..=pairs).contains(&self.pairs) && counted && self.off & !feature::OFFLOADS == 0
    }

    /// The device's MAC address.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Whether no frame passes, whatever its address.
    pub fn is_closed(&self) -> bool {
        let refuses = [NO_UNICAST, NO_MULTICAST, NO_BROADCAST].iter().all(|mode| self.modes[*mode]);
        refuses && !self.modes[PROMISCUOUS]
    }

    /// Whether a frame passes the filters. The VLAN filter is for 802.1Q identifiers: an 802.1ad tag passes, like any other type.
    pub fn wants(&self, head: &[u8], outer_tag: impl FnOnce() -> Option<Tag>, features: u128) -> bool {
        let Some(address) = head.get(..6) else { return false };
        if self.modes[PROMISCUOUS] {
            return true;
        }
        if features & feature::CTRL_VLAN != 0
            && let Some(tag) = outer_tag().filter(|tag| tag.tpid == ethertype::VLAN)
        {
            let vlan = usize::from(tag.tci.id());
            if self.vlans.get(vlan / 64).is_none_or(|word| word & 1 << (vlan % 64) == 0) {
                return false;
            }
        }
        if address == [0xff; 6] {
            return !self.modes[NO_BROADCAST];
        }
        if address[0] & 1 != 0 {
            return !self.modes[NO_MULTICAST] && (self.modes[ALL_MULTICAST] || self.multicast.has(address));
        }
        let known = address == self.mac || self.unicast.has(address);
        !self.modes[NO_UNICAST] && (self.modes[ALL_UNICAST] || known)
    }

    fn set_vlan(&mut self, data: &[u8], on: bool) -> Option<()> {
        let vlan = usize::from(u16::from_le_bytes(*data.first_chunk()?));
        let word = self.vlans.get_mut(vlan / 64)?;
        let bit = 1 << (vlan % 64);
        *word = if on { *word | bit } else { *word & !bit };
        Some(())
    }

    /// Executes one command. `None`: refused.
    fn obey(&mut self, request: &Request<'_>) -> Option<()> {
        let Request { class, command, data, features, pairs, .. } = *request;
        let taken = |bit: u128| (features & bit != 0).then_some(());
        match (class, command) {
            (command::RX, 0..=5) => {
                taken(if command < 2 { feature::CTRL_RX } else { feature::CTRL_RX_EXTRA })?;
                *self.modes.get_mut(usize::from(command))? = *data.first()? != 0;
            }
            (command::MAC, command::MAC_TABLE_SET) => {
                taken(feature::CTRL_RX)?;
                [self.unicast, self.multicast] = request.tables.clone()?;
            }
            (command::MAC, command::MAC_ADDR_SET) => {
                taken(feature::CTRL_MAC_ADDR)?;
                self.mac = *data.first_chunk()?;
            }
            (command::VLAN, 0 | 1) => {
                taken(feature::CTRL_VLAN)?;
                self.set_vlan(data, command == 0)?;
            }
            (command::ANNOUNCE, 0) => {
                taken(feature::GUEST_ANNOUNCE)?;
                self.announce = false;
            }
            (command::MQ, command::MQ_PAIRS) => {
                taken(feature::MQ | feature::RSS)?;
                let asked = u16::from_le_bytes(*data.first_chunk()?);
                self.pairs = (1..=pairs).contains(&asked).then_some(asked)?;
            }
            (command::GUEST_OFFLOADS, 0) => {
                taken(feature::CTRL_GUEST_OFFLOADS)?;
                let asked = u128::from(u64::from_le_bytes(*data.first_chunk()?));
                let able = features & feature::OFFLOADS;
                self.off = (asked & !able == 0).then_some(able & !asked)?;
            }
            _ => return None,
        }
        Some(())
    }
}

/// Maximum buffers of an answer.
const PIECES: usize = 8;
/// An answer, without its acknowledgement.
type Answer = ArrayVec<u8, { statistics::ANSWER_MAX }>;

/// One command from its chain: the bytes read, and the place for the answer.
struct Command {
    bytes: ArrayVec<u8, COMMAND_MAX>,
    long: bool,
    /// Addresses and lengths of the answer's buffers.
    answer: ArrayVec<(u64, u32), PIECES>,
    /// The chain's token.
    token: Token,
}

impl Command {
    fn read<const PACKED: bool>(areas: &Areas<'_, PACKED>, memory: &Map, at: u16) -> Result<Self, Broken> {
        let (bytes, long, answer, token) = (ArrayVec::new(), false, ArrayVec::new(), Token(0));
        let mut this = Self { bytes, long, answer, token };
        let mut chain = areas.chain(at)?;
        for buffer in chain.by_ref() {
            let buffer = buffer?;
            if buffer.write {
                this.answer.try_push((buffer.address, buffer.len)).map_err(|_| Broken::Answer)?;
                continue;
            }
            let room = COMMAND_MAX - this.bytes.len();
            let n = room.min(buffer.len as usize);
            this.long |= n < buffer.len as usize;
            let mut part = [0; COMMAND_MAX];
            memory.read(buffer.address, &mut part[..n]).map_err(|_| Broken::Buffer)?;
            let _fits = this.bytes.try_extend_from_slice(&part[..n]);
        }
        this.token = chain.token()?;
        areas.note(&chain);
        Ok(this)
    }

    /// Whether it is MAC_TABLE_SET.
    fn sets_tables(&self) -> bool {
        self.bytes.starts_with(&[command::MAC, command::MAC_TABLE_SET])
    }

    /// Bytes available for an answer, without the acknowledgement.
    fn room(&self) -> usize {
        self.answer.iter().fold(0usize, |sum, (_, len)| sum.saturating_add(*len as usize)).saturating_sub(1)
    }

    /// Writes the acknowledgement, the first byte (5.1.6.5: `ack`, then `command-specific-result`), then the answer. Returns the
    /// bytes written.
    fn write(&self, memory: &Map, acknowledge: u8, answer: &[u8]) -> Result<u32, Broken> {
        if self.answer.is_empty() {
            return Err(Broken::Answer);
        }
        let mut left = std::iter::once(acknowledge).chain(answer.iter().copied());
        let mut written = 0;
        for (address, len) in &self.answer {
            let piece: Answer = left.by_ref().take((*len as usize).min(statistics::ANSWER_MAX)).collect();
            memory.write(*address, &piece).map_err(|_| Broken::Buffer)?;
            written += piece.len() as u32;
        }
        Ok(written)
    }
}

/// Executes a command that involves more than the filters; returns its answer. `None`: refused.
fn obey(control: &mut Control, hashing: &mut Hashing, request: &Request<'_>) -> Option<Answer> {
    let Request { class, command, data, features, pairs, tallies, tables: _ } = *request;
    let role = |ring: u16| role(features, pairs, ring);
    match (class, command) {
        (command::MQ, command::MQ_RSS) if features & feature::RSS != 0 => {
            control.pairs = hashing.set_scaling(data, pairs)?;
            Some(Answer::new())
        }
        (command::MQ, command::MQ_HASH) if features & feature::HASH_REPORT != 0 => {
            hashing.set_report(data)?;
            Some(Answer::new())
        }
        (command::NOTF_COAL, command) => {
            Some(coalescing::obey(&mut control.coalescing, command, data, features, role)?.into_iter().collect())
        }
        (command::STATS, command) if features & feature::DEVICE_STATS != 0 => {
            statistics::obey(command, data, tallies, role)
        }
        _ => {
            control.obey(request)?;
            if (class, command) == (command::MQ, command::MQ_PAIRS) {
                hashing.end_scaling();
            }
            Some(Answer::new())
        }
    }
}

/// A command and its inputs.
struct Request<'a> {
    class: u8,
    command: u8,
    data: &'a [u8],
    features: u128,
    pairs: u16,
    /// Statistics of each ring.
    tallies: &'a [[u64; 4]],
    /// Tables of MAC_TABLE_SET, if complete.
    tables: Option<[Table; 2]>,
}

/// The expectation of a command; its value is class and command.
const COMMAND: &str = "a class and command that were negotiated, with its data and room for the answer (5.1.6.5)";

impl VirtioNet {
    /// Serves the control queue.
    pub(super) fn serve_control(&mut self, number: u16, cx: &mut Context<'_>) {
        let served = match self.is_packed() {
            true => self.serve_commands::<true>(number, cx),
            false => self.serve_commands::<false>(number, cx),
        };
        if let Err(broken) = served {
            self.break_ring(number, broken, cx);
        }
    }

    fn serve_commands<const PACKED: bool>(&mut self, number: u16, cx: &mut Context<'_>) -> Result<(), Broken> {
        let (features, pairs) = (self.taken, self.config.pairs);
        let tallies: ArrayVec<_, RINGS_MAX> = self.rings.iter().map(Ring::statistics).take(RINGS_MAX).collect();
        let Some(ring) = self.rings.get_mut(usize::from(number)).filter(|ring| ring.live()) else { return Ok(()) };
        let memory = cx.memory.as_ref();
        let mut areas = ring.open::<PACKED>(memory, features)?;
        areas.keep(self.kept.as_deref().and_then(|map| Kept::of(map, number)));
        for _ in 0..COMMANDS_PER_CALL {
            let waits = areas.has(ring.next, areas.seen(ring)?);
            if !areas.has_steps() || (!waits && !areas.arm(ring, ring.next)) {
                break;
            }
            let before = areas.walked();
            let read = Command::read(&areas, memory, ring.next)?;
            let tables = match read.sets_tables() {
                true => {
                    // A table may be longer than any packet. Only the addresses that fit the filter are read.
                    let mut chain = areas.chain(ring.next)?.with_whole_buffers();
                    let tables = addresses::read(&mut chain, memory)?;
                    areas.note(&chain);
                    tables
                }
                false => None,
            };
            cx.out.charge(areas.walked() - before + COMMAND_COST);
            let done = match read.bytes.as_slice() {
                [class, command, data @ ..] if !read.long || tables.is_some() => {
                    let (class, command) = (*class, *command);
                    let request = Request { class, command, data, features, pairs, tallies: &tallies, tables };
                    obey(&mut self.control, &mut self.hashing, &request).filter(|answer| answer.len() <= read.room())
                }
                _ => None,
            };
            if done.is_none() {
                let command = read.bytes.iter().take(2).fold(0, |value, byte| value << 8 | u64::from(*byte));
                let place = ErrorPlace::Descriptor(Queue::Control, read.token.0 & 0xffff);
                cx.guest_error(place, command, COMMAND);
            }
            // After a kill the driver does not repeat it.
            cx.out.stalled.insert(Outbox::KEEP);
            let written = match &done {
                Some(answer) => read.write(memory, command::OK, answer)?,
                None => read.write(memory, command::ERR, &[])?,
            };
            ring.next = areas.behind(ring.next, read.token);
            ring.give_back(&areas, read.token, written);
        }
        if areas.has(ring.next, areas.seen(ring)?) {
            // More commands than a driver ever sends at once: the rest waits for the next call.
            cx.out.wake_by(cx.now);
        }
        if ring.publish(&areas) {
            ring.call(number, cx);
        }
        Ok(())
    }
}
