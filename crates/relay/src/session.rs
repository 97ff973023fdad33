//! A replication connection: commands of slots and streams are the relay's, SQL is the publisher's.
//!
//! ```text
//! Q --command::parse--> IDENTIFY_SYSTEM, slots, START_REPLICATION: here
//!          '----------> SQL, COPY, SHOW, TIMELINE_HISTORY: upstream, in a session of the client's
//!                       own role
//! ```
//! The session upstream begins with the first statement that needs it. Most connections of
//! subscribers only stream.
//!
//! The snapshot that a copy uses equals all commits before its slot's point (`point`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::{Lsn, Oid, PgTimestamp};
use bytes::Bytes;
use client::{RawSession, Replication};
use listener::{Client, Link, Place};
use proto::backend::{self, Field, TransactionStatus};
use proto::command::{self, Command, CreateSlot};
use proto::frame::{self, Frame, ServerError};
use proto::scram::ClientKeys;
use proto::startup::Startup;
use tokio_util::sync::CancellationToken;
use wal_dir::Readers;

use crate::cancel::{Cancellable, Cancels};
use crate::create::{SlotOptions, SnapshotWish, boolean, once};
use crate::databases::{Databases, FormKey, GROUP_BYTES};
use crate::forewarning;
use crate::form::Form;
use crate::passthrough::check_encoding;
use crate::receiver::Received;
use crate::rights::may_replicate;
use crate::senders::{Senders, Stream};
use crate::slots::{ActiveSlot, Retention, SlotState, Slots};
use crate::together::Together;
use crate::told::{Told, code, fatal};
use crate::upstream::Upstream;
use crate::views::Views;
use crate::walsender::{Ended, Sent, SentShown, Walsender};

mod point;

/// The longest query that is taken.
const QUERY_SIZE_MAX: usize = 64 << 20;
/// Between two looks whether a slot is free (`WAIT`), or whether WAL has come.
const LOOK: Duration = Duration::from_millis(20);
/// How many sessions make a temporary slot at the publisher at the same time. Each waits for the
/// transactions that are open there.
pub(crate) const MAKING_MAX: usize = 4;
/// How long WAL may take from the publisher to here.
const WAL_MAX: Duration = Duration::from_secs(60);
/// What every subscriber asks first. Answered here, it needs no session upstream.
const SEARCH_PATH: &str = "SELECT pg_catalog.set_config('search_path', '', false);";

/// Ends the publisher's transaction with an error.
const FAILING: &str = "ROLLBACK TO SAVEPOINT pgsluice_relay_has_refused_a_command";

/// The encoding of a subscriber's database that takes bytes as they are.
const UNCONVERTED: &str = "sql_ascii";

const TEXT: Oid = Oid(25);
const INT4: Oid = Oid(23);
const INT8: Oid = Oid(20);

/// What all connections share.
pub struct Context {
    /// The publisher.
    pub upstream: Upstream,
    /// The publisher's major.
    pub major: u32,
    /// Its system identifier.
    pub system: u64,
    /// What it reported when the relay connected.
    pub parameters: Vec<(String, String)>,
    /// The relay's slots.
    pub slots: Slots,
    /// What is decoded.
    pub databases: Databases,
    /// The streams that run.
    pub senders: Senders,
    /// What clients see of slots and streams.
    pub views: Views,
    /// What can be cancelled.
    pub cancels: Cancels,
    /// How much WAL is here.
    pub received: Arc<Received>,
    /// What of it may be read.
    pub readers: Readers,
    /// The sessions that make a temporary slot at the publisher now, or wait for one.
    pub(crate) together: Together,
    /// WAL waits for standbys, so that a subscriber can follow a failover.
    pub waits_for_standbys: bool,
    /// When slots are given up.
    pub retention: Retention,
    /// `wal_sender_timeout`
    pub wal_sender_timeout: Duration,
    /// Cancelled when the relay stops.
    pub stop: CancellationToken,
    /// Cancelled when what was received is taken back, and replaced then.
    pub epoch: Mutex<CancellationToken>,
}

impl Context {
    /// Cancelled when the relay stops, or when what was received is taken back.
    fn epoch(&self) -> CancellationToken {
        self.epoch.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether what relied on WAL that is taken back was ended, and nothing has begun since.
    pub(crate) fn is_between_epochs(&self) -> bool {
        self.epoch().is_cancelled() && !self.stop.is_cancelled()
    }

    /// Ends what relies on WAL that is taken back. Nothing of the kind begins before
    /// [`Context::begin_epoch`].
    pub(crate) fn end_epoch(&self) {
        self.epoch().cancel();
    }

    pub(crate) fn begin_epoch(&self) {
        self.databases.begin_again();
        *self.epoch.lock().unwrap_or_else(PoisonError::into_inner) = self.stop.child_token();
    }
}

/// Why a command is not carried out.
enum Halt {
    /// The client is told this, and may go on.
    Told(Told),
    /// The client is told this, and the session ends.
    Fatal(Box<ServerError>),
    /// The client has gone, or said goodbye.
    Gone,
}

impl From<Told> for Halt {
    fn from(told: Told) -> Halt {
        Halt::Told(told)
    }
}

impl From<listener::LinkError> for Halt {
    fn from(_: listener::LinkError) -> Halt {
        Halt::Gone
    }
}

/// As a server that shuts down.
fn stopped() -> Halt {
    Halt::Fatal(fatal("57P01", "terminating connection due to administrator command"))
}

struct Session<'a> {
    context: &'a Context,
    startup: Startup,
    keys: Option<ClientKeys>,
    place: Place,
    since: PgTimestamp,
    /// The role at the publisher, and its OID.
    role: (String, u32),
    database: Oid,
    link: Link,
    cancellable: Cancellable,
    upstream: Option<Link>,
    status: TransactionStatus,
    /// `SEARCH_PATH` was answered here.
    has_empty_path: bool,
    /// After an error of the extended protocol.
    skips_to_sync: bool,
    /// Temporary slots that go with the session, or with its next error.
    temporary: Vec<ActiveSlot>,
    slots_made: u64,
    /// The transaction has begun as that of a copy, and nothing has run in it.
    is_fresh_for_copy: bool,
}

/// Serves a client with a logical replication connection, until it goes.
pub async fn serve_replication(client: Client, context: &Context) {
    let Client { startup, keys, place, mut link, seat } = client;
    // The login is over: what is wrong with the session comes behind it, as from a server.
    backend::authentication_ok(&mut link.outbox);
    let role = context.upstream.role_of(&startup.user);
    let may = match check_encoding(&startup, &[UNCONVERTED]) {
        Ok(()) => may_replicate((&context.upstream, context.major), &role, &startup.database).await,
        Err(error) => Err(error),
    };
    let (database, role_oid) = match may {
        Ok(oids) => oids,
        Err(error) => {
            backend::error_response(&mut link.outbox, &error);
            link.close().await;
            return;
        }
    };
    let cancellable = context.cancels.session(startup.minor);
    let mut session = Session {
        context,
        startup,
        keys,
        place,
        since: PgTimestamp::now(),
        role: (role, role_oid),
        database,
        link,
        cancellable,
        upstream: None,
        status: TransactionStatus::Idle,
        has_empty_path: false,
        skips_to_sync: false,
        temporary: Vec::new(),
        slots_made: 0,
        is_fresh_for_copy: false,
    };
    session.welcome();
    if let Halt::Fatal(error) = session.run().await {
        backend::error_response(&mut session.link.outbox, &error);
        let _ = session.link.flush().await;
    }
    drop(seat);
}

impl Session<'_> {
    fn welcome(&mut self) {
        let out = &mut self.link.outbox;
        for (name, value) in &self.context.parameters {
            let value = match name.as_str() {
                "session_authorization" => &self.role.0,
                "client_encoding" => "UTF8",
                _ => value,
            };
            backend::parameter_status(out, name, value);
        }
        backend::backend_key_data(out, self.cancellable.pid, &self.cancellable.key);
        backend::ready_for_query(out, TransactionStatus::Idle);
    }

    async fn run(&mut self) -> Halt {
        loop {
            if let Err(end) = self.step().await {
                return end;
            }
        }
    }

    async fn step(&mut self) -> Result<(), Halt> {
        self.link.flush().await?;
        let frame = tokio::select! {
            frame = self.link.frame(QUERY_SIZE_MAX) => frame?,
            () = self.context.stop.cancelled() => return Err(stopped()),
        };
        match frame.tag {
            b'X' => return Err(Halt::Gone),
            b'S' => {
                self.skips_to_sync = false;
                backend::ready_for_query(&mut self.link.outbox, self.status);
                return Ok(());
            }
            tag if self.skips_to_sync && b"QPBDECFHdcf".contains(&tag) => return Ok(()),
            b'Q' => {}
            // The latter three are of a stream that has ended meanwhile.
            b'H' | b'd' | b'c' | b'f' => return Ok(()),
            b'P' | b'B' | b'D' | b'E' | b'C' => {
                self.skips_to_sync = true;
                let message = "extended query protocol not supported in a replication connection";
                return self.refuse(&Told::new(code::PROTOCOL_VIOLATION, message)).await;
            }
            b'F' => {
                let message = "fastpath function calls not supported in a replication connection";
                return self.answer(Err(Told::new(code::PROTOCOL_VIOLATION, message).into())).await;
            }
            tag => {
                let message = format!("invalid frontend message type {tag}");
                return Err(Halt::Fatal(fatal(code::PROTOCOL_VIOLATION, &message)));
            }
        }
        let query = frame.body.strip_suffix(&[0]).and_then(|query| std::str::from_utf8(query).ok());
        let Some(query) = query else {
            let message = "invalid byte sequence for encoding \"UTF8\"";
            return self.answer(Err(Told::new("22021", message).into())).await;
        };
        if self.context.major < command::known_since(query) {
            return self.sql(query).await;
        }
        match command::parse(query) {
            Ok(Some(command)) => self.command(command, query).await,
            Ok(None) => self.sql(query).await,
            Err(error) => self.answer(Err(Told::new(code::SYNTAX_ERROR, error.to_string()).into())).await,
        }
    }

    /// Ends a command: with its error, or behind what was written before.
    async fn answer(&mut self, done: Result<&str, Halt>) -> Result<(), Halt> {
        match done {
            Ok(tag) => backend::command_complete(&mut self.link.outbox, tag),
            Err(Halt::Told(told)) => self.refuse(&told).await?,
            Err(halt) => return Err(halt),
        }
        backend::ready_for_query(&mut self.link.outbox, self.status);
        Ok(())
    }

    /// Tells the client an error. As every error, it ends the transaction that is open.
    async fn refuse(&mut self, told: &Told) -> Result<(), Halt> {
        backend::error_response(&mut self.link.outbox, &told.0);
        self.temporary.clear();
        // The publisher, which has the transaction, has seen no error.
        if self.status == TransactionStatus::Open
            && let Err(halt) = self.row_of(FAILING).await
            && !matches!(halt, Halt::Told(_))
        {
            return Err(halt);
        }
        Ok(())
    }

    async fn command(&mut self, command: Command, query: &str) -> Result<(), Halt> {
        if let Err(told) = self.may_run(&command) {
            return self.answer(Err(told.into())).await;
        }
        match command {
            Command::IdentifySystem => {
                self.identify();
                self.answer(Ok("IDENTIFY_SYSTEM")).await
            }
            Command::Show(_) | Command::TimelineHistory(_) => self.sql(query).await,
            Command::ReadSlot(name) => {
                let done = self.read_slot(&name);
                self.answer(done.map(|()| "READ_REPLICATION_SLOT").map_err(Halt::Told)).await
            }
            Command::CreateSlot(create) => {
                let done = self.create_slot(&create).await;
                self.answer(done.map(|()| "CREATE_REPLICATION_SLOT")).await
            }
            Command::DropSlot { slot, wait } => {
                let done = self.drop_slot(&slot, wait).await;
                self.answer(done.map(|()| "DROP_REPLICATION_SLOT").map_err(Halt::Told)).await
            }
            Command::AlterSlot { slot, options } => {
                let done = self.alter_slot(&slot, &options).await;
                self.answer(done.map(|()| "ALTER_REPLICATION_SLOT").map_err(Halt::Told)).await
            }
            Command::StartLogical { slot, start, options } => self.start(&slot, start, &options).await,
            Command::StartPhysical { .. } | Command::Backup => {
                let message = "the relay serves logical replication only";
                self.answer(Err(Told::new(code::FEATURE_NOT_SUPPORTED, message).into())).await
            }
        }
    }

    /// Whether the transaction, if there is one, allows a command.
    fn may_run(&self, command: &Command) -> Result<(), Told> {
        let (code, message) = match (self.status, command) {
            (TransactionStatus::Failed, _) => {
                ("25P02", "current transaction is aborted, commands ignored until end of transaction block")
            }
            (TransactionStatus::Open, Command::StartLogical { .. }) => {
                ("25001", "START_REPLICATION cannot run inside a transaction block")
            }
            _ => return Ok(()),
        };
        Err(Told::new(code, message))
    }

    fn row(&mut self, fields: &[(&str, Oid)], values: &[Option<&str>]) {
        let size = |oid: Oid| match oid {
            INT4 => 4,
            INT8 => 8,
            _ => -1,
        };
        let fields: Vec<Field<'_>> =
            fields.iter().map(|(name, oid)| Field { name, type_oid: *oid, type_size: size(*oid) }).collect();
        backend::row_description(&mut self.link.outbox, &fields);
        backend::data_row(&mut self.link.outbox, values);
    }

    fn identify(&mut self) {
        let (system, timeline) = (self.context.system, self.context.received.timeline());
        let [system, timeline] = [system.to_string(), timeline.to_string()];
        let at = self.context.received.written().to_string();
        let database = self.startup.database.clone();
        let timeline_type = if self.context.major >= 16 { INT8 } else { INT4 };
        self.row(
            &[("systemid", TEXT), ("timeline", timeline_type), ("xlogpos", TEXT), ("dbname", TEXT)],
            &[Some(&system), Some(&timeline), Some(&at), Some(&database)],
        );
    }

    fn read_slot(&mut self, name: &str) -> Result<(), Told> {
        if self.context.slots.shown().iter().any(|slot| slot.state.name == name) {
            let message = "cannot use READ_REPLICATION_SLOT with a logical replication slot";
            return Err(Told::new(code::FEATURE_NOT_SUPPORTED, message));
        }
        self.row(&[("slot_type", TEXT), ("restart_lsn", TEXT), ("restart_tli", INT8)], &[None, None, None]);
        Ok(())
    }

    async fn drop_slot(&mut self, name: &str, wait: bool) -> Result<(), Told> {
        loop {
            let done = self.context.slots.remove(name, self.cancellable.pid);
            if done.is_ok() {
                let by = self.application_name();
                tracing::info!("replication slot \"{name}\" was dropped by \"{by}\"");
                self.context.senders.forget(name);
            }
            match &done {
                Err(told) if wait && told.0.code == code::OBJECT_IN_USE => tokio::time::sleep(LOOK).await,
                _ => return done,
            }
        }
    }

    /// Waits until nobody uses the slot, as the server does.
    async fn alter_slot(&mut self, name: &str, options: &[command::CommandOption]) -> Result<(), Told> {
        let (mut failover, mut two_phase) = (None, None);
        for option in options {
            match option.name.as_str() {
                "failover" => once(&mut failover, boolean(option)?)?,
                "two_phase" if self.context.major >= 18 => once(&mut two_phase, boolean(option)?)?,
                other => {
                    return Err(Told::new(code::INTERNAL_ERROR, format!("unrecognized option: {other}")));
                }
            }
        }
        self.may_fail_over(failover.unwrap_or(false))?;
        loop {
            let at = self.context.received.written();
            let done = self.context.slots.alter(name, |state| {
                state.failover = failover.unwrap_or(state.failover);
                match two_phase {
                    Some(true) => drop(state.two_phase_at.get_or_insert(at)),
                    Some(false) => state.two_phase_at = None,
                    None => {}
                }
            });
            match &done {
                Err(told) if told.0.code == code::OBJECT_IN_USE => tokio::time::sleep(LOOK).await,
                _ => return done,
            }
        }
    }

    /// The session upstream. If there is none, it begins.
    async fn upstream(&mut self) -> Result<&mut Link, Box<ServerError>> {
        if self.upstream.is_none() {
            let settings = &self.startup.settings;
            let info = self.context.upstream.login_of(&self.startup, self.keys.clone());
            let own = ["application_name", "client_encoding"];
            let mut settings: Vec<(&str, &str)> = settings
                .iter()
                .filter(|(name, _)| !own.contains(&name.as_str()))
                .map(|(name, value)| (name.as_str(), value.as_str()))
                .collect();
            if self.has_empty_path {
                settings.push(("search_path", ""));
            }
            let name = self.application_name();
            let session = RawSession::connect(&info, name, Replication::Database, &settings).await;
            let session = session.map_err(|error| match error.server() {
                Some(error) => Box::new(ServerError { severity: "FATAL".to_owned(), ..error.clone() }),
                None => fatal(code::CONNECTION_FAILURE, &error.to_string()),
            })?;
            self.cancellable.runs_at(session.canceller());
            let (stream, _) = session.into_parts();
            self.upstream = Some(Link::over(stream));
        }
        Ok(self.upstream.as_mut().expect("it was begun"))
    }

    /// Before a stream: a session upstream would only be held, and with it what an exported
    /// snapshot holds. If SQL comes afterwards, another session begins.
    async fn leave_upstream(&mut self) {
        if self.status == TransactionStatus::Idle
            && let Some(mut link) = self.upstream.take()
        {
            append(&mut link.outbox, &Frame { tag: b'X', body: Bytes::new() });
            link.close().await;
        }
    }

    fn application_name(&self) -> &str {
        let name = self.startup.settings.iter().find(|(name, _)| name == "application_name");
        name.map_or("", |(_, value)| value)
    }

    /// Passes a statement on, and everything that is answered.
    async fn sql(&mut self, query: &str) -> Result<(), Halt> {
        if query == SEARCH_PATH && self.upstream.is_none() {
            self.has_empty_path = true;
            self.row(&[("set_config", TEXT)], &[Some("")]);
            return self.answer(Ok("SELECT 1")).await;
        }
        let shown = self.context.views.put_into(query);
        self.ask(shown.as_deref().unwrap_or(query)).await.map_err(Halt::Fatal)?;
        loop {
            let frame = self.hear().await.map_err(Halt::Fatal)?;
            let is_end = frame.tag == b'Z';
            if is_end {
                self.status = status_of(&frame);
            }
            if frame.tag == frame::ERROR_RESPONSE {
                self.temporary.clear();
            }
            append(&mut self.link.outbox, &frame);
            if is_end {
                self.is_fresh_for_copy =
                    self.status == TransactionStatus::Open && Session::begins_copy(query);
                return Ok(());
            }
            if self.link.outbox.len() >= 64 << 10 {
                self.link.flush().await?;
            }
        }
    }

    async fn ask(&mut self, query: &str) -> Result<(), Box<ServerError>> {
        let link = self.upstream().await?;
        append(&mut link.outbox, &Frame { tag: b'Q', body: [query.as_bytes(), &[0]].concat().into() });
        link.flush().await.map_err(|_| lost())
    }

    async fn hear(&mut self) -> Result<Frame, Box<ServerError>> {
        let link = self.upstream().await?;
        link.frame(frame::LENGTH_MAX).await.map_err(|_| lost())
    }

    /// Runs a command upstream, and returns its first row.
    async fn row_of(&mut self, query: &str) -> Result<Vec<Option<String>>, Halt> {
        self.ask(query).await.map_err(Halt::Fatal)?;
        let (mut row, mut told) = (Vec::new(), None);
        loop {
            let frame = self.hear().await.map_err(Halt::Fatal)?;
            match frame.tag {
                b'D' => row = client::text_row(&frame.body).map_err(|_| Halt::Fatal(lost()))?,
                frame::ERROR_RESPONSE => {
                    let error = ServerError::parse(&frame.body).map_err(|_| Halt::Fatal(lost()))?;
                    told = Some(Told(Box::new(error)));
                }
                b'Z' => {
                    self.status = status_of(&frame);
                    return told.map_or(Ok(row), |told| Err(told.into()));
                }
                _ => {}
            }
        }
    }

    async fn create_slot(&mut self, create: &CreateSlot) -> Result<(), Halt> {
        let options = self.slot_options(create)?;
        // What the slot will need stays until the slot is there.
        let _hold = self.context.databases.hold(self.database);
        let epoch = self.context.epoch();
        self.context.databases.prepare(self.database, &self.startup.database, &self.context.readers).await?;
        let (point, snapshot) = self.consistent_point(options.snapshot).await?;
        self.has_wal(point).await?;
        if epoch.is_cancelled() {
            return Err(
                Told::new(code::CONNECTION_FAILURE, "the publisher has failed over; try again").into()
            );
        }
        let restart = self.context.databases.restart_of(self.database, point);
        let none = || Told::new(code::INTERNAL_ERROR, format!("no catalogs are kept for {point}"));
        let state = SlotState {
            name: create.slot.clone(),
            database: self.database.0,
            database_name: self.startup.database.clone(),
            confirmed: point,
            restart: restart.ok_or_else(none)?,
            two_phase_at: options.two_phase.then_some(point),
            failover: options.failover,
            invalidated: None,
            left_at: None,
        };
        let slot = self.context.slots.create(state, create.temporary, self.cancellable.pid)?;
        if create.temporary {
            self.temporary.push(slot);
        }
        let point = point.to_string();
        self.row(
            &[
                ("slot_name", TEXT),
                ("consistent_point", TEXT),
                ("snapshot_name", TEXT),
                ("output_plugin", TEXT),
            ],
            &[Some(&create.slot), Some(&point), snapshot.as_deref(), Some("pgoutput")],
        );
        Ok(())
    }

    /// The options of a new slot, if the relay can make it.
    fn slot_options(&self, create: &CreateSlot) -> Result<SlotOptions, Told> {
        SlotOptions::check_grammar(create, self.context.major)?;
        let refused = |message: String| Err(Told::new(code::FEATURE_NOT_SUPPORTED, message));
        match create.plugin.as_deref() {
            Some("pgoutput") => {}
            Some(other) => {
                return refused(format!(
                    "the relay has the output plugin pgoutput only, and not \"{other}\""
                ));
            }
            None => return refused("the relay has logical replication slots only".to_owned()),
        }
        let options = SlotOptions::read(create, self.context.major)?;
        crate::create::check_name(&create.slot, self.context.major)?;
        self.may_fail_over(options.failover)?;
        let must = match (options.snapshot, self.status) {
            (SnapshotWish::Use, TransactionStatus::Idle) => "must",
            (SnapshotWish::Export, TransactionStatus::Open) => "must not",
            _ => return Ok(options),
        };
        let words = options.snapshot.words(self.context.major);
        // The server has no code of its own for it.
        Err(Told::internal(&format!(
            "CREATE_REPLICATION_SLOT ... {words} {must} be called inside a transaction"
        )))
    }

    /// A subscriber follows a failover if no change is sent that the standbys lack.
    fn may_fail_over(&self, failover: bool) -> Result<(), Told> {
        if !failover || self.context.waits_for_standbys {
            return Ok(());
        }
        let message = "the relay has failover slots only if synchronized_standby_slots is set";
        Err(Told::new(code::FEATURE_NOT_SUPPORTED, message)
            .hint("Set it for the relay, or create the subscription with failover = false."))
    }

    /// Waits until WAL up to there is here, and may be sent.
    async fn has_wal(&self, lsn: Lsn) -> Result<(), Told> {
        let come = async {
            while self.context.readers.end() < lsn {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(WAL_MAX, come).await.map_err(|_| {
            let (at, written) = (self.context.readers.end(), self.context.received.written());
            let held = if at < written { ", because standbys lack the rest" } else { "" };
            let message = format!("the relay may send WAL up to {at} only, and needs {lsn}{held}");
            Told::new(code::CONNECTION_FAILURE, message)
        })
    }

    async fn start(
        &mut self,
        slot: &str,
        start: Lsn,
        options: &[command::CommandOption],
    ) -> Result<(), Halt> {
        let prepared = self.prepared(slot, start, options);
        let (sent, epoch): (Arc<Sent>, _) = (Arc::default(), self.context.epoch());
        let (slot, key, start) = match prepared {
            Ok(prepared) => prepared,
            Err(told) => return self.answer(Err(told.into())).await,
        };
        let Some(state) = slot.state() else { return Err(Halt::Gone) };
        // Others may come who are a little behind: one decoding is for all.
        let group = self.context.slots.group_of(self.database, (state.confirmed, state.restart), GROUP_BYTES);
        let (cursor, form) = match self.context.databases.enter(&key, start, group) {
            Ok(entered) => entered,
            Err(told) => return self.answer(Err(told.into())).await,
        };
        let out = &mut self.link.outbox;
        forewarning::warn(out, &self.context.databases, (&form, slot.name()), &self.startup).await;
        self.leave_upstream().await;
        self.link.flush().await?;
        let (nowhere, _) = tokio::io::duplex(1);
        let link = std::mem::replace(&mut self.link, Link::over(nowhere));
        let (context, database, restart) = (self.context, self.database, state.restart);
        // Anchors are looked at when the subscriber confirms, which is rare.
        let restart_of =
            |confirmed: Lsn| context.databases.restart_of(database, confirmed).unwrap_or(restart);
        let name = slot.name().to_owned();
        let enter_alone = || {
            // It may have confirmed more than at the start, though nothing came for it.
            let state = context.slots.state(&name);
            let (confirmed, restart) =
                state.map_or((start, restart), |state| (start.max(state.confirmed), state.restart));
            context.databases.enter_alone(&key, confirmed, restart)
        };
        let listed = context.senders.list(Stream {
            pid: self.cancellable.pid,
            user: self.role.clone(),
            application_name: self.application_name().to_owned(),
            place: self.place,
            since: self.since,
            slot: slot.name().to_owned(),
            sent: Arc::clone(&sent),
        });
        let (figures, is_temporary) = (Arc::clone(&sent), slot.is_temporary());
        let sender = Walsender::new(
            link,
            (cursor, slot, start),
            (form, &restart_of, &enter_alone),
            self.context.wal_sender_timeout,
            sent,
        );
        let (ended, link, slot) = sender.run(&epoch).await;
        // A temporary one goes with the session.
        if is_temporary {
            self.temporary.push(slot);
        } else {
            drop(slot);
        }
        drop(listed);
        let SentShown { bytes, flush_ptr_reads, sender_wakeups, .. } = figures.shown();
        tracing::info!(
            bytes,
            flush_ptr_reads,
            sender_wakeups,
            "the stream of slot \"{name}\" has ended: {ended}"
        );
        self.link = link;
        match ended {
            Ended::Done => {
                backend::ready_for_query(&mut self.link.outbox, self.status);
                Ok(())
            }
            Ended::Refused(told) => {
                let mut error = told.0;
                error.severity = "FATAL".to_owned();
                Err(Halt::Fatal(error))
            }
            Ended::Stopped | Ended::Invalidated => {
                let message = "terminating connection due to administrator command";
                Err(Halt::Fatal(fatal("57P01", message)))
            }
            // The subscriber comes back, and enters where it can.
            Ended::Gone(_) | Ended::Silent | Ended::Evicted => Err(Halt::Gone),
        }
    }

    /// The slot, the form, and where it starts.
    fn prepared(
        &mut self,
        slot: &str,
        start: Lsn,
        options: &[command::CommandOption],
    ) -> Result<(ActiveSlot, FormKey, Lsn), Told> {
        let own = self.temporary.iter().position(|own| own.name() == slot);
        let slot = match own {
            Some(own) => self.temporary.swap_remove(own),
            None => self.context.slots.acquire(slot, self.database, self.cancellable.pid, start)?,
        };
        if own.is_some() {
            slot.goes_on_from(start)?;
        }
        let mut form = Form::read(options, self.context.major)?;
        let state = slot.state().map_or(Lsn::INVALID, |state| state.confirmed);
        // A server never starts earlier than what was confirmed.
        let start = start.max(state);
        if form.two_phase {
            slot.use_two_phase(start)?;
        }
        form.two_phase = false;
        let two_phase_at = slot.state().and_then(|state| state.two_phase_at);
        let two_phase_at = two_phase_at.filter(|_| form.proto_version >= 3);
        Ok((slot, FormKey { database: self.database, form, two_phase_at }, start))
    }
}

fn status_of(frame: &Frame) -> TransactionStatus {
    match frame.body.first() {
        Some(b'T') => TransactionStatus::Open,
        Some(b'E') => TransactionStatus::Failed,
        _ => TransactionStatus::Idle,
    }
}

/// Appends a message as it came.
fn append(out: &mut Vec<u8>, frame: &Frame) {
    let length = u32::try_from(frame.body.len() + 4).expect("a message that came");
    out.push(frame.tag);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&frame.body);
}

fn lost() -> Box<ServerError> {
    fatal(code::CONNECTION_FAILURE, "the relay has lost the connection to the publisher")
}
