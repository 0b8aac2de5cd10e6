use crate::tests::parse;

#[test]
fn the_page_is_for_this_machine_alone() {
    let page = |text: &str| parse(&format!("[daemon]\npage = \"{text}\"\n")).map(|host| host.daemon.page.unwrap());
    for (text, shown) in [
        ("127.0.0.1:8642", "http://127.0.0.1:8642/"),
        ("127.9.9.9:1", "http://127.9.9.9:1/"),
        ("[::1]:65535", "http://[::1]:65535/"),
        ("/run/nicety/page.sock", "/run/nicety/page.sock"),
    ] {
        assert_eq!(page(text).unwrap().to_string(), shown);
    }
    for (text, why) in [
        ("0.0.0.0:8642", "0.0.0.0 is not this machine alone: the page asks nobody who they are."),
        ("192.0.2.1:80", "192.0.2.1 is not this machine alone"),
        ("[::]:80", ":: is not this machine alone"),
        ("localhost:8642", "\"localhost:8642\" is no address with a port, and no absolute path"),
        ("127.0.0.1", "\"127.0.0.1\" is no address with a port"),
        ("127.0.0.1:0", "port 0 is none"),
        ("page.sock", "\"page.sock\" is no address with a port, and no absolute path"),
    ] {
        let error = page(text).unwrap_err().list[0].to_string();
        assert!(error.starts_with(&format!("daemon.page: {why}")), "{error}");
    }
    let long = format!("/{}", "x".repeat(200));
    assert!(page(&long).unwrap_err().list[0].to_string().contains("has 201 bytes, and the system's limit is 107"));
    let taken = parse("[daemon]\ncontrol = \"/run/nicety/one.sock\"\npage = \"/run/nicety/one.sock\"\n").unwrap_err();
    assert!(taken.list[0].to_string().starts_with("daemon.page: "), "{taken}");
    assert_eq!(parse("[daemon]\n").unwrap().daemon.page, None, "off by default");
}
