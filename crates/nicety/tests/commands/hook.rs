//! `nicety hook libvirt`, called as libvirt calls it: with words, and a domain's XML on stdin.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nicety_vfio_user::Client;
use rustix::process::Signal;

use crate::scratch::{Ended, HOST, Scratch, Served};

const UUID: &str = "4dea22b3-1d52-d8f3-2516-782e98ab3fa0";

/// A domain with an interface over vhost-user, and an e1000 by its metadata.
fn domain(scratch: &Scratch, name: &str, uuid: &str, first: u8) -> String {
    let place = scratch.path().display();
    let second = first + 1;
    format!(
        "<domain type='kvm'><name>{name}</name><uuid>{uuid}</uuid><metadata>\
           <nicety:ports xmlns:nicety='urn:nicety:domain'>\
             <nicety:port mac='52:54:00:12:35:0{second}' adapter='e1000' socket='{place}/{name}-b.sock'/>\
           </nicety:ports></metadata><devices>\
         <interface type='network'><mac address='52:54:00:12:36:01'/><source network='default'/><model type='virtio'/></interface>\
         <interface type='vhostuser'><mac address='52:54:00:12:35:0{first}'/>\
           <source type='unix' path='{place}/{name}-a.sock' mode='client'/><model type='virtio'/></interface>\
         </devices></domain>"
    )
}

fn web(scratch: &Scratch) -> String {
    domain(scratch, "web1", UUID, 1)
}

/// Starts a call, which has its XML.
fn begin(mut command: Command, xml: &str) -> Child {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A call that needs no XML may end before it has read it.
    let _unread = child.stdin.take().unwrap().write_all(xml.as_bytes());
    child
}

fn call(scratch: &Scratch, words: &[&str], xml: &str) -> Ended {
    let child = begin(scratch.command(&[&["hook", "libvirt"], words].concat()), xml);
    Ended::of(&child.wait_with_output().unwrap())
}

/// A call that must succeed, and print nothing: what is printed would be the domain's new XML.
#[track_caller]
fn well(scratch: &Scratch, words: &[&str], xml: &str) -> String {
    let ended = call(scratch, words, xml);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{words:?}: {ended:?}");
    ended.err
}

fn ports(scratch: &Scratch) -> Vec<String> {
    let all: serde_json::Value = serde_json::from_str(&scratch.run(&["ports", "--json"]).out).unwrap();
    let ports = all["ports"].as_array().unwrap().iter();
    ports.map(|port| port["name"].as_str().unwrap().to_owned()).collect()
}

const ALL: [&str; 4] = ["vm1", "vm2", "web1-1", "web1-2"];
const OWN: [&str; 2] = ["vm1", "vm2"];

#[test]
fn the_ports_of_a_domain_come_before_it_starts_and_go_when_it_has_ended_and_no_others() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let xml = web(&scratch);
    well(&scratch, &["web1", "prepare", "begin", "-"], &xml);
    assert_eq!(ports(&scratch), ALL);
    let one = scratch.run(&["ports", "web1-2"]).out;
    assert!(one.contains(&format!("made by       hook libvirt, domain web1, {UUID}\n")), "{one}");
    for operation in ["start", "started", "prepare"] {
        assert_eq!(well(&scratch, &["web1", operation, "begin", "-"], &xml), "");
    }
    assert_eq!(ports(&scratch), ALL);
    well(&scratch, &["web1", "stopped", "end", "-"], &xml);
    assert_eq!(ports(&scratch), OWN);
    // libvirt calls again, with the reason.
    well(&scratch, &["web1", "release", "end", "destroyed"], &xml);
    assert_eq!(ports(&scratch), OWN);
    served.line("changed: + port web1-1; kept");
    assert_eq!(served.end(Signal::TERM), Some(0));
    assert!(!scratch.path().join("host.toml.state").exists(), "nothing is left");
}

#[test]
fn calls_in_any_order_with_a_daemon_that_restarts_in_between_end_as_the_last_one_says() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let xml = web(&scratch);
    // A release without a start, and a start that was never prepared.
    well(&scratch, &["web1", "release", "end", "-"], &xml);
    well(&scratch, &["web1", "started", "begin", "-"], &xml);
    assert_eq!(ports(&scratch), ALL);
    // Killed.
    drop(served);
    let served = Served::start(&scratch);
    assert_eq!(ports(&scratch), ALL);
    // libvirtd has restarted too. What was changed meanwhile stays.
    assert_eq!(scratch.run(&["port", "set", "web1-2", "link_state=disable"]).code, Some(0));
    assert_eq!(well(&scratch, &["web1", "reconnect", "begin", "-"], &xml), "");
    assert!(scratch.run(&["export"]).out.contains("link_state = \"disable\""));
    // A call was killed when it had removed one port.
    assert_eq!(scratch.run(&["port", "remove", "web1-1"]).code, Some(0));
    well(&scratch, &["web1", "reconnect", "begin", "-"], &xml);
    assert_eq!(ports(&scratch).len(), 4);
    assert_eq!(scratch.run(&["port", "remove", "web1-1"]).code, Some(0));
    well(&scratch, &["web1", "release", "end", "-"], &xml);
    assert_eq!(ports(&scratch), OWN);
    assert_eq!(served.end(Signal::TERM), Some(0));
}

/// A libvirtd that restarts tells of a VM that runs, with the interfaces that were plugged into it meanwhile.
#[test]
fn an_interface_that_was_plugged_in_later_leaves_the_first_one_its_port() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let both = web(&scratch);
    let (begin, end) = (both.find("<metadata>").unwrap(), both.find("</metadata>").unwrap() + "</metadata>".len());
    let one = format!("{}{}", &both[..begin], &both[end..]);
    well(&scratch, &["web1", "prepare", "begin", "-"], &one);
    assert_eq!(ports(&scratch), ["vm1", "vm2", "web1"]);
    assert_eq!(well(&scratch, &["web1", "reconnect", "begin", "-"], &both), "");
    assert_eq!(ports(&scratch), ["vm1", "vm2", "web1", "web1-2"]);
    // And the other way round.
    well(&scratch, &["web1", "reconnect", "begin", "-"], &one);
    assert!(ports(&scratch).contains(&"web1".to_owned()));
    well(&scratch, &["web1", "release", "end", "-"], &one);
    assert_eq!(ports(&scratch), OWN);
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn a_call_that_is_killed_at_any_moment_is_followed_by_one_that_does_the_rest() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let xml = web(&scratch);
    for round in 0..12u64 {
        for (words, after) in [(["web1", "prepare", "begin", "-"], &ALL[..]), (["web1", "release", "end", "-"], &OWN)] {
            let mut child = begin(scratch.command(&[&["hook", "libvirt"][..], &words].concat()), &xml);
            std::thread::sleep(Duration::from_millis(round * 3));
            let _ended_already = child.kill();
            child.wait().unwrap();
            well(&scratch, &words, &xml);
            assert_eq!(ports(&scratch), after, "{round}");
        }
    }
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn the_same_domain_and_others_at_once_each_get_their_ports() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let web2 = domain(&scratch, "web2", "00000000-1d52-d8f3-2516-782e98ab3fa0", 3);
    let both = [("web1", web(&scratch)), ("web2", web2)];
    let at_once = |operation: &str, suboperation: &str| {
        let words = |name| vec!["hook", "libvirt", name, operation, suboperation, "-"];
        let calls = (0..4).flat_map(|_| both.iter()).map(|(name, xml)| begin(scratch.command(&words(name)), xml));
        for call in calls.collect::<Vec<_>>() {
            let ended = Ended::of(&call.wait_with_output().unwrap());
            assert_eq!(ended.code, Some(0), "{operation}: {ended:?}");
        }
    };
    for _ in 0..3 {
        at_once("prepare", "begin");
        let mut all = ports(&scratch);
        all.sort();
        assert_eq!(all, ["vm1", "vm2", "web1-1", "web1-2", "web2-1", "web2-2"]);
        at_once("release", "end");
        assert_eq!(ports(&scratch), OWN);
    }
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn a_daemon_that_is_away_ends_the_start_with_a_sentence_or_is_waited_for() {
    let scratch = Scratch::with(HOST);
    let xml = web(&scratch);
    let ended = call(&scratch, &["web1", "prepare", "begin", "-"], &xml);
    assert_eq!((ended.code, ended.err.lines().count()), (Some(3), 1), "{ended:?}");
    assert!(ended.err.starts_with("nicety: domain web1: no daemon serves "), "{ended:?}");
    let late = call(&scratch, &["--wait", "1s", "web1", "prepare", "begin", "-"], &xml);
    assert_eq!(late.code, Some(3), "{late:?}");
    // A domain without ports of ours does not need the daemon.
    let other = xml.replace("type='vhostuser'", "type='bridge'");
    let other = &other[other.find("<devices>").unwrap()..];
    let other = format!("<domain><name>web1</name><uuid>{UUID}</uuid>{other}");
    for (operation, suboperation) in
        [("prepare", "begin"), ("migrate", "begin"), ("stopped", "end"), ("release", "end")]
    {
        well(&scratch, &["--wait", "60s", "web1", operation, suboperation, "-"], &other);
    }
    // A VM that runs is not ended for it.
    let note = well(&scratch, &["web1", "reconnect", "begin", "-"], &xml);
    assert!(note.contains("note: domain web1 runs on, perhaps without its network: no daemon serves "), "{note}");
    let words = ["hook", "libvirt", "--wait", "60s", "web1", "prepare", "begin", "-"];
    let waits = begin(scratch.command(&words), &xml);
    std::thread::sleep(Duration::from_millis(300));
    let served = Served::start(&scratch);
    let ended = Ended::of(&waits.wait_with_output().unwrap());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ports(&scratch), ALL);
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn a_vm_starts_and_ends_while_an_administrator_s_change_waits_to_be_confirmed() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let xml = web(&scratch);
    let ports = |scratch: &Scratch| {
        let mut all = ports(scratch);
        all.sort();
        all
    };
    assert_eq!(scratch.run(&["port", "remove", "vm1", "--confirm", "600s"]).code, Some(0));
    well(&scratch, &["web1", "prepare", "begin", "-"], &xml);
    well(&scratch, &["web1", "started", "begin", "-"], &xml);
    assert_eq!(ports(&scratch), ["vm2", "web1-1", "web1-2"]);
    assert_eq!(scratch.run(&["confirm", "--undo"]).code, Some(0));
    assert_eq!(ports(&scratch), ALL);
    assert_eq!(scratch.run(&["port", "remove", "vm1", "--confirm", "600s"]).code, Some(0));
    well(&scratch, &["web1", "release", "end", "-"], &xml);
    assert_eq!(ports(&scratch), ["vm2"]);

    // This one needs an address that an undo would give back.
    let same = xml.replace("35:01", "34:01");
    let refused = call(&scratch, &["web1", "prepare", "begin", "-"], &same);
    assert_eq!((refused.code, refused.err.lines().count()), (Some(1), 1), "{refused:?}");
    for words in
        ["waits to be confirmed (- port vm1)", "`nicety confirm` keeps it", "is the address of port vm1 already"]
    {
        assert!(refused.err.contains(words), "{words}: {refused:?}");
    }
    let waits = begin(scratch.command(&["hook", "libvirt", "--wait", "60s", "web1", "prepare", "begin", "-"]), &same);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(scratch.run(&["confirm"]).code, Some(0));
    let ended = Ended::of(&waits.wait_with_output().unwrap());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ports(&scratch), ["vm2", "web1-1", "web1-2"]);
    well(&scratch, &["web1", "release", "end", "-"], &same);
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn at_the_other_end_of_a_migration_it_looks_first_and_leaves_the_xml_as_it_is() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let xml = web(&scratch);
    for operation in ["migrate", "restore"] {
        assert_eq!(well(&scratch, &["web1", operation, "begin", "-"], &xml), "");
    }
    assert_eq!(ports(&scratch), OWN, "the ports come when it is prepared");
    let lacking = xml.replace("adapter='e1000'", "adapter='e100'");
    let ended = call(&scratch, &["web1", "migrate", "begin", "-"], &lacking);
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{ended:?}");
    assert!(ended.err.contains("domain web1: ") && ended.err.contains("there is no adapter \"e100\""), "{ended:?}");
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn a_port_that_a_vm_still_uses_is_not_removed() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let xml = web(&scratch);
    well(&scratch, &["web1", "prepare", "begin", "-"], &xml);
    let vmm = Client::connect(scratch.path().join("web1-b.sock")).unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while !scratch.run(&["ports", "web1-2"]).out.contains("attached") {
        assert!(Instant::now() < end);
    }
    let late = call(&scratch, &["web1", "release", "end", "-"], &xml);
    assert!(late.code == Some(1) && late.err.contains("port web1-2 stays, because a VM still uses it"), "{late:?}");
    assert_eq!(ports(&scratch), ["vm1", "vm2", "web1-2"]);
    // The daemon may notice the VM's end after the call has begun.
    let words = ["hook", "libvirt", "web1", "release", "end", "-"];
    let waits = begin(scratch.command(&words), &xml);
    std::thread::sleep(Duration::from_millis(500));
    drop(vmm);
    let ended = Ended::of(&waits.wait_with_output().unwrap());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ports(&scratch), OWN);
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn a_host_file_that_does_not_know_the_ports_of_hooks_leaves_them_and_save_does_not_write_them() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let xml = web(&scratch);
    well(&scratch, &["web1", "prepare", "begin", "-"], &xml);
    let file = || std::fs::read_to_string(scratch.path().join("host.toml")).unwrap();
    std::fs::write(scratch.path().join("host.toml"), HOST.replace("queues = 2", "queues = 4")).unwrap();
    let applied = scratch.run(&["apply"]);
    assert_eq!((applied.code, applied.out.as_str()), (Some(0), "~ port vm2: queues 2 → 4\n"), "{applied:?}");
    assert_eq!(scratch.run(&["port", "set", "vm1", "buffer=2MiB"]).code, Some(0));
    let saved = scratch.run(&["save"]);
    assert_eq!(saved.code, Some(0), "{saved:?}");
    assert!(saved.err.contains("ports that programs have made are not in it: web1-1, web1-2"), "{saved:?}");
    assert!(file().contains("buffer = \"2MiB\"") && !file().contains("web1"), "{}", file());
    assert_eq!(served.end(Signal::TERM), Some(0));
    // And a file that was changed while nobody served.
    std::fs::write(scratch.path().join("host.toml"), HOST).unwrap();
    let served = Served::start(&scratch);
    assert_eq!(ports(&scratch), ALL);
    well(&scratch, &["web1", "release", "end", "-"], &xml);
    assert_eq!(ports(&scratch), OWN);
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn a_port_that_is_another_s_and_calls_that_make_no_sense_are_refused_with_what_to_do() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let xml = web(&scratch);
    for (words, xml, code, message) in [
        (
            &["vm1", "prepare", "begin", "-"][..],
            domain(&scratch, "vm1", UUID, 1).replace("urn:nicety", "urn:other"),
            1,
            "domain vm1 needs port vm1 at ",
        ),
        (&["web2", "prepare", "begin", "-"], xml.clone(), 2, "domain web2: the XML on stdin is that of domain web1"),
        (&["web1", "prepare", "begin", "-"], String::new(), 2, "domain web1: stdin has no XML that can be read"),
        (
            &["web1", "prepare", "begin", "-"],
            xml.replace("35:01", "34:01"),
            1,
            "52:54:00:12:34:01 is the address of port vm1 already",
        ),
        (&["web1", "prepare", "begin", "-"], xml.replace("web1-a", "gone/web1-a"), 1, "gone"),
        (&["web1"], xml.clone(), 2, "required arguments were not provided"),
        (&[], xml.clone(), 2, "required arguments were not provided"),
        (&["--wait", "3", "web1", "prepare", "begin"], xml.clone(), 2, "--wait"),
        (&["--wait", "601s", "web1", "prepare", "begin"], xml.clone(), 2, "at most 600s"),
        (&["--install", "web1", "prepare"], xml.clone(), 2, "cannot be used with"),
    ] {
        let ended = call(&scratch, words, &xml);
        assert!(ended.code == Some(code) && ended.err.contains(message), "{words:?}: {ended:?}");
        assert_eq!(ended.out, "");
    }
    let note = well(&scratch, &["web1", "prepar", "begin", "-"], &xml);
    assert!(note.contains("nothing is to do at prepar begin of domain web1"), "{note}");
    // What was added before the refusal goes with the release that follows it.
    well(&scratch, &["web1", "release", "end", "failed"], &xml);
    assert_eq!(ports(&scratch), OWN);
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn the_script_is_installed_again_and_again_calls_the_program_and_never_replaces_another() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let hooks = scratch.path().join("hooks/qemu.d");
    let script = hooks.join("nicety");
    let install =
        ["hook", "libvirt", "--install", "--hooks", "hooks/qemu.d", "--control", "nicety-lan.sock", "--wait", "30s"];
    for _ in 0..2 {
        let done = scratch.run(&install);
        assert_eq!((done.code, done.out.as_str()), (Some(0), "wrote hooks/qemu.d/nicety\n"), "{done:?}");
        assert!(done.err.contains("systemctl reload libvirtd"), "{done:?}");
    }
    assert_eq!(script.metadata().unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(std::fs::read_dir(&hooks).unwrap().count(), 1, "libvirt would call another file, too");
    let xml = web(&scratch);
    for (operation, suboperation, after) in [("prepare", "begin", &ALL[..]), ("release", "end", &OWN)] {
        let mut command = Command::new(&script);
        command.args(["web1", operation, suboperation, "-"]).current_dir("/");
        let ended = Ended::of(&begin(command, &xml).wait_with_output().unwrap());
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{ended:?}");
        assert_eq!(ports(&scratch), after);
    }
    let remove = ["hook", "libvirt", "--remove", "--hooks", "hooks/qemu.d"];
    for words in ["removed hooks/qemu.d/nicety\n", "hooks/qemu.d/nicety is not there\n"] {
        let done = scratch.run(&remove);
        assert_eq!((done.code, done.out.as_str()), (Some(0), words), "{done:?}");
    }
    let link = || std::os::unix::fs::symlink("/bin/true", &script).unwrap();
    let file = || std::fs::write(&script, "#!/bin/sh\nexit 0\n").unwrap();
    for other in [&file as &dyn Fn(), &link] {
        other();
        for words in [&install[..], &remove] {
            let refused = scratch.run(words);
            assert!(refused.code == Some(1) && refused.err.contains("has not written it: it stays"), "{refused:?}");
        }
        assert!(script.symlink_metadata().is_ok());
        std::fs::remove_file(&script).unwrap();
    }
    assert_eq!(served.end(Signal::TERM), Some(0));
}

/// The script that Proxmox calls with a VM's number and a phase.
#[test]
fn proxmox_s_hookscript_adds_a_port_that_is_missing_and_removes_the_one_that_it_has_added() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let printed = scratch.run(&["attach", "vm1", "--format", "proxmox"]);
    assert_eq!(printed.code, Some(0), "{printed:?}");
    assert!(printed.err.contains("note: this was written from documentation, and not tried\n"), "{printed:?}");
    std::fs::write(scratch.path().join("script"), &printed.out).unwrap();
    let programs = std::path::Path::new(env!("CARGO_BIN_EXE_nicety")).parent().unwrap().display();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    let phase = |phase: &str| {
        let mut command = Command::new("sh");
        command.args(["script", "101", phase]).current_dir(scratch.path()).env("PATH", &path);
        let ended = Ended::soon(command);
        assert_eq!(ended.code, Some(0), "{phase}: {ended:?}");
    };
    // A port of the administrator's stays.
    for name in ["pre-start", "post-start", "pre-stop", "post-stop"] {
        phase(name);
        assert_eq!(ports(&scratch), OWN, "{name}");
    }
    assert_eq!(scratch.run(&["port", "remove", "vm1"]).code, Some(0));
    for _ in 0..2 {
        phase("pre-start");
        assert_eq!(ports(&scratch), OWN);
        let one = scratch.run(&["ports", "vm1"]).out;
        assert!(one.contains("made by       hook proxmox, VM 101\n"), "{one}");
    }
    let other = scratch.run(&["port", "remove", "vm1", "--origin", "hook proxmox, VM 102"]);
    assert_eq!(other.out, "nothing to remove: no port vm1 was made by hook proxmox, VM 102\n", "{other:?}");
    for _ in 0..2 {
        phase("post-stop");
        assert_eq!(ports(&scratch), ["vm2"]);
    }
    assert_eq!(served.end(Signal::TERM), Some(0));
}

/// The script that KubeVirt's sidecar calls, with a domain that has memory and devices already.
#[test]
fn kubevirt_s_script_merges_the_port_into_a_domain() {
    let scratch = Scratch::with(HOST);
    for (port, wanted) in [("vm1", "vfio-user-pci"), ("vm2", "<interface type=\"vhostuser\">")] {
        let printed = scratch.run(&["attach", port, "--format", "kubevirt"]).out;
        let (_, script) = printed.split_once("on-define-domain.py: |\n").unwrap();
        let script: String =
            script.lines().map(|line| line.strip_prefix("    ").unwrap_or(line).to_owned() + "\n").collect();
        std::fs::write(scratch.path().join("script"), script).unwrap();
        let domain = "<domain type='kvm'><name>a</name><memoryBacking><source type='anonymous'/><nosharepages/></memoryBacking>\
                      <devices><interface type='bridge'/></devices></domain>";
        let mut command = Command::new("python3");
        command.args(["script", "--vmi", "{}", "--domain", domain]).current_dir(scratch.path());
        let ended = Ended::soon(command);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{ended:?}");
        let xml = roxmltree::Document::parse(&ended.out).unwrap();
        let all = |name: &str| xml.descendants().filter(|node| node.tag_name().name() == name).count();
        assert_eq!((all("memoryBacking"), all("devices"), all("source")), (1, 1, if port == "vm1" { 1 } else { 2 }));
        for element in
            [wanted, "<source type=\"memfd\"", "<access mode=\"shared\"", "<nosharepages", "<interface type=\"bridge\""]
        {
            assert!(ended.out.contains(element), "{element}: {}", ended.out);
        }
    }
}
