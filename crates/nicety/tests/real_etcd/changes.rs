//! The configuration: its groups, plans, versions, and network identifiers that may not be used again at once.

use serde_json::{Value, json};

use crate::cluster::{Cluster, newer, older, put, refused, says};

const WEB: &str = "[[port_group]]\nname = \"web\"\nvni = 5010\nvlan = 10\n";

fn groups(cluster: &Cluster) -> Value {
    let listed = cluster.run(&["group", "list", "--json"]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    serde_json::from_str(&listed.out).unwrap()
}

fn groups_of(etcd: &nicety_guests::Etcd) {
    let cluster = Cluster::start(etcd);
    refused(cluster.run(&["group", "list"]), 2, "etcd has no fabric \"prod\": `nicety fabric init` makes it");
    let notes = says(cluster.run(&["init"]), 0, "made the fabric prod, without groups\n");
    assert!(notes.contains("etcd asks nobody for a password"), "{notes}");
    let again = cluster.run(&["init"]);
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(again.out.starts_with("the fabric prod is there, with version "), "{again:?}");
    says(cluster.run(&["group", "list"]), 0, "the fabric has no group: nicety fabric group add web vni=5010 vlan=10\n");

    let notes = says(cluster.run(&["group", "add", "web", "vni=5010", "vlan=10"]), 0, "+ port_group.web\n");
    assert!(notes.starts_with("note: this is version "), "{notes}");
    says(cluster.run(&["group", "add", "db", "vni=5020", "vlan=20", "bpdu_guard=true"]), 0, "+ port_group.db\n");
    says(
        cluster.run(&["group", "set", "web", "mac_changes=reject"]),
        0,
        "~ port_group.web: mac_changes (not set) → reject\n",
    );
    says(
        cluster.run(&["group", "list"]),
        0,
        "GROUP  VNI   ADDRESSES  HOSTS  KEYS\n\
         db     5020  0          0      bpdu_guard=true vlan=20\n\
         web    5010  0          0      mac_changes=reject vlan=10\n",
    );
    let all = groups(&cluster);
    assert_eq!(all["version"], 1);
    let web = json!({
        "name": "web", "vni": 5010, "addresses": 0, "hosts": 0,
        "keys": { "name": "web", "vni": 5010, "vlan": 10, "mac_changes": "reject" },
    });
    assert_eq!(all["groups"][1], web);

    // Mistakes, each with its sentence.
    for (words, why) in [
        (
            &["group", "add", "web", "vni=1", "vlan=1"][..],
            "there is a group \"web\" already: `nicety fabric group set web`",
        ),
        (&["group", "add", "new", "vni=5010", "vlan=1"], "the groups \"web\" and \"new\" have one vni, 5010"),
        (&["group", "add", "new", "vlan=1"], "the group \"new\" has no vni"),
        (&["group", "add", "new", "vni=0", "vlan=1"], "is not a number from 1 to 16777215"),
        (&["group", "add", "new", "vni=1", "vlan=10"], "VLAN 10 is that of group \"web\" already"),
        (&["group", "add", "new", "vni=1", "vlan=1", "mac_chnges=reject"], "mac_chnges"),
        (&["group", "set", "wbe", "vlan=1"], "the fabric has no group \"wbe\"; did you mean \"web\"?"),
        (&["group", "remove", "new"], "the fabric has no group \"new\""),
        (&["group", "add", "a/b", "vni=1"], "has a '/'"),
    ] {
        refused(cluster.run(words), 2, why);
    }
    assert_eq!(groups(&cluster), all, "nothing was changed by these");

    // A number that was given up is taken only later.
    let before = all["revision"].as_i64().unwrap();
    says(cluster.run(&["group", "remove", "db"]), 0, "- port_group.db\n");
    let freed = cluster.keys(&cluster.client(None), "freed/");
    assert_eq!(freed, [(format!("/nicety/fabrics/prod/freed/{before}"), "{\"vnis\":[5020]}".to_owned())]);
    refused(
        cluster.run(&["group", "add", "new", "vni=5020", "vlan=20"]),
        2,
        "vni 5020 of group \"new\" was given up a moment ago",
    );
    says(cluster.run(&["group", "add", "new", "vni=5021", "vlan=20"]), 0, "+ port_group.new\n");
    // Its lease has ended, as far as etcd is concerned.
    let lease = cluster.client(None).range(&nicety_etcd::Keys::one(&freed[0].0), 1).unwrap().values[0].lease;
    assert_ne!(lease, 0);
    cluster.client(None).wait(|client| async move { client.revoke(lease).await }).unwrap();
    says(cluster.run(&["group", "add", "db", "vni=5020", "vlan=30"]), 0, "+ port_group.db\n");
}

#[test]
fn groups_are_listed_added_changed_and_removed_with_etcd_3_5() {
    groups_of(&newer());
}

#[test]
fn groups_are_listed_added_changed_and_removed_with_etcd_3_4() {
    groups_of(&older());
}

#[test]
fn a_whole_configuration_is_planned_applied_and_edited_from_the_version_that_it_was_made_from() {
    let cluster = Cluster::start(&newer());
    cluster.run(&["init"]);
    let file = |text: &str| std::fs::write(cluster.scratch.path().join("prod.toml"), text).unwrap();
    file(&format!("# Ours.\nformat = 1\n{WEB}"));
    says(cluster.run(&["plan", "prod.toml"]), 0, "+ port_group.web\n");
    says(cluster.run(&["plan", "prod.toml"]), 0, "+ port_group.web\n");
    says(cluster.run(&["apply", "prod.toml"]), 0, "+ port_group.web\n");
    says(cluster.run(&["apply", "prod.toml"]), 0, "nothing to change\n");
    let notes = says(cluster.run(&["export"]), 0, &format!("# Ours.\nformat = 1\n{WEB}"));
    let version = notes.split("this is version ").nth(1).and_then(|rest| rest.split(';').next()).unwrap().to_owned();
    says(cluster.run(&["export", "--into", "prod.toml"]), 0, "");
    file(&format!("format = 1\n{WEB}"));
    says(cluster.run(&["apply", "prod.toml", "--based-on", &version]), 0, "only comments and order change\n");
    file(&format!("format = 1\n{WEB}{}", WEB.replace("web", "db").replace("10", "20")));
    refused(
        cluster.run(&["apply", "prod.toml", "--based-on", &version]),
        1,
        &format!("the file was made from version {version}, and the newest is "),
    );
    for (text, why) in [
        ("format = 2\n", "format = 2 is of a newer version of this program"),
        ("format = 1\n[[port_group]\n", "the text is not TOML"),
        (&format!("format = 1\n# {}", "a".repeat(256 << 10)), "at most 262144 are allowed"),
        ("format = 1\n[switch]\n", "switch"),
    ] {
        file(text);
        refused(cluster.run(&["apply", "prod.toml"]), 2, why);
        refused(cluster.run(&["plan", "prod.toml"]), 2, why);
    }
    refused(cluster.run(&["apply", "nowhere.toml"]), 2, "nowhere.toml: No such file");

    // The editor is a command that changes the file.
    let endpoints = cluster.endpoints();
    let edit = |editor: &str| {
        let mut command = cluster.scratch.command(&["fabric", "edit", "--fabric", "prod", "--etcd", &endpoints]);
        command.env("VISUAL", editor).env("TMPDIR", cluster.scratch.path());
        crate::scratch::Ended::soon(command)
    };
    let left = || {
        let names = std::fs::read_dir(cluster.scratch.path()).unwrap().map(|entry| entry.unwrap().path());
        names.filter(|path| path.to_string_lossy().contains("nicety-fabric-")).collect::<Vec<_>>()
    };
    says(edit("sed -i s/10/11/"), 0, "~ port_group.web: vlan 10 → 11, vni 5010 → 5011\n");
    says(edit("true"), 0, "nothing to change\n");
    refused(edit("false"), 1, "the editor false ended with exit status: 1: nothing was done");
    assert_eq!(left().len(), 0);
    let bad = edit("sed -i s/vni/vnj/");
    assert_eq!((bad.code, left().len()), (Some(2), 1), "{bad:?}");
    assert!(bad.err.contains(&format!("your text is kept in {}: mend it", left()[0].display())), "{bad:?}");
    assert!(std::fs::read_to_string(&left()[0]).unwrap().contains("vnj"));
    std::fs::remove_file(&left()[0]).unwrap();
    // Somebody else is faster.
    let other = format!(
        "{} fabric group set web vlan=12 --fabric prod --etcd {endpoints} && sed -i s/11/13/",
        env!("CARGO_BIN_EXE_nicety")
    );
    let late = edit(&other);
    assert_eq!(late.code, Some(1), "{late:?}");
    assert!(late.err.contains("somebody else has changed the fabric meanwhile (version "), "{late:?}");
    assert!(groups(&cluster)["groups"][0]["keys"]["vlan"] == 12, "{}", groups(&cluster));
}

#[test]
fn a_configuration_that_somebody_has_damaged_is_named_and_not_overwritten() {
    let cluster = Cluster::start(&newer());
    cluster.run(&["init"]);
    let client = cluster.client(None);
    for (text, why) in [
        ("format = 9", "format = 9 is of a newer version of this program, which reads format = 1"),
        ("\u{1}", "cannot be read: the text is not TOML"),
    ] {
        put(&client, "config", text, 0).unwrap();
        for words in [&["group", "list"][..], &["group", "add", "web", "vni=1", "vlan=1"], &["init"]] {
            refused(cluster.run(words), 1, why);
        }
        assert_eq!(cluster.keys(&client, "config")[0].1, text);
    }
}

#[test]
fn addresses_of_all_hosts_are_listed_and_a_group_with_some_stays() {
    let cluster = Cluster::start(&newer());
    cluster.run(&["init"]);
    says(cluster.run(&["group", "add", "web", "vni=5010", "vlan=10"]), 0, "+ port_group.web\n");
    says(cluster.run(&["group", "add", "db", "vni=5020", "vlan=20"]), 0, "+ port_group.db\n");
    let none = "no port of any host has an address here: a port has one while its guest's driver works\n";
    says(cluster.run(&["port", "list"]), 0, none);
    refused(cluster.run(&["where", "52:54:00:12:34:56"]), 1, "no host claims 52:54:00:12:34:56");
    let client = cluster.client(None);
    for (key, value) in [
        ("at/web/node-1/52:54:00:12:34:56", "{\"port\":\"vm1\",\"sequence\":7}"),
        ("at/web/node-2/52:54:00:12:34:56", "{\"port\":\"vm1\",\"sequence\":9}"),
        ("at/db/node-2/52:54:00:12:34:57", "{\"port\":\"vm2\",\"sequence\":1}"),
        ("at/db/node-2/zz", "{}"),
    ] {
        put(&client, key, value, 0).unwrap();
    }
    let listed = cluster.run(&["port", "list"]);
    assert_eq!(
        listed.out,
        "GROUP  PORT  ADDRESS            HOST\n\
         db     vm2   52:54:00:12:34:57  node-2\n\
         web    vm1   52:54:00:12:34:56  node-1  overtaken\n\
         web    vm1   52:54:00:12:34:56  node-2\n"
    );
    assert!(listed.err.contains("note: left out the key /nicety/fabrics/prod/at/db/node-2/zz: "), "{listed:?}");
    let web = cluster.run(&["port", "list", "--group", "web"]);
    assert_eq!((web.out.lines().count(), web.err.as_str()), (3, ""), "{web:?}");
    refused(cluster.run(&["port", "list", "--group", "wbe"]), 2, "the fabric has no group \"wbe\"; there are: db, web");
    let found = cluster.run(&["where", "52:54:00:12:34:56", "--json"]);
    let found: Value = serde_json::from_str(&found.out).unwrap();
    let second = json!({
        "group": "web", "port": "vm1", "address": "52:54:00:12:34:56", "host": "node-2", "sequence": 9, "current": true
    });
    assert_eq!((&found["version"], &found["claims"][1]), (&json!(1), &second));
    assert_eq!(found["claims"][0]["current"], false);

    let ended = cluster.run(&["group", "remove", "web"]);
    refused(ended, 2, "group \"web\" has 1 address at node-2: take its ports out of it first");
    // Another network cuts its VMs off for a moment: that is asked about.
    let ended = cluster.run(&["group", "set", "web", "vni=5011"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(ended.out, "~ port_group.web: vni 5010 → 5011 (VMs lose their way out for a moment)\n");
    assert!(ended.err.contains("there is no terminal to ask: nothing was done"), "{ended:?}");
    assert_eq!(cluster.run(&["group", "set", "web", "vni=5011", "--yes"]).code, Some(0));
    assert_eq!(groups(&cluster)["groups"][1]["vni"], 5011);
    // More claims than one answer has.
    let many: Vec<(String, String)> = (0..6000_u32)
        .map(|number| {
            let [_, a, b, c] = number.to_be_bytes();
            (
                format!("at/db/node-3/02:00:00:{a:02x}:{b:02x}:{c:02x}"),
                format!("{{\"port\":\"p{number}\",\"sequence\":1}}"),
            )
        })
        .collect();
    for some in many.chunks(100) {
        let put = |(key, value): &(String, String)| nicety_etcd::Op::put(format!("/nicety/fabrics/prod/{key}"), value);
        let txn = nicety_etcd::Txn { then: some.iter().map(put).collect(), ..nicety_etcd::Txn::default() };
        assert!(client.txn(&txn).unwrap().succeeded);
    }
    assert_eq!(cluster.run(&["port", "list", "--group", "db"]).out.lines().count(), 6002);
}
