//! `pgsluice adopt`: takes over a native subscription's slot and position, then continues as `run`.
//!
//! The native subscription's options are weaker than every other source of settings (`config`).
//! They count here, and whenever a command about an adopted subscription lacks a setting. So
//! `run --subscription NAME --target ...` is enough later.

use std::collections::BTreeMap;
use std::ffi::OsString;

use base::Lsn;
use indicatif::MultiProgress;
use operate::adopt::{AdoptionOutcome, NativeOptions};
use operate::control::Lock;

use super::{connect, from_adopt, from_control};
use crate::cli::{AdoptArgs, Command};
use crate::config::Config;
use crate::exit::Code;
use crate::failure::Failure;
use crate::logging;
use crate::settings::Process;
use crate::subject::Subject;

/// Takes over, then runs.
pub(crate) async fn adopt(subject: &Subject, args: &AdoptArgs, process: &Process) -> anyhow::Result<Code> {
    let name = &subject.name;
    let native = args.native.as_deref().unwrap_or(name.as_str());
    let target = subject.target()?;
    if subject.publications().is_empty() {
        return Err(missing(native, &target.describe()));
    }
    if subject.source().is_err() && subject.lacks_stored(false) {
        return Err(Failure::HiddenSource.into());
    }
    let settings = subject.pipeline()?;
    let bars = MultiProgress::new();
    logging::start(&process.log, &bars)?;
    let lock = Lock::acquire(&subject.state_dir, name).map_err(from_control)?;
    match operate::adopt::adopt(&settings, native).await.map_err(|error| from_adopt(&error))? {
        AdoptionOutcome::Missing => return Err(missing(native, &target.describe())),
        AdoptionOutcome::Already => super::say(format_args!("{name}: adopted already")),
        AdoptionOutcome::Done { at, slot, tables } => super::say(format_args!(
            "{name}: adopted native subscription \"{native}\" at {}: slot \"{slot}\", {tables} tables, nothing copied",
            at.unwrap_or(Lsn::INVALID)
        )),
    }
    drop(lock);
    match args.prepare_only {
        true => Ok(Code::Done),
        false => super::run::run_logged(vec![(settings, None)], process, &bars).await,
    }
}

fn missing(native: &str, place: &str) -> anyhow::Error {
    Failure::NoNative { native: native.to_owned(), place: place.to_owned() }.into()
}

/// The subjects again, completed with the stored settings of adopted subscriptions that lack some;
/// `command` says whether that matters.
pub(crate) async fn with_stored(
    command: &Command,
    config: &mut Config,
    subjects: Vec<Subject>,
) -> anyhow::Result<Vec<Subject>> {
    let (publications, native) = match command {
        Command::Adopt(args) => (true, Some(args.native.as_deref())),
        Command::Run(_) | Command::Check(_) => (true, None),
        Command::Status(_)
        | Command::Release(_)
        | Command::Drop(_)
        | Command::Verify(_)
        | Command::Sequences(_) => (false, None),
        _ => return Ok(subjects),
    };
    let mut found = false;
    for subject in subjects.iter().filter(|own| native.is_some() || own.lacks_stored(publications)) {
        let name = &subject.name;
        let native = native.map(|given| given.unwrap_or(name.as_str()));
        let options = async {
            let target = connect("target", &subject.target()?, name).await?;
            operate::adopt::options(&target, name, native).await.map_err(|error| from_adopt(&error))
        };
        match options.await {
            Ok(Some(options)) => {
                config.add_stored(name.as_str(), values(options));
                found = true;
            }
            // The command itself reports what is missing.
            Ok(None) => {}
            Err(error) if native.is_some() => return Err(error),
            Err(error) => eprintln!("pgsluice: could not look for settings of \"{name}\": {error:#}"),
        }
    }
    match found {
        true => config.subscriptions()?.into_iter().map(Subject::new).collect(),
        false => Ok(subjects),
    }
}

/// The native options as the settings table has them. The native `binary` refuses where a type
/// cannot be sent in binary; `auto` sends the types that can be.
fn values(options: NativeOptions) -> BTreeMap<String, Vec<OsString>> {
    let switch = |on: bool| if on { "on" } else { "off" };
    let one = |text: &str| vec![OsString::from(text)];
    let mut values = BTreeMap::from([
        ("publication".to_owned(), options.publications.iter().map(OsString::from).collect()),
        ("binary".to_owned(), one(if options.binary { "auto" } else { "off" })),
        ("streaming".to_owned(), one(switch(options.streaming))),
        ("origin".to_owned(), one(&options.origin)),
        ("synchronous_commit".to_owned(), one(&options.synchronous_commit)),
        ("disable_on_error".to_owned(), one(switch(options.disable_on_error))),
    ]);
    if let Some(source) = options.conninfo {
        values.insert("source".to_owned(), vec![source.into()]);
    }
    values
}
