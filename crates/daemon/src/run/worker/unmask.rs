//! The eventfd by which a VMM unmasks INTx without a message. KVM signals it when the guest has served the line (the resample
//! eventfd of Linux, Documentation/virt/kvm/api.rst, KVM_IRQFD; QEMU, hw/vfio/pci.c, vfio_intx_enable_kvm). The port's worker
//! watches it.
//!
//! The VMM owns the eventfd, like kicks (docs/adr/0010), and may signal, replace or close it at any time. So a round unmasks at
//! most once, is charged for it like for the message that it replaces, and never does so while the port is in debt.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use nicety_adapter::PortId;
use nicety_peer::Bell;
use rustix::event::epoll::{self, EventFlags};

use super::{MESSAGE_COST, UNMASK, Worker, token};
use crate::run::port_log::{Kind, PortLog};
use crate::run::service::Link;

/// Watches `wanted` instead of `watched`.
pub(super) fn watch(
    epoll: &OwnedFd,
    id: PortId,
    wanted: Option<&Arc<Bell>>,
    watched: &mut Option<Arc<Bell>>,
    log: &PortLog,
) {
    let is_watched = match (wanted, watched.as_ref()) {
        (Some(wanted), Some(watched)) => Arc::ptr_eq(wanted, watched),
        (wanted, watched) => wanted.is_none() && watched.is_none(),
    };
    if is_watched {
        return;
    }
    forget(epoll, watched.take());
    if let Some(bell) = wanted {
        if let Err(error) = epoll::add(epoll, &**bell, token(id, UNMASK), EventFlags::IN) {
            log.say(
                Kind::NotServed,
                format_args!("its unmask eventfd cannot be watched, INTx will stand still: {error}"),
            );
        }
        *watched = Some(Arc::clone(bell));
    }
}

/// Stops watching an eventfd. Closing it is not enough, because the VMM holds it too.
pub(super) fn forget(epoll: &OwnedFd, watched: Option<Arc<Bell>>) {
    if let Some(bell) = watched {
        let _not_watched = epoll::delete(epoll, &*bell);
    }
}

impl Worker {
    /// Handles a port's readable unmask eventfd.
    pub(super) fn unmask(&mut self, id: PortId, flags: EventFlags) {
        let rounds = self.rounds;
        let Some(service) = self.services.get_mut(&id) else { return };
        // The eventfd stays readable: the next round tries again.
        if !service.can_pay(rounds) {
            return;
        }
        let Link::Function { device, session: Some(talk), .. } = &mut service.link else { return };
        if device.unmask_signalled() {
            service.credit -= MESSAGE_COST;
        } else if flags.intersects(EventFlags::HUP | EventFlags::ERR)
            && let Some(bell) = &talk.unmask
        {
            let _not_watched = epoll::delete(&self.epoll, &**bell);
        }
    }
}
