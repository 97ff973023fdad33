//! A timestamptz in other zones than UTC: those with the strangest clocks.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testkit::server_dir;
use types::TimeZone;

use crate::oracle::{Oracle, Totals};

const ZONES: &[&str] = &[
    "Europe/Berlin",
    "America/New_York",
    // Half an hour of summer time.
    "Australia/Lord_Howe",
    // Summer time in the southern half of the year, and seconds in its first offset.
    "America/Sao_Paulo",
    "Asia/Kolkata",
    // Standard time is the exception.
    "Europe/Dublin",
    "Africa/Casablanca",
    // A day was skipped.
    "Pacific/Apia",
    "America/St_Johns",
    "Africa/Monrovia",
    "Asia/Gaza",
    "Antarctica/Troll",
    "Etc/GMT+12",
    // When the last transition of its file ends summer time, its rule would still have it.
    "America/Ojinaga",
];

/// The week in which the rule and the last transition of America/Ojinaga disagree, and a day on
/// both sides: 2022-10-29 to 2022-11-08, in seconds from 2000-01-01.
const DISPUTED: std::ops::Range<i64> = 720_316_800..721_180_800;

#[test]
fn other_zones() {
    Oracle::each(|oracle| {
        let files = server_dir(oracle.cluster.major()).unwrap().join("share/postgresql/timezone");
        let mut rng = StdRng::seed_from_u64(2);
        oracle.sql("CREATE TABLE z (v timestamptz, r tstzrange, a timestamptz[])");
        // Around every hour in which clocks may be changed, and at any time.
        let mut seconds: Vec<i64> =
            (0..1_500).map(|_| rng.random_range(-1_300_000..900_000) * 3_600).collect();
        seconds.extend(DISPUTED.step_by(3_600));
        seconds.extend((0..500).map(|_| rng.random_range(-211_813_488_000_i64..9_223_371_331_200)));
        let seconds = seconds.iter().flat_map(|second| [-1, 0, 1].map(|by| second + by));
        let rows: Vec<_> = seconds
            .map(|second| vec![Some((second * 1_000_000).to_be_bytes().to_vec()), None, None])
            .collect();
        oracle.copy_in("z", &rows);
        oracle.sql("INSERT INTO z VALUES ('infinity', '[-infinity,2020-07-01)', '{2020-01-01,-infinity}')");
        let types = oracle.types();
        let mut totals = Totals::default();
        for zone in ZONES {
            oracle.sql(&format!("SET timezone = '{zone}'"));
            let file = std::fs::read(files.join(zone)).unwrap();
            oracle.settings.time_zone = TimeZone::from_tzif(&file).unwrap();
            totals += oracle.compare_with("z", &types);
        }
        println!("{}: {} zones, {totals}", oracle.major(), ZONES.len());
        assert!(totals.values > 50_000, "{totals}");
    });
}
