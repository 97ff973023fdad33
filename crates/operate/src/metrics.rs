//! Prometheus text of every pipeline in the process, over HTTP.
//!
//! The text is rendered from [`StatusSnapshot`]s at the moment of the scrape. The pipelines already
//! count, so a second registry, as metrics crates have it, would only be a second truth. The format
//! is Prometheus text exposition 0.0.4. Figures that are not known yet are left out rather than
//! given as zero.
//!
//! `/metrics` answers the text. `/healthz` answers 200 as long as the process serves. It says
//! nothing about the servers, so that a restart policy does not restart a process that only waits
//! for them.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use engine::{Status, StatusSnapshot};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Serves until `stop`. Returns the address and the task. The system chooses the port if `address`
/// has port 0.
pub async fn serve(
    address: SocketAddr,
    pipelines: Vec<Arc<Status>>,
    stop: CancellationToken,
) -> std::io::Result<(SocketAddr, tokio::task::JoinHandle<()>)> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    let pipelines = Arc::new(pipelines);
    let metrics = move || {
        let pipelines = Arc::clone(&pipelines);
        async move {
            let snapshots: Vec<_> = pipelines.iter().map(|status| status.snapshot()).collect();
            ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], render(&snapshots))
        }
    };
    let app = Router::new().route("/metrics", get(metrics)).route("/healthz", get(|| async { "ok\n" }));
    let task = tokio::spawn(async move {
        let served = axum::serve(listener, app).with_graceful_shutdown(stop.cancelled_owned());
        if let Err(error) = served.await {
            tracing::error!("the metrics server ended: {error}");
        }
    });
    Ok((bound, task))
}

/// One metric of a pipeline. A sample has further labels and a value.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    samples: fn(&StatusSnapshot) -> Vec<Sample>,
}

type Sample = (Vec<(&'static str, String)>, f64);

/// One sample without further labels.
fn plain(value: impl Into<Option<f64>>) -> Vec<Sample> {
    value.into().map(|value| (Vec::new(), value)).into_iter().collect()
}

/// One sample per row operation.
fn by_operation(snapshot: &StatusSnapshot) -> Vec<Sample> {
    let totals = &snapshot.totals;
    let rows = [("insert", totals.inserts), ("update", totals.updates), ("delete", totals.deletes)];
    rows.into_iter().map(|(name, count)| (vec![("operation", name.to_owned())], count as f64)).collect()
}

fn by_stage(snapshot: &StatusSnapshot) -> Vec<Sample> {
    let engine::StageTimes { receive, decode, plan, write } = snapshot.totals.cpu_us;
    let stages = [("receive", receive), ("decode", decode), ("plan", plan), ("write", write)];
    stages.into_iter().map(|(name, us)| (vec![("stage", name.to_owned())], us as f64 / 1e6)).collect()
}

/// The median and the 99th percentile.
fn by_quantile(quantiles: Option<engine::QuantilesSnapshot>) -> Vec<Sample> {
    let Some(engine::QuantilesSnapshot { median, p99 }) = quantiles else { return Vec::new() };
    let sample =
        |(name, microseconds): (&str, u64)| (vec![("quantile", name.to_owned())], microseconds as f64 / 1e6);
    [("0.5", median), ("0.99", p99)].into_iter().map(sample).collect()
}

/// One sample per table of the first copy.
fn by_table(snapshot: &StatusSnapshot, value: fn(&engine::TableSnapshot) -> u64) -> Vec<Sample> {
    let sample = |table| (vec![("table", engine::TableSnapshot::clone(table).table)], value(table) as f64);
    snapshot.copy.tables.iter().map(sample).collect()
}

/// One sample per phase, 1 for the present one.
fn by_phase(snapshot: &StatusSnapshot) -> Vec<Sample> {
    let sample = |phase: &engine::Phase| {
        (vec![("phase", phase.as_str().to_owned())], f64::from(u8::from(phase.as_str() == snapshot.phase)))
    };
    engine::Phase::ALL.iter().map(sample).collect()
}

/// The position from which the target is consistent, while that is awaited.
fn awaited_lsn(snapshot: &StatusSnapshot) -> Option<f64> {
    let lsn: base::Lsn = snapshot.catching_up.as_ref()?.lsn.as_ref()?.parse().ok()?;
    Some(lsn.as_u64() as f64)
}

const fn family(
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    samples: fn(&StatusSnapshot) -> Vec<Sample>,
) -> Family {
    Family { name, kind, help, samples }
}

/// Every metric except conflicts, whose samples are named by type.
const FAMILIES: &[Family] = &[
    family("pgsluice_up", "gauge", "1 while changes of all tables flow.", |s| {
        plain(f64::from(u8::from(s.streams())))
    }),
    family(
        "pgsluice_consistent",
        "gauge",
        "1 while every state of the target is one of the source's, 0 while it is not known or not so.",
        |s| plain(f64::from(u8::from(s.streams() && s.catching_up.is_none()))),
    ),
    family(
        "pgsluice_catching_up_lsn",
        "gauge",
        "Position of WAL that the target must have flushed to be consistent, in bytes.",
        |s| plain(awaited_lsn(s)),
    ),
    family(
        "pgsluice_catching_up_bytes",
        "gauge",
        "WAL that is missing until every state of the target is one of the source's.",
        |s| match &s.catching_up {
            Some(own) => plain(own.bytes.map(|bytes| bytes as f64)),
            None => plain(s.streams().then_some(0.0)),
        },
    ),
    family(
        "pgsluice_catching_up_tables",
        "gauge",
        "Tables that are not at the same commit as the others.",
        |s| plain(s.streams().then(|| s.catching_up.as_ref().map_or(0, |own| own.tables.len()) as f64)),
    ),
    family("pgsluice_phase", "gauge", "1 for the phase the pipeline is in.", by_phase),
    family("pgsluice_start_time_seconds", "gauge", "When the process started, Unix time.", |s| {
        plain(s.started_at_unix_ms as f64 / 1e3)
    }),
    family("pgsluice_connects_total", "counter", "Attempts to connect to both servers.", |s| {
        plain(s.connects as f64)
    }),
    family("pgsluice_receive_lag_bytes", "gauge", "WAL on the source and not received.", |s| {
        plain(s.lag.receive.bytes.map(|b| b as f64))
    }),
    family("pgsluice_receive_lag_seconds", "gauge", "Age of the oldest transaction not received.", |s| {
        plain(s.lag.receive.seconds)
    }),
    family("pgsluice_queue_lag_bytes", "gauge", "WAL received and not handed to the target.", |s| {
        plain(s.lag.queue.bytes.map(|b| b as f64))
    }),
    family(
        "pgsluice_queue_lag_seconds",
        "gauge",
        "Age of the oldest transaction not handed to the target.",
        |s| plain(s.lag.queue.seconds),
    ),
    family("pgsluice_apply_lag_bytes", "gauge", "WAL handed to the target and not committed there.", |s| {
        plain(s.lag.apply.bytes.map(|b| b as f64))
    }),
    family(
        "pgsluice_apply_lag_seconds",
        "gauge",
        "Age of the oldest transaction not committed on the target.",
        |s| plain(s.lag.apply.seconds),
    ),
    family("pgsluice_flush_lag_bytes", "gauge", "WAL committed on the target and not flushed there.", |s| {
        plain(s.lag.flush.bytes.map(|b| b as f64))
    }),
    family(
        "pgsluice_flush_lag_seconds",
        "gauge",
        "Age of the oldest transaction not flushed on the target.",
        |s| plain(s.lag.flush.seconds),
    ),
    family("pgsluice_lag_bytes", "gauge", "WAL on the source and not committed on the target.", |s| {
        plain(s.lag.total.bytes.map(|b| b as f64))
    }),
    family("pgsluice_lag_seconds", "gauge", "Age of the oldest source transaction not on the target.", |s| {
        plain(s.lag.total.seconds)
    }),
    family(
        "pgsluice_schema_objects",
        "gauge",
        "Objects of a new schema that are created after the first copy.",
        |s| plain((s.schema.objects > 0).then_some(s.schema.objects as f64)),
    ),
    family("pgsluice_schema_objects_done", "gauge", "How many of them are created.", |s| {
        plain((s.schema.objects > 0).then_some(s.schema.done as f64))
    }),
    family("pgsluice_queued_bytes", "gauge", "Bytes of changes held by this process.", |s| {
        plain(s.queued_bytes as f64)
    }),
    family("pgsluice_blocked_seconds", "gauge", "Since when a lock on the target is waited for.", |s| {
        plain(s.blocked.as_ref().map_or(0.0, |blocked| blocked.seconds))
    }),
    family(
        "pgsluice_limited_by",
        "gauge",
        "1 for the part that limits the rate while the target is behind.",
        |s| {
            s.limited_by
                .as_ref()
                .map(|limit| (vec![("stage", limit.stage.clone())], 1.0))
                .into_iter()
                .collect()
        },
    ),
    family("pgsluice_waits_for_seconds", "gauge", "For how long the stage that takes long has taken.", |s| {
        let waits = s.waits_for.as_ref().map(|waits| (vec![("stage", waits.stage.clone())], waits.seconds));
        waits.into_iter().collect()
    }),
    family("pgsluice_spooled_bytes", "gauge", "Bytes of open transactions in the spool.", |s| {
        plain(s.spooled_bytes as f64)
    }),
    family("pgsluice_failing_attempts", "gauge", "Attempts that failed alike since one got further.", |s| {
        plain(s.failing.as_ref().map_or(0.0, |failing| failing.attempts as f64))
    }),
    family("pgsluice_rows_total", "counter", "Rows changed, as the source did it.", by_operation),
    family("pgsluice_truncates_total", "counter", "Tables truncated.", |s| plain(s.totals.truncates as f64)),
    family("pgsluice_rows_written_total", "counter", "Rows written after folding.", |s| {
        plain(s.totals.rows_written as f64)
    }),
    family("pgsluice_transactions_total", "counter", "Source transactions committed on the target.", |s| {
        plain(s.totals.transactions as f64)
    }),
    family(
        "pgsluice_skipped_transactions_total",
        "counter",
        "Source transactions skipped on request.",
        |s| plain(s.totals.skipped_transactions as f64),
    ),
    family("pgsluice_batches_total", "counter", "Transactions committed on the target.", |s| {
        plain(s.totals.batches as f64)
    }),
    family("pgsluice_ahead_total", "counter", "Chunks executed before their turn to commit.", |s| {
        plain(s.totals.ahead as f64)
    }),
    family(
        "pgsluice_ahead_void_total",
        "counter",
        "Chunks that failed when executed early, and were executed again.",
        |s| plain(s.totals.ahead_void as f64),
    ),
    family(
        "pgsluice_out_of_order_total",
        "counter",
        "Transactions committed on the target before an earlier one.",
        |s| plain(s.totals.out_of_order as f64),
    ),
    family(
        "pgsluice_replanned_statements_total",
        "counter",
        "Statements that ran far longer than they should, were cancelled and planned anew.",
        |s| plain(s.totals.replanned as f64),
    ),
    family("pgsluice_replays_total", "counter", "Chunks applied again one change at a time.", |s| {
        plain(s.totals.replays as f64)
    }),
    family(
        "pgsluice_clock_held_transactions_total",
        "counter",
        "Transactions held until the target's clock had passed their commit time.",
        |s| plain(s.totals.clock_held as f64),
    ),
    family(
        "pgsluice_clock_held_seconds_total",
        "counter",
        "How long transactions were held for the target's clock.",
        |s| plain(s.totals.clock_held_ms as f64 / 1e3),
    ),
    family(
        "pgsluice_clock_ahead_seconds",
        "gauge",
        "How far the commit time of the held transaction is ahead of the target's clock, or 0.",
        |s| plain(s.clock_ahead_seconds.unwrap_or(0.0)),
    ),
    family("pgsluice_stage_cpu_seconds_total", "counter", "CPU time of each stage.", by_stage),
    family("pgsluice_errors_total", "counter", "Attempts that ended in an error.", |s| {
        plain(s.totals.errors as f64)
    }),
    family("pgsluice_prefetch_rows_total", "counter", "Rows whose pages were looked up ahead.", |s| {
        plain(s.prefetch.rows as f64)
    }),
    family(
        "pgsluice_prefetch_dropped_total",
        "counter",
        "Rows whose pages were not looked up in time.",
        |s| plain(s.prefetch.dropped as f64),
    ),
    family(
        "pgsluice_prefetch_blocks_hit_total",
        "counter",
        "Pages looked up ahead and found in memory.",
        |s| plain(s.prefetch.blocks_hit as f64),
    ),
    family("pgsluice_prefetch_blocks_read_total", "counter", "Pages looked up ahead and read.", |s| {
        plain(s.prefetch.blocks_read as f64)
    }),
    family("pgsluice_prefetch_hit_rate", "gauge", "Share of pages looked up that were in memory.", |s| {
        plain(s.prefetch.hit_rate)
    }),
    family("pgsluice_prefetch_reading", "gauge", "1 while looking up ahead has to read.", |s| {
        plain(f64::from(u8::from(s.prefetch.reading)))
    }),
    family("pgsluice_prefetch_workers", "gauge", "Sessions connected to look up ahead.", |s| {
        plain(s.prefetch.workers as f64)
    }),
    family(
        "pgsluice_decoded_pass_subscriptions",
        "gauge",
        "Subscriptions for which this process decodes WAL in one pass with this one.",
        |s| plain(s.decoded.as_ref().map(|decoded| decoded.subscriptions_in_pass as f64)),
    ),
    family(
        "pgsluice_decoded_catalogs_compared_time_seconds",
        "gauge",
        "When the catalogs that are followed were last seen to be the source's, Unix time.",
        |s| {
            plain(
                s.decoded.as_ref().and_then(|own| own.catalogs_compared_at_unix_ms).map(|at| at as f64 / 1e3),
            )
        },
    ),
    family(
        "pgsluice_decoded_awaited",
        "gauge",
        "1 while WAL is waited for, in the archive or on standbys.",
        |s| plain(s.decoded.as_ref().map(|own| f64::from(u8::from(own.awaited.is_some())))),
    ),
    family(
        "pgsluice_retention_exceeded_total",
        "counter",
        "Rows that an UPDATE did not find, and of which nobody knows whether they were deleted.",
        |s| plain(s.deletions.as_ref().map(|own| own.retention_exceeded as f64)),
    ),
    family("pgsluice_retained_deletions", "gauge", "Deletions of the target that are remembered.", |s| {
        plain(s.deletions.as_ref().map(|own| own.count as f64))
    }),
    family(
        "pgsluice_deletion_lookup_seconds",
        "gauge",
        "How long the last look-ups of missing rows took, from the question to the answer, by quantile.",
        |s| by_quantile(s.deletions.as_ref().and_then(|own| own.lookup_us)),
    ),
    family(
        "pgsluice_deletion_fence_seconds",
        "gauge",
        "How long the target took for the flush that each of these look-ups begins with, by quantile.",
        |s| by_quantile(s.deletions.as_ref().and_then(|own| own.fence_us)),
    ),
    family("pgsluice_copy_rows_total", "counter", "Rows written by the first copy.", |s| {
        by_table(s, |t| t.rows)
    }),
    family("pgsluice_copy_bytes_total", "counter", "Bytes of COPY data written by the first copy.", |s| {
        by_table(s, |t| t.bytes)
    }),
];

/// The whole answer.
#[must_use]
pub fn render(snapshots: &[StatusSnapshot]) -> String {
    let mut out = String::new();
    head(&mut out, "pgsluice_build_info", "gauge", "The program's version.");
    sample(&mut out, "pgsluice_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    for family in FAMILIES {
        head(&mut out, family.name, family.kind, family.help);
        for snapshot in snapshots {
            for (labels, value) in (family.samples)(snapshot) {
                let own = [("subscription", snapshot.subscription.as_str())].into_iter();
                let labels: Vec<_> =
                    own.chain(labels.iter().map(|(name, text)| (*name, text.as_str()))).collect();
                sample(&mut out, family.name, &labels, value);
            }
        }
    }
    for kind in conflict::ConflictType::ALL {
        let name = format!("pgsluice_confl_{kind}_total");
        head(&mut out, &name, "counter", "Conflicts of this type.");
        for snapshot in snapshots {
            let count = snapshot.totals.conflicts.get(kind.name()).copied().unwrap_or(0);
            sample(&mut out, &name, &[("subscription", snapshot.subscription.as_str())], count as f64);
        }
    }
    out
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn sample(out: &mut String, name: &str, labels: &[(&str, &str)], value: f64) {
    let escape = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let labels: Vec<_> = labels.iter().map(|(name, text)| format!("{name}=\"{}\"", escape(text))).collect();
    let _ = writeln!(out, "{name}{{{}}} {value}", labels.join(","));
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn fetch(address: SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn what_was_counted_is_served() {
        let status = Arc::new(Status::new("orders".parse().unwrap()));
        status.counters().conflicts.add(conflict::ConflictType::UpdateMissing);
        status.counters().inserts.fetch_add(7, std::sync::atomic::Ordering::Relaxed);
        status.decoded().begins(1, 16 << 20);
        status.note_source_end(base::Lsn::new(1_000));
        status.progress().advance_received(base::Lsn::new(900));
        status.progress().advance_flushed(base::Lsn::new(900));
        status.set_waiting(engine::Pause::Retry(std::time::Instant::now()));
        status.set_failing(Some(engine::Failing { since_unix_ms: 1, attempts: 3 }));
        let stop = CancellationToken::new();
        let any_port = "127.0.0.1:0".parse().unwrap();
        let (address, task) = serve(any_port, vec![status], stop.clone()).await.unwrap();
        let text = fetch(address, "/metrics").await;
        for line in [
            r#"pgsluice_confl_update_missing_total{subscription="orders"} 1"#,
            r#"pgsluice_confl_insert_exists_total{subscription="orders"} 0"#,
            r#"pgsluice_rows_total{subscription="orders",operation="insert"} 7"#,
            r#"pgsluice_receive_lag_bytes{subscription="orders"} 100"#,
            r#"pgsluice_queue_lag_seconds{subscription="orders"} 0"#,
            r#"pgsluice_up{subscription="orders"} 0"#,
            r#"pgsluice_decoded_pass_subscriptions{subscription="orders"} 1"#,
            r#"pgsluice_decoded_awaited{subscription="orders"} 0"#,
            r#"pgsluice_phase{subscription="orders",phase="waiting"} 1"#,
            r#"pgsluice_waits_for_seconds{subscription="orders",stage="retry"} 0"#,
            r#"pgsluice_failing_attempts{subscription="orders"} 3"#,
            r#"pgsluice_spooled_bytes{subscription="orders"} 0"#,
            "# TYPE pgsluice_rows_total counter",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains("NaN") && !text.contains("pgsluice_receive_lag_seconds{"), "{text}");
        assert!(fetch(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        stop.cancel();
        task.await.unwrap();
    }

    #[test]
    fn what_is_missing_until_the_target_is_consistent_is_shown() {
        let lines = |status: &Status| render(&[status.snapshot()]);
        let has = |status: &Status, line: &str| lines(status).lines().any(|found| found == line);
        let status = Status::new("orders".parse().unwrap());
        assert!(has(&status, r#"pgsluice_consistent{subscription="orders"} 0"#));
        assert!(!lines(&status).contains("pgsluice_catching_up_bytes{"));
        status.set_progress(Arc::new(base::Progress::starting_at(base::Lsn::new(100))));
        let since = state::Since::from(base::Lsn::new(300));
        let (schema, table) = ("public".to_owned(), "late".to_owned());
        let (source_oid, replaced) = (None, None);
        let late = state::CopiedTable {
            schema,
            table,
            since: Some(since),
            begun: true,
            finished: true,
            source_oid,
            replaced,
        };
        status.await_consistency(&[late], None);
        status.set_phase(engine::Phase::Streaming);
        for line in [
            r#"pgsluice_up{subscription="orders"} 1"#,
            r#"pgsluice_consistent{subscription="orders"} 0"#,
            r#"pgsluice_phase{subscription="orders",phase="catching up to consistency"} 1"#,
            r#"pgsluice_phase{subscription="orders",phase="streaming"} 0"#,
            r#"pgsluice_catching_up_lsn{subscription="orders"} 300"#,
            r#"pgsluice_catching_up_bytes{subscription="orders"} 200"#,
            r#"pgsluice_catching_up_tables{subscription="orders"} 1"#,
        ] {
            assert!(has(&status, line), "{line} is missing in\n{}", lines(&status));
        }
        status.progress().advance_flushed(base::Lsn::new(300));
        status.settle_consistency();
        for line in [
            r#"pgsluice_consistent{subscription="orders"} 1"#,
            r#"pgsluice_phase{subscription="orders",phase="streaming"} 1"#,
            r#"pgsluice_catching_up_bytes{subscription="orders"} 0"#,
            r#"pgsluice_catching_up_tables{subscription="orders"} 0"#,
        ] {
            assert!(has(&status, line), "{line} is missing in\n{}", lines(&status));
        }
        assert!(!lines(&status).contains("pgsluice_catching_up_lsn{"));
    }

    #[test]
    fn every_line_is_the_text_format() {
        let snapshots =
            [Status::new("a".parse().unwrap()).snapshot(), Status::new("b".parse().unwrap()).snapshot()];
        let text = render(&snapshots);
        let mut seen = std::collections::BTreeSet::new();
        for line in text.lines().filter(|line| line.starts_with("# TYPE")) {
            assert!(seen.insert(line.to_owned()), "{line} twice");
        }
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, rest) = line.split_once('{').unwrap();
            let (_, value) = rest.rsplit_once("} ").unwrap();
            assert!(name.starts_with("pgsluice_") && value.parse::<f64>().is_ok(), "{line}");
        }
        assert_eq!(text.matches("_confl_").count(), 8 * 4);
    }
}
