//! The package itself, without installing it.

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
fn lintian_finds_no_error_in_the_package() {
    let debian = well(Debian::lay("lintian", Suite::Trixie, &["lintian"], &mut say));
    let package = Packages::made().path(1);
    let name = package.file_name().unwrap().to_str().unwrap();
    let mut lintian = debian.command(&package, "lintian");
    lintian.args(["--allow-root", "--fail-on", "error", "--display-level", ">=warning"]);
    let output = lintian.arg(format!("/tmp/{name}")).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{said}");
    assert!(output.status.success(), "{said}");
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

#[test]
fn the_package_says_what_it_was_made_of() {
    let information = String::from_utf8(file("usr/share/doc/nicety/build-information")).unwrap();
    for key in ["commit: ", "rustc: rustc ", "profile: "] {
        assert!(information.lines().any(|line| line.starts_with(key)), "{information}");
    }
    let bill: Value = serde_json::from_str(&unpacked("usr/share/doc/nicety/sbom.cdx.json.gz")).unwrap();
    let components = bill["components"].as_array().unwrap();
    assert!(components.iter().any(|one| one["name"] == "serde" && one["hashes"][0]["alg"] == "SHA-256"));
    let copyright = String::from_utf8(file("usr/share/doc/nicety/copyright")).unwrap();
    for one in components.iter().filter(|one| !one["hashes"].is_null()) {
        let (name, version) = (one["name"].as_str().unwrap(), one["version"].as_str().unwrap());
        assert!(copyright.contains(&format!("Files: vendor/{name}-{version}/*\n")), "{name}");
    }
    assert!(unpacked("usr/share/man/man1/nicety-serve.1.gz").contains("host file"));
}

/// The rule is parsed by AppArmor's own parser; whether libvirt's QEMU then reaches the socket is untried.
#[test]
fn apparmor_s_parser_takes_the_rule_that_attach_prints_for_libvirt() {
    let place = tempfile::tempdir().unwrap();
    let host = "[[port]]\nname = \"vm1\"\nadapter = \"e1000\"\nmac = \"52:54:00:12:34:01\"\nsocket = \"/run/nicety/a [b]*.sock\"\n";
    std::fs::write(place.path().join("host.toml"), host).unwrap();
    let mut attach = Command::new(env!("CARGO_BIN_EXE_nicety"));
    let attach = attach.args(["attach", "vm1", "--libvirt"]).current_dir(place.path()).output().unwrap();
    let notes = String::from_utf8(attach.stderr).unwrap();
    let rule = notes.lines().find_map(|line| line.split_once("untried with a real libvirtd: "));
    let (_, rule) = rule.unwrap_or_else(|| panic!("{notes}"));
    let debian = well(Debian::lay("apparmor", Suite::Trixie, &["apparmor"], &mut say));
    let parse = |rule: &str| {
        let profile = place.path().join("profile");
        std::fs::write(&profile, format!("profile libvirt-test {{\n  {rule}\n}}\n")).unwrap();
        let mut parser = debian.command(&profile, "apparmor_parser");
        parser.args(["--skip-kernel-load", "--skip-cache", "/tmp/profile"]).output().unwrap()
    };
    let said = parse(rule);
    assert!(said.status.success(), "{rule}: {}", String::from_utf8_lossy(&said.stderr));
    assert!(!parse("\"/run/nicety/vm1.sock\" rw").status.success(), "a rule without its comma");
}
