//! Servers of different majors. Objects that both know arrive. Objects that the older one does not
//! know are named before a row is copied.

use testkit::{Cluster, Major, Pair, pg_dump_pinned};

use super::{ROWS, SCHEMA, assert_same_schema, left_behind, start};
use crate::support::{FOLDED, Scenario};

/// A scenario between two majors, with a pg_dump that is not older than either.
fn between(source: Major, target: Major, scenario: impl Fn(&mut Scenario, &str)) {
    let pg_dump = match pg_dump_pinned() {
        Ok(path) => path,
        Err(error) => return println!("skipped, for want of a newer pg_dump: {error:#}"),
    };
    let pair = Pair::with(Cluster::builder(source), Cluster::builder(target)).unwrap();
    let mut s = Scenario::alone(pair, &[FOLDED]);
    s.target("DROP TABLE mark");
    scenario(&mut s, pg_dump.to_str().unwrap());
    s.stop();
}

/// Three pairs. A pg_dump newer than both servers prints settings that an old target does not know.
/// An old source goes into a new target. A new source goes into an old target, as long as it has
/// nothing new.
#[test]
fn versions_may_differ() {
    for (source, target) in [(Major::V15, Major::V15), (Major::V15, Major::V18), (Major::V18, Major::V15)] {
        between(source, target, |s, pg_dump| {
            s.source(SCHEMA);
            s.source(ROWS);
            start(s, pg_dump);
            s.catch_up();
            s.live(&["UPDATE sales.customer SET size = size + 1", "DELETE FROM alarm WHERE id % 2 = 0"]);
            if source == target {
                assert_same_schema(&s.source_url(), &s.target_url(0), |_| false);
            }
            let indexes = "SELECT string_agg(pg_get_indexdef(indexrelid) || indisvalid, ' ' ORDER BY indexrelid::regclass::text COLLATE \"C\")
                             FROM pg_index WHERE indrelid >= 16384 AND indrelid::regclass::text !~ '^pg'";
            assert_eq!(s.target_one(indexes), s.source_one(indexes));
            let constraints = "SELECT string_agg(conname || pg_get_constraintdef(oid) || convalidated, ' ' ORDER BY conrelid::regclass::text COLLATE \"C\", conname COLLATE \"C\")
                                 FROM pg_constraint WHERE oid >= 16384 AND contype <> 'n' AND conparentid = 0 AND connamespace IS DISTINCT FROM to_regnamespace('pgsluice')";
            assert_eq!(s.target_one(constraints), s.source_one(constraints));
        });
    }
}

/// Objects that a newer source has and an older target does not know: in a table, in a constraint
/// created after the copy, and in one that is only checked there. Nothing is left of any, and
/// without the object the same command succeeds.
#[test]
fn what_an_older_target_does_not_know_is_named_and_nothing_is_left() {
    between(Major::V18, Major::V15, |s, pg_dump| {
        s.source("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT i, i FROM generate_series(1, 100) i");
        s.publish("FOR TABLE t, mark");
        let cases: [(&str, &str, &[&str]); 3] = [
            (
                "ALTER TABLE t ADD g int GENERATED ALWAYS AS (v * 2) VIRTUAL",
                "ALTER TABLE t DROP g",
                &["TABLE public.t", "CREATE TABLE public.t", "syntax error"],
            ),
            (
                "CREATE TABLE booked (room int4range, during daterange, PRIMARY KEY (room, during WITHOUT OVERLAPS))",
                "DROP TABLE booked",
                &["CONSTRAINT public.booked booked_pkey", "WITHOUT OVERLAPS", "syntax error"],
            ),
            (
                "ALTER TABLE t ADD CONSTRAINT loose CHECK (v > 0) NOT ENFORCED",
                "ALTER TABLE t DROP CONSTRAINT loose",
                &["public.t", "NOT ENFORCED"],
            ),
        ];
        for (new, old, words) in cases {
            s.source(new);
            let args = ["run", "--publication", "p", "--create-schema", "--pg-dump", pg_dump];
            let refused = s.call(0, &args);
            assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
            for word in words.iter().chain(&["version may be too old for it"]) {
                assert!(refused.stderr.contains(word), "{word} in: {}", refused.stderr);
            }
            assert_eq!(left_behind(s), [""; 0], "{}", refused.stderr);
            s.source(old);
        }
        start(s, pg_dump);
        s.catch_up();
        s.live(&["UPDATE t SET v = v + 1"]);
    });
}
