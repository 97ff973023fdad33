//! Publications and slots of real servers, read as the walsender reads them.

#![allow(clippy::unwrap_used)]

use anyhow::Result;
use base::{Lsn, Oid};
use client::{ConnInfo, Replication, Session, Wire};
use source::publication::{
    Generated, PublishedTable, ReplicaIdentity, TableKind, TableName, binary_allowed, inspect, target_tables,
};
use source::slot::{self, NewSlot, SlotSnapshot};
use testkit::{Cluster, Major};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

async fn session(cluster: &Cluster) -> Session {
    client::connect(&ConnInfo::parse(&cluster.url("postgres")).unwrap(), "test", &[]).await.unwrap()
}

async fn published(session: &Session, names: &[&str]) -> Result<Vec<PublishedTable>, source::Error> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    inspect(session, &names).await
}

fn names(tables: &[PublishedTable]) -> Vec<String> {
    tables.iter().map(|table| table.name.to_string()).collect()
}

fn columns(table: &PublishedTable) -> Vec<&str> {
    table.columns.iter().map(|column| column.name.as_str()).collect()
}

const SCHEMA: &str = r#"
CREATE TABLE plain (id int PRIMARY KEY, v text NOT NULL, g int GENERATED ALWAYS AS (id * 2) STORED);
CREATE TABLE full_row (a int, b text);
ALTER TABLE full_row REPLICA IDENTITY FULL;
CREATE TABLE by_index (a int NOT NULL, b int, c int NOT NULL);
CREATE UNIQUE INDEX by_index_key ON by_index (c, a) INCLUDE (b);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_key;
CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
CREATE TABLE root (id int, v text) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (100);
CREATE TABLE middle PARTITION OF root FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (id);
CREATE TABLE middle_leaf PARTITION OF middle FOR VALUES FROM (100) TO (200);
CREATE SCHEMA pgsluice;
CREATE TABLE pgsluice.state (id int);
INSERT INTO root SELECT g, 'v' FROM generate_series(0, 199) g;
CREATE PUBLICATION everything FOR ALL TABLES;
CREATE PUBLICATION everything_by_root FOR ALL TABLES WITH (publish_via_partition_root);
CREATE PUBLICATION by_root FOR TABLE root WITH (publish_via_partition_root);
CREATE PUBLICATION by_middle FOR TABLE middle WITH (publish_via_partition_root);
CREATE PUBLICATION by_leaf FOR TABLE root;
CREATE PUBLICATION "it's; one" FOR TABLE full_row;
"#;

fn the_walsenders_tables(cluster: &Cluster) {
    block_on(async {
        let session = session(cluster).await;
        let everything = published(&session, &["everything"]).await.unwrap();
        assert_eq!(
            names(&everything),
            ["public.by_index", "public.full_row", "public.low", "public.middle_leaf", "public.plain"]
        );
        let by_root = published(&session, &["everything_by_root"]).await.unwrap();
        assert_eq!(names(&by_root), ["public.by_index", "public.full_row", "public.plain", "public.root"]);
        assert_eq!(by_root[3].kind, TableKind::Partitioned);
        assert!(by_root[3].bytes >= 2 * 8192, "the sum over the leaves");
        // The topmost root wins over whatever else is listed.
        for several in
            [&["by_root", "by_leaf"][..], &["by_middle", "by_root"], &["everything_by_root", "by_middle"]]
        {
            let tables = published(&session, several).await.unwrap();
            let below = |name: &String| name.contains("low") || name.contains("middle");
            assert!(!names(&tables).iter().any(below), "{several:?}: {:?}", names(&tables));
            assert!(names(&tables).contains(&"public.root".to_owned()));
        }
        let mixed = published(&session, &["by_leaf", "by_middle"]).await.unwrap();
        assert_eq!(names(&mixed), ["public.low", "public.middle"]);
        assert_eq!(mixed[1].publications, ["by_middle"]);
        assert_eq!(names(&published(&session, &["it's; one"]).await.unwrap()), ["public.full_row"]);

        let missing = published(&session, &["everything", "no\"such"]).await.unwrap_err();
        assert!(
            missing.is_configuration() && missing.to_string().contains("\"no\"such\" does not exist"),
            "{missing}"
        );
        assert!(published(&session, &[]).await.unwrap_err().is_configuration());
    });
}

fn columns_and_identity(cluster: &Cluster) {
    block_on(async {
        let session = session(cluster).await;
        let tables = published(&session, &["everything"]).await.unwrap();
        let [by_index, full_row, .., plain] = tables.as_slice() else { panic!("five tables") };
        let identity = |table: &PublishedTable| -> Vec<String> {
            table.columns.iter().filter(|c| c.in_replica_identity).map(|c| c.name.clone()).collect()
        };
        assert_eq!(
            (by_index.identity, identity(by_index)),
            (ReplicaIdentity::Index, vec!["a".into(), "c".into()])
        );
        assert_eq!(
            (full_row.identity, identity(full_row)),
            (ReplicaIdentity::Full, vec!["a".into(), "b".into()])
        );
        assert_eq!((plain.identity, identity(plain)), (ReplicaIdentity::Default, vec!["id".into()]));
        assert_eq!(columns(plain), ["id", "v"], "a generated column is not published unless asked for");
        assert_eq!(plain.columns[0].data_type.oid, Oid(23));
        assert!(plain.columns[1].not_null);
        let target =
            &target_tables(&session, &[plain.name.clone(), TableName::new("public", "none")]).await.unwrap();
        assert_eq!(target.len(), 1);
        let target = &target[&plain.name];
        assert_eq!(target.column("g").unwrap().generated, Generated::Stored);
        let version = session.version();
        assert_eq!(binary_allowed(version, version, [(plain, target)]), Ok(()));
        if cluster.major().number() >= 18 {
            session
                .batch_execute(
                    "CREATE PUBLICATION g FOR TABLE public.plain WITH (publish_generated_columns = stored)",
                )
                .await
                .unwrap();
            assert_eq!(columns(&published(&session, &["g"]).await.unwrap()[0]), ["id", "v", "g"]);
            let error = published(&session, &["g", "everything"]).await.unwrap_err();
            assert!(error.to_string().contains("different column lists"), "{error}");
        }
    });
}

fn lists_and_filters(cluster: &Cluster) {
    block_on(async {
        let session = session(cluster).await;
        session
            .batch_execute(
                "SET search_path = public; CREATE FUNCTION public.yes(int) RETURNS bool IMMUTABLE LANGUAGE sql
                     AS 'SELECT true';
                 CREATE SCHEMA other; CREATE TABLE other.t (id int PRIMARY KEY, v text);
                 CREATE PUBLICATION one FOR TABLE other.t (v, id) WHERE (id > 1);
                 CREATE PUBLICATION two FOR TABLE other.t (id, v) WHERE (id < -1);
                 CREATE PUBLICATION three FOR TABLE other.t (id);
                 CREATE PUBLICATION all_of_it FOR TABLES IN SCHEMA other",
            )
            .await
            .unwrap();
        let one = published(&session, &["one"]).await.unwrap();
        assert_eq!(one[0].row_filter.as_deref(), Some("((id > 1))"));
        assert_eq!(columns(&one[0]), ["id", "v"]);
        let both = published(&session, &["one", "two"]).await.unwrap();
        let filter = both[0].row_filter.as_deref().unwrap();
        assert_eq!(filter, "((id < '-1'::integer)) OR ((id > 1))");
        assert_eq!(both[0].publications, ["one", "two"]);
        // A list of all columns is no list, and one publication without a
        // filter publishes every row.
        assert_eq!(published(&session, &["one", "all_of_it"]).await.unwrap()[0].row_filter, None);
        let error = published(&session, &["one", "three"]).await.unwrap_err();
        assert!(error.is_configuration() && error.to_string().contains("other.t"), "{error}");
    });
}

fn slots(cluster: &Cluster) {
    block_on(async {
        let session = session(cluster).await;
        let info = ConnInfo::parse(&cluster.url("postgres")).unwrap();
        let mut wire = Wire::connect(&info, "test", Replication::Database, &[]).await.unwrap();
        let identity = slot::identify_system(&mut wire).await.unwrap();
        assert_eq!(identity.dbname.as_deref(), Some("postgres"));
        assert!(identity.system_id > 0 && identity.timeline == 1 && identity.xlogpos.is_valid());

        let kept =
            NewSlot { name: "kept", temporary: false, snapshot: SlotSnapshot::Nothing, failover: true };
        let created = slot::create_logical_slot(&mut wire, &kept).await.unwrap();
        assert_eq!(created.snapshot_name, None);
        let state = slot::slot_state(&session, "kept").await.unwrap().unwrap();
        assert_eq!(state.plugin.as_deref(), Some("pgoutput"));
        assert_eq!(state.database.as_deref(), Some("postgres"));
        assert_eq!(state.confirmed_flush, Some(created.consistent_point));
        assert!(
            state.restart_lsn.is_some_and(Lsn::is_valid) && !state.is_lost() && state.active_pid.is_none()
        );
        let again = slot::create_logical_slot(&mut wire, &kept).await.unwrap_err();
        assert_eq!(again.sqlstate(), Some("42710"));
        assert!(again.to_string().contains("replication slot \"kept\""), "{again}");

        let lent = NewSlot { name: "lent", temporary: true, snapshot: SlotSnapshot::Export, failover: true };
        let created = slot::create_logical_slot(&mut wire, &lent).await.unwrap();
        let snapshot = created.snapshot_name.unwrap();
        let import =
            format!("BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '{snapshot}'; COMMIT");
        session.batch_execute(&import).await.unwrap();
        assert!(slot::slot_state(&session, "lent").await.unwrap().unwrap().temporary);
        assert!(slot::drop_slot(&session, "kept").await.unwrap());
        assert!(!slot::drop_slot(&session, "kept").await.unwrap());
        assert_eq!(slot::slot_state(&session, "kept").await.unwrap(), None);
    });
}

#[test]
fn a_publisher_is_read_as_its_walsender_reads_it() {
    for major in Major::under_test() {
        let cluster = Cluster::start(major).unwrap();
        cluster.sql("postgres", SCHEMA).unwrap();
        the_walsenders_tables(&cluster);
        columns_and_identity(&cluster);
        if major.number() >= 15 {
            lists_and_filters(&cluster);
        }
        slots(&cluster);
    }
}
