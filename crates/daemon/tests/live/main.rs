//! A daemon that is changed while it serves: ports are added, changed and removed under traffic. Each test runs with one worker
//! and with two.

#[macro_use]
#[path = "../../../plane/tests/workers/mod.rs"]
mod workers;
mod cards;
mod confirm;
mod links;
mod polls;
#[path = "../rings_guest/mod.rs"]
mod rings_guest;
#[path = "../upgrade/mod.rs"]
mod upgrade;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nicety_daemon::live::state::Begin;
use nicety_daemon::live::{ChangeError, Consent, Live};
use nicety_daemon::report::{Condition, PortReport};
use nicety_daemon::serve;
use nicety_host::{Host, List, Role};
use nicety_vfio_user::Client;
use nicety_vhost_user::frontend::Frontend;
use tempfile::TempDir;

/// A daemon that serves a host file in its own folder.
struct Stage {
    live: Live,
    place: TempDir,
}

impl Stage {
    fn new(workers: usize, ports: &[u8]) -> Self {
        let place = TempDir::new().unwrap();
        let path = place.path().join("host.toml");
        std::fs::write(&path, text(workers, ports)).unwrap();
        Self { live: begin(&path), place }
    }

    fn path(&self) -> &Path {
        self.place.path()
    }

    fn socket(&self, number: u8) -> PathBuf {
        self.path().join(format!("vm{number}.sock"))
    }

    /// A host file after a person has changed it.
    fn host(&self, text: &str) -> Host {
        Host::parse(text, &self.path().join("host.toml")).unwrap()
    }

    fn report(&self, name: &str) -> Option<PortReport> {
        self.live.daemon().views().iter().map(PortReport::of).find(|report| report.name == name)
    }

    fn names(&self) -> Vec<String> {
        self.live.daemon().views().into_iter().map(|view| view.name).collect()
    }

    fn until_attached(&self, name: &str) {
        let end = std::time::Instant::now() + Duration::from_secs(20);
        while !self.live.daemon().views().iter().any(|view| view.name == name && view.state.attached) {
            assert!(std::time::Instant::now() < end, "{name} is not attached within 20 s");
            std::thread::yield_now();
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.live.daemon().stop();
    }
}

/// Begins like `nicety serve`.
fn begin(path: &Path) -> Live {
    let begun = Begin::new(Host::read(path).unwrap());
    begun.set_aside().unwrap();
    nicety_sandbox::begin_for_tests();
    let daemon = serve::start(serve::prepare(&begun.host, None).unwrap()).unwrap();
    let Begin { host, file, state, found: _ } = begun;
    Live::new(Arc::new(daemon), host, file, state)
}

fn one(number: u8) -> String {
    format!(
        "[[port]]\nname = \"vm{number}\"\nadapter = \"e1000\"\nmac = \"52:54:00:00:00:{number:02x}\"\nsocket = \"vm{number}.sock\"\n"
    )
}

fn text(workers: usize, ports: &[u8]) -> String {
    let ports: String = ports.iter().map(|&number| one(number)).collect();
    format!("[daemon]\nworkers = {workers}\n{ports}")
}

fn a_host_file_is_applied_and_then_there_is_nothing_to_change(workers: usize) {
    let stage = Stage::new(workers, &[1, 2]);
    let more = format!("{}buffer = \"2MiB\"\nmode = \"0660\"\n", text(workers, &[3, 1]));
    let changed = stage.live.apply(&stage.host(&more), &Consent::Nothing).unwrap();
    let planned = changed.plan.to_string();
    assert_eq!(planned, "+ port vm3\n~ port vm1: buffer (not set) → 2MiB, mode (not set) → 0660\n- port vm2\n");
    assert_eq!(changed.not_kept, None);
    assert_eq!(stage.names(), ["vm1", "vm3"]);
    assert_eq!(stage.report("vm1").unwrap().made_of.unwrap().buffer, 2 << 20);
    let mode = |number| std::fs::metadata(stage.socket(number)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(1), mode(3), stage.socket(2).exists()), (0o660, 0o600, false));
    assert!(stage.live.plan(&stage.host(&more)).is_empty());
    // The exported host file describes the running state, from any folder.
    let exported = Host::parse(&stage.live.export(), Path::new("/elsewhere/host.toml")).unwrap();
    assert!(stage.live.plan(&exported).is_empty(), "{}", stage.live.plan(&exported));
    Client::connect(stage.socket(3)).unwrap();
}

fn an_uplink_that_was_blocked_for_one_that_is_removed_carries_again(workers: usize) {
    let place = TempDir::new().unwrap();
    let path = place.path().join("host.toml");
    let looped = |with: &str| format!("blocked = true\nloop_with = \"{with}\"\n");
    let all = [("a0", ""), ("a1", &*looped("a0")), ("a2", &*looped("a1")), ("a3", "blocked = true\n")];
    let uplinks = all.map(|(name, more)| {
        format!("[[uplink]]\nkind = \"pair\"\nname = \"{name}\"\nsocket = \"{name}.sock\"\n{more}")
    });
    std::fs::write(&path, text(workers, &[]) + &uplinks.concat()).unwrap();
    let stage = Stage { live: begin(&path), place };
    let blocked = || {
        let reports = stage.live.daemon().views().iter().map(PortReport::of).collect::<Vec<_>>();
        let blocked = reports.into_iter().filter(|report| report.condition == Condition::Blocked);
        blocked.map(|report| report.name).collect::<Vec<_>>()
    };
    assert_eq!(blocked(), ["a1", "a2", "a3"]);
    let removed = stage.live.remove(List::Uplinks, "a0", &Consent::Nothing).unwrap();
    let planned = "~ uplink a1: blocked true → (not set), loop_with a0 → (not set)\n- uplink a0\n";
    assert_eq!((removed.plan.to_string().as_str(), removed.not_kept), (planned, None));
    assert_eq!(blocked(), ["a2", "a3"]);
    let words = stage.report("a2").unwrap().sentence;
    assert!(words.starts_with("it leads into the network of a1, "), "{words}");
    assert!(!stage.live.export().contains("loop_with = \"a0\""), "{}", stage.live.export());
    // The next daemon, too.
    let next = Begin::new(Host::read(&path).unwrap()).host;
    assert_eq!(["a1", "a2", "a3"].map(|name| next.uplink(name).unwrap().blocked), [false, true, true]);
}

fn a_vm_is_cut_off_only_by_who_agrees(workers: usize) {
    let stage = Stage::new(workers, &[1, 2]);
    let mut vm = Client::connect(stage.socket(2)).unwrap();
    stage.until_attached("vm2");
    let without = stage.host(&text(workers, &[1]));
    let refused = stage.live.apply(&without, &Consent::Nothing).unwrap_err();
    assert_eq!(refused.to_string(), "this would cut VMs off, and nothing was done: - port vm2 (a VM is attached)");
    let other = Consent::These(vec!["- port vm1 (a VM is attached)".to_owned()]);
    assert!(matches!(stage.live.apply(&without, &other), Err(ChangeError::CutsOff(_))));
    let values = [("mac".to_owned(), Some("52:54:00:00:00:77".into()))];
    assert!(matches!(stage.live.set(List::Ports, "vm2", &values, &Consent::Nothing), Err(ChangeError::CutsOff(_))));
    assert!(matches!(stage.live.remove(List::Ports, "vm2", &Consent::Nothing), Err(ChangeError::CutsOff(_))));
    // A change that needs no new adapter does not affect the VM.
    let buffer = [("buffer".to_owned(), Some("4MiB".into()))];
    stage.live.set(List::Ports, "vm2", &buffer, &Consent::Nothing).unwrap();
    let mut id = [0; 4];
    vm.region_read(7, 0, &mut id).unwrap();
    assert_eq!(u32::from_le_bytes(id), 0x100e_8086);
    let agreed = Consent::These(vec!["- port vm2 (a VM is attached)".to_owned()]);
    let changed = stage.live.apply(&without, &agreed).unwrap();
    assert_eq!(changed.closed.iter().map(|port| port.name.as_str()).collect::<Vec<_>>(), ["vm2"]);
    assert!(vm.region_read(7, 0, &mut id).is_err());
}

fn ports_come_change_and_go_one_by_one(workers: usize) {
    let stage = Stage::new(workers, &[1]);
    let table = |text: &str| text.parse::<toml::Table>().unwrap();
    let two = one(2).replace("[[port]]\n", "");
    stage.live.add(List::Ports, table(&two), &Consent::Nothing).unwrap();
    assert!(
        matches!(stage.live.add(List::Ports, table(&two), &Consent::Nothing), Err(ChangeError::Exists(List::Ports, name)) if name == "vm2")
    );
    let same_address = one(3).replace("[[port]]\n", "").replace(":03\"", ":02\"");
    let wrong = stage.live.add(List::Ports, table(&same_address), &Consent::Nothing).unwrap_err();
    assert!(matches!(&wrong, ChangeError::Wrong(_)), "{wrong}");
    assert!(
        wrong.to_string().contains("port vm3: mac: 52:54:00:00:00:02 is the address of port vm2 already"),
        "{wrong}"
    );
    let set = |key: &str, value: &str| {
        stage
            .live
            .set(List::Ports, "vm2", &[(key.to_owned(), Some(value.into()))], &Consent::Nothing)
            .map(|done| done.plan.to_string())
    };
    assert_eq!(set("adapter", "vmxnet3").unwrap(), "~ port vm2: adapter e1000 → vmxnet3\n");
    assert_eq!(stage.report("vm2").unwrap().adapter.as_deref(), Some("vmxnet3"));
    assert!(matches!(set("name", "vm9"), Err(ChangeError::Refused(_))));
    assert!(matches!(set("bufer", "1MiB"), Err(ChangeError::Wrong(_))));
    assert!(matches!(set("socket", "vm1.sock"), Err(ChangeError::Wrong(_))));
    std::fs::write(stage.path().join("file"), "").unwrap();
    assert!(set("socket", "file").unwrap_err().to_string().contains("file exists and is not a socket"));
    assert_eq!(stage.names(), ["vm1", "vm2"], "what was refused has changed nothing");
    stage.live.remove(List::Ports, "vm2", &Consent::Nothing).unwrap();
    assert!(matches!(stage.live.remove(List::Ports, "vm2", &Consent::Nothing), Err(ChangeError::Missing(..))));
    // The last one may go too, and others come.
    stage.live.remove(List::Ports, "vm1", &Consent::Nothing).unwrap();
    assert!(stage.names().is_empty());
    stage.live.add(List::Ports, table(&two), &Consent::Nothing).unwrap();
    Client::connect(stage.socket(2)).unwrap();
}

fn a_switch_without_ports_is_served_and_gets_its_first_one_live(workers: usize) {
    let stage = Stage::new(workers, &[]);
    assert!(stage.names().is_empty());
    stage.live.add(List::Ports, one(1).replace("[[port]]\n", "").parse().unwrap(), &Consent::Nothing).unwrap();
    // Held: a VMM that has gone is not attached any more.
    let _vm = Client::connect(stage.socket(1)).unwrap();
    stage.until_attached("vm1");
    let exported = Host::parse(&stage.live.export(), Path::new("/elsewhere/host.toml")).unwrap();
    assert!(stage.live.plan(&exported).is_empty());
}

fn what_was_changed_live_comes_back_after_a_restart(workers: usize) {
    let stage = Stage::new(workers, &[1]);
    stage.live.add(List::Ports, one(2).replace("[[port]]\n", "").parse().unwrap(), &Consent::Nothing).unwrap();
    stage.live.daemon().stop();
    let path = stage.path().join("host.toml");
    let again = begin(&path);
    assert_eq!(again.daemon().views().len(), 2);
    // Applying the host file ends that.
    again.apply(&Host::read(&path).unwrap(), &Consent::Nothing).unwrap();
    assert!(!stage.path().join("host.toml.state").exists());
    again.daemon().stop();
    assert_eq!(begin(&path).daemon().views().len(), 1);
}

fn what_cannot_be_kept_is_in_force_all_the_same_and_said(workers: usize) {
    let stage = Stage::new(workers, &[1]);
    std::fs::create_dir(stage.path().join("host.toml.state.new")).unwrap();
    let changed =
        stage.live.add(List::Ports, one(2).replace("[[port]]\n", "").parse().unwrap(), &Consent::Nothing).unwrap();
    assert!(changed.not_kept.unwrap().contains("Is a directory"));
    Client::connect(stage.socket(2)).unwrap();
}

fn a_port_begins_to_connect_and_to_listen_and_takes_no_socket_that_is_its_vmm_s(workers: usize) {
    let stage = Stage::new(workers, &[1]);
    let virtio = |number| one(number).replace("e1000", "virtio-net");
    stage.live.add(List::Ports, virtio(2).replace("[[port]]\n", "").parse().unwrap(), &Consent::Nothing).unwrap();
    let role = |role: &str| [("role".to_owned(), Some(role.into()))];
    let set = |role: &[_], consent| stage.live.set(List::Ports, "vm2", role, consent);
    let changed = set(&role("connect"), &Consent::Nothing).unwrap();
    assert_eq!(changed.plan.to_string(), "~ port vm2: role (not set) → connect\n");
    assert!(!stage.socket(2).exists());
    let vmm = std::os::unix::net::UnixListener::bind(stage.socket(2)).unwrap();
    let mut front = Frontend::from_socket(vmm.accept().unwrap().0.into());
    front.negotiate(1 << 32).unwrap();
    stage.until_attached("vm2");
    let report = stage.report("vm2").unwrap();
    assert_eq!(report.made_of.unwrap().role, Role::Connect);
    let exported = Host::parse(&stage.live.export(), Path::new("/elsewhere/host.toml")).unwrap();
    assert_eq!(exported.port("vm2").unwrap().role, Role::Connect);
    assert!(stage.live.plan(&exported).is_empty());
    // A change that needs no new adapter does not affect the VM.
    let buffer = [("buffer".to_owned(), Some("4MiB".into()))];
    set(&buffer, &Consent::Nothing).unwrap();
    front.queue_pairs().unwrap();
    assert!(matches!(set(&role("listen"), &Consent::Nothing), Err(ChangeError::CutsOff(_))));
    let refused = set(&role("listen"), &Consent::All).unwrap_err().to_string();
    assert!(refused.ends_with("vm2.sock is served by another process: choose another path"), "{refused}");
    front.queue_pairs().unwrap();
    let wrong = stage.live.set(List::Ports, "vm1", &role("connect"), &Consent::All).unwrap_err().to_string();
    assert!(wrong.contains("port vm1: role: e1000 is reached by vfio-user"), "{wrong}");
    drop((vmm, front));
    set(&role("listen"), &Consent::All).unwrap();
    Frontend::connect(stage.socket(2)).unwrap().negotiate(1 << 32).unwrap();
}

fn an_uplink_comes_changes_and_goes(workers: usize) {
    let stage = Stage::new(workers, &[1]);
    let with = |uplink: &str| stage.host(&format!("{uplink}{}", text(workers, &[1])));
    let apply = |uplink: &str| stage.live.apply(&with(uplink), &Consent::Nothing).unwrap().plan.to_string();
    assert_eq!(apply("[uplink]\nkind = \"null\"\n"), "+ uplink\n");
    assert_eq!(stage.names(), ["null", "vm1"]);
    let pair = "[uplink]\nkind = \"pair\"\nsocket = \"pair.sock\"\n";
    assert_eq!(
        apply(pair),
        format!("~ uplink: kind null → pair, socket (not set) → {}\n", stage.path().join("pair.sock").display())
    );
    assert!(stage.path().join("pair.sock").exists());
    // The uplink stays open: the socket keeps its time of creation.
    let made = || std::fs::metadata(stage.path().join("pair.sock")).unwrap().created().unwrap();
    let (before, paced) = (made(), format!("{pair}rate = \"1Gbit/s\"\nvlan = 7\nlldp = \"both\"\n"));
    assert_eq!(apply(&paced), "~ uplink: lldp (not set) → both, rate (not set) → 1Gbit/s, vlan (not set) → 7\n");
    let policy = || stage.report("pair").unwrap().policy;
    let written = [("lldp", "both"), ("rate", "1Gbit/s"), ("vlan", "7")];
    assert_eq!(policy(), written.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    assert_eq!(apply(pair), "~ uplink: lldp both → (not set), rate 1Gbit/s → (not set), vlan 7 → (not set)\n");
    assert!(policy().is_empty());
    assert_eq!(made(), before);
    // The uplink's own socket does not prevent the change.
    apply(&pair.replace("\"pair\"", "\"stream\""));
    assert_eq!(apply(""), "- uplink\n");
    assert_eq!((stage.names(), stage.path().join("pair.sock").exists()), (vec!["vm1".to_owned()], false));
}

fn a_thousand_ports_may_be_there_and_no_more(workers: usize) {
    let stage = Stage::new(workers, &[1]);
    let many = |count: usize| {
        let ports: String = (1..=count)
            .map(|number| {
                let (high, low) = (number >> 8, number & 0xff);
                format!(
                    "[[port]]\nname = \"vm{number}\"\nadapter = \"ne2k_pci\"\nmac = \"52:54:00:00:{high:02x}:{low:02x}\"\nsocket = \"vm{number}.sock\"\nbuffer = \"64KiB\"\n"
                )
            })
            .collect();
        format!("[daemon]\nworkers = {workers}\n{ports}")
    };
    let path = stage.path().join("host.toml");
    assert!(Host::parse(&many(1024), &path).unwrap_err().to_string().contains("at most 1023 ports"));
    nicety_daemon::descriptors::provide(200, workers).unwrap();
    stage.live.apply(&stage.host(&many(200)), &Consent::Nothing).unwrap();
    assert_eq!(stage.names().len(), 200);
    stage.live.apply(&stage.host(&many(1)), &Consent::Nothing).unwrap();
    assert_eq!(stage.names().len(), 1);
}

with_one_worker_and_with_two! {
    a_host_file_is_applied_and_then_there_is_nothing_to_change,
    a_vm_is_cut_off_only_by_who_agrees,
    an_uplink_that_was_blocked_for_one_that_is_removed_carries_again,
    ports_come_change_and_go_one_by_one,
    a_switch_without_ports_is_served_and_gets_its_first_one_live,
    what_was_changed_live_comes_back_after_a_restart,
    what_cannot_be_kept_is_in_force_all_the_same_and_said,
    a_port_begins_to_connect_and_to_listen_and_takes_no_socket_that_is_its_vmm_s,
    an_uplink_comes_changes_and_goes,
    a_thousand_ports_may_be_there_and_no_more,
}
