//! A daemon's end of its channel to the keeper.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::channel::{Channel, ChannelError};
use crate::held::{self, Group, NAMES_MAX};
use crate::opener::Opener;
use crate::protocol::{OPENS_TOO, RENEWS, WITH_ADMINISTRATION, Why, kind};
use crate::rights::provide_descriptors;

/// The keeper answers at once: it only starts a process.
const WITHIN: Duration = Duration::from_secs(10);

/// A daemon's beginning.
#[derive(Debug)]
pub enum Begins {
    /// It is the first, or replaces one that was killed: then the keeper has held descriptors.
    First(Vec<Group>),
    /// It replaces the daemon at the other end.
    Heir(Channel),
}

/// The channel to the keeper.
#[derive(Debug)]
pub struct KeptBy(Channel);

impl AsFd for KeptBy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl KeptBy {
    /// Takes the channel from the standard input of this process, which the keeper has started, and learns how to begin. If the
    /// keeper ends, this process gets SIGTERM.
    ///
    /// # Errors
    /// The standard input is no channel of a keeper of this version.
    pub fn begin() -> Result<(Self, Begins), ChannelError> {
        let stdin = rustix::stdio::stdin();
        let channel = Channel::from(fcntl_dupfd_cloexec(stdin, 3)?);
        let nothing = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::stdio::dup2_stdin(&nothing)?;
        set_parent_process_death_signal(Some(Signal::TERM))?;
        // It has the keeper's limit, which may be reached.
        provide_descriptors();
        let mut groups = Vec::new();
        let role = loop {
            let mut message = channel.receive(WITHIN)?;
            if message.kind == kind::HOLD {
                let named = held::named(&message.content);
                groups.extend(named.map(|(number, name)| Group { name, number, fds: message.fds }));
                continue;
            }
            break match (message.kind, message.fds.pop()) {
                (kind::FIRST, None) => Begins::First(groups),
                (kind::HEIR, Some(fd)) => Begins::Heir(fd.into()),
                _ => return Err(ChannelError::Foreign(None)),
            };
        };
        Ok((Self(channel), role))
    }

    /// Another handle, for descriptors that the keeper holds.
    ///
    /// # Errors
    /// The process has too many descriptors.
    pub fn holder(&self) -> Result<Holder, Errno> {
        let channel = Channel::from(fcntl_dupfd_cloexec(&self.0, 3)?);
        if std::env::var_os(RENEWS).is_none() {
            return Ok(channel.into());
        }
        Holder::hearing(channel)
    }

    /// A way to have things opened. `None`: the keeper is of an earlier version, and starts no openers.
    ///
    /// # Errors
    /// The process has too many descriptors.
    pub fn opener(&self) -> Result<Option<Opener>, Errno> {
        let Some(rights) = std::env::var_os(OPENS_TOO) else { return Ok(None) };
        let channel = Channel::from(fcntl_dupfd_cloexec(&self.0, 3)?);
        Ok(Some(Opener::new(channel, rights == WITH_ADMINISTRATION)))
    }

    /// Has the keeper start this program. Returns a channel to it, or a sentence that says why it was not started.
    ///
    /// # Errors
    /// A sentence for a person.
    pub fn upgrade(&self, program: &Path) -> Result<Channel, String> {
        let words = |error: ChannelError| format!("the keeper: {error}");
        self.0.send(kind::UPGRADE, program.as_os_str().as_bytes(), &[], WITHIN).map_err(words)?;
        loop {
            let mut message = self.0.receive(WITHIN).map_err(words)?;
            match message.kind {
                kind::STARTED => {
                    return message.fds.pop().map(Channel::from).ok_or_else(|| "the keeper: no socket".into());
                }
                kind::REFUSED => return Err(message.text()),
                // The end of an earlier heir.
                _ => {}
            }
        }
    }

    /// The end of the heir, if the keeper reports it in time: a sentence.
    pub fn ended(&self, within: Duration) -> Option<String> {
        let message = self.0.receive(within).ok()?;
        (message.kind == kind::ENDED).then(|| message.text())
    }

    /// Ends the heir.
    pub fn abandon(&self) {
        // Without a keeper there is no heir.
        let _ = self.0.send(kind::ABANDON, b"", &[], WITHIN);
    }

    /// The ports are about to stand still until the heir serves, or is abandoned: whoever they wait for runs before others.
    pub fn stops(&self) {
        // Without a keeper it takes longer.
        let _ = self.0.send(kind::STOPS, b"", &[], WITHIN);
    }

    /// This daemon stands still for ever: when it ends, another one is to be started.
    pub fn is_stuck(&self) {
        // Without a keeper nobody starts one.
        let _ = self.0.send(kind::STUCK, b"", &[], WITHIN);
    }

    /// This daemon serves from now on.
    ///
    /// # Errors
    /// The keeper has gone.
    pub fn serves(&self) -> Result<(), ChannelError> {
        self.0.send(kind::SERVES, b"", &[], WITHIN)
    }
}

impl From<Channel> for KeptBy {
    fn from(channel: Channel) -> Self {
        Self(channel)
    }
}

impl From<KeptBy> for OwnedFd {
    fn from(kept: KeptBy) -> Self {
        kept.0.into()
    }
}

/// Has the keeper hold descriptors, by the names of their owners. Any thread may use it.
///
/// The keeper's queue has room for some 270 messages. What must not be lost waits here until there is room again: call
/// [`Holder::retry`] then.
///
/// What exceeds a limit the keeper holds no more, whatever was sent of it: see [`Holder::lost`].
#[derive(Debug)]
pub struct Holder {
    channel: Channel,
    /// Messages of [`Holder::forget`] that found no room: a number for each name.
    waiting: Mutex<BTreeMap<String, u64>>,
    /// The channel by which the keeper reports what it does not hold. `None`: the keeper is of an earlier version, and renews nothing either.
    hears: Option<Channel>,
    /// Names of which it holds nothing, and why. `None`: they may be held again.
    lost: Mutex<BTreeMap<String, Option<Why>>>,
}

/// Most names whose messages wait: the keeper holds no more.
const WAITING_MAX: usize = NAMES_MAX;

/// A group that has descriptors of an older one.
#[derive(Clone, Copy, Debug)]
pub struct Renewal<'a> {
    /// The older group's number.
    pub from: u64,
    /// For each place in the new group the place of the same descriptor in the older one, or `None` for the next new descriptor.
    pub places: &'a [Option<u16>],
}

impl Holder {
    /// By this channel to a keeper of this version. For tests, and [`KeptBy::holder`].
    ///
    /// # Errors
    /// The process has too many descriptors.
    #[doc(hidden)]
    pub fn hearing(channel: Channel) -> Result<Self, Errno> {
        let (ours, theirs) = Channel::pair()?;
        // Without a keeper nothing is held.
        let _ = channel.send(kind::HEARS, b"", &[theirs.as_fd()], WITHIN);
        Ok(Self { hears: Some(ours), ..Self::from(channel) })
    }

    /// Becomes readable when the keeper says what it does not hold, or may hold again.
    pub fn hears(&self) -> Option<BorrowedFd<'_>> {
        self.hears.as_ref().map(AsFd::as_fd)
    }

    /// Whether the keeper renews groups.
    pub fn renews(&self) -> bool {
        self.hears.is_some()
    }

    /// The reason why the keeper holds nothing of this name. It did before: so what it is sent next must be a whole group.
    pub fn lost(&self, name: &str) -> Option<ChannelError> {
        self.heard().get(name).map(|why| ChannelError::NotHeld(why.unwrap_or(Why::Missing)))
    }

    /// Whether a whole group of this name may be sent: the keeper has closed what was sent before.
    pub fn may_hold(&self, name: &str) -> bool {
        !matches!(self.heard().get(name), Some(Some(_)))
    }

    /// The names that the keeper does not hold, after its latest messages.
    fn heard(&self) -> MutexGuard<'_, BTreeMap<String, Option<Why>>> {
        let mut lost = self.lost.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let said = self.hears.iter().flat_map(|hears| std::iter::from_fn(|| hears.receive(Duration::ZERO).ok()));
        for message in said {
            let Some((number, name)) = held::named(&message.content) else { continue };
            match message.kind {
                kind::LOST if lost.len() < NAMES_MAX || lost.contains_key(&name) => {
                    lost.insert(name, Some(Why::of(number)));
                }
                kind::FREE => {
                    if let Entry::Occupied(mut why) = lost.entry(name) {
                        why.insert(None);
                    }
                }
                _ => {}
            }
        }
        lost
    }

    /// The keeper holds these descriptors from now on, under this name and number. Waits for nobody.
    ///
    /// # Errors
    /// There are too many, the keeper has no room ([`ChannelError::is_passing`]), or it has gone.
    pub fn hold(&self, name: &str, number: u64, fds: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        let mut waiting = self.waiting();
        let mut lost = self.heard();
        if let Some(Some(why)) = lost.get(name) {
            return Err(ChannelError::NotHeld(*why));
        }
        // Else one that waits might close these descriptors later.
        self.send_waiting(&mut waiting)?;
        self.channel.send(kind::HOLD, &held::content(number, name), fds, Duration::ZERO)?;
        lost.remove(name);
        Ok(())
    }

    /// Like [`Holder::hold`], for a group that has descriptors of an older one: only the others are sent.
    ///
    /// # Errors
    /// As there, and if nothing of this name is held any more.
    pub fn renew(
        &self,
        name: &str,
        number: u64,
        renewal: Renewal<'_>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        let mut waiting = self.waiting();
        if let Some(lost) = self.lost(name) {
            return Err(lost);
        }
        self.send_waiting(&mut waiting)?;
        let content = held::renewal(number, name, renewal.from, renewal.places);
        self.channel.send(kind::RENEW, &content, fds, Duration::ZERO)
    }

    /// Like [`Holder::hold`], but waits for room, so long at most.
    ///
    /// # Errors
    /// As above.
    pub fn hold_within(
        &self,
        name: &str,
        number: u64,
        fds: &[BorrowedFd<'_>],
        within: Duration,
    ) -> Result<(), ChannelError> {
        let end = Instant::now() + within;
        loop {
            match self.hold(name, number, fds) {
                Err(error) if error.is_passing() && Instant::now() < end => {
                    self.channel.wait_for_room(end)?;
                    // There may be room, and something else be lacking.
                    std::thread::sleep(Duration::from_millis(1));
                }
                done => return done,
            }
        }
    }

    /// The keeper closes what it holds under this name with a lower number. Waits for nobody: if the keeper has no room, the message
    /// waits for [`Holder::retry`].
    ///
    /// # Errors
    /// The keeper has gone, or too many messages wait.
    pub fn forget(&self, name: &str, below: u64) -> Result<(), ChannelError> {
        let mut waiting = self.waiting();
        let sent = self.send_waiting(&mut waiting);
        match sent.and_then(|()| self.channel.send(kind::FORGET, &held::content(below, name), &[], Duration::ZERO)) {
            Err(error) if error.is_passing() && (waiting.len() < WAITING_MAX || waiting.contains_key(name)) => {
                let known = waiting.entry(name.to_owned()).or_default();
                *known = below.max(*known);
                Ok(())
            }
            done => done,
        }
    }

    /// All workers have finished a round.
    pub fn lives(&self) {
        // A keeper that has no room now hears the next one.
        let _ = self.channel.send(kind::ALIVE, b"", &[], Duration::ZERO);
    }

    /// Sends what waits. False if there is still no room for all of it.
    pub fn retry(&self) -> bool {
        !self.send_waiting(&mut self.waiting()).is_err_and(|error| error.is_passing())
    }

    /// Whether messages wait for [`Holder::retry`].
    pub fn owes(&self) -> bool {
        !self.waiting().is_empty()
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn send_waiting(&self, waiting: &mut BTreeMap<String, u64>) -> Result<(), ChannelError> {
        while let Some(first) = waiting.first_entry() {
            let content = held::content(*first.get(), first.key());
            self.channel.send(kind::FORGET, &content, &[], Duration::ZERO)?;
            first.remove();
        }
        Ok(())
    }
}

impl From<Channel> for Holder {
    fn from(channel: Channel) -> Self {
        Self { channel, waiting: Mutex::default(), hears: None, lost: Mutex::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kinds, numbers and names of the messages that wait at the keeper's end.
    fn read(keeper: &Channel) -> Vec<(u8, u64, String)> {
        let messages = std::iter::from_fn(|| keeper.receive(Duration::ZERO).ok());
        let words = |message: crate::Message| {
            let (number, name) = held::named(&message.content).unwrap();
            (message.kind, number, name)
        };
        messages.map(words).collect()
    }

    #[test]
    fn what_the_keeper_does_not_hold_is_sent_again_whole_when_it_may_come() {
        let (ours, keeper) = Channel::pair().unwrap();
        let holder = Holder::hearing(ours).unwrap();
        let says = Channel::from(keeper.receive(Duration::ZERO).unwrap().fds.remove(0));
        let renewal = Renewal { from: 1, places: &[Some(0)] };
        holder.hold("vm1", 1, &[keeper.as_fd()]).unwrap();
        holder.renew("vm1", 2, renewal, &[]).unwrap();
        assert!(holder.lost("vm1").is_none() && holder.may_hold("vm1"));
        says.send(kind::LOST, &held::content(1, "vm1"), &[], WITHIN).unwrap();
        let lost = ChannelError::NotHeld(Why::of(1));
        assert_eq!((holder.lost("vm1"), holder.lost("vm2")), (Some(lost), None));
        assert_eq!(holder.renew("vm1", 3, renewal, &[]), Err(lost));
        assert_eq!(holder.hold("vm1", 3, &[]), Err(lost), "what was sent before is not closed yet");
        holder.hold("vm2", 3, &[]).unwrap();
        says.send(kind::FREE, &held::content(0, "vm1"), &[], WITHIN).unwrap();
        assert!(holder.may_hold("vm1") && holder.lost("vm1").is_some());
        assert!(holder.renew("vm1", 4, renewal, &[]).is_err());
        holder.hold("vm1", 4, &[]).unwrap();
        assert!(holder.lost("vm1").is_none());
        holder.renew("vm1", 5, renewal, &[]).unwrap();
    }

    #[test]
    fn what_the_keeper_has_no_room_for_is_sent_later_once_and_in_order() {
        let (ours, keeper) = Channel::pair().unwrap();
        let holder = Holder::from(ours);
        let (fd, _) = Channel::pair().unwrap();
        let fds = [fd.as_fd()];
        let refused = (0..10_000).find_map(|number| holder.hold("vm1", number, &fds).err());
        assert!(refused.unwrap().is_passing());
        for number in [7, 9, 8] {
            holder.forget("vm1", number).unwrap();
        }
        holder.forget("vm2", 3).unwrap();
        assert!(holder.owes() && !holder.retry());
        read(&keeper);
        // Before the new group, which one that comes later would close.
        holder.hold("vm1", 20_000, &fds).unwrap();
        let [forget, hold] = [kind::FORGET, kind::HOLD];
        let wanted = [(forget, 9, "vm1"), (forget, 3, "vm2"), (hold, 20_000, "vm1")];
        assert_eq!(read(&keeper), wanted.map(|(kind, number, name)| (kind, number, name.to_owned())));
        assert!(!holder.owes() && holder.retry());
        drop(keeper);
        assert!(!holder.forget("vm1", 5).unwrap_err().is_passing());
        assert!(!holder.owes(), "nobody reads it any more");
    }
}
