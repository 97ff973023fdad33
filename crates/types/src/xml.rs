//! xml is stored as it came. Output writes its declaration anew.
//!
//! The encoding in a declaration is that of another place, and is left out. If the declaration then
//! says no more than the default, all of it is left out, together with one line feed behind it. A
//! declaration that cannot be read stays.

/// The `version` that a declaration need not give.
const DEFAULT_VERSION: &[u8] = b"1.0";

#[derive(Default)]
struct Declaration<'a> {
    version: Option<&'a [u8]>,
    standalone: Option<bool>,
    /// Where the document goes on.
    end: usize,
}

/// `xml_out`. In UTF-8, `xml_send` writes the same.
pub(crate) fn render(stored: &[u8], out: &mut Vec<u8>) {
    let Some(declaration) = declaration(stored) else {
        out.extend_from_slice(stored);
        return;
    };
    let rest = &stored[declaration.end..];
    let version = declaration.version.unwrap_or(DEFAULT_VERSION);
    if version == DEFAULT_VERSION && declaration.standalone.is_none() {
        out.extend_from_slice(rest.strip_prefix(b"\n").unwrap_or(rest));
        return;
    }
    out.extend_from_slice(b"<?xml version=\"");
    out.extend_from_slice(version);
    out.push(b'"');
    if let Some(standalone) = declaration.standalone {
        out.extend_from_slice(b" standalone=\"");
        out.extend_from_slice(if standalone { b"yes" } else { b"no" });
        out.push(b'"');
    }
    out.extend_from_slice(b"?>");
    out.extend_from_slice(rest);
}

/// The result of `parse_xml_decl`; `None` if it fails. Without a declaration, everything is unset.
fn declaration(text: &[u8]) -> Option<Declaration<'_>> {
    let Some(rest) = text.strip_prefix(b"<?xml") else { return Some(Declaration::default()) };
    if name_goes_on(rest) {
        return Some(Declaration::default());
    }
    let mut rest = spaces(rest)?;
    rest = rest.strip_prefix(b"version")?;
    let (version, behind) = quoted(equals(rest)?)?;
    rest = behind;
    if let Some(behind) = skip(rest).strip_prefix(b"encoding") {
        spaces(rest)?;
        rest = quoted(equals(behind)?)?.1;
    }
    let mut standalone = None;
    if let Some(behind) = skip(rest).strip_prefix(b"standalone") {
        spaces(rest)?;
        let behind = equals(behind)?;
        let answers = [(&b"'yes'"[..], true), (b"\"yes\"", true), (b"'no'", false), (b"\"no\"", false)];
        let (behind, answer) =
            answers.iter().find_map(|&(text, answer)| Some((behind.strip_prefix(text)?, answer)))?;
        (rest, standalone) = (behind, Some(answer));
    }
    rest = skip(rest).strip_prefix(b"?>")?;
    let end = text.len() - rest.len();
    text[..end].is_ascii().then_some(Declaration { version: Some(version), standalone, end })
}

/// Whether the text after `<?xml` continues a longer name, as in `<?xml-stylesheet`.
fn name_goes_on(rest: &[u8]) -> bool {
    matches!(rest.first(), Some(b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b':' | 0x80..))
}

fn skip(text: &[u8]) -> &[u8] {
    let blanks = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
    &text[blanks..]
}

/// Skips at least one blank. `None` if there is none.
fn spaces(text: &[u8]) -> Option<&[u8]> {
    let rest = skip(text);
    (rest.len() < text.len()).then_some(rest)
}

fn equals(text: &[u8]) -> Option<&[u8]> {
    skip(text).strip_prefix(b"=").map(skip)
}

fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&quote, rest) = text.split_first().filter(|(quote, _)| matches!(quote, b'\'' | b'"'))?;
    let end = rest.iter().position(|&byte| byte == quote)?;
    Some((&rest[..end], &rest[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations() {
        for (stored, expected) in [
            ("<a/>", "<a/>"),
            ("\n<a/>", "<a/>"),
            ("<?xml version=\"1.0\" encoding=\"LATIN1\"?>\n\n<a/>", "\n<a/>"),
            ("<?xml version='1.1' ?><a/>", "<?xml version=\"1.1\"?><a/>"),
            (
                "<?xml version='1.0' standalone='no'?>\n<a/>",
                "<?xml version=\"1.0\" standalone=\"no\"?>\n<a/>",
            ),
            ("<?xml-stylesheet href='x'?><a/>", "<?xml-stylesheet href='x'?><a/>"),
            ("<?xml encoding='x'?><a/>", "<?xml encoding='x'?><a/>"),
        ] {
            let mut out = Vec::new();
            render(stored.as_bytes(), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
