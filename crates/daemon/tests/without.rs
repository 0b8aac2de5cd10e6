//! A VM that is in the way of an upgrade: the refusal names its port, and what it would lose; the upgrade goes on without it if that is
//! asked for, and the others go on with their VMs.

mod upgrade;

use std::os::fd::AsFd;
use std::sync::Arc;

use nicety_daemon::daemon::Daemon;
use nicety_daemon::serve;
use nicety_host::Host;
use nicety_memory::shared_file;
use nicety_vfio_user::Client;
use nicety_vhost_user::frontend::Frontend;
use tempfile::TempDir;
use upgrade::replaced_without;

const LOG_BYTES: u64 = 4096;
/// All features except VHOST_F_LOG_ALL.
const NOT_LOGGED: u64 = !(1 << 26);

/// A daemon with an e1000 at vm1, virtio-net at vm2 and an e1000 at vm3, each with its VM.
struct Stage {
    folder: TempDir,
    host: Host,
    daemon: Arc<Daemon>,
    e1000: [Client; 2],
    virtio: Frontend,
    features: u64,
}

type Losses = Vec<(String, String)>;

impl Stage {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let port = |number: u8, adapter: &str| {
            format!(
                "[[port]]\nname = \"vm{number}\"\nadapter = \"{adapter}\"\nmac = \"52:54:00:00:00:{number:02x}\"\n\
                 socket = \"vm{number}.sock\"\n"
            )
        };
        let text = [port(1, "e1000"), port(2, "virtio-net"), port(3, "e1000")].concat();
        let host = Host::parse(&text, &folder.path().join("host.toml")).unwrap();
        let daemon = Arc::new(serve::start(serve::prepare(&host, None).unwrap()).unwrap());
        let e1000 = ["vm1.sock", "vm3.sock"].map(|name| Client::connect(folder.path().join(name)).unwrap());
        let mut virtio = Frontend::connect(folder.path().join("vm2.sock")).unwrap();
        let features = virtio.negotiate(NOT_LOGGED).unwrap();
        Self { folder, host, daemon, e1000, virtio, features }
    }

    /// The next daemon, and what was lost: each port's name, and the sentence.
    fn upgrade(&self, without: &[&str]) -> Result<(Arc<Daemon>, Losses), String> {
        let without: Vec<String> = without.iter().map(|name| (*name).to_owned()).collect();
        let (new, upgraded) = replaced_without(&self.daemon, &self.host, &without);
        let upgraded = upgraded.map_err(|error| error.to_string())?;
        Ok((new.unwrap(), upgraded.without.into_iter().map(|loss| (loss.name, loss.loses)).collect()))
    }

    /// Logs written pages, as for a migration.
    fn migrate(&mut self) {
        let log = shared_file("log", LOG_BYTES).unwrap();
        self.virtio.share_log(log.as_fd(), LOG_BYTES).unwrap();
        self.virtio.log(self.features, true).unwrap();
        self.is_heard();
    }

    /// The front end's messages so far were handled.
    fn is_heard(&mut self) {
        self.virtio.config(0, &mut [0; 6]).unwrap();
    }
}

fn is_served(vmm: &mut Client) -> bool {
    let mut identity = [0; 4];
    vmm.region_read(7, 0, &mut identity).is_ok() && identity == [0x86, 0x80, 0x0e, 0x10]
}

/// The old daemon's workers stand still for ever.
fn leave(stage: Stage) {
    let Stage { daemon, folder, .. } = stage;
    let _never_dropped = std::mem::ManuallyDrop::new((daemon, folder));
}

#[test]
fn an_upgrade_without_a_vm_that_is_being_migrated_says_what_it_loses() {
    let mut stage = Stage::new();
    stage.migrate();
    let (_new, without) = stage.upgrade(&["vm2"]).unwrap();
    let [(name, loses)] = &without[..] else { panic!("{without:?}") };
    assert!(name == "vm2" && loses.contains("a migration under way has to begin again"), "{without:?}");
    assert!(loses.contains("reconnect-ms"), "{without:?}");
    assert!(stage.e1000.iter_mut().all(is_served));
    let mut again = Frontend::connect(stage.folder.path().join("vm2.sock")).unwrap();
    assert_eq!(again.negotiate(NOT_LOGGED).unwrap(), stage.features, "it connects again");
    leave(stage);
}

#[test]
fn an_upgrade_goes_on_without_a_vm_whose_state_was_saved_and_its_vmm_hears_the_end() {
    let mut stage = Stage::new();
    stage.daemon.save("vm1").unwrap();
    let why = stage.upgrade(&[]).err().unwrap();
    assert!(why.contains("port vm1: its state was saved") && why.contains("--without vm1"), "{why}");
    assert!(why.contains("its adapter is gone until the VM is started again"), "{why}");
    let why = stage.upgrade(&["vm2"]).err().unwrap();
    assert!(why.contains("port vm1: its state was saved"), "another one is in the way: {why}");
    stage.is_heard();

    let (_new, without) = stage.upgrade(&["vm1"]).unwrap();
    assert_eq!(without.iter().map(|(name, _)| &name[..]).collect::<Vec<_>>(), ["vm1"]);
    let [gone, other] = &mut stage.e1000;
    assert!(!is_served(gone) && is_served(other));
    stage.is_heard();
    let mut again = Client::connect(stage.folder.path().join("vm1.sock")).unwrap();
    assert!(is_served(&mut again), "a VM that is started again is served");
    leave(stage);
}
