//! The sentence that explains each drop reason: the book's.

use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The page of the book with the table of reasons: a link, so that cargo puts the page into this crate's package.
const BOOK: &str = include_str!("operating.md");
const HEADING: &str = "## Why was it dropped?";

static SENTENCES: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| {
    let section = BOOK.split_once(HEADING).map_or("", |(_, rest)| rest);
    let rows = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let mut sentences = BTreeMap::new();
    for row in rows.skip(2) {
        let mut cells = row.trim_matches('|').splitn(2, " | ");
        let (Some(names), Some(text)) = (cells.next(), cells.next()) else { continue };
        let text = plain(text.trim());
        sentences.extend(names.split(',').map(|name| (name.trim().trim_matches('`').to_owned(), text.clone())));
    }
    sentences
});

/// Meaning of a drop reason, with its remedy. Empty for an unknown reason.
pub(super) fn sentence(reason: &str) -> &'static str {
    SENTENCES.get(reason).map_or("", String::as_str)
}

/// Markdown without its marks: the text of a link, code and emphasis.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('[') {
        plain.push_str(before);
        let Some((words, link)) = after.split_once("](") else {
            plain.push('[');
            rest = after;
            continue;
        };
        plain.push_str(words);
        rest = link.split_once(')').map_or("", |(_, rest)| rest);
    }
    plain.push_str(rest);
    plain.replace(['`', '*'], "")
}

#[cfg(test)]
mod tests {
    use nicety_adapter::Reason;

    use super::*;

    #[test]
    fn each_reason_has_the_books_sentence_in_plain_words() {
        for reason in Reason::ALL {
            let sentence = sentence(reason.name());
            assert!(sentence.len() > 10, "{}: {sentence:?}", reason.name());
            assert!(!sentence.contains(['`', '*']) && !sentence.contains("]("), "{sentence}");
        }
        let full = "receive: the guest is too slow. A little is normal under TCP.";
        assert!(sentence("buffer-full").starts_with(full), "{}", sentence("buffer-full"));
        assert!(sentence("congestion").contains("waited for more than 5 ms. A little is normal under TCP"));
    }
}
