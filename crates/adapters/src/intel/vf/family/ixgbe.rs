//! The physical function of an 82599: the answers of Linux 7.3's ixgbe_sriov.c (ixgbe_msg_task and what it calls).
//!
//! | message | answer |
//! |---|---|
//! | RESET | 80000001, the address, and filter type 0, without CTS, and zeros; 40000001 if the function has none. A trusted function has the address that it set, until power-on or a reset of the bus |
//! | any other before RESET | its word and NACK |
//! | SET_MAC_ADDR | ACK for its own address; for another one if the function is trusted |
//! | SET_MACVLAN | index 0 clears the further addresses, 1 also adds one, others add one of at most three, if it is trusted |
//! | SET_MULTICAST, SET_VLAN | ACK; up to 31 VLANs besides VLAN 0, which stays. SET_VLAN: NACK if the port tags its frames |
//! | SET_LPE | ACK for 68 to 9728 bytes, in version 1.0 up to 1518 |
//! | API_NEGOTIATE | versions 1.0 to 1.3 and 1.7 |
//! | FEATURES_NEGOTIATE | 1.7: none |
//! | GET_QUEUES | from 1.1: two each way; one traffic class if the port tags its frames, else none |
//! | GET_RETA, GET_RSS_KEY | from 1.2, if the host lets it (`query_rss on`) |
//! | UPDATE_XCAST_MODE | from 1.2: none, multicast; all multicast if it is trusted; promiscuous: NACK, as of an 82599 |
//! | GET_LINK_STATE | from 1.2: it is enabled |
//! | others | NACK |
//!
//! Differences: Linux has versions 1.4 and 1.6, which add IPsec. Its drivers try 1.7 first, and then from 1.5 downwards: without
//! them they take 1.3. Mode "none" also stops hashed multicast frames there. In version 1.0 Linux also stops the receiver at longer frames. Its PF must have a long MTU for functions to have one: here it has the longest. Linux
//! forces a function's link down by a reset: VFRE and VFTE are off, GET_LINK_STATE says so to a driver that has reset, and a driver that
//! was told so asks again after its next reset only (ixgbe_set_vf_link_state, ixgbevf_up_complete). Here the link itself goes down, as
//! of an 82576, and comes up at once.

use nicety_adapter::family::{Answer, Ask, Grant, MESSAGE_WORDS, Message, Reply, Request, Standing};

use super::{
    ADDRESSES_MAX, FunctionPolicy, PhysicalFunction, REFUSED, RESET, UNCHANGED, Verdict, address, is_station,
    multicast, read, reset, reset_event, vlan, word,
};

const SET_MAC_ADDR: u32 = 0x02;
const SET_MULTICAST: u32 = 0x03;
const SET_VLAN: u32 = 0x04;
const SET_LPE: u32 = 0x05;
const SET_MACVLAN: u32 = 0x06;
const API_NEGOTIATE: u32 = 0x08;
const GET_QUEUES: u32 = 0x09;
const GET_RETA: u32 = 0x0a;
const GET_RSS_KEY: u32 = 0x0b;
const UPDATE_XCAST_MODE: u32 = 0x0c;
const GET_LINK_STATE: u32 = 0x10;
const FEATURES_NEGOTIATE: u32 = 0x12;

/// ixgbe_mbox_api_: versions in the order of their numbers.
mod version {
    pub const V1_0: u8 = 0;
    pub const V1_1: u8 = 2;
    pub const V1_2: u8 = 3;
    pub const V1_3: u8 = 4;
    pub const V1_7: u8 = 8;
}

/// IXGBEVF_XCAST_MODE_.
mod xcast {
    pub const MULTI: u32 = 1;
    pub const ALLMULTI: u32 = 2;
    pub const PROMISC: u32 = 3;
}

/// SET_LPE's range in bytes, check sequence included, tag not: ETH_MIN_MTU, IXGBE_MAX_JUMBO_FRAME_SIZE.
const LENGTHS: std::ops::RangeInclusive<u32> = 68..=9728;
/// Longest frame in version 1.0: ETH_FRAME_LEN and ETH_FCS_LEN.
const LENGTH_1_0: u32 = 1518;
const TAG: u32 = 4;
/// Queues of a function each way.
const QUEUES: u32 = 2;

/// Key of the hash of every function: the one of the RSS specification. The answer to GET_RSS_KEY.
pub const RSS_KEY: [u32; 10] = [
    0xda56_5a6d,
    0xc20e_5b25,
    0x3d25_6741,
    0xb08f_a343,
    0xcb2b_cad0,
    0xb430_7bae,
    0xa32d_cb77,
    0x0cf2_3080,
    0x3bb7_426a,
    0xfa01_acbe,
];
/// The answer to GET_RETA: 128 entries of two bits, 0, 1, 0, 1.
const RETA: u32 = 0x4444_4444;

/// A card with functions under these policies.
pub fn card(policies: Vec<FunctionPolicy>) -> PhysicalFunction {
    PhysicalFunction { policies, answers: answer, hears, multicast_needs_trust: true }
}

fn answer(policy: FunctionPolicy, ask: &Ask, message: &Message) -> Answer {
    let standing = &ask.standing;
    let first = message[0];
    if first == RESET {
        // ixgbe_vf_clear_mbx.
        return reset(policy, ask, &[0; MESSAGE_WORDS - 3]);
    }
    if !standing.ready {
        return Answer { reply: Some(Reply::new(&[first | word::NACK])), ..read() };
    }
    let mut words = *message;
    let since = |version| standing.version >= version;
    let verdict = match first & 0xffff {
        SET_MAC_ADDR => {
            let asked = address(message);
            let allowed = is_station(asked) && (policy.trusted || asked == policy.address);
            if allowed { Grant::Address(asked).into() } else { REFUSED }
        }
        SET_MULTICAST => multicast(message, false),
        SET_VLAN => vlan(policy, message, standing.vlans),
        SET_LPE => {
            let fits = LENGTHS.contains(&message[1]) && (since(version::V1_1) || message[1] <= LENGTH_1_0);
            if fits { Grant::FrameMax(message[1] + TAG).into() } else { REFUSED }
        }
        SET_MACVLAN => further_address(policy, message, standing),
        API_NEGOTIATE => match u8::try_from(message[1]) {
            Ok(asked @ (version::V1_0 | version::V1_1..=version::V1_3 | version::V1_7)) => Grant::Version(asked).into(),
            _ => REFUSED,
        },
        FEATURES_NEGOTIATE if since(version::V1_7) => {
            words[1] = 0;
            UNCHANGED
        }
        GET_QUEUES if since(version::V1_1) => {
            words[1..5].copy_from_slice(&[QUEUES, QUEUES, policy.tagged.into(), 0]);
            UNCHANGED
        }
        GET_RETA if since(version::V1_2) && policy.queries_rss => {
            words[1..9].fill(RETA);
            UNCHANGED
        }
        GET_RSS_KEY if since(version::V1_2) && policy.queries_rss => {
            words[1..11].copy_from_slice(&RSS_KEY);
            UNCHANGED
        }
        UPDATE_XCAST_MODE if since(version::V1_2) => xcast_mode(policy, &mut words, standing),
        GET_LINK_STATE if since(version::V1_2) => {
            words[1] = 1;
            UNCHANGED
        }
        _ => REFUSED,
    };
    words[0] |= word::CTS | verdict.bit();
    Answer { reply: Some(Reply::new(&words[..MESSAGE_WORDS])), grant: verdict.grant, ..read() }
}

fn hears(ask: &Ask) -> Answer {
    match ask.request {
        // ixgbe_vf_reset_event.
        Request::Reset => reset_event(),
        // ixgbe_rcv_ack_from_vf: who reads without being clear to send should reset.
        Request::Acknowledged if !ask.standing.ready => {
            Answer { reply: Some(Reply::new(&[word::NACK])), ..Answer::default() }
        }
        _ => Answer::default(),
    }
}

/// ixgbe_set_vf_macvlan_msg, ixgbe_set_vf_macvlan.
fn further_address(policy: FunctionPolicy, message: &Message, standing: &Standing) -> Verdict {
    let (asked, index) = (address(message), (message[0] & word::INFO) >> word::INFO_SHIFT);
    match index {
        0 => Grant::OnlyAddress(None).into(),
        _ if !policy.trusted || !is_station(asked) => REFUSED,
        1 => Grant::OnlyAddress(Some(asked)).into(),
        _ if standing.addresses >= ADDRESSES_MAX => REFUSED,
        _ => Grant::AddAddress(asked).into(),
    }
}

/// ixgbe_update_vf_xcast_mode: the reply has the granted mode.
fn xcast_mode(policy: FunctionPolicy, words: &mut Message, standing: &Standing) -> Verdict {
    if words[1] == xcast::PROMISC && standing.version == version::V1_2 {
        return REFUSED;
    }
    if words[1] > xcast::MULTI && !policy.trusted {
        let grant = if words[1] == xcast::ALLMULTI { Grant::WantsAllMulticast } else { Grant::AllMulticast(false) };
        words[1] = xcast::MULTI;
        return grant.into();
    }
    match words[1] {
        ..=xcast::ALLMULTI => Grant::AllMulticast(words[1] == xcast::ALLMULTI).into(),
        _ => REFUSED,
    }
}
