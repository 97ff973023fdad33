//! One rule for conflicts, as settings write it: `TYPE=RESOLUTION`, or
//! `TYPE=RESOLUTION:SCHEMA.TABLE`.
//!
//! A rule is checked by itself as soon as it is read, so that a message can name the place where it
//! stands. Which of several rules holds for a table is decided by [`conflict::Rules`].

use std::str::FromStr;

use conflict::{ConflictType, Resolution, Rules};

/// A rule that has a meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConflictRule {
    /// Schema and name of the table; `None` for all of them.
    table: Option<(String, String)>,
    kind: ConflictType,
    resolution: Resolution,
}

/// Schema and name of a table that is written `schema.name`.
pub(crate) fn table_name(text: &str) -> Result<(String, String), String> {
    match text.split_once('.') {
        Some((schema, name)) if !schema.is_empty() && !name.is_empty() => {
            Ok((schema.to_owned(), name.to_owned()))
        }
        _ => Err(format!("\"{text}\" is no table: write schema.name, without quotes")),
    }
}

impl FromStr for ConflictRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, rest) =
            text.split_once('=').ok_or("expected TYPE=RESOLUTION, such as insert_exists=apply_remote")?;
        let (resolution, table) = match rest.split_once(':') {
            Some((resolution, table)) => (resolution, Some(table_name(table.trim())?)),
            None => (rest, None),
        };
        let kind: ConflictType =
            kind.trim().parse().map_err(|error: conflict::UnknownName| error.to_string())?;
        let resolution: Resolution =
            resolution.trim().parse().map_err(|error: conflict::UnknownName| error.to_string())?;
        kind.allows(resolution).map_err(|error| error.to_string())?;
        Ok(ConflictRule { table, kind, resolution })
    }
}

/// All rules of a subscription.
///
/// # Errors
/// Two rules for the same type and table differ.
pub(crate) fn rules(given: &[ConflictRule]) -> Result<Rules, String> {
    let mut rules = Rules::default();
    for (position, ConflictRule { table, kind, resolution }) in given.iter().enumerate() {
        let earlier = given[..position].iter().find(|own| own.kind == *kind && own.table == *table);
        if let Some(earlier) = earlier.filter(|own| own.resolution != *resolution) {
            let of = table.as_ref().map(|(schema, name)| format!(" of {schema}.{name}")).unwrap_or_default();
            return Err(format!(
                "conflict gives two resolutions for {kind}{of}, {} and {resolution}: give one of them",
                earlier.resolution
            ));
        }
        let set = match table {
            Some((schema, name)) => rules.set_for((schema, name), *kind, *resolution),
            None => rules.set(*kind, *resolution),
        };
        set.map_err(|error| error.to_string())?;
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        text.parse::<ConflictRule>().unwrap_err()
    }

    #[test]
    fn rules_hold_for_all_tables_or_for_one() {
        let given =
            ["insert_exists=apply_remote", "insert_exists=keep_local:s.a.b", "update_missing = error"];
        let rules = rules(&given.map(|text| text.parse().unwrap())).unwrap();
        assert_eq!(rules.of("s", "t").of(ConflictType::InsertExists), Resolution::ApplyRemote);
        assert_eq!(rules.of("s", "a.b").of(ConflictType::InsertExists), Resolution::KeepLocal);
        assert_eq!(rules.of("s", "a.b").of(ConflictType::UpdateMissing), Resolution::Error);
    }

    #[test]
    fn what_is_no_rule_is_refused_by_name() {
        assert!(refused("insert_exists").contains("TYPE=RESOLUTION"));
        assert!(refused("insert=skip").contains("multiple_unique_conflicts"));
        assert!(refused("insert_exists=newest").contains("last_update_wins"));
        assert!(refused("delete_missing=apply_remote").contains("choose one of error, skip"));
        assert!(refused("insert_exists=skip:t").contains("schema.name"));
        assert!("update_deleted=last_update_wins".parse::<ConflictRule>().is_ok());
    }

    #[test]
    fn two_rules_for_the_same_must_agree() {
        let read =
            |given: &[&str]| rules(&given.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>());
        assert!(read(&["insert_exists=skip", "insert_exists=skip"]).is_ok());
        assert!(read(&["insert_exists=skip", "insert_exists=error"]).unwrap_err().contains("skip and error"));
    }
}
