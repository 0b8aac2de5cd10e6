//! The sources have the forms that the installers, cloud images and container images of Debian 12 and 13 write (sources.list(5)).

use super::*;

fn uris(text: &str) -> Vec<String> {
    deb822(text).into_iter().map(|mirror| mirror.uri).collect()
}

#[test]
fn the_container_images_source_gives_the_archive_and_not_the_security_one() {
    let text = "Types: deb\n# a comment\nURIs: http://mirror.test/debian\nSuites: bookworm bookworm-updates\nComponents: main\n\
                Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\nTypes: deb\nURIs: http://mirror.test/debian-security\n\
                Suites: bookworm-security\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n";
    let found = deb822(text);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].uri, "http://mirror.test/debian");
    assert_eq!(
        found[0].fields,
        [("Signed-By".to_owned(), "/usr/share/keyrings/debian-archive-keyring.gpg".to_owned())]
    );
}

#[test]
fn the_cloud_images_mirror_list_counts_as_a_mirror() {
    let text =
        "Types: deb deb-src\nURIs: mirror+file:///etc/apt/mirrors/debian.list\nSuites: trixie\nComponents: main\n";
    assert_eq!(uris(text), ["mirror+file:///etc/apt/mirrors/debian.list"]);
}

#[test]
fn other_peoples_packages_for_debian_are_left_out() {
    let text = "Types: deb\nURIs: https://vendor.test/linux/debian\nSuites: bookworm\nComponents: stable\n\n\
                Types: deb\nURIs: https://vendor.test/debian\nSuites: bookworm\nComponents: main\nSigned-By: /etc/apt/keyrings/vendor.asc\n\n\
                Types: deb-src\nURIs: http://mirror.test/debian\nSuites: bookworm\nComponents: main\n\n\
                Enabled: no\nTypes: deb\nURIs: http://mirror.test/debian\nSuites: bookworm\nComponents: main\n";
    assert!(uris(text).is_empty());
}

#[test]
fn a_one_line_source_with_options_is_read() {
    let mirror = one_line(
        "deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.test/d/ trixie main contrib # x",
    );
    assert_eq!(
        mirror,
        Some(Mirror {
            uri: "http://mirror.test/d/".into(),
            fields: vec![("Signed-By".into(), "/usr/share/keyrings/debian-archive-keyring.gpg".into())]
        })
    );
    assert!(one_line("deb http://mirror.test/debian trixie main").is_some());
    for left_out in [
        "# deb http://mirror.test/debian trixie main",
        "deb-src http://mirror.test/debian trixie main",
        "deb cdrom:[Debian]/debian trixie main",
        "deb http://mirror.test/debian-security trixie-security main",
        "deb http://mirror.test/debian trixie contrib",
        "deb",
        "",
    ] {
        assert_eq!(one_line(left_out), None, "{left_out}");
    }
}

#[test]
fn a_key_written_into_the_source_keeps_its_lines() {
    let text = "Types: deb\nURIs: http://mirror.test/debian\nSuites: trixie\nComponents: main\nTrusted: yes\n";
    assert_eq!(deb822(text)[0].fields, [("Trusted".to_owned(), "yes".to_owned())]);
    let text =
        "Types: deb\nURIs: http://mirror.test/debian\n  http://other.test/debian\nSuites: trixie\nComponents: main\n";
    assert_eq!(uris(text), ["http://mirror.test/debian", "http://other.test/debian"]);
}

#[test]
fn what_apt_prints_gives_name_version_and_size() {
    let line = "'http://mirror.test/debian/pool/main/q/qemu/qemu-system-x86_11.1.3%2bds-1_amd64.deb' \
                qemu-system-x86_1%3a11.1.3+ds-1~bpo13+1_amd64.deb 10377056 MD5Sum:00";
    let deb = printed_uri(line);
    assert_eq!(deb.as_ref().map(Deb::name), Some("qemu-system-x86"));
    assert_eq!(deb.as_ref().map(Deb::version).as_deref(), Some("1:11.1.3+ds-1~bpo13+1"));
    assert_eq!(deb.map(|d| d.bytes), Some(10_377_056));
    assert_eq!(printed_uri("Reading package lists..."), None);
}

#[test]
fn of_a_source_package_the_authors_archive_is_taken_with_its_sum() {
    let line = |name: &str, sum: &str| format!("'http://mirror.test/pool/{name}' {name} 4329 {sum}");
    let archive = line("u-boot_1.orig.tar.bz2", "SHA256:12");
    assert_eq!(
        original(&archive),
        Some(("http://mirror.test/pool/u-boot_1.orig.tar.bz2", "u-boot_1.orig.tar.bz2", "SHA256:12"))
    );
    for name in ["u-boot_1-2.dsc", "u-boot_1.orig.tar.bz2.asc", "u-boot_1-2.debian.tar.xz"] {
        assert_eq!(original(&line(name, "SHA256:12")), None, "{name}");
    }
    assert_eq!(original(&line("u-boot_1.orig.tar.bz2", "")), None, "without a sum");
}
