//! The life of a subscription whose two ends are of different majors, with every option that the
//! older of them allows. `cargo x test --all-majors` has all pairs.

use testkit::Major;

use crate::errors::{ENABLED, skip};
use crate::stage::{Scene, between};

const TABLES: &str =
    "CREATE TABLE kept (id int PRIMARY KEY, v text, at timestamptz, parts int[], price numeric(12, 3));
     CREATE TABLE comes (id int PRIMARY KEY, v text);
     CREATE TABLE later (id int PRIMARY KEY, v text);";
/// More than the memory of a decoder, with a part that is taken back.
const LARGE: &str = "BEGIN; INSERT INTO kept SELECT n, repeat('l', 100), now(), ARRAY[n], n / 7.0 FROM generate_series(1000, 2999) n;
     SAVEPOINT a; UPDATE kept SET v = 'taken back'; ROLLBACK TO a;
     DELETE FROM kept WHERE id % 5 = 0; COMMIT";

/// The options to try, those that both majors have.
fn options(publisher: Major, subscriber: Major) -> Vec<&'static str> {
    let older = publisher.min(subscriber);
    let all = [
        (Major::V14, Major::V14, "binary = true, streaming = on"),
        (Major::V14, Major::V16, "streaming = parallel, origin = none, run_as_owner = true"),
        (Major::V15, Major::V15, "two_phase = on, disable_on_error = true"),
    ];
    let fits = |(both, own, _): &(Major, Major, &str)| older >= *both && subscriber >= *own;
    all.into_iter().filter(fits).map(|(.., options)| options).collect()
}

/// Rows of every kind of change, after the copy and after everything that the subscription goes
/// through.
fn changes(scene: &Scene, round: u32) {
    scene.publisher(&format!(
        "INSERT INTO kept VALUES ({round}, 'new', '2026-01-02 03:04:05+07', '{{1,NULL}}', -1.5), (1{round}, NULL, NULL, NULL, 'NaN');
         UPDATE kept SET v = v || '{round}', price = price + 1 WHERE id < 1000; UPDATE kept SET id = -id WHERE id = 1{round};
         DELETE FROM kept WHERE id = -1{round};
         INSERT INTO comes VALUES ({round}, 'new'); INSERT INTO later VALUES ({round}, 'new')"
    ));
    scene.level();
}

fn life(scene: &Scene, options: &str) {
    scene.everywhere(TABLES);
    scene.publisher("CREATE PUBLICATION p FOR TABLE kept; CREATE PUBLICATION q FOR TABLE comes");
    scene.publisher("INSERT INTO kept SELECT n, 'old', now(), '{}', n FROM generate_series(101, 120) n");
    scene.subscribe("p", options);
    changes(scene, 1);
    scene.publisher(LARGE);
    scene.level();
    scene.same(&["kept"]);
    // With two-phase commit, servers refuse a refresh that copies.
    let two_phase = options.contains("two_phase");
    if two_phase {
        prepared(scene)
    } else {
        publications_come_and_go(scene)
    }
    scene.subscribers("ALTER SUBSCRIPTION {sub} DISABLE");
    scene.publisher(&LARGE.replace("1000, 2999", "4000, 5999"));
    scene.subscribers("ALTER SUBSCRIPTION {sub} ENABLE");
    changes(scene, 4);
    scene.same(&["kept"]);
    if options.contains("disable_on_error") {
        scene.subscribers("INSERT INTO kept VALUES (50, 'in the way')");
        scene.publisher("INSERT INTO kept VALUES (50, 'is skipped')");
        skip(scene);
        scene.until("the subscriptions to be enabled", ENABLED, "t");
        scene.publisher("DELETE FROM kept WHERE id = 50");
        changes(scene, 5);
        scene.same(&["kept"]);
    }
}

fn publications_come_and_go(scene: &Scene) {
    scene.subscribers("ALTER SUBSCRIPTION {sub} ADD PUBLICATION q");
    scene.ready();
    changes(scene, 2);
    scene.same(&["kept", "comes"]);
    scene.publisher("ALTER PUBLICATION p ADD TABLE later");
    scene.subscribers("ALTER SUBSCRIPTION {sub} REFRESH PUBLICATION");
    scene.ready();
    changes(scene, 3);
    scene.same(&["later"]);
    scene.subscribers("ALTER SUBSCRIPTION {sub} DROP PUBLICATION q");
    scene.publisher("TRUNCATE later; INSERT INTO comes VALUES (30, 'is not published any more')");
    scene.level();
    scene.same(&["later"]);
    scene.shows("SELECT string_agg(id::text, ' ' ORDER BY id) FROM comes", "1 2 3");
}

/// One transaction that commits, and one that does not, both prepared.
fn prepared(scene: &Scene) {
    let two_phase = "SELECT subtwophasestate = 'e' FROM pg_subscription WHERE subname = '{sub}'";
    scene.until("two-phase commit", two_phase, "t");
    let (stays, goes) = (format!("{}_stays", scene.database()), format!("{}_goes", scene.database()));
    for (id, gid) in [(70, &stays), (71, &goes)] {
        scene
            .session()
            .run(&format!("BEGIN; INSERT INTO kept VALUES ({id}, 'prepared'); PREPARE TRANSACTION '{gid}'"));
    }
    let found = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()";
    scene.until("the prepared transactions", found, "2");
    scene.session().run(&format!("COMMIT PREPARED '{stays}'"));
    scene.session().run(&format!("ROLLBACK PREPARED '{goes}'"));
    scene.level();
    scene.until("their end", found, "0");
    scene.same(&["kept"]);
}

/// Between all pairs of the majors under test.
#[test]
fn a_subscription_lives_between_two_majors() {
    let majors = Major::under_test();
    for &publisher in &majors {
        for &subscriber in majors.iter().filter(|subscriber| **subscriber != publisher) {
            for options in options(publisher, subscriber) {
                println!("a publisher of {publisher}, a subscriber of {subscriber}: {options}");
                between(publisher, subscriber, |scene| life(scene, options));
            }
        }
    }
}
