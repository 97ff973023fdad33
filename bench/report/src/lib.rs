//! What the reports of all benchmarks share.
//!
//! `bench` compares replication. `bench/peers`, a workspace of its own, compares stores. Both write
//! tables of Markdown ([`table`]), pictures ([`chart`]), wrapped prose ([`wrap`]), and where and
//! when they measured ([`provenance`]). Each of them defines its figures and the format of its
//! records.

pub mod chart;
pub mod provenance;
pub mod table;
pub mod wrap;
