//! Amounts in few characters.

/// An amount with three digits and a letter: `0`, `12`, `1.23k`, `941M`.
pub fn short(amount: f64) -> String {
    // An empty sum is -0.
    let (mut amount, mut letters) = (amount + 0.0, ["k", "M", "G", "T"].iter());
    let mut letter = "";
    while amount >= 999.5 {
        let Some(next) = letters.next() else { break };
        (amount, letter) = (amount / 1e3, next);
    }
    let decimals = match amount {
        _ if letter.is_empty() => usize::from(amount.fract() != 0.0 && amount < 9.95),
        _ if amount < 9.995 => 2,
        _ => usize::from(amount < 99.95),
    };
    format!("{amount:.decimals$}{letter}")
}

/// Like [`short`], with a space before the letter, for a unit.
pub fn spaced(amount: f64) -> String {
    let text = short(amount);
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    format!("{} {}", &text[..at], &text[at..])
}
