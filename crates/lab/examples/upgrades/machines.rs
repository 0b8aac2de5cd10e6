//! Real guests in pairs: user-mode kernels and QEMU. The two of a pair send each other random bytes over one TCP connection in each
//! direction, from before the first upgrade until after the last.

use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant};

use nicety_guests::uml::{UmlConfig, UmlKernel};
use nicety_guests::{Accel, Guest, GuestConfig, Kernel, Machine, Root, Start};
use nicety_lab::embedded::Rig;

use crate::{Error, Plan};

/// Adapters of the guests, in their order.
const USER_MODE: [&str; 4] = ["e1000", "vmxnet3", "virtio-net", "igb"];
const QEMU: [&str; 2] = ["e1000e", "virtio-net"];
/// Bytes that a guest writes at a time, with a rest after each.
const BLOCK_KIB: u64 = 256;
/// Time limit of a command, and for the rest of a stream to arrive.
const LIMIT: Duration = Duration::from_secs(60);

/// The adapters of the real guests: user-mode kernels come first.
pub fn adapters(plan: &Plan) -> Vec<&'static str> {
    let of = |all: &'static [&'static str], count| all.iter().copied().cycle().take(count);
    of(&USER_MODE, plan.user_mode).chain(of(&QEMU, plan.qemu)).collect()
}

/// The name of a real guest's port.
pub fn name(number: usize) -> String {
    format!("m{number}")
}

/// The address of a real guest's adapter.
pub fn mac(number: usize) -> String {
    format!("52:54:00:78:00:{number:02x}")
}

fn address(number: usize) -> String {
    format!("10.78.0.{}", number + 1)
}

/// A stream between two guests.
pub struct Stream {
    title: String,
    bytes: u64,
    sent: String,
    came: String,
}

impl Stream {
    /// Whether both sides have the same checksum.
    pub fn is_same(&self) -> bool {
        self.sent.len() > 64 && self.sent == self.came
    }
}

impl Display for Stream {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let verdict = if self.is_same() { "the same checksums" } else { "DIFFERENT checksums" };
        write!(f, "{}: some {} bytes over one TCP connection, {verdict}", self.title, self.bytes)
    }
}

/// All real guests.
pub struct Machines {
    guests: Vec<(String, Guest)>,
}

impl Machines {
    /// Starts the guests at their ports, and waits until each has reached the other of its pair.
    pub fn start(plan: &Plan, rig: &Rig, say: &mut dyn FnMut(&str)) -> Result<Machines, Error> {
        let adapters = adapters(plan);
        let mut guests = Vec::new();
        if adapters.is_empty() {
            return Ok(Machines { guests });
        }
        let root = Root::lay(say)?;
        let kernel = if plan.user_mode > 0 { Some(UmlKernel::lay(say)?) } else { None };
        for (number, adapter) in adapters.iter().enumerate() {
            let kernel = kernel.as_ref().filter(|_| number < plan.user_mode);
            let guest = match kernel {
                Some(kernel) => Guest::start(&root, attached(UmlConfig::new(kernel), rig, number, adapter)?)?,
                None => {
                    let accel = Accel::Auto.resolve(&root)?;
                    let start = if accel == Accel::Tcg { Start::Saved } else { Start::Direct };
                    let config = GuestConfig { accel, start, ..GuestConfig::new(Kernel::V6_12) };
                    Guest::start(&root, attached(config, rig, number, adapter)?)?
                }
            };
            let kind = if kernel.is_some() { "user mode" } else { "QEMU" };
            guests.push((format!("{adapter} in {kind}"), guest));
        }
        for (title, guest) in &mut guests {
            guest.wait_ready()?;
            say(&format!("{title}: ready"));
        }
        let mut machines = Machines { guests };
        machines.come_back(say)?;
        Ok(machines)
    }

    fn run(&mut self, number: usize, command: &str) -> Result<String, Error> {
        let (title, guest) = self.guests.get_mut(number).ok_or("there is no such guest")?;
        Ok(guest.succeed(command, LIMIT).map_err(|error| format!("{title}: {error}"))?)
    }

    /// Waits until each guest has an answer of the other of its pair.
    pub fn come_back(&mut self, say: &mut dyn FnMut(&str)) -> Result<(), Error> {
        let begun = Instant::now();
        for number in 0..self.guests.len() {
            let to = address(number ^ 1);
            self.run(number, &format!("until /usr/bin/ping -n -q -c 1 -W 1 {to} >/dev/null 2>&1; do rest; done"))?;
        }
        if !self.guests.is_empty() {
            say(&format!("each real guest had an answer after {:.1?}", begun.elapsed()));
        }
        Ok(())
    }

    /// Begins to send in both directions of each pair.
    pub fn stream(&mut self) -> Result<(), Error> {
        let receive = "(nc -l -p 9000 -e sh -c 'sha256sum >/tmp/came' >/dev/null 2>&1 &)";
        for number in 0..self.guests.len() {
            self.run(number, &format!("{receive}; until netstat -ltn | grep -q :9000; do rest; done"))?;
        }
        for number in 0..self.guests.len() {
            let made = format!(
                "dd if=/dev/urandom of=/tmp/block bs=1k count={BLOCK_KIB} 2>/dev/null; mkfifo /tmp/copy; \
                 (sha256sum </tmp/copy >/tmp/sent 2>/dev/null &)"
            );
            let blocks =
                "n=0; while [ ! -e /tmp/stop ]; do cat /tmp/block; n=$((n+1)); echo $n >/tmp/blocks; rest; done";
            let to = address(number ^ 1);
            let sends = format!("(({blocks}) | tee /tmp/copy | nc {to} 9000 >/dev/null 2>&1 &)");
            self.run(number, &format!("{made}; {sends}"))?;
        }
        Ok(())
    }

    /// Ends the streams.
    pub fn finish(&mut self) -> Result<Vec<Stream>, Error> {
        let mut streams = Vec::new();
        for number in 0..self.guests.len() {
            let sent = self.run(number, "touch /tmp/stop; until [ -s /tmp/sent ]; do rest; done; cat /tmp/sent")?;
            let came = self.run(number ^ 1, "until [ -s /tmp/came ]; do rest; done; cat /tmp/came")?;
            let blocks: u64 = self.run(number, "cat /tmp/blocks")?.trim().parse()?;
            let title = |number: usize| self.guests.get(number).map_or("", |(title, _)| title.as_str());
            let title = format!("{} to {}", title(number), title(number ^ 1));
            streams.push(Stream { title, bytes: blocks * (BLOCK_KIB << 10), sent, came });
        }
        Ok(streams)
    }
}

/// A machine at its port, with its address.
fn attached<M: Machine>(machine: M, rig: &Rig, number: usize, adapter: &str) -> Result<M, Error> {
    let entry = nicety_adapters::find(adapter).ok_or("an adapter is missing")?;
    let socket = rig.socket(&name(number)).display().to_string();
    let machine = machine.address("eth0", &format!("{}/24", address(number)));
    Ok(if entry.about.transports.contains(&"vfio-user") {
        machine.vfio_user(&socket)
    } else {
        machine.vhost_user(&socket, &mac(number))
    })
}
