//! The inputs of a guest that can be replayed, as data.

use nicety_adapter::Time;

/// A guest's own time in microseconds. It starts at 0 with the guest, and continues on the host that takes over.
///
/// Microseconds, because each call's time is logged: a difference takes one or two bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// A frame from the network, without a frame check sequence.
    Frame(Vec<u8>),
    /// Nothing but the time. Due when [`Machine::wake`] says so.
    Wake,
    /// The guest goes on from an image of itself: [`Machine::renew`], not [`Machine::call`].
    Renew,
}

/// A deterministic guest: the same calls at the same times give the same frames.
pub trait Machine {
    /// Makes one call at `at`, which is not before the last call's time. Appends the frames that the guest sends to `out`.
    fn call(&mut self, at: GuestTime, call: &Call, out: &mut Vec<Vec<u8>>);

    /// Makes an image of the guest, and goes on from it as every guest does that is restored from it: [`Call::Renew`]. None if the guest has
    /// no images; it goes on then, too.
    fn renew(&mut self, _at: GuestTime, _out: &mut Vec<Vec<u8>>) -> Option<Vec<u8>> {
        None
    }

    /// Goes on from an image that was made at `at`. Appends the frames that the guest sends after it, which are also among those of
    /// [`Machine::renew`].
    ///
    /// # Errors
    /// The reason why it is no image for this guest, for a person. The guest is as it was.
    fn restore(&mut self, _at: GuestTime, _image: &[u8], _out: &mut Vec<Vec<u8>>) -> Result<(), String> {
        Err("this guest has no images".to_owned())
    }

    /// The time of the next [`Call::Wake`], if one is due.
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
