//! Ports of a VM that is copied to its twin on another host.

use std::sync::Arc;

use nicety_host::Host;
use nicety_peer::Table;
use nicety_plane::{Epochs, GateMode, Group, Port};
use rustix::io::Errno;

use super::{Daemon, StartError};
use crate::protection::{Gates, Left, ProtectError, Protection, ProtectionError, Ready, Still, Terms, VmReport, Wish};
use crate::run::image::VmImage;
use crate::run::protected::{Protected, release};
use crate::run::rings::{Moving, Preparing};

const NO_FRONT_END: &str =
    "QEMU copies no VM whose adapter it does not emulate itself: a protected VM has virtio-net behind vhost-user";
const NO_STATE: &str =
    "it has device_state = false, and a protected VM needs its state: remove that key, and start the VM again";

impl Daemon {
    /// A vhost-user port: its parts, and what of it goes with its guest.
    fn moved(&self, name: &str) -> Result<(Arc<Group>, Arc<Moving>), ProtectError> {
        let ports = self.ports();
        let running = ports.values().find(|running| running.spec.config.name == name);
        let running = running.ok_or_else(|| ProtectError::NoPort(name.to_owned()))?;
        let no_state = |why| ProtectError::NoState(name.to_owned(), why);
        let rings = running.rings.as_ref().ok_or_else(|| no_state(NO_FRONT_END))?;
        let moving = rings.moving().ok_or_else(|| no_state(NO_STATE))?;
        Ok((running.group(), Arc::clone(moving)))
    }

    /// From now on nothing leaves ports with these names when they are opened, until their gates are opened: nobody knows yet whether their
    /// VM goes on elsewhere.
    pub(crate) fn guard<'a>(&self, names: impl Iterator<Item = &'a String>) {
        let mut guarded = self.guarded.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        guarded.extend(names.cloned());
    }

    /// A part of the port with this name is about to be served.
    pub(super) fn guard_part(&self, name: &str, part: &Port) -> Result<(), StartError> {
        let is_guarded = self.guarded.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).contains(name);
        let shut = || part.set_gate(&Arc::new(Epochs::new(GateMode::Shut, || {})));
        let done = if is_guarded { shut() } else { Ok(()) };
        done.map_err(|source| StartError::Memory { port: name.to_owned(), source })
    }

    /// This host's VMs are to be protected: their ports open with shut gates, until [`Daemon::protect_vms`] has asked whose the VMs are.
    ///
    /// # Errors
    /// The key cannot be read, peers cannot connect, or the lease cannot be asked for.
    pub(crate) fn ready_to_protect(&self, host: &Host) -> Result<(), ProtectionError> {
        let Some(ready) = Ready::of(host)? else { return Ok(()) };
        self.guard(ready.ports());
        *self.protection_ready.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(ready);
        Ok(())
    }

    /// Starts the threads that protect the host file's VMs, if it has any, within these time limits. They wait until
    /// [`Daemon::protect_vms`]. To be called before the process confines itself, and after [`Daemon::ready_to_protect`]. The second time
    /// nothing happens.
    ///
    /// # Errors
    /// Threads cannot be started.
    pub(crate) fn prepare_to_protect(&self, terms: Terms) -> Result<(), ProtectionError> {
        let ready = self.protection_ready.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        let Some(ready) = ready else { return Ok(()) };
        let protection = Protection::start(ready, self.clock, terms)?;
        // There is one host file.
        let _first = self.protection.set(protection);
        Ok(())
    }

    /// Begins to protect the host file's VMs, if it has any. Their ports are open. A process that took them over has started the threads
    /// before it has confined itself; in any other this starts them, with these time limits.
    ///
    /// # Errors
    /// Threads cannot be started.
    pub fn protect_vms(self: &Arc<Self>, terms: Terms) -> Result<(), ProtectionError> {
        self.prepare_to_protect(terms)?;
        if let Some(protection) = self.protection.get() {
            let left =
                std::mem::take(&mut *self.protection_left.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
            protection.begin(&Arc::downgrade(&(Arc::clone(self) as Arc<dyn Gates>)), left);
        }
        Ok(())
    }

    /// Another process takes over: what its VMs' protections need to go on there. They stand still from now on.
    pub(crate) fn leave_vms(&self) -> Vec<Left> {
        self.protection.get().map(Protection::leave).unwrap_or_default()
    }

    /// No process takes over after all.
    pub(crate) fn go_on_with_vms(&self) {
        self.protection.get().into_iter().for_each(Protection::go_on);
    }

    /// Ends the threads of its VMs' protections.
    pub(crate) fn end_protection(&self) {
        self.protection.get().into_iter().for_each(Protection::end);
    }

    /// A port that another process has served goes on with its part of its VM's protection. Call it when the port has its gate, and before
    /// its front end is heard.
    pub(crate) fn protect_again(&self, part: &Port, front: &Preparing, vm: &VmImage) {
        if let (Some(epochs), Some(moving)) = (part.epochs(), front.moved()) {
            let is_twin = epochs.mode() == GateMode::Mute;
            moving.protect(Some(Arc::new(Protected::again(vm.kept.pairing(), epochs, is_twin))));
        }
    }

    /// Protections that another process has begun go on when [`Daemon::protect_vms`] is called.
    pub(crate) fn expect_vms(&self, images: &[VmImage], table: &mut Table) {
        let mut left = self.protection_left.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        left.extend(images.iter().filter_map(|image| image.left(table)));
    }

    /// The states of the VMs that the host file names.
    pub fn vms(&self) -> Vec<VmReport> {
        self.protection.get().map(Protection::reports).unwrap_or_default()
    }

    /// An administrator's wish for a VM. Waits for what comes of it, some seconds at most.
    ///
    /// # Errors
    /// A sentence.
    pub fn wish(&self, vm: &str, wish: Wish) -> Result<(), String> {
        let none = || "the host file has no [[vm]]".to_owned();
        self.protection.get().ok_or_else(none)?.wish(vm, wish)
    }
}

impl VmImage {
    pub(crate) fn of(left: &Left, table: &mut Table) -> Result<Self, Errno> {
        // QEMU has taken the rest.
        let Left { vm, run, kept, still: Still { qemu, rest: _, carried, traffic } } = left;
        let stream = table.put(qemu)?;
        Ok(Self { name: vm.clone(), run: *run, kept: *kept, stream, carried: *carried, traffic: *traffic })
    }

    fn left(&self, table: &mut Table) -> Option<Left> {
        let Self { name, run, kept, stream, carried, traffic } = self;
        let qemu = table.take(*stream)?.into();
        let still = Still { qemu, rest: Vec::new(), carried: *carried, traffic: *traffic };
        Some(Left { vm: name.clone(), run: *run, kept: *kept, still })
    }
}

impl Gates for Daemon {
    fn protected(&self, name: &str) -> Option<Arc<Protected>> {
        self.moved(name).ok()?.1.protected()
    }

    fn gate(&self, name: &str) -> Option<Arc<Epochs>> {
        let (parts, _) = self.moved(name).ok()?;
        parts.lead()?.epochs()
    }

    fn set_gate(&self, name: &str, mode: GateMode) -> Result<(), ProtectError> {
        let (parts, _) = self.moved(name)?;
        for part in parts.ports() {
            match part.epochs() {
                Some(epochs) => epochs.set_mode(mode),
                None if mode == GateMode::Open => {}
                None => {
                    let set = part.set_gate(&Arc::new(Epochs::new(mode, || {})));
                    set.map_err(|source| ProtectError::Memory { port: name.to_owned(), source })?;
                }
            }
        }
        release(&parts);
        Ok(())
    }

    fn protect(&self, name: &str, protected: &Arc<Protected>) -> Result<(), ProtectError> {
        let (parts, moving) = self.moved(name)?;
        for part in parts.ports() {
            let set = part.set_gate(protected.epochs());
            set.map_err(|source| ProtectError::Memory { port: name.to_owned(), source })?;
        }
        moving.protect(Some(Arc::clone(protected)));
        Ok(())
    }

    fn unprotect(&self, name: &str) -> Result<(), ProtectError> {
        let (parts, moving) = self.moved(name)?;
        moving.protect(None);
        parts.ports().for_each(|part| part.remove_gate());
        Ok(())
    }

    fn release(&self, name: &str) -> Result<(), ProtectError> {
        let (parts, _) = self.moved(name)?;
        release(&parts);
        Ok(())
    }

    fn own(&self, name: &str) -> Result<(), ProtectError> {
        let (parts, moving) = self.moved(name)?;
        moving.own(&parts, self.clock.now());
        Ok(())
    }
}
