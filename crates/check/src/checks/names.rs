//! Names of objects in a sentence: as many as a reader takes in, and the number of the rest.

/// `a, b and 3 more`
pub(super) fn few(names: &[impl AsRef<str>]) -> String {
    /// A list longer than a line does not help.
    const SHOWN_MAX: usize = 8;
    let shown: Vec<&str> = names.iter().take(SHOWN_MAX).map(AsRef::as_ref).collect();
    let rest = names.len() - shown.len();
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

/// `table a`, or `tables a, b`
pub(super) fn tables(names: &[impl AsRef<str>]) -> String {
    format!("table{} {}", if names.len() == 1 { "" } else { "s" }, few(names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut_and_counted() {
        assert_eq!(tables(&["a"]), "table a");
        assert_eq!(tables(&["a", "b"]), "tables a, b");
        let many: Vec<String> = (0..12).map(|n| n.to_string()).collect();
        assert_eq!(few(&many), "0, 1, 2, 3, 4, 5, 6, 7 and 4 more");
    }
}
