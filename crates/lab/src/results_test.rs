//! Tests of the format of `results.json`.

use serde_json::{Value, json};

use super::*;

#[test]
fn what_is_written_is_what_is_read() {
    for results in [sample::two_servers(), sample::embedded(), sample::quick(), sample::user_space()] {
        let text = results.to_json().unwrap();
        assert_eq!(Results::from_json(&text).unwrap(), results);
    }
}

#[test]
fn the_file_has_the_members_that_its_document_names() {
    let text = sample::two_servers().to_json().unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    assert!(text.starts_with("{\n  \"format\": \"nicety-results\",\n  \"version\": 2,"));
    let document = include_str!("../../../docs/results-format.md");
    let mut named = 0;
    let runs = file["runs"].as_array().unwrap();
    let answered = runs.iter().find(|run| run["latency"].is_array()).unwrap();
    for object in [
        &file,
        &file["host"],
        &file["method"],
        &runs[0],
        &runs[0]["series"],
        &answered["latency"][0],
        &file["rows"][0],
        &file["rows"][0]["counts"],
    ] {
        for member in object.as_object().unwrap().keys() {
            assert!(document.contains(&format!("`{member}`")), "{member} is not documented");
            named += 1;
        }
    }
    assert!(named > 45, "{named} members");
    for test in Test::ALL {
        let name = serde_json::to_value(test).unwrap();
        let name = name.as_str().unwrap();
        assert_eq!(name, test.name());
        assert!(document.contains(&format!("`{name}` | {}", test.unit())), "{name} is not documented with its unit");
    }
    let row = &file["rows"][0];
    assert_eq!(row["test"], "bulk-transmit");
    assert_eq!(
        (&row["server"], &row["direction"], &row["unit"]),
        (&json!("nicety"), &json!("higher"), &json!("Mbit/s"))
    );
    assert_eq!(row["samples"].as_array().unwrap().len(), 7);
    assert_eq!(row["interval"]["coverage"], json!(0.984375));
}

#[test]
fn fewer_than_seven_runs_leave_the_interval_null() {
    let file: Value = serde_json::from_str(&sample::quick().to_json().unwrap()).unwrap();
    assert_eq!(file["rows"][0]["interval"], Value::Null);
    assert!(file["rows"][0]["median"].is_number());
}

fn changed(change: impl FnOnce(&mut Value)) -> ResultsError {
    let mut file = serde_json::to_value(sample::embedded()).unwrap();
    change(&mut file);
    Results::from_json(&file.to_string()).unwrap_err()
}

#[test]
fn an_unknown_version_is_refused_by_its_number_whatever_else_is_in_the_file() {
    let error = Results::from_json(r#"{"format": "nicety-results", "version": 3, "tables": []}"#).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the results are of format version 3, and this nicety reads versions 1 to 2: read them with the nicety that wrote them, or measure again"
    );
}

#[test]
fn results_of_version_1_are_read_and_what_they_lack_is_absent() {
    let mut file = serde_json::to_value(sample::two_servers()).unwrap();
    file["version"] = json!(1);
    for run in file["runs"].as_array_mut().unwrap() {
        for member in ["series", "latency"] {
            run.as_object_mut().unwrap().remove(member).unwrap();
        }
    }
    for member in ["memory_bytes", "hypervisor", "governor"] {
        file["host"].as_object_mut().unwrap().remove(member).unwrap();
    }
    let old = Results::from_json(&file.to_string()).unwrap();
    assert_eq!(old.rows, sample::two_servers().rows);
    assert!(old.runs.iter().all(|run| run.series.is_none() && run.latency.is_none()));
    assert_eq!((&old.host.governor, old.host.memory_bytes), (&None, None));
    assert_eq!(Results::from_json(&old.to_json().unwrap()).unwrap(), old, "it is written as of today's version");
}

#[test]
fn the_driver_of_a_row_is_written_and_a_file_from_before_it_was_is_read() {
    let mut file = serde_json::to_value(sample::user_space()).unwrap();
    let rows = file["rows"].as_array_mut().unwrap();
    for row in rows {
        let driver = row.as_object_mut().unwrap().remove("driver").unwrap();
        let ours = row["adapter"] == "vmxnet" && row["server"] == "nicety";
        assert_eq!(driver, if ours { json!("user-space") } else { Value::Null }, "{row}");
    }
    let old = Results::from_json(&file.to_string()).unwrap();
    assert!(old.rows.iter().all(|row| row.driver.is_none()));
    let error = changed(|file| file["rows"][0]["driver"] = json!("by hand"));
    assert!(matches!(error, ResultsError::Malformed(_)), "{error}");
    let document = include_str!("../../../docs/results-format.md");
    assert!(document.contains(&format!("`\"{}\"`", Driver::UserSpace.name())));
    assert_eq!(json!(Driver::UserSpace), json!(Driver::UserSpace.name()));
}

#[test]
fn a_series_or_latencies_that_cannot_be_drawn_are_refused() {
    for (member, wrong) in [
        ("series", json!({"until_seconds": [0.2, 0.1], "values": [1.0, 1.0]})),
        ("series", json!({"until_seconds": [0.1], "values": []})),
        ("latency", json!([{"percent": 50.0, "us": 2.0}, {"percent": 99.0, "us": 1.0}])),
        ("latency", json!([{"percent": 101.0, "us": 2.0}])),
    ] {
        let error = changed(|file| file["runs"][0][member] = wrong.clone());
        assert!(matches!(error, ResultsError::Contradiction(_)), "{wrong}: {error}");
    }
}

#[test]
fn what_is_not_ours_is_refused_with_the_reason() {
    for text in [
        "",
        "{",
        "[]",
        "{}",
        "null",
        r#"{"format": "nicety-results"}"#,
        r#"{"format": "nicety-results", "version": 1}"#,
    ] {
        assert!(matches!(Results::from_json(text), Err(ResultsError::Malformed(_))), "{text:?}");
    }
    let error = Results::from_json(r#"{"format": "other", "version": 1}"#).unwrap_err();
    assert!(error.to_string().contains("the format is \"other\""), "{error}");
}

#[test]
fn rows_that_contradict_themselves_are_refused() {
    let twice = changed(|file| {
        let row = file["rows"][0].clone();
        file["rows"].as_array_mut().unwrap().push(row);
    });
    assert_eq!(twice.to_string(), "the results contradict themselves: e1000 × Bulk transmit × nicety has two rows");
    assert!(matches!(changed(|file| file["rows"][0]["unit"] = json!("kbit/s")), ResultsError::Contradiction(_)));
    assert!(matches!(changed(|file| file["rows"][0]["samples"] = json!([])), ResultsError::Contradiction(_)));
    assert!(matches!(changed(|file| file["rows"][0]["samples"][0]["value"] = Value::Null), ResultsError::Malformed(_)));
}

#[test]
fn a_ratio_of_few_rounds_is_that_of_the_medians_and_of_seven_that_of_the_rounds() {
    let row = |server, values: &[f64]| {
        let samples = values.iter().zip(0..).map(|(&value, round)| Sample { round, value }).collect();
        Row::new("e1000", Test::BulkTransmit, server, samples, None)
    };
    // The rounds' own ratios are 1/3, 2/1 and 3/2: their median says the opposite of the medians.
    let (ours, theirs) = (row(Server::Nicety, &[1.0, 2.0, 3.0]), row(Server::Qemu, &[3.0, 1.0, 2.0]));
    let few = ours.ratio_to(&theirs).unwrap();
    assert_eq!((few.median, few.interval, few.samples), (1.0, None, 3));
    let seven = |start: f64| (0..7).map(|round| start + f64::from(round)).collect::<Vec<_>>();
    let doubled: Vec<f64> = seven(1.0).iter().map(|value| value * 2.0).collect();
    let many = row(Server::Nicety, &doubled).ratio_to(&row(Server::Qemu, &seven(1.0))).unwrap();
    assert!(many.median == 2.0 && many.interval.is_some());
    assert_eq!(ours.ratio_to(&row(Server::Qemu, &[])), None);
}

fn golden(name: &str) -> std::path::PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "golden", name].iter().collect()
}

/// Only `NICETY_GOLDEN=write` makes the file of a new version.
#[test]
fn results_of_each_released_version_are_read_and_keep_every_member() {
    let path = golden(&format!("results-v{VERSION}.json"));
    if !path.exists() && std::env::var_os("NICETY_GOLDEN").is_some_and(|what| what == "write") {
        std::fs::create_dir_all(golden("")).unwrap();
        let mut results = sample::user_space();
        let mut has = (false, false);
        for run in &mut results.runs {
            // One of each is enough.
            run.series = run.series.take().filter(|_| !std::mem::replace(&mut has.0, true));
            run.latency = run.latency.take().filter(|_| !std::mem::replace(&mut has.1, true));
        }
        std::fs::write(&path, results.to_json().unwrap()).unwrap();
    }
    // No release has written version 1.
    for version in 2..=VERSION {
        let text = std::fs::read_to_string(golden(&format!("results-v{version}.json"))).unwrap();
        let results = Results::from_json(&text).unwrap();
        let (there, here): (Value, Value) =
            (serde_json::from_str(&text).unwrap(), serde_json::to_value(&results).unwrap());
        assert_eq!(lost(&there, &here, "results"), Vec::<String>::new(), "version {version}");
        assert!(
            results.runs.iter().any(|run| run.series.is_some()) && results.runs.iter().any(|run| run.latency.is_some())
        );
        assert!(
            results.rows.iter().any(|row| row.driver.is_some())
                && results.rows.iter().any(|row| row.interval.is_some())
        );
    }
}

/// Members of `there` that `here` lacks, or has with another value, but for the version. `here` may have more.
pub(crate) fn lost(there: &Value, here: &Value, path: &str) -> Vec<String> {
    match (there, here) {
        (Value::Object(there), Value::Object(here)) => {
            let members = there.iter().filter(|(name, _)| *name != "version");
            let of = |(name, value)| lost(value, here.get(name).unwrap_or(&Value::Null), &format!("{path}.{name}"));
            members.flat_map(of).collect()
        }
        (Value::Array(there), Value::Array(here)) if there.len() == here.len() => {
            let pairs = there.iter().zip(here).enumerate();
            pairs.flat_map(|(at, (there, here))| lost(there, here, &format!("{path}[{at}]"))).collect()
        }
        _ if there == here => Vec::new(),
        _ => vec![format!("{path}: {there}, now {here}")],
    }
}
