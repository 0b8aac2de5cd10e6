//! A guest of a person's own: a disk with GRUB, Debian's kernel and Debian's OpenSSH, which knows nothing of the lab.

use std::{fs, path::Path, process::Command};

use nicety_guests::{Archive, Image, Kernel, Layer, Root};
use tempfile::TempDir;

use crate::stage::well;

/// Programs that the disk's system needs.
const FILES: &[&str] = &[
    "usr/bin/ssh-keygen",
    "usr/sbin/sshd",
    "usr/lib/openssh/sshd-session",
    "usr/lib/openssh/sshd-auth",
    "usr/bin/lspci",
    "usr/share/misc/pci.ids",
];
/// The first process: drivers, an address by DHCP, sshd with the algorithms of one before OpenSSH 5.7.
const INIT: &str = r#"#!/bin/busybox sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /tmp /root /run/sshd
mount -t tmpfs tmp /tmp
for driver in $(cat /sys/bus/pci/devices/*/modalias); do modprobe -q "$driver"; done
for driver in $(cat /sys/bus/virtio/devices/*/modalias 2>/dev/null); do modprobe -q "$driver"; done
ip link set lo up
ip link set eth0 up
grep -q ^root: /etc/passwd || echo root:x:0:0::/root:/bin/sh >>/etc/passwd
echo sshd:x:74:74::/run/sshd:/bin/false >>/etc/passwd
udhcpc -i eth0 -s /bound -t 60 -T 1 -n
ssh-keygen -q -t rsa -N '' -f /host
/usr/sbin/sshd -f /dev/null -h /host -o HostKeyAlgorithms=ssh-rsa -o PubkeyAcceptedAlgorithms=ssh-rsa -o KexAlgorithms=diffie-hellman-group14-sha1 -o StrictModes=no -o AuthorizedKeysFile=/authorized -o 'Subsystem sftp internal-sftp'
while :; do sleep 1000; done
"#;
const BOUND: &str = "#!/bin/busybox sh\n[ \"$1\" = bound ] && ip address add \"$ip/24\" dev \"$interface\"\n";
/// What GRUB does (its manual, "Embedding a configuration file").
const GRUB: &str = "serial --unit=0\nterminal_output serial\nset root=(hd0,msdos1)\nlinux /vmlinuz console=ttyS0 quiet panic=-1 mitigations=off no_timer_check tsc=nowatchdog rdinit=/image\n\
                    initrd /initrd\nboot\n";
/// The partition: its first sector, and its length in MiB.
const FIRST_SECTOR: u32 = 2048;
const MIB: u32 = 128;

fn run(command: &mut Command) {
    let output = well(command.stderr(std::process::Stdio::piped()).spawn().and_then(|child| child.wait_with_output()));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Makes the disk and a key for its root, in this folder.
fn disk(folder: &Path) {
    let mut say = |line: &str| eprintln!("{line}");
    let root = well(Root::lay(&mut say));
    let ssh = well(Layer::lay("kvm-scp", &["openssh-server", "openssh-client", "pciutils"], &mut say));
    let tools = well(Layer::lay("grub", &["grub-pc-bin", "grub-common", "e2fsprogs"], &mut say));
    let key = folder.join("key");
    run(ssh.program("usr/bin/ssh-keygen").args(["-q", "-t", "rsa", "-N", "", "-f"]).arg(&key));
    let public = well(fs::read(folder.join("key.pub")));
    let image = well(Image::of(&root, Kernel::V6_12));
    let mut own = Archive::new();
    own.file("image", 0o755, INIT.as_bytes());
    own.file("bound", 0o755, BOUND.as_bytes());
    own.file("authorized", 0o600, &public);
    let initrd = [well(fs::read(image.initramfs())), well(ssh.archive(FILES)), own.finish()].concat();
    let files = folder.join("files");
    well(fs::create_dir(&files));
    // A BIOS reads an IDE disk by programmed I/O, which a translator makes slow.
    let unpacked = folder.join("initrd");
    well(fs::write(&unpacked, initrd));
    let packed = well(fs::File::create(files.join("initrd")));
    run(Command::new("gzip").arg("-c").arg(&unpacked).stdout(packed));
    // GRUB's `linux` takes a kernel with its setup code alone (Documentation/arch/x86/boot.rst).
    well(fs::copy(image.compressed(), files.join("vmlinuz")));
    let disk = folder.join("disk.img");
    let mut mke2fs = tools.program("usr/sbin/mke2fs");
    mke2fs.args(["-q", "-t", "ext2", "-E", &format!("offset={}", FIRST_SECTOR * 512), "-d"]);
    run(mke2fs.arg(&files).arg(&disk).arg(format!("{MIB}M")));
    let grub = tools.path("usr/lib/grub/i386-pc");
    let (config, core) = (folder.join("grub.cfg"), folder.join("core.img"));
    well(fs::write(&config, GRUB));
    let mut mkimage = tools.program("usr/bin/grub-mkimage");
    mkimage.args(["-O", "i386-pc", "-p", "/", "-d"]).arg(&grub).arg("-c").arg(&config).arg("-o").arg(&core);
    run(mkimage.args(["biosdisk", "part_msdos", "ext2", "linux", "boot", "serial", "terminal"]));
    // boot.img reads sector 1 by itself, and what is there reads the rest from sector 2 on: their defaults.
    let (boot, core) = (well(fs::read(grub.join("boot.img"))), well(fs::read(core)));
    let mut begin = vec![0; 512];
    begin[..440].copy_from_slice(&boot[..440]);
    let partition = [[0x80, 0, 0, 0, 0x83, 0, 0, 0], [0; 8]].concat();
    begin[446..462].copy_from_slice(&partition);
    begin[454..458].copy_from_slice(&FIRST_SECTOR.to_le_bytes());
    begin[458..462].copy_from_slice(&(MIB * 2048).to_le_bytes());
    begin[510..].copy_from_slice(&[0x55, 0xaa]);
    begin.extend(core);
    assert!(begin.len() < FIRST_SECTOR as usize * 512);
    use std::os::unix::fs::FileExt;
    let file = well(fs::File::options().write(true).open(&disk));
    well(file.set_len(u64::from(FIRST_SECTOR * 512 + (MIB << 20))));
    well(file.write_all_at(&begin, 0));
}

#[test]
#[ignore = "only with --full: a translated BIOS takes a minute and more to read the kernel"]
fn a_person_s_own_disk_boots_gets_an_address_and_is_measured_by_ssh_over_the_adapter_itself() {
    let folder = well(TempDir::new());
    disk(folder.path());
    let before = well(fs::metadata(folder.path().join("disk.img")).and_then(|data| data.modified()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_nicety"));
    command.args(["lab", "run", "kvm-scp", "--image", "disk.img", "--ssh", "root", "--key", "key"]);
    command.args(["--adapters", "e1000", "--quick", "--repeat", "1", "--seconds", "1"]);
    command.env("NICETY_LAB_LOCK", folder.path().join("lab.lock"));
    let output = well(command.current_dir(folder.path()).env("TMPDIR", folder.path()).output());
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let runs = well(fs::read_to_string(folder.path().join("nicety-lab/kvm-scp/runs.jsonl")));
    let runs: Vec<serde_json::Value> = runs.lines().map(|line| well(serde_json::from_str(line))).collect();
    let run = runs.iter().find(|run| run["adapter"] == "e1000").unwrap();
    assert_eq!(run["figures"]["stable"], 1.0, "{run}");
    assert!(run["texts"]["ethtool -i eth0"].as_str().is_some_and(|text| text.contains("driver: e1000\n")), "{run}");
    assert_eq!(well(fs::metadata(folder.path().join("disk.img")).and_then(|data| data.modified())), before);
}
