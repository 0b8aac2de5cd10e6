//! Several user-mode guests at one switch, which share the uplink to the peer outside.

use std::{path::PathBuf, sync::atomic::AtomicBool, thread, time::Duration};

use nicety_guests::{Error, Guest, Layer, Link, Machine, Port, Served, Setup, uml::UmlConfig};

use super::{OUTSIDE, Outside, Processor, SLACK, UPLINK, take};
use crate::real::quoted;
use crate::spent::Spent;
use crate::subject::Subject;

/// The chips of cards, with the adapter that is a function of each.
const CARDS: [(&str, &str); 2] = [("82576", "igbvf"), ("82599", "ixgbevf")];

/// The program of iproute2, in its layer.
const IP: &str = "usr/bin/ip";

/// The section of a card at the uplink whose functions are this adapter. None for an adapter that is no function.
fn card(adapter: &str) -> Option<String> {
    let (chip, _) = CARDS.into_iter().find(|(_, function)| *function == adapter)?;
    Some(format!("\n[[card]]\nname = \"nic\"\nchip = \"{chip}\"\nuplink = \"{UPLINK}\"\n"))
}

/// Running guests with their daemon. Ends by [`Outside::end_several`].
#[derive(Debug)]
pub struct Several {
    /// The guests.
    pub guests: Vec<Guest>,
    served: Served,
}

/// The address of a guest, counted from 0.
pub fn address(number: usize) -> String {
    format!("10.9.5.{}", number + 1)
}

/// The daemon's control socket.
#[derive(Debug, Clone)]
pub struct Control {
    socket: PathBuf,
}

impl Control {
    /// The answer to `GET /v1/ports`, if the daemon gives one: JSON.
    pub fn ask(&self) -> Option<String> {
        Served::ask_at(&self.socket)
    }
}

impl Several {
    /// The daemon's control socket.
    pub fn control(&self) -> Control {
        Control { socket: self.served.socket("control.sock") }
    }

    /// Processor time so far.
    pub fn spent(&self) -> Spent {
        Spent { vmm: self.guests.iter().map(Guest::cpu_time).sum(), daemon: Some(self.served.cpu_time()) }
    }

    /// Runs the first command in the first guest, the second in the second, and so on, all at once. Returns their outputs in order.
    ///
    /// # Errors
    /// The first of [`Guest::succeed_unless`].
    pub fn each(&mut self, commands: &[String], limit: Duration, stop: &AtomicBool) -> Result<Vec<String>, Error> {
        thread::scope(|scope| {
            let pairs = self.guests.iter_mut().zip(commands);
            let start = |(guest, command): (_, &String)| {
                let command = command.clone();
                scope.spawn(move || Guest::succeed_unless(guest, &command, limit, stop))
            };
            let running: Vec<_> = pairs.map(start).collect();
            let ended = running.into_iter().map(|run| run.join().unwrap_or(Err(Error::Stopped)));
            // All of them end before the first error is returned.
            ended.collect::<Vec<_>>().into_iter().collect()
        })
    }

    /// Runs a command in the first `count` guests at once.
    ///
    /// # Errors
    /// Those of [`Several::each`].
    pub fn at_once(
        &mut self,
        count: usize,
        command: &str,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<Vec<String>, Error> {
        self.each(&vec![command.to_owned(); count], limit, stop)
    }
}

impl Outside {
    /// Boots `count` guests of a subject, `guest0` upwards, behind one uplink with these lines in its section of the host file
    /// (`rate = "10Gbit/s"`), served by so many workers. Virtual functions are those of one card.
    ///
    /// # Errors
    /// Those of [`Guest::boot`] and of the daemon, with the last lines of console or log.
    pub fn boot_several(
        &mut self,
        subject: &Subject,
        count: usize,
        link: &str,
        workers: u32,
        stop: &AtomicBool,
    ) -> Result<Several, Error> {
        let adapter = &subject.adapter;
        let missing = || Error::Daemon { why: format!("there is no adapter {adapter}"), said: String::new() };
        let entry = nicety_adapters::find(adapter).ok_or_else(missing)?;
        let card = card(adapter);
        let port = |number: usize| {
            let mut port = Port::new(&format!("guest{number}"), entry, &format!("52:54:00:4e:05:{:02x}", number + 1));
            if entry.about.transports.contains(&"vhost-user") {
                // A user-mode kernel sets up all pairs that the device offers, and uses as many as it has processors.
                port.more += "queues = 1\n";
            }
            if card.is_some() {
                port.more += &format!("card = \"nic\"\nfunction = {number}\n");
            }
            port
        };
        let setup = Setup {
            link: Some(Link::Tap(UPLINK.to_owned())),
            link_more: link.to_owned() + card.as_deref().unwrap_or_default(),
            daemon_more: format!("workers = {workers}\n"),
            ..Setup::default()
        };
        let ports = (0..count).map(port).collect();
        let served = Served::start_as(&self.program, &mut self.namespace, ports, setup)?;
        match self.boot_guests(&served, count, stop) {
            Ok(guests) => Ok(Several { guests, served }),
            Err(error) => {
                // A running daemon would keep the tap from the next one. An error of stopping it has the same cause.
                let _ = served.stop(&mut self.namespace);
                Err(error)
            }
        }
    }

    /// Boots guests side by side.
    fn boot_guests(&self, served: &Served, count: usize, stop: &AtomicBool) -> Result<Vec<Guest>, Error> {
        let Processor::UserMode(kernel) = &self.processor else {
            let said = "several guests at once are user-mode ones".to_owned();
            return Err(Error::Run { doing: "booting".to_owned(), said });
        };
        let start = |number: usize| {
            let machine = UmlConfig { memory_mib: self.memory_mib, ..UmlConfig::new(kernel) };
            let machine = machine.address("eth0", &format!("{}/24", address(number)));
            Guest::start(&self.root, served.attach(machine, &format!("guest{number}")))
        };
        let mut guests = (0..count).map(start).collect::<Result<Vec<Guest>, Error>>()?;
        for guest in &mut guests {
            guest.wait_ready_unless(stop)?;
            if let Some((layer, files)) = &self.programs {
                take(guest, layer, files, stop)?;
            }
            guest.succeed_unless(&format!("/usr/bin/ping -n -q -c 1 -W 5 {OUTSIDE}"), SLACK, stop)?;
        }
        Ok(guests)
    }

    /// Ends the guests, then their daemon.
    ///
    /// # Errors
    /// The daemon does not end.
    pub fn end_several(&mut self, several: Several) -> Result<(), Error> {
        let Several { guests, served } = several;
        drop(guests);
        served.stop(&mut self.namespace)
    }

    /// Lets TCP outside ask for ECN (RFC 3168), which Linux else only grants.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn tell_congestion(&mut self) -> Result<(), Error> {
        self.namespace.run("echo 1 >/proc/sys/net/ipv4/tcp_ecn", SLACK).map(drop)
    }

    /// Makes the tap outside anew: with `several`, one of several queues, which busybox cannot make and `layer`'s `ip` can. No daemon
    /// may have it.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn renew_tap(&mut self, several: bool, layer: &Layer) -> Result<(), Error> {
        self.namespace.run(&format!("ip link del {UPLINK}"), SLACK)?;
        let address = format!("{OUTSIDE}/24");
        if !several {
            return self.namespace.tap(UPLINK, Some(&address));
        }
        let make = format!("{} tuntap add dev {UPLINK} mode tap multi_queue", quoted(&layer.program(IP)));
        let up = format!("ip addr add {address} dev {UPLINK} && ip link set {UPLINK} up");
        self.namespace.run(&format!("{make} && {up}"), SLACK).map(drop)
    }

    /// Sets the largest packet of the network outside, in bytes. It stays when a daemon takes the tap.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn set_mtu(&mut self, mtu: u32) -> Result<(), Error> {
        self.namespace.run(&format!("ip link set {UPLINK} mtu {mtu}"), SLACK).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_virtual_function_of_the_registry_has_its_card_and_no_other_adapter_has_one() {
        for entry in nicety_adapters::REGISTRY {
            assert_eq!(card(entry.about.name).is_some(), entry.card.is_some(), "{}", entry.about.name);
        }
        assert!(card("ixgbevf").unwrap().contains("chip = \"82599\"\nuplink = \"n0\"\n"));
    }
}
