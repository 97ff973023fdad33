//! Values of all kinds of types, as text and in binary form, and databases in other encodings.

use testkit::Major;

use crate::stage::{Scene, Way, scenario};

const TABLES: &str = "
    CREATE TYPE mood AS ENUM ('calm', 'wild');
    CREATE TYPE pair AS (n int, said text);
    CREATE DOMAIN even AS int CHECK (VALUE % 2 = 0);
    CREATE DOMAIN words AS text[];
    CREATE TABLE plain (id int PRIMARY KEY, b bool, c \"char\", s smallint, l bigint, r real, d float8, n numeric,
        m money, t text, v varchar(20), p char(5), y bytea, u uuid, o oid, nm name, bi bit(5), vb varbit,
        i inet, ci cidr, ma macaddr, ma8 macaddr8);
    CREATE TABLE times (id int PRIMARY KEY, d date, t time(3), z timetz, s timestamp, sz timestamptz, i interval);
    CREATE TABLE made (id int PRIMARY KEY, m mood, p pair, e even, w words, ms mood[], ps pair[], es even[]);
    CREATE TABLE nested (id int PRIMARY KEY, a int[], aa int[][], t text[], n numeric[], z timestamptz[],
        r int4range, rn numrange, rz tstzrange, rs int4range[], mr int4multirange, mz tstzmultirange);
    CREATE TABLE rich (id int PRIMARY KEY, j json, jb jsonb, x xml, ts tsvector, tq tsquery, p point, l line,
        bo box, pa path, po polygon, ci circle, jp jsonpath, ls pg_lsn);
    CREATE TABLE by_value (m mood, n numeric, z timestamptz, j jsonb, a text[], r int4range);
    CREATE TABLE by_many (d date, m mood, u uuid, v text, PRIMARY KEY (d, m, u));
    ALTER TABLE by_value REPLICA IDENTITY FULL";

const ROWS: [&str; 7] = [
    r"INSERT INTO plain VALUES
        (1, true, 'x', -32768, 9223372036854775807, 'NaN', '-Infinity', 'NaN', '12.34', E'tab\tline\nquote''\\', 'ä€𝄞',
         'pad', '\x00ff0a5c', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 4294967295, 'a name', B'10101', B'1',
         '192.168.0.1/24', '10.0.0.0/8', '08:00:2b:01:02:03', '08:00:2b:01:02:03:04:05'),
        (2, false, '', 32767, -9223372036854775808, 1.17549e-38, 4.9e-324, 123456789012345678901234567890.000000001,
         '-0.01', '', '', '', '', NULL, 0, '', B'00000', B'', '::1', 'fe80::/10', NULL, NULL),
        (3, NULL, NULL, NULL, NULL, 0.1, 0.1, -0.0, NULL, repeat('long ', 5000), NULL, NULL,
         decode(repeat('00ff', 5000), 'hex'), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    "INSERT INTO times VALUES
        (1, '2026-11-28', '23:59:59.999', '12:00+05:30', '2026-11-28 01:02:03.000004', '2026-11-28 01:02:03.000004-08',
         '1 year -2 months 3 days -04:05:06.7'),
        (2, 'infinity', '24:00', '00:00-15:59', '-infinity', 'infinity', '0'),
        (3, '4713-01-01 BC', '00:00', NULL, '294276-12-31 23:59:59.999999', '4713-01-02 00:00:00+00 BC', '-178000000 years')",
    "INSERT INTO made VALUES
        (1, 'calm', (1, 'a,\"b\"'), 2, ARRAY['x', NULL, ''], '{calm,wild}', ARRAY[(1, 'a')::pair, NULL, (NULL, '')::pair],
         '{2,4}'),
        (2, NULL, (NULL, NULL), NULL, '{}', '{}', '{}', NULL)",
    "INSERT INTO nested VALUES
        (1, '{1,NULL,3}', '{{1,2},{3,4}}', ARRAY['a,b', 'NULL', NULL, '', '{}', E'\\\\'], '{1.50,NaN}', '{2026-11-28}',
         '[1,5)', '(,2.5]', '[2026-01-01,infinity)', '{\"[1,2)\",empty}', '{[1,3),[5,8)}', '{(,2026-01-01)}'),
        (2, '{}', '[0:1]={7,8}', '{}', NULL, NULL, 'empty', 'empty', NULL, '{}', '{}', NULL)",
    r#"INSERT INTO rich VALUES
        (1, '{"b":  1, "a": [1, 2]}', '{"b": 1e2, "a": null, "c": "\u00e4"}', '<a b="c">d</a>', 'a:1A fat:2,3 cat', 'a & !(b | c:*)',
         '(1.5,-2)', '{1,2,3}', '(3,4),(1,2)', '[(0,0),(1,1)]', '((0,0),(1,1),(2,0))', '<(1,2),3>',
         '$.a[*] ? (@ > 1)', '16/B374D848'),
        (2, 'null', '[]', '', '', 'b', NULL, NULL, NULL, '((0,0))', NULL, NULL, NULL, '0/0')"#,
    "INSERT INTO by_value VALUES ('calm', 1.0, '2026-01-01', '{\"a\": 1}', '{a}', '[1,2]'),
        ('wild', 1.00, NULL, '[]', '{}', 'empty'), ('wild', NULL, NULL, NULL, NULL, NULL)",
    "INSERT INTO by_many SELECT '2026-01-01'::date + n, 'wild', lpad(n::text, 32, '0')::uuid, 'v' FROM generate_series(1, 9) n",
];

const CHANGES: [&str; 6] = [
    "UPDATE plain SET t = t || '.', n = n * 2, l = 5 WHERE id = 1; UPDATE plain SET b = true WHERE id = 3;
     DELETE FROM plain WHERE id = 2",
    "UPDATE times SET i = i + '1 mon', sz = '2000-02-29 12:00+02'; DELETE FROM times WHERE id = 2",
    "ALTER TYPE mood ADD VALUE 'new' BEFORE 'wild'",
    "UPDATE made SET m = 'new', ms = ms || 'new'::mood, p = (2, NULL)",
    "UPDATE nested SET a = a || 9, mr = mr + '{[100,200)}'; UPDATE rich SET jb = jb || '[1]', p = '(0,0)'",
    "UPDATE by_value SET n = 2 WHERE m = 'calm'; DELETE FROM by_value WHERE n IS NULL;
     UPDATE by_many SET d = d + 100 WHERE v = 'v' AND d < '2026-01-05'; DELETE FROM by_many WHERE d = '2026-01-06'",
];

const NAMES: [&str; 7] = ["plain", "times", "made", "nested", "rich", "by_value", "by_many"];

fn all_types(scene: &Scene, with: &str, names: &[&str]) {
    scene.everywhere(TABLES);
    // Rows of each kind are copied, and come again as changes.
    ROWS.iter().for_each(|sql| scene.publisher(sql));
    scene.publisher(&format!("CREATE PUBLICATION p FOR TABLE {}", names.join(", ")));
    scene.subscribe("p", with);
    scene.same(names);
    scene.publisher("UPDATE plain SET id = -id; DELETE FROM by_value");
    scene.publisher(&format!("TRUNCATE {}", NAMES[1..5].join(", ")));
    ROWS[..6].iter().for_each(|sql| scene.publisher(sql));
    scene.level();
    scene.same(names);
    for sql in CHANGES {
        if sql.starts_with("ALTER TYPE") {
            scene.subscribers(sql);
        }
        scene.publisher(sql);
    }
    scene.level();
    scene.same(names);
}

#[test]
fn values_of_all_types_arrive_as_text() {
    scenario(Major::V14, |scene| all_types(scene, "", &NAMES));
}

/// A subscriber before 16 copies as text, and refuses arrays whose elements have another OID there.
#[test]
fn values_of_all_types_arrive_in_binary_form() {
    scenario(Major::V14, |scene| {
        let has_arrays = |name: &&str| scene.major >= Major::V16 || *name != "made";
        let names: Vec<&str> = NAMES.into_iter().filter(has_arrays).collect();
        all_types(scene, "binary = true", &names);
    });
}

/// What cannot be received in binary form stops both, until they ask for text.
#[test]
fn binary_values_of_another_type_stop_a_subscription() {
    scenario(Major::V14, |scene| {
        scene.publisher("CREATE TABLE t (id int PRIMARY KEY, n bigint); CREATE PUBLICATION p FOR TABLE t");
        scene.subscribers("CREATE TABLE t (id int PRIMARY KEY, n int)");
        scene.subscribe("p", "binary = true");
        scene.publisher("INSERT INTO t VALUES (1, 10)");
        scene.logged("incorrect binary data format");
        scene.subscribers("ALTER SUBSCRIPTION {sub} SET (binary = false)");
        scene.level();
        scene.same(&["t"]);
    });
}

/// A subscriber's session asks for its database's encoding.
#[test]
fn a_subscriber_in_another_encoding_is_refused_and_not_given_wrong_characters() {
    scenario(Major::V14, |scene| {
        scene.publisher(
            "CREATE TABLE words (id int PRIMARY KEY, v text); INSERT INTO words VALUES (1, 'Grüße');
             CREATE PUBLICATION p FOR TABLE words",
        );
        let latin = scene.more("latin", "ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
        let cluster = scene.subscriber_cluster();
        cluster.sql(&latin, "CREATE TABLE words (id int PRIMARY KEY, v text)").unwrap();
        let create = |way: Way| {
            let place = scene.conninfo(way, scene.database());
            cluster.sql(&latin, &format!("CREATE SUBSCRIPTION {latin} CONNECTION '{place}' PUBLICATION p"))
        };
        let refused = create(Way::Relayed).expect_err("the relay has let it in");
        assert!(format!("{refused:#}").contains("speaks UTF8 only"), "{refused:#}");
        create(Way::Direct).unwrap();
        testkit::wait_for("the row", crate::BOUND, || {
            Ok(cluster.one(&latin, "SELECT count(*) FROM words WHERE v = 'Grüße' AND octet_length(v) = 5")
                == "1")
        })
        .unwrap_or_else(|error| panic!("{error}"));
        cluster.sql(&latin, &format!("DROP SUBSCRIPTION {latin}")).unwrap();
    });
}

#[test]
fn a_publisher_in_another_encoding_is_refused() {
    scenario(Major::V14, |scene| {
        let latin = scene.more("latin", "ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
        scene
            .publisher_cluster()
            .sql(
                &latin,
                "CREATE TABLE words (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE words",
            )
            .unwrap();
        scene.subscribers("CREATE TABLE words (id int PRIMARY KEY, v text)");
        let create = |way: Way| {
            let place = scene.conninfo(way, &latin);
            scene.try_at(way, &format!("CREATE SUBSCRIPTION {{sub}} CONNECTION '{place}' PUBLICATION p"))
        };
        let refused = create(Way::Relayed).expect_err("the relay has let it in");
        assert!(
            refused.contains("decodes databases in UTF8 only") && refused.contains("LATIN1"),
            "{refused}"
        );
        create(Way::Direct).unwrap();
    });
}

/// Equality by a collation, not by bytes: it finds a row whose key is written otherwise.
#[test]
fn keys_are_found_by_a_subscribers_collation() {
    scenario(Major::V14, |scene| {
        scene.everywhere(
            "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
             CREATE TABLE by_key (v text COLLATE loose PRIMARY KEY, n int);
             CREATE TABLE whole (v text COLLATE loose, n int);
             ALTER TABLE whole REPLICA IDENTITY FULL",
        );
        scene.publisher(
            "INSERT INTO by_key VALUES ('Ärger', 1), ('Baum', 1); INSERT INTO whole SELECT * FROM by_key;
             CREATE PUBLICATION p FOR TABLE by_key, whole",
        );
        // The same words, in other letters or other bytes.
        scene.subscribers(
            "INSERT INTO by_key VALUES (U&'A\\0308rger', 1), ('BAUM', 1); INSERT INTO whole SELECT * FROM by_key",
        );
        scene.subscribe("p", "copy_data = false");
        scene.publisher("UPDATE by_key SET n = 2; UPDATE whole SET n = 2 WHERE v = 'ärger'");
        scene.publisher("DELETE FROM whole WHERE v = 'baum'");
        scene.level();
        scene.shows("SELECT v, n FROM by_key ORDER BY v", "Ärger|2, Baum|2");
        scene.alike("SELECT v::bytea, n FROM by_key UNION ALL SELECT v::bytea, n FROM whole ORDER BY 1, 2");
        scene.shows("SELECT count(*), max(n) FROM whole", "1|2");
    });
}

/// Only its own server can print a type of an extension.
#[test]
fn a_type_of_an_extension_is_refused_by_name() {
    scenario(Major::V14, |scene| {
        scene.everywhere("CREATE EXTENSION hstore; CREATE TABLE t (id int PRIMARY KEY, h hstore)");
        scene.publisher("CREATE PUBLICATION p FOR TABLE t; INSERT INTO t VALUES (1, 'a=>1')");
        scene.subscribe("p", "");
        scene.same(&["t"]);
        // Before there is a row, both are told. libpq writes it to the subscriber's log without a
        // prefix, so it cannot be seen of which worker it is.
        let told = "table public.t cannot be decoded because of its column \"h\"";
        testkit::wait_for("the relay's warning", crate::BOUND, || {
            let warned = scene.subscriber_cluster().log().contains(&format!("WARNING:  {told}"));
            Ok(warned && scene.relay_log().contains(&format!("will end at the first row of a table: {told}")))
        })
        .unwrap_or_else(|error| panic!("{error}: {}", scene.relay_log()));
        assert!(!scene.log(Way::Relayed).contains(&format!("ERROR:  {told}")), "nothing has ended yet");
        scene.publisher("INSERT INTO t VALUES (2, 'b=>2')");
        testkit::wait_for("the relay's words", crate::BOUND, || {
            Ok(scene
                .log(Way::Relayed)
                .lines()
                .any(|line| !line.starts_with("WARNING:  ") && line.contains(told)))
        })
        .unwrap_or_else(|error| panic!("{error}"));
        // Without the table, the stream goes on.
        scene.publisher("ALTER PUBLICATION p DROP TABLE t");
        scene.subscribers("ALTER SUBSCRIPTION {sub} SET PUBLICATION marks WITH (refresh = false)");
        scene.level();
        scene.shows("SELECT count(*) FROM t WHERE id = 1", "1");
    });
}
