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
        number(main, "wide", export.displaced);
        number(main, "wide", export.templates);
        main.push_str("</tr>");
    }
    main.push_str(TABLE_END);
}
