//! The functions behind the fuzz targets. README.md describes how to build and run them.

pub mod frame;
pub mod moved;
pub mod pair;
pub mod peer;
mod session;
pub mod snapshot;
pub mod tunnel;
pub mod vfio;
pub mod vhost;
