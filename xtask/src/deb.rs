//! `cargo xtask deb`: a package for Debian 12 and 13, made by dpkg-deb from a folder that this program fills. Formats: deb-control(5),
//! deb-changelog(5), Debian Policy 4.6 chapters 10 and 12; the maintainer scripts do what debhelper's `dh_installsystemd --no-enable
//! --no-start`, `dh_installsysusers` and `dh_installtmpfiles` would.

use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    command::{cargo, output, root},
    linked, sbom,
};

mod symbols;

/// Newest glibc that Debian 12 has.
const GLIBC_MAX: (u32, u32) = (2, 36);
/// Libraries that the program may need, the package of each, and the package's version if symbols do not say it.
const LIBRARIES: [(&str, &str, Option<&str>); 4] = [
    ("libc.so.6", "libc6", None),
    ("libm.so.6", "libc6", None),
    ("ld-linux-x86-64.so.2", "libc6", None),
    ("libgcc_s.so.1", "libgcc-s1", Some("4.2")),
];
/// Programs of the package. Each has a man page, `nicety` one for each command too.
pub const PROGRAMS: [&str; 2] = ["nicety", "nicety-uio"];
/// Wireshark's folder of capture programs in Debian 12 and 13.
const EXTCAP: [&str; 2] = ["usr/lib/x86_64-linux-gnu/wireshark/extcap", "usr/libexec/wireshark/extcap"];
/// Documents that pages of the book name, as `../NAME`.
const BESIDE_THE_BOOK: [&str; 2] = ["ARCHITECTURE.md", "SECURITY.md"];
/// Keeps needrestart(1) from restarting the daemons.
const NEEDRESTART: &str = "etc/needrestart/conf.d/nicety.conf";
const SERVICE: &str = include_str!("../deb/nicety.service");
const DESCRIPTION: &str = "\
virtual network adapters for VMs, joined by one switch
 One process serves network adapters (e1000, e1000e, igb, vmxnet3, pcnet,
 ne2k_pci, rtl8139, virtio-net and others) to virtual machines, over
 vfio-user and vhost-user, and joins them by a switch with VLANs, policies
 and uplinks. A guest that breaks an adapter reaches only its own port.
 .
 The services nicety.service and nicety@NAME.service serve the host files
 in /etc/nicety. They are not enabled by the installation.";

/// Options of the command line.
#[derive(Debug)]
pub struct Order {
    /// Folder of finished programs; else a release build is made.
    pub programs: Option<PathBuf>,
    /// Folder for the package.
    pub into: PathBuf,
    /// Debian revision.
    pub revision: String,
    /// Whether to make the package of debug symbols too.
    pub dbgsym: bool,
    /// Compression level, 0 to 9, as of xz(1).
    pub level: u8,
}

/// Makes the package, and that of its symbols if it is asked for. Returns the paths.
///
/// # Errors
/// A program does not build, needs a library that Debian 12 lacks, or this machine lacks a tool; the error names it.
pub fn run(order: &Order) -> Result<Vec<PathBuf>> {
    let (programs, profile) = match &order.programs {
        Some(folder) => (folder.clone(), "given"),
        None => (release_programs()?, "release"),
    };
    let version = format!("{}-{}", version()?, order.revision);
    let tree = Tree::new(order.into.join(format!("nicety_{version}_amd64")))?;
    let mut needed = Vec::new();
    for name in PROGRAMS {
        let program = tree.program(&programs.join(name), name)?;
        needed.extend(needs(&program)?);
    }
    let crates = linked::crates()?;
    let commit = Commit::head()?;
    tree.pages(&programs.join("nicety"), &version)?;
    tree.units()?;
    tree.documents(&version, &commit, &crates)?;
    let info = build_information(&commit, profile)?;
    tree.file("usr/share/doc/nicety/build-information", info.as_bytes(), 0o644)?;
    let bill = sbom::document(&crates, &linked::std_version()?, &commit.date)?;
    tree.zipped("usr/share/doc/nicety/sbom.cdx.json.gz", bill.as_bytes())?;
    tree.control(&version, &commit, &depends(&needed)?)?;
    let mut packages = vec![tree.pack(&commit, order.level)?];
    if order.dbgsym {
        packages.push(symbols::package(order, &programs, &version, &commit)?);
    }
    Ok(packages)
}

/// Builds the programs of a release. Returns their folder.
pub fn release_programs() -> Result<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--release", "--locked", "--package", "nicety", "--bins"]);
    ensure!(command.status()?.success(), "cargo build --release failed");
    Ok(linked::target()?.join("release"))
}

/// The workspace's version.
pub fn version() -> Result<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
    let line = manifest.lines().find_map(|line| line.strip_prefix("version = \""));
    Ok(line.and_then(|rest| rest.strip_suffix('"')).context("Cargo.toml has no version")?.to_owned())
}

/// The commit that the package is made of. Its time is the time of all that is made here: the same commit gives the same package.
#[derive(Debug)]
pub struct Commit {
    hash: String,
    /// Seconds since 1970.
    seconds: String,
    /// Date in the format of mails (RFC 5322), for the changelog.
    mail_date: String,
    /// Date and time in the format of ISO 8601.
    pub date: String,
    author: String,
}

impl Commit {
    fn head() -> Result<Self> {
        let field = |format: &str| {
            let mut git = Command::new("git");
            git.arg("-C").arg(root()).args(["log", "-1", &format!("--format={format}")]);
            git.args(["--date=format:%a, %d %b %Y %H:%M:%S %z"]);
            output(&mut git).map(|text| text.trim().to_owned())
        };
        Ok(Self {
            hash: field("%H")?,
            seconds: field("%ct")?,
            mail_date: field("%cd")?,
            date: field("%cI")?,
            author: field("%an <%ae>")?,
        })
    }
}

/// The package's content.
#[derive(Debug)]
struct Tree {
    folder: PathBuf,
}

impl Tree {
    fn new(folder: PathBuf) -> Result<Self> {
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
        Ok(Self { folder })
    }

    /// A path in the package whose folder exists.
    fn place(&self, path: &str) -> Result<PathBuf> {
        let place = self.folder.join(path);
        let mut missing: Vec<&Path> = place.ancestors().skip(1).take_while(|folder| !folder.is_dir()).collect();
        while let Some(folder) = missing.pop() {
            fs::create_dir(folder)?;
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
        }
        Ok(place)
    }

    fn file(&self, path: &str, content: &[u8], mode: u32) -> Result<PathBuf> {
        let place = self.place(path)?;
        fs::write(&place, content).with_context(|| place.display().to_string())?;
        fs::set_permissions(&place, fs::Permissions::from_mode(mode))?;
        Ok(place)
    }

    /// A file that gzip packs without its own name and time.
    fn zipped(&self, path: &str, content: &[u8]) -> Result<()> {
        let plain = path.strip_suffix(".gz").context("a packed file's name ends with .gz")?;
        let file = self.file(plain, content, 0o644)?;
        succeeded(Command::new("gzip").args(["-9nf"]).arg(file))
    }

    /// A program without symbols. Returns its place.
    fn program(&self, from: &Path, name: &str) -> Result<PathBuf> {
        let content = fs::read(from).with_context(|| from.display().to_string())?;
        let place = self.file(&format!("usr/bin/{name}"), &content, 0o755)?;
        succeeded(Command::new("strip").args(["--strip-unneeded", "--remove-section=.comment"]).arg(&place))?;
        Ok(place)
    }

    /// Man pages, completions and Wireshark's link: the program writes the first two.
    fn pages(&self, program: &Path, version: &str) -> Result<()> {
        let pages = self.folder.join("man");
        succeeded(Command::new(program).arg("man").arg(&pages))?;
        for entry in fs::read_dir(&pages)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let section = path.extension().unwrap_or_default().display();
            self.zipped(&format!("usr/share/man/man{section}/{name}.gz"), &fs::read(&path)?)?;
        }
        fs::remove_dir_all(&pages)?;
        self.zipped("usr/share/man/man1/nicety-uio.1.gz", uio_page(version).as_bytes())?;
        for (shell, path) in [
            ("bash", "usr/share/bash-completion/completions/nicety"),
            ("zsh", "usr/share/zsh/vendor-completions/_nicety"),
            ("fish", "usr/share/fish/vendor_completions.d/nicety.fish"),
        ] {
            let text = output(Command::new(program).args(["completions", shell]))?;
            self.file(path, text.as_bytes(), 0o644)?;
        }
        for folder in EXTCAP {
            let link = self.place(&format!("{folder}/nicety"))?;
            let up = "../".repeat(folder.split('/').count() - 1);
            symlink(format!("{up}bin/nicety"), link)?;
        }
        Ok(())
    }

    /// Units, user, folders, and the host file to begin with.
    fn units(&self) -> Result<()> {
        self.file("usr/lib/systemd/system/nicety.service", SERVICE.as_bytes(), 0o644)?;
        self.file("usr/lib/systemd/system/nicety@.service", instance().as_bytes(), 0o644)?;
        self.file("usr/lib/sysusers.d/nicety.conf", include_bytes!("../deb/sysusers.conf"), 0o644)?;
        self.file("usr/lib/tmpfiles.d/nicety.conf", include_bytes!("../deb/tmpfiles.conf"), 0o644)?;
        self.file("etc/nicety/host.toml", include_bytes!("../deb/host.toml"), 0o644)?;
        self.file(NEEDRESTART, include_bytes!("../deb/needrestart.conf"), 0o644)?;
        let reload = include_bytes!("../deb/notify-reload.conf");
        self.file("usr/share/doc/nicety/examples/notify-reload.conf", reload, 0o644).map(drop)
    }

    fn documents(&self, version: &str, commit: &Commit, crates: &[linked::Crate]) -> Result<()> {
        let Commit { mail_date, author, .. } = commit;
        let changes = format!(
            "nicety ({version}) unstable; urgency=medium\n\n  * What has changed: changelog.gz.\n\n -- {author}  {mail_date}\n"
        );
        self.zipped("usr/share/doc/nicety/changelog.Debian.gz", changes.as_bytes())?;
        let own = fs::read(root().join("CHANGELOG.md"))?;
        self.zipped("usr/share/doc/nicety/changelog.gz", &own)?;
        self.book()?;
        for name in BESIDE_THE_BOOK {
            self.file(&format!("usr/share/doc/nicety/{name}"), &fs::read(root().join(name))?, 0o644)?;
        }
        self.file("usr/share/doc/nicety/copyright", linked::copyright(crates)?.as_bytes(), 0o644)?;
        self.zipped("usr/share/doc/nicety/licenses.txt.gz", linked::texts(crates)?.as_bytes())
    }

    /// The book, plain: its pages name each other.
    fn book(&self) -> Result<()> {
        let book = root().join("docs");
        for path in files(&book)? {
            let inner = path.strip_prefix(&book)?.display().to_string();
            self.file(&format!("usr/share/doc/nicety/book/{inner}"), &fs::read(&path)?, 0o644)?;
        }
        Ok(())
    }

    /// Sums of all files but those of `/etc`, as dpkg keeps them, and the size of all on a disk in KiB.
    fn sums(&self) -> Result<(String, u64)> {
        let mut sums = String::new();
        let mut bytes = 0;
        for path in files(&self.folder)? {
            let inner = path.strip_prefix(&self.folder)?.display().to_string();
            bytes += path.symlink_metadata()?.len().next_multiple_of(1024);
            if !path.is_symlink() && !inner.starts_with("etc/") {
                let sum = output(Command::new("md5sum").arg(&path))?;
                let _ = writeln!(sums, "{}  {inner}", sum.split(' ').next().unwrap_or_default());
            }
        }
        Ok((sums, bytes / 1024))
    }

    /// Makes the package's file beside the folder, and removes the folder.
    fn pack(&self, commit: &Commit, level: u8) -> Result<PathBuf> {
        let mut package = self.folder.clone().into_os_string();
        package.push(".deb");
        let mut dpkg = Command::new("dpkg-deb");
        dpkg.args(["--root-owner-group", "-Zxz", &format!("-z{level}"), "--build"]).arg(&self.folder).arg(&package);
        succeeded(dpkg.env("SOURCE_DATE_EPOCH", &commit.seconds))?;
        fs::remove_dir_all(&self.folder)?;
        Ok(package.into())
    }

    fn control(&self, version: &str, commit: &Commit, depends: &str) -> Result<()> {
        let (sums, kib) = self.sums()?;
        let text = format!(
            "Package: nicety\nVersion: {version}\nArchitecture: amd64\nMaintainer: {}\nInstalled-Size: {}\n\
             Depends: {depends}, systemd | systemd-standalone-sysusers, init-system-helpers (>= 1.54)\n\
             Suggests: qemu-system-x86, tcpdump, wireshark\nSection: net\nPriority: optional\nDescription: {DESCRIPTION}\n",
            commit.author, kib,
        );
        self.file("DEBIAN/control", text.as_bytes(), 0o644)?;
        self.file("DEBIAN/md5sums", sums.as_bytes(), 0o644)?;
        let kept = format!("/etc/nicety/host.toml\n/{NEEDRESTART}\n");
        self.file("DEBIAN/conffiles", kept.as_bytes(), 0o644)?;
        self.file("DEBIAN/postinst", include_bytes!("../deb/postinst"), 0o755)?;
        self.file("DEBIAN/prerm", include_bytes!("../deb/prerm"), 0o755)?;
        self.file("DEBIAN/postrm", include_bytes!("../deb/postrm"), 0o755).map(drop)
    }
}

/// The unit of further daemons, each with a host file of its own.
fn instance() -> String {
    let (_, rest) = SERVICE.split_once("[Unit]\n").unwrap_or(("", SERVICE));
    let rest = rest.replace("/etc/nicety/host.toml", "/etc/nicety/%i.toml").replace("for VMs", "for VMs (%i)");
    format!(
        "# A daemon beside that of nicety.service, whose ports are in /etc/nicety/NAME.toml. That file names a switch, a control socket, \
         a state\n# file and sockets that no other daemon has.\n[Unit]\n{rest}"
    )
}

/// All files and links of a folder, in order.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() { folders.push(entry.path()) } else { found.push(entry.path()) }
        }
    }
    found.sort();
    Ok(found)
}

fn uio_page(version: &str) -> String {
    format!(
        ".TH nicety-uio 1 \"\" \"nicety {version}\"\n.SH NAME\nnicety\\-uio \\- drive a network adapter from a guest's user space\n\
         .SH SYNOPSIS\n.B nicety\\-uio\n.I PCI\\-ADDRESS TAP\n[\\fIDRIVER\\fR]\n.SH DESCRIPTION\n\
         For a guest whose kernel has no driver for its adapter: VMware's vmxnet and enhanced vmxnet. The function at\n.I PCI\\-ADDRESS\n\
         (such as 0000:00:04.0) must be bound to uio_pci_generic. Its interface is the tap\n.IR TAP ,\nwhich is made if it is missing.\n\
         .SH SEE ALSO\n.BR nicety (1)\n"
    )
}

/// Libraries that a program needs, and the newest version of symbols of each: `("libc.so.6", "GLIBC_2.34")`.
fn needs(program: &Path) -> Result<Vec<(String, String)>> {
    let text = output(Command::new("readelf").args(["--wide", "--dynamic", "--version-info"]).arg(program))?;
    Ok(needed(&text))
}

/// The same from readelf's text: lines `(NEEDED) Shared library: [libc.so.6]`, and of version needs `Version: 1  File: libc.so.6  Cnt: 3`
/// and `Name: GLIBC_2.34  Flags: none  Version: 7`.
fn needed(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut file = String::new();
    for line in text.lines() {
        let after = |key: &str| line.split_once(key).and_then(|(_, rest)| rest.split_whitespace().next());
        if line.contains("(NEEDED)") {
            let name = line.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
            found.extend(name.map(|(name, _)| (name.to_owned(), String::new())));
        } else if let Some(name) = after("File: ") {
            name.clone_into(&mut file);
        } else if let Some(version) = after("Name: ").filter(|_| line.contains("Flags:")) {
            found.push((file.clone(), version.to_owned()));
        }
    }
    found
}

/// The field `Depends`, of what programs need.
fn depends(needed: &[(String, String)]) -> Result<String> {
    let mut glibc = (0, 0);
    let mut packages = Vec::new();
    for (file, version) in needed {
        let Some((_, package, least)) = LIBRARIES.iter().find(|(name, ..)| name == file) else {
            bail!("a program needs {file}, which this package does not know: add it to LIBRARIES of xtask/src/deb.rs");
        };
        if let Some((major, minor)) = version.strip_prefix("GLIBC_").and_then(|version| version.split_once('.')) {
            let minor = minor.split('.').next().unwrap_or_default();
            glibc = glibc.max((major.parse()?, minor.parse()?));
        }
        if let Some(least) = least {
            packages.push(format!("{package} (>= {least})"));
        }
    }
    ensure!(
        glibc <= GLIBC_MAX,
        "the programs need glibc {}.{}, and Debian 12 has {}.{}: build them on Debian 12",
        glibc.0,
        glibc.1,
        GLIBC_MAX.0,
        GLIBC_MAX.1
    );
    packages.push(format!("libc6 (>= {}.{})", glibc.0, glibc.1));
    packages.sort();
    packages.dedup();
    Ok(packages.join(", "))
}

/// Source and tools of the build.
fn build_information(commit: &Commit, profile: &str) -> Result<String> {
    let changed = output(Command::new("git").arg("-C").arg(root()).args(["status", "--porcelain"]))?;
    let changed = if changed.is_empty() { "" } else { " (with local changes)" };
    let rustc = output(Command::new("rustc").arg("--version"))?;
    Ok(format!(
        "commit: {}{changed}\ndate: {}\nrustc: {}\nprofile: {profile}\ntarget: x86_64-unknown-linux-gnu\n",
        commit.hash,
        commit.date,
        rustc.trim()
    ))
}

fn succeeded(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_needs_is_read_from_its_dynamic_section() {
        // readelf of binutils 2.40.
        let text = " 0x0000000000000001 (NEEDED)             Shared library: [libgcc_s.so.1]\n \
                    0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]\n\
                    Version needs section '.gnu.version_r' contains 2 entries:\n\
                    \x20 000000: Version: 1  File: libgcc_s.so.1  Cnt: 1\n\
                    \x20 0x0010:   Name: GCC_3.0  Flags: none  Version: 9\n\
                    \x20 0x0020: Version: 1  File: libc.so.6  Cnt: 2\n\
                    \x20 0x0030:   Name: GLIBC_2.34  Flags: none  Version: 8\n\
                    \x20 0x0040:   Name: GLIBC_2.2.5  Flags: none  Version: 2\n";
        let found = needed(text);
        assert!(found.contains(&("libc.so.6".to_owned(), "GLIBC_2.34".to_owned())), "{found:?}");
        assert_eq!(depends(&found).unwrap(), "libc6 (>= 2.34), libgcc-s1 (>= 4.2)");
    }

    #[test]
    fn a_program_that_debian_12_cannot_run_is_refused() {
        let of = |version: &str| depends(&[("libc.so.6".to_owned(), version.to_owned())]);
        assert!(of("GLIBC_2.36").is_ok());
        let error = of("GLIBC_2.38").unwrap_err().to_string();
        assert_eq!(error, "the programs need glibc 2.38, and Debian 12 has 2.36: build them on Debian 12");
        let error = depends(&[("libssl.so.3".to_owned(), String::new())]).unwrap_err().to_string();
        assert!(error.starts_with("a program needs libssl.so.3"), "{error}");
    }

    #[test]
    fn an_instance_s_unit_differs_by_its_host_file_alone() {
        let text = instance();
        assert!(
            text.contains("serve --keeper /etc/nicety/%i.toml\n") && text.contains("apply /etc/nicety/%i.toml\n"),
            "{text}"
        );
        assert!(!text.contains("host.toml"));
        let keys = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(keys(&text), keys(SERVICE));
    }
}
