//! The ports of a worker, by number. A lookup is an index, because there are several in each turn.

use nicety_adapter::PortId;

use crate::run::service::Service;

/// A slot for each of the switch's at most 1,024 ports.
#[derive(Debug, Default)]
pub(super) struct Services(Vec<Option<Service>>);

impl Services {
    pub fn get(&self, id: &PortId) -> Option<&Service> {
        self.0.get(usize::from(id.0))?.as_ref()
    }

    pub fn get_mut(&mut self, id: &PortId) -> Option<&mut Service> {
        self.0.get_mut(usize::from(id.0))?.as_mut()
    }

    pub fn insert(&mut self, id: PortId, service: Service) {
        let place = usize::from(id.0);
        if self.0.len() <= place {
            self.0.resize_with(place + 1, || None);
        }
        self.0[place] = Some(service);
    }

    pub fn remove(&mut self, id: &PortId) -> Option<Service> {
        self.0.get_mut(usize::from(id.0))?.take()
    }

    /// The ports, in order.
    pub fn ports(&self) -> Vec<PortId> {
        self.0.iter().flatten().map(|service| service.port.id()).collect()
    }
}

#[cfg(test)]
impl std::ops::Index<&PortId> for Services {
    type Output = Service;

    /// # Panics
    /// The port is not served here.
    fn index(&self, id: &PortId) -> &Service {
        self.get(id).expect("a port that is served here")
    }
}
