//! The physical function of an 82576, as its host's driver runs it: the answers of Linux 7.3's igb_main.c (igb_msg_task and what it
//! calls) to the messages of its virtual functions.
//!
//! | message | answer |
//! |---|---|
//! | RESET | 80000001 and the address, without CTS; 40000001 if the function has none |
//! | any other before RESET | its word and NACK; silence for 2 s after a reset |
//! | SET_MAC_ADDR, info 0 | ACK if the function is trusted |
//! | the same, info 1 and 2 | clears the further addresses, adds one of at most three: ACK if it is trusted |
//! | SET_MULTICAST | ACK; more than thirty hashes are all |
//! | SET_VLAN | ACK, up to 31 besides VLAN 0, which stays |
//! | SET_LPE | ACK |
//! | SET_PROMISC | multicast: ACK; unicast: NACK |
//! | others | NACK |
//!
//! One difference: Linux refuses to clear addresses unless the message has a valid one, which no driver sends
//! (igb_set_vf_mac_filter; e1000_set_uc_addr_vf in igbvf's vf.c sends zeros). Here they are cleared.

use nicety_adapter::Time;
use nicety_adapter::family::{Answer, Ask, Family, Grant, HASHES, Message, Reply, Request, Standing};
use nicety_frame::Mac;

/// Bits of a message's first word (e1000_mbx.h).
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

const RESET: u32 = 1;
const SET_MAC_ADDR: u32 = 2;
const SET_MULTICAST: u32 = 3;
const SET_VLAN: u32 = 4;
const SET_LPE: u32 = 5;
const SET_PROMISC: u32 = 6;

/// SET_MAC_ADDR's info: clear further addresses, add one.
const CLEAR: u32 = 1 << word::INFO_SHIFT;
const ADD: u32 = 2 << word::INFO_SHIFT;
/// SET_PROMISC's info.
const PROMISC_MULTICAST: u32 = 2 << word::INFO_SHIFT;
/// Further addresses of a function: IGBVF_MAX_MAC_FILTERS.
pub const ADDRESSES_MOST: u8 = 3;
/// VLANs of a function besides 0: E1000_VLVF_ARRAY_SIZE, of which the first is VLAN 0's.
pub const VLANS_MOST: u8 = 31;
/// Most bytes of a frame: MAX_STD_JUMBO_FRAME_SIZE with header, tag and check sequence.
pub const FRAME_MAX: u32 = 9216 + 22;
/// Silence after a reset or a refusal.
const SILENCE_NS: u64 = 2_000_000_000;

/// The host's policy for a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionPolicy {
    /// Its address.
    pub address: Mac,
    /// It may change its address and add others.
    pub trusted: bool,
}

/// See the module's page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhysicalFunction {
    policies: Vec<FunctionPolicy>,
}

/// A grant, or a refusal. Linux also grants one half of a message and refuses the other.
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

fn address(message: &Message) -> Mac {
    let ([a, b, c, d], [e, f, ..]) = (message[1].to_le_bytes(), message[2].to_le_bytes());
    Mac([a, b, c, d, e, f])
}

fn is_station(address: Mac) -> bool {
    address.0 != [0; 6] && address.0[0] & 1 == 0
}

fn is_silent(standing: &Standing, at: Time) -> bool {
    standing.silent_from.is_some_and(|from| at <= from.after_ns(SILENCE_NS))
}

impl PhysicalFunction {
    /// A card with functions under these policies.
    pub fn new(policies: Vec<FunctionPolicy>) -> Self {
        Self { policies }
    }

    fn message(&self, policy: FunctionPolicy, message: &Message, standing: &Standing, at: Time) -> Answer {
        let first = message[0];
        let read = Answer { acknowledged: true, ..Answer::default() };
        if first & (word::ACK | word::NACK) != 0 {
            return read;
        }
        if first == RESET {
            return reset(policy, at);
        }
        if !standing.ready {
            let refusal = (!is_silent(standing, at)).then(|| Reply::new(&[first | word::NACK]));
            return Answer { reply: refusal, ..read };
        }
        let verdict = match first & 0xffff {
            SET_MAC_ADDR => set_address(policy, message, standing),
            SET_MULTICAST => multicast(message),
            SET_VLAN => vlan(message, standing),
            SET_LPE => Grant::FrameMax(message[1].min(FRAME_MAX)).into(),
            SET_PROMISC => {
                let all = first & PROMISC_MULTICAST != 0;
                let granted = first & word::INFO & !PROMISC_MULTICAST == 0;
                Verdict { granted, grant: Some(Grant::AllMulticast(all)) }
            }
            _ => REFUSED,
        };
        let done = if first & 0xffff == SET_PROMISC { PROMISC_MULTICAST } else { 0 };
        let result = if verdict.granted { word::ACK } else { word::NACK };
        Answer { reply: Some(Reply::new(&[first & !done | word::CTS | result])), grant: verdict.grant, ..read }
    }
}

/// igb_vf_reset_msg.
fn reset(policy: FunctionPolicy, at: Time) -> Answer {
    let own = Some(policy.address).filter(|address| is_station(*address));
    let [a, b, c, d, e, f] = own.unwrap_or(Mac([0; 6])).0;
    let result = if own.is_some() { word::ACK } else { word::NACK };
    let words = [RESET | result, u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, 0, 0])];
    Answer {
        acknowledged: true,
        reply: Some(Reply::new(&words)),
        grant: Some(Grant::Reset { ready: true, address: own }),
        silent_from: Some(at),
    }
}

/// igb_set_vf_mac_addr, igb_set_vf_mac_filter.
fn set_address(policy: FunctionPolicy, message: &Message, standing: &Standing) -> Verdict {
    let (address, info) = (address(message), message[0] & word::INFO);
    match info {
        _ if !policy.trusted => REFUSED,
        CLEAR => Grant::ClearAddresses.into(),
        _ if !is_station(address) => REFUSED,
        0 => Grant::Address(address).into(),
        ADD if standing.addresses < ADDRESSES_MOST => Grant::AddAddress(address).into(),
        _ => REFUSED,
    }
}

/// igb_set_vf_multicasts: the hashes are halves of the words, the lower one first.
fn multicast(message: &Message) -> Verdict {
    let number = (message[0] & word::INFO) >> word::INFO_SHIFT;
    let mut hashes = [0; HASHES];
    for (two, word) in hashes.chunks_exact_mut(2).zip(&message[1..]) {
        two.copy_from_slice(&[(word & 0xfff) as u16, (word >> 16 & 0xfff) as u16]);
    }
    let count = number.min(HASHES as u32) as u8;
    Grant::Multicast { count, hashes, all: number > HASHES as u32 }.into()
}

/// igb_set_vf_vlan_msg.
fn vlan(message: &Message, standing: &Standing) -> Verdict {
    let (on, id) = (message[0] & word::INFO != 0, (message[1] & 0xfff) as u16);
    match (id, on) {
        (0, false) => UNCHANGED,
        (1.., true) if standing.vlans >= VLANS_MOST => REFUSED,
        _ => Grant::Vlan { id, on }.into(),
    }
}

impl Family for PhysicalFunction {
    fn answer(&mut self, function: u16, ask: &Ask) -> Answer {
        let Some(policy) = self.policies.get(usize::from(function)).copied() else { return Answer::default() };
        let Ask { request, standing, at } = ask;
        match request {
            // igb_vf_reset_event.
            Request::Reset => Answer {
                grant: Some(Grant::Reset { ready: false, address: None }),
                silent_from: Some(*at),
                ..Answer::default()
            },
            Request::Message(message) => self.message(policy, message, standing, *at),
            // igb_rcv_ack_from_vf: who reads without being clear to send should reset.
            Request::Acknowledged if !standing.ready && !is_silent(standing, *at) => {
                Answer { reply: Some(Reply::new(&[word::NACK])), silent_from: Some(*at), ..Answer::default() }
            }
            Request::Acknowledged => Answer::default(),
        }
    }
}
