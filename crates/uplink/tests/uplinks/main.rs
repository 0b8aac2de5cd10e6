//! Uplinks from outside: judged by smoltcp, by pcap-file, and by the host's own network stack.

mod capture;
mod common;
mod faulty;
mod joining;
mod paced;
mod pair;
mod stream;
mod tap;
