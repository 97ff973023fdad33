//! `pgsluice relay --source URL --listen ADDRESS --data-dir DIRECTORY`.
//!
//! Runs until SIGTERM or SIGINT. SIGHUP reads the files of access again.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use indicatif::MultiProgress;
use listener::{AccessTable, CertificateMaps, Limits, Rules, TableError, Tls, TlsFiles, UserMap, Users};
use relay::{
    ArchiveSettings, Relay, RelayAccess, RelayError, RelaySettings, Retention, Timeouts, TrackLimits, WalKeep,
};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::exit::{Code, exit};
use crate::failure::Failure;
use crate::logging;
use crate::settings::RelayTable;
use crate::subject::end;

/// Serves subscribers until stopped.
pub(crate) async fn relay(table: &RelayTable) -> anyhow::Result<Code> {
    logging::start(&table.log, &MultiProgress::new())?;
    let source = end("source", table.place.source.as_deref())?;
    let data_dir = table.place.data_dir.clone().ok_or(Failure::Missing { key: "data_dir" })?;
    let address = table.network.listen.ok_or(Failure::Missing { key: "listen" })?;
    let access = AccessFiles::of(table);
    let (rules, tls, user_map) = access.load()?;
    let mut signals = Signals::listen()?;
    let socket = TcpListener::bind(address).await.map_err(|error| Failure::Listen { address, error })?;
    let described = source.describe();
    let settings = RelaySettings {
        source,
        name: table.wal.primary_slot_name.clone(),
        data_dir,
        rules,
        user_map,
        tls,
        limits: limits(table),
        tracks: TrackLimits::default(),
        timeouts: Timeouts {
            wal_receiver_status_interval: table.wal.wal_receiver_status_interval.0,
            wal_receiver_timeout: table.wal.wal_receiver_timeout.0,
            wal_sender_timeout: table.wal.wal_sender_timeout.0,
        },
        retention: Retention {
            max_slot_wal_keep_bytes: table.wal.max_slot_wal_keep_size.0,
            idle_replication_slot_timeout: Some(table.wal.idle_replication_slot_timeout.0)
                .filter(|timeout| !timeout.is_zero()),
        },
        archive: archive(table),
        synchronized_standby_slots: table.wal.synchronized_standby_slots.clone(),
    };
    let stop = CancellationToken::new();
    let Some(relay) = open(settings, &stop, &mut signals).await? else { return Ok(Code::Done) };
    tokio::spawn(heed(signals, stop, access, relay.access()));
    tracing::info!("serving subscribers of {described} at {}", socket.local_addr()?);
    relay.run(socket).await.map_err(|error| from_relay(&error))?;
    tracing::info!("stopped");
    Ok(Code::Done)
}

/// Opens the relay; `None` if it was told to stop meanwhile.
async fn open(
    settings: RelaySettings,
    stop: &CancellationToken,
    signals: &mut Signals,
) -> anyhow::Result<Option<Relay>> {
    let mut opening = std::pin::pin!(Relay::open(settings, stop.clone()));
    loop {
        tokio::select! {
            opened = &mut opening => return opened.map(Some).map_err(|error| from_relay(&error)),
            signal = signals.next() => match signal {
                SignalReceived::Stop { name, .. } => {
                    tracing::info!("{name}: stopping");
                    return Ok(None);
                }
                // The files have just been read.
                SignalReceived::Reload => {}
            },
        }
    }
}

fn archive(table: &RelayTable) -> Option<ArchiveSettings> {
    let dir = table.wal.wal_archive.clone()?;
    let time = Some(table.wal.wal_keep_time.0).filter(|time| !time.is_zero());
    Some(ArchiveSettings { dir, keep: WalKeep { bytes: table.wal.wal_keep_size.0, time } })
}

fn limits(table: &RelayTable) -> Limits {
    let network = &table.network;
    let all = network.max_connections;
    let most = |own: Option<u32>| own.unwrap_or(all) as usize;
    Limits {
        connections: all as usize,
        per_user: most(network.max_connections_per_user),
        per_address: most(network.max_connections_per_address),
        time_to_authenticate: network.authentication_timeout.0,
        ..Limits::default()
    }
}

/// The files that say who may connect.
struct AccessFiles {
    hba: Option<PathBuf>,
    ident: Option<PathBuf>,
    user_map: Option<PathBuf>,
    users: Option<PathBuf>,
    /// The file of users was named, so it must be there.
    needs_users: bool,
    tls: Option<TlsFiles>,
}

impl AccessFiles {
    fn of(table: &RelayTable) -> AccessFiles {
        let network = &table.network;
        let tls = network.ssl_cert_file.clone().zip(network.ssl_key_file.clone());
        AccessFiles {
            hba: table.access.hba_file.clone(),
            ident: table.access.ident_file.clone(),
            user_map: table.access.user_map_file.clone(),
            users: table.place.users(),
            needs_users: table.place.users_file.is_some(),
            tls: tls.map(|(certificate, key)| TlsFiles {
                certificate,
                key,
                client_roots: network.ssl_ca_file.clone(),
            }),
        }
    }

    /// Reads them all.
    fn load(&self) -> anyhow::Result<(Rules, Option<Tls>, UserMap)> {
        let access = self.hba.as_deref().map(|path| parsed(path, AccessTable::parse)).transpose()?;
        let maps = self.ident.as_deref().map(|path| parsed(path, CertificateMaps::parse)).transpose()?;
        let user_map = self.user_map.as_deref().map(logins).transpose()?;
        // A relay may have no users: there are certificates, too.
        let users = self.users.as_deref().filter(|path| self.needs_users || path.exists());
        let users = users.map(|path| parsed(path, Users::parse)).transpose()?;
        let tls = self.tls.as_ref().map(Tls::load).transpose();
        let tls = tls.map_err(|error| exit(Code::Usage, error.to_string()))?;
        let rules = Rules {
            access: access.unwrap_or_default(),
            users: users.unwrap_or_default(),
            maps: maps.unwrap_or_default(),
        };
        Ok((rules, tls, user_map.unwrap_or_default()))
    }
}

/// The file of logins, which has passwords.
fn logins(path: &Path) -> Result<UserMap, Failure> {
    let is_open = std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o077 != 0);
    if is_open {
        let why = "it has passwords, and others may read it; `chmod 0600` it".to_owned();
        return Err(Failure::RelayFile { path: path.to_owned(), why });
    }
    parsed(path, UserMap::parse)
}

/// What the file at `path` says.
pub(super) fn parsed<T>(path: &Path, parse: impl Fn(&str) -> Result<T, TableError>) -> Result<T, Failure> {
    let wrong = |why: String| Failure::RelayFile { path: path.to_owned(), why };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    parse(&text).map_err(|error| wrong(error.to_string()))
}

/// A signal that came.
enum SignalReceived {
    Stop { name: &'static str, number: i32 },
    Reload,
}

/// SIGTERM, SIGINT and SIGHUP. From the beginning on, none of them ends the process by itself.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    reload: Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Signals> {
        let listen = |kind, name| signal(kind).with_context(|| format!("could not listen for {name}"));
        Ok(Signals {
            terminate: listen(SignalKind::terminate(), "SIGTERM")?,
            interrupt: listen(SignalKind::interrupt(), "SIGINT")?,
            reload: listen(SignalKind::hangup(), "SIGHUP")?,
        })
    }

    async fn next(&mut self) -> SignalReceived {
        tokio::select! {
            _ = self.terminate.recv() => SignalReceived::Stop { name: "SIGTERM", number: 15 },
            _ = self.interrupt.recv() => SignalReceived::Stop { name: "SIGINT", number: 2 },
            _ = self.reload.recv() => SignalReceived::Reload,
        }
    }
}

/// The first SIGTERM or SIGINT cancels `stop`, the second ends the process. SIGHUP gives the relay
/// the rules as they are in the files then.
async fn heed(mut signals: Signals, stop: CancellationToken, files: AccessFiles, access: RelayAccess) {
    loop {
        match signals.next().await {
            SignalReceived::Stop { number, .. } if stop.is_cancelled() => std::process::exit(128 + number),
            SignalReceived::Stop { name, .. } => {
                tracing::info!("{name}: stopping");
                stop.cancel();
            }
            SignalReceived::Reload => match files.load() {
                Ok((rules, tls, user_map)) => {
                    access.reload(rules, tls, user_map);
                    tracing::info!("SIGHUP: the rules of access were read again");
                }
                Err(error) => tracing::error!("SIGHUP: the old rules of access stay: {error:#}"),
            },
        }
    }
}

/// An error of a relay with its exit code.
pub(crate) fn from_relay(error: &RelayError) -> anyhow::Error {
    exit(Code::Failed, base::with_causes(error))
}
