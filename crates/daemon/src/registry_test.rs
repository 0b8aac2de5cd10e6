use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use tempfile::TempDir;

use super::*;

/// A machine with `/run`, `/run/user` and `/tmp`, and a control socket.
struct Machine {
    root: TempDir,
    _served: UnixListener,
}

impl Machine {
    fn new() -> Self {
        let root = TempDir::new().unwrap();
        for folder in ["run", "run/user", "tmp"] {
            fs::create_dir(root.path().join(folder)).unwrap();
        }
        let served = UnixListener::bind(root.path().join("ask.sock")).unwrap();
        Self { root, _served: served }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn registry(&self, user: u32) -> Registry {
        Registry::at(self.root.path(), user)
    }
}

/// The user who runs the tests and owns their files.
fn us() -> u32 {
    geteuid().as_raw()
}

#[test]
fn a_daemon_is_found_while_it_is_there_and_has_left_nothing_when_it_is_gone() {
    let machine = Machine::new();
    let registry = machine.registry(us());
    assert!(registry.look().sockets.is_empty());
    let entry = registry.enter("lan", &machine.path("ask.sock")).unwrap();
    // After a restart there is still one link.
    let again = registry.enter("lan", &machine.path("ask.sock")).unwrap();
    assert_eq!(registry.look().sockets, [machine.path("ask.sock")]);
    drop((entry, again));
    let found = registry.look();
    assert_eq!((found.sockets.len(), found.stale.len()), (0, 0));
    let folders = ["run/nicety", &format!("run/user/{}/nicety", us()), &format!("tmp/nicety-{}", us())];
    assert_eq!(found.folders, folders.map(|folder| machine.path(folder)));
}

#[test]
fn what_a_killed_daemon_left_is_skipped_said_and_removed_by_the_next_one() {
    let machine = Machine::new();
    let registry = machine.registry(us());
    let dead = machine.path("dead.sock");
    drop(UnixListener::bind(&dead).unwrap());
    let entry = registry.enter("dead", &dead).unwrap();
    let found = registry.look();
    assert_eq!((found.sockets.len(), found.stale), (0, vec![(entry.0.clone(), dead)]));
    let _next = registry.enter("lan", &machine.path("ask.sock")).unwrap();
    assert!(!entry.0.exists() && entry.0.symlink_metadata().is_err());
    assert_eq!(registry.look().sockets, [machine.path("ask.sock")]);
}

#[test]
fn each_user_has_a_folder_of_his_own_where_it_can_be() {
    let machine = Machine::new();
    let link = |registry: &Registry| registry.own().unwrap().strip_prefix(machine.root.path()).unwrap().to_owned();
    // The user who runs the tests owns all of this machine. Root has the system's folder, another user one in /tmp.
    let first = if us() == 0 { "run/nicety".to_owned() } else { format!("tmp/nicety-{}", us()) };
    assert_eq!(link(&machine.registry(us())), Path::new(&first));
    if us() == 0 {
        return;
    }
    fs::create_dir(machine.path(&format!("run/user/{}", us()))).unwrap();
    assert_eq!(link(&machine.registry(us())), Path::new(&format!("run/user/{}/nicety", us())));
    fs::create_dir(machine.path("run/nicety")).unwrap();
    assert_eq!(link(&machine.registry(us())), Path::new("run/nicety"), "a service's own (RuntimeDirectory=nicety)");
}

#[test]
fn a_folder_that_others_may_write_to_or_that_is_anothers_is_not_trusted() {
    let machine = Machine::new();
    let registry = machine.registry(us());
    let folder = registry.own().unwrap();
    let _entry = registry.enter("lan", &machine.path("ask.sock")).unwrap();
    fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
    let found = registry.look();
    assert_eq!((found.sockets.len(), found.unsafe_folders), (0, vec![folder.clone()]));
    assert!(
        matches!(registry.enter("lan", &machine.path("ask.sock")), Err(RegistryError::NotOurs(path)) if path == folder)
    );
    // Another user made the folder first, in /tmp.
    let other = machine.registry(us() + 1);
    fs::create_dir(other.fallback()).unwrap();
    assert!(matches!(other.own(), Err(RegistryError::NotOurs(_))));
    assert!(other.look().unsafe_folders.contains(&other.fallback()));
    // A link to a folder is refused too.
    fs::remove_dir(other.fallback()).unwrap();
    symlink(machine.path("run"), other.fallback()).unwrap();
    assert!(matches!(other.own(), Err(RegistryError::NotOurs(_))));
}
