//! The memory that a keeper costs: its own, and its daemon's journals.

use super::*;

/// Ports, each with a VMM.
const PORTS: usize = 16;
/// The most that a keeper may cost, in KiB.
const MAX_KIB: u64 = 10 << 10;

/// KiB of a process that are no file's: proc(5), smaps_rollup.
fn own_kib(pid: u64) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let value = |name: &str| -> u64 {
        let line = rollup.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().nth(1).map_or(0, |kib| kib.parse().unwrap())
    };
    value("Pss_Anon:") + value("Pss_Shmem:")
}

/// Serves so many ports with a VMM at each, and then calls `measure`.
fn measured(is_kept: bool, measure: impl Fn(u64) -> u64) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let mut host = "[daemon]\ncontrol = \"control.sock\"\nworkers = 2\n".to_owned();
    for number in 0..PORTS {
        host += &format!(
            "[[port]]\nname = \"vm{number}\"\nadapter = \"e1000\"\nmac = \"52:54:00:12:34:{number:02x}\"\nsocket = \"vm{number}.sock\"\n"
        );
    }
    std::fs::write(dir.path().join("host.toml"), host).unwrap();
    let process = if is_kept { keep(dir.path()) } else { station::serve(dir.path()) };
    let end = Instant::now() + SOON;
    let _vmms: Vec<Client> = (0..PORTS)
        .map(|number| {
            loop {
                let socket = dir.path().join(format!("vm{number}.sock"));
                if let Ok(mut vmm) = Client::connect_with(socket, SOON, Box::new(NoMemory)) {
                    vmm.region_write(7, 4, &[7, 0]).unwrap();
                    break vmm;
                }
                assert!(Instant::now() < end, "no daemon");
                std::thread::sleep(Duration::from_millis(10));
            }
        })
        .collect();
    measure(process.0.id().into())
}

#[test]
fn a_keeper_and_its_daemon_take_little_more_memory_than_a_daemon_alone() {
    let alone = measured(false, own_kib);
    let kept = measured(true, |keeper| {
        let children = std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap();
        // The daemon, and the acceptor of its control socket.
        own_kib(keeper) + children.split_whitespace().map(|pid| own_kib(pid.parse().unwrap())).sum::<u64>()
    });
    println!("{PORTS} ports with VMMs: a daemon alone {alone} KiB, with its keeper {kept} KiB");
    assert!(kept <= alone + MAX_KIB, "{kept} KiB, and {alone} alone");
}
