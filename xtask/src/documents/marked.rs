//! Parts of hand-written documents that come from recorded runs.
//!
//! A block stands between `<!-- begin:NAME -->` and `<!-- end:NAME -->`. A single figure stands in
//! bold before a comment:
//!
//! - `<!-- times:FILE:CASE -->`: how many times native's rate that run had.
//! - `<!-- walsenders:FILE:CASE:SIDE -->`: CPU seconds of walsenders for a million rows.
//!
//! Everything else of the document is left as it is.

use anyhow::{Context, Result};

use super::records::Records;

const TIMES: &str = "<!-- times:";
const WALSENDERS: &str = "<!-- walsenders:";

/// `text` with the block called `name` replaced by `content`.
pub(super) fn with_block(text: &str, name: &str, content: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- begin:{name} -->\n"), format!("<!-- end:{name} -->"));
    let (before, rest) = text.split_once(&begin).with_context(|| format!("{begin:?} is missing"))?;
    let (_, after) = rest.split_once(&end).with_context(|| format!("{end:?} is missing"))?;
    Ok(format!("{before}{begin}{content}{end}{after}"))
}

/// `text` with each marked figure as the run that it names has it.
pub(super) fn with_figures(text: &str, records: &Records) -> Result<String> {
    let text = with_figure(text, TIMES, &|name| Ok(records.run(name)?.ratio()))?;
    with_figure(&text, WALSENDERS, &|name| {
        let (run, side) = name.rsplit_once(':').context("a figure of walsenders names no side")?;
        records.run(run)?.walsenders(side)
    })
}

/// `text` with each figure before a comment that begins with `mark`, by the name in the comment.
fn with_figure(text: &str, mark: &str, figure: &dyn Fn(&str) -> Result<f64>) -> Result<String> {
    let mut parts = text.split(mark);
    let mut done = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, after) = part.split_once(" -->").context("a figure's comment does not end")?;
        let before = done
            .strip_suffix("**")
            .and_then(|text| text.rfind("**"))
            .with_context(|| format!("no figure in bold stands before {mark}{name} -->"))?;
        let figure = figure(name)?;
        done.truncate(before);
        done.push_str(&format!("**{figure:.2}**{mark}{name} -->{after}"));
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_replaced_and_nothing_else() {
        let text = "a\n<!-- begin:x -->\nold\n<!-- end:x -->\nb\n";
        let new = with_block(text, "x", "new\n").expect("both markers are there");
        assert_eq!(new, "a\n<!-- begin:x -->\nnew\n<!-- end:x -->\nb\n");
        assert!(with_block(text, "y", "").is_err());
    }

    #[test]
    fn a_figure_is_that_of_the_run_it_names() {
        let line = r#"{"name":"a","rows":1,"stock":[{"seconds":3.0}],"ours":[{"seconds":2.0}]}"#;
        let records = Records::of("catchup", line);
        let new =
            with_figures("**b** at **9.99**<!-- times:catchup:a --> times", &records).expect("recorded");
        assert_eq!(new, "**b** at **1.50**<!-- times:catchup:a --> times");
        assert!(with_figures("9.99<!-- times:catchup:a -->", &records).is_err());
        assert!(with_figures("**9.99**<!-- times:catchup:b -->", &records).is_err());
        assert!(with_figures("**9.99**<!-- walsenders:catchup:a:native -->", &records).is_err());
    }
}
