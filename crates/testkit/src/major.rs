//! The majors we test on, and which of them this run must test.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::panic::resume_unwind;
use std::{fmt, thread};

/// A seed: if it is set, scenarios and other slow tests take the majors in turn
/// ([`Major::in_turn`]).
pub const TURNS: &str = "PGSLUICE_TEST_TURNS";

/// A major version of PostgreSQL that pgsluice supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Major {
    /// PostgreSQL 14: pgoutput v2, no row filters, no column lists.
    V14,
    /// PostgreSQL 15.
    V15,
    /// PostgreSQL 16: pgoutput v4, `origin`.
    V16,
    /// PostgreSQL 17.
    V17,
    /// PostgreSQL 18.
    V18,
}

impl Major {
    /// Every supported major, oldest first.
    pub const ALL: [Major; 5] = [Major::V14, Major::V15, Major::V16, Major::V17, Major::V18];
    /// The majors of the default suite: the oldest that most people run, and the newest.
    pub const DEFAULT: [Major; 2] = [Major::V15, Major::V18];

    /// The major's number, 14 to 18.
    pub fn number(self) -> u32 {
        14 + self as u32
    }

    /// The major of that number, if we support it.
    pub fn from_number(number: u32) -> Option<Major> {
        Major::ALL.into_iter().find(|major| major.number() == number)
    }

    /// The majors that this run must test: `PGSLUICE_TEST_MAJORS` (`all`, or numbers with commas),
    /// otherwise [`Major::DEFAULT`].
    ///
    /// # Panics
    ///
    /// If the variable holds anything else: a typing error must not shrink the matrix silently.
    pub fn under_test() -> Vec<Major> {
        match std::env::var("PGSLUICE_TEST_MAJORS") {
            Ok(text) if !text.trim().is_empty() => parse_list(&text)
                .unwrap_or_else(|word| panic!("PGSLUICE_TEST_MAJORS: {word:?} is not a major from 14 to 18")),
            _ => Major::DEFAULT.to_vec(),
        }
    }

    /// The majors for a test that takes long: all under test, or the one whose turn it is by the
    /// seed in [`TURNS`] and the test's name. Over several runs each test meets every major.
    ///
    /// # Panics
    ///
    /// If the variable is no number.
    pub fn in_turn() -> Vec<Major> {
        let seed = std::env::var(TURNS).ok().filter(|seed| !seed.is_empty());
        let seed = seed.map(|seed| seed.parse().unwrap_or_else(|_| panic!("{TURNS}: {seed:?} is no number")));
        whose_turn(Major::under_test(), seed, &test_name())
    }

    /// [`Major::each_of`] the majors under test.
    ///
    /// # Panics
    ///
    /// As the first of the tests that failed.
    pub fn each(at_once: usize, test: impl Fn(Major) + Sync) {
        Major::each_of(&Major::under_test(), at_once, test);
    }

    /// Runs `test` on these majors, `at_once` of them at the same time. A failure is printed at
    /// once, and again when the test runner prints the output of each test.
    ///
    /// # Panics
    ///
    /// As the first of the tests that failed.
    pub fn each_of(majors: &[Major], at_once: usize, test: impl Fn(Major) + Sync) {
        let name = test_name();
        for majors in majors.chunks(at_once) {
            thread::scope(|scope| {
                let begin = |major: &Major| {
                    let (test, major) = (&test, *major);
                    let builder = thread::Builder::new().name(format!("{name}{ON}{major}"));
                    (major, builder.spawn_scoped(scope, move || test(major)).expect("a thread"))
                };
                let begun: Vec<_> = majors.iter().map(begin).collect();
                for (major, test) in begun {
                    let Err(panic) = test.join() else { continue };
                    let what = panic.downcast_ref::<String>().map(String::as_str);
                    let what = what.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
                    // Written past what the runner captures. A closed stream is not an error.
                    let _ = writeln!(io::stderr(), "{name}{ON}{major}: {what:.SHOWN_MAX$}");
                    resume_unwind(panic);
                }
            });
        }
    }
}

/// `majors`, or with a seed the one of them whose turn it is in the test of that name.
fn whose_turn(majors: Vec<Major>, seed: Option<u64>, test: &str) -> Vec<Major> {
    let Some(seed) = seed.filter(|_| !majors.is_empty()) else { return majors };
    let mut name = DefaultHasher::new();
    test.hash(&mut name);
    let at = name.finish().wrapping_add(seed) % majors.len() as u64;
    vec![majors[at as usize]]
}

/// Stands between the name of a test and its major, in the name of a thread.
const ON: &str = " on PostgreSQL ";

/// The test that this thread belongs to, as its runner and [`Major::each`] name threads; empty in a
/// thread without a name.
pub fn test_name() -> String {
    let thread = thread::current();
    let name = thread.name().unwrap_or_default();
    name.split(ON).next().unwrap_or_default().to_owned()
}

/// Most characters of a failure's reason.
const SHOWN_MAX: usize = 1_000;

impl fmt::Display for Major {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number())
    }
}

/// `all`, or numbers with commas; the word that is neither comes back as the error.
fn parse_list(text: &str) -> Result<Vec<Major>, String> {
    if text.trim() == "all" {
        return Ok(Major::ALL.to_vec());
    }
    text.split(',')
        .map(str::trim)
        .map(|word| word.parse().ok().and_then(Major::from_number).ok_or_else(|| word.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_majors_agree_both_ways() {
        for major in Major::ALL {
            assert_eq!(Major::from_number(major.number()), Some(major));
        }
        assert_eq!(Major::V18.number(), 18);
        assert_eq!(Major::from_number(13), None);
    }

    #[test]
    fn a_test_is_known_by_its_name_in_the_threads_of_its_majors() {
        let test = "major::tests::a_test_is_known_by_its_name_in_the_threads_of_its_majors";
        assert_eq!(test_name(), test);
        Major::each(2, |_| assert_eq!(test_name(), test));
        assert_eq!(thread::spawn(test_name).join().unwrap(), "");
    }

    #[test]
    fn with_seeds_that_follow_one_another_a_test_meets_every_major() {
        assert_eq!(whose_turn(Major::ALL.to_vec(), None, "a"), Major::ALL);
        let mut met: Vec<_> =
            (7..12).flat_map(|seed| whose_turn(Major::ALL.to_vec(), Some(seed), "a")).collect();
        met.sort();
        assert_eq!(met, Major::ALL);
        let of = |test: &str| whose_turn(Major::DEFAULT.to_vec(), Some(1), test);
        assert!(["b", "c", "d", "e", "f", "g"].iter().any(|test| of(test) != of("a")), "all alike");
    }

    #[test]
    fn a_list_of_majors_is_read_or_refused_by_its_wrong_word() {
        assert_eq!(parse_list("all").unwrap(), Major::ALL);
        assert_eq!(parse_list("15, 18").unwrap(), [Major::V15, Major::V18]);
        assert_eq!(parse_list("15,19"), Err("19".to_owned()));
    }
}
