//! Reads expression trees in the form of `nodeToString`: `{NAME :field value ...}`, lists in
//! parentheses, and `<>` for nothing. The bytes of constants are `length [ byte byte ... ]`, each
//! byte a signed number.
//!
//! Fields are found by their names, because majors add some and move others.

/// A part of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Item {
    /// A number, a word, or `<>`.
    Word(String),
    /// The bytes of a constant.
    Bytes(Vec<u8>),
    List(Vec<Item>),
    Node(ExpressionNode),
}

/// A node with its fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExpressionNode {
    pub(crate) name: String,
    fields: Vec<(String, Item)>,
}

/// How deep nodes and lists may be nested.
const DEPTH_MAX: usize = 500;

impl ExpressionNode {
    /// Parses a tree; `None` if `text` is not one.
    pub(crate) fn parse(text: &str) -> Option<ExpressionNode> {
        let mut tokens = Tokens { rest: text, depth: 0 };
        match tokens.item()? {
            Item::Node(node) if tokens.rest.trim().is_empty() => Some(node),
            _ => None,
        }
    }

    pub(crate) fn field(&self, name: &str) -> Option<&Item> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, item)| item)
    }

    pub(crate) fn word(&self, name: &str) -> Option<&str> {
        match self.field(name)? {
            Item::Word(word) => Some(word),
            _ => None,
        }
    }

    pub(crate) fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.word(name)?.parse().ok()
    }

    pub(crate) fn is_true(&self, name: &str) -> Option<bool> {
        Some(self.word(name)? == "true")
    }

    pub(crate) fn node(&self, name: &str) -> Option<&ExpressionNode> {
        match self.field(name)? {
            Item::Node(node) => Some(node),
            _ => None,
        }
    }

    /// The nodes of a list.
    pub(crate) fn nodes(&self, name: &str) -> Option<Vec<&ExpressionNode>> {
        match self.field(name)? {
            Item::Word(word) if word == "<>" => Some(Vec::new()),
            Item::List(items) => {
                let found: Vec<&ExpressionNode> = items
                    .iter()
                    .filter_map(|item| match item {
                        Item::Node(node) => Some(node),
                        _ => None,
                    })
                    .collect();
                (found.len() == items.len()).then_some(found)
            }
            _ => None,
        }
    }
}

struct Tokens<'a> {
    rest: &'a str,
    depth: usize,
}

impl<'a> Tokens<'a> {
    /// A bracket, or the text up to the next space or bracket. A backslash quotes the character
    /// behind it.
    fn next(&mut self) -> Option<&'a str> {
        self.rest = self.rest.trim_start_matches([' ', '\n', '\t']);
        let first = self.rest.chars().next()?;
        let length = if matches!(first, '(' | ')' | '{' | '}') {
            1
        } else {
            let mut escaped = false;
            let end = self.rest.find(|letter: char| {
                let ends = !escaped && matches!(letter, ' ' | '\n' | '\t' | '(' | ')' | '{' | '}');
                escaped = !escaped && letter == '\\';
                ends
            });
            end.unwrap_or(self.rest.len())
        };
        let (token, rest) = self.rest.split_at(length);
        self.rest = rest;
        Some(token)
    }

    fn peek(&self) -> Option<char> {
        self.rest.trim_start_matches([' ', '\n', '\t']).chars().next()
    }

    fn item(&mut self) -> Option<Item> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return None;
        }
        let item = match self.next()? {
            "{" => Item::Node(self.node()?),
            "(" => {
                let mut items = Vec::new();
                while self.peek()? != ')' {
                    items.push(self.item()?);
                }
                self.next();
                Item::List(items)
            }
            ")" | "}" => return None,
            word if self.peek() == Some('[') => {
                self.next();
                Item::Bytes(self.bytes(word.parse().ok()?)?)
            }
            word => Item::Word(word.to_owned()),
        };
        self.depth -= 1;
        Some(item)
    }

    fn node(&mut self) -> Option<ExpressionNode> {
        let mut node = ExpressionNode { name: self.next()?.to_owned(), fields: Vec::new() };
        loop {
            match self.next()? {
                "}" => return Some(node),
                field => {
                    let field = field.strip_prefix(':')?.to_owned();
                    node.fields.push((field, self.item()?));
                }
            }
        }
    }

    /// The bytes up to the closing bracket. A constant that is passed by value takes eight,
    /// whatever its length.
    fn bytes(&mut self, length: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        loop {
            match self.next()? {
                "]" => break,
                byte => bytes.push(byte.parse::<i8>().ok()? as u8),
            }
        }
        bytes.truncate(length);
        (bytes.len() == length).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lists_and_bytes() {
        let text = "{OPEXPR :opno 96 :name a\\ b :args ({VAR :varno 1} {CONST :constvalue 4 [ 1 -1 0 0 0 0 0 0 ]}) :none <>}";
        let node = ExpressionNode::parse(text).unwrap();
        assert_eq!((node.name.as_str(), node.number("opno")), ("OPEXPR", Some(96)));
        assert_eq!(node.word("name"), Some("a\\ b"));
        let args = node.nodes("args").unwrap();
        assert_eq!(args[0].number("varno"), Some(1_i16));
        assert_eq!(args[1].field("constvalue"), Some(&Item::Bytes(vec![1, 255, 0, 0])));
        assert_eq!(node.nodes("none"), Some(Vec::new()));
    }

    #[test]
    fn what_is_no_tree() {
        let deep = format!("{{A :b {}", "(".repeat(1_000));
        for text in [
            "",
            "x",
            "{",
            "{A",
            "{A :b}",
            "{A b c}",
            "{A :b c} d",
            "(a)",
            "{A :b 4 [ 1 2 ]}",
            "{A :b 1 [ 300 ]}",
            &deep,
        ] {
            assert_eq!(ExpressionNode::parse(text), None, "{text}");
        }
    }
}
