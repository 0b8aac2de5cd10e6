//! valgrind, which counts instructions: Debian's package, installed beside the root for a machine that lacks it.

use std::process::Command;

use super::{error::Error, layer::Layer};

/// The installed package.
#[derive(Debug, Clone)]
pub struct Valgrind(Layer);

impl Valgrind {
    /// Installs the package if it is missing. `progress` gets a line for each step.
    ///
    /// # Errors
    /// Those of [`Layer::lay`].
    pub fn lay(progress: &mut dyn FnMut(&str)) -> Result<Valgrind, Error> {
        Layer::lay("valgrind", &["valgrind"], progress).map(Valgrind)
    }

    /// Valgrind's command. The program to append is one of the machine's, with the machine's own loader.
    pub fn command(&self) -> Command {
        // `valgrind` itself is a script that runs this program.
        let mut command = self.0.program("usr/bin/valgrind.bin");
        command.env("VALGRIND_LIB", self.0.path("usr/libexec/valgrind"));
        command
    }
}
