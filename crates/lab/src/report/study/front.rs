//! The page in front of several studies: which adapter for whom, and each method's findings beside its document's.

use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};

use super::super::front::unbroken;
use super::words::Beside;
use super::{INDEX, STYLE, ratio_cell, words};
use crate::findings::and;
use crate::folder::PAGE;
use crate::host::Host;
use crate::methods::{self, Method};
use crate::number;
use crate::study::Study;
use crate::usual;
use nicety_chart::Escaped;

/// The text of the page in the folder `place`.
pub fn page(place: &Path, studies: &[(PathBuf, Study)]) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail. This file drops the results of `write!` for that reason.
    let _ = write!(out, "{PAGE}the lab</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<header>\n");
    let dates: Vec<&str> = studies.iter().filter_map(|(_, study)| study.head.host.date.split('T').next()).collect();
    let span = match (dates.iter().min(), dates.iter().max()) {
        (Some(first), Some(last)) if first != last => format!(" · {first} to {last}"),
        (Some(first), _) => format!(" · {first}"),
        _ => String::new(),
    };
    let _ = writeln!(
        out,
        "<p class=\"kicker\">Nicety's lab{}</p>\n<h1>Five documents' measurements, repeated on this machine</h1>",
        Escaped(&span)
    );
    for sentence in machine(studies) {
        let _ = writeln!(out, "<p>{}</p>", unbroken(&sentence));
    }
    out.push_str("<nav aria-label=\"On this page\"><a href=\"#whom\">Which adapter for whom</a> <a href=\"#methods\">Methods</a></nav>\n</header>\n");
    whom(&mut out, studies);
    super::heading(&mut out, "methods", "Methods");
    for (folder, study) in studies {
        if let Some(method) = methods::find(&study.head.plan.method) {
            section(&mut out, &href(place, folder), study, method);
        }
    }
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

/// The machine that all studies are of, or that they are of several.
fn machine(studies: &[(PathBuf, Study)]) -> Vec<String> {
    let mut machines: Vec<(String, &Host)> = Vec::new();
    for (_, study) in studies {
        let host = &study.head.host;
        let virtualised =
            host.hypervisor.as_ref().map_or(String::new(), |name| format!(", itself virtualised ({name})"));
        let machine =
            format!("{}, {} logical processors, kernel {}{virtualised}", host.cpu_model, host.cores, host.kernel);
        let is_known = |(known, of): &(String, &Host)| *known == machine && of.differs_from(host).is_none();
        if !machines.iter().any(is_known) {
            machines.push((machine, host));
        }
    }
    let machines: Vec<String> = machines.into_iter().map(|(machine, _)| machine).collect();
    let mut said = match machines.as_slice() {
        [] => vec!["Nothing was measured yet.".to_owned()],
        [one] => vec![format!("Measured on {one}.")],
        several => vec![format!(
            "These results are of {} machines: {}. Compare ratios only.",
            several.len(),
            several.join("; ")
        )],
    };
    let unoptimised: Vec<String> = studies
        .iter()
        .filter(|(_, study)| !study.head.optimised)
        .map(|(_, study)| study.head.plan.method.clone())
        .collect();
    if !unoptimised.is_empty() {
        let of = if unoptimised.len() == studies.len() {
            "these figures say".to_owned()
        } else {
            format!("the figures of {} say", and(&unoptimised))
        };
        said.push(format!("Nicety was built without optimisation: {of} nothing about its speed."));
    }
    said
}

/// The paragraph for whoever must choose, from facts and figures alone, and a table of usual guests.
fn whom(out: &mut String, studies: &[(PathBuf, Study)]) {
    super::heading(out, "whom", "Which adapter for whom");
    let Some((_, first)) = studies.first() else { return };
    let all: Vec<Study> = studies.iter().map(|(_, study)| study.clone()).collect();
    let choices = usual::choices(&all, &first.head.host);
    // Guests of one adapter share a sentence.
    let mut groups: Vec<(&str, Vec<String>)> = Vec::new();
    for (guest, choice) in &choices {
        let adapter = choice.adapter.as_deref().unwrap_or("no adapter");
        match groups.iter_mut().find(|(name, _)| *name == adapter) {
            Some((_, guests)) => guests.push((*guest).to_owned()),
            None => groups.push((adapter, vec![(*guest).to_owned()])),
        }
    }
    let sentence = |(adapter, guests): &(&str, Vec<String>)| format!("{adapter} for {}.", guests.join("; "));
    let sentences: Vec<String> = groups.iter().map(sentence).collect();
    let _ = writeln!(out, "<p>Take {}</p>", unbroken(&sentences.join(" Take ")));
    for said in choices.first().iter().flat_map(|(_, choice)| &choice.measured) {
        let _ = writeln!(out, "<p>{}</p>", unbroken(said));
    }
    out.push_str(
        "<table class=\"whom\"><thead><tr><th scope=\"col\">Guest</th><th scope=\"col\">Take</th></tr></thead><tbody>\n",
    );
    for (guest, choice) in &choices {
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">{}</th><td>{}<span class=\"because\">{}</span></td></tr>",
            Escaped(guest),
            Escaped(choice.adapter.as_deref().unwrap_or(number::NONE)),
            Escaped(&choice.why.join(" ")),
        );
    }
    out.push_str("</tbody></table>\n");
    if let Some((guest, choice)) = choices.first() {
        let _ = writeln!(out, "<h3>All adapters for {}</h3>\n{}", Escaped(guest), choice.table.html());
    }
    out.push_str(
        "<p class=\"about\"><code>nicety choose</code> answers for one guest, and says why the others do not fit.</p>\n",
    );
}

/// A method's finding, and its ratios beside the document's.
fn section(out: &mut String, href: &str, study: &Study, method: &dyn Method) {
    let (about, plan) = (method.about(), &study.head.plan);
    let document = about
        .document
        .map_or_else(|| "Nicety's own".to_owned(), |(number, title)| format!("document {number}: {title}"));
    let _ = writeln!(
        out,
        "<section class=\"test\"><header><h3><a href=\"{}\">{}</a></h3><span>{}</span></header>\n<p>{}.</p>\n<p class=\"about\">{}. {} runs under {} guests, {}{}.</p>",
        Escaped(href),
        about.name,
        Escaped(&document),
        unbroken(&words::headline(study, method)),
        Escaped(about.line),
        study.counted().count(),
        plan.guests,
        Escaped(study.head.host.date.split('T').next().unwrap_or_default()),
        Escaped(&failed(study)),
    );
    let mut rows = String::new();
    for Beside { title, adapter, base, ratio, document } in words::beside_documents(study, method) {
        let _ = writeln!(
            rows,
            "<tr><th scope=\"row\">{adapter} ÷ {base}<span class=\"driver\">{}</span></th><td class=\"n\">{}</td><td class=\"n soft\">{document:.2}</td></tr>",
            Escaped(&title),
            ratio_cell(Some(&ratio)),
        );
    }
    if !rows.is_empty() {
        let _ = writeln!(
            out,
            "<div class=\"scroll\"><table><thead><tr><th scope=\"col\">Ratio</th><th scope=\"col\" class=\"n\">here</th><th scope=\"col\" class=\"n\">in the document</th></tr></thead><tbody>\n{rows}</tbody></table></div>"
        );
    }
    out.push_str("</section>\n");
}

fn failed(study: &Study) -> String {
    let mut names: Vec<String> = study.failed().map(|run| run.subject.to_string()).collect();
    let count = names.len();
    names.sort();
    names.dedup();
    match count {
        0 => String::new(),
        1 => format!("; 1 run failed, of {}", and(&names)),
        count => format!("; {count} runs failed, of {}", and(&names)),
    }
}

/// The address of the page in `folder`, from a page in `place`.
fn href(place: &Path, folder: &Path) -> String {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let (from, to) = (absolute(place), absolute(folder));
    let (from, to): (Vec<Component<'_>>, Vec<Component<'_>>) = (from.components().collect(), to.components().collect());
    let common = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
    let up = (common..from.len()).map(|_| "..".to_owned());
    let down = to.iter().skip(common).map(|part| part.as_os_str().to_string_lossy().into_owned());
    let parts: Vec<String> = up.chain(down).chain([INDEX.to_owned()]).collect();
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_links_to_folders_below_it_and_beside_it() {
        let of = |place: &str, folder: &str| href(Path::new(place), Path::new(folder));
        assert_eq!(of("/a/lab", "/a/lab/kvm-scp"), "kvm-scp/index.html");
        assert_eq!(of("/a/lab", "/a/other/kvm-scp"), "../other/kvm-scp/index.html");
        assert_eq!(of("lab", "lab/kvm-scp"), "kvm-scp/index.html");
    }
}
