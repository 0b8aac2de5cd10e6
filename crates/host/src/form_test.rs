//! The patterns and the parsers agree: what a pattern allows is parsed, and what a value prints is allowed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use nicety_frame::Mac;
use nicety_switch::VlanSet;
use nicety_uplink::Rate;
use proptest::strategy::{Strategy, ValueTree};
use proptest::string::string_regex;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use regex_lite::Regex;

use super::super::tunnel::VlanVni;
use super::super::{Collector, KINDS, Kind, PeerAddress};
use super::*;

const BUFFER: Form = Form::Bytes(Bytes(64 << 10), Bytes(1 << 30));
const CHECKPOINT: Form = Form::Milliseconds(Milliseconds(5), Milliseconds(10_000));
const AGEING: Form = Form::Seconds(Seconds(10), Seconds(1_000_000));

/// Texts that a form's pattern allows, always the same ones.
fn allowed(form: Form) -> Vec<String> {
    let pattern = form.pattern().unwrap();
    let strategy = string_regex(pattern.trim_start_matches('^').trim_end_matches('$')).unwrap();
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), random);
    (0..2000).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

fn is_allowed(form: Form, text: &str) -> bool {
    Regex::new(&form.pattern().unwrap()).unwrap().is_match(text)
}

fn parsed<T: FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().unwrap_or_else(|error| panic!("{text:?}: {error:?}"))
}

#[test]
fn what_a_pattern_allows_is_parsed() {
    for text in allowed(Form::Mac) {
        let mac: Mac = parsed(&text);
        assert!(mac.is_unicast() || mac == Mac([0; 6]), "{text}");
    }
    for text in allowed(Form::Macs(63)) {
        assert!(text.split(',').map(parsed::<Mac>).count() <= 63);
    }
    for text in allowed(Form::Ips(64)) {
        assert!(text.split(',').map(parsed::<IpAddr>).count() <= 64);
    }
    for text in allowed(Form::PeerAddress) {
        assert!(parsed::<PeerAddress>(&text).to_string().contains(':'), "{text}");
    }
    for text in allowed(Form::Collector) {
        assert!(parsed::<Collector>(&text).address().port() > 0, "{text}");
    }
    for text in allowed(Form::Rate) {
        assert!(parsed::<Rate>(&text).bits_per_second() > 0, "{text}");
    }
    for text in allowed(Form::PortShares(64)) {
        let shares = |part: &str| parsed::<u16>(part.split_once('=').unwrap().1);
        assert!(text.split(',').map(shares).all(|shares| (1..=100).contains(&shares)), "{text}");
    }
    for text in allowed(Form::PortRates(64)) {
        let rate = |part: &str| parsed::<Rate>(part.split_once('=').unwrap().1).bits_per_second();
        assert!(text.split(',').map(rate).all(|rate| rate > 0), "{text}");
    }
    for text in allowed(BUFFER) {
        assert!((64 << 10..=1 << 30).contains(&parsed::<Bytes>(&text).0), "{text}");
    }
    for text in allowed(CHECKPOINT) {
        assert!((5..=10_000).contains(&parsed::<Milliseconds>(&text).0), "{text}");
    }
    for text in allowed(Form::Vnis(64)) {
        assert!(text.split(',').map(parsed::<VlanVni>).count() <= 64);
    }
    for text in allowed(Form::EtcdEndpoints(16)) {
        assert!(text.split(',').map(parsed::<nicety_etcd::Endpoint>).count() <= 16);
    }
    for text in allowed(AGEING) {
        assert!((10..=1_000_000).contains(&parsed::<Seconds>(&text).0), "{text}");
    }
    for text in allowed(Form::Vlans) {
        // A pattern cannot say that a range's first number is not above its last.
        let turned = |part: &str| part.split_once('-').is_some_and(|(a, b)| parsed::<u16>(a) > parsed::<u16>(b));
        assert!(text == "all" || text.parse::<VlanSet>().is_ok() || text.split(',').any(turned), "{text}");
    }
}

#[test]
fn a_line_has_no_control_character_and_no_more_than_allowed() {
    for (text, fits) in
        [("a", true), ("a, é", true), ("12345", false), ("", false), ("a\nb", false), ("a\u{7f}", false)]
    {
        assert_eq!(is_allowed(Form::Line(4), text), fits, "{text:?}");
    }
}

#[test]
fn vlans_have_a_network_each_and_no_more_than_allowed() {
    for (text, fits) in [
        ("10=5010,untagged=1", true),
        ("4094=16777215", true),
        ("0=1", false),
        ("4095=1", false),
        ("10=0", false),
        ("10=16777216", false),
        ("10", false),
        ("1=1,2=2,3=3", false),
    ] {
        assert_eq!(is_allowed(Form::Vnis(2), text), fits, "{text}");
    }
}

#[test]
fn what_a_value_prints_is_allowed_and_what_is_beyond_its_range_is_not() {
    for bits in [1, 9, 10, 999, 1000, 1001, 1_536_000, 2_500_000_000, 9_999_999_999_999, 10_000_000_000_000] {
        let text = Rate::new(bits).unwrap().to_string();
        assert!(is_allowed(Form::Rate, &text) && is_allowed(Form::Rate, &format!("{bits} bit/s")), "{text}");
    }
    for text in
        ["0bit/s", "0.0Gbit/s", "0.5bit/s", "1.0001kbit/s", "10000000000001bit/s", "10.1Tbit/s", "11Tbit/s", "1MB/s"]
    {
        assert!(!is_allowed(Form::Rate, text), "{text}");
    }
    for (text, fits) in [
        ("64KiB", true),
        ("63KiB", false),
        ("65536B", true),
        ("65535B", false),
        ("1GiB", true),
        ("2GiB", false),
        ("1024MiB", true),
        ("1025MiB", false),
        ("1073741824B", true),
        ("1073741825B", false),
        ("1.5MiB", false),
    ] {
        assert_eq!(is_allowed(BUFFER, text), fits, "{text}");
    }
    for (text, fits) in [("10s", true), ("9s", false), ("1000000s", true), ("1000001s", false), ("10", false)] {
        assert_eq!(is_allowed(AGEING, text), fits, "{text}");
    }
    for (text, fits) in [
        ("5ms", true),
        ("4ms", false),
        ("10000ms", true),
        ("10001ms", false),
        ("1s", true),
        ("10 s", true),
        ("11s", false),
        ("0s", false),
    ] {
        assert_eq!(is_allowed(CHECKPOINT, text), fits, "{text}");
    }
    for (text, fits) in [
        ("http://etcd1:2379", true),
        ("https://etcd1:2379,https://[fd00::2]:1", true),
        ("etcd1:2379", false),
        ("http://etcd1:0", false),
        ("http://a:1,http://b:1,http://c:1", false),
    ] {
        assert_eq!(is_allowed(Form::EtcdEndpoints(2), text), fits, "{text}");
    }
    let ips = Form::Ips(2);
    let groups = |bits: u16| std::array::from_fn(|at| if bits >> at & 1 == 1 { 0x1f0 + at as u16 } else { 0 });
    for bits in 0..256 {
        let ip = Ipv6Addr::from(groups(bits));
        assert!(is_allowed(ips, &ip.to_string()) || ip.to_string().contains('.'), "{ip}");
    }
    for octet in 0..=255 {
        let ip = Ipv4Addr::new(octet, 0, 255, octet);
        assert!(is_allowed(ips, &format!("{ip},fe80::7")), "{ip}");
    }
    for wrong in ["", "256.0.0.1", "1.2.3", "1::2::3", "1:2:3:4:5:6:7:8:9", "::1,::2,::3", "fe80::12345"] {
        assert!(!is_allowed(ips, wrong), "{wrong}");
    }
    for (text, fits) in
        [("10,20-30", true), ("4094", true), ("4095", false), ("0", false), ("all", true), ("all,1", false)]
    {
        assert_eq!(is_allowed(Form::Vlans, text), fits, "{text}");
    }
    for (text, fits) in [
        ("52:54:00:12:34:01", true),
        ("52-54-00-12-34-0A", true),
        ("52:54-00:12:34:01", false),
        ("53:54:00:12:34:01", false),
    ] {
        assert_eq!(is_allowed(Form::Mac, text), fits, "{text}");
    }
}

#[test]
fn numbers_in_a_range_are_allowed_and_no_others() {
    for (least, most) in [(1, 1), (1, 4094), (7, 12), (64, 1500), (10, 10), (99, 101), (4000, 4321), (1, 999)] {
        let pattern = Regex::new(&format!("^{}$", digits(least, most))).unwrap();
        for number in 0..5000 {
            assert_eq!(
                pattern.is_match(&number.to_string()),
                (least..=most).contains(&number),
                "{least} {most} {number}"
            );
        }
        assert!(!pattern.is_match(&format!("0{least}")), "{least}");
    }
}

/// A host file with this value in a table of this kind, and the key's mistakes.
fn mistakes(kind: &Kind, key: &str, value: &str) -> Vec<String> {
    let port =
        "[[port]]\nname = \"vm1\"\nadapter = \"virtio-net\"\nmac = \"52:54:00:12:34:01\"\nsocket = \"vm1.sock\"\n";
    let base = match kind.name {
        "port" => "",
        "port_group" => "[[port_group]]\nname = \"web\"\n",
        "uplink" => "[uplink]\nkind = \"null\"\n",
        _ => return Vec::new(),
    };
    let text = format!("{port}{base}");
    let table = if base.is_empty() { port } else { base };
    let kept: Vec<&str> = table.lines().filter(|line| !line.starts_with(&format!("{key} = "))).collect();
    let text = text.replace(table, &format!("{}\n{key} = {value}\n", kept.join("\n")));
    let found = super::super::Host::parse(&text, std::path::Path::new("/etc/nicety/host.toml"));
    let errors = found.err().map(|errors| errors.list).unwrap_or_default();
    errors.iter().filter(|error| error.key.ends_with(&format!(".{key}"))).map(|error| error.what.clone()).collect()
}

#[test]
fn a_value_of_another_type_or_word_than_its_form_is_a_mistake() {
    for kind in KINDS.iter().filter(|kind| ["port", "port_group", "uplink"].contains(&kind.name)) {
        for key in kind.keys {
            let wrong = match key.form {
                Form::Number(least, most) => {
                    vec![
                        format!("{}", i64::from(least) - 1),
                        format!("{}", u64::from(most) + 1),
                        "\"1\"".into(),
                        "true".into(),
                    ]
                }
                Form::Flag => vec!["1".into(), "\"true\"".into()],
                _ => vec!["1".into(), "true".into(), "\"\"".into(), "[]".into()],
            };
            for value in wrong {
                assert!(!mistakes(kind, key.name, &value).is_empty(), "{}.{} = {value}", kind.name, key.name);
            }
            let right = match key.form {
                Form::Number(least, most) => vec![least.to_string(), most.to_string()],
                Form::Flag => vec!["true".into(), "false".into()],
                form => form.words().unwrap_or_default().iter().map(|word| format!("\"{word}\"")).collect(),
            };
            for value in right {
                let form = ["is not known", "is not from", "it is a", "there is no adapter"];
                let found = mistakes(kind, key.name, &value);
                let is_of_form = found.iter().all(|what| form.iter().all(|words| !what.contains(words)));
                assert!(is_of_form, "{}.{} = {value}: {found:?}", kind.name, key.name);
            }
        }
    }
}
