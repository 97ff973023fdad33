//! Two directions from one command: `--both-ways`.
//!
//! The settings describe one direction, which is made as ever. The way back has the same settings
//! with the two servers swapped:
//!
//! | setting | forth | back |
//! | --- | --- | --- |
//! | subscription | `--subscription` | `--back-subscription`, or that name and `_back` |
//! | publications | `--publication` | `--back-publication`, or the same names |
//! | `origin` | `none` | `none` |
//! | `copy_data`, `create_schema` | as given | `off` |
//! | `wal_archive`, `wal_stream`, `synchronized_standby_slots` | as given | their defaults |
//!
//! In a file, the two directions are two `[[subscription]]` tables. However they were given, `run`
//! recognizes two directions of a pair ([`Subject::is_back_of`]) and lets them wait for each other.

use clap::Args;
use engine::Direction;

use crate::failure::Failure;
use crate::subject::Subject;

/// Commands that are about both directions have these.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Two directions")]
pub(crate) struct BothWays {
    /// Also replicate the other way, from the target to the source
    ///
    /// Both directions have `origin = none`, so that no change goes round. The first copy goes from
    /// the source to the target, which must be empty; with `--copy-data off` there is none. The
    /// publication must be on both servers.
    #[arg(long)]
    pub(crate) both_ways: bool,

    /// With --both-ways, name of the subscription back (default: that of the other direction, and
    /// `_back`)
    #[arg(long, value_name = "NAME", requires = "both_ways")]
    pub(crate) back_subscription: Option<String>,
}

/// Commands that also need the publications have these.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Two directions")]
pub(crate) struct BothWaysPublished {
    #[command(flatten)]
    pub(crate) names: BothWays,

    /// With --both-ways, publication on the target to subscribe to (default: the names of
    /// --publication); may be given more than once
    #[arg(long, value_name = "NAME", requires = "both_ways")]
    pub(crate) back_publication: Vec<String>,
}

/// The subjects of a command: as they are, or with `--both-ways` the only one and its way back.
pub(crate) fn expand(mut subjects: Vec<Subject>, wanted: &BothWaysPublished) -> anyhow::Result<Vec<Subject>> {
    if !wanted.names.both_ways {
        return Ok(subjects);
    }
    let [forth] = subjects.as_mut_slice() else {
        let names: Vec<_> = subjects.iter().map(|subject| subject.name.as_str()).collect();
        return Err(Failure::Together(format!(
            "--both-ways is about one subscription, and the file has {}: give both directions as two \
             [[subscription]] tables instead",
            names.join(", ")
        ))
        .into());
    };
    let back = forth.with_way_back(wanted.names.back_subscription.as_deref(), &wanted.back_publication)?;
    subjects.push(back);
    Ok(subjects)
}

/// The direction of each subject that is one of a pair.
pub(crate) fn directions(subjects: &[Subject]) -> Vec<Option<Direction>> {
    let mut directions: Vec<Option<Direction>> = subjects.iter().map(|_| None).collect();
    for (forth, subject) in subjects.iter().enumerate() {
        let back = subjects
            .iter()
            .enumerate()
            .find(|(at, own)| directions[*at].is_none() && own.is_back_of(subject));
        if let Some((back, other)) = back {
            let pair = Direction::pair(&subject.way(), &other.way());
            (directions[forth], directions[back]) = (Some(pair.0), Some(pair.1));
        }
    }
    directions
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::settings::SettingsTable;

    fn subject(words: &[&str]) -> Subject {
        Subject::new(SettingsTable::read(words.iter().map(OsString::from)).unwrap()).unwrap()
    }

    fn forth(more: &[&str]) -> Subject {
        let words = ["--source=host=a", "--target=host=b", "--publication=p", "--state-dir=/s"];
        subject(&[&words, more].concat())
    }

    #[test]
    fn the_way_back_has_the_servers_swapped_and_copies_nothing() {
        let wanted = BothWaysPublished {
            names: BothWays { both_ways: true, back_subscription: None },
            back_publication: Vec::new(),
        };
        let rule = "--conflict=insert_exists=keep_local";
        let subjects = expand(vec![forth(&["--create-schema", rule])], &wanted).unwrap();
        let [forth, back] = [0, 1].map(|at: usize| subjects[at].pipeline().unwrap());
        assert_eq!((forth.subscription.as_str(), back.subscription.as_str()), ("p", "p_back"));
        assert_eq!(
            (back.source.describe(), back.target.describe()),
            (forth.target.describe(), forth.source.describe())
        );
        assert_eq!(
            (forth.publications, forth.copy_data, forth.create_schema),
            (vec!["p".to_owned()], true, true)
        );
        assert_eq!(
            (back.publications, back.copy_data, back.create_schema),
            (vec!["p".to_owned()], false, false)
        );
        assert_eq!([forth.origin, back.origin], [engine::Origin::None; 2]);
        let of = |rules: &conflict::Rules| rules.of("s", "t").of(conflict::ConflictType::InsertExists);
        assert_eq!(of(&forth.conflict_rules), of(&back.conflict_rules));
        assert!(directions(&subjects).iter().all(Option::is_some));
    }

    #[test]
    fn names_can_be_given_and_several_subscriptions_are_refused() {
        let wanted = BothWaysPublished {
            names: BothWays { both_ways: true, back_subscription: Some("b_to_a".to_owned()) },
            back_publication: vec!["q".to_owned()],
        };
        let subjects = expand(vec![forth(&["--subscription=a_to_b"])], &wanted).unwrap();
        assert_eq!(subjects[1].name.as_str(), "b_to_a");
        assert_eq!(subjects[1].publications(), ["q"]);
        let error = expand(subjects, &wanted).unwrap_err().to_string();
        assert!(error.contains("a_to_b, b_to_a") && error.contains("[[subscription]]"), "{error}");
        let same = BothWaysPublished {
            names: BothWays { both_ways: true, back_subscription: Some("p".to_owned()) },
            ..BothWaysPublished::default()
        };
        assert!(expand(vec![forth(&[])], &same).unwrap_err().to_string().contains("--back-subscription"));
    }

    #[test]
    fn two_subscriptions_are_a_pair_if_one_goes_back_without_a_copy() {
        let back = |more: &[&str]| {
            let words = [
                "--source=host=b",
                "--target=host=a",
                "--publication=p",
                "--subscription=b",
                "--state-dir=/s",
            ];
            subject(&[&words, more].concat())
        };
        let none = "--origin=none";
        for (subjects, expected) in [
            ([forth(&[none]), back(&[none, "--copy-data=off"])], true),
            ([back(&[none, "--copy-data=off"]), forth(&[none])], true),
            ([forth(&[none]), back(&[none])], false),
            ([forth(&[none, "--copy-data=off"]), back(&[none, "--copy-data=off"])], false),
            ([forth(&[]), back(&[none, "--copy-data=off"])], false),
            ([forth(&[none]), forth(&[none, "--copy-data=off"])], false),
        ] {
            let found = directions(&subjects);
            assert!(found.iter().all(|own| own.is_some() == expected), "{found:?}");
        }
    }
}
