//! `pgsluice slots list`, `slots create NAME`, `slots drop NAME`.

use operate::slots::{self, Slot};

use crate::cli::{SlotsCommand, SlotsPlace};
use crate::exit::{Code, exit};
use crate::subject::end;
use crate::units::show_bytes;

/// Lists or changes the slots of a relay or a server.
pub(crate) async fn slots(command: &SlotsCommand) -> anyhow::Result<Code> {
    let place = |place: &SlotsPlace| end("relay", Some(&place.relay));
    match command {
        SlotsCommand::List(args) => {
            let found = slots::list(&place(&args.place)?).await.map_err(|error| from_slots(&error))?;
            if args.json {
                for slot in &found {
                    super::say(format_args!("{}", serde_json::to_string(slot)?));
                }
            } else {
                found.iter().for_each(show);
            }
        }
        SlotsCommand::Create(args) => {
            let made = slots::create(&place(&args.place)?, &args.name, args.two_phase).await;
            let point = made.map_err(|error| from_slots(&error))?;
            super::say(format_args!("{}: made at {point}", args.name));
        }
        SlotsCommand::Drop(args) => {
            let dropped = slots::drop(&place(&args.place)?, &args.name, args.wait).await;
            dropped.map_err(|error| from_slots(&error))?;
            super::say(format_args!("{}: dropped", args.name));
        }
    }
    Ok(Code::Done)
}

/// An error about slots with its exit code.
pub(crate) fn from_slots(error: &slots::Error) -> anyhow::Error {
    exit(Code::Failed, base::with_causes(error))
}

/// Three lines for a slot.
fn show(slot: &Slot) {
    let database = slot.database.as_deref().unwrap_or("no database");
    let temporary = if slot.temporary { ", temporary" } else { "" };
    let two_phase = if slot.two_phase { ", two-phase" } else { "" };
    super::say(format_args!("{} ({database}{temporary}{two_phase}): {}", slot.name, slot.reason()));
    if let Some(reader) = &slot.reader {
        let or = |text: &Option<String>, other: &str| text.clone().unwrap_or_else(|| other.to_owned());
        super::say(format_args!(
            "  read by process {}: {} as {} from {}",
            reader.pid,
            or(&reader.application_name, "not shown"),
            or(&reader.user, "not shown"),
            or(&reader.address, "this machine, or not shown")
        ));
    }
    let position = |lsn: &Option<String>| lsn.clone().unwrap_or_else(|| "nothing".to_owned());
    let bytes = |bytes: Option<i64>| {
        let bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or_default();
        show_bytes(bytes)
    };
    let most = if slot.holds_most { ", more than any other slot" } else { "" };
    super::say(format_args!(
        "  confirmed up to {} ({} behind); holds WAL from {} on ({}{most})",
        position(&slot.confirmed),
        bytes(slot.behind_bytes),
        position(&slot.restart),
        bytes(slot.held_bytes),
    ));
}
