//! Receivers that only drain: each reads a slot's stream, confirms what it has received, and keeps
//! counts and a hash of it. The same receiver reads from a server and from the relay.
//!
//! ```text
//! connect --> START_REPLICATION accepted --> Read <--hold, go_on--> Hold
//!    ^                                        | '--finish--> Receipt
//!    '-------------connection lost------------'
//! ```
//! A receiver that loses its connection comes back, as a subscriber does. It passes over
//! transactions that it has already, and the caller sees how often that happened.
//!
//! A *mark* is a row of its own table. A receiver notes when the transaction of a mark has ended.
//! So a mark that was written last proves that everything before it has come.
//!
//! Two receipts are compared without positions, times and transaction numbers, so that runs at
//! different times can be compared. Descriptions of tables and types may be repeated and do not
//! count.

use std::hash::Hasher as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use base::{Lsn, PgTimestamp};
use client::{ConnInfo, Pauses, Replication, Wire};
use proto::frame::Frame;
use proto::replication::{PgoutputOptions, StandbyStatus, WalsenderMessage};
use rustc_hash::FxHasher;
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// The number of a mark; marks ascend.
pub(crate) type Mark = u32;

/// From one report of the position to the next.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// How often one receiver may lose its connection.
const RECONNECTIONS_MAX: u32 = 100;
/// Between two attempts to come back, and how long they may go on.
const RETRY: Duration = Duration::from_millis(100);
const RETRIES_MAX: Duration = Duration::from_secs(60);
/// Longest time for a connection to begin its stream, and to end it.
const STEP_MAX: Duration = Duration::from_secs(120);
/// Between two looks at what the receivers have.
const LOOK: Duration = Duration::from_millis(2);
const NAME: &str = "bench drain";
/// CopyData.
const DATA: u8 = b'd';
/// Bytes of an Insert before its first value: tags of message, row and value, the relation, the
/// number of columns, and the value's length.
const FIRST_VALUE: usize = 13;

/// How a stream is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading<'a> {
    pub(crate) publication: &'a str,
    /// The OID of the table of marks.
    pub(crate) mark_table: u32,
    /// Values come in binary form.
    pub(crate) binary: bool,
    /// Takes each message as it comes, where the time of receiving counts. Otherwise it reads
    /// rarely and much at a time, which costs a walsender least.
    pub(crate) prompt: bool,
}

/// What a receiver got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Receipt {
    /// Without descriptions.
    pub(crate) messages: u64,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    pub(crate) hash: u64,
    /// The end of the last transaction.
    pub(crate) end: Lsn,
}

impl Receipt {
    /// Whether the content is the same, at whatever position.
    pub(crate) fn is_alike(&self, other: &Receipt) -> bool {
        Receipt { end: other.end, ..*self } == *other
    }
}

/// Receivers that run in threads of this process.
pub(crate) struct Receivers {
    runtime: Runtime,
    receivers: Vec<Receiver>,
    /// When the first stream was accepted.
    pub(crate) started: Instant,
}

struct Receiver {
    slot: String,
    seen: Arc<Seen>,
    order: watch::Sender<Order>,
    task: JoinHandle<Result<Receipt>>,
}

/// What others see of a receiver.
#[derive(Debug, Default)]
struct Seen {
    /// When each mark was received.
    marks: Mutex<Vec<(Mark, Instant)>>,
    reconnections: AtomicU32,
}

impl Seen {
    fn marks(&self) -> MutexGuard<'_, Vec<(Mark, Instant)>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Read,
    Hold,
    Finish,
}

/// Creates logical slots at `url`.
pub(crate) fn create_slots(url: &str, slots: &[String]) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut wire = connect(url).await?;
        for slot in slots {
            // The old syntax, which every major understands.
            let command = format!("CREATE_REPLICATION_SLOT {slot} LOGICAL pgoutput NOEXPORT_SNAPSHOT");
            wire.query(&command).await.with_context(|| format!("creating slot {slot}"))?;
        }
        wire.close().await;
        Ok(())
    })
}

async fn connect(url: &str) -> Result<Wire> {
    let info = ConnInfo::parse(url)?;
    let connecting = Wire::connect(&info, NAME, Replication::Database, &[]);
    Ok(tokio::time::timeout(STEP_MAX, connecting)
        .await
        .context("a replication connection does not begin")??)
}

impl Receivers {
    /// Connects a receiver for each slot, and then starts all streams at once.
    pub(crate) fn start(url: &str, slots: &[String], reading: Reading<'_>) -> Result<Receivers> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let (receivers, started) = runtime.block_on(async {
            let mut wires = Vec::new();
            for slot in slots {
                wires.push(connect(url).await.with_context(|| format!("connecting for slot {slot}"))?);
            }
            let (mut receivers, mut accepted) = (Vec::new(), Vec::new());
            for (slot, wire) in slots.iter().zip(wires) {
                let (receiver, started) = Receiver::start(url, slot, wire, reading);
                receivers.push(receiver);
                accepted.push(started);
            }
            let mut first: Option<Instant> = None;
            for (receiver, accepted) in receivers.iter_mut().zip(accepted) {
                let accepted = tokio::time::timeout(STEP_MAX, accepted).await;
                let accepted = accepted.with_context(|| format!("slot {} does not start", receiver.slot))?;
                match accepted {
                    Ok(at) => first = Some(first.map_or(at, |first| first.min(at))),
                    // The task has ended, and says why.
                    Err(_) => return Err(receiver.ended().await),
                }
            }
            Ok((receivers, first.unwrap_or_else(Instant::now)))
        })?;
        Ok(Receivers { runtime, receivers, started })
    }

    /// Waits until the receivers with these numbers have a mark. Returns when the last one had it.
    pub(crate) fn wait(
        &mut self,
        numbers: std::ops::Range<usize>,
        mark: Mark,
        bound: Duration,
    ) -> Result<Instant> {
        let begun = Instant::now();
        loop {
            let of = |receiver: &Receiver| receiver.when(mark);
            let times: Option<Vec<Instant>> = self.receivers[numbers.clone()].iter().map(of).collect();
            if let Some(last) = times.and_then(|times| times.into_iter().max()) {
                return Ok(last);
            }
            if let Some(ended) = self.receivers.iter_mut().find(|receiver| receiver.task.is_finished()) {
                return Err(self.runtime.block_on(ended.ended()));
            }
            ensure!(begun.elapsed() < bound, "mark {mark} has not come to all receivers within {bound:?}");
            std::thread::sleep(LOOK);
        }
    }

    /// Waits for a mark at all receivers.
    pub(crate) fn wait_for_all(&mut self, mark: Mark, bound: Duration) -> Result<Instant> {
        self.wait(0..self.receivers.len(), mark, bound)
    }

    /// Makes one stop reading, as a subscriber that hangs.
    pub(crate) fn hold(&self, number: usize) {
        self.receivers[number].order.send_replace(Order::Hold);
    }

    /// Makes it read again.
    pub(crate) fn go_on(&self, number: usize) {
        self.receivers[number].order.send_replace(Order::Read);
    }

    /// When one of them had each mark.
    pub(crate) fn marks(&self, number: usize) -> Vec<(Mark, Instant)> {
        self.receivers[number].seen.marks().clone()
    }

    /// How often connections were lost.
    pub(crate) fn reconnections(&self) -> u32 {
        self.receivers.iter().map(|receiver| receiver.seen.reconnections.load(Ordering::Relaxed)).sum()
    }

    /// Ends all streams in order, and returns what each receiver got.
    pub(crate) fn finish(self) -> Result<Vec<Receipt>> {
        for receiver in &self.receivers {
            receiver.order.send_replace(Order::Finish);
        }
        let receivers = self.receivers;
        self.runtime.block_on(async {
            let mut receipts = Vec::new();
            for receiver in receivers {
                let Receiver { slot, task, order, .. } = receiver;
                let ended = tokio::time::timeout(STEP_MAX, task).await;
                let ended = ended.with_context(|| format!("the stream of slot {slot} does not end"))??;
                receipts.push(ended.with_context(|| format!("slot {slot}"))?);
                drop(order);
            }
            Ok(receipts)
        })
    }
}

impl Receiver {
    /// Also returns what tells when the stream was accepted.
    fn start(
        url: &str,
        slot: &str,
        wire: Wire,
        reading: Reading<'_>,
    ) -> (Receiver, oneshot::Receiver<Instant>) {
        let options = PgoutputOptions {
            publications: vec![reading.publication.to_owned()],
            binary: reading.binary,
            streaming: false,
            origin_none: false,
        };
        let command = options.start_replication(slot, Lsn::INVALID, wire.version());
        let (order, orders) = watch::channel(Order::Read);
        let (accepted, at) = oneshot::channel();
        let seen: Arc<Seen> = Arc::default();
        let drain = Drain {
            wire,
            url: url.to_owned(),
            command,
            prompt: reading.prompt,
            intake: Intake { mark_table: reading.mark_table, ..Intake::default() },
            seen: Arc::clone(&seen),
            pauses: None,
            taken: 0,
            wants_status: false,
        };
        let task = tokio::spawn(drain.run(orders, accepted));
        (Receiver { slot: slot.to_owned(), seen, order, task }, at)
    }

    /// When a mark, or a later one, had come.
    fn when(&self, mark: Mark) -> Option<Instant> {
        let marks = self.seen.marks();
        let number = marks.partition_point(|(known, _)| *known < mark);
        marks.get(number).map(|(_, at)| *at)
    }

    /// Why it ended, though nobody told it to.
    async fn ended(&mut self) -> anyhow::Error {
        let why = match (&mut self.task).await {
            Ok(Err(error)) => error,
            Ok(Ok(_)) => anyhow!("it was told to end"),
            Err(error) => error.into(),
        };
        why.context(format!("the receiver of slot {} has ended", self.slot))
    }
}

/// One stream, over one connection after the other.
struct Drain {
    wire: Wire,
    url: String,
    command: String,
    prompt: bool,
    intake: Intake,
    seen: Arc<Seen>,
    pauses: Option<Pauses>,
    /// Bytes since the last time that nothing more was there.
    taken: usize,
    wants_status: bool,
}

impl Drain {
    async fn run(
        mut self,
        mut orders: watch::Receiver<Order>,
        accepted: oneshot::Sender<Instant>,
    ) -> Result<Receipt> {
        self.begin().await?;
        let _ = accepted.send(Instant::now());
        while let Err(error) = self.stream(&mut orders).await {
            if !error.is::<client::Error>()
                || self.seen.reconnections.fetch_add(1, Ordering::Relaxed) >= RECONNECTIONS_MAX
            {
                return Err(error);
            }
            eprintln!("bench: a receiver comes back: {error:#}");
            self.come_back().await?;
        }
        self.wire.copy_both_finish().await?;
        self.wire.close().await;
        Ok(self.intake.receipt())
    }

    /// Starts the stream where the slot stands.
    async fn begin(&mut self) -> Result<()> {
        // A question for the round trip would make the relay open a session at the publisher.
        self.pauses = (!self.prompt && self.wire.keep_receive_buffer_small()).then(Pauses::default);
        Ok(self.wire.copy_both(&self.command).await?)
    }

    /// Connects again. The slot may still be in use for a moment.
    async fn come_back(&mut self) -> Result<()> {
        self.intake.is_cut_off();
        let begun = Instant::now();
        loop {
            let again = async {
                self.wire = connect(&self.url).await?;
                self.begin().await
            };
            match again.await {
                Err(_) if begun.elapsed() < RETRIES_MAX => tokio::time::sleep(RETRY).await,
                done => return done,
            }
        }
    }

    /// Reads until it is told to finish.
    async fn stream(&mut self, orders: &mut watch::Receiver<Order>) -> Result<()> {
        let mut ticks = tokio::time::interval(STATUS_INTERVAL);
        loop {
            while let Some(frame) = self.wire.buffered_frame()? {
                self.take(frame)?;
            }
            if std::mem::take(&mut self.wants_status) {
                self.report().await?;
            }
            let order = *orders.borrow_and_update();
            match order {
                Order::Finish => return self.report().await,
                Order::Hold => {
                    orders.changed().await?;
                    continue;
                }
                Order::Read => {}
            }
            let taken = std::mem::take(&mut self.taken);
            if let Some(pause) = self.pauses.as_mut().and_then(|pauses| pauses.after(taken)) {
                tokio::time::sleep(pause).await;
            }
            tokio::select! {
                frame = self.wire.read_frame() => self.take(frame?)?,
                _ = ticks.tick() => self.wants_status = true,
                changed = orders.changed() => changed?,
            }
        }
    }

    fn take(&mut self, frame: Frame) -> Result<()> {
        ensure!(frame.tag == DATA, "message '{}' in a stream", frame.tag.escape_ascii());
        self.taken += frame.body.len();
        match WalsenderMessage::decode(frame.body)? {
            WalsenderMessage::XLogData { data, .. } => {
                if let Some(mark) = self.intake.take(&data)? {
                    self.seen.marks().push((mark, Instant::now()));
                }
            }
            WalsenderMessage::Keepalive { wal_end, reply_requested, .. } => {
                self.intake.came_to(wal_end);
                self.wants_status |= reply_requested;
            }
        }
        Ok(())
    }

    /// Confirms everything that has come.
    async fn report(&mut self) -> Result<()> {
        let at = self.intake.position;
        let status = StandbyStatus {
            written: at,
            flushed: at,
            applied: at,
            at: PgTimestamp::now(),
            reply_requested: false,
        };
        Ok(self.wire.send_copy_data(&status.encode()).await?)
    }
}

/// Takes in messages of pgoutput.
#[derive(Default)]
struct Intake {
    mark_table: u32,
    receipt: Receipt,
    hasher: FxHasher,
    transaction: Transaction,
    /// Both as they were before the open transaction.
    before: (Receipt, FxHasher),
    /// Of the open transaction.
    mark: Option<Mark>,
    /// Everything before has come.
    position: Lsn,
}

/// What the messages belong to that come now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Transaction {
    #[default]
    None,
    Open,
    /// One that had come before the connection was lost.
    Known,
}

impl Intake {
    /// Takes a message. Returns the mark of a transaction that it ends.
    fn take(&mut self, data: &[u8]) -> Result<Option<Mark>> {
        let Some(&tag) = data.first() else { bail!("an empty message of pgoutput") };
        match tag {
            b'R' | b'Y' => return Ok(None),
            b'B' => {
                // The position of the commit.
                let is_known = lsn(data, 1)? < self.receipt.end;
                self.transaction = if is_known { Transaction::Known } else { Transaction::Open };
                self.before = (self.receipt, self.hasher.clone());
                self.hash(&[tag]);
            }
            b'C' => {
                // Flags, the position of the commit, and its end.
                let end = lsn(data, 10)?;
                self.hash(&[tag]);
                self.receipt.end = self.receipt.end.max(end);
                let is_known = std::mem::take(&mut self.transaction) == Transaction::Known;
                self.came_to(end);
                if is_known {
                    (self.receipt, self.hasher) = self.before.clone();
                    self.mark = None;
                    return Ok(None);
                }
            }
            b'I' | b'U' | b'D' | b'T' => {
                self.hash(data);
                self.receipt.rows += u64::from(tag != b'T');
                if tag == b'I' && data.get(1..5) == Some(&self.mark_table.to_be_bytes()) {
                    self.mark = Some(mark(data).context("a mark that is cut short")?);
                }
            }
            other => bail!("message '{}' of pgoutput", other.escape_ascii()),
        }
        self.receipt.messages += 1;
        self.receipt.bytes += data.len() as u64;
        Ok(if self.transaction == Transaction::None { self.mark.take() } else { None })
    }

    fn hash(&mut self, bytes: &[u8]) {
        self.hasher.write(bytes);
    }

    /// Forgets the open transaction, which will come again.
    fn is_cut_off(&mut self) {
        if std::mem::take(&mut self.transaction) != Transaction::None {
            (self.receipt, self.hasher) = self.before.clone();
        }
        self.mark = None;
    }

    /// Says that everything before `lsn` has been sent, which counts between transactions only.
    fn came_to(&mut self, lsn: Lsn) {
        if self.transaction == Transaction::None {
            self.position = self.position.max(lsn);
        }
    }

    fn receipt(&self) -> Receipt {
        Receipt { hash: self.hasher.finish(), ..self.receipt }
    }
}

/// The position in a message of pgoutput.
fn lsn(message: &[u8], at: usize) -> Result<Lsn> {
    let bytes = message.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    Ok(Lsn::new(u64::from_be_bytes(bytes.context("a message of pgoutput that is cut short")?)))
}

/// The number in an Insert of a mark.
fn mark(insert: &[u8]) -> Option<Mark> {
    let value = insert.get(FIRST_VALUE..)?;
    match insert.get(FIRST_VALUE - 5)? {
        b'b' => Some(u32::from_be_bytes(value.try_into().ok()?)),
        _ => std::str::from_utf8(value).ok()?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: u32 = 16_400;

    fn intake() -> Intake {
        Intake { mark_table: MARKS, ..Intake::default() }
    }

    fn insert(table: u32, kind: u8, value: &[u8]) -> Vec<u8> {
        let size = u32::try_from(value.len()).unwrap().to_be_bytes();
        [&b"I"[..], &table.to_be_bytes(), b"N\0\x01", &[kind], &size, value].concat()
    }

    fn begin(commit: u64) -> Vec<u8> {
        [&b"B"[..], &commit.to_be_bytes(), &[0; 12]].concat()
    }

    fn commit(end: u64) -> Vec<u8> {
        [&b"C\0"[..], &[0; 8], &end.to_be_bytes(), &[0; 8]].concat()
    }

    fn all(messages: &[Vec<u8>]) -> (Receipt, Vec<Option<Mark>>) {
        let mut intake = intake();
        let marks = messages.iter().map(|message| intake.take(message).unwrap()).collect();
        (intake.receipt(), marks)
    }

    #[test]
    fn a_mark_has_come_when_its_transaction_has_ended() {
        let messages = [begin(8), insert(MARKS, b't', b"70"), commit(9)];
        assert_eq!(all(&messages).1, [None, None, Some(70)]);
        let messages = [begin(8), insert(MARKS, b'b', &70_u32.to_be_bytes()), commit(9)];
        assert_eq!(all(&messages).1, [None, None, Some(70)]);
        assert_eq!(all(&[begin(8), insert(5, b't', b"70"), commit(9)]).1, [None; 3]);
    }

    #[test]
    fn content_is_alike_whatever_its_position_and_descriptions() {
        let one = all(&[begin(8), insert(5, b't', b"a"), commit(9)]).0;
        let other = all(&[b"R".to_vec(), begin(9), b"R".to_vec(), insert(5, b't', b"a"), commit(10)]).0;
        assert!(one.is_alike(&other) && one != other, "{one:?} {other:?}");
        assert_eq!((one.messages, one.rows, one.end), (3, 1, Lsn::new(9)));
        let third = all(&[begin(8), insert(5, b't', b"b"), commit(9)]).0;
        assert!(!one.is_alike(&third));
    }

    #[test]
    fn what_comes_again_after_a_lost_connection_does_not_count_twice() {
        let rows = |end: u64, row: &[u8]| [begin(end - 1), insert(5, b't', row), commit(end)];
        let whole = all(&[rows(9, b"a"), rows(12, b"b"), rows(15, b"c")].concat()).0;
        let mut intake = intake();
        for message in [rows(9, b"a"), rows(12, b"b")].concat().iter().chain(&rows(15, b"c")[..2]) {
            intake.take(message).unwrap();
        }
        intake.is_cut_off();
        for message in &[rows(12, b"b"), rows(15, b"c")].concat() {
            intake.take(message).unwrap();
        }
        assert_eq!(intake.receipt(), whole);
    }

    #[test]
    fn a_keepalive_in_the_middle_of_a_transaction_confirms_nothing() {
        let mut intake = intake();
        intake.came_to(Lsn::new(5));
        intake.take(&begin(10)).unwrap();
        intake.came_to(Lsn::new(9));
        assert_eq!(intake.position, Lsn::new(5));
        intake.take(&commit(12)).unwrap();
        assert_eq!(intake.position, Lsn::new(12));
        assert!(intake.take(b"").is_err() && intake.take(b"S").is_err());
    }
}
