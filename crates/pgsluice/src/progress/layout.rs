//! How a bar's line is divided, by the width of the terminal.
//!
//! ```text
//!   public.orders            ========----------------  41% 250,000 rows, 100 MB, 55 MB/s, 4 s left
//!   name                     bar                           words
//! ```
//! Words are never cut. If they do not fit, whole figures are left out, the least important
//! first. A terminal of 110 columns has room for all of them.

use indicatif::ProgressStyle;

/// Columns of a terminal that does not report them.
const COLUMNS: usize = 80;
/// Columns between name, bar, percentage and words, and of the percentage.
const FIXED: usize = 3 + 4;
/// All figures of a total:
/// `12 of 34 tables, 1,234,567,890 rows, 123.4 GB, 123.4 MB/s, 12 min 34 s left`.
const WORDS: usize = 62;

/// The columns of a line's parts; see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    name: usize,
    bar: usize,
    words: usize,
}

impl Layout {
    /// The layout for the terminal that standard error is.
    pub(super) fn of_terminal() -> Layout {
        let size = rustix::termios::tcgetwinsize(std::io::stderr());
        let columns = size.map(|size| usize::from(size.ws_col)).ok().filter(|columns| *columns > 0);
        Layout::of(columns.unwrap_or(COLUMNS))
    }

    pub(super) fn of(columns: usize) -> Layout {
        let name = match columns {
            ..100 => 20,
            100..150 => 24,
            150.. => 40,
        };
        let bar = columns.saturating_sub(name + FIXED + WORDS).clamp(6, 40);
        Layout { name, bar, words: columns.saturating_sub(name + FIXED + bar) }
    }

    pub(super) fn style(self) -> ProgressStyle {
        let Layout { name, bar, .. } = self;
        style(&format!("{{prefix:{name}!}} {{bar:{bar}}} {{percent:>3}}% {{wide_msg}}"))
    }

    /// As many of `figures` as fit, in their order. Each has a weight, and the lightest go first.
    pub(super) fn words(self, figures: Vec<(u8, String)>) -> String {
        let mut left = figures;
        loop {
            let words = left.iter().map(|(_, figure)| figure.as_str()).collect::<Vec<_>>().join(", ");
            if words.chars().count() <= self.words || left.len() < 2 {
                return words;
            }
            let lightest = (0..left.len()).min_by_key(|at| left[*at].0).unwrap_or(0);
            left.remove(lightest);
        }
    }
}

/// The style of one of our templates, which is well-formed.
pub(super) fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> Vec<(u8, String)> {
        let figures = [
            (3, "1 of 3 tables"),
            (1, "12,250,000 rows"),
            (2, "1,000.3 MB"),
            (4, "155.1 MB/s"),
            (5, "3 min 13 s left"),
        ];
        figures.map(|(weight, figure)| (weight, figure.to_owned())).to_vec()
    }

    #[test]
    fn nothing_is_cut_and_the_time_that_is_left_goes_last() {
        let words = |columns| Layout::of(columns).words(figures());
        let all = "1 of 3 tables, 12,250,000 rows, 1,000.3 MB, 155.1 MB/s, 3 min 13 s left";
        assert_eq!(words(200), all);
        assert_eq!(words(110), "1 of 3 tables, 1,000.3 MB, 155.1 MB/s, 3 min 13 s left");
        assert_eq!(words(80), "1 of 3 tables, 155.1 MB/s, 3 min 13 s left");
        assert_eq!(words(40), "3 min 13 s left");
        for columns in 20..300 {
            let layout = Layout::of(columns);
            let fits = layout.name + layout.bar + layout.words + FIXED <= columns.max(33);
            assert!(fits && (columns < 60 || words(columns).len() <= layout.words), "{columns}: {layout:?}");
        }
    }
}
