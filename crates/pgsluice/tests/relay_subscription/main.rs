//! Scenarios of PostgreSQL's own subscription tests, through the relay.
//!
//! Each scenario has two subscriptions of a stock subscriber: one at the publisher, one at the
//! relay (`stage`). Both must end alike, and with the publisher's rows where these are published.
//! PostgreSQL has its tests in `src/test/subscription/t`. The table says what stands here for each
//! of them. Tables and words are our own.
//!
//! | PostgreSQL's script | here |
//! | --- | --- |
//! | `001_rep_changes` | `rows`: identities, publish options, name and connection of a subscription |
//! | `002_types` | `types`, as text |
//! | `003_constraints` | `local`: foreign keys, checks, triggers |
//! | `004_sync` | `copying` |
//! | `005_encoding` | `types`: the relay serves UTF8 only, so another encoding at either end is refused |
//! | `006_rewrite` | `rows::rewritten_tables_go_on` |
//! | `007_ddl` | `ddl`: publications that are missing, subscriptions that are made in other ways |
//! | `008_diff_schema` | `rows::a_subscribers_table_may_have_other_columns` |
//! | `009_matviews` | `rows::what_is_no_published_table_is_ignored` |
//! | `010_truncate` | `truncate`; synchronous replication is left out, because the relay's streams are asynchronous |
//! | `011_generated` | `generated` |
//! | `012_collation` | `types::keys_are_found_by_a_subscribers_collation` |
//! | `013_partition` | `partitions` |
//! | `014_binary` | `types`, in binary form |
//! | `015_stream`, `016_stream_subxact`, `018_stream_subxact_abort` | `streaming`: open transactions with parts that are taken back |
//! | `017_stream_ddl`, `019_stream_subxact_ddl_abort` | `streaming`: DDL and rollbacks |
//! | `020_messages` | `rows`, `streaming`: a subscriber ignores them; the messages themselves are in `relay_clients` |
//! | `021_twophase`, `023_twophase_stream` | `two_phase`; restarts of servers between are in `relay_faults` |
//! | `022_twophase_cascade` | `two_phase`: two relays one behind the other |
//! | `024_add_drop_pub` (`021_alter_sub_pub`) | `ddl::publications_are_added_to_a_subscription_and_dropped` |
//! | `025_rep_changes_for_schema` | `ddl::all_tables_of_schemas_are_published` |
//! | `026_stats` (`026_worker_stats`) | `errors::errors_are_counted` |
//! | `027_nosuperuser` | `local`: an owner without rights, and one that is no superuser |
//! | `028_row_filter` | `filters` |
//! | `029_on_error` (`029_disable_on_error`) | `errors`: disabled by an error, and skipped |
//! | `030_origin` | `origin` |
//! | `031_column_list` | `columns` |
//! | `032_subscribe_use_index` | `keys::whole_rows_are_found_by_an_index` |
//! | `033_run_as_table_owner` | `local::changes_are_applied_as_the_owner_of_the_table` |
//! | `034_temporal` | `keys::rows_with_a_temporal_key_are_found` |
//! | `035_conflicts` | `errors::conflicts_are_detected_and_counted`; dead rows are retained from 19 on |
//! | `100_bugs` | `keys`: identities and columns that change; `ddl`: renamed schemas, open transactions; `origin`: copies that are passed on; `copying`: slots that exist; `rows`: unlogged and temporary tables |
//! | `030_sequences`, `036_sequences`, `037_except`, `038_walsnd_shutdown_timeout` | no release up to 18 has these features |
//! | `032_apply_delay` | no release has it |
//!
//! What a script does with injection points, single-user mode or the logs of the publisher's
//! walsender has no meaning here: the relay has none of these.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod columns;
mod copying;
mod ddl;
mod errors;
mod filters;
mod generated;
mod keys;
mod local;
mod origin;
mod pairs;
mod partitions;
mod rows;
mod stage;
mod streaming;
mod truncate;
mod two_phase;
mod types;

use std::time::Duration;

/// For hangs only.
const BOUND: Duration = Duration::from_secs(60);
