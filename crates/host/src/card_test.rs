use nicety_switch::Private;

use super::{FunctionConfig, LinkState};
use crate::tests::{PORT, error, parse};

/// A card and a port at its function 0.
const CARD: &str = "[[card]]\nname = \"nic\"\nchip = \"82576\"\n[[port]]\nname = \"vm1\"\nadapter = \"igbvf\"\n\
                    mac = \"52:54:00:12:34:01\"\nsocket = \"vm1.sock\"\ncard = \"nic\"\nfunction = 0\n";

pub(crate) fn function(number: u8, more: &str) -> String {
    format!(
        "[[port]]\nname = \"f{number}\"\nadapter = \"igbvf\"\nmac = \"52:54:00:00:00:0{number}\"\nsocket = \"f{number}\"\n{more}\n"
    )
}

#[test]
fn the_link_of_any_port_can_be_down() {
    let link = |line: &str| parse(&format!("{PORT}{line}\n")).unwrap().ports[0].link;
    assert_eq!(link(""), LinkState::Auto);
    assert_eq!(link("link_state = \"disable\""), LinkState::Disable);
    let wrong = "6: port.link_state: \"down\" is not known (allowed: \"auto\", \"enable\" or \"disable\")";
    assert_eq!(error(&format!("{PORT}link_state = \"down\"\n")), wrong);
}

#[test]
fn a_port_at_a_card_s_function_has_what_ip_link_sets_with_linux_s_defaults() {
    let host = parse(CARD).unwrap();
    let [card] = &host.cards[..] else { panic!("{:?}", host.cards) };
    assert_eq!((card.entry.about.name, card.functions, &card.uplink), ("igbvf", 8, &None));
    let its = host.ports[0].function.clone().unwrap();
    // igb_vf_configure: spoof check on, trust off.
    let usual = FunctionConfig {
        card: "nic".into(),
        number: 0,
        trusted: false,
        checks_source: true,
        queries_rss: false,
        is_vepa: false,
        min_rate: None,
    };
    assert_eq!(its, usual);
    assert!(!host.ports[0].policy.forged_transmits, "the switch checks what it sends");
    let all = "trust = true\nlink_state = \"disable\"\nquery_rss = true\nvlan = 7\nqos = 5\n";
    let host = parse(&format!("{CARD}{all}")).unwrap();
    let its = host.ports[0].function.clone().unwrap();
    assert_eq!((its.trusted, host.ports[0].link, its.queries_rss), (true, LinkState::Disable, true));
    assert_eq!((host.ports[0].policy.priority, host.ports[0].policy.forged_transmits), (5, true));
    assert!(parse(&format!("{CARD}spoofchk = false\n")).unwrap().ports[0].policy.forged_transmits);
    let up = "[uplink]\nkind = \"null\"\nname = \"wan\"\n";
    let host = parse(&format!("{up}{}", CARD.replace("82576\"", "82576\"\nfunctions = 2\nuplink = \"wan\""))).unwrap();
    assert_eq!((host.cards[0].functions, host.cards[0].uplink.as_deref()), (2, Some("wan")));
}

#[test]
fn the_priority_in_a_guest_s_tags_counts_if_somebody_trusts_the_guest() {
    let counts = |text: &str| !parse(text).unwrap().ports[0].policy.regenerates;
    let tagged = format!("{CARD}vlan = 7\n");
    assert!(!counts(&tagged));
    assert!(counts(&format!("{tagged}trust_marks = true\n")));
    assert!(counts(&format!("{tagged}trust = true\n")));
    let up = "[[uplink]]\nkind = \"null\"\nname = \"up\"\nrate = \"1Gbit/s\"\n";
    let name = parse(CARD).unwrap().ports[0].name.clone();
    let class = |keys: &str| format!("{up}{tagged}[[io_class]]\nname = \"voice\"\nuplink = \"up\"\n{keys}\n");
    assert!(counts(&class(&format!("pcp = 5\nports = \"{name}\""))), "a class believes it");
    assert!(!counts(&class(&format!("dscp = 46\nports = \"{name}\""))), "its code point, not its priority");
}

#[test]
fn a_class_by_priority_that_names_no_ports_has_frames_of_trusted_functions_too_and_one_by_code_point_has_not() {
    let up = "[[uplink]]\nkind = \"null\"\nname = \"up\"\nrate = \"1Gbit/s\"\n";
    let with = |function: &str, keys: &str| {
        format!("{up}{CARD}vlan = 7\n{function}\n[[io_class]]\nname = \"voice\"\nuplink = \"up\"\n{keys}\n")
    };
    let host = parse(&with("trust = true", "pcp = 5")).unwrap();
    let classes = host.outward_classes_of(host.uplink("up").unwrap());
    assert_eq!(classes[1].ports, Some(vec![host.ports[0].name.clone()]));
    assert!(error(&with("trust = true", "dscp = 46")).contains("each guest chooses this itself"));
    assert!(error(&with("trust = false", "pcp = 5")).contains("each guest chooses this itself"));
}

/// `ip link set DEV vf N vlan ID [qos PRIORITY]`: 0 by default.
#[test]
fn a_vlan_that_is_set_or_taken_away_has_the_usual_priority_unless_the_change_names_one() {
    let port: toml::Table = "vlan = 7\nqos = 5".parse().unwrap();
    let set = |key: &str, value: Option<i64>| (key.to_owned(), value.map(toml::Value::Integer));
    let of = |port: &toml::Table, values: &[(String, Option<toml::Value>)]| crate::with_usual_priority(port, values);
    for vlan in [None, Some(20)] {
        assert_eq!(of(&port, &[set("vlan", vlan)]), [set("vlan", vlan), set("qos", None)]);
        let both = [set("vlan", vlan), set("qos", Some(3))];
        assert_eq!(of(&port, &both), both);
    }
    assert_eq!(of(&port, &[set("qos", Some(3))]), [set("qos", Some(3))]);
    assert_eq!(of(&toml::Table::new(), &[set("vlan", Some(20))]), [set("vlan", Some(20))], "it has none");
}

#[test]
fn a_card_that_cannot_be_and_a_port_that_it_does_not_have_are_refused_with_the_reason() {
    let with = |more: &str| error(&format!("{CARD}{more}"));
    assert_eq!(
        with(&function(2, "card = \"nic\"\nfunction = 0")),
        "17: port.function: function 0 of card nic is that of line 10 already (allowed: with card: a whole number from 0, below its functions)"
    );
    assert!(
        with(&function(2, "card = \"nic\"\nfunction = 8"))
            .contains("card nic has 8 functions, from 0 on: there is no 8")
    );
    assert!(
        with(&function(2, "card = \"nik\"\nfunction = 1")).contains("there is no card \"nik\"; did you mean \"nic\"?")
    );
    assert!(with(&function(2, "card = \"nic\"")).contains("port.function: it is missing"));
    assert!(with(&function(2, "function = 1")).contains("only a port at a card's function has this"));
    let other = function(2, "card = \"nic\"\nfunction = 1").replace("igbvf", "ixgbevf");
    assert!(with(&other).contains("its functions are igbvf, and this port's adapter is ixgbevf"));
    assert!(with("qos = 3\n").contains("port.qos: there is no vlan, in whose tag it would be"));
    let card = |lines: &str| error(&CARD.replace("82576\"", &format!("82576\"\n{lines}")));
    assert!(card("functions = 9").contains("an 82576 has at most 8 functions, not 9"));
    assert!(card("uplink = \"wan\"").contains("there is no uplink or team \"wan\""));
    assert!(with("[[card]]\nname = \"nic\"\nchip = \"82599\"\n").contains("there is a card \"nic\" already"));
    assert!(card("bridge = \"vepa\"").contains("card.bridge: there is no uplink, to which all would go"));
    let up = "[[uplink]]\nkind = \"null\"\nname = \"wan\"\n";
    let vepa = format!("{up}{}", CARD.replace("82576\"", "82576\"\nbridge = \"vepa\""));
    assert_eq!(parse(&vepa).unwrap().ports[0].policy.private, Private::Vepa);
    assert!(error(&format!("{vepa}private = \"isolated\"\n")).contains("it reaches the uplink alone"));
    assert!(error(&format!("{}{vepa}", up.replace("wan", "lan"))).contains("there are 2 uplinks and teams"));
    let many: String = (0..4).map(|number| format!("[[card]]\nname = \"x{number}\"\nchip = \"82599\"\n")).collect();
    assert!(with(&many).contains("with this card there are 264 functions, more than 256: give the cards fewer"));
    parse(&many).unwrap();
}

#[test]
fn a_function_s_address_changes_while_its_vm_runs_and_another_port_s_does_not() {
    let same = |one: &str, other: &str| parse(one).unwrap().ports[0].is_same_adapter(&parse(other).unwrap().ports[0]);
    let other = "52:54:00:12:34:99";
    assert!(same(CARD, &CARD.replace("52:54:00:12:34:01", other)));
    assert!(!same(PORT, &PORT.replace("52:54:00:12:34:01", other)));
    let alone = CARD.split("card =").next().unwrap();
    assert!(same(CARD, alone), "it becomes a card of its own");
}
