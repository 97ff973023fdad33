//! An ordinary connection through the relay: everything is the publisher's but the views of slots.
//!
//! The publisher sees the client's own role, which has its own rights there. It logs in as
//! [`Upstream`] says. From then on messages are passed on (`proxy`).

use client::{RawSession, Replication};
use listener::Client;
use proto::backend::{self, TransactionStatus};
use proto::frame::ServerError;
use proto::startup::Startup;

use crate::cancel::Cancels;
use crate::proxy;
use crate::upstream::Upstream;
use crate::views::Views;

/// The encodings of a client that are one with ours.
const UTF8: [&str; 5] = ["utf8", "utf-8", "unicode", "auto", "\"utf8\""];

/// How a connection ended, for the log.
#[derive(Debug)]
pub enum Passed {
    /// One side has closed it. Bytes to the publisher, and from it.
    Ended(u64, u64),
    /// The client was told this error.
    Refused(Box<ServerError>),
    /// The connection was lost.
    Lost(std::io::Error),
}

/// Serves a client that was let in, until one side closes the connection.
pub async fn serve(client: Client, publisher: &Upstream, cancels: &Cancels, views: &Views) -> Passed {
    let Client { startup, keys, mut link, seat, .. } = client;
    // The login is over: what is wrong with the session comes behind it, as from a server.
    backend::authentication_ok(&mut link.outbox);
    if let Err(error) = check_encoding(&startup, &[]) {
        return refuse(link, *error).await;
    }
    let mut settings: Vec<(&str, &str)> = Vec::new();
    let mut application_name = "";
    for (name, value) in &startup.settings {
        match name.as_str() {
            "application_name" => application_name = value,
            "client_encoding" => {}
            name => settings.push((name, value)),
        }
    }
    let info = publisher.login_of(&startup, keys);
    let session = match RawSession::connect(&info, application_name, Replication::Off, &settings).await {
        Ok(session) => session,
        Err(error) => return refuse(link, told(&error)).await,
    };
    let cancellable = cancels.session(startup.minor);
    cancellable.runs_at(session.canceller());
    for (name, value) in session.parameters() {
        backend::parameter_status(&mut link.outbox, name, value);
    }
    backend::backend_key_data(&mut link.outbox, cancellable.pid, &cancellable.key);
    backend::ready_for_query(&mut link.outbox, TransactionStatus::Idle);
    if link.flush().await.is_err() {
        return Passed::Ended(0, 0);
    }
    let passed = proxy::pass(link.into_parts(), session.into_parts(), views).await;
    drop((cancellable, seat));
    match passed {
        Ok((to, from)) => Passed::Ended(to, from),
        Err(error) => Passed::Lost(error),
    }
}

/// Refuses a client that asks for another encoding than UTF8 or `others`: the relay converts
/// nothing.
pub(crate) fn check_encoding(startup: &Startup, others: &[&str]) -> Result<(), Box<ServerError>> {
    let given = startup.settings.iter().find(|(name, _)| name == "client_encoding");
    let Some((_, value)) = given else { return Ok(()) };
    let asked = value.to_ascii_lowercase();
    if UTF8.iter().chain(others).any(|known| *known == asked) {
        return Ok(());
    }
    let message = format!("the relay speaks UTF8 only, and client_encoding is \"{value}\"");
    Err(Box::new(ServerError::new("FATAL", "0A000", &message)))
}

/// The publisher's error as it is, or why there is none.
fn told(error: &client::Error) -> ServerError {
    match error.server() {
        Some(error) => ServerError { severity: "FATAL".to_owned(), ..error.clone() },
        None => ServerError::new("FATAL", "08006", &format!("the relay cannot use the publisher: {error}")),
    }
}

/// Tells a client why it is not served.
pub(crate) async fn refuse(mut link: listener::Link, error: ServerError) -> Passed {
    backend::error_response(&mut link.outbox, &error);
    link.close().await;
    Passed::Refused(Box::new(error))
}
