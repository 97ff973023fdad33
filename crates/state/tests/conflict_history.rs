//! The history of conflicts on real servers: made, written, read, pruned and removed.

#![allow(clippy::unwrap_used, reason = "tests, with functions of their own")]

use std::error::Error;
use std::time::Duration;

use base::{Lsn, PgTimestamp, SubscriptionName, Xid};
use bytes::BytesMut;
use client::ConnInfo;
use conflict::{Commit, ConflictType, Origin, Resolution, Written};
use state::conflict_history::{self, Filter};
use state::{ConflictOutcome, ConflictRecord, RECORD_COLUMNS, RecordedValues, State, removal, statements};
use testkit::{Cluster, Major};
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

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

/// A value in the binary form of whatever type.
#[derive(Debug)]
struct Binary(Vec<u8>);

impl ToSql for Binary {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// Writes conflicts that were resolved, as the applier does: all of them by one statement.
async fn write(session: &client::Session, name: &SubscriptionName, records: &[ConflictRecord<'_>]) {
    let array = |place: usize| -> Vec<Option<Binary>> {
        let value = |record: &ConflictRecord<'_>| record.values()[place].binary().map(|own| own.into_owned());
        records.iter().map(|record| value(record).map(Binary)).collect()
    };
    let arrays: Vec<Vec<Option<Binary>>> = (0..RECORD_COLUMNS.len()).map(array).collect();
    let parameters: Vec<&(dyn ToSql + Sync)> = arrays.iter().map(|array| array as _).collect();
    let types = RECORD_COLUMNS.map(|(_, of)| Type::from_oid(of.oids().1.0).unwrap());
    let sql = statements::record_conflicts(name.as_str());
    let statement = session.prepare_typed(&sql, &types).await.unwrap();
    let written = session.execute(&statement, &parameters).await.unwrap();
    assert_eq!(written, records.len() as u64);
}

/// What was written comes back, an error only once, and each filter finds its own.
async fn write_and_read(state: &State, name: &SubscriptionName) {
    let session = state.session();
    let plain = record(1, RecordedValues::default());
    let commit = Commit { origin: Origin::Named("o".into()), time: PgTimestamp(0), time_text: String::new() };
    let written = Written { xid: Xid(u32::MAX), commit: Some(commit) };
    let (key, local, remote) = (r#"{"id":2,"t":"a\\b'c"}"#, r#"{"id":2,"v":1}"#, r#"{"id":2,"v":2}"#);
    let values = RecordedValues {
        key: Some(key),
        local_row: Some(local),
        remote_row: Some(remote),
        ..Default::default()
    };
    let full = ConflictRecord {
        kind: ConflictType::InsertExists,
        table: ("s", "t"),
        index: Some("t_pkey"),
        resolution: Resolution::LastUpdateWins,
        outcome: ConflictOutcome::Applied,
        remote_origin: Some("far"),
        local: Some(&written),
        ..record(2, values)
    };
    let error = ConflictRecord {
        kind: ConflictType::UpdateExists,
        resolution: Resolution::Error,
        outcome: ConflictOutcome::Error,
        ..record(3, RecordedValues { key: Some(r#"{"t":"a\\b'c"}"#), ..RecordedValues::default() })
    };
    session.batch_execute("SET standard_conforming_strings = off").await.unwrap();
    write(session, name, &[plain, full]).await;
    let error = statements::record_refused_conflict(name.as_str(), &error);
    for _ in 0..2 {
        session.batch_execute(&error).await.unwrap();
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
    write(session, other, &[record(9, RecordedValues::default())]).await;
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
    write(&target, name, &[record(1, RecordedValues::default())]).await;
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
