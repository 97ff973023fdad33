//! What `CREATE_REPLICATION_SLOT` asks for: its options, and the slot's name.
//!
//! Source: `parseCreateReplSlotOptions` in `walsender.c`, `ReplicationSlotValidateName` in
//! `slot.c`.

use proto::command::{CommandOption, CreateSlot};

use crate::told::{Told, code};

/// `NAMEDATALEN`
const NAME_SIZE: usize = 64;
/// The major from which on options stand in parentheses.
const PARENTHESES_SINCE: u32 = 15;
const TWO_PHASE_SINCE: u32 = 15;
const FAILOVER_SINCE: u32 = 17;
const RESERVED_SINCE: u32 = 19;
/// `CONFLICT_DETECTION_SLOT`
const RESERVED: &str = "pg_conflict_detection";

/// What happens with the snapshot of a slot's consistent point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotWish {
    /// It is exported, until the next command.
    Export,
    /// The transaction uses it.
    Use,
    /// Nothing.
    Nothing,
}

impl SnapshotWish {
    /// As an option of `CREATE_REPLICATION_SLOT` at a publisher of `major`.
    pub(crate) fn words(self, major: u32) -> &'static str {
        match (self, major >= PARENTHESES_SINCE) {
            (SnapshotWish::Export, true) => "(SNAPSHOT 'export')",
            (SnapshotWish::Export, false) => "EXPORT_SNAPSHOT",
            (SnapshotWish::Use, true) => "(SNAPSHOT 'use')",
            (SnapshotWish::Use, false) => "USE_SNAPSHOT",
            (SnapshotWish::Nothing, true) => "(SNAPSHOT 'nothing')",
            (SnapshotWish::Nothing, false) => "NOEXPORT_SNAPSHOT",
        }
    }
}

/// The options of a logical slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotOptions {
    /// See [`SnapshotWish`].
    pub snapshot: SnapshotWish,
    /// Prepared transactions are sent when they are prepared.
    pub two_phase: bool,
    /// Standbys keep a copy of the slot.
    pub failover: bool,
}

impl SlotOptions {
    /// Reads the options of a logical slot as a server of `major` does.
    ///
    /// # Errors
    /// An option is unknown, contradicts another, or has no fitting value.
    pub fn read(create: &CreateSlot, major: u32) -> Result<SlotOptions, Told> {
        SlotOptions::check_grammar(create, major)?;
        let (mut snapshot, mut two_phase, mut failover) = (None, None, None);
        for option in &create.options {
            match option.name.as_str() {
                "snapshot" => once(&mut snapshot, snapshot_wish(option)?)?,
                "two_phase" => once(&mut two_phase, boolean(option)?)?,
                "failover" if major >= FAILOVER_SINCE => once(&mut failover, boolean(option)?)?,
                "reserve_wal" => return Err(Told::redundant()),
                other => {
                    return Err(Told::new(code::INTERNAL_ERROR, format!("unrecognized option: {other}")));
                }
            }
        }
        Ok(SlotOptions {
            snapshot: snapshot.unwrap_or(SnapshotWish::Export),
            two_phase: two_phase.unwrap_or(false),
            failover: failover.unwrap_or(false),
        })
    }

    /// Whether the grammar of `major` has what the command says.
    ///
    /// # Errors
    /// It has not.
    pub fn check_grammar(create: &CreateSlot, major: u32) -> Result<(), Told> {
        let is_two_phase = |option: &CommandOption| option.name == "two_phase";
        let is_newer = (create.in_parentheses && major < PARENTHESES_SINCE)
            || (major < TWO_PHASE_SINCE && create.options.iter().any(is_two_phase));
        if is_newer { Err(Told::new(code::SYNTAX_ERROR, "syntax error")) } else { Ok(()) }
    }
}

/// Stores an option that may be given once.
pub(crate) fn once<T>(place: &mut Option<T>, value: T) -> Result<(), Told> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(Told::redundant()),
    }
}

pub(crate) fn boolean(option: &CommandOption) -> Result<bool, Told> {
    option.boolean().map_err(|error| Told::new(code::SYNTAX_ERROR, error.to_string()))
}

fn snapshot_wish(option: &CommandOption) -> Result<SnapshotWish, Told> {
    match option.value.as_deref() {
        Some("export") => Ok(SnapshotWish::Export),
        Some("use") => Ok(SnapshotWish::Use),
        Some("nothing") => Ok(SnapshotWish::Nothing),
        Some(other) => {
            let message = format!(
                "unrecognized value for CREATE_REPLICATION_SLOT option \"{}\": \"{other}\"",
                option.name
            );
            Err(Told::new(code::INVALID_PARAMETER_VALUE, message))
        }
        None => Err(Told::new(code::SYNTAX_ERROR, format!("{} requires a parameter", option.name))),
    }
}

/// Whether a slot may have this name.
///
/// # Errors
/// It may not.
pub fn check_name(name: &str, major: u32) -> Result<(), Told> {
    let refused = |code, why: &str| Err(Told::new(code, format!("replication slot name \"{name}\" {why}")));
    if name.is_empty() {
        return refused(code::INVALID_NAME, "is too short");
    }
    if name.len() >= NAME_SIZE {
        return refused(code::NAME_TOO_LONG, "is too long");
    }
    if !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_') {
        let hint = "Replication slot names may only contain lower case letters, numbers, and the underscore character.";
        return refused(code::INVALID_NAME, "contains invalid character")
            .map_err(|told: Told| told.hint(hint));
    }
    if major >= RESERVED_SINCE && name == RESERVED {
        let detail = format!("The name \"{RESERVED}\" is reserved for the conflict detection slot.");
        return Err(Told::new(code::RESERVED_NAME, format!("replication slot name \"{name}\" is reserved"))
            .detail(detail));
    }
    Ok(())
}
