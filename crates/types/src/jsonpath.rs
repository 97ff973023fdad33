//! jsonpath: items that point to their operands and to the item that follows, each relative to the
//! item itself.
//!
//! Only the server has this form, and no crate reads it. Operands and followers are written behind
//! the item that names them. A pointer to anywhere else is damage. No path visits more items than
//! fit into its bytes, so no damage makes it run in a circle.

use base::PgVersion;

use crate::error::{Error, Result};
use crate::numeric;
use crate::reader::ByteReader;
use crate::text::json_string;
use crate::tuple::Align;
use crate::varlena::Varlena;

const DAMAGED: Error = Error::damaged("jsonpath");

/// `JSONPATH_VERSION`, in the low bits of the header.
const VERSION: u32 = 1;
/// `JSONPATH_LAX`.
const LAX: u32 = 0x8000_0000;
/// An unbounded end of `**`.
const UNBOUNDED: u32 = u32::MAX;
/// The least bytes of an item: one for its kind, padded, and four for its follower.
const ITEM_SIZE_MIN: usize = 8;
/// How deep operands are followed: our stack is smaller than the server's.
const DEPTH_MAX: usize = 1_000;

/// Kinds of items (`JsonPathItemType`) in their stored form.
mod kind {
    pub(super) const NULL: u8 = 0;
    pub(super) const STRING: u8 = 1;
    pub(super) const NUMERIC: u8 = 2;
    pub(super) const BOOL: u8 = 3;
    pub(super) const AND: u8 = 4;
    pub(super) const OR: u8 = 5;
    pub(super) const NOT: u8 = 6;
    pub(super) const IS_UNKNOWN: u8 = 7;
    pub(super) const ADD: u8 = 14;
    pub(super) const SUB: u8 = 15;
    pub(super) const MOD: u8 = 18;
    pub(super) const PLUS: u8 = 19;
    pub(super) const MINUS: u8 = 20;
    pub(super) const ANY_ARRAY: u8 = 21;
    pub(super) const ANY_KEY: u8 = 22;
    pub(super) const INDEX_ARRAY: u8 = 23;
    pub(super) const ANY: u8 = 24;
    pub(super) const KEY: u8 = 25;
    pub(super) const CURRENT: u8 = 26;
    pub(super) const ROOT: u8 = 27;
    pub(super) const VARIABLE: u8 = 28;
    pub(super) const FILTER: u8 = 29;
    pub(super) const EXISTS: u8 = 30;
    pub(super) const DATETIME: u8 = 37;
    pub(super) const LAST: u8 = 40;
    pub(super) const STARTS_WITH: u8 = 41;
    pub(super) const LIKE_REGEX: u8 = 42;
    pub(super) const DECIMAL: u8 = 46;
    pub(super) const TIME: u8 = 50;
}

/// Operators between two operands, in the order of kinds from [`kind::AND`] on.
const BINARY: [&str; 15] = ["&&", "||", "", "", "==", "!=", "<", ">", "<=", ">=", "+", "-", "*", "/", "%"];

/// Methods without an argument.
const METHODS: [(u8, &str); 13] = [
    (31, "type"),
    (32, "size"),
    (33, "abs"),
    (34, "floor"),
    (35, "ceiling"),
    (36, "double"),
    (38, "keyvalue"),
    (43, "bigint"),
    (44, "boolean"),
    (45, "date"),
    (47, "integer"),
    (48, "number"),
    (49, "string"),
];

/// Methods with an argument that may be missing.
const METHODS_OF_ONE: [(u8, &str); 5] = [
    (kind::DATETIME, "datetime"),
    (kind::TIME, "time"),
    (51, "time_tz"),
    (52, "timestamp"),
    (53, "timestamp_tz"),
];

/// Letters of `like_regex`'s flags.
const FLAGS: [(u32, u8); 5] = [(0x01, b'i'), (0x02, b's'), (0x04, b'm'), (0x08, b'x'), (0x10, b'q')];

/// How tightly an item binds.
fn priority(kind: u8) -> u8 {
    match kind {
        kind::OR => 0,
        kind::AND => 1,
        8..=13 | kind::STARTS_WITH => 2,
        kind::ADD | kind::SUB => 3,
        16..=kind::MOD => 4,
        kind::PLUS | kind::MINUS => 5,
        _ => 6,
    }
}

/// `jsonpath_out`. `jsonpath_send` puts the version 1 before it.
pub(crate) fn text(payload: &[u8], version: PgVersion, out: &mut Vec<u8>) -> Result<()> {
    let mut reader = ByteReader::new(payload, "jsonpath");
    let header = reader.u32()?;
    if header & !LAX != VERSION {
        return Err(DAMAGED);
    }
    if header & LAX == 0 {
        out.extend_from_slice(b"strict ");
    }
    let data = reader.rest();
    let numbers_apart = version.major() >= 15;
    Path { data, visits_left: data.len() / ITEM_SIZE_MIN + 1, depth: 0, numbers_apart, out }
        .chain(0, false, true)
}

struct Path<'a, 'o> {
    data: &'a [u8],
    visits_left: usize,
    depth: usize,
    numbers_apart: bool,
    out: &'o mut Vec<u8>,
}

/// An item after its kind and follower were read.
struct Item<'a> {
    kind: u8,
    start: usize,
    next: u32,
    /// Where its content begins.
    content: ByteReader<'a>,
}

impl Item<'_> {
    /// The target of `offset`; `None` for an offset of zero.
    fn target(&self, offset: u32) -> Result<Option<usize>> {
        match offset {
            0 => Ok(None),
            // A negative offset would lead backwards.
            offset => {
                usize::try_from(offset as i32).map(|offset| Some(self.start + offset)).map_err(|_| DAMAGED)
            }
        }
    }

    /// The next operand, which must be there.
    fn operand(&mut self) -> Result<usize> {
        let offset = self.content.u32()?;
        self.target(offset)?.ok_or(DAMAGED)
    }
}

impl<'a> Path<'a, '_> {
    fn item(&mut self, start: usize) -> Result<Item<'a>> {
        self.visits_left = self.visits_left.checked_sub(1).ok_or(DAMAGED)?;
        let mut content = ByteReader::new(self.data, "jsonpath");
        content.seek(start);
        let kind = content.u8()?;
        content.seek(Align::Int.up(content.at()));
        let next = content.u32()?;
        Ok(Item { kind, start, next, content })
    }

    fn put(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    /// Writes an item and all that follow it.
    fn chain(&mut self, start: usize, in_key: bool, brackets: bool) -> Result<()> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Error::damaged("jsonpath, or one with more than 1000 levels"));
        }
        let (mut start, mut in_key, mut brackets) = (start, in_key, brackets);
        loop {
            let item = self.item(start)?;
            let next = item.target(item.next)?;
            self.print(item, in_key, brackets)?;
            let Some(next) = next else { break };
            (start, in_key, brackets) = (next, true, true);
        }
        self.depth -= 1;
        Ok(())
    }

    /// Writes an operand of `parent`, in brackets if it does not bind more tightly.
    fn operand_of(&mut self, parent: u8, start: usize) -> Result<()> {
        let &own = self.data.get(start).ok_or(DAMAGED)?;
        self.chain(start, false, priority(own) <= priority(parent))
    }

    fn print(&mut self, mut item: Item<'a>, in_key: bool, brackets: bool) -> Result<()> {
        match item.kind {
            kind::NULL => self.put("null"),
            kind::STRING => self.string(&mut item)?,
            kind::NUMERIC => self.number(&item)?,
            kind::BOOL => {
                let value = item.content.u8()?;
                self.put(if value != 0 { "true" } else { "false" });
            }
            kind::AND | kind::OR | 8..=kind::MOD | kind::STARTS_WITH => self.binary(item, brackets)?,
            kind::NOT => self.wrapped("!(", item, ")")?,
            kind::IS_UNKNOWN => self.wrapped("(", item, ") is unknown")?,
            kind::PLUS | kind::MINUS => {
                let operand = item.operand()?;
                self.put(if brackets { "(" } else { "" });
                self.put(if item.kind == kind::PLUS { "+" } else { "-" });
                self.operand_of(item.kind, operand)?;
                self.put(if brackets { ")" } else { "" });
            }
            kind::ANY_ARRAY => self.put("[*]"),
            kind::ANY_KEY => self.put(if in_key { ".*" } else { "*" }),
            kind::INDEX_ARRAY => self.subscripts(item)?,
            kind::ANY => {
                self.put(if in_key { "." } else { "" });
                self.any(item)?;
            }
            kind::KEY => {
                self.put(if in_key { "." } else { "" });
                self.string(&mut item)?;
            }
            kind::CURRENT => self.put("@"),
            kind::ROOT => self.put("$"),
            kind::VARIABLE => {
                self.put("$");
                self.string(&mut item)?;
            }
            kind::FILTER => self.wrapped("?(", item, ")")?,
            kind::EXISTS => self.wrapped("exists (", item, ")")?,
            kind::LAST => self.put("last"),
            kind::LIKE_REGEX => self.like_regex(item, brackets)?,
            _ => self.method(item)?,
        }
        Ok(())
    }

    fn string(&mut self, item: &mut Item<'a>) -> Result<()> {
        let length = item.content.u32()? as usize;
        json_string(item.content.take(length)?, self.out);
        Ok(())
    }

    /// A number is put in parentheses if something follows it, because its dot could be taken for a
    /// decimal point. 14 does not do so yet.
    fn number(&mut self, item: &Item<'a>) -> Result<()> {
        let apart = item.next != 0 && self.numbers_apart;
        self.put(if apart { "(" } else { "" });
        let (number, _) = Varlena::read(item.content.rest())?;
        numeric::text(&number.payload()?, self.out)?;
        self.put(if apart { ")" } else { "" });
        Ok(())
    }

    fn binary(&mut self, mut item: Item<'a>, brackets: bool) -> Result<()> {
        let name = match item.kind {
            kind::STARTS_WITH => "starts with",
            other => BINARY.get(usize::from(other - kind::AND)).copied().ok_or(DAMAGED)?,
        };
        let (left, right) = (item.operand()?, item.operand()?);
        self.put(if brackets { "(" } else { "" });
        self.operand_of(item.kind, left)?;
        self.put(" ");
        self.put(name);
        self.put(" ");
        self.operand_of(item.kind, right)?;
        self.put(if brackets { ")" } else { "" });
        Ok(())
    }

    fn wrapped(&mut self, before: &str, mut item: Item<'a>, behind: &str) -> Result<()> {
        let operand = item.operand()?;
        self.put(before);
        self.chain(operand, false, false)?;
        self.put(behind);
        Ok(())
    }

    fn subscripts(&mut self, mut item: Item<'a>) -> Result<()> {
        let count = item.content.count(8)?;
        self.put("[");
        for index in 0..count {
            let from = item.operand()?;
            let to = item.content.u32()?;
            self.put(if index > 0 { "," } else { "" });
            self.chain(from, false, false)?;
            if let Some(to) = item.target(to)? {
                self.put(" to ");
                self.chain(to, false, false)?;
            }
        }
        self.put("]");
        Ok(())
    }

    fn any(&mut self, mut item: Item<'a>) -> Result<()> {
        let text = match (item.content.u32()?, item.content.u32()?) {
            (0, UNBOUNDED) => "**".to_owned(),
            (UNBOUNDED, UNBOUNDED) => "**{last}".to_owned(),
            (first, last) if first == last => format!("**{{{first}}}"),
            (UNBOUNDED, last) => format!("**{{last to {last}}}"),
            (first, UNBOUNDED) => format!("**{{{first} to last}}"),
            (first, last) => format!("**{{{first} to {last}}}"),
        };
        self.put(&text);
        Ok(())
    }

    fn like_regex(&mut self, mut item: Item<'a>, brackets: bool) -> Result<()> {
        let flags = item.content.u32()?;
        let operand = item.operand()?;
        self.put(if brackets { "(" } else { "" });
        self.operand_of(item.kind, operand)?;
        self.put(" like_regex ");
        self.string(&mut item)?;
        if flags != 0 {
            self.put(" flag \"");
            self.out.extend(FLAGS.iter().filter(|(bit, _)| flags & bit != 0).map(|&(_, letter)| letter));
            self.put("\"");
        }
        self.put(if brackets { ")" } else { "" });
        Ok(())
    }

    fn method(&mut self, mut item: Item<'a>) -> Result<()> {
        let named = |methods: &[(u8, &'static str)]| {
            methods.iter().find(|&&(kind, _)| kind == item.kind).map(|&(_, name)| name)
        };
        let (name, arguments) = match (named(&METHODS), named(&METHODS_OF_ONE)) {
            (Some(name), _) => (name, 0),
            (_, Some(name)) => (name, 1),
            _ if item.kind == kind::DECIMAL => ("decimal", 2),
            _ => return Err(DAMAGED),
        };
        self.put(".");
        self.put(name);
        self.put("(");
        for index in 0..arguments {
            let offset = item.content.u32()?;
            if let Some(argument) = item.target(offset)? {
                self.put(if index > 0 { "," } else { "" });
                self.chain(argument, false, false)?;
            }
        }
        self.put(")");
        Ok(())
    }
}
