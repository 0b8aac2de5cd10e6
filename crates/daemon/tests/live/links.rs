//! The link of a port that is no function of a card: the host takes it down, and brings it up, while a VM uses it.

use std::mem::ManuallyDrop;
use std::path::Path;

use nicety_daemon::live::Consent;
use nicety_host::{Host, LinkState, List};
use nicety_vfio_user::Client;

use crate::Stage;
use crate::upgrade::replaced_without;

/// An e1000 whose driver has set the link up (82540EM, 13.4.1: CTRL.SLU).
fn driven(stage: &Stage, number: u8) -> Client {
    let mut client = Client::connect(stage.socket(number)).unwrap();
    client.region_write(7, 4, &[6, 0]).unwrap();
    client.region_write(0, 0, &0x40u32.to_le_bytes()).unwrap();
    stage.until_attached(&format!("vm{number}"));
    client
}

/// STATUS.LU (13.4.2).
fn is_up(vm: &mut Client) -> bool {
    let mut status = [0; 4];
    vm.region_read(0, 8, &mut status).unwrap();
    status[0] & 2 != 0
}

fn a_port_s_link_is_its_host_s_through_a_change_a_restore_and_an_upgrade(workers: usize) {
    let stage = Stage::new(workers, &[1, 2]);
    let [mut down, mut up] = [1, 2].map(|number| driven(&stage, number));
    assert!(is_up(&mut down) && is_up(&mut up));
    let set = |state: Option<&str>| {
        let values = [("link_state".to_owned(), state.map(toml::Value::from))];
        stage.live.set(List::Ports, "vm1", &values, &Consent::Nothing).unwrap().plan.to_string()
    };
    assert_eq!(set(Some("disable")), "~ port vm1: link_state (not set) → disable\n");
    assert!(!is_up(&mut down) && is_up(&mut up));
    let shown = |name: &str| stage.report(name).unwrap().policy.get("link_state").cloned();
    assert_eq!((shown("vm1").as_deref(), shown("vm2")), (Some("disable"), None));
    let exported = Host::parse(&stage.live.export(), Path::new("/elsewhere/host.toml")).unwrap();
    assert!(exported.ports[0].link == LinkState::Disable && stage.live.plan(&exported).is_empty());
    assert_eq!(set(None), "~ port vm1: link_state disable → (not set)\n");
    assert!(is_up(&mut down));
    set(Some("disable"));

    let daemon = stage.live.daemon();
    let [of_down, of_up] = ["vm1", "vm2"].map(|name| daemon.save(name).unwrap());
    daemon.restore("vm1", of_up).unwrap();
    daemon.restore("vm2", of_down).unwrap();
    assert!(!is_up(&mut down) && is_up(&mut up), "the link is not the state's");

    let host = stage.host(&stage.live.export());
    let (new, _upgraded) = replaced_without(daemon, &host, &[]);
    let new = new.unwrap();
    assert!(!is_up(&mut down) && is_up(&mut up), "after the upgrade");
    let mut spec = new.views().remove(0).spec.unwrap();
    spec.config.link = LinkState::Enable;
    new.set(&spec).unwrap();
    assert!(is_up(&mut down));
    // The old daemon's workers stand still for ever.
    let _never_dropped = ManuallyDrop::new(stage);
}

with_one_worker_and_with_two! {
    a_port_s_link_is_its_host_s_through_a_change_a_restore_and_an_upgrade,
}
