//! Commands that need no daemon, and invalid command lines.

use std::collections::HashSet;

use crate::scratch::{HOST, Scratch};

#[test]
fn without_a_command_it_says_what_it_can_do() {
    let ended = Scratch::new().run(&[]);
    assert_eq!(ended.code, Some(2));
    for word in ["serve", "attach", "ports", "adapters", "compare", "try"] {
        assert!(ended.err.contains(word), "{}", ended.err);
    }
    let help = Scratch::new().run(&["--help"]);
    assert_eq!(help.code, Some(0));
    assert!(help.out.contains("Exit codes:"), "{}", help.out);
    assert!(!help.out.contains("guest "), "what only the program itself calls is not shown: {}", help.out);
}

#[test]
fn a_wrong_command_line_ends_with_2_and_says_who_complains() {
    let scratch = Scratch::with(HOST);
    for args in [&["sreve"][..], &["compare", "--guests", "docker"], &["compare", "--seconds", "x"], &["attach"]] {
        let ended = scratch.run(args);
        assert!(ended.code == Some(2) && ended.err.starts_with("nicety: "), "{args:?}: {ended:?}");
    }
}

#[test]
fn the_version_names_the_commit_that_it_was_built_from() {
    let ended = Scratch::new().run(&["--version"]);
    assert_eq!((ended.code, ended.out), (Some(0), format!("nicety {}\n", nicety_version::BUILD)));
}

#[test]
fn trying_what_cannot_be_tried_is_refused_before_anything_is_built() {
    let scratch = Scratch::with(HOST);
    let cases: &[(&[&str], i32, &str)] = &[
        (&["e100", "--", "true"], 2, "there is no adapter \"e100\"; did you mean \"e1000\"?"),
        (&["e1000"], 2, "a shell needs a terminal"),
        (&[], 2, "required arguments were not provided"),
        (&["e1000", "--port", "vm1"], 2, "cannot be used with"),
        (&["e1000", "--memory", "16"], 2, "16 is not in 64..=3838"),
        (&["e1000", "--memory", "-1"], 2, "-1 is not in 64..=3838"),
        (&["--port", "vm3", "--", "true"], 2, "has no port \"vm3\"; did you mean \"vm1\"?"),
        (&["--port", "vm1", "--", "true"], 3, "the daemon does not run; start it first: nicety serve host.toml"),
        (&["--port", "vm1", "--host", "other.toml", "--", "true"], 2, "there is no host file other.toml: write one"),
        (
            &["e1000", "--kernel-tree", "tree", "--", "true"],
            2,
            "tree has no kernel `linux`; build it there: make -C tree",
        ),
        (&["e1000", "--kernel", "nowhere", "--", "true"], 2, "nowhere for its version failed: No such file"),
    ];
    for (words, code, message) in cases {
        let ended = scratch.run(&[&["try"], *words].concat());
        assert_eq!((ended.code, ended.out.as_str()), (Some(*code), ""), "{words:?}: {}", ended.err);
        assert!(ended.err.contains(message), "{words:?}: {}", ended.err);
    }
}

/// README.md contains exactly what the program prints.
#[test]
fn the_readme_s_table_of_adapters_is_the_programs() {
    let all = Scratch::new().run(&["adapters"]).out;
    let readme = include_str!("../../../../README.md");
    let table = readme.split("$ nicety adapters\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let printed: Vec<&str> = all.lines().take_while(|line| !line.is_empty()).collect();
    let listed: Vec<&str> = table.lines().filter(|line| *line != "[...]").collect();
    assert_eq!(listed, printed, "README.md, Adapters: put in what `nicety adapters` prints");
}

#[test]
fn adapters_are_listed_and_each_fact_has_its_source() {
    let scratch = Scratch::new();
    let all = scratch.run(&["adapters"]);
    assert_eq!(all.code, Some(0), "{all:?}");
    let names: Vec<&str> = all.out.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(["e1000", "vmxnet3", "virtio-net"].iter().all(|name| names.contains(name)), "{}", all.out);
    let one = scratch.run(&["adapters", "e1000"]);
    // Intel's 82540EM is 8086:100e: pci.ids.
    for fact in ["82540EM", "8086:100e", "1 Gbit/s shown to the guest; never a limit", "Linux", "Windows", "[Intel"] {
        assert!(one.out.contains(fact), "{fact}: {}", one.out);
    }
    // Facts that a person may doubt have their source on the next line.
    let lines: Vec<&str> = one.out.lines().map(str::trim).collect();
    let facts =
        ["chip ", "PCI ", "link ", "offloads ", "queue pairs ", "largest MTU ", "network boot ", "Linux ", "Windows "];
    let mut sources = HashSet::new();
    for fact in facts {
        let at = lines.iter().position(|line| line.starts_with(fact)).expect(fact);
        assert!(lines[at + 1].starts_with('[') && lines[at + 1].ends_with(']'), "{fact}: {}", one.out);
        assert!(sources.insert(lines[at + 1]), "{fact}: another fact's source: {}", one.out);
    }
    let page = scratch.run(&["adapters", "vmxnet3"]).out;
    assert!(page.contains("vmxnet3, since 2.6.32") && page.contains("vmxnet3, with VMware Tools"), "{page}");
    let json = scratch.run(&["adapters", "virtio-net", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let virtio = &json["adapters"][0];
    assert_eq!(virtio["pci"]["vendor"], 0x1af4);
    let page = scratch.run(&["adapters", "virtio-net"]).out;
    let sources = virtio["sources"].as_object().unwrap();
    for (fact, source) in sources {
        assert!(!virtio[fact].is_null(), "a source of nothing: {fact}");
        assert!(page.contains(&format!("[{}]", source.as_str().unwrap())), "{fact}: {page}");
    }
    // The specification sets neither; and QEMU shows no speed to the guest.
    for fact in ["link_mbps", "queue_pairs_most"] {
        assert!(sources[fact].as_str().unwrap().starts_with("Nicety's own choice"), "{fact}: {sources:?}");
    }
    assert!(page.contains("never a limit; through QEMU none is shown (ethtool: Unknown)"), "{page}");
    let unknown = scratch.run(&["adapters", "e100"]);
    assert_eq!(unknown.code, Some(2));
    let message = "nicety: there is no adapter \"e100\"; did you mean \"e1000\"? (there are: e1000, ";
    assert!(unknown.err.starts_with(message), "{}", unknown.err);
}

#[test]
fn attach_prints_words_to_paste_and_keeps_notes_apart() {
    let scratch = Scratch::with(HOST);
    let dir = scratch.path().display();
    let e1000 = scratch.run(&["attach", "vm1"]);
    assert_eq!(e1000.code, Some(0), "{e1000:?}");
    assert_eq!(
        e1000.out,
        format!(
            "-object memory-backend-memfd,id=mem,size=512M,share=on \\\n\
             -machine q35,memory-backend=mem \\\n\
             -device '{{\"driver\":\"vfio-user-pci\",\"socket\":{{\"type\":\"unix\",\"path\":\"{dir}/vm1.sock\"}}}}'\n"
        )
    );
    assert!(e1000.err.contains("note: the daemon does not run yet: nicety serve host.toml\n"), "{}", e1000.err);
    let virtio = scratch.run(&["attach", "vm2", "--host", "host.toml"]);
    assert!(virtio.out.contains("-netdev vhost-user,id=nicety-vm2-net,chardev=nicety-vm2,queues=2"), "{}", virtio.out);
    assert!(virtio.out.ends_with(",mac=52:54:00:12:34:02,speed=10000,duplex=full,mq=on,vectors=6\n"), "{}", virtio.out);
    let xml = scratch.run(&["attach", "vm2", "--libvirt"]);
    assert!(
        xml.out.contains("<interface type='vhostuser'>") && xml.out.contains("<access mode='shared'/>"),
        "{}",
        xml.out
    );
    let unknown = scratch.run(&["attach", "vm3"]);
    assert_eq!((unknown.code, unknown.out.as_str()), (Some(2), ""));
    assert!(
        unknown.err.contains("has no port \"vm3\"; did you mean \"vm1\"? (there are: vm1, vm2)"),
        "{}",
        unknown.err
    );
}
