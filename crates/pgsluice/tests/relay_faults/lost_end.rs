//! A first copy that the subscriber cannot end any more.
//!
//! A stock subscriber ends the copy of a table in this order:
//!
//! ```text
//!   note "synchronized" --> DROP_REPLICATION_SLOT at the publisher --> COMMIT of the note
//!                                                                 ^
//!                                       if it dies here, its note is lost and the slot is gone
//! ```
//! From then on, it asks for the slot again and again. No publisher can help: the table must be
//! copied once more. `docs/relay.md` says how; [`copy_again`] does that.

use std::sync::mpsc::channel;

use testkit::{Cluster, Major, Proxy, Then};

use crate::stage::{BOUND, DB, Stage, answers, is_ready, publisher, run, subscribe, subscriber, wait};

/// A table whose copy does not end, in a database of a subscriber.
pub(crate) struct LostEnd {
    subscription: String,
    subscription_oid: String,
    table: String,
    table_oid: String,
    /// The slot that the subscriber asks for.
    pub(crate) slot: String,
}

impl LostEnd {
    /// Tables whose rows are copied, and whose worker finds no slot.
    pub(crate) fn all(cluster: &Cluster, db: &str) -> Vec<LostEnd> {
        let sql = "SELECT subname, s.oid, srrelid::regclass, srrelid, \
                          format('pg_%s_sync_%s_%s', s.oid, srrelid, system_identifier) \
                     FROM pg_subscription_rel JOIN pg_subscription s ON s.oid = srsubid, pg_control_system() \
                    WHERE srsubstate = 'f'";
        let log = cluster.log();
        let lost = cluster.sql(db, sql).unwrap_or_default().into_iter().map(|row| {
            let mut fields = row.into_iter().flatten();
            let mut next = || fields.next().unwrap();
            let (subscription, subscription_oid) = (next(), next());
            let (table, table_oid) = (next(), next());
            LostEnd { subscription, subscription_oid, table, table_oid, slot: next() }
        });
        lost.filter(|lost| log.contains(&format!("replication slot \"{}\" does not exist", lost.slot)))
            .collect()
    }
}

/// What `docs/relay.md` tells a user to do.
pub(crate) fn copy_again(cluster: &Cluster, db: &str, lost: &LostEnd) {
    let LostEnd { subscription, subscription_oid, table, table_oid, .. } = lost;
    run(cluster, db, &format!("ALTER SUBSCRIPTION {subscription} DISABLE"));
    let workers = format!(
        "SELECT count(*) FROM pg_stat_subscription WHERE subname = '{subscription}' AND pid IS NOT NULL"
    );
    wait("the workers to end", || answers(cluster, db, &workers, "0"));
    run(
        cluster,
        db,
        &format!(
            "BEGIN; TRUNCATE {table};
             DELETE FROM pg_subscription_rel WHERE srsubid = {subscription_oid} AND srrelid = {table_oid};
             SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin
              WHERE roname = 'pg_{subscription_oid}_{table_oid}';
             COMMIT"
        ),
    );
    run(cluster, db, &format!("ALTER SUBSCRIPTION {subscription} ENABLE"));
    run(cluster, db, &format!("ALTER SUBSCRIPTION {subscription} REFRESH PUBLICATION"));
}

/// Kills the subscriber when the publisher at `port` has dropped the slot of the first copy, and
/// before the subscriber knows it. Returns what is lost.
fn lose(cluster: &mut Cluster, port: u16) -> (Proxy, LostEnd) {
    let proxy = Proxy::to(port).unwrap();
    let (dropped, was_dropped) = channel();
    let (goes_on, waits) = channel::<()>();
    proxy.alter(move |bytes| {
        if bytes.windows(21).any(|window| window == b"DROP_REPLICATION_SLOT") {
            // Nobody listens any more at the second slot.
            let _ = dropped.send(());
            let _ = waits.recv();
        }
        Then::Forward
    });
    subscribe(cluster, (DB, "s"), (proxy.port(), DB), "synchronous_commit = on");
    was_dropped.recv_timeout(4 * BOUND).expect("a slot of a copy is dropped");
    cluster.kill9();
    drop(goes_on);
    cluster.start_again().unwrap();
    let mut lost = Vec::new();
    wait("a table that cannot become ready", || {
        lost = LostEnd::all(cluster, DB);
        !lost.is_empty()
    });
    (proxy, lost.remove(0))
}

/// A stock publisher and the relay leave a subscriber that dies at the end of a copy in the same
/// state, and the same statements help. The relay's log names the slot that was dropped.
///
/// Fails if the statements of `docs/relay.md` do not help.
#[test]
fn h16_a_copy_whose_end_the_subscriber_lost_is_made_again() {
    Major::each_of(&Major::in_turn(), 1, |major| {
        let stock = publisher(major);
        let mut cluster = subscriber(major);
        let (_proxy, lost) = lose(&mut cluster, stock.port());
        copy_again(&cluster, DB, &lost);
        wait("the copies to be ready", || is_ready(&cluster, DB));

        let stage = Stage::new(major, "");
        let mut cluster = subscriber(major);
        let (_proxy, lost) = lose(&mut cluster, stage.port);
        assert!(stage.was_dropped(&lost.slot), "{}", stage.relay.stderr());
        stage.source("INSERT INTO ledger VALUES (16, 1, 1); UPDATE t SET v = 'later' WHERE id < 100");
        copy_again(&cluster, DB, &lost);
        wait("the copies to be ready", || is_ready(&cluster, DB));
        stage.level(&[&cluster]);
    });
}
