//! A conflict in PostgreSQL's words.

use std::fmt;

use base::{PgTimestamp, Xid};

use crate::{ConflictType, Values};

/// One conflict, worded as PostgreSQL 18 words it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// What kind.
    pub kind: ConflictType,
    /// The target's table, schema-qualified.
    pub relation: String,
    /// The rows of the target that the change met: the holder of each unique key that it violates,
    /// or the row that it would have changed. Empty where there is none.
    pub met: Vec<Met>,
}

/// A row of the target that a change met.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Met {
    /// The unique index that the change violates; `None` for the row that it would have changed.
    pub index: Option<String>,
    /// Who wrote the row last; `None` if nobody looked.
    pub written: Option<Written>,
    /// Key, rows and replica identity; `None` unless the user asked for values.
    pub values: Option<Values>,
}

/// Who wrote a row of the target last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The transaction on the target.
    pub xid: Xid,
    /// By whom and when; `None` where the server does not know, because the commit is older than
    /// its record or `track_commit_timestamp` is off.
    pub commit: Option<Commit>,
}

/// The commit of a row's last writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// Whose transaction it was.
    pub origin: Origin,
    /// The commit time. For a replicated transaction that is its time on the node it came from.
    pub time: PgTimestamp,
    /// The same as the server writes it.
    pub time_text: String,
}

/// Where a transaction came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A session of the target wrote it.
    Local,
    /// A subscription with a replication origin of this name.
    Named(String),
    /// A subscription whose replication origin was dropped.
    Dropped,
}

impl Origin {
    /// The name in the history: the empty string for the target itself.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Origin::Local => "",
            Origin::Named(name) => name,
            Origin::Dropped => "?",
        }
    }
}

impl Written {
    /// The end of a sentence, from `modified` or `deleted` on. `differs` is put before the origin:
    /// two types of conflict say `a different origin`.
    fn tell(&self, f: &mut fmt::Formatter<'_>, verb: &str, differs: &str) -> fmt::Result {
        let Written { xid, commit } = self;
        match commit {
            None => write!(f, "{verb} in transaction {xid}"),
            Some(Commit { origin: Origin::Local, time_text, .. }) => {
                write!(f, "{verb} locally in transaction {xid} at {time_text}")
            }
            Some(Commit { origin: Origin::Named(name), time_text, .. }) => {
                write!(f, "{verb} by {differs}origin \"{name}\" in transaction {xid} at {time_text}")
            }
            Some(Commit { origin: Origin::Dropped, time_text, .. }) => {
                write!(f, "{verb} by a non-existent origin in transaction {xid} at {time_text}")
            }
        }
    }
}

/// The sentence about one row.
struct Sentence<'c>(ConflictType, &'c Met);

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sentence(kind, Met { index, written, values }) = self;
        let (begins, verb) = match kind {
            ConflictType::InsertExists
            | ConflictType::UpdateExists
            | ConflictType::MultipleUniqueConflicts => ("Key already exists in unique index", "modified"),
            ConflictType::UpdateOriginDiffers => ("Updating the row that was", "modified"),
            ConflictType::DeleteOriginDiffers => ("Deleting the row that was", "modified"),
            ConflictType::UpdateDeleted => ("The row to be updated was", "deleted"),
            ConflictType::UpdateMissing => ("Could not find the row to be updated", ""),
            ConflictType::DeleteMissing => ("Could not find the row to be deleted", ""),
        };
        f.write_str(begins)?;
        if let Some(index) = index {
            write!(f, " \"{index}\"")?;
        }
        match (written, verb, index) {
            (_, "", _) => {}
            (Some(written), _, Some(_)) => {
                f.write_str(", ")?;
                written.tell(f, verb, "")?;
            }
            (Some(written), _, None) => {
                f.write_str(" ")?;
                written.tell(f, verb, "a different ")?;
            }
            (None, _, Some(_)) => {}
            (None, "modified", None) => f.write_str(" modified by a different origin")?,
            (None, _, None) => write!(f, " {verb}")?,
        }
        f.write_str(".")?;
        let of_index = index.is_some();
        values.iter().try_for_each(|values| write!(f, " {}.", values.tell(of_index)))
    }
}

impl Conflict {
    /// PostgreSQL's DETAIL: a sentence for each row that the change met.
    #[must_use]
    pub fn detail(&self) -> String {
        let nothing = [Met::default()];
        let met = if self.met.is_empty() { &nothing[..] } else { &self.met };
        let sentences: Vec<String> = met.iter().map(|met| Sentence(self.kind, met).to_string()).collect();
        sentences.join(" ")
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conflict { kind, relation, .. } = self;
        write!(f, "conflict detected on relation \"{relation}\": conflict={kind}: {}", self.detail())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ColumnValues;

    fn by(origin: Option<Origin>) -> Option<Written> {
        let time_text = "2026-01-02 03:04:05.678+00".to_owned();
        let commit = origin.map(|origin| Commit { origin, time: PgTimestamp(0), time_text });
        Some(Written { xid: Xid(744), commit })
    }

    fn detail(kind: ConflictType, index: Option<&str>, written: Option<Written>) -> String {
        let met = vec![Met { index: index.map(str::to_owned), written, values: None }];
        Conflict { kind, relation: "public.t".to_owned(), met }.detail()
    }

    #[test]
    fn violated_keys_are_worded_as_postgresql_words_them() {
        let of = |written| detail(ConflictType::InsertExists, Some("t_pkey"), written);
        let begins = "Key already exists in unique index \"t_pkey\"";
        let at = "in transaction 744 at 2026-01-02 03:04:05.678+00.";
        assert_eq!(of(None), format!("{begins}."));
        assert_eq!(of(by(None)), format!("{begins}, modified in transaction 744."));
        assert_eq!(of(by(Some(Origin::Local))), format!("{begins}, modified locally {at}"));
        assert_eq!(
            of(by(Some(Origin::Named("pg_16389".into())))),
            format!("{begins}, modified by origin \"pg_16389\" {at}")
        );
        assert_eq!(
            of(by(Some(Origin::Dropped))),
            format!("{begins}, modified by a non-existent origin {at}")
        );
    }

    #[test]
    fn rows_of_other_origins_are_worded_as_postgresql_words_them() {
        let at = "in transaction 744 at 2026-01-02 03:04:05.678+00.";
        assert_eq!(
            detail(ConflictType::UpdateOriginDiffers, None, by(Some(Origin::Local))),
            format!("Updating the row that was modified locally {at}")
        );
        assert_eq!(
            detail(ConflictType::DeleteOriginDiffers, None, by(Some(Origin::Named("b".into())))),
            format!("Deleting the row that was modified by a different origin \"b\" {at}")
        );
        assert_eq!(
            detail(ConflictType::UpdateDeleted, None, by(Some(Origin::Local))),
            format!("The row to be updated was deleted locally {at}")
        );
        assert_eq!(detail(ConflictType::UpdateDeleted, None, None), "The row to be updated was deleted.");
        assert_eq!(detail(ConflictType::UpdateMissing, None, None), "Could not find the row to be updated.");
    }

    #[test]
    fn several_keys_have_a_sentence_each() {
        let met = |index: &str| Met { index: Some(index.to_owned()), written: by(None), values: None };
        let key = ColumnValues { columns: vec![("b".to_owned(), Some("2".to_owned()))], whole: false };
        let values = Values { key: Some(key), ..Values::default() };
        let conflict = Conflict {
            kind: ConflictType::MultipleUniqueConflicts,
            relation: "public.t".to_owned(),
            met: vec![met("t_a"), Met { values: Some(values), ..met("t_b") }],
        };
        assert_eq!(
            conflict.to_string(),
            "conflict detected on relation \"public.t\": conflict=multiple_unique_conflicts: Key already exists in \
             unique index \"t_a\", modified in transaction 744. Key already exists in unique index \"t_b\", modified \
             in transaction 744. Key (b)=(2)."
        );
    }

    #[test]
    fn a_row_that_is_not_there_has_one_sentence() {
        let conflict =
            Conflict { kind: ConflictType::DeleteMissing, relation: "public.t".into(), met: Vec::new() };
        assert_eq!(
            conflict.to_string(),
            "conflict detected on relation \"public.t\": conflict=delete_missing: Could not find the row to be \
             deleted."
        );
    }
}
