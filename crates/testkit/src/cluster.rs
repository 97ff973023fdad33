//! One PostgreSQL server of our own: start it, stop it, kill it, query it.
//!
//! A cluster's directory holds `data`, `s` (its socket directory) and `log`. The name `s` is short
//! because a socket's path must stay below 108 bytes. The owner holds a lock on `<directory>.lock`
//! while it lives. A directory with a free lock belongs to a killed process, and the next process
//! that starts a cluster removes it.

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Once;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rand::Rng;
use rustix::process::Signal;

use crate::clock::Clock;
use crate::major::Major;
use crate::patience::Patience;
use crate::process;
use crate::server::server_dir;
use crate::sql::{self, Rows};
use crate::template;
use crate::user::ServerUser;
use crate::wait::wait_for;

/// Below the ports that the kernel hands out to clients (32768 and up), so that a cluster that is
/// down keeps its port.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
/// How many ports are tried. Two clusters do not meet this often by chance.
const PORT_ATTEMPTS_MAX: usize = 20;
/// A start includes crash recovery, on a machine that may be building something at the same time.
const START_BOUND: Duration = Duration::from_secs(120);
/// A fast stop includes a checkpoint.
const STOP_BOUND: Duration = Duration::from_secs(60);
const PREFIX: &str = "pgsluice-test-";

/// Settings of every cluster; [`Builder::setting`] overrides them. They are small, because many
/// clusters run at a time. `fsync` is off, because killing a process loses nothing that the kernel
/// already has (see [`Builder::durable`]).
const SETTINGS: [(&str, &str); 16] = [
    ("listen_addresses", "127.0.0.1"),
    ("wal_level", "logical"),
    ("max_wal_senders", "20"),
    ("max_replication_slots", "20"),
    ("max_worker_processes", "16"),
    ("max_logical_replication_workers", "8"),
    ("max_prepared_transactions", "10"),
    ("max_connections", "300"),
    ("shared_buffers", "32MB"),
    ("fsync", "off"),
    ("huge_pages", "off"),
    ("timezone", "UTC"),
    ("log_timezone", "UTC"),
    ("logging_collector", "off"),
    ("log_line_prefix", "%m [%p] %b %a "),
    ("lc_messages", "C"),
];

/// How a server stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// Waits for its clients to leave.
    Smart,
    /// Ends its sessions, writes a checkpoint.
    Fast,
    /// Stops at once; the next start recovers.
    Immediate,
}

/// Everything that a cluster is started with.
#[derive(Clone, Debug)]
pub struct Builder {
    major: Major,
    settings: Vec<(String, String)>,
    hba: Option<String>,
    has_own_clock: bool,
}

impl Builder {
    /// The version of the server.
    pub fn major(&self) -> Major {
        self.major
    }

    /// Sets a line of `postgresql.conf`; the last one of a name counts.
    pub fn setting(mut self, name: &str, value: &str) -> Builder {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// `fsync` on: for tests that look at what survives, and for benchmarks.
    pub fn durable(self) -> Builder {
        self.setting("fsync", "on")
    }

    /// Replaces `pg_hba.conf`, which otherwise trusts everybody on this machine.
    pub fn hba(mut self, text: &str) -> Builder {
        self.hba = Some(text.to_owned());
        self
    }

    /// Gives the server a clock of its own: [`Cluster::set_clock_ahead`].
    pub fn own_clock(mut self) -> Builder {
        self.has_own_clock = true;
        self
    }

    /// Copies the template and starts a server on it.
    ///
    /// # Errors
    /// When the binaries cannot be had or the server does not start; the end of its log is part of
    /// the error.
    pub fn start(self) -> Result<Cluster> {
        let mut cluster = Cluster::without_data(self.major)?;
        if self.has_own_clock {
            cluster.clock = Some(Clock::make(&cluster.dir)?);
        }
        template::copy_to(self.major, cluster.user, &cluster.data_dir())?;
        cluster.configure(&self)?;
        cluster.start_first()
    }
}

/// A PostgreSQL server with its own data directory; stopped and removed when dropped.
#[derive(Debug)]
pub struct Cluster {
    major: Major,
    user: ServerUser,
    program: PathBuf,
    dir: PathBuf,
    _lock: File,
    port: u16,
    server: Option<Child>,
    environment: Vec<(String, String)>,
    clock: Option<Clock>,
}

impl Cluster {
    /// A cluster of `major` with the default settings.
    ///
    /// # Errors
    /// See [`Builder::start`].
    pub fn start(major: Major) -> Result<Cluster> {
        Cluster::builder(major).start()
    }

    /// A cluster of `major`, to be given settings.
    pub fn builder(major: Major) -> Builder {
        Builder { major, settings: Vec::new(), hba: None, has_own_clock: false }
    }

    /// An empty directory.
    fn without_data(major: Major) -> Result<Cluster> {
        let user = ServerUser::find()?;
        let server = server_dir(major)?;
        let (dir, lock) = new_directory(user)?;
        let program = server.join("bin/postgres");
        Ok(Cluster {
            major,
            user,
            program,
            dir,
            _lock: lock,
            port: 0,
            server: None,
            environment: Vec::new(),
            clock: None,
        })
    }

    /// Starts it on a port that is free.
    fn start_first(mut self) -> Result<Cluster> {
        for _ in 0..PORT_ATTEMPTS_MAX {
            self.port = free_port();
            match self.start_again() {
                Err(_) if self.log().contains("could not create any TCP/IP sockets") => {
                    File::create(self.log_path())?;
                }
                other => return other.map(|()| self),
            }
        }
        bail!("{PORT_ATTEMPTS_MAX} ports in a row were taken before the server could listen");
    }

    /// A standby that receives this server's WAL through the physical slot `slot`, which is created
    /// if it is missing. The server is stopped while its files are copied. Slots are not copied, as
    /// with `pg_basebackup`.
    ///
    /// # Errors
    ///
    /// As [`Cluster::stop`] and [`Builder::start`].
    pub fn standby(&mut self, slot: &str) -> Result<Cluster> {
        use std::io::Write;
        let standby = Cluster::without_data(self.major)?;
        self.stop(StopMode::Fast)?;
        template::copy_tree(&self.data_dir(), &standby.data_dir())?;
        self.start_again()?;
        let make = format!(
            "SELECT pg_create_physical_replication_slot('{slot}', true)
              WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '{slot}')"
        );
        self.sql("postgres", &make)?;
        for entry in std::fs::read_dir(standby.data_dir().join("pg_replslot"))? {
            std::fs::remove_dir_all(entry?.path())?;
        }
        let mut conf = File::options().append(true).open(standby.data_dir().join("postgresql.conf"))?;
        writeln!(conf, "unix_socket_directories = '{}'", standby.socket_dir().display())?;
        writeln!(conf, "primary_conninfo = '{}'\nprimary_slot_name = '{slot}'", self.url("postgres"))?;
        std::fs::write(standby.data_dir().join("standby.signal"), "")?;
        standby.start_first()
    }

    /// How to connect to `dbname`, as the superuser `postgres`.
    pub fn url(&self, dbname: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{dbname}", self.port)
    }

    /// The TCP port on 127.0.0.1; the same for the cluster's whole life.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The directory of the Unix socket.
    pub fn socket_dir(&self) -> PathBuf {
        self.dir.join("s")
    }

    /// The server's major.
    pub fn major(&self) -> Major {
        self.major
    }

    /// The data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// The postmaster's process id, while the server runs.
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }

    /// Everything the server has logged.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log_path()).unwrap_or_default()).into_owned()
    }

    fn log_path(&self) -> PathBuf {
        self.dir.join("log")
    }

    fn log_end(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Runs `sql` in `db` on a connection of its own; the rows of its last statement.
    ///
    /// # Errors
    /// See [`sql::query`].
    pub fn sql(&self, db: &str, sql: &str) -> Result<Rows> {
        sql::query(&self.url(db), sql)
    }

    /// The one value that `sql` returns; NULL is the empty string.
    ///
    /// # Panics
    /// When `sql` fails or does not return exactly one row of one column.
    #[track_caller]
    pub fn one(&self, db: &str, sql: &str) -> String {
        let rows = self.sql(db, sql).unwrap_or_else(|error| panic!("{error:#}"));
        match rows.as_slice() {
            [row] if row.len() == 1 => row[0].clone().unwrap_or_default(),
            rows => panic!("one value expected, {} rows came from: {sql}", rows.len()),
        }
    }

    /// Sets `synchronous_standby_names` and returns when every later commit goes by it, in sessions
    /// that exist, too.
    ///
    /// A commit waits only after the checkpointer has told all processes that there are standbys to
    /// wait for, some time after the setting is shown. The checkpointer reads its settings before
    /// it begins a checkpoint. The first one here may have been asked for after it had read them.
    ///
    /// # Errors
    /// What the server answers; when the setting is not shown in time.
    pub fn set_synchronous_standby_names(&self, names: &str) -> Result<()> {
        const DB: &str = "postgres";
        self.sql(DB, &format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"))?;
        self.sql(DB, "SELECT pg_reload_conf()")?;
        wait_for("synchronous_standby_names to be shown", START_BOUND, || {
            Ok(self.one(DB, "SHOW synchronous_standby_names") == names)
        })?;
        for _ in 0..2 {
            self.sql(DB, "CHECKPOINT")?;
        }
        Ok(())
    }

    /// CPU seconds by kind of process since the server started: `walsender`, `client backend`,
    /// `checkpointer` and so on for running processes, `postmaster`, and `exited` for all children
    /// that have ended. Empty while the server is down.
    pub fn cpu_seconds(&self) -> Vec<(String, f64)> {
        self.pid().map(process::server_cpu_seconds).unwrap_or_default()
    }

    /// Stops the server.
    ///
    /// # Errors
    /// When it is not down within a minute (`Smart` waits for clients); it is then killed.
    pub fn stop(&mut self, mode: StopMode) -> Result<()> {
        let Some(server) = self.server.as_mut() else { return Ok(()) };
        let signal = match mode {
            StopMode::Smart => Signal::TERM,
            StopMode::Fast => Signal::INT,
            StopMode::Immediate => Signal::QUIT,
        };
        process::signal(server.id(), signal);
        if process::wait(server, STOP_BOUND)?.is_none() {
            self.kill9();
            bail!("the server on port {} did not stop ({mode:?}) within {STOP_BOUND:?}", self.port);
        }
        self.server = None;
        Ok(())
    }

    /// Kills postmaster and children with SIGKILL, and returns when none of them runs any more.
    pub fn kill9(&mut self) {
        let Some(mut server) = self.server.take() else { return };
        // Stopped first, so that it starts no child behind our back.
        process::signal(server.id(), Signal::STOP);
        let children = process::children(server.id());
        process::signal(server.id(), Signal::KILL);
        for &child in &children {
            process::signal(child, Signal::KILL);
        }
        let _ = server.wait();
        let deadline = Instant::now() + Duration::from_secs(10);
        let running = |&pid: &u32| process::Stat::of(pid).is_some_and(|stat| stat.is_running());
        while children.iter().any(running) && Instant::now() < deadline {
            // Between two looks at a condition that has a bound.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops the server and starts it on the same port.
    ///
    /// # Errors
    /// As [`Cluster::stop`] and [`Cluster::start_again`].
    pub fn restart(&mut self, mode: StopMode) -> Result<()> {
        self.stop(mode)?;
        self.start_again()
    }

    /// Sets the server's environment from its next start on.
    pub fn set_environment(&mut self, environment: &[(&str, &str)]) {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        self.environment = environment.iter().map(owned).collect();
    }

    /// Sets the server's clock, which [`Builder::own_clock`] gave it, this far ahead of the clock
    /// of this machine. The clock is to go forward only, so no call takes less than the one before
    /// it.
    ///
    /// # Panics
    /// When the server has no clock of its own.
    pub fn set_clock_ahead(&self, ahead: Duration) {
        let clock = self.clock.as_ref().expect("a server with a clock of its own");
        clock.set_ahead(ahead).unwrap_or_else(|error| panic!("{error:#}"));
    }

    /// Starts a server that is down, on the same port, and returns when it accepts connections.
    ///
    /// # Errors
    /// When it does not start; the end of its log is part of the error.
    pub fn start_again(&mut self) -> Result<()> {
        if self.server.is_some() {
            return Ok(());
        }
        let log = File::options().create(true).append(true).open(self.log_path())?;
        // SIGQUIT, the immediate stop: a killed postmaster would leave it to each child to notice.
        let mut command = self.user.command(&self.program, "QUIT");
        command.arg("-D").arg(self.data_dir()).arg("-p").arg(self.port.to_string());
        command.current_dir("/").stdin(std::process::Stdio::null()).stdout(log.try_clone()?).stderr(log);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
            command.env_remove(name);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.envs(self.clock.iter().flat_map(Clock::environment));
        self.server = Some(process::spawn(command)?);
        if let Err(error) = self.wait_ready() {
            self.kill9();
            return Err(error.context(format!("PostgreSQL {}:\n{}", self.major, self.log_end())));
        }
        Ok(())
    }

    /// Waits until the server reports that it is ready, in the last line of `postmaster.pid`.
    fn wait_ready(&mut self) -> Result<()> {
        let file = self.data_dir().join("postmaster.pid");
        let server = self.server.as_mut().expect("just started");
        let mut patience = Patience::new(START_BOUND);
        while !patience.is_over() {
            if let Some(status) = server.try_wait()? {
                bail!("the server ended with {status}");
            }
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            if lines.first() == Some(&server.id().to_string().as_str())
                && matches!(lines.get(7), Some(&("ready" | "standby")))
            {
                return Ok(());
            }
            // Between two looks at a condition that has a bound.
            std::thread::sleep(Duration::from_millis(3));
        }
        bail!("the server was not ready within {START_BOUND:?}")
    }

    fn configure(&self, builder: &Builder) -> Result<()> {
        use std::io::Write;
        let quoted = |value: &str| value.replace('\'', "''");
        let mut conf = File::options().append(true).open(self.data_dir().join("postgresql.conf"))?;
        for (name, value) in SETTINGS {
            writeln!(conf, "{name} = '{value}'")?;
        }
        writeln!(conf, "unix_socket_directories = '{}'", quoted(&self.socket_dir().display().to_string()))?;
        for (name, value) in &builder.settings {
            writeln!(conf, "{name} = '{}'", quoted(value))?;
        }
        if let Some(hba) = &builder.hba {
            std::fs::write(self.data_dir().join("pg_hba.conf"), hba)?;
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of PostgreSQL {} on port {}:\n{}", self.major, self.port, self.log_end());
        }
        if let Some(server) = self.server.as_mut() {
            process::signal(server.id(), Signal::QUIT);
            if matches!(process::wait(server, Duration::from_secs(6)), Ok(Some(_))) {
                self.server = None;
            }
        }
        self.kill9();
        if std::env::var_os("PGSLUICE_TEST_KEEP").is_some() {
            eprintln!("kept: {}", self.dir.display());
        } else {
            remove(&self.dir);
        }
    }
}

fn remove(dir: &Path) {
    let _ = std::fs::remove_dir_all(dir);
    let _ = std::fs::remove_file(lock_path(dir));
}

fn lock_path(dir: &Path) -> PathBuf {
    dir.with_extension("lock")
}

/// A port nobody listens on at this moment.
fn free_port() -> u16 {
    loop {
        let port = rand::rng().random_range(PORTS);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Makes a directory for a cluster where `user` can enter it, and locks it as ours.
fn new_directory(user: ServerUser) -> Result<(PathBuf, File)> {
    let places = [std::env::temp_dir(), PathBuf::from("/tmp"), PathBuf::from("/var/tmp")];
    let place = places.into_iter().find(|place| place.is_dir() && user.can_enter(place));
    let place = place.with_context(|| format!("uid {} can enter no temporary directory", user.uid))?;
    static SWEEP: Once = Once::new();
    SWEEP.call_once(|| sweep(&place));
    let name = format!("{PREFIX}{}-{:08x}", std::process::id(), rand::rng().random::<u32>());
    let dir = place.join(name);
    let lock = crate::server::lock(&lock_path(&dir))?;
    for step in [dir.clone(), dir.join("s")] {
        std::fs::create_dir(&step).with_context(|| format!("creating {}", step.display()))?;
        std::fs::set_permissions(&step, std::fs::Permissions::from_mode(0o755))?;
        user.take(&step)?;
    }
    Ok((dir, lock))
}

/// Removes the directories in `place` that killed processes left: their locks are free.
fn sweep(place: &Path) {
    let Ok(entries) = std::fs::read_dir(place) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.starts_with(PREFIX) || !name.ends_with(".lock") {
            continue;
        }
        let Ok(file) = File::options().append(true).open(&path) else { continue };
        if file.try_lock().is_ok() {
            remove(&path.with_extension(""));
        }
    }
}
