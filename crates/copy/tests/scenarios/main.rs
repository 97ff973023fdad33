//! The first copy between real servers.
//!
//! Starting servers takes longer than most scenarios, so the scenarios of a
//! group run one after the other on one pair, each in a database of its own.

#![allow(clippy::unwrap_used)]

mod contents;
mod interrupted;
mod privileges;
mod support;

use testkit::Major;

/// A scenario with its name.
type Named = (&'static str, fn(Major));

fn run(scenarios: &[Named]) {
    for major in Major::under_test() {
        let _kept_until_the_last = support::pair(major, major);
        for (name, scenario) in scenarios {
            // Shown with the failure of the scenario that follows.
            eprintln!("{name} on {major}");
            let started = std::time::Instant::now();
            scenario(major);
            eprintln!("  took {:.1} s", started.elapsed().as_secs_f64());
        }
    }
}

#[test]
fn contents() {
    run(contents::SCENARIOS);
}

#[test]
fn interrupted() {
    run(interrupted::SCENARIOS);
}

#[test]
fn privileges() {
    run(privileges::SCENARIOS);
}

#[test]
fn every_type_arrives_unchanged_between_majors() {
    contents::every_type(&support::Scenario::between(Major::V15, Major::V18, "upwards", ""));
    contents::every_type(&support::Scenario::between(Major::V18, Major::V15, "downwards", ""));
}
