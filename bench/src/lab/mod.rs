//! The laboratory: servers to measure on, load to put on them, and the instruments.
//!
//! - The servers: [`rig`] is a publisher and a subscriber with images to return to. [`relay`] is
//!   pgsluice's relay beside a publisher. [`slow`] gives the subscriber slow storage.
//! - The load: [`backlog`] lists what is written, and [`load`] writes it.
//! - The instruments: [`measure`] runs the clock, [`cpu`] counts CPU seconds, and [`probe`] is the
//!   session that samples. [`drain`] is the receivers that only count. [`pairs`] has the interval
//!   of a ratio. [`timeline`] shows who worked and who waited. [`aftermath`] is what a run left
//!   behind, and [`limit`] is what the servers alone can do. [`machine`] names the program.
//!
//! Nothing here knows a benchmark by name; `cases` has what is measured.

pub(crate) mod aftermath;
pub(crate) mod backlog;
pub(crate) mod cpu;
pub(crate) mod drain;
pub(crate) mod limit;
pub(crate) mod load;
pub(crate) mod machine;
pub(crate) mod measure;
pub(crate) mod pairs;
pub(crate) mod probe;
pub(crate) mod relay;
pub(crate) mod rig;
pub(crate) mod slow;
pub(crate) mod timeline;
