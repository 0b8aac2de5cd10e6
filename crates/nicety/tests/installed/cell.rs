//! A root of its own in namespaces of this host: a laid Debian with files of its own, its devices, and its own network.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nicety_guests::Debian;

/// For whatever does not boot a guest.
pub const SOON: Duration = Duration::from_secs(30);

/// A root with a few files of its own over the Debian: its devices, an own network, and no process of the host's.
const ENTER: &str = r#"set -e
tree=$0 place=$1 shared=$2
mount --make-rprivate /
mount -t tmpfs cell "$place"
mkdir "$place/root" "$place/upper" "$place/work"
root=$place/root
mount -t overlay -o "lowerdir=$tree,upperdir=$place/upper,workdir=$place/work" overlay "$root"
mkdir -p "$root/srv"
for name in run tmp srv; do mount -t tmpfs -o mode=755 "$name" "$root/$name"; done
chmod 1777 "$root/tmp"
mkdir "$root/run/lock" "$root/srv/shared"
mount --bind "$shared" "$root/srv/shared"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sys "$root/sys"
mount -t tmpfs -o mode=755 dev "$root/dev"
cd "$root/dev"
mkdir net pts shm
for node in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 "${node%:*}" c 1 "${node#*:}"; done
mknod -m 666 tty c 5 0
mknod -m 666 net/tun c 10 200
mount -t devpts -o newinstance,ptmxmode=0666 pts pts
mount -t tmpfs -o mode=1777 shm shm
ln -s pts/ptmx ptmx
ln -s /proc/self/fd fd
ip link set lo up
rmdir "$root/var/run"
ln -s /run "$root/var/run"
# The first process: whatever loses its parent becomes its child, and is waited for between two sleeps. Others enter by its root, so it
# says that it is there from within.
exec chroot "$root" sh -c 'echo entered; while sleep 0.1; do :; done'
"#;

/// The root and its processes. They end when this is dropped, and when this process ends.
pub struct Cell {
    enclosing: Child,
    /// Its first process, by the host's number.
    first: u32,
    _place: tempfile::TempDir,
    _shared: Arc<tempfile::TempDir>,
}

impl Cell {
    pub fn enter(debian: &Debian) -> Cell {
        Cell::enter_with(debian, &Arc::new(tempfile::tempdir().unwrap()))
    }

    /// The same, with a folder that other roots may have too. It is at `/srv/shared`.
    pub fn enter_with(debian: &Debian, shared: &Arc<tempfile::TempDir>) -> Cell {
        let place = tempfile::tempdir().unwrap();
        let mut enclosing = Command::new("setpriv");
        enclosing.args(["--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork"]);
        enclosing
            .args(["--kill-child=KILL", "sh", "-c", ENTER])
            .arg(debian.tree())
            .arg(place.path())
            .arg(shared.path());
        let mut enclosing = enclosing.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(enclosing.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "entered\n");
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", enclosing.id())).unwrap();
        Cell { first: children.trim().parse().unwrap(), enclosing, _place: place, _shared: Arc::clone(shared) }
    }

    pub fn root(&self) -> String {
        format!("/proc/{}/root", self.first)
    }

    /// Joins the networks of two roots by an interface `wire0` in each, with these addresses.
    pub fn joined(&self, address: &str, other: &Cell, its_address: &str) {
        let ends = [self, other].map(|cell| cell.first.to_string());
        let mut link = Command::new("ip");
        link.args(["link", "add", "name", "wire0", "netns", &ends[0], "type", "veth"]);
        link.args(["peer", "name", "wire0", "netns", &ends[1]]);
        let made = link.output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        for (cell, address) in [(self, address), (other, its_address)] {
            cell.run(&format!("ip address add {address} dev wire0 && ip link set wire0 up"));
        }
    }

    fn output(&self, script: &str) -> Output {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.first.to_string(), "--mount", "--pid", "--net", "--ipc", "--uts", "--root"]);
        command.args(["--wd=/", "sh", "-c", script]).env_clear();
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C.UTF-8").env("HOME", "/root");
        command.output().unwrap()
    }

    /// Runs a line of shell there, which must succeed, and returns what it printed.
    #[track_caller]
    pub fn run(&self, script: &str) -> String {
        let output = self.output(script);
        let [text, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        assert!(output.status.success(), "{script}: {text}{errors}\n{}", self.logs());
        text
    }

    /// Runs a line of shell there, which must fail, and returns what it printed.
    #[track_caller]
    pub fn fails(&self, script: &str) -> String {
        let output = self.output(script);
        assert!(!output.status.success(), "{script}");
        (String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr)).into_owned()
    }

    fn logs(&self) -> String {
        let logs = "for log in /var/log/*.log /var/log/libvirt/qemu/*.log /srv/con*; do echo \"== $log\"; tail -n 20 $log; done";
        let output = self.output(logs);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Waits until a line of shell succeeds there.
    #[track_caller]
    pub fn wait(&self, script: &str, limit: Duration) {
        let end = Instant::now() + limit;
        while !self.output(script).status.success() {
            assert!(Instant::now() < end, "not within {limit:?}: {script}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    pub fn write(&self, path: &str, text: &str) {
        std::fs::write(format!("{}{path}", self.root()), text).unwrap();
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        let _ended_already = self.enclosing.kill();
        let _status = self.enclosing.wait();
    }
}

/// Starts a daemon with the unit's user, capability and folders.
pub fn as_the_unit(serve: &str) -> String {
    format!(
        "install -d -m 755 -o nicety -g nicety /run/nicety && install -d -m 750 -o nicety -g nicety /var/lib/nicety && umask 0077 && \
         (setpriv --reuid nicety --regid nicety --init-groups --bounding-set=-all,+net_admin --inh-caps=-all,+net_admin \
         --ambient-caps=-all,+net_admin --no-new-privs {serve} >/var/log/nicety.log 2>&1 </dev/null &)"
    )
}

/// Whether this person may not have a root with several users. Says so.
pub fn skipped_without_root(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        // Written directly: the test harness hides the output of passing tests.
        let _written = writeln!(std::io::stdout(), "\nSKIPPED installed::{test}: a root with several users takes root");
    }
    !is_root
}
