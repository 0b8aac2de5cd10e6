//! A port's place in a family of functions.

use std::sync::{Arc, Mutex, MutexGuard};

use nicety_adapter::family::{Answer, Ask, Family, FunctionPolicy};

/// A family whose functions are at several ports. Its lock is taken last of all, and held for one answer.
#[derive(Clone)]
pub struct SharedFamily(Arc<Mutex<Box<dyn Family>>>);

impl std::fmt::Debug for SharedFamily {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedFamily")
    }
}

impl SharedFamily {
    /// Shares a family.
    pub fn new(family: Box<dyn Family>) -> Self {
        Self(Arc::new(Mutex::new(family)))
    }

    /// A function's policy; `None` if there is no such function.
    pub fn policy(&self, function: u16) -> Option<FunctionPolicy> {
        self.lock().policy(function)
    }

    /// A family that panicked keeps its policies, which are whole.
    fn lock(&self) -> MutexGuard<'_, Box<dyn Family>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The rights that a port's own policy gives its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortRights {
    /// It may have other addresses.
    pub mac_changes: bool,
    /// The port tags its frames.
    pub tagged: bool,
}

/// The family, and which of its functions this port has.
pub(super) struct Membership {
    family: SharedFamily,
    function: u16,
    /// The host's policy for the function, without the port's.
    host: Option<FunctionPolicy>,
    port: PortRights,
}

impl Membership {
    /// The only function of a family.
    pub fn of_one(family: Box<dyn Family>) -> Self {
        Self::of(&SharedFamily::new(family), 0)
    }

    /// A function of a family.
    pub fn of(family: &SharedFamily, function: u16) -> Self {
        let port = PortRights { mac_changes: true, tagged: false };
        Self { family: family.clone(), function, host: family.policy(function), port }
    }

    /// Answers the function's ask.
    pub fn answer(&mut self, ask: &Ask) -> Answer {
        self.family.lock().answer(self.function, ask)
    }

    /// The card was reset; the answer is for the function.
    pub fn reset(&mut self) -> Answer {
        self.family.lock().reset(self.function)
    }

    /// Whether it is this function of this family.
    pub fn is(&self, family: &SharedFamily, function: u16) -> bool {
        Arc::ptr_eq(&self.family.0, &family.0) && self.function == function
    }

    /// Moves the port to another family, as this function and with the host's policy. The answer is for the function.
    pub fn move_to(&mut self, family: &SharedFamily, function: u16, policy: Option<FunctionPolicy>) -> Answer {
        let place = Self::of(family, function);
        let new = Self { port: self.port, host: policy.or(place.host), ..place };
        let addresses = [self.host, new.host].map(|host| host.map(|host| host.address));
        *self = new;
        self.take_effect();
        self.family.lock().moved(self.function, addresses[0] != addresses[1])
    }

    /// Changes the host's policy; the answer is for the function.
    pub fn set_host(&mut self, policy: FunctionPolicy) -> Option<Answer> {
        self.host = Some(policy);
        self.take_effect()
    }

    /// Changes the port's policy; the answer is for the function.
    pub fn set_port(&mut self, rights: PortRights) -> Option<Answer> {
        self.port = rights;
        self.take_effect()
    }

    /// A function may do what both allow.
    pub fn take_effect(&mut self) -> Option<Answer> {
        let host = self.host?;
        let PortRights { mac_changes, tagged } = self.port;
        let tagged = host.tagged || tagged;
        // Tags in the port's VLAN are its customer's own, or the switch refuses them.
        let checks_tags = host.checks_tags && !tagged;
        let both = FunctionPolicy { trusted: host.trusted && mac_changes, tagged, checks_tags, ..host };
        self.family.lock().set_policy(self.function, both)
    }
}
