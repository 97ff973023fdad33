//! `cargo x check`: every step runs, so that one look shows all that is wrong.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;

use crate::cargo::{cargo, succeeds};
use crate::{arrows, deny, documents, tidy};

type Step = (&'static str, fn() -> Result<bool>);

const STEPS: [Step; 8] = [
    ("fmt", || succeeds(&mut cargo(&["fmt", "--all", "--check"]))),
    ("arrows", || report("arrows", &arrows::complaints()?)),
    ("tidy", || report("tidy", &tidy::complaints()?)),
    ("clippy", || {
        succeeds(&mut cargo(&[
            "clippy",
            "--quiet",
            "--workspace",
            "--all-targets",
            "--",
            "--deny",
            "warnings",
        ]))
    }),
    // A workspace of its own that ordinary builds leave out: its targets must not rot unseen.
    ("fuzz", || {
        let mut check = cargo(&["check", "--quiet", "--locked", "--manifest-path", "fuzz/Cargo.toml"]);
        let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let target = target.unwrap_or_else(|| testkit::workspace_dir().join("target"));
        check.env("CARGO_TARGET_DIR", target.join("fuzz-check"));
        // Nothing is linked, so libFuzzer itself, which is C++, need not be built.
        succeeds(check.env("CUSTOM_LIBFUZZER_PATH", "/nowhere"))
    }),
    ("doc", || {
        let mut doc = cargo(&["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"]);
        // Links to private items lead somewhere, because private items are documented too.
        succeeds(doc.env("RUSTDOCFLAGS", "--deny warnings --allow rustdoc::private_intra_doc_links"))
    }),
    ("docs", || documents::run(true)),
    ("deny", || deny::run(true)),
];

/// Runs every step; whether all are in order.
pub(crate) fn run() -> Result<bool> {
    let mut wrong = Vec::new();
    for (name, step) in STEPS {
        let started = Instant::now();
        let fine = step().unwrap_or_else(|error| {
            eprintln!("{name}: {error:#}");
            false
        });
        println!(
            "check {name}: {} ({:.1} s)",
            if fine { "ok" } else { "WRONG" },
            started.elapsed().as_secs_f64()
        );
        if !fine {
            wrong.push(name);
        }
    }
    if !wrong.is_empty() {
        println!("check: wrong in {}", wrong.join(", "));
    }
    Ok(wrong.is_empty())
}

/// Prints complaints; whether there were none.
pub(crate) fn report(name: &str, complaints: &[String]) -> Result<bool> {
    for complaint in complaints {
        eprintln!("{name}: {complaint}");
    }
    Ok(complaints.is_empty())
}
