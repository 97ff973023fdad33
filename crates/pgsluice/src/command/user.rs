//! `pgsluice user add NAME`, `user drop NAME`, `user list`: the file of a relay's users.
//!
//! A password is never an argument, where others could read it, and is not kept: the file has
//! verifiers, as `pg_authid` has.

use std::io::{BufRead as _, IsTerminal as _};
use std::path::Path;

use anyhow::Context as _;
use client::ConnInfo;
use listener::Users;
use postgres_protocol::password::scram_sha_256;
use proto::scram::Verifier;

use super::relay::parsed;
use crate::cli::UserCommand;
use crate::exit::{Code, exit};
use crate::failure::Failure;
use crate::settings::RelayPlace;
use crate::subject::end;

/// The session's application name on the publisher.
const APPLICATION_NAME: &str = "pgsluice user";

/// Changes or prints the file of users.
pub(crate) async fn user(place: &RelayPlace, command: &UserCommand) -> anyhow::Result<Code> {
    let path = place.users().ok_or(Failure::Missing { key: "data_dir" })?;
    let mut users = if path.exists() { parsed(&path, Users::parse)? } else { Users::default() };
    match command {
        UserCommand::List(_) => {
            users.names().for_each(|name| super::say(format_args!("{name}")));
            return Ok(Code::Done);
        }
        UserCommand::Add(args) => {
            let verifier = match args.from_source {
                true => of_publisher(&end("source", place.source.as_deref())?, &args.name).await?,
                false => of_password(&password(&args.name)?),
            };
            let known = users.verifier(&args.name).is_some();
            let refused = |why| Failure::RelayFile { path: path.clone(), why };
            users.add(&args.name, verifier).map_err(refused)?;
            save(&users, &path)?;
            super::say(format_args!("{}: {}", args.name, if known { "changed" } else { "added" }));
        }
        UserCommand::Drop(args) => {
            if !users.remove(&args.name) {
                return Err(Failure::NoUser { path, name: args.name.clone() }.into());
            }
            save(&users, &path)?;
            super::say(format_args!("{}: removed", args.name));
        }
    }
    Ok(Code::Done)
}

fn save(users: &Users, path: &Path) -> anyhow::Result<()> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    }
    catalog::replace_file(path, users.text().as_bytes())
        .with_context(|| format!("could not write {}", path.display()))
}

/// The password that the terminal or standard input gives.
fn password(name: &str) -> anyhow::Result<String> {
    let stdin = std::io::stdin();
    let password = if stdin.is_terminal() {
        let password = rpassword::prompt_password(format!("Password for user {name}: "))?;
        if rpassword::prompt_password("Enter it again: ")? != password {
            return Err(exit(Code::Usage, "the passwords do not match; nothing was changed"));
        }
        password
    } else {
        let mut line = String::new();
        stdin.lock().read_line(&mut line).context("could not read the password from standard input")?;
        line.trim_end_matches(['\r', '\n']).to_owned()
    };
    match password.is_empty() {
        true => Err(exit(Code::Usage, "the password is empty; nothing was changed")),
        false => Ok(password),
    }
}

fn of_password(password: &str) -> Verifier {
    Verifier::parse(&scram_sha_256(password.as_bytes())).expect("it is made in this form")
}

/// The verifier that the publisher has for the role `name`.
async fn of_publisher(source: &ConnInfo, name: &str) -> anyhow::Result<Verifier> {
    let session = client::connect(source, APPLICATION_NAME, &[]).await.map_err(|error| {
        exit(Code::Failed, format!("cannot connect to the publisher: {}", base::with_causes(&error)))
    })?;
    let missing = |why: &str| Failure::NoVerifier { name: name.to_owned(), why: why.to_owned() };
    let sql = "SELECT rolpassword FROM pg_catalog.pg_authid WHERE rolname = $1";
    let row = session.query_opt(sql, &[&name]).await.map_err(|error| {
        let why = error.as_db_error().map_or_else(|| error.to_string(), |server| server.message().to_owned());
        missing(&format!("{why} (a superuser may read it)"))
    })?;
    let row = row.ok_or_else(|| missing("there is no such role"))?;
    let text: Option<String> = row.get(0);
    let text = text.ok_or_else(|| missing("it has no password"))?;
    let no_scram =
        "its password is kept in another form; set it again with password_encryption = 'scram-sha-256'";
    Ok(Verifier::parse(&text).ok_or_else(|| missing(no_scram))?)
}
