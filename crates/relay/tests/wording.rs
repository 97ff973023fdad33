//! What is refused, and with which words, compared with servers of every major.

#![allow(clippy::unwrap_used, reason = "tests, with functions of their own")]

use std::time::Duration;

use client::{ConnInfo, Replication, Wire};
use proto::command::{self, Command};
use relay::{Form, SlotOptions, Told, check_name};
use testkit::{Cluster, Major};

/// Options of pgoutput that some server or other refuses. Not among them: `proto_version`,
/// `publication_names` and `origin` without a value, with which servers of 15 and 18 crashed
/// (signal 11). Ours is an error.
const STREAMS: [&str; 31] = [
    "",
    "proto_version '1'",
    "publication_names 'p'",
    "proto_version 'x', publication_names 'p'",
    "proto_version '', publication_names 'p'",
    "proto_version ' 1 ', publication_names 'p'",
    "proto_version ' +1', publication_names 'p'",
    "proto_version '1x', publication_names 'p'",
    "proto_version '-1', publication_names 'p'",
    "proto_version '0', publication_names 'p'",
    "proto_version '4294967296', publication_names 'p'",
    "proto_version '99999999999999999999', publication_names 'p'",
    "proto_version '3', publication_names 'p'",
    "proto_version '4', publication_names 'p'",
    "proto_version '5', publication_names 'p'",
    "proto_version '1', proto_version '1', publication_names 'p'",
    "proto_version '1', publication_names ''",
    "proto_version '1', publication_names ','",
    "proto_version '1', publication_names '\"p'",
    "proto_version '1', publication_names 'p', publication_names 'p'",
    "proto_version '1', publication_names 'p', binary 'perhaps'",
    "proto_version '1', publication_names 'p', binary '1'",
    "proto_version '1', publication_names 'p', binary, binary",
    "proto_version '1', publication_names 'p', messages 'x'",
    "proto_version '1', publication_names 'p', streaming 'on'",
    "proto_version '1', publication_names 'p', streaming 'parallel'",
    "proto_version '2', publication_names 'p', streaming 'parallel'",
    "proto_version '2', publication_names 'p', streaming 'x'",
    "proto_version '1', publication_names 'p', two_phase",
    "proto_version '1', publication_names 'p', origin 'x'",
    "proto_version '1', publication_names 'p', shiny 'x'",
];

/// Slots that some server or other refuses.
const SLOTS: [&str; 19] = [
    "\"\" LOGICAL pgoutput",
    "\"Upper\" LOGICAL pgoutput",
    "\"a-b\" LOGICAL pgoutput",
    "a LOGICAL pgoutput (SNAPSHOT 'none')",
    "a LOGICAL pgoutput (SNAPSHOT)",
    "a LOGICAL pgoutput (SNAPSHOT 'export', SNAPSHOT 'use')",
    "a LOGICAL pgoutput (TWO_PHASE 'perhaps')",
    "a LOGICAL pgoutput (TWO_PHASE '1')",
    "a LOGICAL pgoutput (TWO_PHASE, TWO_PHASE)",
    "a LOGICAL pgoutput (FAILOVER 'perhaps')",
    "a LOGICAL pgoutput (FAILOVER, FAILOVER false)",
    "a LOGICAL pgoutput (RESERVE_WAL)",
    "a LOGICAL pgoutput (SHINY)",
    "a LOGICAL pgoutput RESERVE_WAL",
    "a LOGICAL pgoutput EXPORT_SNAPSHOT NOEXPORT_SNAPSHOT",
    "a LOGICAL pgoutput TWO_PHASE TWO_PHASE",
    "a LOGICAL",
    "a LOGICAL pgoutput (",
    "a LOGICAL pgoutput SHINY",
];

/// Code, message, detail and hint.
type Words = (String, String, Option<String>, Option<String>);

fn words_of(told: &Told) -> Words {
    let error = &told.0;
    (error.code.clone(), error.message.clone(), error.detail.clone(), error.hint.clone())
}

/// What the server answers; `None` if it accepts.
async fn of_server(info: &ConnInfo, command: &str, streams: bool) -> Option<Words> {
    let mut wire = Wire::connect(info, "", Replication::Database, &[]).await.unwrap();
    // The walsender before may still have the slot.
    let active = "SELECT 1 FROM pg_catalog.pg_replication_slots WHERE active";
    while !wire.query(active).await.unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let error =
        if streams { wire.copy_both(command).await.err()? } else { wire.query(command).await.err()? };
    let error = error.server().unwrap_or_else(|| panic!("{command}: {error}"));
    Some((error.code.clone(), error.message.clone(), error.detail.clone(), error.hint.clone()))
}

/// What we would answer.
fn ours(command: &str, major: u32) -> Option<Words> {
    let syntax = |error: command::SyntaxError| ("42601".to_owned(), error.to_string(), None, None);
    let answer = match command::parse(command) {
        Err(error) => return Some(syntax(error)),
        Ok(Some(Command::CreateSlot(create))) => {
            SlotOptions::read(&create, major).and_then(|_| check_name(&create.slot, major))
        }
        Ok(Some(Command::StartLogical { options, .. })) => Form::read(&options, major).map(|_| ()),
        other => panic!("{command}: {other:?}"),
    };
    answer.err().map(|told| words_of(&told))
}

#[test]
fn options_without_their_value_are_errors() {
    for options in ["proto_version", "publication_names", "proto_version '1', publication_names 'p', origin"]
    {
        let (code, message, ..) =
            ours(&format!("START_REPLICATION SLOT s LOGICAL 0/0 ({options})"), 18).unwrap();
        assert!(code == "42601" && message.ends_with("requires a parameter"), "{options}: {message}");
    }
}

#[test]
fn refusals_are_worded_as_every_major_words_them() {
    Major::each(2, |major| {
        let cluster = Cluster::builder(major).setting("wal_level", "logical").start().unwrap();
        cluster.sql("postgres", "CREATE PUBLICATION p").unwrap();
        let info = ConnInfo::parse(&cluster.url("postgres")).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let mut differ = Vec::new();
            let mut compare = |command: &str, server: Option<Words>| {
                let ours = ours(command, major.number());
                if server != ours {
                    differ.push(format!("{command}\n  server {server:?}\n  ours   {ours:?}"));
                }
            };
            for options in SLOTS {
                let command = format!("CREATE_REPLICATION_SLOT {options}");
                let server = of_server(&info, &command, false).await;
                compare(&command, server);
                if let Ok(mut wire) = Wire::connect(&info, "", Replication::Database, &[]).await {
                    let _ = wire.query("DROP_REPLICATION_SLOT a").await;
                }
            }
            let mut wire = Wire::connect(&info, "", Replication::Database, &[]).await.unwrap();
            wire.query("CREATE_REPLICATION_SLOT s LOGICAL pgoutput NOEXPORT_SNAPSHOT").await.unwrap();
            for options in STREAMS {
                let options = if options.is_empty() { String::new() } else { format!(" ({options})") };
                let command = format!("START_REPLICATION SLOT s LOGICAL 0/0{options}");
                let server = of_server(&info, &command, true).await;
                compare(&command, server);
            }
            assert!(differ.is_empty(), "{major}:\n{}", differ.join("\n"));
        });
    });
}
