//! The lines that openers have named: what may be opened for daemons (docs/adr/0024).

use std::collections::BTreeMap;

/// Most lines. Each opener is told all of them.
const LINES_MAX: usize = 4096;

/// Lines, each with the count of lines that were named until it was named last.
#[derive(Debug, Default)]
pub(crate) struct Named {
    lines: BTreeMap<String, u64>,
    count: u64,
}

impl Named {
    /// Adds a line. If there are too many then, the one goes that was not named for longest.
    pub fn add(&mut self, line: String) {
        self.count += 1;
        self.lines.insert(line, self.count);
        if self.lines.len() > LINES_MAX
            && let Some(oldest) = self.lines.iter().min_by_key(|(_, named)| **named).map(|(line, _)| line.clone())
        {
            self.lines.remove(&oldest);
        }
    }

    pub fn lines(&self) -> impl Iterator<Item = &String> {
        self.lines.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keeper_that_has_4096_lines_forgets_for_a_new_one_that_which_was_not_named_for_longest() {
        let mut named = Named::default();
        let has = |named: &Named, line: &str| named.lines().any(|other| other == line);
        let vm = |number: u32| format!("socket /run/nicety/vm{number}.sock");
        (0..4096).for_each(|number| named.add(vm(number)));
        assert_eq!(named.lines().count(), 4096);
        assert!(has(&named, &vm(0)));
        // What is named again is not among the oldest, and takes no second place.
        named.add(vm(0));
        assert_eq!(named.lines().count(), 4096);
        named.add("tap tap7".to_owned());
        assert_eq!(named.lines().count(), 4096);
        assert!(has(&named, "tap tap7") && has(&named, &vm(0)) && has(&named, &vm(2)));
        assert!(!has(&named, &vm(1)));
    }
}
