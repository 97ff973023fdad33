//! What the relay must survive: the hazards of its design, kills of everybody, and faults around
//! it. Publishers and subscribers are stock servers, and the relay is the program.
//!
//! | hazard | test |
//! | --- | --- |
//! | 1. A keepalive says the pass's position. | `h01_*`, and `l3_*` in `crates/relay/tests/walsender.rs` |
//! | 2. Idle senders send no keepalive. | `h02_*` |
//! | 3. A subscriber joins while transactions are streamed. | `h03_*`, and the model in `crates/track/tests` |
//! | 4. A Relation message stood in a transaction that was skipped. | `h04_*`, and the same model |
//! | 5. A new form begins while a transaction is open. | `h05_*` |
//! | 6. An anchor is named before it is durable. | `h06_*`: kills at random moments; see below |
//! | 7. The two-phase flag is forgotten. | `h07_*` |
//! | 8. The same gid is prepared twice. | `h08_*` around restarts, `moving` in `tests/relay` around a move |
//! | 9. Session settings are part of the form. | `h09_*` |
//! | 10. WAL passes a promoted standby. | `w3_*` and `l2_*` of `failover` in `tests/relay` |
//! | 11. An anchor goes while a slot is created. | `h11_*`, `l2_*` of `retention` in `tests/relay`; see below |
//! | 12. A slot stays active after a network cut. | `h12_*` |
//! | 13. A database comes back under the same name. | `h13_*` |
//! | 14. The disk is full. | `h14_*`, and `a_full_disk_loses_nothing` in `crates/wal_dir/tests` |
//! | 15. The upstream of a copy's snapshot is lost. | `h15_*` |
//! | 16. A subscriber dies between the drop of a copy's slot and its own commit. | `h16_*` |
//!
//! Not from outside:
//! - 6: `kill -9` leaves the kernel's cache, so it shows an order of files and not of syncs.
//! - 11: the moment between `restart_of` and `Slots::create` is too short to be met.
//!
//! | file | has |
//! | --- | --- |
//! | `streams`, `slots` | the hazards |
//! | `backlogs` | large transactions and long backlogs |
//! | `new_databases` | databases that the relay sees for the first time, or that are gone |
//! | `network`, `clients` | faults around the relay |
//! | `kills`, `load` | kills under load |
//! | `lost_end` | a copy that the subscriber cannot end any more |
//! | `stage`, `kept` | servers and the relay; what its directory must hold |
//!
//! | variable | effect |
//! | --- | --- |
//! | `PGSLUICE_RELAY_SEED` | repeats a run's choices; the servers keep their own time |
//! | `PGSLUICE_RELAY_KILLS` | kills on each major; without it, one major has [`kills::KILLS`] |

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod backlogs;
mod clients;
#[path = "../crash/conn.rs"]
mod conn;
mod kept;
mod kills;
mod load;
mod lost_end;
mod network;
mod new_databases;
mod slots;
mod stage;
mod streams;

/// A number in the environment.
fn environment(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is not a number: {value}")))
}

/// The seed of this run.
fn seed() -> u64 {
    environment("PGSLUICE_RELAY_SEED").unwrap_or_else(|| rand::random_range(0..1_000_000))
}
