//! Errors that an operator may meet. Each names the object, the cause and the remedy, and after the
//! repair both ends become equal.
//!
//! Other errors have their tests elsewhere:
//! - `failures`: a missing publication, table or column at the start, a dropped slot, a name in
//!   use;
//! - `tables`: a column added on the source only;
//! - `progress`: a target restored from a backup;
//! - `triggers`: privileges;
//! - `faults`: full disks, blocked targets and silent networks.

use std::path::Path;
use std::process::Command;

use testkit::{Builder, Cluster, Proxy, StopMode, Then, wait_for};

use crate::support::{BOUND, DECODED, FOLDED, Scenario, Session, scenario_alone, scenario_with};

/// Watches the log from now on for a refusal, after which pgsluice ends.
struct Refusal(usize);

impl Refusal {
    fn from_now(s: &Scenario) -> Refusal {
        Refusal(s.log(0).len())
    }

    /// Checks that pgsluice has ended by itself, and that the log has all of `words`.
    #[track_caller]
    fn came(self, s: &mut Scenario, words: &[&str]) {
        let (code, log) = s.ended().remove(0);
        assert_eq!(code, 1, "{log}");
        for word in words {
            assert!(log[self.0..].contains(word), "{word:?} in:\n{}", &log[self.0..]);
        }
    }
}

#[track_caller]
fn refused(s: &mut Scenario, words: &[&str]) {
    refused_with(s, |_| (), words);
}

#[track_caller]
fn refused_with(s: &mut Scenario, change: impl Fn(&mut Command), words: &[&str]) {
    let refusal = Refusal::from_now(s);
    s.run_with(change);
    refusal.came(s, words);
}

/// The last remedy: drop the subscription, and copy again.
#[track_caller]
fn begin_anew(s: &mut Scenario) {
    s.call(0, &["drop", "--force"]).expect_success();
    s.target("TRUNCATE t, mark");
    s.follow();
    s.same();
}

fn alone(scenario: impl Fn(&mut Scenario) + Sync) {
    scenario_alone(&[FOLDED], |source| source, |target| target, scenario);
}

/// Writes a row and waits until both ends are level.
fn write(s: &Scenario) {
    s.source("INSERT INTO t SELECT coalesce(max(id), 0) + 1 FROM t");
}

/// Ends the sessions of `role` on one end.
fn end_sessions(cluster: &Cluster, role: &str) {
    let sql =
        format!("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = '{role}'");
    cluster.sql("postgres", &sql).unwrap();
}

#[test]
fn a_wrong_password_ends_it_with_its_place() {
    let hba = "local all all trust\nhost all sluice all scram-sha-256\nhost all all all trust\n";
    let ask = |builder: Builder| builder.hba(hba).setting("password_encryption", "scram-sha-256");
    scenario_alone(&[FOLDED], ask, ask, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        s.pair().both("postgres", "CREATE ROLE sluice SUPERUSER LOGIN PASSWORD 'sesame'").unwrap();
        let [source, target] = [s.source_url(), s.target_url(0)]
            .map(|url| url.replace("postgres://postgres@", "postgres://sluice:sesame@"));
        let ends = |command: &mut Command| {
            command.env("PGSLUICE_SOURCE", &source).env("PGSLUICE_TARGET", &target);
        };
        s.run_with(ends);
        s.follow();
        for end in 0..2 {
            let refusal = Refusal::from_now(s);
            let cluster = [&s.pair().source, &s.pair().target][end];
            let place = format!("127.0.0.1:{}/", cluster.port());
            cluster.sql("postgres", "ALTER ROLE sluice PASSWORD 'changed'").unwrap();
            end_sessions(cluster, "sluice");
            write(s);
            refusal.came(
                s,
                &[
                    &place,
                    " as sluice: ",
                    "password authentication failed",
                    "check the user and the password",
                ],
            );
            assert!(!s.log(0).contains("sesame"), "{}", s.log(0));
            // It does not start either.
            refused_with(s, ends, &[&place, "password authentication failed"]);
            let cluster = [&s.pair().source, &s.pair().target][end];
            cluster.sql("postgres", "ALTER ROLE sluice PASSWORD 'sesame'").unwrap();
            s.run_with(ends);
            s.catch_up();
            s.same();
        }
    });
}

mod certificates {
    //! The certificate of a server, and the authority that signed it.

    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use testkit::{Cluster, wait_for};

    use crate::support::BOUND;

    pub(super) type Authority = CertifiedIssuer<'static, KeyPair>;

    pub(super) fn authority() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    /// Makes `cluster` offer TLS with a certificate for `name`.
    pub(super) fn serve(cluster: &Cluster, authority: &Authority, name: &str) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = certificate.signed_by(&key, authority).unwrap().pem();
        let data = cluster.data_dir();
        let owner = std::fs::metadata(&data).unwrap();
        for (file, text) in [("server.crt", certificate), ("server.key", key.serialize_pem())] {
            let path = data.join(file);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
        }
        let loads = || cluster.log().matches("received SIGHUP, reloading").count();
        let before = loads();
        cluster.sql("postgres", "ALTER SYSTEM SET ssl = on").unwrap();
        cluster.sql("postgres", "SELECT pg_reload_conf()").unwrap();
        wait_for("ssl = on", BOUND, || Ok(loads() > before && cluster.one("postgres", "SHOW ssl") == "on"))
            .unwrap();
    }
}

#[test]
fn tls_that_is_not_offered_asked_for_or_right_ends_it() {
    let hba = "local all all trust\nhostssl all encrypted all trust\nhost all postgres all trust\n";
    let target = |builder: Builder| builder.hba(hba);
    scenario_alone(
        &[FOLDED],
        |source| source,
        target,
        |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY)");
            s.publish("FOR ALL TABLES");
            s.pair().target.sql("postgres", "CREATE ROLE encrypted SUPERUSER LOGIN").unwrap();
            let files = tempfile::tempdir().unwrap();
            let root = files.path().join("root.crt");
            let authority = certificates::authority();
            std::fs::write(&root, authority.pem()).unwrap();
            let (port, name) = (s.pair().target.port(), s.name(0).to_owned());
            let to = |more: &str| {
                let url = format!("hostaddr=127.0.0.1 port={port} dbname={name} {more}");
                move |command: &mut Command| {
                    command.env("PGSLUICE_TARGET", &url);
                }
            };
            let full = format!("sslmode=verify-full sslrootcert={}", root.display());
            refused_with(
                s,
                to("user=postgres sslmode=require"),
                &[&format!("127.0.0.1:{port}/{name} as postgres: TLS: "), "does not offer it", "ssl = on"],
            );
            certificates::serve(&s.pair().target, &authority, "db.example");
            refused_with(
                s,
                to(&format!("user=postgres host=else.example {full}")),
                &["certificate", "not for host else.example", "db.example"],
            );
            refused_with(
                s,
                to("user=encrypted sslmode=disable"),
                &["no pg_hba.conf entry", "\"encrypted\"", "sslmode=require"],
            );
            assert_eq!(s.left_behind(), [""; 0]);
            let right = to(&format!("user=encrypted host=db.example {full}"));
            s.run_with(&right);
            s.follow();
            let refusal = Refusal::from_now(s);
            certificates::serve(&s.pair().target, &authority, "moved.example");
            end_sessions(&s.pair().target, "encrypted");
            write(s);
            refusal.came(s, &["not for host db.example", "moved.example"]);
            certificates::serve(&s.pair().target, &authority, "db.example");
            s.run_with(&right);
            s.catch_up();
            s.same();
        },
    );
}

/// No server can decode changes from a time without the publication. Up to 17 the walsender fails;
/// from 18 on it skips the rows with a warning.
#[test]
fn a_publication_dropped_and_made_again_is_noticed_where_it_costs_rows() {
    let told = |s: &mut Scenario| {
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        s.publish("FOR TABLE t, mark");
        s.follow();
        s.stop();
        s.source("DROP PUBLICATION p");
        refused(s, &["publication \"p\" does not exist", "CREATE PUBLICATION"]);
        // Nothing was written in between, so nothing is lost.
        s.source("CREATE PUBLICATION p FOR TABLE t, mark");
        s.live(&["INSERT INTO t VALUES (1)"]);
        let refusal = Refusal::from_now(s);
        s.source("DROP PUBLICATION p");
        s.source("INSERT INTO t VALUES (2)");
        let words = [
            "publication \"p\"",
            "does not exist",
            "what was written meanwhile",
            "drop the subscription and copy again",
        ];
        refusal.came(s, &words);
        s.source("CREATE PUBLICATION p FOR TABLE t, mark");
        write(s);
        refused(s, &words);
        assert_eq!(s.target_one("SELECT max(id) FROM t"), "1", "nothing after the gap");
        begin_anew(s);
    };
    scenario_with(&[FOLDED], told);
    scenario_with(&[DECODED], told);
}

/// A slot with the right name that is not the one pgsluice left.
#[test]
fn a_slot_made_again_under_the_same_name_is_refused() {
    scenario_with(&[FOLDED], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        s.follow();
        s.stop();
        let slot = s.slot(0);
        let drop = format!("SELECT pg_drop_replication_slot('{slot}')");
        for written in [false, true] {
            wait_for("the slot to be free", BOUND, || Ok(s.try_source(&drop).is_ok())).unwrap();
            if written {
                write(s);
            }
            s.source(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
            refused(s, &[&format!("\"{slot}\""), "made again", "drop the subscription and copy again"]);
        }
        s.source(&drop);
        s.source(&format!("SELECT pg_create_physical_replication_slot('{slot}')"));
        refused(s, &[&format!("\"{slot}\""), "is not the one", "plugin none", "copy again"]);
        s.source(&drop);
        begin_anew(s);
    });
}

#[test]
fn a_slot_that_lost_wal_while_the_target_was_blocked_is_refused() {
    scenario_alone(
        &[FOLDED],
        |source| source.setting("max_slot_wal_keep_size", "1MB"),
        |target| target,
        |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY)");
            s.follow();
            let refusal = Refusal::from_now(s);
            let mut holder = Session::to(&s.target_url(0));
            holder.run("BEGIN; LOCK t IN SHARE MODE");
            write(s);
            let slot = s.slot(0);
            let lost =
                format!("SELECT wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = '{slot}'");
            wait_for("the slot to be lost", BOUND, || {
                s.source("SELECT pg_logical_emit_message(false, 'noise', 'x'); SELECT pg_switch_wal()");
                s.source("CHECKPOINT");
                Ok(s.source_one(&lost) == "t")
            })
            .unwrap();
            refusal.came(s, &[&format!("\"{slot}\" has lost WAL"), "max_slot_wal_keep_size", "copy again"]);
            holder.run("COMMIT");
            begin_anew(s);
        },
    );
}

/// A copy of a server's data directory.
pub(crate) struct Backup(std::path::PathBuf);

impl Backup {
    pub(crate) fn of(cluster: &mut Cluster) -> Backup {
        cluster.stop(StopMode::Fast).unwrap();
        let copy = cluster.data_dir().with_file_name("older");
        run("rm", &[Path::new("-rf"), &copy]);
        run("cp", &[Path::new("-a"), &cluster.data_dir(), &copy]);
        cluster.start_again().unwrap();
        Backup(copy)
    }

    /// Restores the copy; with `new_timeline` as a recovery or a promotion does.
    pub(crate) fn restore(&self, cluster: &mut Cluster, new_timeline: bool) {
        cluster.stop(StopMode::Fast).unwrap();
        run("rm", &[Path::new("-rf"), &cluster.data_dir()]);
        run("cp", &[Path::new("-a"), &self.0, &cluster.data_dir()]);
        if new_timeline {
            become_standby(cluster);
            promote(cluster);
        } else {
            cluster.start_again().unwrap();
        }
    }
}

fn run(program: &str, args: &[&Path]) {
    assert!(Command::new(program).args(args).status().unwrap().success(), "{program} {args:?}");
}

/// Starts a stopped server as a standby without a primary.
pub(crate) fn become_standby(cluster: &mut Cluster) {
    std::fs::write(cluster.data_dir().join("standby.signal"), "").unwrap();
    cluster.start_again().unwrap();
    assert_eq!(cluster.one("postgres", "SELECT pg_is_in_recovery()"), "t");
}

pub(crate) fn promote(cluster: &Cluster) {
    assert_eq!(cluster.one("postgres", "SELECT pg_promote()"), "t");
}

const NOISE: &str = "SELECT pg_logical_emit_message(false, 'noise', repeat('x', 1000000))";

/// Waits until the slot has confirmed all current WAL.
fn confirm_all(s: &Scenario) {
    s.wait_until_confirmed(&s.source_one("SELECT pg_current_wal_lsn()"));
}

/// A restored source writes its next changes at positions that the target has passed, so they would
/// be skipped.
#[test]
fn a_source_restored_to_before_our_position_is_refused() {
    alone(|s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        for new_timeline in [false, true] {
            s.follow();
            s.stop();
            let backup = Backup::of(&mut s.pair_mut().source);
            write(s);
            s.source(NOISE);
            s.follow();
            s.stop();
            backup.restore(&mut s.pair_mut().source, new_timeline);
            s.source("INSERT INTO t VALUES (-1)");
            let ours = match new_timeline {
                false => ["the source's WAL ends at", "restored to an earlier state"],
                true => ["which left timeline 1 at", "failed over to a standby"],
            };
            refused(s, &ours);
            refused(s, &["the target may hold rows that the source lacks", "pgsluice drop"]);
            assert_eq!(s.target_one("SELECT count(*) FROM t WHERE id < 0"), "0");
            begin_anew(s);
            s.source("DELETE FROM t WHERE id < 0");
        }
        // An old primary, while the state says that the new one was followed.
        s.target("UPDATE pgsluice.subscription SET source_timeline = 7");
        s.stop();
        refused(s, &["timeline 7, which is not part of its history", "old primary", "--source"]);
    });
}

/// pgsluice continues after a failover that lost no applied change. That holds also if it has
/// confirmed more than the new primary has, because nothing was to be applied.
#[test]
fn a_source_failed_over_behind_our_position_is_gone_on_from() {
    scenario_alone(
        &[&["--wal-receiver-status-interval", "1s"]],
        |source| source,
        |target| target,
        |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY)");
            s.source("CREATE TABLE noise (v text)");
            s.publish("FOR TABLE t, mark");
            for idle in [false, true] {
                s.follow();
                s.stop();
                let backup = Backup::of(&mut s.pair_mut().source);
                if idle {
                    s.run();
                    s.wait_for_copy();
                    s.source(NOISE);
                    confirm_all(s);
                    s.stop();
                }
                backup.restore(&mut s.pair_mut().source, true);
                write(s);
                s.run();
                s.wait_for_log(if idle { "on timeline 3 now" } else { "on timeline 2 now" });
                s.live(&["INSERT INTO t SELECT max(id) + 1 FROM t"]);
            }
        },
    );
}

/// From 16 on a standby can be the source. After its promotion it sends another timeline over the
/// same connection.
#[test]
fn a_standby_promoted_under_the_stream_is_gone_on_from() {
    alone(|s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        s.follow();
        s.stop();
        let source = &mut s.pair_mut().source;
        source.stop(StopMode::Fast).unwrap();
        become_standby(source);
        let before = s.log(0).len();
        s.run();
        // Before 16, pgsluice waits until the server can decode.
        let words = if s.major() < 16 { "trying again" } else { "streaming from" };
        wait_for(words, BOUND, || Ok(s.log(0)[before..].contains(words))).unwrap();
        promote(&s.pair().source);
        s.live(&["INSERT INTO t VALUES (1)"]);
        confirm_all(s);
        s.backlog(&["INSERT INTO t VALUES (2)"]);
    });
}

/// A server other than the one that the subscription was created for.
#[test]
fn another_source_is_refused_by_its_identifier() {
    alone(|s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        s.publish("FOR TABLE t, mark");
        s.follow();
        s.stop();
        let elsewhere = &s.pair().target;
        elsewhere.sql("postgres", "CREATE DATABASE elsewhere").unwrap();
        let schema = "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE mark (id int PRIMARY KEY)";
        elsewhere.sql("elsewhere", schema).unwrap();
        elsewhere.sql("elsewhere", "CREATE PUBLICATION p FOR ALL TABLES").unwrap();
        let url = elsewhere.url("elsewhere");
        let to = |command: &mut Command| {
            command.env("PGSLUICE_SOURCE", &url);
        };
        refused_with(s, to, &["was made for the source with system identifier", "give the right --source"]);
        write(s);
        s.follow();
        s.same();
    });
}

/// Like a foreign session that attached the origin, or one of a process on a lost machine.
#[test]
fn another_session_that_holds_our_origin_is_named() {
    scenario_with(&[FOLDED], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        s.follow();
        s.stop();
        let origin = format!("pgsluice_{}_0", s.name(0));
        let mut other = Session::to(&(s.target_url(0) + "?application_name=stranger"));
        let setup = format!("SELECT pg_replication_origin_session_setup('{origin}')");
        wait_for("the origin to be free", BOUND, || Ok(other.query(&setup).is_ok())).unwrap();
        let pid = other.query("SELECT pg_backend_pid()").unwrap()[0][0].clone().unwrap();
        write(s);
        s.run();
        s.wait_for_log(&format!("replication origin \"{origin}\" of subscription \"{}\" is held by process {pid} (stranger, user postgres", s.name(0)));
        s.wait_for_log(&format!("SELECT pg_terminate_backend({pid})"));
        s.target(&format!("SELECT pg_terminate_backend({pid})"));
        s.catch_up();
        s.same();
    });
}

#[test]
fn state_on_the_target_that_is_damaged_or_not_ours_is_refused() {
    scenario_with(&[FOLDED], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        s.publish("FOR ALL TABLES");
        s.target("CREATE SCHEMA pgsluice; CREATE TABLE pgsluice.copied_table (mine text)");
        refused(
            s,
            &[
                "schema \"pgsluice\" on the target is damaged, or belongs to something else",
                "pgsluice.subscription",
            ],
        );
        assert_eq!(s.left_behind(), [""; 0]);
        s.target("DROP SCHEMA pgsluice CASCADE");
        s.follow();
        s.stop();
        write(s);
        s.target("ALTER TABLE pgsluice.subscription RENAME slot TO tols");
        refused(s, &["is damaged", "\"slot\"", "DROP SCHEMA pgsluice CASCADE", "copy again"]);
        s.target("ALTER TABLE pgsluice.subscription RENAME tols TO slot");
        s.follow();
        s.same();
        s.stop();
        let origin = format!("pgsluice_{}_0", s.name(0));
        let drop = format!("SELECT pg_replication_origin_drop('{origin}')");
        wait_for("the origin to be free", BOUND, || Ok(Session::to(&s.target_url(0)).query(&drop).is_ok()))
            .unwrap();
        write(s);
        refused(
            s,
            &[
                &format!("replication origin \"{origin}\""),
                "does not exist on the target any more",
                "copy again",
            ],
        );
        begin_anew(s);
    });
}

/// pgsluice waits, because the server may be promoted soon.
#[test]
fn a_target_that_cannot_be_written_to_is_waited_for() {
    alone(|s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        s.follow();
        let target = &mut s.pair_mut().target;
        target.stop(StopMode::Fast).unwrap();
        become_standby(target);
        write(s);
        s.wait_for_log("during recovery");
        s.wait_for_log("target_session_attrs=read-write");
        promote(&s.pair().target);
        s.catch_up();
        s.same();
        // `default_transaction_read_only` is meant for applications, and does not prevent pgsluice
        // from writing.
        let name = s.name(0).to_owned();
        let sql = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
        s.pair().target.sql("postgres", &sql).unwrap();
        let ours = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'pgsluice %'";
        s.pair().target.sql("postgres", ours).unwrap();
        write(s);
        s.source(NOISE);
        s.catch_up();
        confirm_all(s);
        s.same();
    });
}

/// The offsets of each complete `XLogData` with an INSERT in bytes from the server.
fn inserts(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    // CopyData: 'd', length; XLogData: 'w', two positions and a time; pgoutput.
    let whole = |at: &usize| {
        let length = bytes[at + 1..].first_chunk().map_or(0, |length| i32::from_be_bytes(*length));
        bytes[*at] == b'd'
            && bytes.get(at + 5) == Some(&b'w')
            && bytes.get(at + 30) == Some(&b'I')
            && (30..1000).contains(&length)
    };
    (0..bytes.len()).filter(whole)
}

/// A message of an unknown kind, and a stream that ends inside a message: neither is partly
/// applied.
#[test]
fn a_stream_that_is_altered_or_cut_is_read_again() {
    alone(|s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        let proxy = Proxy::to(s.pair().source.port()).unwrap();
        let source = proxy.url(&s.source_url());
        s.run_with(|command| {
            command.env("PGSLUICE_SOURCE", &source);
        });
        s.follow();
        let rows = "INSERT INTO t SELECT m + i FROM (SELECT coalesce(max(id), 0) AS m FROM t) x, generate_series(1, 50) i";
        for cut in [false, true] {
            let mut left = 7_i32;
            proxy.alter(move |bytes| {
                let found = inserts(bytes).find(|_| {
                    left -= 1;
                    left == 0
                });
                let Some(at) = found else { return Then::Forward };
                if cut {
                    bytes.truncate(at + 33);
                    return Then::Cut;
                }
                bytes[at + 30] = b'?';
                Then::Forward
            });
            s.source(rows);
            if cut {
                s.wait_for_log("the server closed the connection unexpectedly");
            } else {
                s.wait_for_log("the source's stream cannot be read: pgoutput message '?'");
            }
            s.catch_up();
            s.same();
        }
        assert_eq!(s.conflicts("insert_exists"), 0);
    });
}
