//! The shape of the source: no file is too long, and no files of a crate import each other in a circle.
//!
//! A file may import its own ancestor: an `impl` may stand in a child module of its type. Tests are not asked whom they import.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::command::root;
use crate::tally::Tally;

/// Lines of a source or test file.
const LINES_MAX: usize = 800;

/// A file's place in its crate: `plane::port`. The crate's own file has none.
type Module = Vec<String>;

pub fn run() -> Tally {
    let root = root();
    let mut files = Vec::new();
    ["crates", "xtask", "fuzz"].iter().for_each(|folder| walk(&root.join(folder), &mut files));
    let mut faults: Vec<String> = files.iter().filter_map(|(path, text)| too_long(&root, path, text)).collect();
    let mut crates: BTreeMap<PathBuf, BTreeMap<Module, Source>> = BTreeMap::new();
    for (path, text) in files {
        if let Some((source, module)) = place(&path) {
            let shown = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
            crates.entry(source).or_default().insert(module, Source::new(shown, &text));
        }
    }
    faults.extend(crates.values().filter_map(circle));
    faults.iter().for_each(|fault| println!("{fault}"));
    Tally::of_one("shape", faults.is_empty())
}

fn walk(folder: &Path, files: &mut Vec<(PathBuf, String)>) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in entries.filter(|path| !path.is_symlink()) {
        if path.is_dir() && !path.ends_with("target") {
            walk(&path, files);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            files.extend(fs::read_to_string(&path).ok().map(|text| (path, text)));
        }
    }
}

fn too_long(root: &Path, path: &Path, text: &str) -> Option<String> {
    let (lines, path) = (text.lines().count(), path.strip_prefix(root).unwrap_or(path).display());
    (lines > LINES_MAX).then(|| format!("{path}: {lines} lines, at most {LINES_MAX}: move a part into a child module"))
}

/// The source folder of a file that is no test, and its module.
fn place(path: &Path) -> Option<(PathBuf, Module)> {
    let mut source = path.ancestors().skip(1).filter(|folder| folder.ends_with("src")).last()?.to_owned();
    let words = path.strip_prefix(&source).ok()?.with_extension("");
    let mut module: Module = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    if module.iter().any(|word| word == "tests" || word.ends_with("_test")) {
        return None;
    }
    if module.first().is_some_and(|first| first == "bin") {
        // A program with a crate root of its own.
        source = source.join(module.drain(..2).collect::<PathBuf>());
    }
    module.pop_if(|last| ["lib", "main", "mod"].contains(&last.as_str()));
    Some((source, module))
}

/// The imports of a file.
struct Source {
    path: String,
    imports: Vec<Vec<String>>,
    /// Paths of re-exported names.
    exports: Vec<Vec<String>>,
}

impl Source {
    fn new(path: String, text: &str) -> Source {
        let mut source = Source { path, imports: Vec::new(), exports: Vec::new() };
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default().trim());
        let text = lines.collect::<Vec<_>>().join("\n");
        for statement in text.split(';') {
            let begins = |line: &&str| line.starts_with("use ") || line.starts_with("pub") && line.contains(" use ");
            let begin = statement.lines().find(begins).and_then(|line| statement.find(line));
            let (code, import) = statement.split_at(begin.unwrap_or(statement.len()));
            if let Some((visibility, tree)) = import.split_once("use ") {
                leaves(tree, &[], if visibility.is_empty() { &mut source.imports } else { &mut source.exports });
            }
            // Paths in the code: `crate::report::page(…)`.
            let words = code.split(|letter: char| !letter.is_alphanumeric() && letter != '_' && letter != ':');
            let paths = words.filter(|word| ["crate::", "super::", "self::"].iter().any(|at| word.starts_with(at)));
            source.imports.extend(paths.map(segments));
        }
        source
    }
}

fn segments(path: &str) -> Vec<String> {
    path.split("::").map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// The paths of a tree of imports: `a::{b, c::{d, e}}`.
fn leaves(tree: &str, before: &[String], out: &mut Vec<Vec<String>>) {
    let Some((head, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        out.push([before, &segments(path)].concat());
        return;
    };
    let before = [before, &segments(head)].concat();
    let (mut depth, mut begin) = (0, 0);
    for (at, letter) in rest.char_indices() {
        depth += match letter {
            '{' => 1,
            '}' => -1,
            _ => 0,
        };
        if letter == ',' && depth == 0 || depth < 0 {
            if !rest[begin..at].trim().is_empty() {
                leaves(&rest[begin..at], &before, out);
            }
            begin = at + 1;
        }
        if depth < 0 {
            return;
        }
    }
}

/// The module that has the last name of a path, read in `module`, and that name. Re-exports are followed.
fn target(files: &BTreeMap<Module, Source>, module: &Module, path: &[String], depth: u8) -> Option<(Module, String)> {
    let mut here = module.clone();
    let mut rest = path.iter().peekable();
    match rest.peek()?.as_str() {
        "crate" => (here, _) = (Vec::new(), rest.next()),
        "self" => _ = rest.next(),
        "super" => {
            while rest.next_if(|word| *word == "super").is_some() {
                here.pop();
            }
        }
        _ => {}
    }
    while let Some(word) = rest.peek() {
        let below = [here.as_slice(), &[(*word).clone()]].concat();
        if !files.contains_key(&below) {
            break;
        }
        (here, _) = (below, rest.next());
    }
    let Some(name) = rest.next() else { return Some((here, "self".to_owned())) };
    let source = files.get(&here)?;
    match source.exports.iter().find(|export| export.last() == Some(name)).filter(|_| depth > 0) {
        Some(export) => target(files, &here, export, depth - 1),
        None => Some((here, name.clone())),
    }
}

/// Whether imports lead from one file to another.
fn reaches(ties: &[(&Module, Module)], from: &Module, to: &Module) -> bool {
    let mut reached = vec![from];
    let mut at = 0;
    while let Some(here) = reached.get(at).copied() {
        at += 1;
        for (_, next) in ties.iter().filter(|(module, _)| *module == here) {
            if !reached.contains(&next) {
                reached.push(next);
            }
        }
    }
    reached.contains(&to)
}

/// The files of a crate that import each other, with the names that tie them.
fn circle(files: &BTreeMap<Module, Source>) -> Option<String> {
    let mut ties: BTreeMap<(&Module, Module), BTreeSet<String>> = BTreeMap::new();
    for (module, source) in files {
        for (to, name) in source.imports.iter().filter_map(|path| target(files, module, path, 6)) {
            if !module.starts_with(&to) {
                ties.entry((module, to)).or_default().insert(name);
            }
        }
    }
    let all: Vec<(&Module, Module)> = ties.keys().cloned().collect();
    ties.retain(|(from, to), _| reaches(&all, to, from));
    let shown = |module: &Module| files.get(module).map_or("", |source| &source.path);
    let ties: Vec<String> = ties
        .iter()
        .map(|((from, to), names)| {
            let names = names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            format!("  {} takes {names} of {}", shown(from), shown(to))
        })
        .collect();
    let mend = "files import each other in a circle: move what both need into the lower one, or into a file below both";
    (!ties.is_empty()).then(|| format!("{mend}\n{}", ties.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The circle in a crate of these files.
    fn of(files: &[(&str, &str)]) -> Option<String> {
        let root = Path::new("/house");
        let source = |(name, text): &(&str, &str)| {
            let (_, module) = place(&root.join("crates/lab/src").join(name))?;
            Some((module, Source::new((*name).to_owned(), text)))
        };
        circle(&files.iter().filter_map(source).collect())
    }

    #[test]
    fn files_that_import_each_other_are_named_and_what_ties_them_and_no_others() {
        let found = of(&[
            ("lib.rs", "mod a;\nmod b;\nmod c;\npub use b::deep::Deep;\n"),
            ("a.rs", "use crate::{Deep, c::{One, Two}};\n"),
            ("b/mod.rs", "pub mod deep;\n"),
            ("b/deep.rs", "fn two() {\n    crate::c::three();\n}\npub struct Deep;\n"),
            ("c.rs", "use std::io;\nuse super::a;\nfn three() {}\n"),
        ]);
        let ties = "  a.rs takes Deep of b/deep.rs\n  a.rs takes One, Two of c.rs\n  b/deep.rs takes three of c.rs\n  c.rs takes self of a.rs";
        assert_eq!(found.unwrap().split_once('\n').unwrap().1, ties);
    }

    #[test]
    fn a_child_may_import_its_ancestor_and_a_test_and_a_comment_import_nothing() {
        let found = of(&[
            ("port.rs", "mod end;\nuse end::End;\npub struct Port;\n"),
            ("port/end.rs", "use super::Port;\nuse crate::port::Other;\npub struct End;\n"),
            ("low.rs", "// use crate::port::Port;\n#[cfg(test)]\nmod tests {\n    use crate::port::Port;\n}\n"),
            ("low_test.rs", "use crate::port::Port;\n"),
        ]);
        assert_eq!(found, None);
    }

    #[test]
    fn a_file_of_more_than_800_lines_is_named_with_its_lines() {
        let (root, path) = (Path::new("/house"), Path::new("/house/crates/lab/tests/long.rs"));
        assert_eq!(too_long(root, path, &"\n".repeat(800)), None);
        let fault = too_long(root, path, &"\n".repeat(801)).unwrap();
        assert!(fault.starts_with("crates/lab/tests/long.rs: 801 lines, at most 800: "), "{fault}");
    }
}
