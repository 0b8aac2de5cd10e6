//! All our adapters under unmodified Linux drivers, in user-mode kernels and in an unmodified QEMU, with the daemon as a person
//! starts it.
//!
//! Not among `cargo test`'s targets, because they need the network once and minutes of translation: `cargo xtask test --only
//! guests` and `cargo test -p nicety --test real_adapters -- --test-threads 1` run them. Every wait in here is bounded.

mod bonding;
mod boot;
mod colo;
mod counted;
mod down_up;
mod dpdk;
mod drivers;
mod every;
mod fabric;
mod front_ends;
mod functions;
mod instructions;
mod inward;
mod killed;
mod lab;
mod listed;
mod messages;
mod migration;
mod mixed;
mod monitor;
mod multicast;
mod neighbours;
mod own_image;
mod packed;
mod pcnet;
mod ptp;
mod refused;
mod relay;
mod restarted;
#[path = "../../../daemon/tests/rings_guest/mod.rs"]
mod rings_guest;
mod saved;
mod scp;
mod server_gone;
mod shaped;
mod sizes;
mod sleeps;
mod stage;
mod standby;
#[path = "../steps/mod.rs"]
mod steps;
mod stood_still;
mod swept;
mod switching;
mod tags;
mod tools;
mod translated;
mod tunnels;
mod twins;
mod uio;
mod upgraded;
mod user_mode;
mod vmm;
mod whole;
mod widths;
