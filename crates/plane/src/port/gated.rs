//! The gate of a guest's port: see [`Epochs`].

use std::sync::Arc;

use nicety_adapter::{Reason, Time};
use nicety_memory::MapError;

use super::{End, Port};
use crate::gate::{Epochs, Gate, RELEASED, SavedGate};

impl Port {
    /// Gives the port a gate: frames that the guest sends wait as these epochs say. It waits until no batch is in flight, so the port's
    /// owner must not call it. A link has no gate.
    ///
    /// # Errors
    /// There is no memory for the packets of a batch.
    pub fn set_gate(&self, epochs: &Arc<Epochs>) -> Result<(), MapError> {
        let gate = Box::new(Gate::new(Arc::clone(epochs))?);
        if let End::Guest(guest) = &mut self.quiet().end {
            *guest.gate() = Some(gate);
        }
        self.release_frames();
        Ok(())
    }

    /// The port's gate, for the process that goes on with the port. Changes nothing. Call it while the port stands still.
    pub fn save_gate(&self) -> Option<SavedGate> {
        match &mut self.lock().end {
            End::Guest(guest) => guest.gate().as_ref().map(|gate| gate.save()),
            End::Link(_) => None,
        }
    }

    /// Gives the port a gate like [`Port::set_gate`], with the frames that waited in the gate of another process. Call it before the port
    /// is served.
    ///
    /// # Errors
    /// There is no memory for the packets of a batch.
    pub fn restore_gate(&self, epochs: &Arc<Epochs>, saved: SavedGate) -> Result<(), MapError> {
        let mut gate = Box::new(Gate::new(Arc::clone(epochs))?);
        let dropped = gate.restore(saved);
        let mut inner = self.quiet();
        if let End::Guest(guest) = &mut inner.end {
            *guest.gate() = Some(gate);
        }
        (0..dropped).for_each(|_| inner.counters.transmit_drop(Reason::Removed));
        drop(inner);
        self.release_frames();
        Ok(())
    }

    /// Removes the gate: frames of the guest do not wait any more. Before that, open the gate and see that it is empty, because frames that
    /// still wait are dropped. It waits until no batch is in flight.
    pub fn remove_gate(&self) {
        let mut inner = self.quiet();
        let End::Guest(guest) = &mut inner.end else { return };
        let dropped = guest.gate().take().map_or(0, |mut gate| gate.clear());
        (0..dropped).for_each(|_| inner.counters.transmit_drop(Reason::Removed));
        // Queues may not have been asked while the gate was full.
        let queues = inner.call(Time::ZERO, |adapter, _| adapter.transmit_queues()).unwrap_or_default();
        (0..queues.min(RELEASED)).for_each(|queue| inner.pending.insert(queue));
        drop(inner);
        self.shell.schedule();
    }

    /// The epochs of its gate, if it has one.
    pub fn epochs(&self) -> Option<Arc<Epochs>> {
        match &mut self.lock().end {
            End::Guest(guest) => guest.gate().as_ref().map(|gate| Arc::clone(gate.epochs())),
            End::Link(_) => None,
        }
    }

    /// Releases the frames that may leave now. Any thread may call this.
    pub fn release_frames(&self) {
        self.may_go(RELEASED);
    }
}
