//! Which tables will end a stream, said before it begins.
//!
//! A row that cannot be rendered or filtered here ends the stream when it comes. That may be long
//! after the subscription was made, or never, so nobody is refused because of it. The relay's log
//! and the client name the table and the column at once, as far as the publications of now show
//! them.
//!
//! The client gets a `NoticeResponse` before `CopyBothResponse`, where every client expects one.
//! Inside of the stream, some clients would take it for an error.

use std::time::Duration;

use output::RefusedTable;
use proto::backend;
use proto::frame::ServerError;
use proto::startup::Startup;

use crate::databases::Databases;
use crate::feed::FormHandle;
use crate::told::code;

/// How long a stream waits for the answer. A form that has just begun must come to the end of the
/// WAL first. If that takes longer, the log has the answer later, and the client has not.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Tables that are named one by one.
const NAMED_MAX: usize = 20;
/// `client_min_messages` of clients that want no warnings.
const QUIET: [&str; 3] = ["error", "fatal", "panic"];

/// Appends warnings to what the client is sent, and writes them to the log.
pub(crate) async fn warn(
    out: &mut Vec<u8>,
    databases: &Databases,
    (form, slot): (&FormHandle, &str),
    startup: &Startup,
) {
    let mut answer = databases.refused(form.id);
    match tokio::time::timeout(ANSWER_MAX, &mut answer).await {
        Ok(Ok(tables)) => {
            log(slot, &tables);
            if wants_warnings(startup) {
                notices(&tables).iter().for_each(|notice| backend::notice_response(out, notice));
            }
        }
        // The form has ended, and the stream says why.
        Ok(Err(_)) => {}
        Err(_) => {
            let (slot, end) = (slot.to_owned(), form.end.clone());
            tokio::spawn(async move {
                tokio::select! {
                    Ok(tables) = answer => log(&slot, &tables),
                    _ = end.ended() => {}
                }
            });
        }
    }
}

fn log(slot: &str, tables: &[RefusedTable]) {
    for table in tables.iter().take(NAMED_MAX) {
        tracing::warn!("the stream of slot \"{slot}\" will end at the first row of a table: {table}");
    }
    if let Some(more) = more(tables) {
        tracing::warn!("the stream of slot \"{slot}\" will also end at the first row of {more}");
    }
}

/// How many tables are not named.
fn more(tables: &[RefusedTable]) -> Option<String> {
    let more = tables.len().checked_sub(NAMED_MAX).filter(|more| *more > 0)?;
    Some(format!("{more} other tables"))
}

fn notices(tables: &[RefusedTable]) -> Vec<ServerError> {
    let warning = |message: &str| {
        let mut warning = ServerError::new("WARNING", code::FEATURE_NOT_SUPPORTED, message);
        warning.detail = Some("The stream will end with an error at the first row of it.".to_owned());
        warning.hint =
            Some("Publish it without what is named here, or subscribe to the publisher itself.".to_owned());
        warning
    };
    let mut notices: Vec<ServerError> = tables
        .iter()
        .take(NAMED_MAX)
        .map(|table| ServerError {
            schema: Some(table.schema.clone()),
            table: Some(table.table.clone()),
            column: table.column.clone(),
            ..warning(&table.to_string())
        })
        .collect();
    notices.extend(more(tables).map(|more| warning(&format!("{more} cannot be decoded"))));
    notices
}

/// What the connection was begun with; a `SET` comes to the publisher only.
fn wants_warnings(startup: &Startup) -> bool {
    const NAME: &str = "client_min_messages";
    let given = startup.settings.iter().filter(|(name, _)| name.eq_ignore_ascii_case(NAME));
    let options = startup.options.split_whitespace().filter_map(|word| {
        let word = word.strip_prefix("-c").or_else(|| word.strip_prefix("--")).unwrap_or(word);
        word.strip_prefix(NAME)?.strip_prefix('=')
    });
    // As at a server, a setting of the packet counts more than one of `options`.
    let value = options.chain(given.map(|(_, value)| value.as_str())).last();
    value.is_none_or(|value| !QUIET.contains(&value.to_ascii_lowercase().as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(number: usize) -> RefusedTable {
        RefusedTable {
            schema: "s".to_owned(),
            table: format!("t{number}"),
            published_as: Box::new(("s".to_owned(), format!("t{number}"))),
            column: Some("c".to_owned()),
            is_filter: false,
            reason: "its type is unknown".to_owned(),
        }
    }

    #[test]
    fn tables_are_named_up_to_a_bound() {
        let tables: Vec<RefusedTable> = (0..NAMED_MAX + 2).map(table).collect();
        let all = notices(&tables);
        assert_eq!(all.len(), NAMED_MAX + 1);
        let first = "table s.t0 cannot be decoded because of its column \"c\": its type is unknown";
        assert_eq!((all[0].message.as_str(), all[0].column.as_deref()), (first, Some("c")));
        assert_eq!(all[NAMED_MAX].message, "2 other tables cannot be decoded");
        assert_eq!(notices(&tables[..NAMED_MAX]).len(), NAMED_MAX);
    }

    #[test]
    fn a_client_may_want_no_warnings() {
        let startup = |options: &str, settings: &[(&str, &str)]| Startup {
            minor: 0,
            user: "u".to_owned(),
            database: "d".to_owned(),
            purpose: proto::startup::Purpose::Logical,
            options: options.to_owned(),
            settings: settings
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            negotiation: None,
        };
        for (options, settings, wants) in [
            ("", &[][..], true),
            ("-c datestyle=ISO", &[("application_name", "a")], true),
            ("-c client_min_messages=ERROR", &[], false),
            ("-cclient_min_messages=panic", &[], false),
            ("--client_min_messages=fatal", &[], false),
            ("-c client_min_messages=error -c client_min_messages=notice", &[], true),
            ("", &[("client_min_messages", "error")], false),
            ("-c client_min_messages=error", &[("client_min_messages", "warning")], true),
        ] {
            assert_eq!(wants_warnings(&startup(options, settings)), wants, "{options} {settings:?}");
        }
    }
}
