//! Open descriptors and mappings of a process, from /proc. If there are more after its guests than before them, it leaks.

use std::{collections::BTreeMap, fmt, fs};

/// Numbers of descriptors and file mappings by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Held(BTreeMap<String, usize>);

impl Held {
    /// The process's current descriptors and mappings. An entry that cannot be read, or has gone meanwhile, is not counted.
    pub fn of(process: u32) -> Held {
        let mut held = Held::default();
        for entry in fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten() {
            if let Ok(target) = fs::read_link(entry.path()) {
                held.add(kind(&target.to_string_lossy()));
            }
        }
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        maps.lines().filter_map(mapped).for_each(|kind| held.add(kind.to_owned()));
        held
    }

    fn add(&mut self, kind: String) {
        *self.0.entry(kind).or_default() += 1;
    }

    /// The surplus over `before`, in words. `None` if there is none.
    pub fn beyond(&self, before: &Held) -> Option<String> {
        let more = self.0.iter().filter_map(|(kind, count)| {
            let had = before.0.get(kind).copied().unwrap_or_default();
            (*count > had).then(|| format!("{} {kind}", count - had))
        });
        let more: Vec<String> = more.collect();
        (!more.is_empty()).then(|| more.join(", "))
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<String> = self.0.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        f.write_str(&kinds.join(", "))
    }
}

/// Kind of a descriptor's target, proc_pid_fd(5): `socket:[7]`, `anon_inode:[eventfd]`, `/memfd:name (deleted)`, a path.
fn kind(target: &str) -> String {
    if target.ends_with(" (deleted)") {
        return "memory file".to_owned();
    }
    match target.split_once(":[") {
        Some(("anon_inode", name)) => name.trim_end_matches(']').to_owned(),
        Some((kind, _)) => kind.to_owned(),
        None => "file".to_owned(),
    }
}

/// proc_pid_maps(5): a shared mapping of an unlinked file. (A private one belongs to a program that was rebuilt meanwhile.)
/// Neighbouring mappings may be one line or two, so the number of lines only shows whether there are any.
fn mapped(line: &str) -> Option<&'static str> {
    let shared = line.split(' ').nth(1).is_some_and(|rights| rights.ends_with('s'));
    (shared && line.ends_with(" (deleted)")).then_some("map of a memory file")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, os::unix::net::UnixStream};

    #[test]
    fn what_a_process_opens_is_told_by_its_kind() {
        let process = std::process::id();
        let before = Held::of(process);
        let pair = UnixStream::pair().unwrap();
        let now = Held::of(process);
        let more = now.beyond(&before).unwrap();
        // Other tests in this process may open something meanwhile.
        assert!(more.contains("socket"), "{more}");
        drop(pair);
        assert_eq!(before.beyond(&before), None);
    }

    #[test]
    fn a_file_without_a_name_is_memory() {
        let path = std::env::temp_dir().join(format!("nicety-held-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let count = |held: Held| held.0.get("memory file").copied().unwrap_or_default();
        assert!(count(Held::of(std::process::id())) >= 1);
        drop(file);
        assert_eq!(kind("/memfd:uml (deleted)"), "memory file");
        assert_eq!(kind("anon_inode:[eventpoll]"), "eventpoll");
        assert_eq!(kind("socket:[123]"), "socket");
        assert_eq!(kind("/dev/null"), "file");
        assert_eq!(mapped("7f00-7f01 rw-s 0 00:1a 5 /dev/shm/vm_file-x (deleted)"), Some("map of a memory file"));
        assert_eq!(mapped("7f00-7f01 r--p 0 00:1a 5 /usr/lib/libc.so.6"), None);
        assert_eq!(mapped("7f00-7f01 r-xp 0 00:1a 5 /target/debug/nicety (deleted)"), None);
    }
}
