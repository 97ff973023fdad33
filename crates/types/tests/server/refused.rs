//! Types that are refused, by name, when their description is compiled.

use base::Oid;
use types::{Codec, TypeInfo, TypeKind, Unsupported};

use crate::oracle::Oracle;

/// Base types of the server itself that cannot be rendered.
const REFUSED: &[&str] = &[
    "aclitem",
    "gtsvector",
    "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary",
    "pg_dependencies",
    "pg_mcv_list",
    "pg_ndistinct",
    "regclass",
    "regcollation",
    "regconfig",
    "regdictionary",
    "regnamespace",
    "regoper",
    "regoperator",
    "regproc",
    "regprocedure",
    "regrole",
    "regtype",
];

/// Every built-in type that a column can have is rendered or named above. A type that a new major
/// adds fails here first.
#[test]
fn every_built_in_type_is_rendered_or_named() {
    Oracle::each(|oracle| {
        let types = oracle.types();
        let base = types.values().filter(|info| info.kind == TypeKind::Base && !info.oid.is_user_defined());
        let refused = base.filter_map(|info| Codec::compile(info.oid, &types, &oracle.settings).err());
        let mut refused: Vec<String> = refused.map(|refused| refused.name).collect();
        refused.sort();
        assert_eq!(refused, REFUSED, "{}", oracle.major());
        let columns = oracle
            .rows("SELECT oid::int8 FROM pg_type WHERE typtype IN ('d', 'r', 'm', 'e') AND oid < 16384");
        for oid in columns {
            let oid = Oid(oid[0].as_ref().unwrap().parse().unwrap());
            Codec::compile(oid, &types, &oracle.settings).unwrap();
        }
    });
}

fn refusal(types: &std::collections::HashMap<Oid, TypeInfo>, oracle: &Oracle, name: &str) -> Unsupported {
    let info = types.values().find(|info| info.name == name).unwrap();
    let refused = Codec::compile(info.oid, types, &oracle.settings).expect_err(name);
    assert!(refused.to_string().contains("cannot be rendered"), "{refused}");
    refused
}

/// An extension's base type is named, however deep it is nested.
#[test]
fn an_extensions_type_is_found_where_it_is_compiled() {
    Oracle::each(|oracle| {
        oracle.sql(
            "CREATE EXTENSION hstore; CREATE EXTENSION citext; CREATE DOMAIN worded AS citext; \
             CREATE TYPE inner_pair AS (a int, h hstore); CREATE TYPE outer_pair AS (b inner_pair[]); \
             CREATE TYPE ci AS RANGE (subtype = citext); CREATE TABLE has_money (m money)",
        );
        let types = oracle.types();
        for (name, named) in [
            ("hstore", "hstore"),
            ("hstore[]", "hstore"),
            ("citext", "citext"),
            ("worded", "citext"),
            ("outer_pair", "hstore"),
            ("outer_pair[]", "hstore"),
            ("ci", "citext"),
            ("ci[]", "citext"),
            ("regclass[]", "regclass"),
            ("anyelement", "anyelement"),
        ] {
            assert_eq!(refusal(&types, oracle, name).name, named, "{name}");
        }
        // Money depends on a setting.
        let mut settings = oracle.settings.clone();
        settings.lc_monetary_is_c = false;
        let row = types.values().find(|info| info.name == "has_money").unwrap();
        assert_eq!(Codec::compile(row.oid, &types, &settings).unwrap_err().name, "money");
        assert!(Codec::compile(row.oid, &types, &oracle.settings).is_ok());
        // A type without a description is refused.
        let unknown = Codec::compile(Oid(4_000_000), &types, &settings).unwrap_err();
        assert!(unknown.to_string().contains("4000000"), "{unknown}");
    });
}
