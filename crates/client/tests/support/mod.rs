//! What the tests against real servers share.

#![allow(dead_code, reason = "each test program uses its own part")]

use std::time::Duration;

use client::ConnInfo;
use postgres_protocol::authentication::sasl::{ChannelBinding, ScramSha256};
use proto::scram::{Binding, Exchange, Verifier};
use testkit::Cluster;

/// A connection string read without this machine's variables and files.
pub(crate) fn info(text: &str) -> ConnInfo {
    ConnInfo::parse_with(text, &|name| (name == "HOME").then(|| "/nonexistent".to_owned()))
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The cluster over TCP; `more` holds further keywords, `user=` among them.
pub(crate) fn over_tcp(cluster: &Cluster, more: &str) -> ConnInfo {
    info(&format!("host=127.0.0.1 port={} dbname=postgres {more}", cluster.port()))
}

/// Runs `test` with a bound, so that a hang is a failure with a name.
#[track_caller]
pub(crate) fn run<T>(what: &str, test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let bound = testkit::at_this_load(Duration::from_secs(60));
    let bounded = async { tokio::time::timeout(bound, test).await };
    let result = runtime.block_on(bounded);
    result.unwrap_or_else(|_| panic!("{what}: no end within {bound:?}"))
}

/// The keys of a role with that password, as words of a connection string. An exchange with what
/// the server keeps of the password gives them.
pub(crate) fn keys_of(cluster: &Cluster, role: &str, password: &str) -> String {
    let kept =
        cluster.one("postgres", &format!("SELECT rolpassword FROM pg_authid WHERE rolname = '{role}'"));
    let verifier = Verifier::parse(&kept).expect("a verifier");
    let mut client = ScramSha256::new(password.as_bytes(), ChannelBinding::unsupported());
    let begun = Exchange::begin(verifier, Binding::Impossible, client.message());
    let (server, answer) = begun.expect("the first message");
    client.update(answer.as_bytes()).expect("the answer");
    let (_, keys) = server.finish(client.message()).expect("the password");
    let [client_key, server_key] = keys.texts();
    format!("scram_client_key={client_key} scram_server_key={server_key}")
}
