//! The manual pages as one page of Markdown: those of the program and of each of its commands.
//!
//! Only what clap_mangen writes of roff is known here; anything else would show in the page as it
//! is.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;

/// The page, of the manual that `program` prints.
pub(super) fn page(program: &Path) -> Result<String> {
    let dir = tempfile::tempdir()?;
    let target = dir.path().to_string_lossy();
    super::super::output(program, &["man", "--dir", &target])?;
    let mut pages: Vec<(String, String)> = Vec::new();
    for entry in std::fs::read_dir(dir.path())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().trim_end_matches(".1").replace('-', " ");
        pages.push((name, std::fs::read_to_string(entry.path())?));
    }
    pages.sort();
    let mut text =
        "# Manual page\n\nThe same as `man docs/pgsluice.1`, and a page for each command.\n".to_owned();
    for (name, roff) in pages {
        write!(text, "\n## {name}\n\n{}", markdown(&roff))?;
    }
    Ok(text)
}

fn markdown(roff: &str) -> String {
    let mut text = String::new();
    let mut is_term = false;
    let mut is_synopsis = false;
    // Exit codes stand in lines of their own.
    let mut is_literal = false;
    for line in roff.lines() {
        let (request, rest) = match line.strip_prefix('.') {
            Some(line) => line.split_once(' ').unwrap_or((line, "")),
            None => ("", line),
        };
        match request {
            "SH" => {
                if is_literal {
                    text.push_str("```\n");
                }
                is_synopsis = rest == "SYNOPSIS";
                is_literal = rest == "EXTRA";
                text.push_str(&match is_literal {
                    true => "\n```text\n".to_owned(),
                    false => format!("\n**{}**\n\n", plain(rest)),
                });
            }
            "TP" => {
                is_term = true;
                text.push('\n');
            }
            "IP" => text.push_str("\n- "),
            "" if is_term => {
                text.push_str(&format!("`{}`  \n", plain(rest).trim()));
                is_term = false;
            }
            "" if is_literal => text.push_str(&format!("{}\n", plain(rest))),
            "" if is_synopsis => text.push_str(&format!("`{}`\n", plain(rest).trim())),
            "" => text.push_str(&format!("{}\n", plain(rest).replace('<', "&lt;"))),
            "TH" | "ie" | "el" => {}
            // Paragraphs, breaks and indentation.
            _ => text.push('\n'),
        }
    }
    if is_literal {
        text.push_str("```\n");
    }
    text
}

/// A line without its fonts and escapes.
fn plain(line: &str) -> String {
    let mut text = line.to_owned();
    for (escape, plain) in
        [("\\fB", ""), ("\\fI", ""), ("\\fR", ""), ("\\*(Aq", "'"), ("\\-", "-"), ("\\(bu", "-"), ("\\&", "")]
    {
        text = text.replace(escape, plain);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roff_becomes_markdown() {
        let roff = ".TH a 1\n.SH OPTIONS\n.TP\n\\fB\\-\\-file\\fR \\fI<FILE>\\fR\nA file\\*(Aqs name\n";
        assert_eq!(markdown(roff), "\n**OPTIONS**\n\n\n`--file <FILE>`  \nA file's name\n");
        let roff = ".SH EXTRA\n0  done\n.SH VERSION\nv1\n";
        assert_eq!(markdown(roff), "\n```text\n0  done\n```\n\n**VERSION**\n\nv1\n");
    }
}
