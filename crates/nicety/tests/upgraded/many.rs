//! Many ports, and many upgrades in a row: every frame is counted.

use super::*;

/// Ports of a kept daemon in pairs, each in a VLAN of its own, with a guest at each, and the time for which ports stood still.
struct Many {
    kept: Kept,
    /// Milliseconds, of each port and upgrade, and of each upgrade as a whole.
    pauses: Vec<f64>,
    wholes: Vec<f64>,
}

impl Many {
    /// So many of the ports have a guest.
    fn start(adapters: &[&str], guests: usize) -> Many {
        let dir = tempfile::tempdir().unwrap();
        let mut host = "[daemon]\ncontrol = \"control.sock\"\nworkers = 2\n".to_owned();
        for (adapter, number) in adapters.iter().zip(1u16..) {
            let [high, low] = number.to_be_bytes();
            host += &format!(
                "\n[[port]]\nname = \"vm{number}\"\nadapter = \"{adapter}\"\nmac = \"52:54:00:12:{high:02x}:{low:02x}\"\n\
                 socket = \"vm{number}.sock\"\nvlan = {}\n",
                (number - 1) / 2 + 1
            );
        }
        let mut kept = Kept::start_on(dir, &host);
        kept.attach(&adapters[..guests]);
        Many { kept, pauses: Vec::new(), wholes: Vec::new() }
    }

    fn upgrade(&mut self) {
        let answer = self.kept.upgraded();
        let ms = |value: &Value| value["stopped_ns"].as_f64().unwrap() / 1e6;
        self.pauses.extend(answer["ports"].as_array().unwrap().iter().map(ms));
        self.wholes.push(ms(&answer));
    }

    /// The first of each pair asks the second one, and is answered.
    fn all_answer(&mut self, when: &str) {
        for pair in 0..self.kept.guests.len() / 2 {
            let to = self.kept.guests[2 * pair + 1].address;
            self.kept.asks(2 * pair, to, when);
        }
    }

    /// Requests and answers in each pair, while the daemon is replaced so often.
    fn goes_on(&mut self, upgrades: usize) {
        let pairs = self.kept.guests.len() / 2;
        self.all_answer("before");
        let before = self.kept.frames();
        let (mut left, mut requests) = (upgrades, 0);
        // The guests' orders have an end: so many upgrades as there are until then, and again.
        while left > 0 {
            for pair in 0..pairs {
                let to = self.kept.guests[2 * pair + 1].address;
                self.kept.guests[2 * pair].order(&json!({ "transact": { "to": to, "seconds": 4.0 } }));
            }
            let end = Instant::now() + Duration::from_secs(4);
            while left > 0 && Instant::now() < end {
                self.upgrade();
                left -= 1;
            }
            for pair in 0..pairs {
                let done = self.kept.guests[2 * pair].answer();
                requests += answered(&done, "upgraded", &self.kept).len();
            }
        }
        assert!(requests > 0, "no request was answered\n{}", self.kept.log());
        self.all_answer("upgraded");
        let [sent, received, dropped] = none_is_lost(&self.kept, before);
        for all in [&mut self.pauses, &mut self.wholes] {
            all.sort_by(f64::total_cmp);
        }
        let at = |all: &[f64], percent: usize| all[(all.len() * percent / 100).min(all.len() - 1)];
        println!(
            "{pairs} pairs of guests, {upgrades} upgrades: a port stood still for {:.1} ms in the median, {:.1} ms p99; the whole for {:.1} ms p99, \
             {:.1} ms at most; {requests} requests, {sent} frames sent, {received} received, {dropped} dropped",
            at(&self.pauses, 50),
            at(&self.pauses, 99),
            at(&self.wholes, 99),
            at(&self.wholes, 100)
        );
        let log = self.kept.log();
        assert_eq!(log.matches(" has connected").count(), 2 * pairs, "no connection was closed: {log}");
        assert!(!log.contains("disconnected"), "{log}");
    }
}

#[test]
fn no_frame_is_lost_by_a_hundred_upgrades_in_a_row() {
    let upgrades = if nicety_trials::scope::is_full() { 1000 } else { 100 };
    Many::start(&["e1000", "vmxnet3", "virtio-net", "igb"], 4).goes_on(upgrades);
}

/// So many adapters, each as often as the others.
fn all(count: usize) -> Vec<&'static str> {
    let names: Vec<&str> = nicety_trials::scope::entries().into_iter().map(|entry| entry.about.name).collect();
    names.iter().cycle().take(count).copied().collect()
}

/// Sixty-four guests of all adapters. Its figures are in docs/measured.md: of a release build.
#[test]
#[ignore = "only with --full: minutes"]
fn sixty_four_ports_of_all_adapters_go_on_and_no_frame_is_lost() {
    Many::start(&all(64), 64).goes_on(100);
}

/// Ports without a guest cost, too.
#[test]
#[ignore = "only with --full: minutes"]
fn two_hundred_and_fifty_six_ports_go_on_and_no_frame_is_lost() {
    Many::start(&all(256), 16).goes_on(20);
}
