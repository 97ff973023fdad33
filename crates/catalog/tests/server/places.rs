//! Several databases, an ordinary role, and a catalog that goes through a file.

use std::time::Duration;

use base::Xid;
use catalog::{Catalog, Files, Look};
use client::ConnInfo;
use testkit::Major;

use crate::stage::{DB, Stage, Talk, builder};

/// The look needs LOGIN, REPLICATION, and what every role may read.
#[test]
fn a_role_with_replication_and_nothing_else_may_look() {
    for major in Major::under_test() {
        let cluster = builder(major).start().unwrap();
        cluster.sql(DB, "CREATE ROLE reader LOGIN REPLICATION; CREATE TABLE t (id int DEFAULT 1)").unwrap();
        cluster.sql(DB, "INSERT INTO t VALUES (1); ALTER TABLE t ADD v text DEFAULT 'v'").unwrap();
        let runtime = Stage::runtime();
        let url = format!("host=127.0.0.1 port={} dbname={DB} user=reader", cluster.port());
        let catalog = runtime.block_on(async {
            let slot = "SELECT pg_create_physical_replication_slot('s', true)::text";
            let session = client::connect(&ConnInfo::parse(&url).unwrap(), "look", &[]).await.unwrap();
            session.simple_query(slot).await.unwrap();
            let look = Look { redo: None, wait_max: Duration::from_secs(60) };
            Catalog::look(&[session], &look).await.unwrap()
        });
        let redo = cluster.one(DB, "SELECT restart_lsn FROM pg_replication_slots");
        assert_eq!(catalog.start().to_string(), redo, "where a slot begins to keep WAL");
        let mut stage = Stage::with(cluster, runtime, catalog);
        stage.sql("ALTER TABLE t ADD w int");
        stage.check("as an ordinary role");
    }
}

/// Databases have snapshots of their own, and what they share is followed too.
#[test]
fn several_databases_of_a_server() {
    for major in Major::under_test() {
        let cluster = builder(major).start().unwrap();
        for name in ["one", "two", "three"] {
            cluster.sql(DB, &format!("CREATE DATABASE {name}")).unwrap();
        }
        let mut stage = Stage::look(cluster, &[DB, "one", "two"]);
        for name in [DB, "one", "two", "three"] {
            stage.cluster.sql(name, &format!("CREATE TABLE in_{name} (id int, v text DEFAULT 'x')")).unwrap();
            let _ = stage.cluster.sql(name, "VACUUM FULL pg_class").unwrap();
            stage.cluster.sql(name, &format!("ALTER TABLE in_{name} ADD w int")).unwrap();
        }
        stage.sql("SELECT pg_replication_origin_create('an_origin')");
        stage.sql("VACUUM FULL pg_replication_origin");
        stage.sql("VACUUM FULL pg_database");
        stage.check("three of four databases");
        assert_eq!(stage.catalog.origin_name(1), Some("an_origin"));
        let databases = stage.catalog.databases();
        let oids: Vec<_> = databases.iter().map(|(oid, _)| *oid).collect();
        let mut names: Vec<_> = databases.iter().map(|(_, name)| (*name).to_owned()).collect();
        names.sort();
        assert_eq!(names, ["one", DB, "two"]);
        for oid in &oids {
            let view = stage.catalog.view(*oid, Xid::INVALID).unwrap();
            let made = view.relations().into_iter().filter(|oid| oid.is_user_defined()).count();
            // The table, and its TOAST table with an index.
            assert_eq!(made, 3, "{oid}");
        }
        let elsewhere =
            base::RelFileLocator { tablespace: base::Oid(1663), database: base::Oid(1), relfilenumber: 1 };
        assert_eq!(stage.view(Xid::INVALID).files(elsewhere), Files::Elsewhere);
        stage.sql("DROP DATABASE two");
        stage.catch_up();
        assert_eq!(stage.catalog.databases().len(), 2);
        let tablespace = std::env::temp_dir().join(format!("pgsluice-tablespace-{}", stage.cluster.port()));
        std::fs::create_dir_all(&tablespace).unwrap();
        std::os::unix::fs::chown(&tablespace, Some(owner(&stage)), None).unwrap();
        stage.sql(&format!("CREATE TABLESPACE aside LOCATION '{}'", tablespace.display()));
        stage.sql("ALTER DATABASE one SET TABLESPACE aside");
        let error = stage.each(|_, _, _| {}).unwrap_err();
        assert!(error.to_string().contains("\"one\" was moved"), "{error}");
        std::fs::remove_dir_all(&tablespace).unwrap();
    }
}

/// The user that the server runs as.
fn owner(stage: &Stage) -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(stage.cluster.data_dir()).unwrap().uid()
}

/// A catalog that is written to a file at any place and read again goes on as before, also in the
/// middle of transactions and of a rewrite.
#[test]
fn a_catalog_that_went_through_a_file_goes_on() {
    for major in Major::under_test() {
        let mut stage = Stage::start(major, &["CREATE TABLE t (id int, v text)"]);
        let (runtime, url) = (Stage::runtime(), stage.cluster.url(DB));
        let talk = Talk::connect(&runtime, &url);
        talk.sql(
            "BEGIN; CREATE TABLE inside (id int); SAVEPOINT a; ALTER TABLE t ADD w int DEFAULT 4; \
             CLUSTER pg_namespace USING pg_namespace_oid_index; CREATE SCHEMA s",
        );
        let xid = talk.xid();
        stage.catch_up();
        // In another database, because pg_namespace is locked.
        stage.cluster.sql("template1", "CHECKPOINT").unwrap();
        talk.sql("CREATE TABLE s.more (id int); RELEASE a; COMMIT");
        stage.sql("ALTER TABLE s.more ADD v text");
        // Now and then, the catalog is turned into bytes and read back. Turning it into bytes again
        // gives the same bytes.
        let (mut count, mut files) = (0, 0);
        let (mut other, mut own) = (stage.catalog.clone(), 0);
        stage
            .each(|_, record, _| {
                count += 1;
                if count % 40 == 1 {
                    let bytes = other.to_bytes();
                    other = Catalog::from_bytes(&bytes).unwrap();
                    assert!(other.to_bytes() == bytes, "{}", record.lsn());
                    files += 1;
                }
                own += usize::from(other.has_changes(xid));
                other.follow(record).unwrap();
            })
            .unwrap();
        assert!(files > 2 && own > 10, "{files} {own}");
        assert!(other.to_bytes() == stage.catalog.to_bytes());
        stage.check("beside a file");
        let dir = std::env::temp_dir().join(format!("pgsluice-catalog-{}", stage.cluster.port()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("catalog");
        stage.catalog.save(&path).unwrap();
        let read = Catalog::open(&path).unwrap();
        assert_eq!(read.differences(&stage.catalog), Vec::<String>::new());
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
