//! The page in a browser: by its keyboard, by the tree that a screen reader reads, without script, on a telephone, light and dark. Its
//! numbers and names are those of `nicety ports --json`, and its console stays empty.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use nicety_guests::Tool;

use super::browser::Browser;
use super::page::with_page;
use super::*;

/// What a screen reader says of an element.
#[derive(Debug)]
struct Heard {
    role: String,
    name: String,
    is_focusable: bool,
    /// The elements around it, as places in the list.
    inside: Vec<usize>,
}

/// The page as a screen reader has it.
fn heard(browser: &mut Browser) -> Vec<Heard> {
    let tree = browser.call("Accessibility.getFullAXTree", json!({}))["nodes"].clone();
    let nodes = tree.as_array().unwrap();
    let places: BTreeMap<&str, usize> =
        nodes.iter().zip(0..).map(|(node, place)| (node["nodeId"].as_str().unwrap(), place)).collect();
    let parent = |place: &usize| nodes[*place]["parentId"].as_str().and_then(|id| places.get(id).copied());
    let each = nodes.iter().enumerate().filter(|(_, node)| node["ignored"] != true).map(|(place, node)| {
        let mut properties = node["properties"].as_array().into_iter().flatten();
        let is_focusable = properties.any(|one| one["name"] == "focusable" && one["value"]["value"] == true);
        let text = |key: &str| node[key]["value"].as_str().unwrap_or_default().to_owned();
        let inside = std::iter::successors(parent(&place), parent).collect();
        (place, Heard { role: text("role"), name: text("name"), is_focusable, inside })
    });
    let (kept, mut all): (Vec<usize>, Vec<Heard>) = each.unzip();
    for one in &mut all {
        one.inside = one.inside.iter().filter_map(|place| kept.binary_search(place).ok()).collect();
    }
    all
}

/// The names of the elements of a role inside of the one with this role and name.
fn names<'a>(all: &'a [Heard], [role, name]: [&str; 2], of: &str) -> Vec<&'a str> {
    let around: Vec<usize> =
        (0..all.len()).filter(|place| all[*place].role == role && all[*place].name == name).collect();
    assert_eq!(around.len(), 1, "one {role} with the name {name}: {all:#?}");
    let found = all.iter().filter(|one| one.role == of && one.inside.contains(&around[0]));
    found.map(|one| one.name.as_str()).collect()
}

/// Everything that can be chosen or is a picture, table or landmark says what it is.
fn all_is_named(all: &[Heard]) {
    const NAMED: [&str; 9] =
        ["image", "table", "button", "link", "group", "region", "navigation", "heading", "rowheader"];
    // The main part has the focus only after the link that skips the bar.
    let must = |one: &&Heard| (one.is_focusable && one.role != "main") || NAMED.contains(&one.role.as_str());
    let nameless: Vec<&Heard> = all.iter().filter(must).filter(|one| one.name.trim().is_empty()).collect();
    assert!(nameless.is_empty(), "{nameless:#?}");
    for role in ["main", "banner"] {
        assert_eq!(all.iter().filter(|one| one.role == role).count(), 1, "one {role}");
    }
}

/// All that the keyboard must reach, in the order of the document.
const REACHED: &str = "[...document.querySelectorAll('a[href], button, input:not([type=hidden]), summary, [tabindex=\"0\"]')].filter((at) => at.checkVisibility())";

/// Goes through the page by the tabulator key alone. On its way it pauses the page by the space bar.
fn goes_by_keyboard(browser: &mut Browser) {
    let all = browser.value(&format!("{REACHED}.length")).as_u64().unwrap();
    for place in 0..all {
        browser.press("Tab", "Tab", 9);
        let focus = browser.value(&format!(
            "(() => {{ const at = document.activeElement, style = getComputedStyle(at), box = at.getBoundingClientRect(); \
             return {{ place: {REACHED}.indexOf(at), name: at.ariaLabel ?? at.textContent, \
             shown: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1, \
             seen: box.bottom > 0 && box.right > 0 && box.top < innerHeight && box.left < innerWidth }}; }})()"
        ));
        assert_eq!(focus["place"], place, "{focus}");
        assert!(focus["shown"] == true && focus["seen"] == true, "{focus}");
        if focus["name"] == "Pause" {
            browser.press(" ", "Space", 32);
            browser.until("document.getElementById('status').textContent === 'Paused.'");
        }
    }
    assert_eq!(browser.value("document.getElementById('pause').ariaPressed"), "true", "the space bar has paused it");
    browser.value("document.getElementById('pause').click()");
}

/// Only one element speaks by itself, and says nothing while the page is read again and again.
fn says_nothing_by_itself(browser: &mut Browser) {
    let live = "[...document.querySelectorAll('[aria-live], [role=status], [role=alert], [role=log], output')].map((at) => at.id)";
    assert_eq!(browser.value(live), json!(["status"]));
    browser.until("document.getElementById('status').textContent.startsWith('Live')");
    browser.value(
        "window.said = 0; new MutationObserver(() => window.said++).observe(document.getElementById('status'), \
         { childList: true, characterData: true, subtree: true }); window.first = document.getElementById('made').textContent",
    );
    for _ in 0..2 {
        browser.until("document.getElementById('made').textContent !== window.first");
        browser.value("window.first = document.getElementById('made').textContent");
    }
    assert_eq!(browser.value("window.said"), 0);
}

/// Texts with a contrast of less than 4.5 to 1 to what is behind them, and lines with less than 3 (WCAG 2.2, 1.4.3 and 1.4.11).
const FAINT: &str = "(() => {
    const light = (color) => { const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255)
        .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const behind = (at) => { const color = getComputedStyle(at).backgroundColor;
        return color === 'rgba(0, 0, 0, 0)' && at.parentElement ? behind(at.parentElement) : color; };
    const ratio = (color, at) => { const [dark, bright] = [light(color), light(behind(at))].sort((one, other) => one - other);
        return (bright + 0.05) / (dark + 0.05); };
    const faint = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const at = texts.currentNode.parentElement, style = getComputedStyle(at);
        if (!texts.currentNode.data.trim() || at.nodeName === 'title' || !at.checkVisibility()) continue;
        const found = ratio(at.closest('svg') ? style.fill : style.color, at);
        if (found < 4.5) faint.push(`${found.toFixed(2)}: ${texts.currentNode.data}`);
    }
    for (const path of document.querySelectorAll('svg path, svg .level')) {
        const found = ratio(getComputedStyle(path).stroke, path);
        if (found < 3) faint.push(`${found.toFixed(2)}: a line`);
    }
    return faint;
})()";

/// On a telephone nothing is wider than the screen, and in light and dark all can be read.
fn is_readable(browser: &mut Browser) {
    let telephone = json!({ "width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": true });
    browser.call("Emulation.setDeviceMetricsOverride", telephone);
    let wide = "[...document.querySelectorAll('main *')].filter((at) => at.getBoundingClientRect().right > 390.5 && !at.closest('.scroll *, svg')) \
                .map((at) => at.outerHTML.slice(0, 200))";
    assert_eq!(browser.value(wide), json!([]));
    assert_eq!(browser.value("document.documentElement.scrollWidth"), 390);
    let rates = "[...document.querySelectorAll('td.rate')].map((at) => at.getBoundingClientRect()).filter((box) => box.width === 0 || box.right > 390)";
    assert_eq!(browser.value(rates), json!([]), "rates stand beside the names");
    for scheme in ["light", "dark"] {
        let feature = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        browser.call("Emulation.setEmulatedMedia", json!({ "features": feature }));
        assert_eq!(browser.value(FAINT), json!([]), "{scheme}");
    }
    browser.call("Emulation.clearDeviceMetricsOverride", json!({}));
}

/// The exact numbers behind a mark of the page, up to the end of that row.
fn numbers(page: &str, mark: &str) -> Vec<u64> {
    let row = page
        .split_once(mark)
        .and_then(|(_, rest)| rest.split_once("</tr>"))
        .unwrap_or_else(|| panic!("{mark}: {page}"));
    let values = row.0.split("data-value=\"").skip(1).filter_map(|rest| rest.split('"').next());
    values.map(|value| value.parse().unwrap()).collect()
}

/// Frames sent and got, and dropped frames of a port in the JSON of `nicety ports`.
fn counted(port: &Value) -> Vec<u64> {
    let sum = |way: &str| port[way].as_array().unwrap().iter().map(|queue| queue["frames"].as_u64().unwrap()).sum();
    let drops = ["transmit_drops", "receive_drops"].map(|way| port[way].as_object().unwrap().values());
    vec![sum("transmit"), sum("receive"), drops.into_iter().flatten().map(|count| count.as_u64().unwrap()).sum()]
}

/// The page of the host shows these ports.
fn shows(page: &str, ports: &Value) {
    for port in ports.as_array().unwrap() {
        let name = port["name"].as_str().unwrap();
        assert_eq!(numbers(page, &format!("<tr data-key=\"{name}\">")), counted(port), "{name}");
    }
}

const WHOLE: &str = "document.documentElement.outerHTML";

/// Seconds since 1970 before the page is asked for, those at which it says that it was made, and its text: without script.
fn without_script(browser: &mut Browser, url: &str) -> (u64, u64, String) {
    let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    browser.call("Emulation.setScriptExecutionDisabled", json!({ "value": true }));
    browser.go(url);
    let made = browser.value("Date.parse(document.querySelector('#made time').dateTime) / 1000").as_u64().unwrap();
    let text = browser.value(WHOLE).as_str().unwrap().to_owned();
    browser.call("Emulation.setScriptExecutionDisabled", json!({ "value": false }));
    (begun, made, text)
}

/// The names in the table of ports.
const ROWS: &str = "[...document.querySelectorAll('table[aria-label=Ports] tbody th')].map((at) => at.textContent)";

/// Filters and sorts by keyboard, and without script by the form alone. The address has the choice.
fn chooses(browser: &mut Browser, url: &str) {
    browser.value("document.getElementById('filter').focus()");
    browser.call("Input.insertText", json!({ "text": "vm2" }));
    browser.until(&format!("{ROWS}.join() === 'vm2' && location.search === '?q=vm2'"));
    assert_eq!(browser.value("document.activeElement.id + document.activeElement.value"), "filtervm2");
    browser.go(url);
    for (order, way) in [("vm1,vm2", "ascending"), ("vm2,vm1", "descending")] {
        browser.value("document.querySelector('th a[href*=\"sort=\"][href*=\"name\"]').focus()");
        browser.press("Enter", "Enter", 13);
        let sorted = format!("document.querySelector('th[aria-sort={way}]')?.textContent.startsWith('name')");
        browser.until(&format!("{ROWS}.join() === '{order}' && location.search.includes('name') && {sorted}"));
        assert_eq!(browser.value("document.activeElement.textContent.startsWith('name')"), true);
    }
    browser.value("history.back()");
    browser.until(&format!("{ROWS}.join() === 'vm1,vm2'"));
    assert_eq!(browser.console(), Vec::<&Value>::new());
    browser.call("Emulation.setScriptExecutionDisabled", json!({ "value": true }));
    browser.go(url);
    browser.value("document.getElementById('filter').value = 'vm2'");
    browser.go_by("document.querySelector('.filter button').click()");
    assert_eq!(browser.value(ROWS), json!(["vm2"]));
    assert_eq!(browser.console(), Vec::<&Value>::new());
    browser.call("Emulation.setScriptExecutionDisabled", json!({ "value": false }));
}

/// The page of the host, and the first port's own.
fn pages(address: SocketAddr) -> [String; 2] {
    ["", "ports/vm1"].map(|path| format!("http://{address}/{path}"))
}

/// Two guests and an uplink, with the page in a browser; `None`, and a line that says so, if Chromium cannot be laid.
fn opened(test: &str) -> Option<(Kept, SocketAddr, Browser)> {
    let chromium = match Tool::chromium(&mut |_| {}) {
        Ok(chromium) => chromium,
        Err(error) => {
            // Writes past the harness, which captures the output of tests that pass.
            let _stdout_closed = writeln!(std::io::stdout(), "\nSKIPPED browsed::{test}: it cannot be laid: {error}");
            return None;
        }
    };
    let adapters = ["e1000", "vmxnet3"];
    let mut host = "[[port_group]]\nname = \"web\"\nvlan = 10\n\n[[port_group]]\nname = \"early\"\n".to_owned();
    for (adapter, number) in adapters.iter().zip(1..) {
        host += &format!(
            "\n[[port]]\nname = \"vm{number}\"\nadapter = \"{adapter}\"\nmac = \"52:54:00:12:34:{number:02x}\"\n\
             socket = \"vm{number}.sock\"\nport_group = \"web\"\n"
        );
    }
    host += "\n[[uplink]]\nkind = \"pair\"\nname = \"up\"\nsocket = \"up.sock\"\nrate = \"10Gbit/s\"\n";
    let (mut kept, address) = Kept::start_at_port(|address| format!("{}{host}", with_page(address)));
    kept.attach(&adapters);
    kept.answers("before");
    let browser = Browser::start(&chromium, &kept.path("browser"));
    Some((kept, address, browser))
}

#[test]
fn a_browser_shows_the_numbers_of_the_api_with_script_and_without_and_its_console_stays_empty() {
    let test = "a_browser_shows_the_numbers_of_the_api_with_script_and_without_and_its_console_stays_empty";
    let Some((kept, address, mut browser)) = opened(test) else { return };
    let [whole, own] = pages(address);
    let end = Instant::now() + 3 * SOON;
    loop {
        let before = kept.json(&["ports", "--json"])["ports"].clone();
        let mut texts = Vec::new();
        for url in [&whole, &own] {
            browser.go(url);
            browser.until("document.getElementById('status').textContent === 'Live: read again each second.'");
            texts.push(browser.value(WHOLE).as_str().unwrap().to_owned());
            assert_eq!(browser.console(), Vec::<&Value>::new());
        }
        let (begun, made, still) = without_script(&mut browser, &whole);
        if kept.json(&["ports", "--json"])["ports"] != before {
            // A guest has sent something meanwhile.
            assert!(Instant::now() < end, "the guests do not come to rest");
            continue;
        }
        let (page, own) = (&texts[0], &texts[1]);
        shows(page, &before);
        shows(&still, &before);
        assert!(still.contains(">A still: <a href=\"\">reload</a> for newer numbers"), "{still}");
        assert!(still.contains("hidden=\"\" aria-pressed=\"false\">Pause"), "{still}");
        // The page of a moment ago may be given again.
        assert!(begun <= made + 1, "made at {made}, asked for at {begun}");
        let vm1 = before.as_array().unwrap().iter().find(|port| port["name"] == "vm1").unwrap();
        assert!(counted(vm1)[0] > 0, "{vm1}");
        for (way, key) in [("sends", "transmit"), ("gets", "receive")] {
            for queue in vm1[key].as_array().unwrap() {
                let mark = format!("<tr data-key=\"{way} {}\">", queue["queue"]);
                let of = ["packets", "frames", "bytes"].map(|of| queue[of].as_u64().unwrap());
                assert_eq!(numbers(own, &mark), of, "{mark}");
            }
        }
        assert!(page.contains("VLAN 10") && page.contains("all sockets are ready"), "{page}");
        return;
    }
}

#[test]
fn the_page_can_be_read_by_keyboard_by_a_screen_reader_on_a_telephone_and_in_the_dark() {
    let test = "the_page_can_be_read_by_keyboard_by_a_screen_reader_on_a_telephone_and_in_the_dark";
    let Some((kept, address, mut browser)) = opened(test) else { return };
    for url in pages(address) {
        browser.go(&url);
        says_nothing_by_itself(&mut browser);
        let all = heard(&mut browser);
        all_is_named(&all);
        let charts = all.iter().filter(|one| one.role == "image" && one.name.contains(" over the last five minutes: "));
        assert_eq!(charts.count(), 1, "of the uplink, or of the port itself: {all:#?}");
        goes_by_keyboard(&mut browser);
        is_readable(&mut browser);
    }
    let [whole, _] = pages(address);
    browser.go(&whole);
    chooses(&mut browser, &whole);
    browser.go(&whole);
    let ports = kept.json(&["ports", "--json"])["ports"].clone();
    let named = |is_guest: bool| -> Vec<&str> {
        let of = ports.as_array().unwrap().iter().filter(|port| port["adapter"].is_string() == is_guest);
        of.map(|port| port["name"].as_str().unwrap()).collect()
    };
    let all = heard(&mut browser);
    for (table, group, is_guest) in
        [("Ports", "Ports by group", true), ("Uplinks and teams", "Uplinks and teams", false)]
    {
        assert_eq!(names(&all, ["table", table], "rowheader"), named(is_guest));
        assert_eq!(names(&all, ["group", group], "link"), named(is_guest), "in the picture");
    }
    // A port that comes in front of others takes nobody's focus.
    let focus = "document.activeElement.textContent";
    browser.value("document.querySelector('.guests [data-key=vm2] a').focus()");
    assert_eq!(browser.value(focus), "vm2");
    let socket = format!("socket={}", kept.path("vm0.sock").display());
    let port = ["port", "add", "vm0", "adapter=e1000", "mac=52:54:00:12:34:10", socket.as_str(), "port_group=early"];
    assert!(kept.asked(&port).status.success());
    browser.until("document.querySelector('.guests .box').textContent.includes('vm0')");
    assert_eq!(browser.value(focus), "vm2");
    assert!(kept.asked(&["port", "remove", "vm0"]).status.success());
    browser.until("!document.querySelector('.guests').textContent.includes('vm0')");
    assert_eq!(browser.value(focus), "vm2");
    assert_eq!(browser.console(), Vec::<&Value>::new());
}
