//! `nicety fabric` with Debian's etcd, 3.5 and 3.4.

mod book;
mod changes;
mod cluster;
#[path = "../etcd_servers/mod.rs"]
mod etcd_servers;
mod hosts;
mod trouble;

#[path = "../etcd_lines/mod.rs"]
mod etcd_lines;
#[allow(dead_code, reason = "it starts daemons too, which these commands do not need")]
#[path = "../commands/scratch.rs"]
mod scratch;
