//! The inputs of a guest that can be replayed, as data.

use nicety_adapter::Time;

/// A guest's own time in microseconds. It starts at 0 with the guest, and continues on the host that takes over.
///
/// Microseconds, because each input's time is logged: a difference takes one or two bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuestTime(pub u64);

impl GuestTime {
    /// The same time for an adapter.
    pub fn time(self) -> Time {
        Time(self.0.saturating_mul(1000))
    }

    /// The first whole microsecond that is not before `time`.
    pub fn not_before(time: Time) -> Self {
        Self(time.0.div_ceil(1000))
    }
}

/// One input of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A frame from the network, without a frame check sequence.
    Frame(Vec<u8>),
    /// Nothing but the time. Due when [`Machine::wake`] says so.
    Wake,
}

/// A deterministic guest: the same inputs at the same times give the same frames.
pub trait Machine {
    /// Takes one input at `at`, which is not before the last input's time. Appends the frames that the guest sends to `out`.
    fn take(&mut self, at: GuestTime, input: &Input, out: &mut Vec<Vec<u8>>);

    /// The time of the next [`Input::Wake`], if one is due.
    fn wake(&self) -> Option<GuestTime>;

    /// A digest of everything that the guest has done so far: its register accesses, its interrupts, its frames. Cheap.
    fn history(&self) -> u64;

    /// A digest of its state now. Dearer than [`Machine::history`].
    fn state(&self) -> u64;

    /// The frames by which a host announces that the guest is here now.
    fn announcement(&self) -> Vec<Vec<u8>>;

    /// The reason why it cannot continue.
    fn failure(&self) -> Option<String> {
        None
    }
}
