//! Which pgsluice the figures were measured with.

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use bench_report::provenance::{commit, output};
use testkit::{pgsluice_path, workspace_dir};

/// The program's own word, the commit it was built from if git knows, and how it was built if that
/// was not for a release. Found out once, because the work tree may move on during a long run.
pub(crate) fn pgsluice_version() -> String {
    static VERSION: LazyLock<String> = LazyLock::new(look);
    VERSION.clone()
}

fn look() -> String {
    let path = pgsluice_path().ok();
    let version = path.as_ref().and_then(|path| output(Command::new(path).arg("--version")));
    let of = commit(workspace_dir()).into_iter().chain(path.as_deref().and_then(profile));
    let of = of.collect::<Vec<_>>().join(", ");
    let version = version.unwrap_or_else(|| "pgsluice".to_owned());
    if of.is_empty() { version } else { format!("{version} ({of})") }
}

/// The profile of a program in a target directory; `None` for `release`.
fn profile(program: &Path) -> Option<String> {
    let name = program.parent()?.file_name()?.to_str()?;
    (name != "release").then(|| format!("profile {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_program_that_was_not_built_for_a_release_say_so() {
        assert_eq!(profile(Path::new("/x/target/release/pgsluice")), None);
        assert_eq!(profile(Path::new("/x/target/demo/pgsluice")).as_deref(), Some("profile demo"));
    }
}
