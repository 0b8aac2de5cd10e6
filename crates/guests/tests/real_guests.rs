//! Unmodified kernels in an unmodified QEMU. Not among `cargo test`'s targets, because they need the network once and minutes of
//! translation: `cargo xtask test` and `cargo test -p nicety-guests --test real_guests -- --test-threads 1` run them.
//! The guests' own limits bound every wait here.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nicety_guests::{Accel, Error, Guest, GuestConfig, Kernel, Machine, Root};

const SOON: Duration = Duration::from_secs(20);

fn root() -> Root {
    Root::lay(&mut |line| eprintln!("{line}")).unwrap_or_else(|error| panic!("{error}"))
}

fn translated(kernel: Kernel) -> GuestConfig {
    GuestConfig { accel: Accel::Tcg, ..GuestConfig::new(kernel) }
}

#[test]
fn both_kernels_boot_and_run_commands_with_code_output_and_limit() {
    let root = root();
    for kernel in Kernel::ALL {
        let mut guest = Guest::boot(&root, translated(kernel)).unwrap_or_else(|error| panic!("{error}"));
        println!("kernel {kernel} answered after {:.1} s", guest.boot_time().as_secs_f64());
        let release = guest.succeed("uname -r", SOON).unwrap_or_else(|error| panic!("{error}"));
        assert!(release.starts_with(&format!("{kernel}.")), "{release}");
        let output = guest.run("echo one; echo \"two\\nlines\" >&2; printf three; exit 7", SOON);
        let output = output.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((output.text.as_str(), output.code), ("one\ntwo\\nlines\nthree", 7));
        let late = guest.run("sleep 60", Duration::from_secs(1));
        assert!(matches!(late, Err(Error::Late { .. })), "{late:?}");
        assert_eq!(guest.succeed("echo still here", SOON).unwrap_or_else(|error| panic!("{error}")), "still here\n");
        assert!(guest.cpu_time() > Duration::ZERO);
        sends_with_iperf3(&mut guest);
    }
}

/// iperf3 cancels its threads at the end. For that glibc opens a library that no program names.
fn sends_with_iperf3(guest: &mut Guest) {
    let listens = "until netstat -ltn | grep -q :5201; do rest; done";
    let send = format!("ip link set lo up; iperf3 -s -1 -D; {listens}; iperf3 -c 127.0.0.1 -n 1M 2>&1");
    let output = guest.run(&send, SOON * 3).unwrap_or_else(|error| panic!("{error}"));
    assert!(output.code == 0 && output.text.contains("receiver"), "{output:?}");
}

#[test]
fn a_command_arrives_whole_while_what_the_last_one_left_behind_ends() {
    let mut guest = Guest::boot(&root(), translated(Kernel::V6_12)).unwrap_or_else(|error| panic!("{error}"));
    // A serial port delivers a line in pieces. The longer the line, the more processes end in the middle of it.
    let long = "x".repeat(3000);
    for _ in 0..3 {
        let leave = "for n in $(seq 10 49); do (sleep 0.$n &); done";
        guest.succeed(leave, SOON).unwrap_or_else(|error| panic!("{error}"));
        let echo = guest.succeed(&format!("echo {long}"), SOON).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(echo.trim(), long);
    }
}

#[test]
fn a_guest_without_its_adapter_says_so_instead_of_hanging() {
    let root = root();
    let append = vec!["nicety.patience=50".into()];
    let config = GuestConfig { addresses: vec!["eth0:10.0.0.2/24".into()], append, ..translated(Kernel::V6_12) };
    match Guest::boot(&root, config) {
        Err(Error::Boot { why, .. }) => assert!(why.contains("eth0"), "{why}"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it came up without an adapter"),
    }
}

#[test]
fn qemus_refusal_is_in_the_error() {
    let root = root();
    let mut config = translated(Kernel::V6_12);
    config.devices = vec!["-device".into(), "no-such-adapter".into()];
    match Guest::boot(&root, config) {
        Err(Error::Boot { console, .. }) => assert!(console.contains("no-such-adapter"), "{console}"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("QEMU took an adapter that does not exist"),
    }
}

#[test]
fn a_dropped_guest_leaves_no_process() {
    let root = root();
    let guest = Guest::start(&root, translated(Kernel::V6_12)).unwrap_or_else(|error| panic!("{error}"));
    let process = format!("/proc/{}", guest.process());
    assert!(std::fs::exists(&process).unwrap_or(false));
    drop(guest);
    assert!(!std::fs::exists(&process).unwrap_or(true));
}

/// Every family of adapters that QEMU has too, all in one guest. Each driver probes its adapter, has carrier, and names itself.
#[test]
fn each_of_qemus_own_adapters_gets_its_driver_in_both_kernels() {
    let root = root();
    let models = [
        ("e1000", "e1000"),
        ("e1000e", "e1000e"),
        ("igb", "igb"),
        ("vmxnet3", "vmxnet3"),
        ("virtio-net-pci", "virtio_net"),
        ("rtl8139", "8139cp"),
        ("pcnet", "pcnet32"),
        ("ne2k_pci", "ne2k-pci"),
    ];
    for kernel in Kernel::ALL {
        let config = (0..).zip(models).fold(translated(kernel), |config, (number, (model, _))| {
            let config = config.adapter(&format!("{model},mac={}", mac(number)), "user");
            config.address(&format!("eth{number}"), &format!("10.0.{number}.15/24"))
        });
        let mut guest = Guest::boot(&root, config).unwrap_or_else(|error| panic!("{error}"));
        let list = "for eth in /sys/class/net/eth*; do echo $(cat $eth/address) $(basename $(readlink $eth/device/driver)); done";
        let text = guest.succeed(list, SOON).unwrap_or_else(|error| panic!("{error}"));
        for (number, (model, driver)) in (0..).zip(models) {
            let line = format!("{} {driver}", mac(number));
            assert!(text.lines().any(|has| has == line), "{model} with kernel {kernel}: {text}");
        }
    }
}

fn mac(number: u8) -> String {
    format!("52:54:00:00:01:{number:02x}")
}

/// What a Ctrl-C does: the process that owns a guest is killed without a chance to clean up. This program is that process too.
#[test]
fn a_guest_ends_when_its_owner_is_killed() {
    let name = "a_guest_ends_when_its_owner_is_killed";
    if std::env::var_os("NICETY_OWN_A_GUEST").is_some() {
        let mut guest = Guest::boot(&root(), translated(Kernel::V6_12)).unwrap_or_else(|error| panic!("{error}"));
        println!("\nguest {}", guest.process());
        let _ = guest.run("sleep 60", Duration::from_secs(60));
        return;
    }
    root();
    let program = std::env::current_exe().unwrap_or_else(|error| panic!("{error}"));
    let mut owner = Command::new(program)
        .args([name, "--exact", "--nocapture"])
        .env("NICETY_OWN_A_GUEST", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{error}"));
    let output = owner.stdout.take().unwrap_or_else(|| panic!("it has no output"));
    let guest = BufReader::new(output)
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("guest ").map(str::to_owned));
    let process = format!("/proc/{}/exe", guest.unwrap_or_else(|| panic!("the owner has no guest")));
    assert!(std::fs::read_link(&process).is_ok());
    owner.kill().and_then(|()| owner.wait()).unwrap_or_else(|error| panic!("{error}"));
    // A process that has ended no longer has a program, even before its new parent reaps it.
    let end = Instant::now() + SOON;
    while std::fs::read_link(&process).is_ok() {
        assert!(Instant::now() < end, "the guest outlives its owner");
        std::thread::yield_now();
    }
}
