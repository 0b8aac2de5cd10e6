//! Record and replay of a guest on two hosts (docs/lab.md).

mod failover;
mod help;
mod hosts;
mod log;
mod repeats;
mod world;
