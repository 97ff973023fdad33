//! The functions behind operators and casts, by their OIDs in `pg_proc.dat`, which are the same on
//! every server.
//!
//! A publication's filter contains only immutable built-in functions. Those that are not listed
//! here are refused. A function that depends on a time zone is not immutable, so it never occurs.

use std::cmp::Ordering;

use crate::cast::Cast;
use crate::value::Kind;

/// The relation between two values that a comparison tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Operator {
    const ALL: [Operator; 6] = [
        Operator::Equal,
        Operator::NotEqual,
        Operator::Less,
        Operator::LessOrEqual,
        Operator::Greater,
        Operator::GreaterOrEqual,
    ];

    /// Whether it needs an order, and not only equality.
    pub(crate) fn orders(self) -> bool {
        !matches!(self, Operator::Equal | Operator::NotEqual)
    }

    pub(crate) fn holds(self, ordering: Ordering) -> bool {
        match self {
            Operator::Equal => ordering.is_eq(),
            Operator::NotEqual => ordering.is_ne(),
            Operator::Less => ordering.is_lt(),
            Operator::LessOrEqual => ordering.is_le(),
            Operator::Greater => ordering.is_gt(),
            Operator::GreaterOrEqual => ordering.is_ge(),
        }
    }
}

/// For the types of left and right: the functions of `=`, `<>`, `<`, `<=`, `>` and `>=`.
const COMPARISONS: [(Kind, Kind, [u32; 6]); 25] = [
    (Kind::Bool, Kind::Bool, [60, 84, 56, 1691, 57, 1692]),
    (Kind::Int2, Kind::Int2, [63, 145, 64, 148, 146, 151]),
    (Kind::Int4, Kind::Int4, [65, 144, 66, 149, 147, 150]),
    (Kind::Int8, Kind::Int8, [467, 468, 469, 471, 470, 472]),
    (Kind::Int2, Kind::Int4, [158, 164, 160, 166, 162, 168]),
    (Kind::Int4, Kind::Int2, [159, 165, 161, 167, 163, 169]),
    (Kind::Int8, Kind::Int4, [474, 475, 476, 478, 477, 479]),
    (Kind::Int4, Kind::Int8, [852, 853, 854, 856, 855, 857]),
    (Kind::Int2, Kind::Int8, [1850, 1851, 1852, 1854, 1853, 1855]),
    (Kind::Int8, Kind::Int2, [1856, 1857, 1858, 1860, 1859, 1861]),
    (Kind::Float4, Kind::Float4, [287, 288, 289, 290, 291, 292]),
    (Kind::Float8, Kind::Float8, [293, 294, 295, 296, 297, 298]),
    (Kind::Float4, Kind::Float8, [299, 300, 301, 302, 303, 304]),
    (Kind::Float8, Kind::Float4, [305, 306, 307, 308, 309, 310]),
    (Kind::Numeric, Kind::Numeric, [1718, 1719, 1722, 1723, 1720, 1721]),
    (Kind::Text, Kind::Text, [67, 157, 740, 741, 742, 743]),
    (Kind::Bpchar, Kind::Bpchar, [1048, 1053, 1049, 1050, 1051, 1052]),
    (Kind::Date, Kind::Date, [1086, 1091, 1087, 1088, 1089, 1090]),
    (Kind::Time, Kind::Time, [1145, 1106, 1102, 1103, 1104, 1105]),
    (Kind::TimeTz, Kind::TimeTz, [1352, 1353, 1354, 1355, 1357, 1356]),
    (Kind::Timestamp, Kind::Timestamp, [2052, 2053, 2054, 2055, 2057, 2056]),
    (Kind::TimestampTz, Kind::TimestampTz, [1152, 1153, 1154, 1155, 1157, 1156]),
    (Kind::Interval, Kind::Interval, [1162, 1163, 1164, 1165, 1167, 1166]),
    (Kind::Date, Kind::Timestamp, [2340, 2343, 2338, 2339, 2341, 2342]),
    (Kind::Timestamp, Kind::Date, [2366, 2369, 2364, 2365, 2367, 2368]),
];

/// The same for the other types.
const MORE_COMPARISONS: [(Kind, Kind, [u32; 6]); 3] = [
    (Kind::Uuid, Kind::Uuid, [2956, 2959, 2954, 2955, 2958, 2957]),
    (Kind::Name, Kind::Name, [62, 659, 655, 656, 657, 658]),
    (Kind::Oid, Kind::Oid, [184, 185, 716, 717, 1638, 1639]),
];

/// The types of left and right and the operator of a comparison.
pub(crate) fn comparison(function: u32) -> Option<(Kind, Kind, Operator)> {
    COMPARISONS.iter().chain(&MORE_COMPARISONS).find_map(|&(left, right, functions)| {
        let at = functions.iter().position(|&other| other == function)?;
        Some((left, right, Operator::ALL[at]))
    })
}

/// The function, argument and result of every cast.
const CASTS: [(u32, Kind, Kind, Cast); 39] = [
    (313, Kind::Int2, Kind::Int4, Cast::Nothing),
    (754, Kind::Int2, Kind::Int8, Cast::Nothing),
    (481, Kind::Int4, Kind::Int8, Cast::Nothing),
    (1288, Kind::Oid, Kind::Int8, Cast::Nothing),
    (314, Kind::Int4, Kind::Int2, Cast::IntToInt),
    (714, Kind::Int8, Kind::Int2, Cast::IntToInt),
    (480, Kind::Int8, Kind::Int4, Cast::IntToInt),
    (235, Kind::Int2, Kind::Float8, Cast::IntToFloat),
    (316, Kind::Int4, Kind::Float8, Cast::IntToFloat),
    (482, Kind::Int8, Kind::Float8, Cast::IntToFloat),
    (236, Kind::Int2, Kind::Float4, Cast::IntToFloat),
    (318, Kind::Int4, Kind::Float4, Cast::IntToFloat),
    (652, Kind::Int8, Kind::Float4, Cast::IntToFloat),
    (311, Kind::Float4, Kind::Float8, Cast::FloatToFloat),
    (312, Kind::Float8, Kind::Float4, Cast::FloatToFloat),
    (237, Kind::Float8, Kind::Int2, Cast::FloatToInt),
    (317, Kind::Float8, Kind::Int4, Cast::FloatToInt),
    (483, Kind::Float8, Kind::Int8, Cast::FloatToInt),
    (238, Kind::Float4, Kind::Int2, Cast::FloatToInt),
    (319, Kind::Float4, Kind::Int4, Cast::FloatToInt),
    (653, Kind::Float4, Kind::Int8, Cast::FloatToInt),
    (1782, Kind::Int2, Kind::Numeric, Cast::IntToNumeric),
    (1740, Kind::Int4, Kind::Numeric, Cast::IntToNumeric),
    (1781, Kind::Int8, Kind::Numeric, Cast::IntToNumeric),
    (1742, Kind::Float4, Kind::Numeric, Cast::FloatToNumeric),
    (1743, Kind::Float8, Kind::Numeric, Cast::FloatToNumeric),
    (1783, Kind::Numeric, Kind::Int2, Cast::NumericToInt),
    (1744, Kind::Numeric, Kind::Int4, Cast::NumericToInt),
    (1779, Kind::Numeric, Kind::Int8, Cast::NumericToInt),
    (1745, Kind::Numeric, Kind::Float4, Cast::NumericToFloat),
    (1746, Kind::Numeric, Kind::Float8, Cast::NumericToFloat),
    (2024, Kind::Date, Kind::Timestamp, Cast::DateToTimestamp),
    (2029, Kind::Timestamp, Kind::Date, Cast::TimestampToDate),
    (2557, Kind::Int4, Kind::Bool, Cast::IntToBool),
    (2558, Kind::Bool, Kind::Int4, Cast::BoolToInt),
    (401, Kind::Bpchar, Kind::Text, Cast::Nothing),
    (406, Kind::Name, Kind::Text, Cast::Nothing),
    (1401, Kind::Name, Kind::Text, Cast::Nothing),
    (408, Kind::Name, Kind::Bpchar, Cast::TextToBpchar),
];

/// The argument and result of a cast, and what it does.
pub(crate) fn cast(function: u32) -> Option<(Kind, Kind, Cast)> {
    CASTS.iter().find(|&&(other, ..)| other == function).map(|&(_, from, to, cast)| (from, to, cast))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_function_is_listed_twice() {
        let mut all: Vec<u32> =
            COMPARISONS.iter().chain(&MORE_COMPARISONS).flat_map(|entry| entry.2).collect();
        all.extend(CASTS.iter().map(|entry| entry.0));
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
