//! What builds the site, below `target/tools`: mdBook by cargo, Mermaid's script by npm.
//!
//! Both are pinned. Mermaid is one file of an npm package, of which nothing is run here. Its hash
//! is compared with the one below, as those of the tests' servers are.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use sha2::{Digest, Sha512};

use crate::cargo::{cargo, succeeds};

pub(super) const MDBOOK: &str = "0.5.4";
const MERMAID: &str = "11.12.1";
const MERMAID_HASH: &str =
    "sha512-UlIZrRariB11TY1RtTgUWp65tphtBv4CSq7vyS2ZZ2TgoMjs2nloq+wFqxiwcxlhHUvs7DPGgMjs2aeQxz5h9g==";

/// The programs and scripts that the site needs.
pub(super) struct Tools {
    pub(super) mdbook: PathBuf,
    /// Without it pictures are shown as their text.
    pub(super) mermaid: Option<PathBuf>,
}

/// Fetches what is missing in `dir`; `None` if mdBook cannot be had.
pub(super) fn fetch(dir: &Path) -> Result<Option<Tools>> {
    std::fs::create_dir_all(dir)?;
    let Some(mdbook) = mdbook(dir)? else { return Ok(None) };
    let mermaid = match mermaid(dir) {
        Ok(script) => Some(script),
        Err(error) => {
            println!("docs: pictures are shown as text on the site: {error:#}");
            None
        }
    };
    Ok(Some(Tools { mdbook, mermaid }))
}

/// Whether mdBook is in `dir`.
pub(super) fn has_mdbook(dir: &Path) -> bool {
    let version = Command::new(dir.join("bin/mdbook")).arg("--version").stderr(Stdio::null()).output();
    version.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).trim().ends_with(&format!("v{MDBOOK}")))
}

fn mdbook(dir: &Path) -> Result<Option<PathBuf>> {
    let program = dir.join("bin/mdbook");
    if has_mdbook(dir) {
        return Ok(Some(program));
    }
    println!("docs: installing mdbook {MDBOOK} into {}", dir.display());
    let mut install =
        cargo(&["install", "--quiet", "--debug", "--locked", "--force", "--version", MDBOOK, "mdbook"]);
    // Neither its server nor its watcher is used.
    install.args(["--no-default-features", "--features", "search", "--root"]).arg(dir);
    Ok(succeeds(&mut install)?.then_some(program))
}

fn mermaid(dir: &Path) -> Result<PathBuf> {
    let script = dir.join(format!("mermaid-{MERMAID}.min.js"));
    if script.exists() {
        return Ok(script);
    }
    let work = tempfile::Builder::new().prefix("mermaid-").tempdir_in(dir)?;
    let mut pack = Command::new("npm");
    pack.args(["pack", "--silent", "--ignore-scripts"]).arg(format!("mermaid@{MERMAID}"));
    ensure!(
        succeeds(pack.current_dir(work.path()).stdout(Stdio::null()))?,
        "npm could not fetch mermaid {MERMAID}"
    );
    let package = work.path().join(format!("mermaid-{MERMAID}.tgz"));
    let found = hash(&std::fs::read(&package)?);
    ensure!(found == MERMAID_HASH, "mermaid {MERMAID} has the hash {found}, not {MERMAID_HASH}");
    let mut unpack = Command::new("tar");
    unpack.arg("-xzf").arg(&package).arg("package/dist/mermaid.min.js").current_dir(work.path());
    ensure!(succeeds(&mut unpack)?, "tar could not unpack {}", package.display());
    std::fs::rename(work.path().join("package/dist/mermaid.min.js"), &script).context("keeping mermaid")?;
    Ok(script)
}

/// The hash of `bytes` as npm writes it.
fn hash(bytes: &[u8]) -> String {
    format!("sha512-{}", base64::engine::general_purpose::STANDARD.encode(Sha512::digest(bytes)))
}
