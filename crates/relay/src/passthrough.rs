//! An ordinary connection through the relay: everything is the publisher's.
//!
//! The publisher sees the client's own role, which has its own rights there. It logs in with what
//! its login here gave ([`proto::scram::ClientKeys`]). From then on bytes are passed on as they
//! are.

use client::{ConnInfo, RawSession, Replication};
use listener::Client;
use proto::backend::{self, TransactionStatus};
use proto::frame::ServerError;
use tokio::io::{AsyncWriteExt, copy_bidirectional};

use crate::cancel::Cancels;

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
pub async fn serve(client: Client, publisher: &ConnInfo, cancels: &Cancels) -> Passed {
    let Client { startup, keys, mut link, seat, .. } = client;
    let mut settings: Vec<(&str, &str)> = Vec::new();
    let mut application_name = "";
    for (name, value) in &startup.settings {
        match name.as_str() {
            "application_name" => application_name = value,
            "client_encoding" if UTF8.contains(&value.to_ascii_lowercase().as_str()) => {}
            "client_encoding" => {
                let message = format!("the relay speaks UTF8 only, and client_encoding is \"{value}\"");
                return refuse(link, ServerError::new("FATAL", "0A000", &message)).await;
            }
            name => settings.push((name, value)),
        }
    }
    let info = publisher.as_role(&startup.user, &startup.database, &startup.options, keys);
    let session = match RawSession::connect(&info, application_name, Replication::Off, &settings).await {
        Ok(session) => session,
        Err(error) => return refuse(link, told(&error)).await,
    };
    let cancellable = cancels.session(startup.minor);
    cancellable.runs_at(session.canceller());
    backend::authentication_ok(&mut link.outbox);
    for (name, value) in session.parameters() {
        backend::parameter_status(&mut link.outbox, name, value);
    }
    backend::backend_key_data(&mut link.outbox, cancellable.pid, &cancellable.key);
    backend::ready_for_query(&mut link.outbox, TransactionStatus::Idle);
    if link.flush().await.is_err() {
        return Passed::Ended(0, 0);
    }
    let (mut client, said) = link.into_parts();
    let (mut server, heard) = session.into_parts();
    let passed = async {
        server.write_all(&said).await?;
        client.write_all(&heard).await?;
        copy_bidirectional(&mut client, &mut server).await
    };
    let passed = passed.await;
    drop((cancellable, seat));
    match passed {
        Ok((to, from)) => Passed::Ended(to + said.len() as u64, from + heard.len() as u64),
        Err(error) => Passed::Lost(error),
    }
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
