//! The host file: the daemon's configuration, in TOML (docs/host-file.md is its reference).
//!
//! All mistakes of a file are reported at once, each with its line, its key and what is allowed there.

#![forbid(unsafe_code)]

mod access;
mod around;
mod card;
mod daemon;
mod document;
mod doorbells;
mod eavesdrop;
mod errors;
mod etcd;
mod fabric;
mod fabric_groups;
mod fabric_text;
mod flow_export;
mod form;
mod group;
mod host;
mod io_class;
mod io_classes;
mod lease;
mod minimum;
mod mirror;
mod names;
mod page;
mod paths;
mod peer;
mod policy;
mod port;
mod port_terms;
mod quantity;
pub mod regular;
mod role;
mod rom;
mod switch;
mod team;
mod tolerance;
mod tunnel;
mod uplink;
mod vm;
mod walk;
mod way_out;
mod workers;

pub use access::{AccessConfig, AccountError, group_number};
pub use card::{CardConfig, FUNCTIONS_MAX, FunctionConfig, LinkState, with_usual_priority};
pub use daemon::DaemonConfig;
pub use document::{Document, List, absolute_text, is_path_key};
pub use doorbells::Doorbells;
pub use eavesdrop::Eavesdropping;
pub use errors::{DeepControl, HostError, HostErrors, ReadError, did_you_mean, in_one_line, meant};
pub use etcd::{EtcdConfig, EtcdIdentity, EtcdUser};
pub use fabric::FabricConfig;
pub use fabric_groups::{FABRIC_GROUP, FabricGroups};
pub use flow_export::{Collector, FLOW_EXPORTS_MAX, FlowExportConfig, NoCollector};
pub use form::Form;
pub use host::{FILE_MAX, Host, KINDS, kind_of};
pub use io_class::{IoClassConfig, TransportPorts};
pub use io_classes::FABRIC_CLASS;
pub use lease::{LeasePlace, lease_file, lease_key};
pub use mirror::{MIRRORS_MAX, MirrorConfig, MirrorDirection};
pub use page::PageAddress;
pub use paths::trace_files;
pub use peer::{ListenAddress, NoListen, NoPeer, PeerAddress};
pub use policy::policy_words;
pub use port::{PortConfig, Transport};
pub use port_terms::with_port_terms;
pub use quantity::{Bytes, Milliseconds, QuantityError, Seconds};
pub use role::Role;
pub use rom::RomFileError;
pub use switch::SwitchConfig;
pub use team::{LacpConfig, TeamConfig, TeamMode, TransmitHash};
pub use tolerance::{ToleranceConfig, open_key};
pub use tunnel::TunnelConfig;
pub use uplink::{InwardConfig, Lldp, UplinkConfig, UplinkKind, link_words};
pub use vm::VmConfig;
pub use walk::{Key, Kind};
pub use way_out::{carries, serves};

#[cfg(test)]
#[path = "host_test.rs"]
mod tests;
