//! Ends that differ, and a target's role that is not a superuser.

use testkit::{Cluster, Major, Pair, Sluice, wait_for};

use super::{
    Load, TABLES, call, done, handed_back, impatient, level, native_ready, refused, start, there_and_back,
};
use crate::support::{BOUND, FOLDED, Scenario, Session, scenario_alone};

/// The native worker of the one major reads from the other, and so do we.
#[test]
fn between_majors_nothing_is_lost_or_repeated() {
    let between = |source: Major, target: Major| {
        let pair = Pair::with(Cluster::builder(source), impatient(Cluster::builder(target))).unwrap();
        let mut s = Scenario::alone(pair, &[FOLDED]);
        there_and_back(&mut s, 2);
        s.stop();
    };
    std::thread::scope(|scope| {
        let up = scope.spawn(|| between(Major::V15, Major::V18));
        between(Major::V18, Major::V15);
        up.join().unwrap();
    });
}

const OWNER: &str = "keeper";

/// What such an owner needs besides: in the words of `check`, and for the way back.
fn rights(db: &str) -> [String; 3] {
    let functions = "pg_replication_origin_create(text), pg_replication_origin_drop(text), pg_replication_origin_session_setup(text), \
                     pg_replication_origin_xact_setup(pg_lsn, timestamptz), pg_replication_origin_progress(text, boolean), \
                     pg_replication_origin_session_reset()";
    [
        format!("GRANT CREATE ON DATABASE {db} TO {OWNER}"),
        format!("GRANT SET ON PARAMETER session_replication_role TO {OWNER}"),
        format!("GRANT EXECUTE ON FUNCTION {functions} TO {OWNER}"),
    ]
}

/// Creates a native subscription with the follower's name. It belongs to a role with only the
/// necessary rights. Returns the connection strings of that role, source and target.
fn begin_owned(s: &mut Scenario) -> [String; 2] {
    let name = s.name(0).to_owned();
    s.both(TABLES);
    s.source("CREATE ROLE sender LOGIN REPLICATION PASSWORD 'secret'; GRANT SELECT ON ALL TABLES IN SCHEMA public TO sender");
    s.source("INSERT INTO counter SELECT i, 0 FROM generate_series(1, 20) i; INSERT INTO history VALUES (0)");
    s.publish("FOR ALL TABLES");
    s.target(&format!("CREATE ROLE {OWNER} LOGIN; GRANT pg_create_subscription TO {OWNER}"));
    rights(&name).iter().for_each(|sql| s.target(sql));
    for table in ["counter", "history", "mark"] {
        s.target(&format!("ALTER TABLE {table} OWNER TO {OWNER}"));
    }
    let source = s.source_url().replace("postgres@", "sender:secret@");
    let target = s.target_url(0).replace("postgres@", &format!("{OWNER}@"));
    Session::to(&target).run(&format!("CREATE SUBSCRIPTION {name} CONNECTION '{source}' PUBLICATION p"));
    native_ready(s);
    [source, target]
}

/// Only superusers own subscriptions before 16.
#[test]
fn an_owner_that_is_no_superuser_adopts_and_releases() {
    let hba = "host all sender 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust";
    scenario_alone(
        &[FOLDED],
        |source| source.hba(hba),
        impatient,
        |s| {
            if s.major() < 16 {
                return println!("not told on {}: only superusers own subscriptions there", s.major());
            }
            let [source, target] = begin_owned(s);
            let name = s.name(0).to_owned();
            let with = |command: &[&'static str]| -> Vec<String> {
                let ends = ["--source", source.as_str(), "--target", target.as_str()];
                command.iter().chain(&ends).map(|word| (*word).to_owned()).collect()
            };
            let said = |s: &Scenario, command: &[&'static str]| {
                let words = with(command);
                call(s, &words.iter().map(String::as_str).collect::<Vec<_>>())
            };
            let prepare = ["adopt", "--prepare-only"];
            // The way back is asked for first.
            refused(
                &said(s, &prepare),
                &["release could not", "GRANT EXECUTE ON FUNCTION pg_replication_origin_advance"],
            );
            handed_back(s);
            s.target(&format!(
                "GRANT EXECUTE ON FUNCTION pg_replication_origin_advance(text, pg_lsn) TO {OWNER}"
            ));
            // A subscription of its own that it may not alter.
            s.target(&format!("ALTER SUBSCRIPTION {name} SET (password_required = false)"));
            refused(&said(s, &prepare), &["password_required = false", "SET (password_required = true)"]);
            handed_back(s);
            s.target(&format!("ALTER SUBSCRIPTION {name} SET (password_required = true)"));
            let load = Load::on(s);
            for _ in 0..2 {
                let words = with(&["adopt"]);
                let mut sluice = start(s, &words.iter().map(String::as_str).collect::<Vec<_>>());
                level(s);
                sluice.kill9();
                let words = with(&["run", "--publication", "p"]);
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let mut sluice = Sluice::start(s.command(0, &words)).unwrap();
                level(s);
                let text = done(said(s, &["release"]));
                assert!(text.contains("handed back at"), "{text}");
                wait_for("pgsluice to end", BOUND, || Ok(!sluice.is_running())).unwrap();
                handed_back(s);
                level(s);
            }
            load.end();
            level(s);
            s.same();
        },
    );
}
