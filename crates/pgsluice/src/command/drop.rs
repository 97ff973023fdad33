//! `pgsluice drop`: removes slot, origins, state and spool; the tables stay.
//!
//! It holds the subscription's lock while it works, so that no `run` can start on this machine
//! meanwhile. The source comes first, then the target, then the files. Each step may find its work
//! already done.
//!
//! The slot of an adopted subscription belongs to its native owner. `drop` removes it only with
//! `--force`, or if the owner is gone.

use std::io::ErrorKind;
use std::path::Path;

use operate::admin;
use operate::control::Lock;

use super::{connect, from_admin, from_control};
use crate::exit::Code;
use crate::failure::Failure;
use crate::invocation::complete;
use crate::subject::Subject;

/// Removes each subscription; see [`drop`].
pub(crate) async fn drop_all(subjects: &[Subject], force: bool) -> anyhow::Result<Code> {
    for subject in subjects {
        drop(subject, force).await?;
    }
    Ok(Code::Done)
}

/// Removes the subscription; with `force`, from whichever end is left.
async fn drop(subject: &Subject, force: bool) -> anyhow::Result<Code> {
    let name = &subject.name;
    let lock = Lock::acquire(&subject.state_dir, name).map_err(from_control)?;
    let mut removed = Vec::new();
    let outcome = remove(subject, force, &mut removed).await;
    // Printed even if a later step failed, because these are removed.
    for what in &removed {
        super::say(format_args!("{name}: removed {what}"));
    }
    outcome?;
    lock.remove().map_err(from_control)?;
    if removed.is_empty() {
        super::say(format_args!("{name}: there was nothing to remove"));
    }
    Ok(Code::Done)
}

async fn remove(subject: &Subject, force: bool, removed: &mut Vec<String>) -> anyhow::Result<()> {
    let name = &subject.name;
    let target = open("target", subject, force).await?;
    let stored = match &target {
        Some(target) => admin::stored(target, name).await.map_err(from_admin)?,
        None => None,
    };
    let native = stored.as_ref().and_then(|stored| stored.adopted_from.clone());
    if let (Some(native), false) = (&native, force) {
        return Err(Failure::Adopted { name: name.clone(), native: native.clone() }.into());
    }
    let kept = engine::restart_file(&subject.state_dir, name);
    let is_known = stored.is_some() || kept.exists();
    let slot = stored.and_then(|stored| stored.slot).unwrap_or_else(|| name.slot());
    match open("source", subject, force).await? {
        Some(source) => {
            let dropped = admin::drop_source(&source, &slot, (is_known, force), removed).await;
            dropped.map_err(from_admin)?;
        }
        None => eprintln!(
            "pgsluice: the source was left out; if it comes back, drop its slot there: \
             SELECT pg_drop_replication_slot('{slot}')"
        ),
    }
    match target {
        Some(mut target) => {
            admin::drop_target(&mut target, name, force, removed).await.map_err(from_admin)?;
            if let Some(native) = native {
                eprintln!(
                    "pgsluice: native subscription \"{native}\" of the target is left disabled and without a slot"
                );
            }
        }
        None => {
            let told = "the target was left out; if it comes back: pgsluice drop --force";
            eprintln!("pgsluice: {}", complete(told, Some(name.as_str())));
        }
    }
    let deletions = engine::deletions_dir(&subject.state_dir, name);
    if remove_at(&deletions, |dir| std::fs::remove_dir_all(dir))? {
        removed.push(format!("deletions {}", deletions.display()));
    }
    for spool in [engine::spool_dir(&subject.state_dir, name), engine::decoding_dir(&subject.state_dir, name)]
    {
        if remove_at(&spool, |dir| std::fs::remove_dir_all(dir))? {
            removed.push(format!("spool {}", spool.display()));
        }
    }
    if remove_at(&kept, |file| std::fs::remove_file(file))? {
        removed.push(format!("catalogs {}", kept.display()));
    }
    Ok(())
}

/// A session with one end; `None` if there is none and `force` allows to continue without.
async fn open(end: &'static str, subject: &Subject, force: bool) -> anyhow::Result<Option<client::Session>> {
    let info = if end == "source" { subject.source() } else { subject.target() };
    let session = match info {
        Ok(info) => connect(end, &info, &subject.name).await,
        Err(error) => Err(error),
    };
    match session {
        Ok(session) => Ok(Some(session)),
        Err(error) if force => {
            eprintln!("pgsluice: {error:#}");
            Ok(None)
        }
        Err(error) => Err(error.context("use --force to go on without it")),
    }
}

/// Removes a file or directory of the state directory; false if there is none.
fn remove_at(path: &Path, by: impl Fn(&Path) -> std::io::Result<()>) -> anyhow::Result<bool> {
    match by(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(anyhow::Error::new(error).context(format!("could not remove {}", path.display()))),
    }
}
