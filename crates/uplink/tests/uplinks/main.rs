//! Uplinks from outside: checked by smoltcp, by pcap-file, and by the host's own network stack.

#[path = "../../../daemon/tests/namespace/again.rs"]
mod again;
mod capture;
mod common;
#[path = "../elsewhere/mod.rs"]
mod elsewhere;
mod faulty;
mod joining;
mod paced;
#[path = "../packets/mod.rs"]
mod packets;
mod pair;
#[path = "../pcapng/mod.rs"]
mod pcapng;
mod stream;
mod tags;
mod tap;
mod tunnel_wire;
mod vxlan;
mod wired;
mod xdp;
