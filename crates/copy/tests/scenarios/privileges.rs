//! What a role without all rights gets: the rows, or the name of the right.

use testkit::Major;

use crate::support::Scenario;

/// What [`crate::run`] runs on every major.
pub(crate) const SCENARIOS: &[crate::Named] = &[
    ("triggers_fire_only_when_that_was_allowed", triggers_fire_only_when_that_was_allowed),
    (
        "leaves_are_read_through_a_root_that_alone_is_granted",
        leaves_are_read_through_a_root_that_alone_is_granted,
    ),
    ("a_policy_that_would_hide_rows_is_an_error", a_policy_that_would_hide_rows_is_an_error),
];

/// A role that may replicate and read what a scenario grants.
fn with_role(major: Major, db: &'static str) -> Scenario {
    let mut scenario = Scenario::new(major, db);
    let create =
        "DO $$ BEGIN CREATE ROLE copier LOGIN REPLICATION; EXCEPTION WHEN duplicate_object THEN END $$";
    scenario.both(create);
    scenario.target("GRANT USAGE ON SCHEMA pgsluice TO copier; GRANT ALL ON pgsluice.copied TO copier");
    scenario.role = "copier";
    scenario
}

fn triggers_fire_only_when_that_was_allowed(major: Major) {
    let mut scenario = with_role(major, "no_replica");
    scenario.both("CREATE TABLE t (id int PRIMARY KEY)");
    scenario.source(
        "INSERT INTO t VALUES (1), (2); GRANT SELECT ON t TO copier; CREATE PUBLICATION p FOR TABLE t",
    );
    scenario.target("GRANT SELECT, INSERT ON t TO copier");
    let error = scenario.copy_fails();
    assert!(!error.is_retryable() && error.to_string().contains("--allow-triggers"), "{error}");
    scenario.options.allow_triggers = true;
    scenario.copy().unwrap();
    scenario.assert_same("t");
    if major.number() >= 15 {
        scenario
            .target("TRUNCATE t, pgsluice.copied; GRANT SET ON PARAMETER session_replication_role TO copier");
        scenario.options.allow_triggers = false;
        scenario.copy().unwrap();
        scenario.assert_same("t");
        scenario.target("REVOKE SET ON PARAMETER session_replication_role FROM copier");
    }
}

fn leaves_are_read_through_a_root_that_alone_is_granted(major: Major) {
    let mut scenario = with_role(major, "root_only");
    scenario.options.allow_triggers = true;
    scenario.both("CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY HASH (id)");
    scenario.both(
        "CREATE TABLE even PARTITION OF root FOR VALUES WITH (MODULUS 2, REMAINDER 0);
         CREATE TABLE odd PARTITION OF root FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
    );
    scenario.source(
        "INSERT INTO root SELECT g, 'v' || g FROM generate_series(1, 1000) g; GRANT SELECT ON root TO copier;
         CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)",
    );
    scenario.target("GRANT SELECT, INSERT ON root TO copier");
    scenario.copy().unwrap();
    scenario.assert_same("root");
}

fn a_policy_that_would_hide_rows_is_an_error(major: Major) {
    let mut scenario = with_role(major, "policy");
    scenario.options.allow_triggers = true;
    scenario.both("CREATE TABLE t (id int PRIMARY KEY)");
    scenario.source(
        "INSERT INTO t VALUES (1), (2); GRANT SELECT ON t TO copier; CREATE PUBLICATION p FOR TABLE t;
         ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY few ON t USING (id = 1)",
    );
    scenario.target("GRANT SELECT, INSERT ON t TO copier");
    let error = scenario.copy_fails();
    assert!(error.sqlstate() == Some("42501") && error.to_string().contains("row-level security"), "{error}");
    assert_eq!(scenario.target_value("SELECT count(*) FROM t"), "0");
}
