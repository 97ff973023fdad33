//! Changes that came from elsewhere: both ways between two databases, and from a third one.

use testkit::{Major, wait_for};

use crate::BOUND;
use crate::stage::{Way, scenario};

/// What came to the publisher from a subscriber does not go back, nor to others that want only
/// what began at the publisher.
#[test]
fn changes_of_another_origin_are_left_out() {
    scenario(Major::V16, |scene| {
        scene.everywhere("CREATE TABLE t (id int PRIMARY KEY, v text)");
        scene.publisher("INSERT INTO t VALUES (1, 'copied'); CREATE PUBLICATION p FOR TABLE t");
        let (publisher, subscriber) = (scene.publisher_cluster(), scene.subscriber_cluster());
        let (a, b) = (scene.database(), scene.sub(Way::Relayed));
        subscriber.sql(&b, "CREATE PUBLICATION p FOR TABLE t").unwrap();
        scene.publisher_subscribes((a, &format!("{a}_back")), &b, "origin = none, copy_data = false");
        scene.subscribe("p", "origin = none");
        // One that wants everything.
        let any = scene.more("any", "");
        subscriber.sql(&any, "CREATE TABLE t (id int PRIMARY KEY, v text)").unwrap();
        let place = scene.conninfo(Way::Relayed, a);
        subscriber
            .sql(&any, &format!("CREATE SUBSCRIPTION {any} CONNECTION '{place}' PUBLICATION p"))
            .unwrap();
        let ready = "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel";
        wait_for("the copy", BOUND, || Ok(subscriber.one(&any, ready) == "t")).unwrap();
        scene.publisher("INSERT INTO t VALUES (2, 'publisher')");
        subscriber.sql(&b, "INSERT INTO t VALUES (3, 'subscriber')").unwrap();
        let has = |row: &str| format!("SELECT count(*) FROM t WHERE {row}");
        wait_for("the way back", BOUND, || Ok(publisher.one(a, &has("id = 3")) == "1")).unwrap();
        scene.publisher("UPDATE t SET v = v || '!' WHERE id IN (1, 3)");
        scene.level();
        assert_eq!(
            scene.rows(Way::Relayed, "SELECT * FROM t ORDER BY id"),
            "1|copied!, 2|publisher, 3|subscriber!"
        );
        assert_eq!(scene.rows(Way::Direct, "SELECT * FROM t ORDER BY id"), "1|copied!, 2|publisher");
        let all = "SELECT string_agg(id || ' ' || v, ', ' ORDER BY id) FROM t";
        wait_for("everything", BOUND, || {
            Ok(subscriber.one(&any, all) == "1 copied!, 2 publisher, 3 subscriber!")
        })
        .unwrap_or_else(|error| panic!("{error}: {}", subscriber.one(&any, all)));
        // The same for an origin that a session sets for itself.
        let session = scene.session();
        session.run(&format!("SELECT pg_replication_origin_create('{a}')"));
        session.run(&format!("SELECT pg_replication_origin_session_setup('{a}')"));
        session.run("INSERT INTO t VALUES (4, 'elsewhere'); DELETE FROM t WHERE id = 2");
        session.run("SELECT pg_replication_origin_session_reset()");
        session.run(&format!("SELECT pg_replication_origin_drop('{a}'); INSERT INTO t VALUES (5, 'here')"));
        scene.level();
        scene.shows("SELECT string_agg(id::text, ' ' ORDER BY id) FROM t WHERE id <> 3", "1 2 5");
        wait_for("everything", BOUND, || {
            Ok(subscriber.one(&any, all).ends_with("3 subscriber!, 4 elsewhere, 5 here"))
        })
        .unwrap_or_else(|error| panic!("{error}: {}", subscriber.one(&any, all)));
        // The subscription wants everything from now on.
        // The old stream must not confirm what it has left out.
        scene.at(Way::Direct, "ALTER SUBSCRIPTION {sub} DISABLE");
        let active = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{sub}' AND active";
        wait_for("the stream to end", BOUND, || Ok(scene.upstream(Way::Direct, active) == "0")).unwrap();
        scene.at(Way::Direct, "ALTER SUBSCRIPTION {sub} SET (origin = any)");
        scene.at(Way::Direct, "ALTER SUBSCRIPTION {sub} ENABLE");
        subscriber.sql(&b, "INSERT INTO t VALUES (6, 'subscriber')").unwrap();
        wait_for("the other subscriber", BOUND, || Ok(scene.rows(Way::Direct, &has("id = 6")) == "1"))
            .unwrap();
        scene.level();
        assert_eq!(scene.rows(Way::Relayed, &has("id = 6")), "1");
        subscriber.sql(&any, &format!("DROP SUBSCRIPTION {any}")).unwrap();
        publisher.sql(a, &format!("DROP SUBSCRIPTION {a}_back")).unwrap();
    });
}

/// The publisher subscribes to a database itself. What its copy wrote is passed on.
#[test]
fn what_a_copy_wrote_is_passed_on() {
    scenario(Major::V14, |scene| {
        scene.everywhere("CREATE TABLE t (id int PRIMARY KEY, v text)");
        scene.publisher("CREATE PUBLICATION p FOR TABLE t");
        scene.subscribe("p", "");
        let first = scene.more("first", "");
        let (publisher, subscriber) = (scene.publisher_cluster(), scene.subscriber_cluster());
        subscriber
            .sql(
                &first,
                "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT n, 'copied' FROM generate_series(1, 200) n;
                 CREATE PUBLICATION p FOR TABLE t",
            )
            .unwrap();
        scene.publisher_subscribes((scene.database(), &first), &first, "");
        let ready = "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel";
        wait_for("the copy", BOUND, || Ok(scene.at_publisher(ready) == "t")).unwrap();
        subscriber
            .sql(&first, "UPDATE t SET v = 'changed' WHERE id % 3 = 0; DELETE FROM t WHERE id = 1")
            .unwrap();
        let changed = "SELECT count(*), count(*) FILTER (WHERE v = 'changed') FROM t";
        wait_for("the changes", BOUND, || Ok(scene.at_publisher(changed) == "199|66")).unwrap();
        scene.level();
        scene.same(&["t"]);
        publisher.sql(scene.database(), &format!("DROP SUBSCRIPTION {first}")).unwrap();
    });
}
