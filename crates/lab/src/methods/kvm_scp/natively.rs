//! sshd without a virtual machine: in a network namespace, with a root of its own, so that it touches nothing of the host.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nicety_guests::{Error, Layer, Root};

use super::RATE;
use crate::real::native::{self, Native};
use crate::real::veth::Tc;

/// The server's address.
pub const ADDRESS: &str = native::FAR;
/// The server's port. Who is root nowhere has no smaller one.
pub const PORT: u16 = 2222;
/// The user whose file is copied.
pub const USER: &str = "user";
/// Time limit for keys, server and file.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Interval between two looks at the server's output.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Arguments: the private root's busybox, the layer's folder, an empty folder, the file's size in KiB, the port. The mounts go with the namespace.
///
/// sshd runs as the user 65534 of a user namespace that maps nobody, which is the host's own user. Under user 0 it would change to an
/// unprivileged user (sshd-auth.c, privsep_child_demote), and a user namespace without root has only one.
const SCRIPT: &str = r#"bb=$1 layer=$2 root=$3 kib=$4 port=$5
set -e
"$bb" mount -t tmpfs none "$root"
for d in usr etc tmp dev proc old; do "$bb" mkdir "$root/$d"; done
for d in bin sbin lib lib64; do "$bb" ln -s usr/$d "$root/$d"; done
"$bb" mount --bind "$layer/usr" "$root/usr"
"$bb" mount --rbind /dev "$root/dev"
"$bb" mount --rbind /proc "$root/proc"
echo "user:x:65534:65534::/tmp:/sh" >"$root/etc/passwd"
echo "user:x:65534:" >"$root/etc/group"
"$bb" cp "$bb" "$root/busybox"
"$bb" ln -s busybox "$root/sh"
cd "$root"
"$bb" pivot_root . old
cd /
/busybox umount -l /old
exec /busybox unshare -U /sh -c '
set -e
PATH=/usr/sbin:/usr/bin
ssh-keygen -q -t ed25519 -N "" -f /tmp/host
ssh-keygen -q -t ed25519 -N "" -f /tmp/client
/usr/sbin/sshd -f /dev/null -p $1 -h /tmp/host -o PidFile=none -o StrictModes=no -o AuthorizedKeysFile=/tmp/client.pub -o "Subsystem sftp internal-sftp"
/busybox dd if=/dev/urandom of=/tmp/file bs=1k count=$0 2>/dev/null
/busybox cat /tmp/client
echo "sum $(/busybox sha256sum </tmp/file)"
exec /busybox sleep 2147483
' "$kib" "$port"
"#;

/// The running server. It ends when this is dropped.
#[derive(Debug)]
pub struct Natively {
    /// Both namespaces.
    pub network: Native,
    /// The client's private key.
    pub key: String,
    /// The file's checksum.
    pub sum: String,
}

impl Natively {
    /// Starts a server with a file of about `bytes`, behind a link of the method's rate.
    ///
    /// # Errors
    /// The namespaces cannot be made, or the server says why it does not run.
    pub fn open(root: &Root, layer: &Layer, tc: &Tc, bytes: u64, stop: &AtomicBool) -> Result<Natively, Error> {
        let mut network = Native::open(root)?;
        network.pace(tc, RATE)?;
        let (place, log) = (network.folder().path().join("root"), network.folder().path().join("server"));
        fs::create_dir(&place).map_err(|source| Error::File {
            doing: "make the folder",
            path: place.clone(),
            source,
        })?;
        let busybox = root.busybox();
        let mut command = Command::new(&busybox);
        command.args(["unshare", "-m"]).arg(&busybox).args(["sh", "-c", SCRIPT, "sh"]);
        command.arg(&busybox).arg(layer.path("")).arg(&place).arg((bytes / 1024).to_string()).arg(PORT.to_string());
        let process = network.serve(&command, &log)?;
        let end = Instant::now() + READY_LIMIT;
        loop {
            let said = fs::read_to_string(&log).unwrap_or_default();
            if let Some((before, sum)) = said.rsplit_once("\nsum ").filter(|(_, sum)| sum.ends_with('\n')) {
                let key = before.find("-----BEGIN").and_then(|at| before.get(at..)).unwrap_or_default();
                return Ok(Natively { network, key: key.to_owned(), sum: sum.trim().to_owned() });
            }
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            if !process.runs() || Instant::now() > end {
                return Err(Error::Run { doing: "sshd without a virtual machine".to_owned(), said });
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}
