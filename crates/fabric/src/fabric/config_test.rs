use super::*;

fn groups(text: &str) -> Result<Vec<(String, u32)>, String> {
    let config = Config::parse(text.as_bytes())?;
    Ok(config.groups.iter().map(|(name, vni)| (name.to_string(), vni.number())).collect())
}

#[test]
fn a_text_has_groups_and_whatever_else_the_host_file_knows() {
    let text = "format = 1\n[[port_group]]\nname = \"web\"\nvni = 16777215\nvlan = 10\n[[port_group]]\nname = \"db\"\nvni = 1\n[[io_class]]\nname = \"x\"\n";
    assert_eq!(groups(text), Ok(vec![("db".to_owned(), 1), ("web".to_owned(), 0xff_ffff)]));
    assert_eq!(groups("format = 1"), Ok(Vec::new()));
}

#[test]
fn a_text_that_cannot_be_used_is_refused_with_a_reason() {
    let group = |more: &str| format!("format = 1\n[[port_group]]\n{more}\n");
    let all = [
        (String::new(), "format = 1 is missing"),
        ("format = \"1\"".to_owned(), "format must be 1"),
        ("format = 0".to_owned(), "format must be 1"),
        (
            "format = 2".to_owned(),
            "format = 2 is of a newer version of this program, which reads format = 1: upgrade it on this host",
        ),
        ("format = 1\nport_group = 3".to_owned(), "port_group must be a list of tables: [[port_group]]"),
        (group("vni = 1"), "[[port_group]] number 1: its name is missing"),
        (
            group("name = \"a\""),
            "[[port_group]] number 1: the group \"a\" has no vni, which all groups of a fabric need",
        ),
        (
            group("name = \"a\"\nvni = 16777216"),
            "[[port_group]] number 1: the vni 16777216 of the group \"a\" is not a number from 1 to 16777215",
        ),
        (
            group("name = \"a\"\nvni = 0"),
            "[[port_group]] number 1: the vni 0 of the group \"a\" is not a number from 1 to 16777215",
        ),
        (
            group("name = \"a\"\nvni = 5\n[[port_group]]\nname = \"b\"\nvni = 5"),
            "the groups \"a\" and \"b\" have one vni, 5: each needs its own",
        ),
        (
            group("name = \"a\"\nvni = 5\n[[port_group]]\nname = \"a\"\nvni = 6"),
            "there are two groups with the name \"a\"",
        ),
        (
            group("name = \"a/b\"\nvni = 5"),
            "[[port_group]] number 1: the name \"a/b\" has a '/': use letters, digits, '-', '_' and '.'",
        ),
    ];
    for (text, why) in all {
        assert_eq!(groups(&text), Err(why.to_owned()), "{text}");
    }
    assert!(groups("format = ").unwrap_err().starts_with("the text is not TOML: "));
    assert!(Config::parse(b"format = 1 # \xff").unwrap_err().starts_with("the text is not UTF-8: "));
    let long = format!("format = 1\n# {}", "a".repeat(TEXT_MAX));
    assert_eq!(groups(&long).unwrap_err(), format!("the text has {} bytes, at most 262144 are allowed", long.len()));
    let many: String = (0..1025).map(|n| format!("[[port_group]]\nname = \"g{n}\"\nvni = {}\n", n + 1)).collect();
    assert_eq!(groups(&format!("format = 1\n{many}")).unwrap_err(), "it has 1025 groups, at most 1024 are allowed");
}
