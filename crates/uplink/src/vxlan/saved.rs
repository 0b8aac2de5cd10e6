//! A tunnel that goes on in another process: its sockets, what has come and was not examined, what waits for room, and its table of other
//! hosts. So the first frame of the next process goes where the last one of this process went.

use std::net::IpAddr;

use nicety_adapter::snapshot::{Nothing, RestoreError, Version, decode, encode};
use serde::{Deserialize, Serialize};

/// Datagrams of one host, one behind the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedArrived {
    pub from: IpAddr,
    /// Bytes of each datagram but the last.
    pub segment: u32,
    pub bytes: Vec<u8>,
}

/// A message that waits for room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedMessage {
    pub to: IpAddr,
    pub port: u16,
    /// The socket that sends it.
    pub socket: u8,
    /// Bytes of each datagram but the last; 0: it is one.
    pub segment: u16,
    /// Its place in the bytes.
    pub at: u32,
    pub len: u32,
    /// Packets, frames and bytes that are counted when it is sent.
    pub count: [u32; 3],
}

/// Another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedHop {
    pub address: IpAddr,
    /// Its networks; `None`: all.
    pub networks: Option<Vec<u32>>,
}

/// A guest's address at another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedPlace {
    pub vni: u32,
    pub mac: [u8; 6],
    /// The host, by its place among the saved ones.
    pub hop: u16,
    /// Second of the daemon's clock at which it was learned; `None`: it was told.
    pub seen_s: Option<u32>,
}

/// The state of a tunnel. Its descriptors are the sockets, first the one that receives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedTunnel {
    pub arrived: Vec<SavedArrived>,
    pub messages: Vec<SavedMessage>,
    /// Bytes of the messages: those of a broadcast are there once.
    pub leaving: Vec<u8>,
    pub hops: Vec<SavedHop>,
    pub places: Vec<SavedPlace>,
}

/// Version 1: the table of other hosts was not handed over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedTunnel1 {
    arrived: Vec<SavedArrived>,
    messages: Vec<SavedMessage>,
    leaving: Vec<u8>,
}

impl Version for SavedTunnel {
    const NUMBER: u16 = 2;
    type Before = SavedTunnel1;

    fn from_before(SavedTunnel1 { arrived, messages, leaving }: SavedTunnel1) -> Result<Self, RestoreError> {
        Ok(Self { arrived, messages, leaving, ..Self::default() })
    }
}

impl Version for SavedTunnel1 {
    const NUMBER: u16 = 1;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

const KIND: &str = "nicety-tunnel";

impl SavedTunnel {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        encode(KIND, Self::NUMBER, self)
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, RestoreError> {
        decode(KIND, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handover::held_since;

    #[test]
    fn the_state_of_a_tunnel_is_read_by_each_later_version() {
        let arrived = SavedArrived { from: IpAddr::from([192, 0, 2, 2]), segment: 50, bytes: vec![1, 2, 3] };
        let message = SavedMessage {
            to: "2001:db8::1".parse().unwrap(),
            port: 4789,
            socket: 3,
            segment: 100,
            at: 64,
            len: 150,
            count: [1, 2, 300],
        };
        let first = SavedTunnel {
            arrived: vec![arrived],
            messages: vec![message],
            leaving: vec![4, 5],
            ..SavedTunnel::default()
        };
        let [one, other] = [[192, 0, 2, 2], [192, 0, 2, 3]].map(IpAddr::from);
        let place = |hop, seen_s| SavedPlace { vni: 5010, mac: [2, 0, 0, 0, 0, 1], hop, seen_s };
        let second = SavedTunnel {
            hops: vec![
                SavedHop { address: one, networks: None },
                SavedHop { address: other, networks: Some(vec![5010, 5020]) },
            ],
            places: vec![place(0, None), place(1, Some(300))],
            ..first.clone()
        };
        held_since(KIND, &second, &[(1, first)]);
    }
}
