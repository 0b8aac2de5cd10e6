//! Uplinks' descriptors that the keeper holds, so that the next daemon goes on with them after a kill (docs/adr/0022). Without that, a tap
//! that the daemon has made is removed by the kernel, an interface's frames go past its program (AF_XDP) to the host's stack, and a
//! capture's file is begun anew.
//!
//! The name under which it is held says what it is, and of which uplink. So a daemon that serves something else, such as one that was killed
//! within a live change, finds another name, and has the keeper close it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nicety_adapter::HandOver;
use nicety_host::{UplinkConfig, UplinkKind};
use nicety_keeper::{ChannelError, Group, Holder};
use nicety_uplink::Tap;
use sha2::{Digest, Sha256};

use crate::named;

/// Longest description of what is held, in bytes. A longer one, such as a path, is named by its digest.
const WHAT_MAX: usize = 64;

/// The beginning of the names of interfaces' queues.
const XDP: &str = "/xdp ";

/// The name at the keeper of what an uplink, or its queue at this place, has opened. A port's name has no slash. `None`: the next daemon
/// makes it again.
pub(crate) fn name(config: &UplinkConfig, place: usize) -> Option<String> {
    let mut what = match &config.kind {
        UplinkKind::Tap { .. } | UplinkKind::Capture { .. } => named::uplink(config)?,
        UplinkKind::Xdp { interface, .. } => format!("xdp {interface}"),
        // A peer connects again, and bytes that were read of a message are lost with the process. A tunnel has no connection.
        UplinkKind::Pair { .. }
        | UplinkKind::Stream { .. }
        | UplinkKind::Vxlan(_)
        | UplinkKind::Null
        | UplinkKind::Querier => return None,
    };
    if what.len() > WHAT_MAX {
        let digest = Sha256::digest(&what);
        what = String::new();
        // Writing to a String cannot fail.
        digest.iter().take(16).for_each(|byte| _ = write!(what, "{byte:02x}"));
    }
    Some(format!("/{what} of {}/{place}", config.name))
}

/// The names of all that an uplink has opened.
fn names(config: &UplinkConfig) -> impl Iterator<Item = String> + '_ {
    (0..usize::from(config.queues())).filter_map(move |place| name(config, place))
}

/// Time in which the keeper closes what it is told to.
const LET_GO: Duration = Duration::from_secs(1);

/// Opens again what was just closed. The keeper, which has been told, closes its duplicates a moment later: until then some errors pass.
pub(crate) fn let_go_first<T, E>(open: impl Fn() -> Result<T, E>, may_pass: impl Fn(&E) -> bool) -> Result<T, E> {
    let (end, mut pause) = (Instant::now() + LET_GO, Duration::from_millis(5));
    loop {
        match open() {
            Err(error) if may_pass(&error) && Instant::now() < end => std::thread::sleep(pause),
            opened => return opened,
        }
        pause *= 2;
    }
}

/// Has the keeper hold what an uplink has opened.
#[derive(Debug)]
pub struct UplinkHold {
    name: String,
    holder: Arc<Holder>,
}

impl UplinkHold {
    pub(crate) fn new(name: String, holder: Arc<Holder>) -> Self {
        Self { name, holder }
    }

    pub(crate) fn holder(&self) -> &Arc<Holder> {
        &self.holder
    }

    /// The keeper holds this in place of what it has held. `number` is a time in nanoseconds: higher than at the last call. False if
    /// there is no room now: try again.
    pub(crate) fn hold(&self, parts: &HandOver<'_>, number: u64) -> bool {
        let HandOver::Parts { descriptors, .. } = parts else {
            // A tap that was deleted: another one will be attached.
            self.forget();
            return true;
        };
        let held = self.holder.hold(&self.name, number, descriptors);
        match held.and_then(|()| self.holder.forget(&self.name, number)) {
            Err(error) => !error.is_passing() && !matches!(error, ChannelError::NotHeld(_)),
            Ok(()) => true,
        }
    }

    /// The uplink is closed: so is what is held.
    pub(crate) fn forget(&self) {
        let _no_keeper = self.holder.forget(&self.name, u64::MAX);
    }
}

/// Descriptors that the keeper has held of the uplinks of a daemon that was killed, by the uplink's name.
#[derive(Debug, Default)]
pub(crate) struct HeldUplinks(BTreeMap<String, Vec<OwnedFd>>);

impl HeldUplinks {
    /// Takes these out of all that was held.
    pub(crate) fn take(groups: &mut BTreeMap<String, Vec<Group>>) -> Self {
        let groups = groups.extract_if(.., |name, _| name.starts_with('/'));
        let newest = |groups: Vec<Group>| groups.into_iter().max_by_key(|group| group.number);
        Self(groups.filter_map(|(name, groups)| Some((name, newest(groups)?.fds))).collect())
    }

    /// Takes the queues of interfaces (AF_XDP) out of all that was held.
    pub(crate) fn take_queues(groups: &mut Vec<Group>) -> Self {
        let mut queues: BTreeMap<String, Vec<Group>> = BTreeMap::new();
        for group in groups.extract_if(.., |group| group.name.starts_with(XDP)) {
            queues.entry(group.name.clone()).or_default().push(group);
        }
        Self::take(&mut queues)
    }

    /// The keeper closes what it has held of this uplink.
    pub(crate) fn forget(&mut self, config: &UplinkConfig, holder: &Holder) {
        for name in names(config) {
            self.0.remove(&name);
            let _no_keeper = holder.forget(&name, u64::MAX);
        }
    }

    /// The keeper closes all that none of these uplinks goes on with.
    pub(crate) fn keep_only(&mut self, uplinks: &[UplinkConfig], holder: &Holder) {
        let wanted: Vec<String> = uplinks.iter().flat_map(names).collect();
        for (name, _closed) in self.0.extract_if(.., |name, _| !wanted.contains(name)) {
            let _no_keeper = holder.forget(&name, u64::MAX);
        }
    }

    /// Takes all that is held of this uplink. `None`: nothing is.
    pub(crate) fn take_of(&mut self, config: &UplinkConfig) -> Option<Self> {
        let of_it: BTreeMap<_, _> = names(config).filter_map(|name| self.0.remove_entry(&name)).collect();
        (!of_it.is_empty()).then_some(Self(of_it))
    }

    /// Whether something is held of this uplink.
    pub(crate) fn has(&self, config: &UplinkConfig) -> bool {
        names(config).any(|name| self.0.contains_key(&name))
    }

    /// Takes all descriptors that are held of an uplink's queue at this place.
    pub(crate) fn remove_all(&mut self, config: &UplinkConfig, place: usize) -> Vec<OwnedFd> {
        name(config, place).and_then(|name| self.0.remove(&name)).unwrap_or_default()
    }

    /// Takes what is held of an uplink, or of its queue at this place. `None` too if the tap was deleted meanwhile.
    pub(crate) fn remove(&mut self, config: &UplinkConfig, place: usize) -> Option<OwnedFd> {
        let is_there = |fd: &OwnedFd| !matches!(config.kind, UplinkKind::Tap { .. }) || Tap::is_attached(fd);
        self.0.remove(&name(config, place)?)?.pop().filter(is_there)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use nicety_host::Host;

    use super::*;

    #[test]
    fn what_is_held_is_named_by_what_it_is_and_whose() {
        let path = format!("/{}/all.pcapng", "folder".repeat(20));
        let text = format!(
            "[[uplink]]\nkind = \"tap\"\nname = \"tap0\"\nqueues = 2\n[[uplink]]\nkind = \"capture\"\nname = \"all\"\nfile = \"{path}\"\n\
             [[uplink]]\nkind = \"pair\"\nname = \"near\"\nsocket = \"near.sock\"\n\
             [[uplink]]\nkind = \"xdp\"\nname = \"up\"\ninterface = \"eth0\"\nqueues = 2\n"
        );
        let host = Host::parse(&text, Path::new("/etc/host.toml")).unwrap();
        let name_of = |at: usize, place| name(&host.uplinks[at], place);
        assert_eq!(name_of(0, 1).as_deref(), Some("/tap tap0 of tap0/1"));
        let capture = name_of(1, 0).unwrap();
        assert!(capture.ends_with(" of all/0") && capture.len() < 64, "{capture}");
        assert_eq!(name_of(2, 0), None);
        assert_eq!(name_of(3, 1), Some(format!("{XDP}eth0 of up/1")));
    }
}
