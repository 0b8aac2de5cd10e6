//! Charts as SVG, for the lab's reports and the daemon's page, and text that is safe in HTML.
#![forbid(unsafe_code)]

mod html;
mod panel;
mod scale;

pub use html::Escaped;
pub use panel::{HIGH, Level, Panel, WIDE, stairs};
pub use scale::{Decades, Linear, Mark, Scale};

/// `value` with `decimals` decimals and a comma between thousands from 10,000 on.
pub fn fixed(value: f64, decimals: usize) -> String {
    let plain = format!("{value:.decimals$}");
    let (whole, rest) = plain.split_once('.').map_or((plain.as_str(), ""), |(whole, rest)| (whole, rest));
    let digits = whole.trim_start_matches('-');
    if digits.len() < 5 {
        return plain;
    }
    let mut grouped = String::from(if whole.starts_with('-') { "-" } else { "" });
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if !rest.is_empty() {
        grouped.push('.');
        grouped.push_str(rest);
    }
    grouped
}
