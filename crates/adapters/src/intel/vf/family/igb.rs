//! The physical function of an 82576: the answers of Linux 7.3's igb_main.c (igb_msg_task and what it calls).
//!
//! | message | answer |
//! |---|---|
//! | RESET | 80000001 and the address, without CTS; 40000001 if the function has none. A trusted function has the address that it set, until power-on or a reset of the bus |
//! | any other before RESET | its word and NACK; silence for 2 s after a reset |
//! | SET_MAC_ADDR, info 0 | ACK if the function is trusted |
//! | the same, info 1 and 2 | clears the further addresses, adds one of at most three: ACK if it is trusted |
//! | SET_MULTICAST | ACK; more than thirty hashes are all |
//! | SET_VLAN | ACK, up to 31 besides VLAN 0, which stays; from then on tags are stripped. NACK if the port tags its frames |
//! | SET_LPE | ACK |
//! | SET_PROMISC | multicast: ACK; unicast: NACK |
//! | others | NACK |
//!
//! Two differences. Linux refuses to clear addresses unless the message has a valid one, which no driver sends
//! (igb_set_vf_mac_filter; e1000_set_uc_addr_vf in igbvf's vf.c sends zeros): here they are cleared. Linux notes a change of trust
//! (igb_ndo_set_vf_trust), so a function keeps addresses that it may not have any more: here it loses them, and its driver is told.

use nicety_adapter::family::{Answer, Ask, Grant, Message, Reply, Request, Standing};

use super::{
    ADDRESSES_MAX, FunctionPolicy, PhysicalFunction, REFUSED, RESET, Verdict, address, is_station, multicast, read,
    reset, reset_event, vlan, word,
};

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
/// Most bytes of a frame: MAX_STD_JUMBO_FRAME_SIZE with header, tag and check sequence.
const FRAME_MAX: u32 = 9216 + 22;
/// Silence after a reset or a refusal.
const SILENCE_NS: u64 = 2_000_000_000;

/// A card with functions under these policies.
pub fn card(policies: Vec<FunctionPolicy>) -> PhysicalFunction {
    PhysicalFunction { policies, answers: answer, hears, multicast_needs_trust: false }
}

fn is_silent(ask: &Ask) -> bool {
    ask.standing.silent_from.is_some_and(|from| ask.at <= from.after_ns(SILENCE_NS))
}

fn answer(policy: FunctionPolicy, ask: &Ask, message: &Message) -> Answer {
    let first = message[0];
    if first == RESET {
        return Answer { silent_from: Some(ask.at), ..reset(policy, ask, &[]) };
    }
    if !ask.standing.ready {
        let refusal = (!is_silent(ask)).then(|| Reply::new(&[first | word::NACK]));
        return Answer { reply: refusal, ..read() };
    }
    let verdict = match first & 0xffff {
        SET_MAC_ADDR => set_address(policy, message, &ask.standing),
        SET_MULTICAST => multicast(message, true),
        SET_VLAN => vlan(policy, message, ask.standing.vlans),
        SET_LPE => Grant::FrameMax(message[1].min(FRAME_MAX)).into(),
        SET_PROMISC => {
            let all = first & PROMISC_MULTICAST != 0;
            let granted = first & word::INFO & !PROMISC_MULTICAST == 0;
            Verdict { granted, grant: Some(Grant::AllMulticast(all)) }
        }
        _ => REFUSED,
    };
    // igb_set_vf_promisc takes this bit out of the message.
    let done = if first & 0xffff == SET_PROMISC { PROMISC_MULTICAST } else { 0 };
    let reply = Reply::new(&[first & !done | word::CTS | verdict.bit()]);
    Answer { reply: Some(reply), grant: verdict.grant, ..read() }
}

fn hears(ask: &Ask) -> Answer {
    match ask.request {
        // igb_vf_reset_event.
        Request::Reset => Answer { silent_from: Some(ask.at), ..reset_event() },
        // igb_rcv_ack_from_vf: who reads without being clear to send should reset.
        Request::Acknowledged if !ask.standing.ready && !is_silent(ask) => {
            Answer { reply: Some(Reply::new(&[word::NACK])), silent_from: Some(ask.at), ..Answer::default() }
        }
        _ => Answer::default(),
    }
}

/// igb_set_vf_mac_addr, igb_set_vf_mac_filter.
fn set_address(policy: FunctionPolicy, message: &Message, standing: &Standing) -> Verdict {
    let (address, info) = (address(message), message[0] & word::INFO);
    match info {
        _ if !policy.trusted => REFUSED,
        CLEAR => Grant::OnlyAddress(None).into(),
        _ if !is_station(address) => REFUSED,
        0 => Grant::Address(address).into(),
        ADD if standing.addresses < ADDRESSES_MAX => Grant::AddAddress(address).into(),
        _ => REFUSED,
    }
}
