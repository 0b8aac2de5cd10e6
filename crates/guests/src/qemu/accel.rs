//! The accelerator that runs a guest's instructions: KVM where a stock kernel boots under it, else QEMU's own translator.

use std::{fs, fs::File, time::Duration};

use super::{
    super::{error::Error, guest::Guest, kernel::Kernel, root::Root},
    GuestConfig,
};

/// Time limit of the probe. Under a working KVM a stock kernel is up within two seconds.
const PROBE_LIMIT: Duration = Duration::from_secs(8);

/// The accelerator of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Accel {
    /// KVM if a guest boots with it here, else translation. `/dev/kvm` alone proves nothing: where KVM is nested in software, it opens and
    /// runs a first instruction, but a stock kernel hangs in it. The answer is stored until the host boots again.
    #[default]
    Auto,
    /// KVM.
    Kvm,
    /// QEMU's translator (TCG).
    Tcg,
    /// The translator with an instruction-counting clock (`-icount`). The clock advances by one nanosecond with each of the guest's
    /// instructions, and jumps while the guest is idle. So the guest's busy nanoseconds are instructions.
    Counted,
}

impl Accel {
    /// The accelerator to use; `Auto` probes the host.
    ///
    /// # Errors
    /// Only those of building the probe's image. A probe that does not boot is an answer, not an error.
    pub fn resolve(self, root: &Root) -> Result<Accel, Error> {
        if self != Accel::Auto {
            return Ok(self);
        }
        if File::options().read(true).write(true).open("/dev/kvm").is_err() {
            return Ok(Accel::Tcg);
        }
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let answer = root.folder().join("kvm");
        let known = fs::read_to_string(&answer).unwrap_or_default();
        if let Some(verdict) = known.strip_prefix(boot.trim()).filter(|_| !boot.is_empty()) {
            return Ok(if verdict.trim() == "works" { Accel::Kvm } else { Accel::Tcg });
        }
        let probe = GuestConfig { accel: Accel::Kvm, boot_limit: PROBE_LIMIT, ..GuestConfig::new(Kernel::V6_12) };
        let works = match Guest::boot(root, probe) {
            Ok(_) => true,
            Err(Error::Boot { .. }) => false,
            Err(other) => return Err(other),
        };
        // If the answer cannot be stored, the next guest probes again.
        let _ = fs::write(&answer, format!("{} {}\n", boot.trim(), if works { "works" } else { "hangs" }));
        Ok(if works { Accel::Kvm } else { Accel::Tcg })
    }

    /// QEMU's argument.
    pub(in super::super) fn argument(self) -> &'static str {
        match self {
            Accel::Kvm => "kvm",
            Accel::Auto | Accel::Tcg => "tcg,thread=multi",
            Accel::Counted => "tcg,thread=single",
        }
    }
}
