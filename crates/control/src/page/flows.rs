//! The exports of flows: what each counts, and whether its collector gets it.

use std::fmt::Write as _;

use nicety_chart::Escaped;
use nicety_daemon::flows::FlowExportReport;

use super::describe::{TABLE_END, begin_table, number};

/// The table, if there are any.
pub(super) fn table(main: &mut String, exports: &[FlowExportReport]) {
    begin_table(main, "Exports of flows");
    main.push_str(
        "<th scope=\"col\">name</th><th scope=\"col\" class=\"state\">state</th><th scope=\"col\">collector</th>\
         <th scope=\"col\" class=\"wide\">of</th><th scope=\"col\" class=\"n wide\">one frame in</th>\
         <th scope=\"col\" class=\"n\">records</th><th scope=\"col\" class=\"n\">lost</th>\
         <th scope=\"col\" class=\"wide\">lost of</th>\
         <th scope=\"col\" class=\"n wide\">displaced</th><th scope=\"col\" class=\"n wide\">templates sent</th>\
         </tr></thead><tbody>",
    );
    for export in exports {
        let (sign, class) = if export.away.is_none() { ("●", "up") } else { ("▲", "broken") };
        let _ = write!(
            main,
            "<tr data-key=\"{0}\"><th scope=\"row\"><bdi>{0}</bdi></th><td class=\"state {class}\"><span aria-hidden=\"true\">{sign}</span> \
             <span>{1}</span></td><td>{2}</td><td class=\"words wide\">{3}</td>",
            Escaped(&export.name),
            Escaped(&export.state()),
            Escaped(&export.collector),
            Escaped(&export.ports()),
        );
        number(main, "wide", export.sampling.into());
        number(main, "", export.records);
        number(main, if export.lost > 0 { "drop" } else { "" }, export.lost);
        let _ = write!(main, "<td class=\"words wide\">{}</td>", Escaped(&export.losers()));
        number(main, "wide", export.displaced);
        number(main, "wide", export.templates);
        main.push_str("</tr>");
    }
    main.push_str(TABLE_END);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn export(lost_by_port: &[(&str, u64)]) -> FlowExportReport {
        FlowExportReport {
            name: "noc".to_owned(),
            collector: "udp:10.0.0.9:4739".to_owned(),
            of: None,
            sampling: 1,
            records: 40,
            templates: 2,
            lost: lost_by_port.iter().map(|(_, lost)| lost).sum(),
            lost_by_port: lost_by_port
                .iter()
                .map(|(port, lost)| ((*port).to_owned(), *lost))
                .collect::<BTreeMap<_, _>>(),
            displaced: 3,
            away: None,
        }
    }

    /// The text of the cells below this heading.
    fn cells(page: &str, heading: &str) -> Vec<String> {
        let texts = |row: &str| -> Vec<String> {
            let text = |cell: &str| {
                cell.split('<').filter_map(|part| part.split_once('>')).map(|(_, text)| text.to_owned()).collect()
            };
            row.split("<t")
                .skip(1)
                .filter(|cell| cell.starts_with(['d', 'h']))
                .map(|cell| text(&format!("<t{cell}")))
                .collect()
        };
        let rows: Vec<Vec<String>> =
            page.split("<tr").skip(1).map(|row| texts(row.split_once('>').unwrap().1)).collect();
        let place = rows[0].iter().position(|text| text == heading).unwrap();
        rows[1..].iter().map(|row| row[place].clone()).collect()
    }

    #[test]
    fn an_export_says_of_which_ports_it_has_lost_records() {
        let mut page = String::new();
        table(&mut page, &[export(&[]), export(&[("tap0", 1), ("vm1", 3000), ("<b>", 2), ("vm3", 1)])]);
        assert_eq!(cells(&page, "lost"), ["0", "3,004"], "{page}");
        assert_eq!(cells(&page, "lost of"), ["-", "vm1 3000, &lt;b&gt; 2, tap0 1, 1 more"], "{page}");
        // The columns behind it have their values.
        assert_eq!(
            (cells(&page, "displaced"), cells(&page, "templates sent")),
            (vec!["3".to_owned(); 2], vec!["2".to_owned(); 2])
        );
    }
}
