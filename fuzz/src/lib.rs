//! What the fuzz targets do with their bytes. README.md tells how they are built and run.

pub mod frame;
pub mod pair;
pub mod peer;
pub mod snapshot;
pub mod vfio;
pub mod vhost;
