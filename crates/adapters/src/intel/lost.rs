//! A chip whose rings are lost: the process that served it was killed, and its driver does not know.
//!
//! Linux's drivers reset a chip whose link goes down while frames wait in its transmit ring: "we've lost link, so the controller stops DMA,
//! but we've got queued Tx work that's never going to get done, so reset controller" (e1000_main.c, e1000_watchdog; e1000e's netdev.c,
//! e1000_watchdog_task). So the cable is unplugged at once. A driver that has sent nothing does not reset the chip. Then the cable is plugged
//! in again for a while, in which the driver may send.

use nicety_adapter::{Context, Time};

use super::phy::{Phy, State};

/// The driver has this long to notice that the cable is unplugged. The interrupt starts no look where one is due already: then it comes
/// within 2 s, rounded to a whole second (e1000_main.c, e1000_watchdog: `schedule_delayed_work`, `round_jiffies`).
const UNPLUGGED_NS: u64 = 3_200_000_000;
/// The driver has this long to notice its link and to send something.
const PLUGGED_NS: u64 = 3_200_000_000;

/// See the module's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The cable's true state.
    pub cable: bool,
    /// The cable's state that the driver sees now.
    shown: bool,
    /// The time of the next change.
    until: Time,
}

impl Lost {
    /// The chip's rings are lost, so its cable is shown as unplugged. `cable`: the cable's true state.
    pub fn begin(cable: bool, now: Time) -> Self {
        Self { cable, shown: false, until: now.after_ns(UNPLUGGED_NS) }
    }

    /// The state of this PHY with its true cable.
    pub fn phy(self, phy: &Phy) -> State {
        let mut phy = phy.clone();
        phy.plug(self.cable);
        phy.save()
    }

    /// The time of the next [look](Lost::look).
    pub fn due(&self) -> Time {
        self.until
    }

    /// The state of the cable to show from now on, if it is time to change it. Otherwise asks for a tick at that time.
    pub fn look(&mut self, cx: &mut Context<'_>) -> Option<bool> {
        let is_due = cx.now >= self.until;
        if is_due {
            self.shown = !self.shown;
            self.until = cx.now.after_ns(if self.shown { PLUGGED_NS } else { UNPLUGGED_NS });
        }
        cx.out.wake_by(self.until);
        is_due.then_some(self.shown && self.cable)
    }
}
