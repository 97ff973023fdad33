//! The history of conflicts on real servers: made, written, read, pruned and removed.

#![allow(clippy::unwrap_used, reason = "tests, with functions of their own")]

use std::time::Duration;

use base::{Lsn, PgTimestamp, SubscriptionName, Xid};
use client::ConnInfo;
use conflict::{Commit, ConflictType, Origin, Resolution, Written};
use state::conflict_history::{self, Filter};
use state::{ConflictOutcome, ConflictRecord, RecordedValues, State, removal, statements};
use testkit::{Cluster, Major};

const DAY: Duration = Duration::from_secs(86_400);

fn record(id: u32, values: RecordedValues<'_>) -> ConflictRecord<'_> {
    ConflictRecord {
        kind: ConflictType::UpdateMissing,
        table: ("public", r"it's a\table"),
        index: None,
        resolution: Resolution::Skip,
        outcome: ConflictOutcome::Kept,
        remote_xid: Xid(id),
        finished_at: Lsn::new(0x1_0000_0000 + u64::from(id)),
        remote_time: PgTimestamp(820_000_000_123_456),
        remote_origin: None,
        local: None,
        values,
        detail: "Could not find the row to be updated.",
    }
}

async fn opened(target: &ConnInfo, name: &SubscriptionName) -> State {
    let state = State::open(target, name).await.unwrap();
    state.create(&["p".to_owned()], "1", 1, "d").await.unwrap();
    state
}

async fn count(state: &State, name: &SubscriptionName) -> usize {
    conflict_history::list(&**state.session(), name, &Filter::default(), 100).await.unwrap().len()
}

/// The statement that writes it.
fn written_by(name: &SubscriptionName, record: &ConflictRecord<'_>) -> String {
    match record.outcome {
        ConflictOutcome::Error => statements::record_refused_conflict(name.as_str(), record),
        _ => statements::record_conflicts(&[statements::conflict_row(name.as_str(), record)]),
    }
}

/// What was written comes back, an error only once, and each filter finds its own.
async fn write_and_read(state: &State, name: &SubscriptionName) {
    let session = state.session();
    let write = |record: ConflictRecord<'_>| written_by(name, &record);
    let plain = write(record(1, RecordedValues::default()));
    let commit = Commit { origin: Origin::Named("o".into()), time: PgTimestamp(0), time_text: String::new() };
    let written = Written { xid: Xid(u32::MAX), commit: Some(commit) };
    let (key, local, remote) = (r#"{"id":2,"t":"a\\b'c"}"#, r#"{"id":2,"v":1}"#, r#"{"id":2,"v":2}"#);
    let values = RecordedValues {
        key: Some(key),
        local_row: Some(local),
        remote_row: Some(remote),
        ..Default::default()
    };
    let full = write(ConflictRecord {
        kind: ConflictType::InsertExists,
        table: ("s", "t"),
        index: Some("t_pkey"),
        resolution: Resolution::LastUpdateWins,
        outcome: ConflictOutcome::Applied,
        remote_origin: Some("far"),
        local: Some(&written),
        ..record(2, values)
    });
    let error = write(ConflictRecord {
        kind: ConflictType::UpdateExists,
        resolution: Resolution::Error,
        outcome: ConflictOutcome::Error,
        ..record(3, RecordedValues::default())
    });
    session.batch_execute("SET standard_conforming_strings = off").await.unwrap();
    for sql in [plain, full, error.clone(), error] {
        session.batch_execute(&sql).await.unwrap();
    }
    let list = async |filter: Filter| {
        let found = conflict_history::list(&**session, name, &filter, 100).await.unwrap();
        found.into_iter().map(|found| found.remote_xid).collect::<Vec<_>>()
    };
    assert_eq!(list(Filter::default()).await, [3, 2, 1]);
    assert_eq!(list(Filter { kind: Some(ConflictType::InsertExists), ..Default::default() }).await, [2]);
    assert_eq!(list(Filter { table: Some(("s".into(), "t".into())), ..Default::default() }).await, [2]);
    assert_eq!(list(Filter { key: Some(r#"{"id": 2}"#.into()), ..Default::default() }).await, [2]);
    assert_eq!(list(Filter { resolution: Some(Resolution::Skip), ..Default::default() }).await, [1]);
    assert_eq!(list(Filter { since: Some("now".into()), ..Default::default() }).await, [0_i64; 0]);
    assert_eq!(list(Filter { until: Some("now".into()), ..Default::default() }).await, [3, 2, 1]);

    let found = conflict_history::list(&**session, name, &Filter::default(), 2).await.unwrap();
    assert_eq!(found.len(), 2);
    let found = conflict_history::find(&**session, name, found[1].id).await.unwrap().unwrap();
    assert_eq!((found.table, found.index.as_deref()), (("s".into(), "t".into()), Some("t_pkey")));
    assert_eq!(
        (&*found.kind, &*found.resolution, &*found.outcome),
        ("insert_exists", "last_update_wins", "applied")
    );
    assert_eq!((found.finished_at, found.remote_origin.as_deref()), (Lsn::new(0x1_0000_0002), Some("far")));
    assert_eq!(found.remote_time, "2025-12-25T17:46:40.123456Z");
    assert_eq!((found.local_xid, found.local_origin.as_deref()), (Some(i64::from(u32::MAX)), Some("o")));
    assert_eq!(found.local_time.as_deref(), Some("2000-01-01T00:00:00.000000Z"));
    assert_eq!((found.key.as_deref(), found.local_row.as_deref()), (Some(key), Some(local)));
    assert_eq!((found.remote_row.as_deref(), found.replica_identity), (Some(remote), None));
}

/// Age and number each remove the oldest, and another subscription's records stay.
async fn prune(state: &State, name: &SubscriptionName, other: &SubscriptionName) {
    let session = state.session();
    session.batch_execute(&written_by(other, &record(9, RecordedValues::default()))).await.unwrap();
    assert_eq!(state.prune_conflict_history(DAY, 3).await.unwrap(), 0);
    assert_eq!(state.prune_conflict_history(DAY, 2).await.unwrap(), 1);
    let age = "UPDATE pgsluice.conflict_history SET at = at - interval '2 days' WHERE remote_xid = 2";
    session.batch_execute(age).await.unwrap();
    assert_eq!(state.prune_conflict_history(DAY, u64::MAX).await.unwrap(), 1);
    assert_eq!((count(state, name).await, count(state, other).await), (1, 1));
    assert_eq!(state.prune_conflict_history(DAY, 0).await.unwrap(), 1);
    assert_eq!((count(state, name).await, count(state, other).await), (0, 1));
}

/// What an older version made lacks the history. It is made when it is needed, and goes with its
/// subscription.
async fn older_and_removed(mut target: client::Session, state: &State, name: &SubscriptionName) {
    target.batch_execute("DROP TABLE pgsluice.conflict_history").await.unwrap();
    assert_eq!(count(state, name).await, 0);
    assert!(conflict_history::find(&**state.session(), name, 1).await.unwrap().is_none());
    state.make_conflict_history().await.unwrap();
    state.make_conflict_history().await.unwrap();
    let sql = written_by(name, &record(1, RecordedValues::default()));
    target.batch_execute(&sql).await.unwrap();
    let transaction = target.transaction().await.unwrap();
    let removed = removal::remove(transaction, name, true, false).await.unwrap();
    let removal::Removed::All(removed) = removed else { panic!("{removed:?}") };
    assert!(removed.contains(&"1 row of pgsluice.conflict_history on the target".to_owned()), "{removed:?}");
}

#[test]
fn the_history_of_conflicts() {
    for major in Major::under_test() {
        let cluster = Cluster::start(major).unwrap();
        let text = format!("host=127.0.0.1 port={} dbname=postgres user=postgres", cluster.port());
        let info =
            ConnInfo::parse_with(&text, &|name| (name == "HOME").then(|| "/nonexistent".to_owned())).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (name, other) = ("a".parse().unwrap(), "b".parse().unwrap());
            let state = opened(&info, &name).await;
            let _other = opened(&info, &other).await;
            write_and_read(&state, &name).await;
            prune(&state, &name, &other).await;
            let target = client::connect(&info, "test", &[]).await.unwrap();
            older_and_removed(target, &state, &name).await;
        });
    }
}
