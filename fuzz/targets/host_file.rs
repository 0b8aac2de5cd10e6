//! Host files: arbitrary text.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    use nicety_host::Host;
    let path = "/etc/nicety/host.toml".as_ref();
    let parsed = Host::parse(text, path);
    assert_eq!(
        Host::parse_change(text, path).is_ok(),
        parsed.is_ok(),
        "a change has the same mistakes, by other names"
    );
    match parsed {
        Ok(host) => {
            // Other tests check the text of its error.
            let _control = host.control(None);
            let count = |name: &str| host.ports.iter().filter(|port| port.name == name).count();
            host.ports.iter().for_each(|port| assert_eq!(count(&port.name), 1, "names are unique"));
        }
        Err(errors) => assert!(!errors.to_string().is_empty(), "a mistake is told"),
    }
});
