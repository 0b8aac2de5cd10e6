//! Guests that continue where another was saved: a guest without adapters boots once for each kernel, and QEMU saves it
//! (docs/devel/migration, `file:`). A guest restored from that is given its adapters by QEMU at the start, as any guest, and finds them
//! by a rescan of its PCI bus. A translated boot costs some 3 s of the host's processor, a restored one 0.3 s (measured 2026-11).

use std::{
    fs,
    fs::File,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::retry_on_intr,
};

use super::GuestConfig;
use crate::{
    error::{Error, file},
    folder::Folder,
    guest::{Guest, Launch},
    root::{Root, fingerprint},
};

/// Word of a kernel's command line that makes crates/guests/init wait for its settings.
pub(super) const WAIT: &str = "nicety.wait";
/// Most guests to boot until one has a right clock.
const TRIES: u32 = 4;
/// Span over which a guest's clock is compared with the host's, and the most that they may differ, in hundredths.
const COMPARED: Duration = Duration::from_millis(1500);
const DIFFERENCE: u128 = 10;
/// Limits of an answer of QEMU, and of the saving.
const ANSWER: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The file that is locked while a guest is saved.
const LOCK: &str = "lock";

/// The file of a saved guest with this configuration's kernel and memory. It is made on first use after each boot of the host, whose
/// processor's clock is the guest's.
///
/// # Errors
/// Those of a boot, and [`Error::Run`] if QEMU does not save it.
pub(super) fn of(
    root: &Root,
    config: &GuestConfig,
    launch: impl Fn(&GuestConfig) -> Result<Launch, Error>,
) -> Result<PathBuf, Error> {
    let mut base = GuestConfig::new(config.kernel);
    (base.accel, base.machine, base.memory_mib) = (config.accel, config.machine.clone(), config.memory_mib);
    base.append.push(WAIT.to_owned());
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let boot = format!("{:016x}-", fingerprint(boot.as_bytes()));
    let command = format!("{:?}", launch(&base)?.command);
    let folder = root.folder().join("saved");
    let name = format!("{boot}{}-{}-{:016x}", base.kernel, base.memory_mib, fingerprint(command.as_bytes()));
    let path = folder.join(&name);
    if path.exists() {
        return Ok(path);
    }
    fs::create_dir_all(&folder).map_err(file("make the folder", &folder))?;
    let lock = folder.join(LOCK);
    let lock = File::create(&lock).map_err(file("make", &lock))?;
    retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive)).map_err(|error| failed(error.to_string()))?;
    if !path.exists() {
        let fresh = folder.join(format!("{name}.new"));
        save(&base, &fresh, launch)?;
        remove_older(&folder, &boot);
        fs::rename(&fresh, &path).map_err(file("rename to its final name", &path))?;
    }
    Ok(path)
}

/// Removes what was saved before the host booted, which nobody uses any more. What cannot be removed only takes space.
fn remove_older(folder: &Path, boot: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name != LOCK && !name.starts_with(boot) {
            _ = fs::remove_file(entry.path());
        }
    }
}

fn failed(said: String) -> Error {
    Error::Run { doing: "saving a guest".into(), said }
}

fn save(base: &GuestConfig, to: &Path, launch: impl Fn(&GuestConfig) -> Result<Launch, Error>) -> Result<(), Error> {
    for _ in 0..TRIES {
        let folder = Folder::new()?;
        let socket = folder.path().join("qmp");
        let mut base = base.clone();
        base.devices.extend(["-qmp".into(), format!("unix:{},server=on,wait=off", socket.display())]);
        let mut guest = Guest::launch(launch(&base)?)?;
        let (first, begin) = (guest.wait_waiting()?, Instant::now());
        // A kernel that counts its clock's rate on a busy host may count it wrong, by a factor even.
        let mut now = first;
        while begin.elapsed() < COMPARED || now == first {
            now = guest.wait_waiting()?;
        }
        if is_right(now.saturating_sub(first), begin.elapsed()) {
            let mut monitor = Monitor::open(&socket)?;
            monitor.run("migrate", &serde_json::json!({"uri": format!("file:{}", to.display())}))?;
            return monitor.completed();
        }
    }
    Err(failed(format!("none of {TRIES} guests has a clock as fast as the host's: is the host overloaded?")))
}

/// Whether a guest's clock is as fast as the host's.
fn is_right(guest: Duration, host: Duration) -> bool {
    guest.abs_diff(host).as_millis() * 100 <= host.as_millis() * DIFFERENCE
}

/// The line that ends a restored guest's waiting: the time, a seed (two guests of one file must not have the same random numbers), and
/// words that a booting guest finds on its kernel's command line.
pub(super) fn settings(words: &[String]) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut seed = [0; 32];
    // Without it the guest has what it had when it was saved.
    _ = File::open("/dev/urandom").and_then(|mut source| std::io::Read::read_exact(&mut source, &mut seed));
    let seed: String = seed.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("g{} {seed} {}\n", now.as_secs(), words.join(" "))
}

/// QEMU's control socket (docs/interop/qmp-spec.rst).
struct Monitor(BufReader<UnixStream>);

impl Monitor {
    fn open(socket: &Path) -> Result<Monitor, Error> {
        let stream = UnixStream::connect(socket).map_err(file("connect to", socket))?;
        stream.set_read_timeout(Some(ANSWER)).map_err(file("set a timeout of", socket))?;
        let mut monitor = Monitor(BufReader::new(stream));
        monitor.run("qmp_capabilities", &serde_json::json!({}))?;
        Ok(monitor)
    }

    /// The answer to a command.
    fn run(&mut self, command: &str, arguments: &serde_json::Value) -> Result<serde_json::Value, Error> {
        let request = serde_json::json!({"execute": command, "arguments": arguments}).to_string();
        self.0.get_mut().write_all(request.as_bytes()).map_err(|error| failed(error.to_string()))?;
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).map_err(|error| failed(error.to_string()))?;
            let answer: serde_json::Value =
                serde_json::from_str(&line).map_err(|error| failed(format!("{error}: {line}")))?;
            if let Some(error) = answer.get("error") {
                return Err(failed(error.to_string()));
            }
            // QEMU also sends a greeting and events.
            if let Some(value) = answer.get("return") {
                return Ok(value.clone());
            }
        }
    }

    /// Waits until a migration has completed.
    fn completed(&mut self) -> Result<(), Error> {
        let end = Instant::now() + ANSWER;
        loop {
            let answer = self.run("query-migrate", &serde_json::json!({}))?;
            match answer["status"].as_str() {
                Some("completed") => return Ok(()),
                Some("failed" | "cancelled") => return Err(failed(answer.to_string())),
                _ if Instant::now() > end => return Err(failed(format!("not saved within {ANSWER:?}: {answer}"))),
                _ => std::thread::sleep(LOOK_AGAIN),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_a_tenth_off_is_taken_and_one_of_another_rate_is_not() {
        let seconds = Duration::from_secs_f64;
        assert!(is_right(seconds(1.5), seconds(1.6)) && is_right(seconds(1.6), seconds(1.5)));
        assert!(!is_right(seconds(75.0), seconds(1.5)) && !is_right(seconds(1.2), seconds(1.5)));
    }

    #[test]
    fn two_guests_get_different_seeds_and_their_words() {
        let words = ["nicety.ip=eth0:10.0.0.2/24".to_owned()];
        let (one, other) = (settings(&words), settings(&words));
        assert!(one.starts_with('g') && one.ends_with(" nicety.ip=eth0:10.0.0.2/24\n"), "{one}");
        assert_ne!(one.split(' ').nth(1), other.split(' ').nth(1));
    }
}
