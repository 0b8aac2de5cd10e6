//! The facts on which figures depend beside a person's options: the machine, the program and its build. Figures of two do not mix, so a
//! study goes on only where these are as at its beginning.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use nicety_guests::{Accel, Uio};
use sha2::{Digest, Sha256};

use crate::host::Host;

/// This machine and this program.
#[derive(Debug, Clone, PartialEq)]
pub struct Here {
    /// The host, now.
    pub host: Host,
    /// Whether Nicety was built with optimisation.
    pub optimised: bool,
    /// SHA-256 of the programs that are measured, by their names. A version says nothing of a program that was changed and not committed.
    pub programs: BTreeMap<String, String>,
}

impl Here {
    /// This machine, and `program` with the driver beside it. A program that cannot be read has no digest.
    pub fn now(program: &Path, optimised: bool) -> Here {
        let uio = Uio::beside(program).ok();
        let named = [("nicety", Some(program)), ("nicety-uio", uio.as_ref().map(Uio::program))];
        let digests = named.into_iter().filter_map(|(name, path)| Some((name.to_owned(), digest(path?).ok()?)));
        Here { host: Host::here(), optimised, programs: digests.collect() }
    }
}

/// Name of an accelerator in `lab.json`.
pub fn accelerator(accel: Accel) -> &'static str {
    match accel {
        Accel::Kvm => "kvm",
        Accel::Auto | Accel::Tcg | Accel::Counted => "tcg",
    }
}

/// SHA-256 of a file, in hexadecimal digits.
fn digest(path: &Path) -> io::Result<String> {
    let (mut file, mut hash) = (File::open(path)?, Sha256::new());
    let mut buffer = vec![0; 1 << 20];
    loop {
        match io::Read::read(&mut file, &mut buffer) {
            Ok(0) => break,
            Ok(read) => hash.update(buffer.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::results::tests::{head, here};
    use super::*;
    use crate::host::Difference;

    #[test]
    fn a_digest_is_that_of_sha256sum() {
        let folder = nicety_guests::Folder::new().unwrap();
        let path = folder.write("program", "abc").unwrap();
        // FIPS 180-4's example of one block.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest(&path).unwrap(), abc);
        let now = Here::now(&path, true);
        assert_eq!(now.programs, BTreeMap::from([("nicety".to_owned(), abc.to_owned())]));
    }

    #[test]
    fn a_study_goes_on_with_the_program_and_the_machine_of_its_beginning_only() {
        let begun = head(&Options::default());
        let of = |here: Here| begun.differs_from(&here).map(|Difference { what, here, there }| (what, here, there));
        assert_eq!(of(here()), None);
        let words = |what: &str, here: &str, there: &str| Some((what.to_owned(), here.to_owned(), there.to_owned()));
        assert_eq!(
            of(Here { optimised: false, ..here() }),
            words("build", "without optimisation", "with optimisation")
        );
        let with = |name: &str| {
            let programs = here().programs.into_iter().chain([(name.to_owned(), "edited".to_owned())]).collect();
            Here { programs, ..here() }
        };
        assert_eq!(of(with("nicety")), words("program nicety (its SHA-256)", "edited", "as begun"));
        // The plan has rows that nicety-uio drives; it was not there at the beginning.
        assert_eq!(of(with("nicety-uio")), None);
        let host = Host { cpu_model: "another".to_owned(), ..here().host };
        let model = begun.host.cpu_model.as_str();
        assert_eq!(of(Here { host, ..here() }), words("processor", "another", model));
        let host = Host { cores: begun.host.cores + 1, ..here().host };
        let what = of(Here { host, ..here() }).unwrap().0;
        assert_eq!(what, "number of processors that this program may use");
    }
}
