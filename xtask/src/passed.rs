//! Checks that passed, and on what: [`FILE`] has a line for each, with the hash of its inputs.
//!
//! Some checks need a program that takes minutes to build on a new machine. Where the inputs are
//! those on which such a check has passed, it would only pass again, and the program need not be
//! built.

use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

const FILE: &str = "xtask/passed.txt";

/// A check and its inputs.
pub(crate) struct Inputs {
    check: &'static str,
    hash: Sha256,
}

impl Inputs {
    /// Those of `check`, which is done by this version of its program.
    pub(crate) fn new(check: &'static str, version: &str) -> Inputs {
        let hash = Sha256::new_with_prefix(version);
        Inputs { check, hash }
    }

    /// Adds a file by its name and contents.
    pub(crate) fn add(&mut self, name: &str, path: &Path) -> Result<()> {
        let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        for part in [name.as_bytes(), &bytes] {
            self.hash.update(part.len().to_le_bytes());
            self.hash.update(part);
        }
        Ok(())
    }

    fn line(&self) -> String {
        let hash: String = self.hash.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{} {hash}", self.check)
    }

    /// Whether the check has passed on them.
    pub(crate) fn have_passed(&self) -> Result<bool> {
        Ok(recorded(&testkit::workspace_dir().join(FILE))?.contains(&self.line()))
    }

    /// Records that it passes on them. With `check_only` says that it is not recorded; whether it
    /// is.
    pub(crate) fn pass(&self, check_only: bool, chore: &str) -> Result<bool> {
        if self.have_passed()? {
            return Ok(true);
        }
        if check_only {
            eprintln!("{}: {FILE} is of other inputs: `{chore}` writes it anew", self.check);
            return Ok(false);
        }
        let file = testkit::workspace_dir().join(FILE);
        let mut lines = recorded(&file)?;
        lines.retain(|line| line.split(' ').next() != Some(self.check));
        lines.push(self.line());
        lines.sort();
        std::fs::write(&file, lines.join("\n") + "\n").context(FILE)?;
        Ok(true)
    }
}

fn recorded(file: &Path) -> Result<Vec<String>> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).context(FILE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_differ_by_check_version_name_and_contents() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let line = |check, version: &str, name: &str, contents: &str| {
            std::fs::write(&path, contents).unwrap();
            let mut inputs = Inputs::new(check, version);
            inputs.add(name, &path).unwrap();
            inputs.line()
        };
        let first = line("deny", "1", "a", "text");
        assert_eq!(first, line("deny", "1", "a", "text"));
        for other in [
            line("site", "1", "a", "text"),
            line("deny", "2", "a", "text"),
            line("deny", "1", "b", "text"),
            line("deny", "1", "a", "texts"),
        ] {
            assert_ne!(first, other);
        }
    }
}
