//! Tables of Markdown, and numbers as a table shows them.

/// A cell without a value.
pub const DASH: &str = "-";

/// A Markdown table whose columns line up. The first row is its head; every row has as many cells
/// as the head.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
        if index == 0 {
            let rule: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
            text.push_str(&format!("| {} |\n", rule.join(" | ")));
        }
    }
    text
}

/// A row of `cells`.
pub fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// `1234567` as `1,234,567`.
pub fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `value` with `digits` decimal digits.
pub fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_by_three() {
        assert_eq!(grouped(999.4), "999");
        assert_eq!(grouped(1_234_567.0), "1,234,567");
    }

    #[test]
    fn columns_line_up_below_their_head() {
        let table = aligned(&[row(["case", "s"]), row(["a", "10.5"])]);
        assert_eq!(table, "| case | s    |\n| ---- | ---- |\n| a    | 10.5 |\n");
        assert_eq!(aligned(&[]), "");
    }
}
