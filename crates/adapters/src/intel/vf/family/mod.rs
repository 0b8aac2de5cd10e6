//! Physical functions, as their host's drivers run them: the answers to the messages of virtual functions.

pub mod igb;
pub mod ixgbe;

pub use nicety_adapter::family::FunctionPolicy;
use nicety_adapter::family::{
    Answer, Ask, Family, Grant, HASHES, Held, MESSAGE_WORDS, Message, Reply, Request, Rights,
};
use nicety_frame::Mac;

/// Bits of a message's first word (Linux: e1000_mbx.h, ixgbe_mbx.h).
pub mod word {
    /// The request was granted.
    pub const ACK: u32 = 1 << 31;
    /// The request was refused.
    pub const NACK: u32 = 1 << 30;
    /// The function is clear to send messages.
    pub const CTS: u32 = 1 << 29;
    /// The message's own bits.
    pub const INFO: u32 = 0xff << 16;
    /// Position of those.
    pub const INFO_SHIFT: u32 = 16;
    /// The link changed, or the physical function was reset.
    pub const CONTROL: u32 = 0x100;
}

/// The first message of every driver.
const RESET: u32 = 1;
/// Further addresses of a function: IGBVF_MAX_MAC_FILTERS; of an ixgbevf as many.
pub const ADDRESSES_MAX: u8 = 3;
/// VLANs of a function besides 0: E1000_VLVF_ARRAY_SIZE, of which the first is VLAN 0's.
pub const VLANS_MAX: u8 = 31;

/// The answer that the driver of a chip's physical function gives to one message, by the function's policy.
pub type Answers = fn(FunctionPolicy, &Ask, &Message) -> Answer;

/// A card's physical function.
#[derive(Clone, Debug)]
pub struct PhysicalFunction {
    policies: Vec<FunctionPolicy>,
    /// Answers to messages.
    answers: Answers,
    /// Answer to a reset without a message, or to an acknowledgement.
    hears: fn(&Ask) -> Answer,
    /// Whether a function must be trusted to receive all multicast frames.
    multicast_needs_trust: bool,
}

impl PhysicalFunction {
    /// Whether a function has by its saved state what this policy does not let it have, or lacks what it should.
    fn differs(&self, policy: FunctionPolicy, ask: &Ask, held: Held) -> bool {
        let is_another = ask.address.is_some_and(|address| address != policy.address);
        let has_others = ask.standing.addresses > 0 || is_another;
        let needs_trust = has_others || (self.multicast_needs_trust && held.all_multicast);
        // A daemon of an earlier version disabled an 82599's function by a reset.
        let is_disabled = ask.standing.ready && !held.enabled;
        (needs_trust && !policy.trusted) || (ask.standing.vlans > 0 && policy.tagged) || is_disabled
    }

    /// The rights of a function by this policy. `loses_trust`: it may still have addresses that it must give up.
    fn rights(&self, policy: FunctionPolicy, has_new_address: bool, loses_trust: bool) -> Answer {
        let rights = Rights {
            address: (has_new_address || loses_trust).then_some(policy.address),
            addresses: policy.trusted,
            all_multicast: policy.trusted || !self.multicast_needs_trust,
            vlans: !policy.tagged,
            tells: loses_trust,
        };
        Answer { grant: Some(Grant::Rights(rights)), checks_tags: Some(policy.checks_tags), ..Answer::default() }
    }
}

impl Family for PhysicalFunction {
    fn functions(&self) -> u16 {
        self.policies.len() as u16
    }

    fn policy(&self, function: u16) -> Option<FunctionPolicy> {
        self.policies.get(usize::from(function)).copied()
    }

    /// The function's queues run on: no PF driver stops them here. A change of trust is noted (igb_ndo_set_vf_trust). Only a function that
    /// loses an address by it is told, by a message without CTS: it must learn its address by a reset. Linux's ixgbe_ndo_set_vf_trust
    /// tells each, so that its driver asks for all multicast frames again: here an earlier request counts from now on. The address is
    /// another one at once, and the driver learns it when it resets (ixgbe_ndo_set_vf_mac, igb_ndo_set_vf_mac). A port's VLAN ends the
    /// function's own without a word (ixgbe_enable_port_vlan, igb_enable_port_vlan).
    fn set_policy(&mut self, function: u16, policy: FunctionPolicy) -> Option<Answer> {
        let own = self.policies.get_mut(usize::from(function))?;
        let old = std::mem::replace(own, policy);
        let has_new_address = old.address != policy.address;
        (old != policy).then(|| self.rights(policy, has_new_address, old.trusted && !policy.trusted))
    }

    /// igb_reset and ixgbe_down with their igb_ping_all_vfs: a message without CTS.
    fn reset(&mut self, function: u16) -> Answer {
        let checks_tags = self.policy(function).map(|policy| policy.checks_tags);
        Answer { reply: Some(Reply::new(&[word::CONTROL])), checks_tags, ..reset_event() }
    }

    fn moved(&mut self, function: u16, has_new_address: bool) -> Answer {
        self.policy(function).map(|policy| self.rights(policy, has_new_address, !policy.trusted)).unwrap_or_default()
    }

    fn answer(&mut self, function: u16, ask: &Ask) -> Answer {
        let Some(policy) = self.policy(function) else { return Answer::default() };
        let answer = match &ask.request {
            Request::Message(message) if message[0] & (word::ACK | word::NACK) != 0 => read(),
            Request::Message(message) => (self.answers)(policy, ask, message),
            Request::Reset | Request::Acknowledged => (self.hears)(ask),
            Request::Restored(held) if self.differs(policy, ask, *held) => self.moved(function, false),
            Request::Restored(_) => Answer::default(),
        };
        // A function does not save this: it is its host's, who may be another one.
        Answer { checks_tags: Some(policy.checks_tags), ..answer }
    }
}

/// The message was read, and has no other effect.
fn read() -> Answer {
    Answer { acknowledged: true, ..Answer::default() }
}

fn reset_event() -> Answer {
    Answer { grant: Some(Grant::Reset { ready: false, enabled: false, address: None }), ..Answer::default() }
}

/// The answer to RESET: the first words, and what is granted.
fn reset(policy: FunctionPolicy, ask: &Ask, more: &[u32]) -> Answer {
    // A trusted function keeps the address that its driver has set (igb_set_vf_mac, ixgbe_set_vf_mac).
    let own = ask.address.filter(|_| policy.trusted).or(Some(policy.address)).filter(|address| is_station(*address));
    let [a, b, c, d, e, f] = own.unwrap_or(Mac([0; 6])).0;
    let result = if own.is_some() { word::ACK } else { word::NACK };
    let first = [RESET | result, u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, 0, 0])];
    let mut words = [0; MESSAGE_WORDS];
    words.iter_mut().zip(first).for_each(|(word, first)| *word = first);
    words.iter_mut().skip(3).zip(more).for_each(|(word, more)| *word = *more);
    let words = words.get(..3 + more.len()).unwrap_or_default();
    let grant = Some(Grant::Reset { ready: true, enabled: true, address: own });
    Answer { reply: Some(Reply::new(words)), grant, ..read() }
}

/// A decision: granted or refused, and what changes. Linux also grants one half of a message and refuses the other.
struct Verdict {
    granted: bool,
    grant: Option<Grant>,
}

impl From<Grant> for Verdict {
    fn from(grant: Grant) -> Self {
        Self { granted: true, grant: Some(grant) }
    }
}

const REFUSED: Verdict = Verdict { granted: false, grant: None };
const UNCHANGED: Verdict = Verdict { granted: true, grant: None };

impl Verdict {
    fn bit(&self) -> u32 {
        if self.granted { word::ACK } else { word::NACK }
    }
}

/// The address in a message.
fn address(message: &Message) -> Mac {
    let ([a, b, c, d], [e, f, ..]) = (message[1].to_le_bytes(), message[2].to_le_bytes());
    Mac([a, b, c, d, e, f])
}

fn is_station(address: Mac) -> bool {
    address.0 != [0; 6] && address.0[0] & 1 == 0
}

/// SET_MULTICAST: the hashes are halves of the words, the lower one first. `all`: more hashes than fit are all addresses.
fn multicast(message: &Message, all: bool) -> Verdict {
    let number = (message[0] & word::INFO) >> word::INFO_SHIFT;
    let mut hashes = [0; HASHES];
    for (two, word) in hashes.chunks_exact_mut(2).zip(&message[1..]) {
        two.copy_from_slice(&[(word & 0xfff) as u16, (word >> 16 & 0xfff) as u16]);
    }
    let count = number.min(HASHES as u32) as u8;
    Grant::Multicast { count, hashes, all: all && number > HASHES as u32 }.into()
}

/// SET_VLAN: VLAN 0 stays.
fn vlan(policy: FunctionPolicy, message: &Message, vlans: u8) -> Verdict {
    if policy.tagged {
        return REFUSED;
    }
    let (on, id) = (message[0] & word::INFO != 0, (message[1] & 0xfff) as u16);
    match (id, on) {
        (0, false) => UNCHANGED,
        (1.., true) if vlans >= VLANS_MAX => REFUSED,
        _ => Grant::Vlan { id, on }.into(),
    }
}
