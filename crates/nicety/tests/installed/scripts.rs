//! The maintainer scripts (Debian Policy, chapter 6), each run alone in a Debian 12 whose folders of state are of the test. The programs
//! that they ask are in front of the path, and say what they were asked.

use std::process::Command;

use nicety_guests::{Debian, Suite};

use crate::{Packages, say, well};

/// `systemctl list-units` has two units, one in a reload. The daemon of the second does not answer.
const BEFORE: &str = "\
set -e; mount -t tmpfs run /run; mount -t tmpfs lib /var/lib; mkdir -p /run/systemd/system /tmp/bin /tmp/theirs
stub() { printf '#!/bin/sh\\n%s\\n' \"$2\" >/tmp/bin/$1; chmod 755 /tmp/bin/$1; }
stub systemd-sysusers ''; stub systemd-tmpfiles ''; stub deb-systemd-helper ''; stub deb-systemd-invoke 'echo \"invoked $*\" >&2'
stub systemctl 'case \"$*\" in *list-units*active,reloading*) echo \"nicety.service loaded active running\"
echo \"nicety@lan.service loaded reloading reload\";; esac'
stub nicety 'case \"$*\" in upgrade*host.toml) echo \"nicety 2 serves now; nothing moved for 8.1 ms (1 port)\";;
upgrade*) echo \"card nic0: not yet; nothing was changed\" >&2; exit 1;; *lan.toml) echo \"vm1 (e1000), of lan\";; *) exit 7;; esac'
export PATH=/tmp/bin:$PATH; touch /tmp/theirs/file; mkdir -p /run/nicety/vms /var/lib/nicety/vms; touch /run/nicety/vm1.sock
";

/// Runs a script of the package between commands. Returns all that was said.
#[track_caller]
fn script(name: &str, before: &str, arguments: &str, after: &str) -> String {
    let debian = well(Debian::system(Suite::Bookworm, &mut say));
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join(name);
    let words = "dpkg-deb --ctrl-tarfile \"$0\" | tar -xO \"./$1\"";
    let output = Command::new("sh").args(["-c", words]).arg(Packages::made().path(1)).arg(name).output().unwrap();
    assert!(!output.stdout.is_empty(), "{name} is not in the package");
    std::fs::write(&path, output.stdout).unwrap();
    let mut run = debian.command(&path, "sh");
    let output = run.args(["-c", &format!("{BEFORE}{before}\nsh /tmp/{name} {arguments}\n{after}")]).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} {arguments}: {said}");
    said
}

#[test]
fn removal_leaves_what_an_admin_has_mounted_in_the_folders_and_does_not_fail() {
    let mounted = "mount --bind /tmp/theirs /run/nicety/vms";
    let after = "test -e /tmp/theirs/file; test ! -e /run/nicety/vm1.sock; test -d /run/nicety/vms";
    let said = script("postrm", mounted, "remove", after);
    assert!(said.contains("nicety: /run/nicety stays with its folders: there is a mount, /run/nicety/vms"), "{said}");
    script("postrm", "", "remove", "test ! -e /run/nicety; test -e /var/lib/nicety");
    script("postrm", "", "purge", "test ! -e /run/nicety; test ! -e /var/lib/nicety");
}

#[test]
fn purge_of_a_state_folder_that_is_a_mount_empties_it_and_takes_the_instances_links_away() {
    let before = "mount -t tmpfs own /var/lib/nicety; touch /var/lib/nicety/host.state; mount -t tmpfs etc /etc
                  wants=/etc/systemd/system/multi-user.target.wants; mkdir -p $wants; ln -s /dev/null $wants/nicety@lan.service";
    let after = "test -z \"$(ls -A /var/lib/nicety)\"; test -z \"$(ls $wants)\"";
    let said = script("postrm", before, "purge", after);
    assert!(said.contains("nicety: /var/lib/nicety stays\n"), "{said}");
    // The same file system, mounted twice: its number does not tell it from the folder.
    let before = "mkdir /var/lib/theirs; touch /var/lib/theirs/file; mount --bind /var/lib/theirs /var/lib/nicety/vms";
    script("postrm", before, "purge", "test -e /var/lib/theirs/file; test ! -e /run/nicety");
}

#[test]
fn an_upgrade_replaces_daemons_under_their_vms_and_says_of_which_it_could_not() {
    let said = script("postinst", "", "configure 0.1.0-1", "");
    let goes_on =
        "nicety.service goes on with the new program: nicety 2 serves now; nothing moved for 8.1 ms (1 port)\n";
    assert!(said.contains(goes_on), "{said}");
    let stays =
        "nicety@lan.service goes on with the program that it had: card nic0: not yet; nothing was changed\nRestarting";
    assert!(said.contains(stays) && said.contains("\n  vm1 (e1000), of lan\n"), "{said}");
    assert!(said.contains("systemctl restart nicety@lan.service\n") && !said.contains("invoked"), "{said}");
}

#[test]
fn an_upgrade_restarts_a_daemon_without_vms_that_cannot_be_replaced_and_leaves_one_that_does_not_answer() {
    let nobody = "stub nicety 'case \"$*\" in ports*host.toml) ;; *) exit 7;; esac'";
    let said = script("postinst", nobody, "configure 0.1.0-1", "");
    assert!(said.contains("invoked try-restart nicety.service\n"), "{said}");
    assert!(said.contains("  those of nicety@lan.service, which could not be asked\n"), "{said}");
}

#[test]
fn an_upgrade_that_leaves_a_key_out_of_force_is_one_and_its_drop_in_is_shown() {
    let forbidden = "stub nicety 'case \"$*\" in upgrade*host.toml) echo \"nicety 2 serves now; nothing moved for 1.0 ms\"
        echo \"IPAddressAllow=localhost\"; exit 1;; upgrade*) echo \"nicety 2 serves now; nothing moved for 1.0 ms\";; *) exit 7;; esac'";
    let said = script("postinst", forbidden, "configure 0.1.0-1", "");
    assert!(said.contains("nicety.service goes on with the new program: nicety 2 serves now; "), "{said}");
    assert!(said.contains("\nIPAddressAllow=localhost\n") && !said.contains("program that it had"), "{said}");
    assert!(!said.contains("invoked"), "{said}");
}

/// Policy 6.5 and 6.6: the arguments of a postinst whose upgrade came to nothing, and those of a first installation.
#[test]
fn what_is_no_upgrade_restarts_nothing() {
    for arguments in ["abort-upgrade 0.1.0-2", "abort-deconfigure in-favour other 1 removing third 2", "configure ''"] {
        let said = script("postinst", "", arguments, "");
        assert!(!said.contains("invoked") && !said.contains("goes on"), "{arguments}: {said}");
    }
}
