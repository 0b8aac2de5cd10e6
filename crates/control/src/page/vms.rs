//! The VMs that are copied to twins on other hosts: where each runs, whether it is protected, and why not.

use std::fmt::Write as _;

use nicety_chart::Escaped;
use nicety_daemon::protection::{VmReport, VmRole};

use super::describe::{TABLE_END, begin_table, number};

/// A VM's place, a sign that needs no colour, and the class of its colour: that of a port which is up or broken.
fn state(vm: &VmReport) -> (&'static str, &'static str, &'static str) {
    match vm.role {
        VmRole::Owner if vm.protected => ("runs here, protected", "●", "up"),
        VmRole::Owner => ("runs here, not protected", "▲", "broken"),
        VmRole::Twin => ("its copy is here", "◐", ""),
        VmRole::Absent => ("not here", "○", ""),
    }
}

/// The VMs that run here and would end with this host.
pub(super) fn unprotected(vms: &[VmReport]) -> impl Iterator<Item = &VmReport> {
    vms.iter().filter(|vm| vm.role == VmRole::Owner && !vm.protected)
}

/// One of them among what needs attention.
pub(super) fn attention(main: &mut String, vm: &VmReport) {
    let (name, why) = (Escaped(&vm.name), Escaped(vm.why_not.as_deref().unwrap_or(&vm.state)));
    let _ = write!(main, "<li data-key=\"vm {name}\">VM <bdi>{name}</bdi> is not protected: {why}</li>");
}

/// The table, if there are any.
pub(super) fn table(main: &mut String, vms: &[VmReport]) {
    begin_table(main, "Protected VMs");
    main.push_str(
        "<th scope=\"col\">name</th><th scope=\"col\" class=\"state\">where</th><th scope=\"col\">state</th>\
         <th scope=\"col\">why it is not protected</th><th scope=\"col\" class=\"wide\">other host</th>\
         <th scope=\"col\" class=\"n wide\">epoch</th><th scope=\"col\" class=\"n wide\">behind</th>\
         <th scope=\"col\" class=\"n\">stands still, ms</th><th scope=\"col\" class=\"n wide\">at most</th>\
         <th scope=\"col\" class=\"n wide\">gate, packets</th><th scope=\"col\" class=\"n wide\">bytes</th>\
         <th scope=\"col\" class=\"n\">takeovers</th><th scope=\"col\" class=\"n wide\">the last, ms</th></tr></thead><tbody>",
    );
    for vm in vms {
        let (place, sign, class) = state(vm);
        let _ = write!(
            main,
            "<tr data-key=\"{0}\"><th scope=\"row\"><bdi>{0}</bdi></th><td class=\"state {class}\"><span aria-hidden=\"true\">{sign}</span> \
             <span>{place}</span></td><td>{1}</td><td class=\"words\">{2}</td><td class=\"wide\">{3}</td>",
            Escaped(&vm.name),
            Escaped(&vm.state),
            Escaped(vm.why_not.as_deref().unwrap_or("–")),
            Escaped(&vm.peer),
        );
        number(main, "wide", vm.epoch);
        number(main, "wide", vm.lag_epochs);
        milliseconds(main, "", vm.stop_median_microseconds);
        milliseconds(main, "wide", vm.stop_most_microseconds);
        number(main, "wide", vm.gate_packets);
        number(main, "wide", vm.gate_bytes);
        number(main, "", vm.takeovers);
        milliseconds(main, "wide", vm.takeover_microseconds);
        main.push_str("</tr>");
    }
    main.push_str(TABLE_END);
}

/// A cell with a time that may not have been measured yet.
fn milliseconds(main: &mut String, class: &str, microseconds: Option<u64>) {
    let words = microseconds.map_or_else(|| "–".to_owned(), |time| format!("{}.{}", time / 1000, time % 1000 / 100));
    let _ = write!(main, "<td class=\"n {class}\">{words}</td>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_says_where_it_is_and_why_it_is_not_protected() {
        let protected = VmReport {
            name: "web".to_owned(),
            role: VmRole::Owner,
            protected: true,
            state: "protected".to_owned(),
            peer: "host2:7001".to_owned(),
            epoch: 1234,
            stop_median_microseconds: Some(5_649),
            stop_most_microseconds: Some(18_700),
            gate_bytes: 4500,
            takeovers: 1,
            takeover_microseconds: Some(1_250_000),
            ..VmReport::default()
        };
        let alone = VmReport {
            name: "<b>".to_owned(),
            role: VmRole::Owner,
            state: "alone".to_owned(),
            why_not: Some("the <host> is silent".to_owned()),
            ..VmReport::default()
        };
        let twin = VmReport { name: "db".to_owned(), role: VmRole::Twin, state: "heir".to_owned(), ..alone.clone() };
        let vms = [protected, alone, twin];
        let mut page = String::new();
        table(&mut page, &vms);
        let row = |name: &str| {
            let (_, row) = page.split_once(&format!("<tr data-key=\"{name}\">")).unwrap_or_else(|| panic!("{page}"));
            row.split("</tr>").next().unwrap().replace("<td class=\"n wide\"", "<td").replace("<td class=\"n \"", "<td")
        };
        let web = row("web");
        assert!(web.contains("runs here, protected") && web.contains("<td>protected</td>"), "{web}");
        assert!(web.contains("<td data-value=\"1234\">1,234</td>") && web.contains("host2:7001"), "{web}");
        assert!(web.contains("<td>5.6</td><td>18.7</td>") && web.contains("<td>1250.0</td>"), "{web}");
        let odd = row("&lt;b&gt;");
        assert!(odd.contains("runs here, not protected") && odd.contains("the &lt;host&gt; is silent"), "{odd}");
        assert!(odd.contains("<td>–</td><td>–</td>"), "no copy was timed: {odd}");
        assert!(row("db").contains("its copy is here"), "{page}");
        let unprotected: Vec<&str> = unprotected(&vms).map(|vm| vm.name.as_str()).collect();
        assert_eq!(unprotected, ["<b>"], "a twin needs no protection");
        let mut list = String::new();
        attention(&mut list, &vms[1]);
        let expected =
            "<li data-key=\"vm &lt;b&gt;\">VM <bdi>&lt;b&gt;</bdi> is not protected: the &lt;host&gt; is silent</li>";
        assert_eq!(list, expected);
    }
}
