//! Whether values of one type fit into another.
//!
//! Values travel as text unless both types are the same. So the question is whether the target's
//! type reads the text that the source's type prints. This module judges known pairs. For other
//! pairs it only reports that the types differ.

use base::Oid;
use source::publication::Column;

/// How the source's values fit the target's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The same type, or one that holds every value unchanged.
    Every,
    /// Some values are refused.
    Some(&'static str),
    /// Every value is accepted, some are changed.
    Changed(&'static str),
    /// The target's type reads the text of no value.
    None,
}

/// Types that read one another's text, or do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Integer(u8),
    Numeric,
    Float(u8),
    Bool,
    Text,
    Date,
    Timestamp,
    TimestampTz,
    Time,
    Interval,
    Uuid,
    Network,
    Other,
}

fn family(base: Oid) -> Family {
    match base.0 {
        21 => Family::Integer(2),
        23 => Family::Integer(4),
        20 => Family::Integer(8),
        1700 => Family::Numeric,
        700 => Family::Float(4),
        701 => Family::Float(8),
        16 => Family::Bool,
        25 | 1042 | 1043 => Family::Text,
        1082 => Family::Date,
        1114 => Family::Timestamp,
        1184 => Family::TimestampTz,
        1083 | 1266 => Family::Time,
        1186 => Family::Interval,
        2950 => Family::Uuid,
        650 | 869 => Family::Network,
        _ => Family::Other,
    }
}

const REFUSED: &str = "values that do not fit are refused";
const READ_AS_TEXT: &str = "values whose text the target's type does not read are refused";
const TOO_LONG: &str = "values that are too long are refused";
const ROUNDED: &str = "values are rounded";

/// How `source`'s values fit into `target`.
pub(crate) fn fit(source: &Column, target: &Column) -> Fit {
    let (from, to) = (&source.data_type, &target.data_type);
    if from.base == to.base && !from.base.is_user_defined() {
        return same_type(from.base, source.typmod, target.typmod);
    }
    if from.base.is_user_defined() && to.base.is_user_defined() && from.name == to.name {
        return Fit::Every;
    }
    let (from, to) = (family(from.base), family(to.base));
    match (from, to) {
        (_, Family::Text) if target.typmod < 0 => Fit::Every,
        (Family::Text, Family::Text) => Fit::Some(TOO_LONG),
        (Family::Text, _) => Fit::Some(READ_AS_TEXT),
        (_, Family::Text) => Fit::Some(REFUSED),
        (Family::Integer(from), Family::Integer(to)) if from < to => Fit::Every,
        (Family::Integer(_) | Family::Float(_), Family::Numeric) if target.typmod < 0 => Fit::Every,
        (Family::Integer(2 | 4), Family::Float(8)) | (Family::Float(4), Family::Float(8)) => Fit::Every,
        (Family::Numeric | Family::Integer(_) | Family::Float(_), Family::Float(_)) => Fit::Changed(ROUNDED),
        (Family::Float(_) | Family::Integer(_), Family::Numeric) => Fit::Changed(ROUNDED),
        (Family::Integer(_) | Family::Numeric | Family::Float(_), Family::Integer(_)) => Fit::Some(REFUSED),
        (Family::Date, Family::Timestamp) => Fit::Every,
        (Family::Date | Family::Timestamp, Family::TimestampTz) => {
            Fit::Changed("values are read as times of the session's time zone, UTC or the role's")
        }
        (Family::TimestampTz, Family::Timestamp) => Fit::Changed("the time zone is cut off"),
        (Family::Timestamp | Family::TimestampTz, Family::Date) => Fit::Changed("the time of day is cut off"),
        (from, to) if never(from, to) => Fit::None,
        _ => Fit::Some(READ_AS_TEXT),
    }
}

/// No text that `from` prints is one that `to` reads.
fn never(from: Family, to: Family) -> bool {
    use Family::{Bool, Date, Integer, Interval, Network, Numeric, Time, Timestamp, TimestampTz, Uuid};
    let moment = |family| matches!(family, Date | Timestamp | TimestampTz);
    match to {
        Integer(_) | Numeric | Family::Float(_) => {
            moment(from) || matches!(from, Bool | Time | Interval | Uuid | Network)
        }
        Bool => moment(from) || matches!(from, Time | Interval | Uuid | Network),
        Date | Timestamp | TimestampTz => matches!(from, Bool | Time | Interval | Uuid | Network),
        Uuid => moment(from) || matches!(from, Bool | Time | Interval | Network | Integer(_)),
        Network => moment(from) || matches!(from, Bool | Time | Interval | Uuid),
        _ => false,
    }
}

/// The same type with two modifiers; -1 is none.
fn same_type(base: Oid, from: i32, to: i32) -> Fit {
    if to < 0 || from == to {
        return Fit::Every;
    }
    match base.0 {
        // char(n), varchar(n): the length.
        1042 | 1043 if from >= 0 && from <= to => Fit::Every,
        1042 | 1043 => Fit::Some(TOO_LONG),
        1700 => numeric(from, to),
        // time, timestamp: digits of a second, six without a modifier.
        1083 | 1114 | 1184 | 1266 if from >= 0 && from <= to || to >= 6 => Fit::Every,
        1083 | 1114 | 1184 | 1266 => Fit::Changed("fractions of seconds are rounded"),
        _ => Fit::Some(REFUSED),
    }
}

/// `numeric(p,s)`: a modifier is `(p << 16 | s) + 4`, s in its lowest 11 bits
/// with a sign (`numeric.c`).
fn numeric(from: i32, to: i32) -> Fit {
    let scale = |typmod: i32| (((typmod - 4) & 0x7ff) ^ 1024) - 1024;
    let digits = |typmod: i32| (((typmod - 4) >> 16) & 0xffff) - scale(typmod);
    if from < 0 || scale(from) > scale(to) {
        return Fit::Changed("values are rounded, and refused where they have too many digits");
    }
    if digits(from) > digits(to) { Fit::Some("values with too many digits are refused") } else { Fit::Every }
}

#[cfg(test)]
mod tests {
    use super::*;
    use source::publication::{DataType, Generated};

    fn column(base: u32, typmod: i32) -> Column {
        Column {
            number: 1,
            name: "c".into(),
            data_type: DataType {
                oid: Oid(base),
                name: format!("type {base}"),
                class: 'b',
                base: Oid(base),
                base_class: 'b',
                element: None,
                element_class: None,
                has_array_type: true,
                has_send: true,
                has_receive: true,
                width: None,
            },
            typmod,
            not_null: false,
            generated: Generated::No,
            identity_always: false,
            in_replica_identity: false,
        }
    }

    #[test]
    fn pairs_are_judged_by_what_the_target_reads() {
        let fits = |(a, b): (u32, i32), (c, d): (u32, i32)| fit(&column(a, b), &column(c, d));
        let any = |base| (base, -1);
        for (from, to) in [
            (any(23), any(23)),
            (any(23), any(20)),
            (any(20), any(1700)),
            (any(700), any(701)),
            ((1043, 14), (1043, 24)),
            ((1043, 14), any(25)),
            (any(2950), any(25)),
            (any(1082), any(1114)),
            // numeric(10,2) into numeric(12,2).
            ((1700, (10 << 16 | 2) + 4), (1700, (12 << 16 | 2) + 4)),
            ((1114, 3), any(1114)),
        ] {
            assert_eq!(fits(from, to), Fit::Every, "{from:?} {to:?}");
        }
        for (from, to) in [
            (any(20), any(23)),
            (any(25), any(23)),
            ((1043, 24), (1043, 14)),
            (any(25), (1043, 14)),
            ((1700, (12 << 16 | 2) + 4), (1700, (10 << 16 | 2) + 4)),
            (any(23), any(16)),
            (any(16_400), any(23)),
        ] {
            assert!(matches!(fits(from, to), Fit::Some(_)), "{from:?} {to:?}");
        }
        for (from, to) in [
            (any(1700), (1700, (10 << 16 | 2) + 4)),
            ((1700, (10 << 16 | 4) + 4), (1700, (10 << 16 | 2) + 4)),
            (any(1114), (1114, 0)),
            (any(1184), any(1114)),
            (any(20), any(701)),
        ] {
            assert!(matches!(fits(from, to), Fit::Changed(_)), "{from:?} {to:?}");
        }
        for (from, to) in [(any(2950), any(23)), (any(16), any(20)), (any(1083), any(1082))] {
            assert_eq!(fits(from, to), Fit::None, "{from:?} {to:?}");
        }
    }
}
