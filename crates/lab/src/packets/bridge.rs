//! The kernel's bridge (`Documentation/networking/bridge.rst`) with two taps, in a private network.

use nicety_guests::{Error, Namespace, Root};

/// Its name, and those of its taps.
const BRIDGE: &str = "b0";
const TAPS: [&str; 2] = ["t0", "t1"];
/// Its address: one of its own, in no other network of the lab's.
const ADDRESS: &str = "10.9.7.254/24";

/// A bridge. Dropping it ends it.
#[derive(Debug)]
pub struct Bridge(Namespace);

impl Bridge {
    /// Makes the bridge and its taps.
    ///
    /// # Errors
    /// Those of [`Namespace::open`] and of the kernel.
    pub fn open(root: &Root) -> Result<Bridge, Error> {
        let mut namespace = Namespace::open(root)?;
        namespace.bridge(BRIDGE, ADDRESS, &TAPS)?;
        Ok(Bridge(namespace))
    }

    /// Names of the taps.
    pub fn taps(&self) -> [&'static str; 2] {
        TAPS
    }

    /// Words that start a program in its network.
    pub fn entrance(&self) -> Vec<String> {
        self.0.entrance()
    }
}
