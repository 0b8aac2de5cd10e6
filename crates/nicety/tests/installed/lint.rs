//! The package itself, without installing it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use nicety_guests::{Debian, Suite};
use serde_json::Value;

use crate::{Packages, say, well};

/// Points that `systemd-analyze security` gives at most. 10 is a service without any protection.
const EXPOSURE_MAX: f64 = 2.0;

/// A file in the package, passed through a filter.
fn filtered(path: &str, filter: &str) -> Vec<u8> {
    let words = format!("dpkg-deb --fsys-tarfile \"$0\" | tar -xO \"./$1\" | {filter}");
    let output = Command::new("sh").args(["-c", &words]).arg(Packages::made().path(1)).arg(path).output().unwrap();
    assert!(output.status.success() && !output.stdout.is_empty(), "{path} is not in the package");
    output.stdout
}

fn file(path: &str) -> Vec<u8> {
    filtered(path, "cat")
}

fn unpacked(path: &str) -> String {
    String::from_utf8(filtered(path, "gzip -dc")).unwrap()
}

#[test]
fn lintian_finds_no_error_in_the_package_nor_in_that_of_its_symbols() {
    let debian = well(Debian::lay("lintian", Suite::Trixie, &["lintian"], &mut say));
    for package in [Packages::made().path(1), Packages::made().symbols()] {
        let name = package.file_name().unwrap().to_str().unwrap();
        let mut lintian = debian.command(&package, "lintian");
        lintian.args(["--allow-root", "--fail-on", "error", "--display-level", ">=warning"]);
        let output = lintian.arg(format!("/tmp/{name}")).output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        println!("{said}");
        assert!(output.status.success(), "{said}");
    }
}

/// gdb finds symbols at /usr/lib/debug/.build-id, by the ID that a program's notes have (its manual, *Debugging Information in Separate
/// Files*).
#[test]
fn the_symbols_lie_where_a_debugger_looks_for_those_of_the_package_s_programs() {
    let place = tempfile::tempdir().unwrap();
    let listed = Command::new("dpkg-deb").arg("-c").arg(Packages::made().symbols()).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    for name in ["nicety", "nicety-uio"] {
        let program = place.path().join(name);
        std::fs::write(&program, file(&format!("usr/bin/{name}"))).unwrap();
        let notes = Command::new("readelf").arg("--notes").arg(&program).output().unwrap();
        let notes = String::from_utf8(notes.stdout).unwrap();
        let id = notes.lines().find_map(|line| line.split_once("Build ID: ")).unwrap().1.trim();
        let path = format!("./usr/lib/debug/.build-id/{}/{}.debug\n", &id[..2], &id[2..]);
        assert!(listed.contains(&path), "{path} is not in {listed}");
    }
}

#[test]
fn both_debians_systemd_rates_the_units_as_protected() {
    for suite in Suite::ALL {
        let debian = well(Debian::system(suite, &mut say));
        for unit in ["nicety.service", "nicety@.service"] {
            let name = unit.replace("@.", "@lan.");
            let place = tempfile::tempdir().unwrap();
            let path = place.path().join(&name);
            std::fs::write(&path, file(&format!("usr/lib/systemd/system/{unit}"))).unwrap();
            let mut analyze = debian.command(&path, "systemd-analyze");
            let output = analyze.args(["security", "--offline=yes", "--no-pager", &format!("/tmp/{name}")]).output();
            let output = output.unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            let rating = said.lines().find(|line| line.contains("Overall exposure level"));
            let points = rating.and_then(|line| line.rsplit_once(": ")?.1.split(' ').next()?.parse::<f64>().ok());
            let points = points.unwrap_or_else(|| panic!("{suite}, {unit}: {said}{errors}"));
            println!("{suite}, {unit}: {points}");
            assert!(points <= EXPOSURE_MAX, "{suite}, {unit}: {said}");
            assert!(!errors.contains("Unknown") && !errors.contains("ignoring"), "{suite}, {unit}: {errors}");
        }
    }
}

/// The sets of calls of a Debian's systemd, by `systemd-analyze syscall-filter`: a set's name at a line's start, below it its calls and sets.
struct Sets(BTreeMap<String, Vec<String>>);

impl Sets {
    fn of(suite: Suite) -> Sets {
        let debian = well(Debian::system(suite, &mut say));
        let output =
            debian.command(Path::new("/dev/null"), "systemd-analyze").args(["syscall-filter", "--no-pager"]).output();
        let (mut sets, mut set) = (BTreeMap::<_, Vec<String>>::new(), String::new());
        for line in String::from_utf8(output.unwrap().stdout).unwrap().lines() {
            match line.trim() {
                word if line.starts_with('@') => word.clone_into(&mut set),
                word if word.starts_with('#') || word.is_empty() => {}
                word => sets.entry(set.clone()).or_default().push(word.to_owned()),
            }
        }
        Sets(sets)
    }

    /// The calls of a call or of a set.
    fn calls(&self, word: &str) -> BTreeSet<String> {
        match self.0.get(word) {
            Some(words) => words.iter().flat_map(|word| self.calls(word)).collect(),
            None => [word.to_owned()].into(),
        }
    }
}

/// systemd.exec(5), SystemCallFilter=: the lines of a unit one after the other; what begins with a tilde is taken away. `@default` is
/// always allowed.
#[test]
fn the_units_allow_every_call_that_the_sandbox_allows() {
    let unit = String::from_utf8(file("usr/lib/systemd/system/nicety.service")).unwrap();
    for suite in Suite::ALL {
        let sets = Sets::of(suite);
        let mut allowed = sets.calls("@default");
        assert!(allowed.contains("futex"), "{suite}: {allowed:?}");
        for list in unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")) {
            let (words, is_denial) = list.strip_prefix('~').map_or((list, false), |words| (words, true));
            for call in words.split(' ').flat_map(|word| sets.calls(word)) {
                let _known = if is_denial { allowed.remove(&call) } else { allowed.insert(call) };
            }
        }
        let calls = nicety_sandbox::calls().unwrap();
        assert!(calls.contains("cachestat"));
        let missing: Vec<&String> = calls.difference(&allowed).collect();
        assert!(missing.is_empty(), "{suite}: the units deny {missing:?}");
    }
}

#[test]
fn the_package_says_what_it_was_made_of() {
    let information = String::from_utf8(file("usr/share/doc/nicety/build-information")).unwrap();
    for key in ["commit: ", "rustc: rustc ", "profile: "] {
        assert!(information.lines().any(|line| line.starts_with(key)), "{information}");
    }
    // Without NICETY_FULL the tests package what they are built with.
    let profile = if nicety_trials::scope::is_full() { "release" } else { "given" };
    assert!(information.contains(&format!("profile: {profile}\n")), "{information}");
    let bill: Value = serde_json::from_str(&unpacked("usr/share/doc/nicety/sbom.cdx.json.gz")).unwrap();
    let components = bill["components"].as_array().unwrap();
    assert!(components.iter().any(|one| one["name"] == "serde" && one["hashes"][0]["alg"] == "SHA-256"));
    let copyright = String::from_utf8(file("usr/share/doc/nicety/copyright")).unwrap();
    for one in components.iter().filter(|one| !one["hashes"].is_null()) {
        let (name, version) = (one["name"].as_str().unwrap(), one["version"].as_str().unwrap());
        assert!(copyright.contains(&format!("Files: vendor/{name}-{version}/*\n")), "{name}");
    }
    let std = components.iter().find(|one| one["name"] == "rust-std").expect("the standard library is linked too");
    assert!(information.contains(&format!("rustc {} ", std["version"].as_str().unwrap())), "{information}");
    assert!(unpacked("usr/share/man/man1/nicety-serve.1.gz").contains("host file"));
}

#[test]
fn the_package_has_the_whole_book_and_the_page_of_the_host_file() {
    let listed = Command::new("dpkg-deb").arg("-c").arg(Packages::made().path(1)).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for folder in ["", "adapters/", "adr/"] {
        for entry in std::fs::read_dir(docs.join(folder)).unwrap().map(Result::unwrap) {
            let name = format!("./usr/share/doc/nicety/book/{folder}{}", entry.file_name().to_str().unwrap());
            let name = if entry.path().is_dir() { format!("{name}/") } else { name };
            assert!(listed.lines().any(|line| line.ends_with(&name)), "{name} is not in {listed}");
        }
    }
    for name in ["ARCHITECTURE.md", "SECURITY.md"] {
        assert!(
            listed.lines().any(|line| line.ends_with(&format!("./usr/share/doc/nicety/{name}"))),
            "{name}: {listed}"
        );
    }
    let page = unpacked("usr/share/man/man5/nicety-host-file.5.gz");
    assert!(page.contains(".TH nicety-host-file 5") && page.contains("device_state"), "{page}");
    assert!(unpacked("usr/share/doc/nicety/changelog.gz").contains(&format!("## {}", env!("CARGO_PKG_VERSION"))));
}

/// needrestart(1) takes the first pattern of `override_rc` that a unit's name matches, and restarts none whose value is 0. Its
/// configuration is Perl.
#[test]
fn needrestart_leaves_all_services_of_the_package_alone_and_no_others() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("nicety.conf");
    std::fs::write(&path, file("etc/needrestart/conf.d/nicety.conf")).unwrap();
    let script = "our %nrconf = (override_rc => {}); do '/tmp/nicety.conf' // die $@ || $!; \
                  for my $unit (@ARGV) { for my $pattern (keys %{$nrconf{override_rc}}) { \
                  print \"$unit\\n\" if $unit =~ /$pattern/ && !$nrconf{override_rc}->{$pattern} } }";
    let ours = ["nicety.service", "nicety@lan.service"];
    let others = ["nicety-exporter.service", "ssh.service", "nicety.socket", "my-nicety.service"];
    for suite in Suite::ALL {
        let mut perl = well(Debian::system(suite, &mut say)).command(&path, "perl");
        let output = perl.args(["-we", script]).args(ours).args(others).output().unwrap();
        let (left, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
        assert_eq!(left.lines().collect::<Vec<_>>(), ours, "{suite}: {errors}");
    }
}
