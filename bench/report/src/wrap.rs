//! Wraps a Markdown document at the width that the repository's prose has.

/// The same bound as `cargo x tidy` has.
const COLUMNS: usize = 100;

/// `document` with its long lines wrapped. Tables, headings and pictures stay as they are, and so
/// does a line that begins with a space.
///
/// Code in backquotes stays on one line, which may then be too long.
pub fn wrapped(document: &str) -> String {
    let lines: Vec<String> = document.lines().map(line).collect();
    format!("{}\n", lines.join("\n"))
}

fn line(text: &str) -> String {
    if text.chars().count() <= COLUMNS || text.starts_with(['|', '#', '!', ' ']) {
        return text.to_owned();
    }
    let indent = if text.starts_with("- ") { "  " } else { "" };
    let mut lines = vec![String::new()];
    for unit in units(text) {
        let last = lines.last_mut().expect("there is a first line");
        if last.is_empty() {
            last.push_str(&unit);
        } else if last.chars().count() + 1 + unit.chars().count() > COLUMNS {
            lines.push(format!("{indent}{unit}"));
        } else {
            last.push(' ');
            last.push_str(&unit);
        }
    }
    lines.join("\n")
}

/// The words of `text`; code in backquotes is one, with all that touches it.
fn units(text: &str) -> Vec<String> {
    let mut units: Vec<String> = Vec::new();
    let mut is_code = false;
    for word in text.split(' ') {
        match units.last_mut() {
            Some(code) if is_code => code.extend([" ", word]),
            _ => units.push(word.to_owned()),
        }
        is_code ^= word.matches('`').count() % 2 == 1;
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_wrapped_and_tables_are_not() {
        let words = ["word"; 30].join(" ");
        let text = wrapped(&format!("{words}\n- {words}\n| {words} |\n"));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[..4].iter().all(|line| line.len() <= COLUMNS), "{text}");
        assert!(lines[3].starts_with("  word") && lines[4].starts_with("| word"), "{text}");
    }

    #[test]
    fn code_stays_on_its_line() {
        let text = wrapped(&format!("{} `a b c d`", "w".repeat(95)));
        assert_eq!(text.lines().last(), Some("`a b c d`"));
    }
}
