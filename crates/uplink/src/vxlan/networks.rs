//! The networks of the tunnel for the VLANs of the switch.

use nicety_frame::Vni;

/// Numbers of VLANs, 0 for frames without a tag.
const VLANS: usize = 4095;

/// One VLAN of the switch, and its network in the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The VLAN's number, 1 to 4094; `None`: frames without a tag.
    pub vlan: Option<u16>,
    /// The network.
    pub vni: Vni,
}

/// All of them. Each VLAN and each network is in it once; a later one replaces an earlier one.
#[derive(Clone, Debug)]
pub(crate) struct Networks {
    /// The networks by VLAN, 0 for frames without a tag.
    vnis: Box<[Option<Vni>; VLANS]>,
    /// Sorted by network.
    vlans: Vec<(Vni, u16)>,
}

impl Networks {
    pub(crate) fn new(networks: &[Network]) -> Self {
        let mut this = Self { vnis: Box::new([None; VLANS]), vlans: Vec::new() };
        for network in networks {
            let vlan = network.vlan.unwrap_or(0);
            if let Some(vni) = this.vnis.get_mut(usize::from(vlan)) {
                *vni = Some(network.vni);
                this.vlans.push((network.vni, vlan));
            }
        }
        this.vlans.sort_unstable();
        this
    }

    /// The network of a VLAN, 0 for frames without a tag.
    pub(crate) fn vni(&self, vlan: u16) -> Option<Vni> {
        self.vnis.get(usize::from(vlan)).copied().flatten()
    }

    /// The VLAN of a network, 0 for frames without a tag.
    pub(crate) fn vlan(&self, vni: u32) -> Option<(Vni, u16)> {
        let at = self.vlans.binary_search_by_key(&vni, |(vni, _)| vni.number()).ok()?;
        self.vlans.get(at).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vlan_and_its_network_are_found_by_each_other() {
        let vni = |number| Vni::new(number).unwrap();
        let networks = Networks::new(&[
            Network { vlan: Some(20), vni: vni(7) },
            Network { vlan: None, vni: vni(5000) },
            Network { vlan: Some(4094), vni: vni(16_777_215) },
        ]);
        for (vlan, number) in [(20, 7), (0, 5000), (4094, 16_777_215)] {
            assert_eq!(networks.vni(vlan), Some(vni(number)));
            assert_eq!(networks.vlan(number), Some((vni(number), vlan)));
        }
        assert_eq!((networks.vni(10), networks.vni(4095)), (None, None));
        assert_eq!((networks.vlan(8), networks.vlan(0)), (None, None));
    }
}
