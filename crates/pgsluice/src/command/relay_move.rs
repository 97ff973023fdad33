//! `pgsluice relay move --subscriber CONNINFO --subscription NAME --to CONNINFO [--execute]`.

use operate::moving::{Error, Move, relocate};

use crate::cli::MoveArgs;
use crate::exit::{Code, exit};
use crate::subject::end;

/// Moves a native subscription to another place of the same publisher.
pub(crate) async fn relay_move(args: &MoveArgs) -> anyhow::Result<Code> {
    let subscriber = end("subscriber", Some(&args.subscriber))?;
    let to = end("to", Some(&args.to))?;
    let to_from_here =
        args.to_from_here.as_deref().map(|text| end("to_from_here", Some(text))).transpose()?;
    let from = args.from.as_deref().map(|text| end("from", Some(text))).transpose()?;
    let wanted = Move {
        subscriber: &subscriber,
        subscription: &args.subscription,
        from,
        to: &args.to,
        to_from_here: to_from_here.as_ref().unwrap_or(&to),
        executes: args.execute,
        timeout: args.timeout.0,
    };
    let mut tell = |step: &str| super::say(format_args!("{}: {step}", args.subscription));
    let moved = relocate(&wanted, &mut tell).await.map_err(|error| from_moving(&error))?;
    if !moved.statements.is_empty() {
        super::say(format_args!("run on the subscriber, in this order:"));
        moved.statements.iter().for_each(|statement| super::say(format_args!("    {statement};")));
        let slot = &moved.slot;
        super::say(format_args!(
            "then drop the old slot: pgsluice slots drop {slot} --wait --relay OLD-CONNINFO"
        ));
    }
    Ok(Code::Done)
}

/// An error of a move with its exit code.
pub(crate) fn from_moving(error: &Error) -> anyhow::Error {
    exit(Code::Failed, base::with_causes(error))
}
