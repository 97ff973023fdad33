//! Compiles a stored tree to an expression that can be evaluated, or names the part that cannot.
//!
//! Types are checked on the way: a listed function gets arguments of its listed types, so
//! evaluation never meets an unexpected value.

use std::borrow::Cow;

use base::Oid;

use crate::cast::Cast;
use crate::error::{RefusedFilter, Result};
use crate::evaluate::Expression;
use crate::functions::{Operator, cast, comparison};
use crate::names;
use crate::node::{ExpressionNode, Item};
use crate::value::Kind;

/// `C_COLLATION_OID` and the OID of POSIX, which is the same collation.
const C_COLLATIONS: [u32; 2] = [950, 951];
/// `DEFAULT_COLLATION_OID`: the database's collation.
const DEFAULT_COLLATION: u32 = 100;

/// The properties of a database that a filter's meaning depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Surroundings {
    /// Whether the database's own collation is C or POSIX.
    pub default_collation_is_c: bool,
}

/// A row filter, ready to judge rows.
#[derive(Debug, Clone)]
pub struct Filter {
    root: Expression,
    columns: Vec<i16>,
}

impl Filter {
    /// Compiles `prqual`. `text` is the same filter from `pg_get_expr`, for messages.
    ///
    /// # Errors
    /// When a part of it cannot be evaluated here.
    pub fn compile(prqual: &str, text: &str, surroundings: Surroundings) -> Result<Filter, RefusedFilter> {
        let refused = |reason: String| RefusedFilter { text: text.to_owned(), reason };
        let tree = ExpressionNode::parse(prqual)
            .ok_or_else(|| refused("it is not stored as it was expected".to_owned()))?;
        let mut compiler = Compiler { surroundings, columns: Vec::new() };
        let root = match compiler.expression(&tree).map_err(refused)? {
            (root, Kind::Bool) => root,
            _ => return Err(refused("it is not boolean".to_owned())),
        };
        compiler.columns.sort_unstable();
        compiler.columns.dedup();
        Ok(Filter { root, columns: compiler.columns })
    }

    /// The numbers (`attnum`) of the columns that it reads.
    #[must_use]
    pub fn columns(&self) -> &[i16] {
        &self.columns
    }

    /// Whether a row is published. `payload` returns a column's payload by its number, `None` for
    /// NULL.
    ///
    /// # Errors
    /// When a payload is damaged or not available, or when a cast fails.
    pub fn keeps<'a>(
        &'a self,
        payload: &dyn Fn(i16) -> Result<Option<Cow<'a, [u8]>>, types::Error>,
    ) -> Result<bool> {
        Ok(self.root.truth(payload)? == Some(true))
    }
}

struct Compiler {
    surroundings: Surroundings,
    columns: Vec<i16>,
}

type Compiled<T = (Expression, Kind)> = std::result::Result<T, String>;

/// Returns a field that every node of its kind has.
fn have<T>(field: Option<T>, node: &ExpressionNode) -> Compiled<T> {
    field.ok_or_else(|| format!("its {} is not stored as it was expected", node.name))
}

fn kind_of(oid: u32) -> Compiled<Kind> {
    Kind::of(Oid(oid)).ok_or_else(|| match names::type_name(oid) {
        Some(name) => format!("it has values of type {name}"),
        None => "it has values of a type that is not known here".to_owned(),
    })
}

/// Names a called function that is not a cast.
fn calls(function: u32) -> String {
    match names::function(function) {
        Some(name) => format!("it calls {name}()"),
        None => "it calls a function that is not known here".to_owned(),
    }
}

/// Names a node in words.
fn part(node: &str) -> String {
    let written = match node {
        "VAR" => "a column",
        "FUNCEXPR" => "a call of a function",
        "OPEXPR" => "an operator",
        "COERCEVIAIO" => "a cast by way of text",
        "ARRAYCOERCEEXPR" => "a cast of an array",
        "ARRAYEXPR" | "ARRAY" => "ARRAY[...]",
        "ROWEXPR" | "ROW" => "ROW(...)",
        "ROWCOMPAREEXPR" | "ROWCOMPARE" => "a comparison of rows",
        "NULLIFEXPR" => "NULLIF",
        "MINMAXEXPR" | "MINMAX" => "GREATEST or LEAST",
        "COALESCEEXPR" | "COALESCE" => "COALESCE",
        "CASEEXPR" | "CASE" => "CASE",
        "SUBSCRIPTINGREF" => "a subscript",
        "XMLEXPR" | "JSONEXPR" | "JSONCONSTRUCTOREXPR" | "JSONISPREDICATE" => {
            "a construct of SQL/XML or SQL/JSON"
        }
        other => return format!("an expression of kind {other}"),
    };
    written.to_owned()
}

impl Compiler {
    fn expression(&mut self, node: &ExpressionNode) -> Compiled {
        match node.name.as_str() {
            "VAR" => self.column(node),
            "CONST" => constant(node),
            "RELABELTYPE" => self.relabel(node),
            // The comparison has the collation, too.
            "COLLATEEXPR" => self.expression(have(node.node("arg"), node)?),
            "FUNCEXPR" => self.function(node),
            "OPEXPR" => {
                let (operator, sides) = self.comparison(node)?;
                Ok((Expression::Compare(operator, sides), Kind::Bool))
            }
            "DISTINCTEXPR" => match self.comparison(node)? {
                (Operator::Equal, sides) => Ok((Expression::Distinct(sides), Kind::Bool)),
                _ => Err("it has an IS DISTINCT FROM that is not about equality".to_owned()),
            },
            "SCALARARRAYOPEXPR" => self.any_of(node),
            "BOOLEXPR" => self.boolean(node),
            "NULLTEST" => self.null_test(node),
            "BOOLEANTEST" => self.boolean_test(node),
            other => Err(format!("it has {}", part(other))),
        }
    }

    fn column(&mut self, node: &ExpressionNode) -> Compiled {
        let number: i16 = have(node.number("varattno"), node)?;
        if number <= 0 || node.number("varno") != Some(1) || node.number("varlevelsup") != Some(0) {
            return Err("it has something that is no column".to_owned());
        }
        self.columns.push(number);
        let kind = kind_of(have(node.number("vartype"), node)?)?;
        Ok((Expression::Column(number, kind), kind))
    }

    /// A cast that only gives the same bytes another type.
    fn relabel(&mut self, node: &ExpressionNode) -> Compiled {
        let (argument, from) = self.expression(have(node.node("arg"), node)?)?;
        let to = kind_of(have(node.number("resulttype"), node)?)?;
        let cast = match (from, to) {
            _ if from == to => return Ok((argument, to)),
            // Blanks at the end of a bpchar have no meaning, so it must not be read as text.
            (Kind::Text, Kind::Bpchar) => Cast::TextToBpchar,
            (Kind::Int4, Kind::Oid) => Cast::IntToOid,
            (Kind::Oid, Kind::Int4) => Cast::OidToInt,
            _ => return Err(format!("it takes a {from} for a {to}")),
        };
        Ok((Expression::Cast(cast, to, Box::new(argument)), to))
    }

    fn function(&mut self, node: &ExpressionNode) -> Compiled {
        let function: u32 = have(node.number("funcid"), node)?;
        let Some((from, to, cast)) = cast(function) else {
            return Err(calls(function));
        };
        let arguments = have(node.nodes("args"), node)?;
        let [argument] = arguments[..] else {
            return Err(calls(function));
        };
        let (argument, kind) = self.expression(argument)?;
        if kind != from {
            return Err(format!("it takes a {kind} for a {from}"));
        }
        Ok((Expression::Cast(cast, to, Box::new(argument)), to))
    }

    fn comparison(&mut self, node: &ExpressionNode) -> Compiled<(Operator, Box<[Expression; 2]>)> {
        let arguments = have(node.nodes("args"), node)?;
        let (operator, kinds) = self.operator(node)?;
        let [left, right] = arguments[..] else { return Err("it has an operator of one side".to_owned()) };
        let (left, right) = (self.expression(left)?, self.expression(right)?);
        if (left.1, right.1) != kinds {
            return Err(format!("it compares a {} with a {}", left.1, right.1));
        }
        Ok((operator, Box::new([left.0, right.0])))
    }

    /// The comparison behind an operator, if it is one and its collation is known.
    fn operator(&self, node: &ExpressionNode) -> Compiled<(Operator, (Kind, Kind))> {
        let function: u32 = have(node.number("opfuncid"), node)?;
        let Some((left, right, operator)) = comparison(function) else {
            let operator: u32 = have(node.number("opno"), node)?;
            return Err(match names::operator(operator) {
                Some(name) => format!("it has the operator {name} between values that are not compared here"),
                None => "it has an operator that is not known here".to_owned(),
            });
        };
        let collation: u32 = have(node.number("inputcollid"), node)?;
        let is_c = C_COLLATIONS.contains(&collation)
            || collation == DEFAULT_COLLATION && self.surroundings.default_collation_is_c;
        if left.is_collated() && operator.orders() && !is_c {
            return Err("it orders text under a collation that is not C".to_owned());
        }
        // Only users' collations may treat different bytes as equal.
        if Oid(collation).is_user_defined() {
            return Err("it compares text under a collation of the database's own".to_owned());
        }
        Ok((operator, (left, right)))
    }

    fn any_of(&mut self, node: &ExpressionNode) -> Compiled {
        let (operator, (left_kind, right_kind)) = self.operator(node)?;
        let arguments = have(node.nodes("args"), node)?;
        let [left, array] = arguments[..] else { return Err("it has an operator of one side".to_owned()) };
        let (left, kind) = self.expression(left)?;
        let elements = self.elements(array, right_kind)?;
        if kind != left_kind {
            return Err(format!("it compares a {kind} with a {left_kind}"));
        }
        let any = have(node.is_true("useOr"), node)?;
        Ok((Expression::AnyOf { operator, left: Box::new(left), elements, any }, Kind::Bool))
    }

    /// The elements of an array in the filter, each by itself or all in one constant.
    fn elements(&mut self, node: &ExpressionNode, kind: Kind) -> Compiled<Vec<Expression>> {
        match node.name.as_str() {
            "ARRAYEXPR" if node.is_true("multidims") == Some(false) => {
                let mut elements = Vec::new();
                for element in have(node.nodes("elements"), node)? {
                    let (element, found) = self.expression(element)?;
                    if found != kind {
                        return Err(format!("it has an array of {found}"));
                    }
                    elements.push(element);
                }
                Ok(elements)
            }
            // An array of text is the same as an array of varchar.
            "RELABELTYPE" => self.elements(have(node.node("arg"), node)?, kind),
            "CONST" => constant_elements(node, kind),
            other => Err(format!("it looks for a value in {}", part(other))),
        }
    }

    fn boolean(&mut self, node: &ExpressionNode) -> Compiled {
        let mut arguments = Vec::new();
        for argument in have(node.nodes("args"), node)? {
            match self.expression(argument)? {
                (argument, Kind::Bool) => arguments.push(argument),
                (_, other) => return Err(format!("it takes a {other} for a boolean")),
            }
        }
        let expression = match (have(node.word("boolop"), node)?, arguments.len()) {
            ("and", _) => Expression::And(arguments),
            ("or", _) => Expression::Or(arguments),
            ("not", 1) => Expression::Not(Box::new(arguments.remove(0))),
            (other, _) => return Err(format!("it has a boolean {other}")),
        };
        Ok((expression, Kind::Bool))
    }

    /// If only being NULL counts, the argument may be a column of any type.
    fn null_test(&mut self, node: &ExpressionNode) -> Compiled {
        if node.is_true("argisrow") != Some(false) {
            return Err("it asks whether a row is null".to_owned());
        }
        let argument = have(node.node("arg"), node)?;
        let argument = match argument.number::<i16>("varattno") {
            Some(number) if argument.name == "VAR" && number > 0 => {
                self.columns.push(number);
                // Any payload can be read as text.
                Expression::Column(number, Kind::Text)
            }
            _ => self.expression(argument)?.0,
        };
        let test = match have(node.word("nulltesttype"), node)? {
            "0" => Expression::IsNull(Box::new(argument)),
            "1" => Expression::IsNotNull(Box::new(argument)),
            other => return Err(format!("it has a null test {other}")),
        };
        Ok((test, Kind::Bool))
    }

    fn boolean_test(&mut self, node: &ExpressionNode) -> Compiled {
        let (argument, Kind::Bool) = self.expression(have(node.node("arg"), node)?)? else {
            return Err("it asks whether what is no boolean is true".to_owned());
        };
        let (truth, negated) = match have(node.word("booltesttype"), node)? {
            "0" => (Some(true), false),
            "1" => (Some(true), true),
            "2" => (Some(false), false),
            "3" => (Some(false), true),
            "4" => (None, false),
            "5" => (None, true),
            other => return Err(format!("it has a boolean test {other}")),
        };
        Ok((Expression::IsTruth { argument: Box::new(argument), truth, negated }, Kind::Bool))
    }
}

/// The bytes of a constant, in the form of a column of its type; `None` is NULL.
fn constant_payload(node: &ExpressionNode) -> Compiled<Option<Box<[u8]>>> {
    if have(node.is_true("constisnull"), node)? {
        return Ok(None);
    }
    let Some(Item::Bytes(bytes)) = node.field("constvalue") else { return have(None, node) };
    let length: i16 = have(node.number("constlen"), node)?;
    let payload = match length {
        -1 => types::payload(bytes)
            .map_err(|_| format!("its {} is not stored as it was expected", node.name))?,
        _ => Cow::Borrowed(&bytes[..]),
    };
    Ok(Some(payload.into()))
}

fn constant(node: &ExpressionNode) -> Compiled {
    let kind = kind_of(have(node.number("consttype"), node)?)?;
    Ok((Expression::Constant(constant_payload(node)?, kind), kind))
}

fn constant_elements(node: &ExpressionNode, kind: Kind) -> Compiled<Vec<Expression>> {
    let Some(array) = constant_payload(node)? else { return Err("it looks for a value in NULL".to_owned()) };
    let expected = || format!("its {} is not stored as it was expected", node.name);
    let (element, elements) = types::array_elements(&array, |element| match element.0 {
        20 | 701 | 1114 | 1184 | 1083 => Some((8, types::Align::Double)),
        21 => Some((2, types::Align::Short)),
        23 | 26 | 700 | 1082 => Some((4, types::Align::Int)),
        16 => Some((1, types::Align::Char)),
        2950 => Some((16, types::Align::Char)),
        25 | 1042 | 1043 | 1700 => Some((-1, types::Align::Int)),
        _ => None,
    })
    .map_err(|_| expected())?
    .ok_or_else(|| "it looks for a value in an array of another type".to_owned())?;
    if Kind::of(element) != Some(kind) {
        return Err("it looks for a value in an array of another type".to_owned());
    }
    Ok(elements.into_iter().map(|payload| Expression::Constant(payload.map(Into::into), kind)).collect())
}
