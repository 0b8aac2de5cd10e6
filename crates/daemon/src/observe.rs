//! Readers of a running daemon, which change nothing: reports, metrics, traces of frames, captures, reports to systemd.

pub mod attach;
pub mod capture;
pub mod metrics;
pub mod report;
pub mod systemd;
pub mod trace;
