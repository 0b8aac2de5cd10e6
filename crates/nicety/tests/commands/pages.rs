//! The book's order and links, and the figures that one of its pages copies from another.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::book::root;
use super::scratch::Scratch;

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The pages below `folder`, in their folders.
pub fn pages(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let found = entries.flat_map(|path| if path.is_dir() { pages(&path) } else { vec![path] });
    found.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// A page without its code blocks.
fn text(page: &str) -> String {
    let mut is_code = false;
    let lines = page.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The targets of a text's links and pictures.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// The path of `link` as resolved from `page`, without `..`.
fn target(page: &Path, link: &str) -> PathBuf {
    let mut target = page.parent().unwrap().to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => assert!(target.pop()),
            other => target.push(other),
        }
    }
    target
}

/// A heading's anchor, as Git hosts make it: lower case, blanks become hyphens, other signs are removed.
fn anchor(heading: &str) -> String {
    let shown = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
    shown.chars().filter(|char| char.is_alphanumeric() || "-_".contains(*char)).collect()
}

fn has_anchor(page: &str, wanted: &str) -> bool {
    page.contains(&format!("<a id=\"{wanted}\"></a>"))
        || text(page).lines().any(|line| line.starts_with('#') && anchor(line) == wanted)
}

#[test]
fn each_page_of_the_book_ends_with_a_link_to_the_next_one_and_none_is_left_out() {
    let root = root().canonicalize().unwrap();
    let contents = root.join("docs/README.md");
    let list = read(&contents);
    let mut order: Vec<PathBuf> =
        links(&list).filter(|link| link.ends_with(".md")).map(|link| target(&contents, link)).collect();
    let end = order.iter().position(|page| page.ends_with("ARCHITECTURE.md")).expect("the book ends with the plan");
    order.truncate(end + 1);
    let mut wrong = Vec::new();
    for two in order.windows(2) {
        let page = read(&two[0]);
        let last = page.lines().last().filter(|line| line.starts_with("Next: "));
        if last.and_then(|line| links(line).next()).map(|link| target(&two[0], link)).as_ref() != Some(&two[1]) {
            wrong.push(format!("{} ends with {last:?}, not with a link to {}", two[0].display(), two[1].display()));
        }
    }
    let decisions = root.join("docs/adr");
    let left_out = pages(&root.join("docs")).into_iter().filter(|page| {
        let is_listed = order.contains(page) || *page == contents || page.starts_with(&decisions);
        !is_listed
    });
    wrong.extend(left_out.map(|page| format!("{} is not in docs/README.md", page.display())));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn each_decision_is_in_the_index_with_its_title() {
    let folder = root().canonicalize().unwrap().join("docs/adr");
    let index = read(&folder.join("README.md"));
    for page in pages(&folder).iter().filter(|page| !page.ends_with("README.md")) {
        let text = read(page);
        let (number, title) = text.lines().next().unwrap().trim_start_matches("# ").split_once(". ").unwrap();
        let row = format!("| {number} | [{title}]({}) |", page.file_name().unwrap().to_str().unwrap());
        assert!(index.contains(&row), "docs/adr/README.md has no row `{row}`");
    }
}

#[test]
fn each_link_of_the_book_leads_to_a_file_and_a_heading_that_are_there() {
    let root = root().canonicalize().unwrap();
    let besides = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| root.join(name));
    let mut dead = Vec::new();
    for page in pages(&root.join("docs")).into_iter().chain(besides) {
        for link in links(&text(&read(&page))).filter(|link| !link.contains("://")) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let file = if file.is_empty() { page.clone() } else { target(&page, file) };
            let leads = file.exists() && (heading.is_empty() || has_anchor(&read(&file), heading));
            if !leads {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

/// "Which adapter?" repeats medians, so that a reader can choose; measured.md is their source.
#[test]
fn the_figures_by_which_one_chooses_an_adapter_are_those_that_were_measured() {
    let root = root();
    let (choice, measured) = (read(&root.join("docs/which-adapter.md")), read(&root.join("docs/measured.md")));
    let section = |heading: &str| {
        let (_, rest) = measured.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("{heading}"));
        rest.split("\n## ").next().unwrap()
    };
    let embedded = section("Embedded guests");
    let linux = section("Real Linux drivers at native speed: user-mode guests");
    // A cell of a measured row, without its interval.
    let median = |table: &str, name: &str, cell: usize| {
        let row = table.lines().find(|line| line.starts_with(&format!("| {name} |")))?;
        row.split('|').nth(cell + 1)?.split_whitespace().next().map(str::to_owned)
    };
    let rows = choice.split("\n## What they carry\n").nth(1).unwrap().lines().filter(|line| line.starts_with("| "));
    let mut compared = 0;
    for row in rows.skip(1).take_while(|line| !line.starts_with("| **")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let name = cells[1];
        // Guest to guest, request-response, CPU time: their columns in the two tables.
        let kept = [(embedded, name.to_owned(), [3, 4, 6]), (linux, format!("{name}, switch"), [1, 2, 3])];
        for (cell, (table, name, column)) in cells[2..]
            .iter()
            .zip(kept.iter().flat_map(|(table, name, columns)| columns.map(|column| (*table, name, column))))
        {
            let was_measured = median(table, name, column);
            assert_eq!(*cell, was_measured.as_deref().unwrap_or(""), "{name}, column {column}");
            compared += usize::from(was_measured.is_some());
        }
    }
    assert!(compared >= 36, "{compared} figures only");
}

/// The arguments of the command `nicety` in a shell's line, up to the end of that command.
fn words_for_nicety(line: &str) -> Option<Vec<String>> {
    let (mut words, mut quote) = (vec![String::new()], None);
    for char in line.chars() {
        let word = words.last_mut().expect("there is one always");
        match quote {
            Some(open) if char == open => quote = None,
            Some(_) => word.push(char),
            None if char == '\'' || char == '"' => quote = Some(char),
            None if " [](){}".contains(char) => words.push(String::new()),
            // A comment, a pipe or a redirection ends the command; a list of commands continues.
            None if "|<>#".contains(char) => break,
            None => word.push(char),
        }
    }
    words.retain(|word| !word.is_empty() && word != "&");
    let at = words.iter().position(|word| word == "nicety")?;
    Some(words.split_off(at + 1))
}

#[test]
fn each_command_line_of_the_book_has_words_that_the_program_knows() {
    let root = root();
    let (scratch, mut tried, mut unknown) = (Scratch::new(), 0, Vec::new());
    for page in pages(&root.join("docs")).into_iter().chain([root.join("README.md")]) {
        let page_text = read(&page);
        let lines = page_text.lines().filter_map(|line| line.strip_prefix("$ "));
        for (line, mut words) in lines.filter_map(|line| Some((line, words_for_nicety(line)?))) {
            // With `--help` the program parses the arguments before it, and does nothing.
            let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
            words.truncate(end);
            words.push("--help".to_owned());
            let ended = scratch.run(&words.iter().map(String::as_str).collect::<Vec<_>>());
            tried += 1;
            if ended.code != Some(0) {
                unknown.push(format!("{}: {line}: {}", page.display(), ended.err));
            }
        }
    }
    assert!(unknown.is_empty() && tried > 20, "{tried} tried: {unknown:#?}");
}

/// All examples except `vmm`, which takes no arguments and is printed in the book as it is.
#[test]
fn each_example_answers_help_with_the_page_that_it_begins_with() {
    let mut without = Vec::new();
    for room in fs::read_dir(root().join("crates")).unwrap() {
        let Ok(examples) = fs::read_dir(room.unwrap().path().join("examples")) else { continue };
        for path in examples.map(|entry| entry.unwrap().path()) {
            let source = if path.is_dir() { path.join("main.rs") } else { path };
            let Ok(text) = fs::read_to_string(&source) else { continue };
            let name = source.file_name().unwrap().to_str().unwrap();
            let answers = text.contains(&format!("help::on_request(include_str!(\"{name}\"));"));
            if !(name == "vmm.rs" || answers && text.starts_with("//! ")) {
                without.push(source);
            }
        }
    }
    assert!(without.is_empty(), "{without:?}");
}
