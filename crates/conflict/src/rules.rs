//! Which resolution a subscription uses, for each type of conflict and each table.

use std::collections::BTreeMap;
use std::fmt;

use crate::{ConflictType, Illegal, Resolution, UnknownName};

type ByType = [Option<Resolution>; ConflictType::ALL.len()];

/// The resolutions of one subscription. What is not set is as in native apply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    general: ByType,
    /// By schema and name. A type that is not set here falls back to the general rule.
    tables: BTreeMap<(String, String), ByType>,
}

/// A rule that cannot be read or has no meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleError {
    rule: String,
    why: Why,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Why {
    NoEqualsSign,
    NoSchema,
    Name(UnknownName),
    Illegal(Illegal),
    NoDeletionMemory,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conflict rule \"{}\": ", self.rule)?;
        match &self.why {
            Why::NoEqualsSign => f.write_str("write it as TYPE=RESOLUTION or SCHEMA.TABLE:TYPE=RESOLUTION"),
            Why::NoSchema => f.write_str("write the table with its schema, as SCHEMA.TABLE:TYPE=RESOLUTION"),
            Why::Name(error) => error.fmt(f),
            Why::Illegal(error) => error.fmt(f),
            Why::NoDeletionMemory => f.write_str(
                "pgsluice does not remember deletions yet, so such an update is update_missing; write a rule for that \
                 type",
            ),
        }
    }
}

impl std::error::Error for RuleError {}

impl Rules {
    /// Reads rules, each `TYPE=RESOLUTION` or, for one table, `SCHEMA.TABLE:TYPE=RESOLUTION`.
    ///
    /// # Errors
    /// A rule cannot be read, or its resolution has no meaning for its type.
    pub fn read<'r>(rules: impl IntoIterator<Item = &'r str>) -> Result<Rules, RuleError> {
        let mut read = Rules::default();
        for rule in rules {
            let rule = rule.trim();
            read.add(rule).map_err(|why| RuleError { rule: rule.to_owned(), why })?;
        }
        Ok(read)
    }

    fn add(&mut self, rule: &str) -> Result<(), Why> {
        let (rest, resolution) = rule.rsplit_once('=').ok_or(Why::NoEqualsSign)?;
        let (table, kind) = match rest.rsplit_once(':') {
            Some((table, kind)) => (Some(table.split_once('.').ok_or(Why::NoSchema)?), kind),
            None => (None, rest),
        };
        let kind: ConflictType = kind.trim().parse().map_err(Why::Name)?;
        let resolution: Resolution = resolution.trim().parse().map_err(Why::Name)?;
        if kind == ConflictType::UpdateDeleted {
            return Err(Why::NoDeletionMemory);
        }
        match table {
            Some(table) => self.set_for(table, kind, resolution),
            None => self.set(kind, resolution),
        }
        .map_err(Why::Illegal)
    }

    /// Sets the resolution of one type for all tables that have no rule of their own.
    pub fn set(&mut self, kind: ConflictType, resolution: Resolution) -> Result<(), Illegal> {
        kind.allows(resolution)?;
        self.general[kind as usize] = Some(resolution);
        Ok(())
    }

    /// Sets the resolution of one type for one table.
    pub fn set_for(
        &mut self,
        (schema, table): (&str, &str),
        kind: ConflictType,
        resolution: Resolution,
    ) -> Result<(), Illegal> {
        kind.allows(resolution)?;
        let of_table = self.tables.entry((schema.to_owned(), table.to_owned())).or_default();
        of_table[kind as usize] = Some(resolution);
        Ok(())
    }

    /// The resolutions for one table.
    #[must_use]
    pub fn of(&self, schema: &str, table: &str) -> TableRules {
        let own = self.tables.get(&(schema.to_owned(), table.to_owned())).copied().unwrap_or_default();
        let chosen = |kind: ConflictType| {
            own[kind as usize].or(self.general[kind as usize]).unwrap_or_else(|| kind.native())
        };
        TableRules(ConflictType::ALL.map(chosen))
    }

    /// Every rule that was set: the table, or `None` for all of them, its type and its resolution.
    pub fn iter(&self) -> impl Iterator<Item = (Option<(&str, &str)>, ConflictType, Resolution)> {
        let named = self.tables.iter().map(|((schema, table), of)| (Some((&**schema, &**table)), of));
        std::iter::once((None, &self.general)).chain(named).flat_map(|(table, of)| {
            let set = ConflictType::ALL.into_iter().filter_map(|kind| Some((kind, of[kind as usize]?)));
            set.map(move |(kind, resolution)| (table, kind, resolution))
        })
    }

    /// The first rule that holds only where the target keeps commit times and origins
    /// (`track_commit_timestamp`): it compares commit times, or is about rows that another origin
    /// wrote.
    #[must_use]
    pub fn needs_commit_times(&self) -> Option<String> {
        use ConflictType::{DeleteOriginDiffers, UpdateOriginDiffers};
        let needs = |(_, kind, resolution): &(Option<_>, ConflictType, Resolution)| {
            resolution.compares_times() || matches!(kind, UpdateOriginDiffers | DeleteOriginDiffers)
        };
        self.iter().find(needs).map(|(table, kind, resolution)| match table {
            Some((schema, table)) => format!("{schema}.{table}:{kind}={resolution}"),
            None => format!("{kind}={resolution}"),
        })
    }
}

/// The resolution of each type for one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableRules([Resolution; ConflictType::ALL.len()]);

impl Default for TableRules {
    /// As native apply.
    fn default() -> Self {
        TableRules(ConflictType::ALL.map(ConflictType::native))
    }
}

impl TableRules {
    /// The resolution of this type.
    #[must_use]
    pub const fn of(&self, kind: ConflictType) -> Resolution {
        self.0[kind as usize]
    }

    /// Whether a row that violates a unique key is resolved, and not reported as an error.
    #[must_use]
    pub fn resolves_unique(&self) -> bool {
        use ConflictType::{InsertExists, MultipleUniqueConflicts, UpdateExists};
        [InsertExists, UpdateExists, MultipleUniqueConflicts]
            .iter()
            .any(|kind| self.of(*kind) != Resolution::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_falls_back_to_the_general_rule_and_that_to_native() {
        let mut rules = Rules::default();
        rules.set(ConflictType::InsertExists, Resolution::LastUpdateWins).unwrap();
        rules.set(ConflictType::UpdateMissing, Resolution::ApplyRemote).unwrap();
        rules.set_for(("public", "t"), ConflictType::InsertExists, Resolution::KeepLocal).unwrap();
        let (t, other) = (rules.of("public", "t"), rules.of("public", "u"));
        assert_eq!(t.of(ConflictType::InsertExists), Resolution::KeepLocal);
        assert_eq!(t.of(ConflictType::UpdateMissing), Resolution::ApplyRemote);
        assert_eq!(t.of(ConflictType::UpdateExists), Resolution::Error);
        assert_eq!(other.of(ConflictType::InsertExists), Resolution::LastUpdateWins);
        assert_eq!(Rules::default().of("public", "t"), TableRules::default());
        assert_eq!(rules.needs_commit_times().as_deref(), Some("insert_exists=last_update_wins"));
        assert_eq!(Rules::default().needs_commit_times(), None);
    }

    #[test]
    fn a_rule_without_a_meaning_is_refused_and_sets_nothing() {
        let mut rules = Rules::default();
        assert!(rules.set(ConflictType::DeleteMissing, Resolution::LastUpdateWins).is_err());
        assert!(rules.set_for(("s", "t"), ConflictType::UpdateMissing, Resolution::FirstUpdateWins).is_err());
        assert_eq!(rules, Rules::default());
        assert_eq!(rules.iter().count(), 0);
    }

    #[test]
    fn rules_are_read_and_refused_with_the_reason() {
        let rules = Rules::read(["update_missing=apply_remote", " s.t:insert_exists=keep_local "]).unwrap();
        assert_eq!(rules.of("s", "t").of(ConflictType::InsertExists), Resolution::KeepLocal);
        assert_eq!(rules.of("s", "u").of(ConflictType::InsertExists), Resolution::Error);
        assert_eq!(rules.of("s", "u").of(ConflictType::UpdateMissing), Resolution::ApplyRemote);
        let refused = |rule| Rules::read([rule]).unwrap_err().to_string();
        assert!(refused("insert_exists").contains("write it as TYPE=RESOLUTION"));
        assert!(refused("t:insert_exists=skip").contains("with its schema"));
        assert!(refused("exists=skip").contains("\"exists\" is not a conflict type"));
        assert!(refused("insert_exists=newest").contains("\"newest\" is not a conflict resolution"));
        assert!(refused("delete_missing=apply_remote").contains("choose one of error, skip"));
        assert!(refused("update_deleted=skip").contains("does not remember deletions yet"));
    }

    #[test]
    fn rules_are_listed_with_their_tables() {
        let mut rules = Rules::default();
        rules.set_for(("s", "t"), ConflictType::UpdateMissing, Resolution::ApplyRemote).unwrap();
        rules.set(ConflictType::DeleteMissing, Resolution::Error).unwrap();
        let listed: Vec<_> = rules.iter().collect();
        assert_eq!(
            listed,
            [
                (None, ConflictType::DeleteMissing, Resolution::Error),
                (Some(("s", "t")), ConflictType::UpdateMissing, Resolution::ApplyRemote),
            ]
        );
    }
}
