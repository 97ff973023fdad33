//! The built-in base types, by their OIDs in `pg_type.dat`, which are the same on every server.

use base::Oid;

/// A base type whose values can be rendered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Builtin {
    Bool,
    Bytea,
    Char,
    Name,
    Int2,
    Int4,
    Int8,
    /// oid, xid and cid.
    Unsigned4,
    Xid8,
    Float4,
    Float8,
    Numeric,
    Money,
    /// text, varchar, bpchar, json, refcursor and pg_node_tree.
    Text,
    Xml,
    Tid,
    Int2Vector,
    OidVector,
    Date,
    Time,
    TimeTz,
    Timestamp,
    TimestampTz,
    Interval,
    Uuid,
    /// bit and varbit.
    Bits,
    Inet,
    Cidr,
    /// macaddr and macaddr8.
    MacAddr,
    Point,
    Line,
    Lseg,
    Box,
    Path,
    Polygon,
    Circle,
    Jsonb,
    JsonPath,
    TsVector,
    TsQuery,
    /// pg_snapshot and txid_snapshot.
    Snapshot,
    Lsn,
}

/// The OID and the rendering of each, in the order of OIDs.
const ALL: [(u32, Builtin); 52] = [
    (16, Builtin::Bool),
    (17, Builtin::Bytea),
    (18, Builtin::Char),
    (19, Builtin::Name),
    (20, Builtin::Int8),
    (21, Builtin::Int2),
    (22, Builtin::Int2Vector),
    (23, Builtin::Int4),
    (25, Builtin::Text),
    (26, Builtin::Unsigned4),
    (27, Builtin::Tid),
    (28, Builtin::Unsigned4),
    (29, Builtin::Unsigned4),
    (30, Builtin::OidVector),
    (114, Builtin::Text),
    (142, Builtin::Xml),
    (194, Builtin::Text),
    (600, Builtin::Point),
    (601, Builtin::Lseg),
    (602, Builtin::Path),
    (603, Builtin::Box),
    (604, Builtin::Polygon),
    (628, Builtin::Line),
    (650, Builtin::Cidr),
    (700, Builtin::Float4),
    (701, Builtin::Float8),
    (718, Builtin::Circle),
    (774, Builtin::MacAddr),
    (790, Builtin::Money),
    (829, Builtin::MacAddr),
    (869, Builtin::Inet),
    (1042, Builtin::Text),
    (1043, Builtin::Text),
    (1082, Builtin::Date),
    (1083, Builtin::Time),
    (1114, Builtin::Timestamp),
    (1184, Builtin::TimestampTz),
    (1186, Builtin::Interval),
    (1266, Builtin::TimeTz),
    (1560, Builtin::Bits),
    (1562, Builtin::Bits),
    (1700, Builtin::Numeric),
    (1790, Builtin::Text),
    (2950, Builtin::Uuid),
    (2970, Builtin::Snapshot),
    (3220, Builtin::Lsn),
    (3614, Builtin::TsVector),
    (3615, Builtin::TsQuery),
    (3802, Builtin::Jsonb),
    (4072, Builtin::JsonPath),
    (5038, Builtin::Snapshot),
    (5069, Builtin::Xid8),
];

/// Built-in base types that are known and refused, with the reason.
const REFUSED: [(&[u32], &str); 4] = [
    (
        &[24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191],
        "their text is a name from the catalogs",
    ),
    (&[1033], "their text names roles"),
    (&[3642], "the server has no text for them that it would read again"),
    (&[3361, 3402, 5017, 4600, 4601], "only catalogs and indexes hold them"),
];

/// Why the values of a base type cannot be rendered here.
#[must_use]
pub fn refused_base(oid: Oid) -> Option<&'static str> {
    Builtin::find(oid).err()
}

impl Builtin {
    /// How to render the base type with that OID.
    pub(crate) fn find(oid: Oid) -> Result<Self, &'static str> {
        if let Ok(at) = ALL.binary_search_by_key(&oid.0, |&(oid, _)| oid) {
            return Ok(ALL[at].1);
        }
        if let Some((_, reason)) = REFUSED.iter().find(|(oids, _)| oids.contains(&oid.0)) {
            return Err(reason);
        }
        Err("it is a base type of an extension, whose output function only the server has")
    }
}
