use super::*;

fn keys() -> Keys {
    Keys::new(&Name::new("prod").unwrap())
}

#[test]
fn keys_are_written_and_read_as_the_book_has_them() {
    let name = |text| Name::new(text).unwrap();
    let mac = Mac([0x52, 0x54, 0, 0x12, 0x34, 0xab]);
    let all = [
        (Key::Config, "/nicety/fabrics/prod/config"),
        (Key::Host(name("node-1.rack.2")), "/nicety/fabrics/prod/host/node-1.rack.2"),
        (
            Key::Tunnel { host: name("node-1"), address: "192.0.2.7".parse().unwrap() },
            "/nicety/fabrics/prod/host/node-1/192.0.2.7",
        ),
        (
            Key::Tunnel { host: name("node-1"), address: "2001:db8::7".parse().unwrap() },
            "/nicety/fabrics/prod/host/node-1/2001:db8::7",
        ),
        (
            Key::At { group: name("web"), host: name("node-1"), mac },
            "/nicety/fabrics/prod/at/web/node-1/52:54:00:12:34:ab",
        ),
        (
            Key::At { group: name("web"), host: name("node-1"), mac: CARRIED },
            "/nicety/fabrics/prod/at/web/node-1/uplink",
        ),
    ];
    for (key, text) in all {
        assert_eq!(keys().text(&key), text);
        assert_eq!(keys().parse(text.as_bytes()), Ok(key));
    }
    assert_eq!(keys().group(&name("web")), "/nicety/fabrics/prod/at/web/");
    assert_eq!(keys().hosts(), "/nicety/fabrics/prod/host/");
    assert_eq!(keys().tunnels(&name("node-1")), "/nicety/fabrics/prod/host/node-1/");
}

#[test]
fn keys_that_others_have_made_up_are_refused_with_a_reason() {
    let refused = |key: &str| keys().parse(key.as_bytes()).unwrap_err();
    let long = "a".repeat(65);
    let none = "no such key is known: expected are config, host/HOST, host/HOST/ADDRESS and at/GROUP/HOST/MAC";
    let all = [
        ("/nicety/fabrics/other/config", "the key is not of this fabric"),
        ("/nicety/fabrics/prod/hosts/a", none),
        ("/nicety/fabrics/prod/host/", "the name is empty"),
        ("/nicety/fabrics/prod/host/a/b", "\"b\" is no IP address"),
        ("/nicety/fabrics/prod/host/a/2001:DB8::7", "the address \"2001:DB8::7\" must be written 2001:db8::7"),
        ("/nicety/fabrics/prod/host/a/0.0.0.0", "0.0.0.0 cannot be a tunnel's address"),
        ("/nicety/fabrics/prod/host/a/192.0.2.7/b", none),
        ("/nicety/fabrics/prod/host/a b", "the name \"a b\" has a ' ': use letters, digits, '-', '_' and '.'"),
        ("/nicety/fabrics/prod/host/..", "the name \"..\" does not begin with a letter or digit"),
        (&format!("/nicety/fabrics/prod/host/{long}"), "the name has 65 characters, at most 64 are allowed"),
        (
            "/nicety/fabrics/prod/at/web/a/52:54:00:12:34:AB",
            "the address \"52:54:00:12:34:AB\" must be written 52:54:00:12:34:ab",
        ),
        ("/nicety/fabrics/prod/at/web/a/01:00:5e:00:00:01", "01:00:5e:00:00:01 is no address of one station"),
        ("/nicety/fabrics/prod/at/web/a/00:00:00:00:00:00", "00:00:00:00:00:00 is no address of one station"),
    ];
    for (key, why) in all {
        assert_eq!(refused(key), why);
    }
    assert!(refused("/nicety/fabrics/prod/at/web/a/52:54").contains("6 parts, this one has 2"));
    assert_eq!(keys().parse(b"\xff").unwrap_err(), "the key is no text");
}

#[test]
fn a_host_s_value_is_json_and_anything_else_is_refused_with_a_reason() {
    let text = r#"{"address":"192.0.2.7","mtu":9000,"run":"00000000000000ff","version":"0.1.0"}"#;
    let record = HostRecord::parse(text.as_bytes()).unwrap();
    assert_eq!(
        record,
        HostRecord { address: "192.0.2.7".parse().unwrap(), mtu: 9000, run: 255, version: "0.1.0".to_owned() }
    );
    assert_eq!(record.text(), text);
    // A newer version may say more.
    let more = text.replace("\"mtu\"", "\"zone\":\"b\",\"mtu\"");
    assert_eq!(HostRecord::parse(more.as_bytes()), Ok(record));
    let refused = |from: &str, to: &str| HostRecord::parse(text.replace(from, to).as_bytes()).unwrap_err();
    assert_eq!(refused("192.0.2.7", "0.0.0.0"), "0.0.0.0 cannot be a tunnel's address");
    assert_eq!(refused("192.0.2.7", "ff02::1"), "ff02::1 cannot be a tunnel's address");
    assert_eq!(refused("9000", "500"), "an MTU of 500 is too small: at least 576 bytes");
    assert!(refused("9000", "70000").starts_with("the value is not a host's record: invalid value: integer `70000`"));
    assert!(refused("00000000000000ff", "255").contains("the run \"255\" is not 16 hexadecimal digits"));
    assert_eq!(refused("0.1.0", "a\\nb"), "its version is no plain text of at most 64 bytes");
    assert!(refused(",\"version\":\"0.1.0\"", "").contains("missing field `version`"));
    let long = vec![b' '; VALUE_MAX + 1];
    assert_eq!(HostRecord::parse(&long).unwrap_err(), "the value has 1025 bytes, a host's record has at most 1024");
}

#[test]
fn a_claim_s_value_is_json_and_anything_else_is_refused_with_a_reason() {
    let record = ClaimRecord::parse(br#"{"port":"vm1","sequence":9007199254740991}"#).unwrap();
    assert_eq!((record.port.as_str(), record.sequence), ("vm1", SEQUENCE_MAX));
    assert_eq!(record.text(), r#"{"port":"vm1","sequence":9007199254740991}"#);
    let refused = |text: &str| ClaimRecord::parse(text.as_bytes()).unwrap_err();
    let of = |number: &str| format!("the sequence number {number} is not between 1 and 9007199254740991");
    assert_eq!(refused(r#"{"port":"vm1","sequence":0}"#), of("0"));
    assert_eq!(refused(r#"{"port":"vm1","sequence":9007199254740992}"#), of("9007199254740992"));
    assert!(refused(r#"{"port":"vm/1","sequence":1}"#).contains("has a '/'"));
    assert!(refused("[]").starts_with("the value is not a claim:"));
}
