//! Evaluates a compiled filter, with three-valued logic and in the server's order. An AND or OR
//! stops where the server stops, so a cast behind that cannot fail.

use std::borrow::Cow;

use crate::cast::Cast;
use crate::error::{Error, Result};
use crate::functions::Operator;
use crate::value::{Kind, Value};

/// An expression of known type.
#[derive(Debug, Clone)]
pub(crate) enum Expression {
    /// A column, by its number.
    Column(i16, Kind),
    /// A constant's payload; `None` is NULL.
    Constant(Option<Box<[u8]>>, Kind),
    Cast(Cast, Kind, Box<Expression>),
    Compare(Operator, Box<[Expression; 2]>),
    /// IS DISTINCT FROM.
    Distinct(Box<[Expression; 2]>),
    /// `left = ANY (...)` and `left <> ALL (...)` in all their forms.
    AnyOf {
        operator: Operator,
        left: Box<Expression>,
        elements: Vec<Expression>,
        any: bool,
    },
    And(Vec<Expression>),
    Or(Vec<Expression>),
    Not(Box<Expression>),
    IsNull(Box<Expression>),
    IsNotNull(Box<Expression>),
    /// IS TRUE, IS FALSE, IS UNKNOWN (`None`), and whether it IS NOT.
    IsTruth {
        argument: Box<Expression>,
        truth: Option<bool>,
        negated: bool,
    },
}

/// The payload of a column, by its number; `None` is NULL.
pub(crate) type Columns<'c, 'a> = dyn Fn(i16) -> Result<Option<Cow<'a, [u8]>>, types::Error> + 'c;

impl Expression {
    /// The expression's value; `None` is NULL.
    fn value<'a>(&'a self, columns: &Columns<'_, 'a>) -> Result<Option<Value<'a>>> {
        match self {
            Expression::Column(number, kind) => {
                columns(*number)?.map(|payload| Value::read(*kind, payload)).transpose()
            }
            Expression::Constant(payload, kind) => {
                payload.as_deref().map(|payload| Value::read(*kind, Cow::Borrowed(payload))).transpose()
            }
            Expression::Cast(cast, to, argument) => {
                argument.value(columns)?.map(|value| cast.apply(value, *to)).transpose()
            }
            truth => Ok(truth.truth(columns)?.map(Value::Bool)),
        }
    }

    /// The expression's value as a boolean; `None` is NULL.
    pub(crate) fn truth<'a>(&'a self, columns: &Columns<'_, 'a>) -> Result<Option<bool>> {
        match self {
            Expression::Column(..) | Expression::Constant(..) | Expression::Cast(..) => {
                match self.value(columns)? {
                    None => Ok(None),
                    Some(Value::Bool(truth)) => Ok(Some(truth)),
                    Some(_) => Err(Error::damaged()),
                }
            }
            Expression::Compare(operator, sides) => {
                let (left, right) = (sides[0].value(columns)?, sides[1].value(columns)?);
                let (Some(left), Some(right)) = (left, right) else { return Ok(None) };
                Ok(Some(operator.holds(left.compare(&right)?)))
            }
            Expression::Distinct(sides) => {
                Ok(Some(match (sides[0].value(columns)?, sides[1].value(columns)?) {
                    (None, None) => false,
                    (Some(left), Some(right)) => left.compare(&right)?.is_ne(),
                    _ => true,
                }))
            }
            Expression::AnyOf { operator, left, elements, any } => {
                any_of(*operator, left, elements, *any, columns)
            }
            Expression::And(arguments) => all(arguments, true, columns),
            Expression::Or(arguments) => all(arguments, false, columns),
            Expression::Not(argument) => Ok(argument.truth(columns)?.map(|truth| !truth)),
            Expression::IsNull(argument) => Ok(Some(argument.value(columns)?.is_none())),
            Expression::IsNotNull(argument) => Ok(Some(argument.value(columns)?.is_some())),
            Expression::IsTruth { argument, truth, negated } => {
                Ok(Some((argument.truth(columns)? == *truth) != *negated))
            }
        }
    }
}

/// AND (`neutral` is true) or OR of `arguments`. The first argument that is not neutral decides.
/// Otherwise the result is NULL if there was a NULL.
fn all<'a>(arguments: &'a [Expression], neutral: bool, columns: &Columns<'_, 'a>) -> Result<Option<bool>> {
    let mut result = Some(neutral);
    for argument in arguments {
        match argument.truth(columns)? {
            Some(truth) if truth != neutral => return Ok(Some(truth)),
            Some(_) => {}
            None => result = None,
        }
    }
    Ok(result)
}

fn any_of<'a>(
    operator: Operator,
    left: &'a Expression,
    elements: &'a [Expression],
    any: bool,
    columns: &Columns<'_, 'a>,
) -> Result<Option<bool>> {
    let left = left.value(columns)?;
    // The array is built first, so all elements are evaluated, even if they are not compared.
    let elements: Vec<_> = elements.iter().map(|element| element.value(columns)).collect::<Result<_>>()?;
    if elements.is_empty() {
        return Ok(Some(!any));
    }
    let Some(left) = left else { return Ok(None) };
    let mut result = Some(!any);
    for element in elements {
        let Some(element) = element else {
            result = None;
            continue;
        };
        if operator.holds(left.compare(&element)?) == any {
            return Ok(Some(any));
        }
    }
    Ok(result)
}
