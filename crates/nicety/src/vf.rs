//! `nicety vf`: the functions of a running daemon's cards, by the words of `ip link set DEV vf N`.

use nicety_control::api::{PortList, PortValues};
use nicety_control::{self as control, Ask, Reply};
use nicety_daemon::report::{FunctionReport, PortReport};
use nicety_host::{List, did_you_mean};
use serde_json::{Value, json};

use crate::answer::{failure, odd};
use crate::change::made;
use crate::cli::{VfCommand, VfSet, VfShow};
use crate::exit::{Exit, Failure};
use crate::find::socket;
use crate::output;
use crate::ports::word;

/// Runs it.
pub fn run(command: &VfCommand) -> Result<(), Failure> {
    match command {
        VfCommand::Show(args) => show(args),
        VfCommand::Set(args) => set(args),
    }
}

/// The ports that are functions, in the order of cards and numbers.
fn functions(path: &std::path::Path) -> Result<Vec<(FunctionReport, PortReport)>, Failure> {
    let ports = match control::ask(path, Ask::Ports).map_err(failure)? {
        Reply::Ports(PortList { ports, .. }) => ports,
        other => return Err(odd(&other)),
    };
    let mut all: Vec<_> = ports.into_iter().filter_map(|port| Some((port.function.clone()?, port))).collect();
    all.sort_by(|(one, _), (other, _)| (&one.card, one.function).cmp(&(&other.card, other.function)));
    Ok(all)
}

/// `CARD/N`.
fn place(function: &FunctionReport) -> String {
    format!("{}/{}", function.card, function.function)
}

fn unknown(wanted: &str, all: &[(FunctionReport, PortReport)]) -> Failure {
    let names: Vec<String> = all.iter().map(|(function, _)| place(function)).collect();
    let meant = did_you_mean(wanted, names.iter().map(String::as_str));
    let what = match names.as_slice() {
        [] => "no port is a function of a card".to_owned(),
        names => format!("there are {}", names.join(", ")),
    };
    Failure::new(Exit::Usage, format!("there is no function {wanted:?}{meant} ({what})"))
}

fn show(args: &VfShow) -> Result<(), Failure> {
    let mut all = functions(&socket(&args.which, None)?)?;
    if let Some(wanted) = &args.function {
        let is_wanted = |(function, _): &(FunctionReport, _)| function.card == *wanted || place(function) == *wanted;
        if !all.iter().any(is_wanted) {
            return Err(unknown(wanted, &all));
        }
        all.retain(is_wanted);
    }
    if args.json {
        let ports: Vec<&PortReport> = all.iter().map(|(_, port)| port).collect();
        let text = serde_json::to_string_pretty(&json!({ "version": control::VERSION, "functions": ports }));
        return output::print(&(text.map_err(Failure::with(Exit::Failed))? + "\n"));
    }
    if all.is_empty() {
        return output::print("no port is a function of a card: [[port]] card and function make it one\n");
    }
    let heading = [
        "FUNCTION",
        "PORT",
        "MAC",
        "VLAN",
        "QOS",
        "RATE",
        "MIN-RATE",
        "SPOOFCHK",
        "TRUST",
        "STATE",
        "QUERY-RSS",
        "CONDITION",
        "SPOOFED",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(all.iter().map(|(function, port)| row(function, port)));
    output::print(&output::columns(&rows))
}

fn row(function: &FunctionReport, port: &PortReport) -> Vec<String> {
    let of = |key: &str| port.policy.get(key).cloned().unwrap_or_else(|| "-".to_owned());
    let on = |flag| if flag { "on" } else { "off" }.to_owned();
    let spoofed = port.transmit_drops.get("forged-transmit").copied().unwrap_or(0);
    vec![
        place(function),
        port.name.clone(),
        port.mac.clone().unwrap_or_default(),
        of("vlan"),
        of("qos"),
        of("send_average"),
        function.min_rate.clone().unwrap_or_else(|| "-".to_owned()),
        on(function.spoofchk),
        on(function.trust),
        function.link_state.clone(),
        on(function.query_rss),
        word(port.condition).to_owned(),
        spoofed.to_string(),
    ]
}

fn set(args: &VfSet) -> Result<(), Failure> {
    let values = values(&args.values).map_err(|why| Failure::new(Exit::Usage, why))?;
    let path = socket(&args.options.which, None)?;
    let all = functions(&path)?;
    let found = all.iter().find(|(function, _)| place(function) == args.function);
    let Some((_, PortReport { name, .. })) = found else { return Err(unknown(&args.function, &all)) };
    let list = List::Ports;
    made(&args.options, &path, (list, name), None, |cut_off| {
        let values = PortValues(values.iter().cloned().collect());
        Ask::Set { list, name: name.clone(), values, cut_off }
    })
}

/// The words of `ip link set DEV vf N`, each with the key of `[[port]]` that it sets.
const WORDS: [(&str, &str); 11] = [
    ("mac", "mac"),
    ("vlan", "vlan"),
    ("qos", "qos"),
    ("rate", "send_average"),
    ("max_tx_rate", "send_average"),
    ("min-rate", "min_rate"),
    ("min_tx_rate", "min_rate"),
    ("spoofchk", "spoofchk"),
    ("trust", "trust"),
    ("state", "link_state"),
    ("query-rss", "query_rss"),
];

/// The keys of a port for these words and values.
fn values(words: &[String]) -> Result<Vec<(String, Value)>, String> {
    let (pairs, rest) = words.as_chunks::<2>();
    if let [word] = rest {
        return Err(format!("{word} has no value"));
    }
    let other = pairs.iter().find(|[word, value]| word == "proto" && !value.eq_ignore_ascii_case("802.1Q"));
    if let Some([_, value]) = other {
        return Err(format!("proto {value}: the tag of a function's VLAN is 802.1Q's, as the card's own"));
    }
    let set = pairs.iter().filter(|[word, _]| word != "proto");
    set.map(|[word, value]| of_word(&word.replace("query_rss", "query-rss").replace("min_rate", "min-rate"), value))
        .collect()
}

fn of_word(word: &str, value: &str) -> Result<(String, Value), String> {
    let Some((_, key)) = WORDS.iter().find(|(known, _)| *known == word) else {
        let names = WORDS.iter().map(|(known, _)| *known);
        let all = names.clone().collect::<Vec<_>>().join(", ");
        return Err(format!("a function has no {word:?}{} (there are {all})", did_you_mean(word, names)));
    };
    let number = |value: &str| value.parse::<u32>().map_err(|_| format!("{word} {value}: it is no whole number"));
    let value = match (word, value) {
        // A VLAN, a priority and a rate of 0 are none.
        ("vlan" | "qos" | "rate" | "max_tx_rate" | "min-rate" | "min_tx_rate", "0") => Value::Null,
        ("vlan" | "qos", value) => Value::from(number(value)?),
        // iproute2's unit.
        ("rate" | "max_tx_rate" | "min-rate" | "min_tx_rate", value) if value.parse::<u32>().is_ok() => {
            Value::from(format!("{value}Mbit/s"))
        }
        ("spoofchk" | "trust" | "query-rss", value) => match value {
            "on" => Value::Bool(true),
            "off" => Value::Bool(false),
            _ => return Err(format!("{word} {value}: it is on or off")),
        },
        (_, value) => Value::from(value),
    };
    Ok(((*key).to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Vec<(String, Value)>, String> {
        values(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn a_vlan_has_the_tag_that_it_has_anyway_and_no_other() {
        assert_eq!(of("vlan 7 proto 802.1q").unwrap(), [("vlan".to_owned(), json!(7))]);
        assert!(of("vlan 7 proto 802.1ad").unwrap_err().starts_with("proto 802.1ad: the tag of a function's VLAN is"));
    }

    #[test]
    fn the_words_of_ip_link_become_keys_of_the_port() {
        let line =
            "mac 52:54:00:00:00:09 vlan 7 qos 3 rate 100 min-rate 50 spoofchk off trust on state disable query_rss on";
        let wanted = [
            ("mac", json!("52:54:00:00:00:09")),
            ("vlan", json!(7)),
            ("qos", json!(3)),
            ("send_average", json!("100Mbit/s")),
            ("min_rate", json!("50Mbit/s")),
            ("spoofchk", json!(false)),
            ("trust", json!(true)),
            ("link_state", json!("disable")),
            ("query_rss", json!(true)),
        ];
        assert_eq!(of(line), Ok(wanted.map(|(key, value)| (key.to_owned(), value)).to_vec()));
        let none = ["vlan", "send_average", "min_rate"].map(|key| (key.to_owned(), Value::Null)).to_vec();
        assert_eq!(of("vlan 0 rate 0 min_tx_rate 0"), Ok(none));
        assert_eq!(of("rate 2Gbit/s"), Ok(vec![("send_average".to_owned(), json!("2Gbit/s"))]));
    }

    #[test]
    fn what_is_no_word_of_ip_link_is_refused_in_a_sentence() {
        assert!(of("spofchk on").unwrap_err().starts_with("a function has no \"spofchk\"; did you mean \"spoofchk\"?"));
        assert_eq!(of("trust yes"), Err("trust yes: it is on or off".to_owned()));
        assert_eq!(of("vlan x"), Err("vlan x: it is no whole number".to_owned()));
        assert_eq!(of("mac"), Err("mac has no value".to_owned()));
    }
}
