//! Counts in words.

/// A count with its noun: `1 frame`, `2 frames`, `0 accesses`.
pub fn count(number: u64, one: &str) -> String {
    let plural = match one {
        _ if number == 1 => "",
        _ if one.ends_with(['s', 'x', 'z']) || one.ends_with("ch") || one.ends_with("sh") => "es",
        _ => "s",
    };
    format!("{number} {one}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_noun_has_its_plural() {
        let counted = |number| ["frame", "register access", "switch", "box"].map(|noun| count(number, noun));
        assert_eq!(counted(1), ["1 frame", "1 register access", "1 switch", "1 box"]);
        assert_eq!(counted(4), ["4 frames", "4 register accesses", "4 switches", "4 boxes"]);
        assert_eq!(count(0, "frame"), "0 frames");
    }
}
