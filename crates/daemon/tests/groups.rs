//! Ports with a policy: the host file's policy is in force when the first VMM connects, and can change while the VMM is attached.

mod nic;
mod stage;

use nic::Nic;
use nicety_adapter::Reason;
use nicety_daemon::daemon::PortSpec;
use nicety_switch::{Policy, Vlan, VlanId};
use stage::Stage;

/// A port's specification with a VLAN.
fn moved(stage: &Stage, number: u8, vlan: Vlan) -> PortSpec {
    let mut spec = stage.spec(number, "e1000");
    spec.config.policy = Policy { vlan, ..Policy::default() };
    spec
}

#[test]
fn ports_of_two_vlans_do_not_hear_each_other_until_one_is_moved() {
    let stage = Stage::new(1, &["e1000", "e1000"]);
    let ten = Vlan::Access(VlanId::new(10).unwrap());
    stage.daemon.set(&moved(&stage, 1, ten.clone())).unwrap();
    let _receiver = Nic::new(&stage, 1);
    let mut sender = Nic::new(&stage, 2);
    let sent = || stage.view(2).state.counters.transmit[0].packets;
    // Broadcasts from the flat network: no port of VLAN 10 gets them.
    sender.send().unwrap();
    stage.until("they are sent", || sent() == 64);
    assert_eq!(stage.taken(1), 0);
    stage.daemon.set(&moved(&stage, 2, ten)).unwrap();
    sender.send().unwrap();
    stage.until("they are heard", || stage.taken(1) == 64);
    // A port that may not send untagged frames has its own drop reason.
    let trunk = Vlan::Trunk { allowed: VlanId::new(10).into_iter().collect(), native: None };
    stage.daemon.set(&moved(&stage, 2, trunk)).unwrap();
    sender.send().unwrap();
    stage.until("they are refused", || stage.view(2).state.counters.transmit_drops[Reason::Vlan as usize] == 64);
    assert_eq!(stage.taken(1), 64);
}
