//! The unit of a daemon that runs, and what it does not allow of a change.

use std::path::{Path, PathBuf};

use nicety_control::api::DaemonView;
use nicety_control::{self as control, Ask, Reply};
use nicety_host::Host;

use super::{Lacks, Unit, lacks};
use crate::exit::{Exit, Failure};
use crate::output;

/// A daemon that is a process of its unit.
pub struct Running {
    unit: Unit,
    /// Its host file.
    pub host: PathBuf,
}

impl Running {
    /// The daemon at this control socket. `None`: no unit has started it.
    pub fn at(control: &Path) -> Option<Self> {
        let Ok(Reply::Version(DaemonView { pid, host, .. })) = control::ask(control, Ask::Version) else { return None };
        let unit = Unit::of(&host, Path::new("/"))?;
        unit.has_process(pid).then_some(Self { unit, host })
    }

    /// The things that a host file asks for and the unit does not allow.
    pub fn lacks(&self, host: &Host) -> Option<Lacks> {
        lacks(host, &self.unit)
    }

    /// The same of `after`, without those that `before` asks for already.
    pub fn lacks_of_change(&self, before: &Host, after: &Host) -> Option<Lacks> {
        self.lacks(after)?.beyond(self.lacks(before).as_ref())
    }
}

impl Lacks {
    /// Prints them with the drop-in. Its lines are to be pasted: the program's name is not before each.
    pub fn print(&self) -> Result<(), Failure> {
        output::print(&format!("\n{self}\n"))
    }
}

/// Adds the drop-in to the result of a change. `done` says whether a part of the change waits for a restart.
pub fn told(lacks: Option<Lacks>, done: Result<bool, Failure>) -> Result<(), Failure> {
    let Some(lacks) = lacks else { return done.map(drop) };
    lacks.print()?;
    match done {
        Ok(true) => {
            let why =
                format!("what {} does not allow is not in force, and a restart alone changes nothing", lacks.unit);
            Err(Failure::new(Exit::Failed, why))
        }
        Ok(false) => {
            output::tell(format_args!("note: it is in force until {} starts again", lacks.unit));
            Ok(())
        }
        Err(failure) => Err(failure),
    }
}
