use super::*;
use crate::Name;

const TEXT: &str = "format = 1\n[[port_group]]\nname = \"web\"\nvni = 5\n[[port_group]]\nname = \"db\"\nvni = 6\n";

fn keys() -> Keys {
    Keys::new(&Name::new("lab").unwrap())
}

fn entry(key: &str, value: &str, modified: i64) -> Entry {
    let (key, value) = (format!("/nicety/fabrics/lab/{key}").into_bytes(), value.as_bytes().to_vec());
    Entry { key, value, created: 1, modified, lease: 0 }
}

fn basis(freed: &[&str]) -> Result<Basis, String> {
    let freed: Vec<Entry> = freed.iter().map(|value| entry("freed/3", value, 4)).collect();
    Basis::read(&keys(), Some(&entry("config", TEXT, 7)), &freed)
}

#[test]
fn a_change_compares_the_version_that_it_was_made_from_and_notes_what_it_gives_up() {
    let change = basis(&[]).unwrap().change(&TEXT.replace("vni = 5", "vni = 9")).unwrap();
    let transaction = change.transaction(&keys(), 77);
    let config = "/nicety/fabrics/lab/config".to_owned();
    assert_eq!(transaction.compares, [Compare::Modified { key: config.clone(), revision: 7 }]);
    let freed = "/nicety/fabrics/lab/freed/7".to_owned();
    assert_eq!(
        transaction.ops,
        [
            Op::Put { key: config, value: TEXT.replace("vni = 5", "vni = 9"), lease: 0 },
            Op::Put { key: freed, value: "{\"vnis\":[5]}".to_owned(), lease: 77 },
        ]
    );
    // A change that gives nothing up is one key.
    let more = format!("{TEXT}[[port_group]]\nname = \"new\"\nvni = 7\n");
    assert_eq!(basis(&[]).unwrap().change(&more).unwrap().transaction(&keys(), 0).ops.len(), 1);
    // The first version.
    let first = Basis::read(&keys(), None, &[]).unwrap();
    assert_eq!((first.version, first.config.groups.len()), (0, 0));
    assert_eq!(first.change(TEXT).unwrap().transaction(&keys(), 0).compares.len(), 1);
}

#[test]
fn an_identifier_that_hosts_may_still_use_for_another_group_is_not_taken() {
    let refused = |basis: Basis, text: &str| basis.change(text).unwrap_err();
    let swapped = TEXT.replace("vni = 5", "vni = 9").replace("vni = 6", "vni = 5");
    assert_eq!(
        refused(basis(&[]).unwrap(), &swapped),
        "vni 5 of group \"db\" is group \"web\"'s: give it up there in a change of its own first"
    );
    let more = format!("{TEXT}[[port_group]]\nname = \"new\"\nvni = 9\n");
    assert_eq!(
        refused(basis(&["{\"vnis\":[8,9]}"]).unwrap(), &more),
        "vni 9 of group \"new\" was given up a moment ago, and a host that is cut off may still use it for the group of before: \
         take another one, or try again in 30s"
    );
    assert!(basis(&["{\"vnis\":[8]}"]).unwrap().change(&more).is_ok());
    assert_eq!(refused(basis(&[]).unwrap(), "format = 2"), Config::parse(b"format = 2").unwrap_err());
}

#[test]
fn values_that_somebody_has_damaged_are_refused_with_their_keys() {
    let why = Basis::read(&keys(), Some(&entry("config", "format = 2", 9)), &[]).unwrap_err();
    assert_eq!(
        why,
        "version 9 of the configuration (/nicety/fabrics/lab/config) cannot be read: format = 2 is of a newer version of this program, \
         which reads format = 1: upgrade it on this host"
    );
    assert_eq!(
        basis(&["[]", "5"]).unwrap_err(),
        "the key /nicety/fabrics/lab/freed/3 has a value that is no list of identifiers: []; delete the key if no group was removed \
         within the last 20 s"
    );
}
