//! Paragraphs of the references that the program prints, wrapped as the documents of the
//! repository are.
//!
//! Code in backquotes stays on one line where a line has room for it. Tables, headings and fenced
//! blocks do not belong here: their lines must not be broken.

/// The same bound as `cargo x tidy` has for prose.
const COLUMNS: usize = 100;

/// Wraps `text`, the first line behind `mark` and the others indented by as much.
///
/// The result ends without a line break.
pub(crate) fn wrapped(mark: &str, text: &str) -> String {
    let indent = " ".repeat(mark.len());
    let mut lines = vec![mark.to_owned()];
    for unit in units(text) {
        let pieces = if indent.len() + unit.chars().count() > COLUMNS {
            unit.split(' ').collect()
        } else {
            vec![unit.as_str()]
        };
        for piece in pieces {
            let line = lines.last_mut().expect("there is a first line");
            let is_empty = line.len() == indent.len();
            if !is_empty && line.chars().count() + 1 + piece.chars().count() > COLUMNS {
                lines.push(format!("{indent}{piece}"));
            } else {
                let space = if is_empty { "" } else { " " };
                line.push_str(space);
                line.push_str(piece);
            }
        }
    }
    lines.join("\n")
}

/// The words of `text`; code in backquotes is one, with all that touches it.
fn units(text: &str) -> Vec<String> {
    let mut units: Vec<String> = Vec::new();
    let mut is_code = false;
    for word in text.split_whitespace() {
        match units.last_mut() {
            Some(open) if is_code => {
                open.push(' ');
                open.push_str(word);
            }
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
    fn lines_are_as_long_as_they_may_be_and_no_longer() {
        let text = ["word"; 60].join(" ");
        let wrapped = wrapped("- ", &text);
        let lines: Vec<&str> = wrapped.lines().collect();
        assert!(lines[1..].iter().all(|line| line.starts_with("  word")));
        assert!(lines.iter().all(|line| line.len() <= COLUMNS));
        assert!(lines[0].len() + " word".len() > COLUMNS);
        assert_eq!(wrapped.split_whitespace().skip(1).collect::<Vec<_>>().join(" "), text);
    }

    #[test]
    fn code_is_broken_only_if_no_line_has_room_for_it() {
        let before = "w".repeat(95);
        assert_eq!(wrapped("", &format!("{before} (`a b c`).")), format!("{before}\n(`a b c`)."));
        let long = format!("`a {}`", "w".repeat(COLUMNS));
        assert_eq!(wrapped("", &long).lines().next(), Some("`a"));
    }

    #[test]
    fn line_breaks_of_the_text_do_not_count() {
        assert_eq!(wrapped("- ", "one\n  two"), "- one two");
        assert_eq!(wrapped("", ""), "");
    }
}
