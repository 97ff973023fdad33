//! What the tests against real servers share.

#![allow(dead_code, reason = "each test program uses its own part")]

use std::time::Duration;

use client::ConnInfo;
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
