//! `pgsluice sequences [--apply]`.

use operate::sequences::{self, Sequence, Standing, Value};

use super::{connect, from_admin};
use crate::cli::SequencesArgs;
use crate::exit::Code;
use crate::subject::Subject;

/// Compares, and with `--apply` sets the target's sequences.
pub(crate) async fn sequences(subject: &Subject, args: &SequencesArgs) -> anyhow::Result<Code> {
    let name = &subject.name;
    let publications = if args.all { Vec::new() } else { super::publications(subject).await? };
    let (source, target) = (subject.source()?, subject.target()?);
    let source = connect("source", &source, name).await?;
    let mut target = connect("target", &target, name).await?;
    let found = sequences::compare(&source, &target, &publications, args.all).await.map_err(from_admin)?;
    let mut rest = 0;
    for sequence in &found {
        let verdict = match (sequence.standing(), args.apply) {
            (Standing::Level, _) => "level".to_owned(),
            (Standing::Missing, _) => {
                rest += 1;
                "missing on the target".to_owned()
            }
            (Standing::Ahead, _) if !args.force => "ahead on the target, left alone".to_owned(),
            (standing, false) => {
                rest += 1;
                if standing == Standing::Behind { "behind on the target" } else { "ahead on the target" }
                    .to_owned()
            }
            (_, true) => {
                match sequences::bring_level(&mut target, sequence, args.force).await.map_err(from_admin)? {
                    true => format!("set to {}", show(sequence.source)),
                    false => "level meanwhile".to_owned(),
                }
            }
        };
        super::say(format_args!("{}: {verdict}", describe(sequence)));
    }
    super::say(format_args!("{name}: {} sequences, {rest} not level", found.len()));
    Ok(if rest == 0 { Code::Done } else { Code::Differs })
}

fn describe(sequence: &Sequence) -> String {
    let target = sequence.target.map_or_else(|| "none".to_owned(), show);
    format!("{}.{} (source {}, target {target})", sequence.schema, sequence.name, show(sequence.source))
}

/// `17`, or `1 (not called)`.
fn show(value: Value) -> String {
    match value.is_called {
        true => value.last_value.to_string(),
        false => format!("{} (not called)", value.last_value),
    }
}
