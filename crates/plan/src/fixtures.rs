//! A table with an integer key and two columns, for tests of other files.

use std::sync::Arc;

use base::Oid;
use proto::pgoutput::{Relation, RelationColumn, ReplicaIdentity};

use crate::key_index::Bounds;
use crate::table::{Table, TargetColumn, TargetTable, UniqueKey};

/// A unique key of one integer column.
pub fn unique_key(name: &str) -> UniqueKey {
    let operator = |sign: &str| format!("OPERATOR(pg_catalog.{sign})");
    let bounds = Bounds {
        at_least: operator(">="),
        at_most: operator("<="),
        order: format!("USING {} NULLS LAST", operator("<")),
    };
    let (names, collate) = (vec![name.to_owned()], vec![String::new()]);
    UniqueKey { names, collate, bounds: vec![bounds], has_rival: false }
}

/// A column of this type that behaves like an integer.
pub fn target_column(name: &str, type_oid: u32) -> TargetColumn {
    TargetColumn {
        name: name.to_owned(),
        type_oid: Oid(type_oid),
        array_oid: Oid(1007),
        holder: None,
        type_name: "integer".to_owned(),
        not_null: true,
        generated: false,
        identity_always: false,
        equality: Some("OPERATOR(pg_catalog.=)".to_owned()),
        bytewise: true,
        inherent: true,
        is_enum: false,
        declared: "integer".to_owned(),
        typmod: -1,
        rounded: None,
    }
}

/// The source's table, with the key `id`.
pub fn relation(identity: ReplicaIdentity) -> Arc<Relation> {
    relation_of(identity, &["id"])
}

/// The same with another key.
pub fn relation_with_key(key: &[&str]) -> Arc<Relation> {
    relation_of(ReplicaIdentity::Default, key)
}

fn relation_of(identity: ReplicaIdentity, key: &[&str]) -> Arc<Relation> {
    let column = |name: &str| RelationColumn {
        identity: key.contains(&name) || identity == ReplicaIdentity::Full,
        name: name.to_owned(),
        type_oid: Oid(23),
        typmod: -1,
    };
    let columns = ["id", "a", "b"].map(column).to_vec();
    Arc::new(Relation { id: Oid(16384), namespace: "s".into(), name: "t".into(), identity, columns })
}

/// The target's table, which has a column more.
pub fn target() -> TargetTable {
    TargetTable {
        oid: Oid(16385),
        root: Oid(16385),
        partitioned: false,
        columns: ["id", "a", "b", "extra"].map(|name| target_column(name, 23)).to_vec(),
        unique_keys: vec![unique_key("id")],
        has_identity: true,
        firing_trigger: None,
        firing_rule: None,
        sole_unique_key: true,
        constraints: 1,
        own_origins: None,
        indexed: vec![("id".to_owned(), true)],
    }
}

/// The mapping of the one onto the other.
pub fn table() -> Arc<Table> {
    Arc::new(
        Table::map(1, relation(ReplicaIdentity::Default), &target()).expect("both are made for one another"),
    )
}
