//! Hosts whose clocks differ. The clock of the day matters to certificates alone (`certificates`). Leases and pauses go by the clock that
//! counts since a machine has started: each host here has a time namespace (time_namespaces(7)) in which that was long ago.

use tempfile::TempDir;

use super::*;

/// Days since each host has started, beside those of this machine.
const DAYS: [u32; 3] = [0, 1_000, 20_000];
const SECONDS_A_DAY: u32 = 86_400;

/// The words that start a program whose machine runs for so many days more.
fn days_more(days: u32) -> Vec<String> {
    let seconds = (days * SECONDS_A_DAY).to_string();
    ["unshare", "--time", "--monotonic", &seconds, "--boottime", &seconds, "--fork", "--kill-child"]
        .map(str::to_owned)
        .into()
}

#[test]
fn hosts_whose_clocks_differ_by_decades_are_one_fabric_and_forget_one_that_dies_in_time() {
    let test = "clocks::hosts_whose_clocks_differ_by_decades_are_one_fabric_and_forget_one_that_dies_in_time";
    let obstacle = || {
        let words = [&["-Ur".to_owned()][..], &days_more(DAYS[2]), &["true".to_owned()]].concat();
        again::refusal(&words.iter().map(String::as_str).collect::<Vec<_>>(), "a time namespace")
    };
    if !again::inside(test, "-Ur", obstacle) {
        return;
    }
    let (place, cluster) = (TempDir::new().unwrap(), Cluster::start::<1>());
    cluster.put("config", GROUPS);
    let ends = addresses::<3>();
    let mut hosts = [("one", 1), ("other", 2), ("third", 3)].map(|(name, number)| {
        let at = usize::from(number) - 1;
        let host = Host::new(place.path(), name, &ends[at], &cluster, &[("vmxnet3", "web", number)]);
        let mut host = Host { before: days_more(DAYS[at]), ..host };
        host.serve();
        host
    });
    let mut guests = [1, 2, 3].map(|number| hosts[usize::from(number) - 1].guest("vmxnet3", number));
    let know = |hosts: &[Host], numbers: &[u8]| {
        let place = |host: &Host, number: u8| {
            host.place(number).as_deref() == Some(["one", "other", "third"][usize::from(number) - 1])
        };
        hosts.iter().all(|host| host.is_connected() && numbers.iter().all(|number| place(host, *number)))
    };
    until("they know each other", || know(&hosts, &[1, 2, 3]));
    for [from, to] in [[0, 1], [1, 2], [2, 0]] {
        let [from, to] = guests.get_disjoint_mut([from, to]).unwrap();
        assert!(carried(from, to) > 100_000 && carried(to, from) > 100_000);
    }
    // Leases outlive three renewals, and the one of a host that dies does not.
    let (kept, begun) = (cluster.keys(), Instant::now());
    while begun.elapsed() < Duration::from_secs(12) {
        assert!(know(&hosts, &[1, 2, 3]), "{}{}", hosts[0].report(), hosts[2].report());
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(cluster.keys(), kept);
    let died = Instant::now();
    hosts[1].daemon = None;
    until("it is forgotten", || {
        [&hosts[0], &hosts[2]].iter().all(|host| host.report().hosts.len() == 1 && host.place(2).is_none())
    });
    println!("forgotten after {:?}", died.elapsed());
    assert!(died.elapsed() < Duration::from_secs(14), "{:?}", died.elapsed());
}
