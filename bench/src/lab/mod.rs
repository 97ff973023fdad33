//! The laboratory: servers to measure on, load to put on them, and the instruments.
//!
//! - The servers: [`rig`] is a publisher and a subscriber with images to go back to; [`slow`] gives the
//!   subscriber slow storage.
//! - The load: [`backlog`] lists what is written, [`load`] writes it.
//! - The instruments: [`measure`] runs the clock, [`cpu`] counts CPU seconds, [`probe`] is the session that
//!   looks, [`aftermath`] is what a run left behind, [`limit`] is what the servers alone can do, and
//!   [`machine`] names the program that was measured.
//!
//! Nothing here knows a benchmark by name; what is measured is in `cases`.

pub(crate) mod aftermath;
pub(crate) mod backlog;
pub(crate) mod cpu;
pub(crate) mod limit;
pub(crate) mod load;
pub(crate) mod machine;
pub(crate) mod measure;
pub(crate) mod probe;
pub(crate) mod rig;
pub(crate) mod slow;
