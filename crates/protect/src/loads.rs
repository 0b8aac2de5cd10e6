//! The copies that a twin has whole.

/// The copies that a twin loads, by the reports of ports and of QEMU.
///
/// A copy is whole when every port has loaded its state, and every port whose rings ran when it was made runs again: QEMU starts rings
/// behind everything else. If none ran, QEMU's word counts that the VM runs, if it was asked after the state was loaded. Its event does not
/// say of which copy it is: it may be late, and of the copy before.
#[derive(Clone, Debug)]
pub struct Loads {
    ports: Vec<Port>,
    runs: bool,
    told: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Port {
    epoch: u64,
    ran: bool,
    runs: bool,
}

impl Loads {
    /// The loads of a VM with this many ports.
    pub fn new(ports: usize) -> Self {
        Self { ports: vec![Port::default(); ports], runs: false, told: 0 }
    }

    /// A port has loaded the state that closed this epoch. `ran`: its rings ran when it was saved.
    pub fn loaded(&mut self, port: usize, epoch: u64, ran: bool) {
        if let Some(port) = self.ports.get_mut(port) {
            *port = Port { epoch, ran, runs: false };
        }
        self.runs = false;
    }

    /// A port's rings run.
    pub fn port_runs(&mut self, port: usize) {
        if let Some(port) = self.ports.get_mut(port) {
            port.runs = true;
        }
    }

    /// Whether QEMU is to be asked if the VM runs: a copy is loaded, no port's rings ran, and QEMU's word counts.
    pub fn waits_for_vm(&self) -> bool {
        self.common().is_some_and(|epoch| epoch > self.told) && !self.did_run() && !self.runs
    }

    /// The epoch whose copy all ports have loaded.
    fn common(&self) -> Option<u64> {
        let epoch = self.ports.first()?.epoch;
        self.ports.iter().all(|port| port.epoch == epoch).then_some(epoch)
    }

    fn did_run(&self) -> bool {
        self.ports.iter().any(|port| port.ran)
    }

    /// QEMU says that the VM runs, to a question that was asked after the last state was loaded.
    pub fn vm_runs(&mut self) {
        self.runs = true;
    }

    /// An epoch of which the twin has the whole copy, and which was not told before.
    pub fn whole(&mut self) -> Option<u64> {
        let runs = if self.did_run() { self.ports.iter().all(|port| port.runs || !port.ran) } else { self.runs };
        let epoch = self.common().filter(|epoch| runs && *epoch > self.told)?;
        self.told = epoch;
        Some(epoch)
    }

    /// Whether any copy was whole.
    pub fn any(&self) -> bool {
        self.told > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_whole_when_all_ports_that_ran_run_again() {
        let mut loads = Loads::new(2);
        loads.loaded(0, 1, true);
        loads.port_runs(0);
        assert_eq!(loads.whole(), None, "a port has not loaded yet");
        loads.loaded(1, 1, false);
        assert_eq!((loads.whole(), loads.whole()), (Some(1), None));
        loads.loaded(0, 2, true);
        loads.loaded(1, 2, true);
        loads.port_runs(1);
        assert_eq!(loads.whole(), None, "a port does not run");
        // QEMU's word comes late, and is not needed; here it does not help.
        loads.vm_runs();
        assert_eq!(loads.whole(), None);
        loads.port_runs(0);
        assert_eq!(loads.whole(), Some(2));
    }

    #[test]
    fn a_vm_whose_ports_stood_still_is_copied_when_qemu_says_so() {
        let mut loads = Loads::new(1);
        loads.vm_runs();
        assert_eq!((loads.whole(), loads.waits_for_vm()), (None, false), "before any copy");
        loads.loaded(0, 1, false);
        assert_eq!((loads.whole(), loads.waits_for_vm()), (None, true), "the word is of the copy before");
        loads.vm_runs();
        assert_eq!((loads.whole(), loads.waits_for_vm()), (Some(1), false));
        loads.loaded(0, 2, true);
        assert!(!loads.waits_for_vm(), "its rings say so");
    }
}
